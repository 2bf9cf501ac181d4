//! Offloads of a network device, read and set by `ioctl`.

use std::io;
use std::mem::size_of;

use rustix::fd::{AsFd, AsRawFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::check;

const GET_CHANNELS: u32 = 0x3c;
/// Commands that ask whether the device computes checksums and segments packets (GSO, TSO).
const GET_TX_CHECKSUM: u32 = 0x16;
const GET_GSO: u32 = 0x23;
const GET_TSO: u32 = 0x1e;
/// Commands that switch a device's offloads: checksums of sent packets, segmentation (GSO, TSO), and joining of
/// received packets (GRO).
const SET_TX_CHECKSUM: u32 = 0x17;
const SET_GSO: u32 = 0x24;
const SET_TSO: u32 = 0x1f;
const SET_GRO: u32 = 0x2c;

#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    rx_max: u32,
    tx_max: u32,
    other_max: u32,
    combined_max: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

fn call<T>(interface: &str, argument: &mut T) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: zeros are a value of `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    const _: () = assert!(size_of::<Channels>() == 36 && size_of::<EthtoolValue>() == 8);
    request.ifr_ifru.ifru_data = std::ptr::from_mut(argument).cast();
    // SAFETY: the request names an interface and an argument of the length that its command has; both live through the
    // call.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) })?;
    Ok(())
}

/// Number of queues at which the interface receives, by its driver's count.
pub(crate) fn rx_queues(interface: &str) -> io::Result<u32> {
    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    call(interface, &mut channels)?;
    Ok(channels.rx.max(channels.combined).max(channels.rx.saturating_add(channels.combined)))
}

/// The work on sent packets that the kernel leaves to the interface, by the names of `ethtool -K`.
pub(crate) fn offloads_on(interface: &str) -> io::Result<Vec<&'static str>> {
    let mut offloads = Vec::new();
    for (command, name) in [(GET_TX_CHECKSUM, "tx"), (GET_GSO, "gso"), (GET_TSO, "tso")] {
        let mut value = EthtoolValue { command, data: 0 };
        call(interface, &mut value)?;
        if value.data != 0 {
            offloads.push(name);
        }
    }
    Ok(offloads)
}

/// Makes the kernel finish the packets that it sends there, checksums and cutting, or leave this to the interface. If
/// it finishes them, it does not join received packets either.
pub(crate) fn finish_in_kernel(interface: &str, finish: bool) -> io::Result<()> {
    let commands = [SET_TX_CHECKSUM, SET_GSO, SET_TSO];
    for &command in commands.iter().chain(finish.then_some(&SET_GRO)) {
        let result = call(interface, &mut EthtoolValue { command, data: u32::from(!finish) });
        // Some are switched off along with others, and then refuse.
        if command == SET_TX_CHECKSUM {
            result?;
        }
    }
    Ok(())
}
