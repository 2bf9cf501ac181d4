//! What a network device does for its host, by `ioctl`.

use std::io;
use std::mem::size_of;

use rustix::fd::{AsFd, AsRawFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::check;

const GET_CHANNELS: u32 = 0x3c;
/// Commands that switch what a device would finish for the kernel: checksums of what it sends, and cutting.
const SET_TX_CHECKSUM: u32 = 0x17;
const SET_CUTTING: u32 = 0x24;
const SET_TCP_CUTTING: u32 = 0x1f;
const SET_JOINING: u32 = 0x2c;

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
struct Value {
    command: u32,
    data: u32,
}

fn call<T>(interface: &str, argument: &mut T) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: an `ifreq` of zeros is one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    const _: () = assert!(size_of::<Channels>() == 36 && size_of::<Value>() == 8);
    request.ifr_ifru.ifru_data = std::ptr::from_mut(argument).cast();
    // SAFETY: the request names an interface and an argument of the length that its command has, both live through the call.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) })?;
    Ok(())
}

/// Queues that the interface receives at, as its driver says.
pub(crate) fn rx_queues(interface: &str) -> io::Result<u32> {
    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    call(interface, &mut channels)?;
    Ok(channels.rx.max(channels.combined).max(channels.rx.saturating_add(channels.combined)))
}

/// Has the kernel finish what it sends there: checksums and cutting. Nor does it join what comes.
pub(crate) fn finish_in_kernel(interface: &str) -> io::Result<()> {
    for command in [SET_TX_CHECKSUM, SET_CUTTING, SET_TCP_CUTTING, SET_JOINING] {
        let result = call(interface, &mut Value { command, data: 0 });
        // Some are switched off with others, and then not to be had.
        if command == SET_TX_CHECKSUM {
            result?;
        }
    }
    Ok(())
}
