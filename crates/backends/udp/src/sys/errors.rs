//! Errors that the network reports about earlier packets.

use std::mem::{size_of, zeroed};

use sinew_fabric::Peer;

use super::Socket;
use super::control::{Control, each_control};
use super::name::{NAME_LEN, Name};

impl Socket {
    /// Takes one error that the network reported about an earlier packet. `None` when there is none.
    pub fn take_error(&self) -> Option<NetworkError> {
        let mut name = Name::empty();
        let mut control = Control::empty();
        // SAFETY: all-zero is a valid `msghdr`: one without buffers.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = NAME_LEN;
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of::<Control>() as _;
        // SAFETY: the header points to the live name and control block, with their lengths. It offers no room for the
        // packet, which is truncated.
        if unsafe { libc::recvmsg(self.raw(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) } < 0 {
            return None;
        }
        let mut error = NetworkError { peer: name.peer(), errno: 0, mtu: None };
        each_control(&header, |level, kind, data| {
            let is_error = matches!(
                (level, kind),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            );
            if is_error && data.len() >= size_of::<libc::sock_extended_err>() {
                // SAFETY: there are enough bytes, and any bytes are a valid `sock_extended_err`.
                let extended: libc::sock_extended_err =
                    unsafe { data.as_ptr().cast::<libc::sock_extended_err>().read_unaligned() };
                error.errno = extended.ee_errno as i32;
                if error.errno == libc::EMSGSIZE {
                    error.mtu = Some(extended.ee_info as usize);
                }
            }
        });
        Some(error)
    }
}

/// An error that the network reported about an earlier packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkError {
    /// Destination of the packet.
    pub peer: Option<Peer>,
    /// The system's error number.
    pub errno: i32,
    /// Largest IP packet that would have fitted the path, in bytes, if the packet was too long.
    pub mtu: Option<usize>,
}
