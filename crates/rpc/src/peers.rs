//! The endpoints at the other ends of sessions: one entry a peer, however many sessions it has.

use std::collections::BTreeMap;
use std::sync::Arc;

use sinew_fabric::Peer;
use sinew_mem::atomic::{AtomicUsize, Ordering};

/// What is kept of a peer's requests: they may be answered by other threads, and after the peer has gone.
// Relaxed, here and below: nothing is read because of the counts, and one that is late only refuses a request.
#[derive(Default)]
struct Kept {
    /// Bytes of the arena in which handlers keep them.
    bytes: AtomicUsize,
    /// Those that wait to be polled. Only the endpoint's thread writes it.
    waiting: AtomicUsize,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A part of what handlers keep of a peer's requests: counts until it is dropped, which comes after the request's buffer.
pub(crate) struct Share {
    of: Arc<Kept>,
    len: usize,
}

impl Share {
    /// Notes that its request waits to be polled.
    pub fn begin_waiting(&self) {
        self.of.waiting.store(self.of.waiting() + 1, Ordering::Relaxed);
    }

    /// Notes that it was polled.
    pub fn end_waiting(&self) {
        self.of.waiting.store(self.of.waiting() - 1, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.len, Ordering::Relaxed);
    }
}

pub(crate) struct PeerEntry {
    pub peer: Peer,
    pub name: Arc<str>,
    /// Our incarnation token for this peer, fresh with each entry.
    pub local_token: u64,
    /// Its token for us; 0 until we know it.
    pub remote_token: u64,
    /// When we came to know it: what is older may be of an earlier incarnation.
    pub known_since_ns: u64,
    pub last_ping_ns: u64,
    /// Whether we went to it, rather than it to us: then the port is told to forget it when its last session ends.
    pub initiated: bool,
    /// Sessions with it, in both roles.
    pub sessions: u32,
    /// Receive capacity committed to them, in packets.
    pub committed: u64,
    /// Of these sessions those that it asked for, which count against its share...
    pub granted_sessions: u32,
    /// ... and the packets that were granted to them.
    pub granted_packets: u64,
    /// Bytes of the arena that its requests and our responses hold in its sessions' slots...
    pub charged: usize,
    /// ... and those in which handlers keep its requests; none until one does.
    kept: Option<Arc<Kept>>,
    /// Until then what it holds is not looked through again for what is stalled.
    pub next_give_up_ns: u64,
    /// How long the last question that it answered took, in either direction of asking.
    pub round_trip_ns: u64,
    /// Since when it is said to be unreachable: by somebody who may lie.
    pub suspected_since_ns: Option<u64>,
    /// Since then it was asked so many times.
    pub suspect_pings: u8,
}

impl PeerEntry {
    pub fn new(peer: Peer, name: &str, local_token: u64, now_ns: u64) -> Self {
        Self {
            peer,
            name: Arc::from(name),
            local_token,
            remote_token: 0,
            known_since_ns: 0,
            last_ping_ns: now_ns,
            initiated: false,
            sessions: 0,
            committed: 0,
            granted_sessions: 0,
            granted_packets: 0,
            charged: 0,
            kept: None,
            next_give_up_ns: 0,
            round_trip_ns: 0,
            suspected_since_ns: None,
            suspect_pings: 0,
        }
    }

    /// Bytes of the arena that are its, wherever they are.
    pub fn holds(&self) -> usize {
        self.charged + self.kept.as_ref().map_or(0, |kept| kept.bytes())
    }

    /// Counts a request that a handler keeps.
    pub fn keep(&mut self, len: usize) -> Share {
        let of = Arc::clone(self.kept.get_or_insert_default());
        of.bytes.fetch_add(len, Ordering::Relaxed);
        Share { of, len }
    }

    /// Its requests that wait to be polled.
    pub fn requests_waiting(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.waiting())
    }

    /// Takes note of the peer's token for us.
    pub fn know(&mut self, remote_token: u64, now_ns: u64) {
        if self.remote_token != remote_token {
            self.remote_token = remote_token;
            self.known_since_ns = now_ns;
        }
    }
}

/// A peer that no session connects us to any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forgotten {
    pub peer: Peer,
    /// Whether the way to it was ours.
    pub initiated: bool,
}

/// Peers by index; ordered, so that every run visits them in the same order.
#[derive(Default)]
pub(crate) struct Peers {
    entries: Vec<Option<PeerEntry>>,
    /// Apart from the entries, since every packet writes it.
    last_heard_ns: Vec<u64>,
    by_peer: BTreeMap<Peer, u32>,
    free: Vec<u32>,
    /// Of peers that have gone: what handlers keep of them still. Should one come back, it counts.
    gone: BTreeMap<Peer, Arc<Kept>>,
    /// With so many of them those of which nothing is kept any more are forgotten, so that the arena bounds how many there are.
    gone_max: usize,
}

impl Peers {
    pub fn index_of(&self, peer: Peer) -> Option<u32> {
        self.by_peer.get(&peer).copied()
    }

    pub fn get(&self, index: u32) -> &PeerEntry {
        self.entries[index as usize].as_ref().expect("sessions keep their peer's entry")
    }

    pub fn get_mut(&mut self, index: u32) -> &mut PeerEntry {
        self.entries[index as usize].as_mut().expect("sessions keep their peer's entry")
    }

    pub fn insert(&mut self, mut entry: PeerEntry, now_ns: u64) -> u32 {
        entry.kept = self.gone.remove(&entry.peer);
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        self.by_peer.insert(entry.peer, index);
        if index as usize == self.entries.len() {
            self.entries.push(Some(entry));
            self.last_heard_ns.push(now_ns);
        } else {
            self.entries[index as usize] = Some(entry);
            self.last_heard_ns[index as usize] = now_ns;
        }
        index
    }

    /// Drops the entry when no session needs it any more; says which peer that was.
    pub fn release(&mut self, index: u32, committed: u64) -> Option<Forgotten> {
        let entry = self.get_mut(index);
        entry.sessions -= 1;
        entry.committed -= committed;
        if entry.sessions > 0 {
            return None;
        }
        let (peer, initiated) = (entry.peer, entry.initiated);
        self.by_peer.remove(&peer);
        if let Some(kept) = self.entries[index as usize].take().and_then(|entry| entry.kept) {
            self.note_gone(peer, kept);
        }
        self.free.push(index);
        Some(Forgotten { peer, initiated })
    }

    fn note_gone(&mut self, peer: Peer, kept: Arc<Kept>) {
        if self.gone.len() >= self.gone_max {
            self.gone.retain(|_, kept| kept.bytes() > 0);
            self.gone_max = 2 * self.gone.len() + 16;
        }
        if kept.bytes() > 0 {
            self.gone.insert(peer, kept);
        }
    }

    #[inline(always)]
    pub fn heard(&mut self, index: u32, now_ns: u64) {
        if let Some(last) = self.last_heard_ns.get_mut(index as usize) {
            *last = now_ns;
        }
    }

    /// Whether anything valid came from it after `since_ns`.
    pub fn was_heard_after(&self, index: u32, since_ns: u64) -> bool {
        self.last_heard_ns[index as usize] > since_ns
    }

    /// When anything valid last came from it, but for time that was [excused](Self::excuse).
    pub fn last_heard_ns(&self, index: u32) -> u64 {
        self.last_heard_ns[index as usize]
    }

    pub fn silence_ns(&self, index: u32, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.last_heard_ns[index as usize])
    }

    /// Time during which we did not listen says nothing about anybody.
    pub fn excuse(&mut self, ns: u64) {
        for last in &mut self.last_heard_ns {
            *last += ns;
        }
    }

    /// Every index is below this.
    pub fn index_end(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn is_known(&self, index: u32) -> bool {
        self.entries[index as usize].is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_peers_that_have_gone_is_forgotten_when_it_is_nothing() {
        let mut peers = Peers::default();
        let visit = |peers: &mut Peers, number| {
            let index = peers.insert(PeerEntry::new(Peer([number, 0, 0]), "", 1, 0), 0);
            let entry = peers.get_mut(index);
            entry.sessions = 1;
            let before = entry.holds();
            let share = entry.keep(100);
            assert_eq!(entry.holds(), before + 100);
            peers.release(index, 0);
            (before, share)
        };
        let kept: Vec<_> = (0..50).map(|number| visit(&mut peers, number).1).collect();
        assert_eq!((peers.gone.len(), visit(&mut peers, 7).0), (50, 100));
        drop(kept);
        for number in 100..300 {
            assert_eq!(visit(&mut peers, number).0, 0);
        }
        assert_eq!(visit(&mut peers, 7).0, 0);
        assert!(peers.gone.len() < 150, "{} peers", peers.gone.len());
    }
}
