//! The neighbours of a port: the Ethernet address of the next hop to each peer.

use std::net::IpAddr;

use sinew_fabric::frames::MacAddress;

/// Most neighbours that are remembered. Unknown senders cannot make the table grow; they can only cause others to be
/// looked up again.
const SLOTS: usize = 256;

/// Age at which a neighbour that packets are sent to is probed again. Its known address is used meanwhile.
const FRESH_NS: u64 = 5_000_000_000;
/// Pause between further probes of it.
const ASK_INTERVAL_NS: u64 = 1_000_000_000;
/// Unanswered probes after which it counts as unknown.
const UNANSWERED_MAX: u8 = 3;
/// Most neighbours that can wait to be probed. Further ones are noted when they are used again.
const STALE_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    address: IpAddr,
    mac: MacAddress,
    /// Whether we asked for it; otherwise it is known from a packet.
    was_asked_for: bool,
    /// Time of the last answer or packet from it, by the caller's clock.
    confirmed_ns: u64,
    /// When it was last probed because of its age.
    asked_ns: u64,
    /// Probes without an answer since it was last confirmed.
    unanswered: u8,
}

/// The known neighbours.
#[derive(Debug)]
pub(crate) struct Neighbours {
    slots: Vec<Option<Entry>>,
    /// Neighbours to probe: they were asked for and now send from another Ethernet address, or were not heard
    /// from for long.
    stale: Vec<IpAddr>,
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
        Self { slots: vec![None; SLOTS], stale: Vec::with_capacity(STALE_MAX) }
    }

    /// The Ethernet address for packets to an address.
    #[inline]
    pub fn get(&self, address: IpAddr) -> Option<MacAddress> {
        self.slots[slot_of(address)].filter(|entry| entry.address == address).map(|entry| entry.mac)
    }

    /// The Ethernet address for packets that are being sent now. A neighbour that was not confirmed for long is
    /// probed, and forgotten after `UNANSWERED_MAX` unanswered probes. One that is known only from its packets is
    /// not forgotten: they may have come through a host that does not answer for it.
    #[inline]
    pub fn mac_for_send(&mut self, address: IpAddr, now_ns: u64) -> Option<MacAddress> {
        let slot = &mut self.slots[slot_of(address)];
        let entry = slot.as_mut().filter(|entry| entry.address == address)?;
        let mac = entry.mac;
        if now_ns.saturating_sub(entry.confirmed_ns) < FRESH_NS {
            return Some(mac);
        }
        if entry.unanswered == 0 || now_ns.saturating_sub(entry.asked_ns) >= ASK_INTERVAL_NS {
            if entry.unanswered == UNANSWERED_MAX && entry.was_asked_for {
                *slot = None;
                return None;
            }
            if mark_stale(&mut self.stale, address) {
                (entry.unanswered, entry.asked_ns) = (UNANSWERED_MAX.min(entry.unanswered + 1), now_ns);
            }
        }
        Some(mac)
    }

    /// Records the answer about a neighbour that was asked for.
    pub fn set_answer(&mut self, address: IpAddr, mac: MacAddress, now_ns: u64) {
        self.slots[slot_of(address)] =
            Some(Entry { address, mac, was_asked_for: true, confirmed_ns: now_ns, asked_ns: 0, unanswered: 0 });
    }

    /// Records the answer about the gateway, which was at `before` if it was known. Every neighbour that was asked for
    /// is behind it, and so is every one whose packets came from there.
    pub fn set_gateway(&mut self, before: Option<MacAddress>, mac: MacAddress, now_ns: u64) {
        let is_behind = |entry: &&mut Entry| entry.was_asked_for || entry.mac == mac || Some(entry.mac) == before;
        for entry in self.slots.iter_mut().flatten().filter(is_behind) {
            *entry = Entry { mac, confirmed_ns: now_ns, unanswered: 0, ..*entry };
        }
        // None of them needs to be probed any more.
        self.stale.clear();
    }

    /// Records that a packet came from an address. Its sender is answered there, unless we know better, or need the
    /// slot for a neighbour that we had to ask for.
    #[inline]
    pub fn learn(&mut self, address: IpAddr, mac: MacAddress, now_ns: u64) {
        let slot = &mut self.slots[slot_of(address)];
        match slot {
            Some(entry) if entry.address == address && entry.mac == mac => {
                (entry.confirmed_ns, entry.unanswered) = (now_ns, 0);
            }
            Some(entry) if entry.address == address && entry.was_asked_for => {
                mark_stale(&mut self.stale, address);
            }
            Some(entry) if entry.address != address && entry.was_asked_for => {}
            _ => {
                *slot =
                    Some(Entry { address, mac, was_asked_for: false, confirmed_ns: now_ns, asked_ns: 0, unanswered: 0 })
            }
        }
    }

    /// Takes a neighbour to probe, if there is one.
    pub fn take_stale(&mut self) -> Option<IpAddr> {
        (!self.stale.is_empty()).then(|| self.stale.remove(0))
    }
}

/// Notes that a neighbour is to be probed; returns false if there is no room for the note.
fn mark_stale(stale: &mut Vec<IpAddr>, address: IpAddr) -> bool {
    let is_noted = stale.contains(&address);
    if !is_noted && stale.len() < STALE_MAX {
        stale.push(address);
        return true;
    }
    is_noted
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
        neighbours.learn(one, A, 0);
        neighbours.learn(one, B, 0);
        assert_eq!((neighbours.get(one), neighbours.take_stale()), (Some(B), None));
        neighbours.set_answer(other, A, 0);
        neighbours.learn(other, B, 0);
        assert_eq!((neighbours.get(other), neighbours.take_stale()), (Some(A), Some(other)));
        assert_eq!(neighbours.take_stale(), None);
    }

    #[test]
    fn strangers_put_nobody_out_who_was_asked_for() {
        let mut neighbours = Neighbours::new();
        let kept: IpAddr = "10.0.0.1".parse().unwrap();
        neighbours.set_answer(kept, A, 0);
        for number in 0..10_000u32 {
            neighbours.learn(std::net::Ipv4Addr::from(0x0B00_0000 + number).into(), B, 0);
        }
        assert_eq!(neighbours.get(kept), Some(A));
    }

    #[test]
    fn who_is_not_heard_of_is_asked_for_while_it_is_used_and_forgotten_after_three_times_in_vain() {
        const S: u64 = 1_000_000_000;
        let mut neighbours = Neighbours::new();
        let one = "10.0.0.1".parse().unwrap();
        neighbours.set_answer(one, A, 0);
        let use_at =
            |neighbours: &mut Neighbours, now_ns| (neighbours.mac_for_send(one, now_ns), neighbours.take_stale());
        assert_eq!(use_at(&mut neighbours, 5 * S - 1), (Some(A), None));
        neighbours.learn(one, A, 5 * S);
        assert_eq!(use_at(&mut neighbours, 10 * S - 1), (Some(A), None), "a packet confirms it");
        assert_eq!(use_at(&mut neighbours, 10 * S), (Some(A), Some(one)));
        assert_eq!(use_at(&mut neighbours, 11 * S - 1), (Some(A), None));
        neighbours.set_answer(one, B, 11 * S);
        assert_eq!(use_at(&mut neighbours, 16 * S - 1), (Some(B), None), "an answer is believed");
        for at in [16, 17, 18] {
            assert_eq!(use_at(&mut neighbours, at * S), (Some(B), Some(one)));
        }
        assert_eq!(use_at(&mut neighbours, 19 * S), (None, None));
        assert_eq!(neighbours.get(one), None);
    }

    #[test]
    fn each_of_many_that_are_doubted_at_once_is_asked_for_and_what_has_no_room_is_not_counted_as_asked() {
        const S: u64 = 1_000_000_000;
        let mut neighbours = Neighbours::new();
        let all: Vec<IpAddr> = (1..=2 * STALE_MAX as u8).map(|last| IpAddr::from([10, 0, 0, last])).collect();
        all.iter().for_each(|one| neighbours.set_answer(*one, A, 0));
        let all: Vec<_> = all.into_iter().filter(|one| neighbours.get(*one).is_some()).collect();
        assert!(all.len() > STALE_MAX);
        let mut asked = Vec::new();
        for _ in 0..2 {
            all.iter().for_each(|one| assert_eq!(neighbours.mac_for_send(*one, 6 * S), Some(A)));
            asked.extend(std::iter::from_fn(|| neighbours.take_stale()));
        }
        let distinct: std::collections::HashSet<_> = asked.iter().collect();
        assert_eq!((asked.len(), distinct.len()), (all.len(), all.len()));
    }

    #[test]
    fn what_the_gateway_told_holds_for_all_that_is_behind_it_and_for_nothing_else() {
        let mut neighbours = Neighbours::new();
        let [asked, heard, beside] = ["10.9.0.1", "10.9.0.2", "10.0.0.1"].map(|address| address.parse().unwrap());
        let other = MacAddress([2, 0, 0, 0, 0, 3]);
        neighbours.set_answer(asked, A, 0);
        neighbours.learn(heard, A, 0);
        neighbours.learn(beside, other, 0);
        neighbours.set_gateway(Some(A), B, 5_000_000_000);
        for behind in [asked, heard] {
            assert_eq!(neighbours.mac_for_send(behind, 9_000_000_000), Some(B));
        }
        assert_eq!((neighbours.take_stale(), neighbours.get(beside)), (None, Some(other)));
    }

    #[test]
    fn who_is_known_from_its_packets_is_asked_for_and_not_forgotten() {
        let mut neighbours = Neighbours::new();
        let one = "10.0.0.1".parse().unwrap();
        neighbours.learn(one, A, 0);
        for at in 5..20 {
            assert_eq!(neighbours.mac_for_send(one, at * 1_000_000_000), Some(A));
            assert_eq!(neighbours.take_stale(), Some(one));
        }
    }
}
