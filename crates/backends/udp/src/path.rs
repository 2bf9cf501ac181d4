//! The largest datagram that the path to each peer carries.

use std::net::SocketAddr;

use sinew_fabric::Peer;

use crate::{peer, sys};

/// Routes with at least this MTU stay within the host: only the loopback device has so large an MTU.
const LOCAL_MTU: usize = 65_535;
/// The largest datagram that is sent within the host, in bytes. The largest possible is 65,507 (IPv4) or 65,487 (IPv6
/// over a device with an MTU of 65,536); the difference is room for headers that a tunnel might add.
pub(crate) const LOCAL_DATAGRAM: usize = 65_000;
/// MTU that every IPv6 path and practically every IPv4 path carries; used when the path's own is unknown.
const SAFE_MTU: usize = 1_280;
const SLOTS: usize = 256;

/// The largest datagram towards a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// Bytes of UDP payload that travel unfragmented.
    pub datagram_max: usize,
    /// Whether the path stays within this host.
    pub local: bool,
}

/// Paths to peers, in a table of fixed size: strangers cannot make it grow, and can only cause paths to be queried
/// again.
#[derive(Debug)]
pub(crate) struct Paths {
    mtu_max: usize,
    slots: Vec<Option<(Peer, Path)>>,
}

fn slot_of(peer: Peer) -> usize {
    let [a, b, c] = peer.0;
    let mixed = (a ^ b.rotate_left(17) ^ c.rotate_left(41)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as usize % SLOTS
}

impl Paths {
    /// Creates an empty table. On networks no IP packet is to be larger than `mtu_max` bytes, whatever the route
    /// allows.
    pub fn new(mtu_max: usize) -> Self {
        Self { mtu_max, slots: vec![None; SLOTS] }
    }

    /// The path, from the table or else from the system, which takes some microseconds.
    #[inline]
    pub fn get(&mut self, peer: Peer) -> Path {
        match self.slots[slot_of(peer)] {
            Some((known, path)) if known == peer => path,
            _ => {
                let path = self.query(peer);
                self.slots[slot_of(peer)] = Some((peer, path));
                path
            }
        }
    }

    /// The path, without a change to the table.
    pub fn peek(&self, peer: Peer) -> Path {
        match self.slots[slot_of(peer)] {
            Some((known, path)) if known == peer => path,
            _ => self.query(peer),
        }
    }

    /// Enters a path to `peer` over a network with datagrams of at most `datagram_max` bytes.
    #[cfg(test)]
    pub fn narrow(&mut self, peer: Peer, datagram_max: usize) {
        self.slots[slot_of(peer)] = Some((peer, Path { datagram_max, local: false }));
    }

    /// Forgets all paths, since one turned out to carry less than before.
    pub fn clear(&mut self) {
        self.slots.fill(None);
    }

    fn query(&self, peer: Peer) -> Path {
        let mtu = sys::path_mtu(peer).unwrap_or(SAFE_MTU);
        if mtu >= LOCAL_MTU {
            return Path { datagram_max: LOCAL_DATAGRAM, local: true };
        }
        Path { datagram_max: mtu.min(self.mtu_max).saturating_sub(headers_len(peer)).max(512), local: false }
    }
}

/// Bytes of IP and UDP headers before the payload.
fn headers_len(peer: Peer) -> usize {
    match peer::unpack(peer) {
        Some(SocketAddr::V6(_)) => 48,
        _ => 28,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_path_is_local_and_wide() {
        let mut paths = Paths::new(1500);
        let peer = peer::pack("127.0.0.1:9".parse().unwrap());
        let path = paths.get(peer);
        // A machine may have given its loopback device another MTU.
        assert_eq!(path.local, sys::path_mtu(peer).unwrap() >= LOCAL_MTU);
        assert_eq!((paths.get(peer), paths.peek(peer)), (path, path));
        paths.clear();
        assert_eq!(paths.get(peer), path);
    }

    #[test]
    fn a_path_that_cannot_be_asked_about_is_taken_as_narrow() {
        let invalid_peer = Peer([1, 2, 3]);
        assert_eq!(Paths::new(1500).get(invalid_peer), Path { datagram_max: SAFE_MTU - 28, local: false });
        assert_eq!(Paths::new(0).get(invalid_peer).datagram_max, 512, "512 is the least, so that headers fit");
    }
}
