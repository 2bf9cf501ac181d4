//! Performs a request: moves its bytes to the peer or from it.

use sinew_fabric::verbs::{Destination, QpConfig, QpNumber, Slice, Status, Transport, Verb};
use sinew_fabric::{Dropped, Peer, TxData, TxPacket};
use sinew_mem::MessageBuffer;
use smallvec::SmallVec;

use super::Connection;
use crate::verbs::counts::Discarded;
use crate::verbs::device::MTU;
use crate::verbs::directory::ListenState;
use crate::verbs::initiator::AccessTarget;
use crate::verbs::packet::{Datagram, Header, Kind};
use crate::verbs::waiting::RequestKind;
use crate::verbs::wire::{Wire, link_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// Reason why a request has to wait.
pub(super) enum StallReason {
    /// The peer has not connected to us yet.
    NotYet,
    /// The peer has posted no receive.
    NoReceive,
    /// The peer's ring is full.
    Full,
}

/// Result of performing a request.
pub(super) enum Step {
    /// It is complete, with this status.
    Done(Status),
    /// It was sent and waits for its acknowledgement.
    Sent,
    /// It has to wait for its turn.
    Wait(StallReason),
}

/// The parts of a queue pair that are needed to perform requests.
pub(super) struct Sender<'a> {
    pub number: QpNumber,
    pub config: &'a QpConfig,
    pub connection: Option<&'a Connection>,
    pub sent: &'a mut u32,
    pub progress: &'a mut usize,
}

impl<'a> Sender<'a> {
    /// Performs a request that moves these pieces to the peer.
    #[inline(always)]
    pub fn perform_outgoing(
        &mut self,
        request: RequestKind,
        immediate: Option<u32>,
        pieces: &[&[u8]],
        wire: &mut Wire<'_>,
    ) -> Step {
        let total = pieces.iter().map(|piece| piece.len()).sum();
        let connection = match self.peer() {
            Ok(connection) => connection,
            Err(ListenState::NotYet) if self.is_reliable() => return Step::Wait(StallReason::NotYet),
            Err(_) => {
                if let RequestKind::Datagram(to) = request {
                    send_datagram(wire, (self.number, self.config.qkey), to, immediate, pieces, total);
                    return Step::Done(Status::Success);
                }
                return self.fail_unreachable(matches!(request, RequestKind::Write(_)), wire);
            }
        };
        let place = |remote| AccessTarget { pair: connection.remote_pair(), remote };
        match (request, immediate) {
            (RequestKind::Write(remote), None) => {
                let written = connection.seat.write(place(remote), Verb::Write, pieces, total);
                Step::Done(written.err().unwrap_or(Status::Success))
            }
            _ if self.is_reliable() && !self.has_receive(connection) => Step::Wait(StallReason::NoReceive),
            (RequestKind::Write(remote), Some(_)) => {
                // The data is not written again when only the ring was full.
                if *self.progress == 0 {
                    let place = place(remote);
                    if let Err(status) = connection.seat.write(place, Verb::WriteWithImmediate, pieces, total) {
                        return Step::Done(status);
                    }
                    *self.progress = 1;
                }
                self.message(Kind::Written, pieces, total, immediate, wire)
            }
            _ => {
                let kind = if total <= MTU { Kind::Whole } else { Kind::Part };
                self.message(kind, pieces, total, immediate, wire)
            }
        }
    }

    /// Like [`Self::perform_outgoing`], for several pieces.
    #[inline(never)]
    pub fn perform_gathered(
        &mut self,
        request: RequestKind,
        immediate: Option<u32>,
        slices: &[Slice],
        wire: &mut Wire<'_>,
    ) -> Step {
        let pieces: SmallVec<[&[u8]; 4]> = slices.iter().map(Slice::bytes).collect();
        self.perform_outgoing(request, immediate, &pieces, wire)
    }

    /// Performs a request that fills the targets.
    #[inline]
    pub fn perform_incoming(
        &mut self,
        request: RequestKind,
        targets: &mut [MessageBuffer],
        wire: &mut Wire<'_>,
    ) -> Step {
        let connection = match self.peer() {
            Ok(connection) => connection,
            Err(ListenState::NotYet) => return Step::Wait(StallReason::NotYet),
            Err(_) => return self.fail_unreachable(true, wire),
        };
        let place = |remote| AccessTarget { pair: connection.remote_pair(), remote };
        let fetched = match request {
            RequestKind::Read(remote) => {
                let total = targets.iter().map(|buffer| buffer.len()).sum();
                connection.seat.read(place(remote), targets, total).map(|()| None)
            }
            RequestKind::CompareSwap { remote, expected, desired } => {
                connection.seat.compare_swap(place(remote), expected, desired).map(Some)
            }
            RequestKind::FetchAdd { remote, add } => connection.seat.fetch_add(place(remote), add).map(Some),
            RequestKind::Send | RequestKind::Datagram(_) | RequestKind::Write(_) => Err(Status::LocalQpOperation),
        };
        // The length of the target was checked with the request.
        if let Ok(Some(old_value)) = fetched
            && let Some(target) = targets.first_mut().and_then(|target| target.first_chunk_mut())
        {
            *target = old_value.to_ne_bytes();
        }
        Step::Done(fetched.err().unwrap_or(Status::Success))
    }

    /// Performs a WRITE from a range, or a READ into it.
    #[inline(never)]
    pub fn perform_range(&mut self, request: RequestKind, range: &mut [u8], wire: &mut Wire<'_>) -> Step {
        if let RequestKind::Write(_) = request {
            return self.perform_outgoing(request, None, &[range], wire);
        }
        let RequestKind::Read(remote) = request else { return Step::Done(Status::LocalQpOperation) };
        match self.peer() {
            Ok(connection) => {
                let place = AccessTarget { pair: connection.remote_pair(), remote };
                Step::Done(connection.seat.read_range(place, range).err().unwrap_or(Status::Success))
            }
            Err(ListenState::NotYet) => Step::Wait(StallReason::NotYet),
            Err(_) => self.fail_unreachable(true, wire),
        }
    }

    #[inline(always)]
    fn is_reliable(&self) -> bool {
        self.config.transport == Transport::Rc
    }

    /// The connection, if the peer listens to us.
    #[inline(always)]
    fn peer(&self) -> Result<&'a Connection, ListenState> {
        let Some(connection) = self.connection else { return Err(ListenState::NoLonger) };
        if connection.is_listening() {
            return Ok(connection);
        }
        let directory = &connection.seat.target.directory;
        let word = directory.listen_word(connection.number);
        // A word counts only while its owner lives.
        let listens = ListenState::of_word(word, connection.number);
        Err(if connection.is_dead() { ListenState::NoLonger } else { listens })
    }

    /// Ends a request whose peer does not listen. On RC, an access to the memory of a dead owner ends like one to
    /// memory that is no longer exposed. On the other transports, the request is counted as discarded and succeeds.
    #[cold]
    fn fail_unreachable(&self, is_access: bool, wire: &mut Wire<'_>) -> Step {
        if self.is_reliable() {
            let is_dead = self.connection.is_some_and(Connection::is_dead);
            return Step::Done(if is_access && is_dead { Status::RemoteAccess } else { Status::RetryExceeded });
        }
        wire.counts.count(Discarded::NobodyThere);
        Step::Done(Status::Success)
    }

    /// Whether the peer has posted a receive for the next message.
    #[inline(always)]
    fn has_receive(&self, connection: &Connection) -> bool {
        let left = |receives: u32| receives.wrapping_sub(*self.sent) as i32 > 0;
        left(connection.receives.get()) || {
            connection.receives.set(connection.seat.target.directory.receives(connection.number));
            left(connection.receives.get())
        }
    }

    /// Sends a message on a connection, or continues to send it.
    #[inline(always)]
    fn message(
        &mut self,
        kind: Kind,
        pieces: &[&[u8]],
        total: usize,
        immediate: Option<u32>,
        wire: &mut Wire<'_>,
    ) -> Step {
        let is_access = kind == Kind::Written;
        let Some(connection) = self.connection else { return self.fail_unreachable(is_access, wire) };
        let link = connection.link;
        let header = Header {
            kind,
            to: connection.number,
            from: self.number,
            key: connection.key,
            number: *self.sent,
            immediate,
            offset: 0,
            total: total as u32,
        };
        let sent = match kind {
            Kind::Part => self.parts(header, link, pieces, total, wire),
            Kind::Written => offer(wire, link, header, &[], 0, 0),
            _ => offer(wire, link, header, pieces, 0, total),
        };
        if let Err(dropped) = sent {
            match dropped {
                Dropped::Full if self.is_reliable() => return Step::Wait(StallReason::Full),
                Dropped::Full => wire.counts.count(Discarded::Full),
                // The link is gone, which the next turn will report.
                _ => return self.fail_unreachable(is_access, wire),
            }
        }
        *self.progress = 0;
        *self.sent = self.sent.wrapping_add(1);
        if self.is_reliable() { Step::Sent } else { Step::Done(Status::Success) }
    }

    /// Sends the parts of a message that have not been sent yet.
    #[cold]
    #[inline(never)]
    fn parts(
        &mut self,
        mut header: Header,
        link: Peer,
        pieces: &[&[u8]],
        total: usize,
        wire: &mut Wire<'_>,
    ) -> Result<(), Dropped> {
        while *self.progress < total {
            header.offset = *self.progress as u32;
            let len = MTU.min(total - *self.progress);
            offer(wire, link, header, pieces, *self.progress, len)?;
            *self.progress += len;
        }
        Ok(())
    }
}

/// Sends a datagram of these pieces, from queue pair `from` with its key. Drops are counted.
#[inline(always)]
pub(super) fn send_datagram(
    wire: &mut Wire<'_>,
    (from, own_key): (QpNumber, u32),
    to: Destination,
    immediate: Option<u32>,
    pieces: &[&[u8]],
    total: usize,
) {
    let link = link_of(to.handle);
    let datagram = Datagram { to: to.number, from, key: own_key, immediate };
    let sent = if to.qkey == own_key
        && let Some(words) = datagram.to_words()
    {
        wire.offered = true;
        if let [piece] = pieces
            && wire.tx.offer_words(link, words, piece)
        {
            return;
        }
        let [first, second] = words.map(u64::to_le_bytes);
        offer_behind(wire, link, [first, second].as_flattened(), pieces, 0, total)
    } else {
        let header = Header {
            kind: Kind::Datagram,
            to: to.number,
            from,
            key: to.qkey,
            number: own_key,
            immediate,
            offset: 0,
            total: 0,
        };
        offer(wire, link, header, pieces, 0, total)
    };
    match sent {
        Ok(()) => {}
        Err(Dropped::Full) => wire.counts.count(Discarded::Full),
        Err(_) => wire.counts.count(Discarded::NobodyThere),
    }
}

/// Puts a packet with `len` bytes of the pieces, from byte `start` on, into the ring.
#[inline(always)]
fn offer(
    wire: &mut Wire<'_>,
    to: Peer,
    header: Header,
    pieces: &[&[u8]],
    start: usize,
    len: usize,
) -> Result<(), Dropped> {
    let (head, head_len) = header.to_bytes();
    offer_behind(wire, to, &head[..head_len], pieces, start, len)
}

/// As [`offer`], with a header that is already encoded.
#[inline(always)]
fn offer_behind(
    wire: &mut Wire<'_>,
    to: Peer,
    head: &[u8],
    pieces: &[&[u8]],
    start: usize,
    len: usize,
) -> Result<(), Dropped> {
    let data = match pieces {
        _ if len == 0 => TxData::None,
        [piece] => TxData::Bytes(&piece[start..start + len]),
        _ => TxData::Bytes(gather(wire.scratch, pieces, start, len)),
    };
    wire.offered = true;
    wire.tx.offer(TxPacket { to, head, data })
}

/// Copies a range of the pieces together.
#[cold]
#[inline(never)]
fn gather<'a>(scratch: &'a mut Vec<u8>, pieces: &[&[u8]], start: usize, len: usize) -> &'a [u8] {
    scratch.clear();
    let mut skip = start;
    for piece in pieces {
        let from = skip.min(piece.len());
        let to = piece.len().min(from + len - scratch.len());
        scratch.extend_from_slice(&piece[from..to]);
        skip -= from;
    }
    scratch
}
