//! Serving one connection: reading and executing its commands, and sending the answers.

use std::io::{self, ErrorKind};

use mio::Token;
use sinew_store::cache::Cache;

use super::super::budget::Claim;
use super::super::connection::{Connection, LARGE_LEN, MemoryNeed};
use super::super::protocol::NextStep;
use super::{Door, FIRST_CONNECTION, READ_LEN};
use sinew_door::Stream;

/// Bytes moved for one connection before the others have their turn.
const LEN_PER_TURN: usize = 512 << 10;
/// Bytes read at once for an unproven connection while memory is scarce.
const READ_LEN_WHEN_SHORT: usize = 4 << 10;
/// Reads and runs of commands for one connection before the others have their turn.
const STEPS_PER_TURN: usize = 8;

impl Door {
    /// Queues a connection to be served.
    pub(super) fn enqueue(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(index)
            && !std::mem::replace(&mut connection.queued, true)
        {
            self.queue.push_back(index);
        }
    }

    /// Serves a connection for one turn. Returns whether any bytes were moved, or the connection has ended.
    pub(super) fn serve(&mut self, index: usize, cache: &mut Cache, now_s: u32) -> bool {
        let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else { return false };
        connection.queued = false;
        let mut bytes_moved = 0;
        match self.serve_connection(index, &mut connection, (cache, now_s), &mut bytes_moved) {
            Ok(more) => {
                self.update_memory(&mut connection);
                self.connections[index] = Some(connection);
                if more {
                    self.enqueue(index);
                }
                bytes_moved > 0
            }
            Err(_) => {
                self.close(index, connection);
                true
            }
        }
    }

    /// Serves a connection, and counts the bytes moved; returns whether there is more to do at once. An error ends the
    /// connection.
    fn serve_connection(
        &mut self,
        index: usize,
        connection: &mut Connection,
        (cache, now_s): (&mut Cache, u32),
        bytes_moved: &mut usize,
    ) -> io::Result<bool> {
        if connection.is_broken {
            return Err(ErrorKind::ConnectionReset.into());
        }
        for _ in 0..STEPS_PER_TURN {
            *bytes_moved += self.send(index, connection)?;
            if !connection.out.is_empty() {
                if !connection.blocked {
                    break;
                }
                return Ok(false);
            }
            self.grant_or_queue(index, connection);
            if !connection.memory_needs.is_empty() || connection.awaits_remote() {
                return Ok(false);
            }
            if connection.ending {
                return if connection.is_drained() { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(false) };
            }
            if *bytes_moved >= LEN_PER_TURN {
                break;
            }
            if connection.input.len() >= connection.input_needed {
                if self.is_over_request_share(connection.input.len()) {
                    return Ok(true);
                }
                let mut input = std::mem::take(&mut connection.input);
                let consumed = self.run_session(index, connection, &input, cache, now_s)?;
                *bytes_moved += consumed;
                if connection.input.capacity() == 0 {
                    input.drain(..consumed);
                    connection.input = input;
                } else {
                    // It was given another buffer meanwhile.
                    connection.input.extend_from_slice(&input[consumed..]);
                    self.pool.put_back(input);
                }
                self.recycle_input(connection);
                continue;
            }
            if !connection.readable {
                return Ok(false);
            }
            let read = self.read(index, connection, cache, now_s)?;
            *bytes_moved += read;
            self.service.count().bytes_read.add(read as u64);
        }
        self.send(index, connection)?;
        let has_more = connection.readable || connection.ending || connection.input.len() >= connection.input_needed;
        let has_more_work = if !connection.out.is_empty() {
            !connection.blocked
        } else if !connection.memory_needs.is_empty() {
            connection.may_take_memory()
        } else {
            has_more && !connection.awaits_remote()
        };
        self.service.count().conn_yields.add(has_more_work.into());
        Ok(has_more_work)
    }

    /// Reads from the socket, and executes what was read.
    fn read(&mut self, index: usize, connection: &mut Connection, cache: &mut Cache, now_s: u32) -> io::Result<usize> {
        let direct = connection.input.is_empty() && connection.input.capacity() < LARGE_LEN;
        let mut input = std::mem::take(&mut self.input);
        let result = if direct {
            // Input that begins a long value is kept even before there is room for the value, so read little of it.
            let budget = &self.service.shared.budget;
            let is_short = connection.claim() == Claim::New && budget.used() > budget.waiting_max();
            let room = if is_short { READ_LEN_WHEN_SHORT } else { input.len() };
            read_some(connection, room, |stream| stream.read(&mut input[..room]))
        } else {
            // Append the rest of an incomplete command, reading as much as is missing.
            let start = connection.input.len();
            let missing = connection.input_needed.saturating_sub(start);
            let room = connection.input.capacity() - start;
            // A buffer with room for all that is missing is not grown.
            let room_max = if room > 0 && room >= missing { room } else { usize::MAX };
            let missing = missing.clamp(READ_LEN / 4, 4 * READ_LEN).min(room_max);
            let mut rest = std::mem::take(&mut connection.input);
            rest.resize(start + missing, 0);
            let result = read_some(connection, missing, |stream| stream.read(&mut rest[start..]));
            rest.truncate(start + result.as_ref().map_or(0, |read| *read));
            connection.input = rest;
            result
        };
        let read = match result {
            Ok(read) => read,
            Err(error) => {
                self.input = input;
                return Err(error);
            }
        };
        if read > 0 {
            connection.last_progress_ns = self.now_ns;
            connection.last_input_s = now_s;
        }
        if direct && read > 0 {
            let consumed = self.run_session(index, connection, &input[..read], cache, now_s);
            if let Ok(consumed) = consumed
                && consumed < read
            {
                let rest = &input[consumed..read];
                if connection.input.capacity() < rest.len() {
                    // Nothing is appended before there is memory for the whole command.
                    let is_exact = !connection.memory_needs.is_empty() || self.service.shared.budget.is_short();
                    let longer = match is_exact {
                        true => self.pool.take_short(rest.len()),
                        false => self.pool.take(rest.len().max(READ_LEN / 16)),
                    };
                    self.pool.put_back(std::mem::replace(&mut connection.input, longer));
                }
                connection.input.extend_from_slice(rest);
            }
        }
        self.input = input;
        Ok(read)
    }

    /// Executes the commands in `input`; returns the bytes consumed.
    fn run_session(
        &mut self,
        index: usize,
        connection: &mut Connection,
        input: &[u8],
        cache: &mut Cache,
        now_s: u32,
    ) -> io::Result<usize> {
        let mut consumed = 0;
        loop {
            let limit = self.service.limits.answer_len_max;
            let room = std::mem::take(&mut connection.answer_room);
            let mut out = match room {
                0 => std::mem::take(&mut self.out),
                _ => self.pool.take_short(room + LARGE_LEN),
            };
            out.clear();
            self.service.limits.answer_len_max = limit.max(room);
            let progress = connection.session.run(&mut self.service, cache, now_s, &input[consumed..], &mut out);
            self.service.limits.answer_len_max = limit;
            consumed += progress.consumed;
            connection.note_consumed(progress.consumed);
            self.service.publish(cache);
            let sent = self.write_directly(connection, &out);
            if room == 0 {
                connection.append_answer(&out[sent..], &mut self.pool);
                self.out = out;
            } else if sent < out.len() && connection.is_drained() {
                connection.adopt_output(out, sent, &mut self.pool);
            } else {
                connection.append_answer(&out[sent..], &mut self.pool);
                self.pool.put_back(out);
            }
            match progress.next_step {
                NextStep::Input(wants) => {
                    connection.input_needed = wants;
                    if connection.session.awaited_len() > LARGE_LEN && connection.input.capacity() < wants {
                        self.need_memory(index, connection, MemoryNeed::Input(wants));
                    }
                    return Ok(consumed);
                }
                NextStep::Output => {
                    connection.input_needed = 0;
                    return Ok(consumed);
                }
                NextStep::Room(len) => {
                    connection.input_needed = 0;
                    if !connection.wait_for_remote() {
                        self.need_memory(index, connection, MemoryNeed::Answer(len));
                    }
                    return Ok(consumed);
                }
                NextStep::Close => {
                    connection.ending = true;
                    return Ok(consumed);
                }
                NextStep::HandOver(target) => {
                    let request = &input[consumed - progress.request_len..consumed];
                    self.send_remote(index, connection, target, request);
                    if connection.awaits_remote() {
                        connection.input_needed = 0;
                        return Ok(consumed);
                    }
                }
            }
        }
    }

    /// Sends an answer at once, unless earlier ones are still to be sent; returns the bytes that the kernel took.
    fn write_directly(&mut self, connection: &mut Connection, answer: &[u8]) -> usize {
        if answer.is_empty() || !connection.is_drained() || connection.blocked {
            return 0;
        }
        // An error will show again on the next write.
        let sent = connection.stream.write(answer).unwrap_or(0);
        connection.note_accepted(sent, self.now_ns);
        self.service.count().bytes_written.add(sent as u64);
        sent
    }

    /// Sends buffered output, as much as one turn allows; returns the bytes sent.
    pub(super) fn send(&mut self, index: usize, connection: &mut Connection) -> io::Result<usize> {
        if connection.out.is_empty() {
            return Ok(0);
        }
        let (sent, blocked) = connection.send(LEN_PER_TURN)?;
        self.service.count().bytes_written.add(sent as u64);
        connection.note_accepted(sent, self.now_ns);
        if blocked != connection.blocked {
            connection.blocked = blocked;
            connection.stream.watch_writable(self.poll.registry(), Token(index + FIRST_CONNECTION), blocked)?;
        }
        if connection.out.is_empty() {
            self.pool.put_back(std::mem::take(&mut connection.out));
        }
        Ok(sent)
    }

    fn recycle_input(&mut self, connection: &mut Connection) {
        if connection.input.is_empty() && connection.memory_needs.is_empty() && connection.input_needed <= LARGE_LEN {
            self.pool.put_back(std::mem::take(&mut connection.input));
        }
    }
}

/// Reads once, and notes when there is nothing more to read. Returns the bytes read.
fn read_some(
    connection: &mut Connection,
    room: usize,
    read: impl FnOnce(&mut Stream) -> io::Result<usize>,
) -> io::Result<usize> {
    match read(&mut connection.stream) {
        Ok(0) => {
            connection.ending = true;
            connection.readable = false;
            Ok(0)
        }
        Ok(len) => {
            // A short read means that there is no more for now; an event would announce more. The end of the stream has
            // been announced already.
            connection.readable = len == room || connection.hung_up;
            Ok(len)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            connection.readable = false;
            Ok(0)
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}
