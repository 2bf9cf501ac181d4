//! The receiving half: takes datagrams from the kernel and lends them as packets.

use arrayvec::ArrayVec;
use sinew_fabric::datagrams::{Reading, Segments};
use sinew_fabric::{Dropped, MAX_BURST, PacketRx, Peer, PeerLoss, PortEvent, PortStats, RxBurst};
use sinew_mem::atomic::plain::Arc;

use crate::shared::Shared;
use crate::sys::{ReceiveRing, Received};

/// Most datagrams that one call takes.
const WIDTH_MAX: usize = MAX_BURST;
/// Bytes that one call should take at most: about a burst of the largest usual packets. With more, the data would leave
/// the cache before it is handed on; with less (64 KiB), long messages lost a fifth of their rate, since every turn
/// answers and sends anew.
const CALL_BYTES: usize = 512 << 10;
/// Most errors of earlier packets that one call handles.
const STALE_ERRORS_MAX: usize = 16;
/// Most network errors that one call takes from the kernel's queue.
const ERRORS_TAKEN_MAX: usize = 64;
/// Shortest time between two reports of one peer's loss, in ns.
const REPORT_INTERVAL_NS: u64 = 100_000_000;
/// Most peers whose loss can wait to be reported, and most recent reports that are remembered.
const LOSSES_MAX: usize = 16;

/// Peers whose host refused a packet, with a limit on how often each is reported.
#[derive(Default)]
struct Losses {
    waiting: ArrayVec<Peer, LOSSES_MAX>,
    reported: [Option<(Peer, u64)>; LOSSES_MAX],
    oldest: usize,
}

impl Losses {
    fn note(&mut self, peer: Peer, now_ns: u64) {
        let is_reported = self.reported.iter_mut().flatten().find(|(reported, _)| *reported == peer);
        match is_reported {
            Some((_, at_ns)) if now_ns.saturating_sub(*at_ns) < REPORT_INTERVAL_NS => return,
            _ if self.waiting.is_full() => return,
            Some((_, at_ns)) => *at_ns = now_ns,
            None => {
                self.reported[self.oldest] = Some((peer, now_ns));
                self.oldest = (self.oldest + 1) % LOSSES_MAX;
            }
        }
        if !self.waiting.contains(&peer) {
            self.waiting.push(peer);
        }
    }
}

/// Position of the next packet to lend, among the datagrams of the last call.
#[derive(Clone, Copy, Default)]
struct Cursor {
    /// Slots that the call filled.
    filled: usize,
    /// Slot of the datagram being lent.
    slot: usize,
    /// Position within that datagram.
    reading: Reading,
}

/// The receiving half of a [`crate::UdpPort`].
pub struct UdpRx {
    shared: Arc<Shared>,
    ring: ReceiveRing,
    current: Option<Received>,
    cursor: Cursor,
    /// Datagrams that the next call requests.
    width: usize,
    packet_len_max: usize,
    overflows: u32,
    now_ns: u64,
    losses: Losses,
    /// Whether a sleep has ended, and no datagram has shown why.
    woke_for_nothing: bool,
    pub(crate) stats: PortStats,
}

impl UdpRx {
    pub(crate) fn new(shared: Arc<Shared>, packet_len_max: usize) -> Self {
        Self {
            shared,
            ring: ReceiveRing::new(WIDTH_MAX),
            current: None,
            cursor: Cursor::default(),
            width: 1,
            packet_len_max,
            overflows: 0,
            now_ns: 0,
            losses: Losses::default(),
            woke_for_nothing: false,
            stats: PortStats::default(),
        }
    }

    /// Whether there are packets already taken from the kernel, or events, which the kernel does not signal.
    pub(crate) fn has_news(&self) -> bool {
        self.cursor.slot < self.cursor.filled || !self.losses.waiting.is_empty() || self.shared.has_error_note()
    }

    /// Handles the end of a sleep. Most end because of a datagram, so errors, which also end one, are looked for only
    /// once there is none: that saves a system call for each sleep.
    pub(crate) fn on_awake(&mut self) {
        self.woke_for_nothing = true;
    }

    pub(crate) fn poll_event(&mut self) -> Option<PortEvent> {
        if self.shared.take_error_note() {
            self.take_errors();
        }
        if std::mem::take(&mut self.woke_for_nothing) {
            self.shared.socket.clear_error();
            self.take_errors();
        }
        let peer = self.losses.waiting.pop_at(0)?;
        Some(PortEvent::PeerLost { peer, loss: PeerLoss::Unreachable })
    }

    /// Takes the errors that the network reported, so that they neither fill the socket's buffer nor keep it ready.
    fn take_errors(&mut self) {
        for _ in 0..ERRORS_TAKEN_MAX {
            let Some(error) = self.shared.socket.take_error() else { break };
            if error.mtu.is_some() {
                self.shared.note_narrow_path();
            }
            // ECONNREFUSED is a refusal by the host itself. An unreachable network may come back; the time-outs of the
            // layers above decide about that.
            if let (Some(peer), libc::ECONNREFUSED) = (error.peer, error.errno) {
                self.losses.note(peer, self.now_ns);
            }
        }
    }

    /// Receives datagrams from the kernel into the ring.
    fn fill(&mut self) {
        self.cursor = Cursor::default();
        let mut got = self.shared.socket.receive(&mut self.ring, self.width);
        for _ in 0..STALE_ERRORS_MAX {
            match got {
                Ok(_) | Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => {}
                // The socket reports the fate of an earlier packet this way.
                Err(_) => self.take_errors(),
            }
            got = self.shared.socket.receive(&mut self.ring, self.width);
        }
        let Ok(filled) = got else {
            self.width = 1;
            // The call itself would have returned, and cleared, the socket's pending error; others may have done so
            // and left what explains it.
            if std::mem::take(&mut self.woke_for_nothing) {
                self.take_errors();
            }
            return;
        };
        self.woke_for_nothing = false;
        self.cursor.filled = filled;
        // A call that returns all it asked for may have left more, so the next asks for twice as many, but for no more
        // than the cache holds. While datagrams come one at a time, requesting one at a time costs least.
        let longest = (0..filled).map(|slot| self.ring.len_of(slot)).max().unwrap_or(0);
        let wanted = if filled == self.width { filled * 2 } else { filled };
        self.width = wanted.clamp(1, WIDTH_MAX).min((CALL_BYTES / longest.max(1)).max(1));
    }
}

impl PacketRx for UdpRx {
    #[inline]
    fn receive<'a>(&'a mut self, burst: &mut RxBurst<'a>) {
        self.now_ns = burst.time_ns;
        if self.shared.take_error_note() {
            self.take_errors();
        }
        if self.cursor.slot >= self.cursor.filled {
            self.fill();
            if self.cursor.filled == 0 {
                return;
            }
        }
        self.lend(burst);
    }
}

impl UdpRx {
    /// Lends packets of the received datagrams until there are no more or the burst is full.
    #[inline]
    fn lend<'a>(&'a mut self, burst: &mut RxBurst<'a>) {
        let Self { ring, cursor, current, stats, overflows, packet_len_max, .. } = self;
        let ring: &'a ReceiveRing = ring;
        while cursor.slot < cursor.filled && !burst.packets.is_full() {
            // The kernel's description of a datagram, with its count of lost ones, is read once.
            let received = *current.get_or_insert_with(|| {
                let received = ring.received(cursor.slot);
                count_overflows(stats, overflows, received.overflows);
                received
            });
            let start = ReceiveRing::slot_start(cursor.slot);
            let datagram = &ring.slots()[start..start + received.len];
            let ended = match received.from {
                Some(from) if !received.truncated => {
                    let segments = Segments { from, bytes: datagram, segment_len: received.segment_len };
                    cursor.reading.lend(segments, *packet_len_max, stats, &mut burst.packets)
                }
                _ => {
                    stats.count_dropped(Dropped::Malformed, 1);
                    true
                }
            };
            if ended {
                *current = None;
                *cursor = Cursor { filled: cursor.filled, slot: cursor.slot + 1, ..Cursor::default() };
            }
        }
    }
}

/// Counts lost datagrams from the kernel's running total, which comes with a datagram.
fn count_overflows(stats: &mut PortStats, seen: &mut u32, total: Option<u32>) {
    let Some(total) = total else { return };
    let more = total.wrapping_sub(*seen);
    // The total only grows; one that seems smaller belongs to an older datagram.
    if more < u32::MAX / 2 {
        *seen = total;
        stats.count_dropped(Dropped::Overflow, u64::from(more));
    }
}

impl std::fmt::Debug for UdpRx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpRx").field("width", &self.width).field("stats", &self.stats).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_at_most_once_in_an_interval_and_room_is_bounded() {
        let mut losses = Losses::default();
        let peer = |number: u64| Peer([0, 0, number]);
        losses.note(peer(1), 0);
        losses.note(peer(1), 1);
        assert_eq!(losses.waiting.pop(), Some(peer(1)));
        losses.note(peer(1), REPORT_INTERVAL_NS - 1);
        assert_eq!(losses.waiting.pop(), None);
        losses.note(peer(1), REPORT_INTERVAL_NS);
        assert_eq!(losses.waiting.pop(), Some(peer(1)));
        (0..1000).for_each(|number| losses.note(peer(number), 5 * REPORT_INTERVAL_NS));
        assert_eq!(losses.waiting.len(), LOSSES_MAX);
    }

    #[test]
    fn lost_packets_are_counted_by_the_growth_of_the_total() {
        let (mut stats, mut seen) = (PortStats::default(), 0);
        for total in [None, Some(3), Some(3), Some(10), Some(9)] {
            count_overflows(&mut stats, &mut seen, total);
        }
        assert_eq!(stats.dropped(Dropped::Overflow), 10);
        seen = u32::MAX - 1;
        count_overflows(&mut stats, &mut seen, Some(1));
        assert_eq!(stats.dropped(Dropped::Overflow), 13, "the total wraps");
    }
}
