//! Socket addresses in the kernel's form.

use std::mem::{size_of, zeroed};
use std::net::SocketAddr;

use sinew_fabric::Peer;

use crate::peer;

/// A socket address in the kernel's form, with room for either family.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

pub(super) const NAME_LEN: libc::socklen_t = size_of::<Name>() as libc::socklen_t;

impl Name {
    /// The peer's address in the family of the socket; `None` when that family cannot express it.
    #[inline]
    pub fn of(peer: Peer, v6: bool) -> Option<Self> {
        match (peer::unpack(peer)?, v6) {
            (SocketAddr::V4(address), false) => Some(Self {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                },
            }),
            (SocketAddr::V4(address), true) => {
                Some(Self::v6(address.ip().to_ipv6_mapped().octets(), address.port(), 0))
            }
            (SocketAddr::V6(address), true) => {
                Some(Self::v6(address.ip().octets(), address.port(), address.scope_id()))
            }
            (SocketAddr::V6(_), false) => None,
        }
    }

    fn v6(octets: [u8; 16], port: u16, scope: u32) -> Self {
        Self {
            v6: libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: port.to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: octets },
                sin6_scope_id: scope,
            },
        }
    }

    pub const fn empty() -> Self {
        // SAFETY: all-zero is a valid socket address of no family.
        unsafe { zeroed() }
    }

    pub(super) fn len(&self) -> libc::socklen_t {
        // SAFETY: every variant starts with the family, and every byte of the union is initialised.
        match libc::c_int::from(unsafe { self.v4.sin_family }) {
            libc::AF_INET => size_of::<libc::sockaddr_in>() as libc::socklen_t,
            _ => NAME_LEN,
        }
    }

    /// The peer that the kernel named; `None` for any family but IPv4 and IPv6.
    #[inline]
    pub fn peer(&self) -> Option<Peer> {
        // SAFETY: every byte of the union is initialised, and both variants are plain integers.
        unsafe {
            match libc::c_int::from(self.v4.sin_family) {
                libc::AF_INET => {
                    Some(peer::pack_v4(u32::from_be(self.v4.sin_addr.s_addr), u16::from_be(self.v4.sin_port)))
                }
                libc::AF_INET6 => Some(peer::pack_v6(
                    u128::from_be_bytes(self.v6.sin6_addr.s6_addr),
                    u16::from_be(self.v6.sin6_port),
                    self.v6.sin6_scope_id,
                )),
                _ => None,
            }
        }
    }
}
