//! Peers: the endpoints at the other ends of sessions. There is one entry for each, however many sessions it has.

use std::collections::BTreeMap;
use std::sync::Arc;

use sinew_fabric::Peer;
use sinew_mem::atomic::{AtomicUsize, Ordering};

/// Counts of a peer's requests that handlers keep. They are shared, since other threads may answer these requests, and
/// may do so after the peer has gone.
// Relaxed, here and below: no other memory is read on the strength of these counts, and a stale one at worst refuses a
// request.
#[derive(Default)]
struct KeptRequests {
    /// Bytes of the arena in which handlers keep these requests.
    bytes: AtomicUsize,
    /// Requests that wait to be polled. Only the endpoint's thread writes this.
    waiting: AtomicUsize,
}

impl KeptRequests {
    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A kept request's part of its peer's share of memory. It counts until it is dropped, which happens after the
/// request's buffer is dropped.
pub(crate) struct Share {
    requests: Arc<KeptRequests>,
    len: usize,
}

impl Share {
    /// Notes that its request waits to be polled.
    pub fn begin_waiting(&self) {
        self.requests.waiting.store(self.requests.waiting() + 1, Ordering::Relaxed);
    }

    /// Notes that its request was polled.
    pub fn end_waiting(&self) {
        self.requests.waiting.store(self.requests.waiting() - 1, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.requests.bytes.fetch_sub(self.len, Ordering::Relaxed);
    }
}

pub(crate) struct PeerEntry {
    pub peer: Peer,
    pub name: Arc<str>,
    /// Our incarnation token for this peer, new with each entry.
    pub local_token: u64,
    /// The peer's token for us; 0 until we know it.
    pub remote_token: u64,
    /// When we learned this token, in ns: packets made before then may be from an earlier incarnation.
    pub known_since_ns: u64,
    pub last_ping_ns: u64,
    /// Whether we made the connection. Then the port is told to forget the peer when its last session ends.
    pub initiated: bool,
    /// Sessions with the peer, in both roles.
    pub sessions: u32,
    /// Receive capacity committed to these, in packets.
    pub committed: u64,
    /// Those of these sessions that the peer asked for, which count towards its share...
    pub granted_sessions: u32,
    /// ... and the packets granted to them.
    pub granted_packets: u64,
    /// Bytes of the arena that its requests and our responses hold in its sessions' slots...
    pub charged: usize,
    /// ... and the bytes in which handlers keep its requests; `None` until one does.
    kept: Option<Arc<KeptRequests>>,
    /// Time until which its sessions are not searched again for stalled requests and responses.
    pub next_give_up_ns: u64,
    /// Round trip of the last handshake or ping with the peer, in ns, whichever side asked.
    pub round_trip_ns: u64,
    /// Time at which the peer was reported unreachable, by a source that may lie.
    pub suspected_since_ns: Option<u64>,
    /// Pings sent since then.
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

    /// Bytes of the arena that count for the peer, in slots and at handlers.
    pub fn bytes_held(&self) -> usize {
        self.charged + self.kept.as_ref().map_or(0, |kept| kept.bytes())
    }

    /// Counts a request that a handler keeps.
    pub fn keep(&mut self, len: usize) -> Share {
        let requests = Arc::clone(self.kept.get_or_insert_default());
        requests.bytes.fetch_add(len, Ordering::Relaxed);
        Share { requests, len }
    }

    /// Number of its requests that wait to be polled.
    pub fn requests_waiting(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.waiting())
    }

    /// Notes the peer's token for us.
    pub fn set_remote_token(&mut self, remote_token: u64, now_ns: u64) {
        if self.remote_token != remote_token {
            self.remote_token = remote_token;
            self.known_since_ns = now_ns;
        }
    }
}

/// A peer that no session connects us to any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForgottenPeer {
    pub peer: Peer,
    /// Whether we made the connection.
    pub initiated: bool,
}

/// Peers by index. Maps are ordered, so that every run visits them in the same order.
#[derive(Default)]
pub(crate) struct Peers {
    entries: Vec<Option<PeerEntry>>,
    /// Kept apart from the entries, since every packet writes it.
    last_heard_ns: Vec<u64>,
    by_peer: BTreeMap<Peer, u32>,
    free: Vec<u32>,
    /// Kept requests of peers that have gone. If such a peer comes back, they count for it.
    gone: BTreeMap<Peer, Arc<KeptRequests>>,
    /// Number of such peers at which those without kept requests are removed, so that the arena bounds their number.
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

    /// Releases a session's hold on its peer, and drops the entry if that was the last one; returns the peer in that
    /// case.
    pub fn release(&mut self, index: u32, committed: u64) -> Option<ForgottenPeer> {
        let entry = self.get_mut(index);
        entry.sessions -= 1;
        entry.committed -= committed;
        if entry.sessions > 0 {
            return None;
        }
        let (peer, initiated) = (entry.peer, entry.initiated);
        self.by_peer.remove(&peer);
        if let Some(kept) = self.entries[index as usize].take().and_then(|entry| entry.kept) {
            self.keep_departed(peer, kept);
        }
        self.free.push(index);
        Some(ForgottenPeer { peer, initiated })
    }

    fn keep_departed(&mut self, peer: Peer, kept: Arc<KeptRequests>) {
        if self.gone.len() >= self.gone_max {
            self.gone.retain(|_, kept| kept.bytes() > 0);
            self.gone_max = 2 * self.gone.len() + 16;
        }
        if kept.bytes() > 0 {
            self.gone.insert(peer, kept);
        }
    }

    #[inline(always)]
    pub fn note_heard(&mut self, index: u32, now_ns: u64) {
        if let Some(last) = self.last_heard_ns.get_mut(index as usize) {
            *last = now_ns;
        }
    }

    /// Prefetches the time that [`Self::note_heard`] writes.
    #[inline]
    pub fn prefetch_heard(&self, index: u32) {
        if let Some(last) = self.last_heard_ns.get(index as usize) {
            sinew_mem::prefetch_read(last);
        }
    }

    /// Whether anything valid came from the peer after `since_ns`.
    pub fn was_heard_after(&self, index: u32, since_ns: u64) -> bool {
        self.last_heard_ns[index as usize] > since_ns
    }

    /// When anything valid last came from the peer, moved on by [excused](Self::shift_last_heard) time.
    pub fn last_heard_ns(&self, index: u32) -> u64 {
        self.last_heard_ns[index as usize]
    }

    pub fn silence_ns(&self, index: u32, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.last_heard_ns[index as usize])
    }

    /// Excuses silence: time during which we did not listen proves nothing about any peer.
    pub fn shift_last_heard(&mut self, ns: u64) {
        for last in &mut self.last_heard_ns {
            *last += ns;
        }
    }

    /// One more than the largest index ever used.
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
            let before = entry.bytes_held();
            let share = entry.keep(100);
            assert_eq!(entry.bytes_held(), before + 100);
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
