//! Neighbours on a link: their Ethernet addresses are learnt, asked for and forgotten. A bounded number of frames waits
//! for addresses that are not known yet.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::IpAddr;

use sinew_fabric::frames::MacAddress;
use siphasher::sip::SipHasher13;

use crate::bucket::Bucket;
use crate::counters::Reason;

/// Time for which an address counts as fresh after it was last confirmed, in nanoseconds.
pub const FRESH_NS: u64 = 30_000_000_000;
/// Time to wait for an answer (RFC 4861's RetransTimer), in nanoseconds.
pub const RETRANSMIT_NS: u64 = 1_000_000_000;
/// Unanswered requests after which a neighbour counts as gone (RFC 4861's MAX_MULTICAST_SOLICIT).
pub const SOLICITATIONS_MAX: u8 = 3;
/// Frames that can wait for one neighbour.
pub const WAITING_PER_NEIGHBOUR_MAX: usize = 8;
/// Most entries examined in search of one to replace.
const REPLACE_STEPS_MAX: usize = 32;

/// Limits of a neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourLimits {
    /// Neighbours kept at once, besides those that routes name.
    pub neighbours: usize,
    /// Frames that can be waiting at once, over all neighbours.
    pub waiting: usize,
    /// Address requests per second, over all neighbours; also the largest burst of them.
    pub solicitations_per_s: u32,
    /// Keys of the hash by which neighbours are found. Senders of frames should not know them.
    pub hash_keys: (u64, u64),
}

impl Default for NeighbourLimits {
    fn default() -> Self {
        Self { neighbours: 4096, waiting: 1024, solicitations_per_s: 1000, hash_keys: (0, 0) }
    }
}

#[derive(Clone, Copy, Debug)]
struct KeyedHasher(u64, u64);

impl BuildHasher for KeyedHasher {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

#[derive(Debug)]
struct Neighbour {
    interface: u16,
    address: IpAddr,
    mac: Option<MacAddress>,
    confirmed_ns: u64,
    /// When it was last asked for in the current round of requests.
    solicited_ns: Option<u64>,
    solicitations: u8,
    /// Whether it is on the `soliciting` list.
    is_soliciting: bool,
    /// When the last round of requests ended without an answer.
    failed_ns: Option<u64>,
    /// Whether a route names it; such an entry is never replaced.
    is_pinned: bool,
    /// Whether it was used since the search for an entry to replace last passed it.
    is_used: bool,
    waiting: VecDeque<Vec<u8>>,
}

/// Work that is due for a neighbour.
#[derive(Debug)]
pub(crate) enum DueAction {
    /// Ask for it: interface, address, and its last known Ethernet address for a unicast request.
    Solicit(u16, IpAddr, Option<MacAddress>),
    /// Nobody answered, so these frames cannot be delivered.
    GiveUp(Vec<Vec<u8>>),
}

/// A neighbour table.
#[derive(Debug)]
pub(crate) struct Neighbours {
    index: HashMap<(u16, IpAddr), u32, KeyedHasher>,
    entries: Vec<Neighbour>,
    soliciting: Vec<u32>,
    next_ns: u64,
    clock_hand: usize,
    waiting: usize,
    solicitation_rate: Bucket,
    limits: NeighbourLimits,
    /// Frames dropped because their neighbour's entry was replaced.
    displaced: u64,
}

impl Neighbours {
    pub fn new(limits: NeighbourLimits) -> Self {
        Self {
            index: HashMap::with_hasher(KeyedHasher(limits.hash_keys.0, limits.hash_keys.1)),
            entries: Vec::new(),
            soliciting: Vec::new(),
            next_ns: u64::MAX,
            clock_hand: 0,
            waiting: 0,
            solicitation_rate: Bucket::new(limits.solicitations_per_s, limits.solicitations_per_s),
            limits,
            displaced: 0,
        }
    }

    /// Index of a neighbour's entry, which is added if missing. The index is valid until the next entry is added, or
    /// for as long as the neighbour is pinned.
    #[inline]
    pub fn find_or_add(&mut self, interface: u16, address: IpAddr) -> u32 {
        match self.index.get(&(interface, address)) {
            Some(at) => *at,
            None => self.add(interface, address),
        }
    }

    #[cold]
    fn add(&mut self, interface: u16, address: IpAddr) -> u32 {
        let new = Neighbour {
            interface,
            address,
            mac: None,
            confirmed_ns: 0,
            solicited_ns: None,
            solicitations: 0,
            is_soliciting: false,
            failed_ns: None,
            is_pinned: false,
            is_used: true,
            waiting: VecDeque::new(),
        };
        let index = match self.replaceable() {
            Some(at) => {
                let old = std::mem::replace(&mut self.entries[at], new);
                self.index.remove(&(old.interface, old.address));
                self.waiting -= old.waiting.len();
                self.displaced += old.waiting.len() as u64;
                if old.is_soliciting {
                    self.soliciting.retain(|other| *other as usize != at);
                }
                at
            }
            None => {
                self.entries.push(new);
                self.entries.len() - 1
            }
        };
        self.index.insert((interface, address), index as u32);
        index as u32
    }

    /// Chooses an entry to replace if the table is full: one that was not used lately and has no waiting frames, or
    /// else the first unpinned one in turn. `None` while the table may grow.
    fn replaceable(&mut self) -> Option<usize> {
        if self.entries.len() < self.limits.neighbours.max(1) {
            return None;
        }
        let mut fallback = None;
        for step in 0..self.entries.len() {
            let index = self.clock_hand;
            self.clock_hand = (index + 1) % self.entries.len();
            let entry = &mut self.entries[index];
            if entry.is_pinned {
                continue;
            }
            if !std::mem::take(&mut entry.is_used) && entry.waiting.is_empty() {
                return Some(index);
            }
            fallback = fallback.or(Some(index));
            if step >= REPLACE_STEPS_MAX {
                break;
            }
        }
        // `None` if every entry is pinned: then the table grows.
        fallback
    }

    /// Pins the neighbours that routes name, and no others. Returns the indices of their entries, in order.
    pub fn pin(&mut self, named: impl Iterator<Item = Option<(u16, IpAddr)>>) -> Vec<u32> {
        let named: Vec<_> = named.collect();
        let pinned: std::collections::HashSet<_> = named.iter().flatten().copied().collect();
        self.entries.iter_mut().for_each(|entry| entry.is_pinned = pinned.contains(&(entry.interface, entry.address)));
        let mut pin_one = |(interface, address)| {
            let index = self.find_or_add(interface, address);
            self.entries[index as usize].is_pinned = true;
            index
        };
        named.into_iter().map(|key| key.map_or(u32::MAX, &mut pin_one)).collect()
    }

    /// The Ethernet address of a neighbour, if known. A stale address is still used while it is asked for again.
    #[inline]
    pub fn mac(&mut self, at: u32, now_ns: u64) -> Option<MacAddress> {
        let entry = &mut self.entries[at as usize];
        entry.is_used = true;
        let mac = entry.mac?;
        if now_ns.saturating_sub(entry.confirmed_ns) > FRESH_NS && !entry.is_soliciting {
            self.start_solicitation(at, now_ns);
        }
        Some(mac)
    }

    #[cold]
    fn start_solicitation(&mut self, at: u32, now_ns: u64) {
        let entry = &mut self.entries[at as usize];
        (entry.is_soliciting, entry.solicited_ns, entry.solicitations) = (true, None, 0);
        self.soliciting.push(at);
        self.next_ns = self.next_ns.min(now_ns);
    }

    /// Keeps a frame until the neighbour's address is known, and asks for it.
    ///
    /// # Errors
    ///
    /// [`Reason::QueueFull`], or [`Reason::Neighbour`] if a round of requests went unanswered less than
    /// [`RETRANSMIT_NS`] ago.
    pub fn enqueue(&mut self, at: u32, now_ns: u64, frame: Vec<u8>) -> Result<(), Reason> {
        let entry = &mut self.entries[at as usize];
        if entry.failed_ns.is_some_and(|failed_ns| now_ns.saturating_sub(failed_ns) < RETRANSMIT_NS) {
            return Err(Reason::Neighbour);
        }
        let is_asked = entry.is_soliciting;
        let result = if entry.waiting.len() >= WAITING_PER_NEIGHBOUR_MAX || self.waiting >= self.limits.waiting {
            Err(Reason::QueueFull)
        } else {
            entry.waiting.push_back(frame);
            self.waiting += 1;
            Ok(())
        };
        if !is_asked {
            self.start_solicitation(at, now_ns);
        }
        result
    }

    /// Learns that a neighbour has this Ethernet address, and hands the frames that waited for it to `release`. A
    /// neighbour not in the table is added only if `is_new`.
    pub fn learn(
        &mut self,
        interface: u16,
        address: IpAddr,
        mac: MacAddress,
        now_ns: u64,
        is_new: bool,
        mut release: impl FnMut(Vec<u8>),
    ) {
        if !mac.is_unicast() || mac == MacAddress::default() {
            return;
        }
        let known = self.index.get(&(interface, address)).copied();
        let Some(at) = known.or_else(|| is_new.then(|| self.add(interface, address))) else { return };
        let entry = &mut self.entries[at as usize];
        entry.mac = Some(mac);
        entry.confirmed_ns = now_ns;
        entry.failed_ns = None;
        if std::mem::take(&mut entry.is_soliciting) {
            self.soliciting.retain(|other| *other != at);
        }
        self.waiting -= entry.waiting.len();
        entry.waiting.drain(..).for_each(&mut release);
    }

    /// When the next work is due; `None` while there is none.
    pub fn next_ns(&self) -> Option<u64> {
        (!self.soliciting.is_empty()).then_some(self.next_ns)
    }

    /// Hands the work that is due by now to `handle`.
    pub fn tick(&mut self, now_ns: u64, mut handle: impl FnMut(DueAction)) {
        if self.soliciting.is_empty() || now_ns < self.next_ns {
            return;
        }
        let mut next_ns = u64::MAX;
        let mut asked = std::mem::take(&mut self.soliciting);
        asked.retain(|at| {
            let entry = &mut self.entries[*at as usize];
            let due_ns = entry.solicited_ns.map_or(now_ns, |asked_ns| asked_ns.saturating_add(RETRANSMIT_NS));
            if due_ns > now_ns {
                next_ns = next_ns.min(due_ns);
                return true;
            }
            if entry.solicitations >= SOLICITATIONS_MAX {
                (entry.is_soliciting, entry.mac, entry.failed_ns) = (false, None, Some(now_ns));
                self.waiting -= entry.waiting.len();
                handle(DueAction::GiveUp(entry.waiting.drain(..).collect()));
                return false;
            }
            if self.solicitation_rate.take(now_ns) {
                entry.solicited_ns = Some(now_ns);
                entry.solicitations += 1;
                next_ns = next_ns.min(now_ns.saturating_add(RETRANSMIT_NS));
                handle(DueAction::Solicit(entry.interface, entry.address, entry.mac));
            } else {
                next_ns = next_ns.min(self.solicitation_rate.next_ns(now_ns));
            }
            true
        });
        self.soliciting = asked;
        self.next_ns = next_ns;
    }

    /// Returns, and resets, the number of frames dropped because their neighbour's entry was replaced.
    pub fn take_displaced(&mut self) -> u64 {
        std::mem::take(&mut self.displaced)
    }

    /// Number of neighbours whose address is known, and number of waiting frames.
    pub fn len(&self) -> (usize, usize) {
        (self.entries.iter().filter(|entry| entry.mac.is_some()).count(), self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn due(neighbours: &mut Neighbours, now_ns: u64) -> (usize, usize) {
        let (mut asks, mut given_up) = (0, 0);
        neighbours.tick(now_ns, |due| match due {
            DueAction::Solicit(..) => asks += 1,
            DueAction::GiveUp(frames) => given_up += frames.len(),
        });
        (asks, given_up)
    }

    #[test]
    fn frames_wait_in_bounded_number_and_leave_in_order() {
        let mut neighbours = Neighbours::new(NeighbourLimits { waiting: 12, ..NeighbourLimits::default() });
        let at = neighbours.find_or_add(0, address(1));
        let kept = (0..10).filter(|frame| neighbours.enqueue(at, 5, vec![*frame]).is_ok()).count();
        assert_eq!(kept, WAITING_PER_NEIGHBOUR_MAX);
        let other = neighbours.find_or_add(0, address(2));
        let kept = (0..10).filter(|frame| neighbours.enqueue(other, 5, vec![*frame]).is_ok()).count();
        assert_eq!(kept, 12 - WAITING_PER_NEIGHBOUR_MAX, "together no more than the limit");
        assert_eq!(due(&mut neighbours, 5), (2, 0));
        let mut released = Vec::new();
        neighbours.learn(0, address(1), MAC, 6, false, |frame| released.push(frame[0]));
        assert_eq!(released, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(neighbours.mac(at, 6), Some(MAC));
        assert_eq!(neighbours.len(), (1, 4));
    }

    #[test]
    fn who_does_not_answer_is_asked_three_times_and_given_up() {
        let mut neighbours = Neighbours::new(NeighbourLimits::default());
        let at = neighbours.find_or_add(0, address(1));
        neighbours.enqueue(at, 0, vec![1]).unwrap();
        for question in 0..3 {
            let now_ns = question * RETRANSMIT_NS;
            assert_eq!(neighbours.next_ns(), Some(now_ns));
            assert_eq!(due(&mut neighbours, now_ns), (1, 0));
            assert_eq!(due(&mut neighbours, now_ns + 1), (0, 0), "once");
        }
        assert_eq!(due(&mut neighbours, 3 * RETRANSMIT_NS), (0, 1));
        assert_eq!(neighbours.next_ns(), None);
        assert_eq!(neighbours.enqueue(at, 3 * RETRANSMIT_NS + 1, vec![2]), Err(Reason::Neighbour), "a moment ago");
        assert_eq!(neighbours.enqueue(at, 4 * RETRANSMIT_NS, vec![2]), Ok(()), "later it is tried again");
    }

    #[test]
    fn what_is_known_for_long_is_asked_for_and_used_meanwhile() {
        let mut neighbours = Neighbours::new(NeighbourLimits::default());
        neighbours.learn(0, address(1), MAC, 0, true, |_| {});
        let at = neighbours.find_or_add(0, address(1));
        assert_eq!(neighbours.mac(at, FRESH_NS), Some(MAC));
        assert_eq!(due(&mut neighbours, FRESH_NS), (0, 0));
        let later = FRESH_NS + 1;
        assert_eq!(neighbours.mac(at, later), Some(MAC));
        assert_eq!(due(&mut neighbours, later), (1, 0));
        neighbours.learn(0, address(1), MAC, later + 1, false, |_| {});
        assert_eq!(neighbours.next_ns(), None, "confirmed");
        // Asked once more, and not answered.
        let gone = 3 * FRESH_NS;
        assert_eq!(neighbours.mac(at, gone), Some(MAC));
        let asked: usize = (0..=3).map(|question| due(&mut neighbours, gone + question * RETRANSMIT_NS).0).sum();
        assert_eq!(asked, 3);
        assert_eq!(neighbours.mac(at, gone + 4 * RETRANSMIT_NS), None);
    }

    #[test]
    fn strangers_are_kept_only_where_they_may_and_never_more_than_the_limit() {
        let mut neighbours = Neighbours::new(NeighbourLimits { neighbours: 4, ..NeighbourLimits::default() });
        neighbours.learn(0, address(1), MAC, 0, false, |_| {});
        assert_eq!(neighbours.len(), (0, 0));
        let pinned = neighbours.pin([Some((0, address(200))), None].into_iter());
        neighbours.learn(0, address(200), MAC, 0, false, |_| {});
        for last in 0..100 {
            neighbours.learn(0, address(last), MAC, 0, true, |_| {});
            let at = neighbours.find_or_add(1, address(last));
            neighbours.enqueue(at, 0, vec![0]).ok();
            assert!(neighbours.entries.len() <= 4 && neighbours.waiting <= 4, "{last}");
        }
        assert_eq!(pinned, [0, u32::MAX]);
        assert_eq!(neighbours.mac(pinned[0], 1), Some(MAC), "what a route names stays");
        assert!(neighbours.take_displaced() > 90);
        for mac in [MacAddress::BROADCAST, MacAddress::default()] {
            neighbours.learn(0, address(201), mac, 0, true, |_| {});
        }
        assert_eq!(neighbours.index.get(&(0, address(201))), None, "no host has such an address");
    }

    #[test]
    fn questions_are_asked_at_a_bounded_rate() {
        let mut neighbours = Neighbours::new(NeighbourLimits { solicitations_per_s: 10, ..NeighbourLimits::default() });
        for last in 0..100 {
            let at = neighbours.find_or_add(0, address(last));
            neighbours.enqueue(at, 0, vec![0]).unwrap();
        }
        assert_eq!(due(&mut neighbours, 0).0, 10);
        let half = RETRANSMIT_NS / 2;
        assert_eq!(due(&mut neighbours, half).0, 5);
    }
}
