//! Which Ethernet address the way to a peer begins at.

use std::net::IpAddr;

use sinew_fabric::frames::MacAddress;

/// Neighbours that are remembered. Strangers cannot make the table grow, only have others be asked for again.
const SLOTS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    address: IpAddr,
    mac: MacAddress,
    /// Whether we asked for it; else a packet came from there.
    asked: bool,
}

/// The neighbours that are known.
#[derive(Debug)]
pub(crate) struct Neighbours {
    slots: Vec<Option<Entry>>,
    /// Somebody whom we had asked for sends from elsewhere now.
    doubted: Option<IpAddr>,
}

fn slot_of(address: IpAddr) -> usize {
    let bits = match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => address.into(),
    };
    let folded = (bits >> 64) as u64 ^ bits as u64;
    (folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % SLOTS
}

impl Neighbours {
    pub fn new() -> Self {
        Self { slots: vec![None; SLOTS], doubted: None }
    }

    /// Where packets to an address go.
    #[inline]
    pub fn get(&self, address: IpAddr) -> Option<MacAddress> {
        self.slots[slot_of(address)].filter(|entry| entry.address == address).map(|entry| entry.mac)
    }

    /// What was asked for was told.
    pub fn tell(&mut self, address: IpAddr, mac: MacAddress) {
        self.slots[slot_of(address)] = Some(Entry { address, mac, asked: true });
    }

    /// A packet came from an address. Its sender can be answered there, unless we know better or have the place for somebody whom we had to ask for.
    #[inline]
    pub fn learn(&mut self, address: IpAddr, mac: MacAddress) {
        let slot = &mut self.slots[slot_of(address)];
        match slot {
            Some(entry) if entry.address == address && entry.mac == mac => {}
            Some(entry) if entry.address == address && entry.asked => self.doubted = Some(address),
            Some(entry) if entry.address != address && entry.asked => {}
            _ => *slot = Some(Entry { address, mac, asked: false }),
        }
    }

    /// Whom to ask for again, if there is somebody.
    pub fn take_doubted(&mut self) -> Option<IpAddr> {
        self.doubted.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const B: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    #[test]
    fn who_sends_can_be_answered_and_who_was_asked_for_is_not_replaced_by_a_claim() {
        let mut neighbours = Neighbours::new();
        let (one, other) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        assert_eq!(neighbours.get(one), None);
        neighbours.learn(one, A);
        neighbours.learn(one, B);
        assert_eq!((neighbours.get(one), neighbours.take_doubted()), (Some(B), None));
        neighbours.tell(other, A);
        neighbours.learn(other, B);
        assert_eq!((neighbours.get(other), neighbours.take_doubted()), (Some(A), Some(other)));
        assert_eq!(neighbours.take_doubted(), None);
    }

    #[test]
    fn strangers_put_nobody_out_who_was_asked_for() {
        let mut neighbours = Neighbours::new();
        let kept: IpAddr = "10.0.0.1".parse().unwrap();
        neighbours.tell(kept, A);
        for number in 0..10_000u32 {
            neighbours.learn(std::net::Ipv4Addr::from(0x0B00_0000 + number).into(), B);
        }
        assert_eq!(neighbours.get(kept), Some(A));
    }
}
