//! Input of connections: requests are read, and handed to the store.

use sinew_remote_memory::Store;

use super::Server;
use super::budget::{Waiter, claim_of};
use super::connection::{Connection, Payload, Phase};
use super::counters::Closed;
use super::jobs;
use crate::protocol::{
    Command, ErrorCode, NextStep, Request, Session, StatusExtent, put_done, put_error, put_hole, put_status,
};

/// Reads of one connection before the others get a turn.
const READS_PER_TURN: usize = 4;
/// Bytes of short replies that may wait to be sent. A client that reads no replies is not read from.
const SHORT_REPLIES_MAX: usize = 64 << 10;
/// Extents of one reply, at most.
const EXTENTS_MAX: usize = 64;
/// Times that the store is asked for the next part of a range. A reply may end early; the client then asks again.
const EXTENT_QUERIES_MAX: usize = 16;
/// As [`EXTENT_QUERIES_MAX`], for all requests of a connection's turn together. Each request has at least one.
/// Otherwise a few clients that ask for the status of a large device would keep the server from all other work for
/// seconds.
const TURN_QUERIES_MAX: usize = 64;

/// What a connection waits for once its input is handled as far as possible.
enum Parsed {
    /// More input.
    NeedsInput,
    /// Something else, which will queue it to be served again.
    Suspended,
    /// Nothing: it is to be closed.
    Close(Closed),
}

impl<S: Store> Server<S> {
    /// Serves a connection for a while. Returns whether any bytes arrived.
    pub(super) fn serve(&mut self, index: usize) -> bool {
        let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else { return false };
        connection.is_queued = false;
        self.extent_queries_left = TURN_QUERIES_MAX;
        let mut received = 0;
        match self.serve_one(&mut connection, &mut received) {
            Ok(goes_on) => {
                self.note_output(&mut connection);
                self.connections[index] = Some(connection);
                if goes_on {
                    self.enqueue(index);
                }
            }
            Err(why) => self.close(connection, why),
        }
        received > 0
    }

    /// Reads and handles input. Returns whether there is more to do at once.
    fn serve_one(&mut self, connection: &mut Connection, received: &mut usize) -> Result<bool, Closed> {
        if connection.is_gone {
            return Err(self.closed_by_peer(connection));
        }
        let mut reads = 0;
        loop {
            match self.parse(connection) {
                Parsed::NeedsInput => {}
                Parsed::Suspended => return Ok(false),
                Parsed::Close(why) => return Err(why),
            }
            if !connection.readable {
                break;
            }
            if reads == READS_PER_TURN {
                return Ok(true);
            }
            reads += 1;
            let read = connection.read().map_err(|_| self.closed_by_peer(connection))?;
            connection.note_progress(read, self.now_ns);
            *received += read;
        }
        if connection.ending {
            // An unfinished message will not be completed.
            let is_cut = connection.has_payload() || connection.input_len() > 0;
            return match is_cut {
                true => Err(Closed::Vanished),
                false if connection.is_done() => Err(Closed::Left),
                false => Ok(false),
            };
        }
        Ok(false)
    }

    fn closed_by_peer(&self, connection: &Connection) -> Closed {
        let is_idle = connection.is_done() && connection.input_len() == 0;
        if is_idle { Closed::Left } else { Closed::Vanished }
    }

    /// Handles input as far as possible.
    fn parse(&mut self, connection: &mut Connection) -> Parsed {
        loop {
            if connection.ending && !connection.readable && connection.input_len() < connection.input_needed {
                return Parsed::NeedsInput;
            }
            let then = match &connection.payload {
                Payload::Write { .. } => self.fill_payload(connection),
                Payload::Skip { .. } => skip_payload(connection, &mut self.counters),
                Payload::None => match connection.phase {
                    Phase::Handshake(_) => self.run_handshake(connection),
                    Phase::Requests(session) => self.begin_request(connection, session),
                },
            };
            if let Some(parsed) = then {
                return parsed;
            }
        }
    }

    fn run_handshake(&mut self, connection: &mut Connection) -> Option<Parsed> {
        // A client that does not read its replies gets no more of them.
        if connection.blocked {
            return Some(Parsed::Suspended);
        }
        if connection.input_len() < connection.input_needed {
            return Some(Parsed::NeedsInput);
        }
        let Phase::Handshake(mut handshake) =
            std::mem::replace(&mut connection.phase, Phase::Requests(Session::default()))
        else {
            return None;
        };
        let mut progress = None;
        // Taken out, because `run` also borrows the input.
        let mut out = std::mem::take(&mut connection.out);
        out.put(|bytes| progress = Some(handshake.run(&self.export, self.is_ending, connection.input(), bytes)));
        connection.out = out;
        let ran = progress?;
        connection.phase = Phase::Handshake(handshake);
        connection.consume(ran.consumed);
        connection.input_needed = 1;
        match ran.next {
            NextStep::Input(wants) => {
                connection.input_needed = wants;
                return Some(Parsed::NeedsInput);
            }
            NextStep::Output => {
                // The replies so far are sent before more input is handled.
                if connection.out.short_len() > SHORT_REPLIES_MAX {
                    return Some(Parsed::Suspended);
                }
            }
            NextStep::Serve(session) => {
                connection.phase = Phase::Requests(session);
                connection.input_needed = Request::LEN;
                self.in_handshake -= 1;
            }
            NextStep::Leave => {
                connection.ending = true;
                connection.readable = false;
                connection.consume(connection.input_len());
                return Some(Parsed::NeedsInput);
            }
            NextStep::Close(why) => return Some(Parsed::Close(Closed::HandshakeFailed(why))),
        }
        None
    }

    fn begin_request(&mut self, connection: &mut Connection, session: Session) -> Option<Parsed> {
        if connection.is_waiting_for_memory
            || connection.requests_in_progress >= self.config.requests_max
            || connection.out.short_len() >= SHORT_REPLIES_MAX
        {
            return Some(Parsed::Suspended);
        }
        let Some(bytes) = connection.input().first_chunk::<{ Request::LEN }>() else {
            connection.input_needed = Request::LEN;
            return Some(Parsed::NeedsInput);
        };
        let Some(request) = Request::read(bytes) else { return Some(Parsed::Close(Closed::Malformed)) };
        let command = match self.is_ending {
            true if request.command(session, 0) != Ok(Command::Disconnect) => Err(ErrorCode::Ending),
            _ => request.command(session, self.export.len),
        };
        let (cookie, owner, structured) = (request.cookie, connection.id, session.is_structured);
        let done = match command {
            Ok(Command::Read { at, len, in_one }) => {
                if structured && self.is_hole(at, len) {
                    connection.out.put(|out| put_hole(out, cookie, at, len));
                } else {
                    match self.claim(connection, len) {
                        Some(Ok(())) => {}
                        Some(Err(error)) => return self.refuse(connection, session, &request, error),
                        None => return Some(Parsed::Suspended),
                    }
                    connection.requests_in_progress += 1;
                    self.jobs.read(
                        &mut self.store,
                        owner,
                        cookie,
                        (at, len, in_one),
                        structured,
                        &mut connection.pieces,
                    );
                    self.counters.bytes_read += u64::from(len);
                }
                connection.expect_short();
                &mut self.counters.reads
            }
            Ok(Command::Write { at, len, is_fua }) => {
                match self.claim(connection, len) {
                    Some(Ok(())) => {}
                    Some(Err(error)) => return self.refuse(connection, session, &request, error),
                    None => return Some(Parsed::Suspended),
                }
                connection.requests_in_progress += 1;
                let job = self.jobs.write(owner, cookie, at, len, is_fua, structured);
                connection.payload = Payload::Write { job, number: 0, filled: 0 };
                self.counters.bytes_written += u64::from(len);
                &mut self.counters.writes
            }
            Ok(Command::Flush) => {
                connection.requests_in_progress += 1;
                self.jobs.flush(&mut self.store, owner, cookie, structured);
                &mut self.counters.flushes
            }
            Ok(Command::Discard { at, len, is_fua }) => {
                connection.requests_in_progress += 1;
                let place = (&mut self.store, &self.zeros);
                self.jobs.zero_range(place, owner, cookie, (at, len, false), is_fua, structured);
                &mut self.counters.discards
            }
            Ok(Command::Zeros { at, len, is_fua }) => {
                connection.requests_in_progress += 1;
                let place = (&mut self.store, &self.zeros);
                self.jobs.zero_range(place, owner, cookie, (at, len, true), is_fua, structured);
                &mut self.counters.discards
            }
            Ok(Command::Status { at, len, only_one }) => {
                let extents = self.extents(at, len, only_one);
                connection.out.put(|out| put_status(out, cookie, &extents));
                &mut self.counters.statuses
            }
            Ok(Command::Cache) => {
                connection.out.put(|out| put_done(out, cookie));
                &mut self.counters.caches
            }
            Ok(Command::Disconnect) => {
                connection.ending = true;
                connection.readable = false;
                connection.consume(connection.input_len());
                return Some(Parsed::NeedsInput);
            }
            Err(error) => return self.refuse(connection, session, &request, error),
        };
        *done += 1;
        connection.consume(Request::LEN);
        None
    }

    /// Refuses a request, after its payload has been skipped.
    fn refuse(
        &mut self,
        connection: &mut Connection,
        session: Session,
        request: &Request,
        error: ErrorCode,
    ) -> Option<Parsed> {
        self.counters.refused += 1;
        connection.consume(Request::LEN);
        let (left, cookie) = (request.payload_len() as usize, request.cookie);
        if left > 0 {
            connection.payload = Payload::Skip { left, cookie, error };
        } else {
            self.counters.count_error(error);
            connection.out.put(|out| put_error(out, session.is_structured, cookie, error));
        }
        None
    }

    /// Whether a range is known to be a hole. The store looks at the beginning of a long one alone.
    fn is_hole(&self, at: u64, len: u32) -> bool {
        let found = self.store.extent(at, len.into());
        found.is_hole && found.len >= u64::from(len)
    }

    /// Describes a range from its beginning on. A run of one kind becomes one extent, even if the store reports it in
    /// several parts.
    fn extents(&mut self, mut at: u64, len: u32, only_one: bool) -> arrayvec::ArrayVec<StatusExtent, EXTENTS_MAX> {
        let mut extents = arrayvec::ArrayVec::new();
        let extents_max = if only_one { 1 } else { EXTENTS_MAX };
        let end = at + u64::from(len);
        for _ in 0..self.extent_queries_left.clamp(1, EXTENT_QUERIES_MAX) {
            if at >= end {
                break;
            }
            self.extent_queries_left = self.extent_queries_left.saturating_sub(1);
            let found = self.store.extent(at, end - at);
            let len = found.len.clamp(1, end - at);
            let is_full = extents.len() == extents_max;
            match extents.last_mut() {
                Some(StatusExtent { len: last_len, is_hole }) if *is_hole == found.is_hole => *last_len += len as u32,
                _ if is_full => break,
                _ => extents.push(StatusExtent { len: len as u32, is_hole: found.is_hole }),
            }
            at += len;
        }
        extents
    }

    /// Claims room for `len` bytes, and allocates their buffers. If there is none now, the connection waits.
    fn claim(&mut self, connection: &mut Connection, len: u32) -> Option<Result<(), ErrorCode>> {
        let claim = claim_of(len as usize);
        if connection.claimed > 0 && connection.claimed + claim > self.config.connection_memory {
            // It is served again when some of its room is free.
            self.counters.waits += 1;
            return None;
        }
        let granted = std::mem::take(&mut connection.granted);
        if granted != claim {
            self.budget.give_back(granted);
            if !self.budget.try_take(claim) {
                self.counters.waits += 1;
                connection.is_waiting_for_memory = true;
                self.budget.wait(Waiter { owner: connection.id, len: claim });
                return None;
            }
        }
        if jobs::fill_pieces(&self.store, len, &mut connection.pieces).is_ok() {
            connection.begin_request(claim, self.now_ns);
            return Some(Ok(()));
        }
        // The arena is fragmented, or others use it.
        self.budget.give_back(claim);
        if self.budget.used() == 0 {
            return Some(Err(ErrorCode::NoMemory));
        }
        self.counters.waits += 1;
        connection.is_waiting_for_memory = true;
        self.budget.wait_first(Waiter { owner: connection.id, len: claim });
        None
    }

    /// Takes the bytes of a payload that have arrived. A full piece goes to the store.
    fn fill_payload(&mut self, connection: &mut Connection) -> Option<Parsed> {
        let is_full = connection.fill();
        let Payload::Write { job, number, filled } = &mut connection.payload else { return None };
        if !is_full {
            connection.input_needed = 1;
            return Some(Parsed::NeedsInput);
        }
        let (job, piece_number, piece) = (*job, *number, connection.pieces.pop()?);
        (*number, *filled) = (piece_number + 1, 0);
        let is_last = connection.pieces.is_empty();
        if is_last {
            connection.payload = Payload::None;
            connection.input_needed = Request::LEN;
        }
        self.jobs.write_piece(&mut self.store, job, piece_number, piece, is_last);
        None
    }
}

/// Skips the payload of a refused request, and then replies with the error.
fn skip_payload(connection: &mut Connection, counters: &mut super::Counters) -> Option<Parsed> {
    let len = connection.input_len();
    let Payload::Skip { left, cookie, error } = &mut connection.payload else { return None };
    let skipped = len.min(*left);
    *left -= skipped;
    let (is_skipped, cookie, error) = (*left == 0, *cookie, *error);
    connection.consume(skipped);
    if !is_skipped {
        connection.input_needed = 1;
        return Some(Parsed::NeedsInput);
    }
    connection.payload = Payload::None;
    connection.input_needed = Request::LEN;
    let Phase::Requests(session) = connection.phase else { return None };
    counters.count_error(error);
    connection.out.put(|out| put_error(out, session.is_structured, cookie, error));
    None
}
