//! Serving one connection: reading and executing its commands, and sending the answers.

use std::io::{self, ErrorKind};

use mio::Token;
use sinew_store::cache::Cache;

use super::super::budget::Claim;
use super::super::connection::{Connection, LONG, Want};
use super::super::protocol::Then;
use super::{CONNECTIONS, Door, READ_LEN};
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

    /// Serves a connection for one turn.
    pub(super) fn serve(&mut self, index: usize, cache: &mut Cache, now_s: u32) {
        let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else { return };
        connection.queued = false;
        match self.serve_one(index, &mut connection, cache, now_s) {
            Ok(more) => {
                self.count(&mut connection);
                self.connections[index] = Some(connection);
                if more {
                    self.enqueue(index);
                }
            }
            Err(_) => self.close(index, connection),
        }
    }

    /// Serves a connection; returns whether there is more to do at once. An error ends the connection.
    fn serve_one(
        &mut self,
        index: usize,
        connection: &mut Connection,
        cache: &mut Cache,
        now_s: u32,
    ) -> io::Result<bool> {
        if connection.is_gone {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let mut moved = 0;
        for _ in 0..STEPS_PER_TURN {
            moved += self.send(index, connection)?;
            if !connection.out.is_empty() {
                if !connection.blocked {
                    break;
                }
                return Ok(false);
            }
            self.feed_or_queue(index, connection);
            if !connection.starving.is_empty() || connection.waits() {
                return Ok(false);
            }
            if connection.ending {
                return if connection.is_drained() { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(false) };
            }
            if moved >= LEN_PER_TURN {
                break;
            }
            if connection.input.len() >= connection.wants {
                if self.has_asked_much(connection.input.len()) {
                    return Ok(true);
                }
                let mut input = std::mem::take(&mut connection.input);
                let done = self.carry_out(index, connection, &input, cache, now_s)?;
                moved += done;
                if connection.input.capacity() == 0 {
                    input.drain(..done);
                    connection.input = input;
                } else {
                    // It was given another buffer meanwhile.
                    connection.input.extend_from_slice(&input[done..]);
                    self.pool.give(input);
                }
                self.recycle_input(connection);
                continue;
            }
            if !connection.readable {
                return Ok(false);
            }
            let read = self.read(index, connection, cache, now_s)?;
            moved += read;
            self.service.count().bytes_read.add(read as u64);
        }
        self.send(index, connection)?;
        let has_more = connection.readable || connection.ending || connection.input.len() >= connection.wants;
        let goes_on = if !connection.out.is_empty() {
            !connection.blocked
        } else if !connection.starving.is_empty() {
            connection.may_be_fed()
        } else {
            has_more && !connection.waits()
        };
        self.service.count().conn_yields.add(goes_on.into());
        Ok(goes_on)
    }

    /// Reads from the socket, and executes what was read.
    fn read(&mut self, index: usize, connection: &mut Connection, cache: &mut Cache, now_s: u32) -> io::Result<usize> {
        let direct = connection.input.is_empty() && connection.input.capacity() < LONG;
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
            let missing = connection.wants.saturating_sub(start);
            let room = connection.input.capacity() - start;
            // A buffer with room for all that is missing is not grown.
            let most = if room > 0 && room >= missing { room } else { usize::MAX };
            let missing = missing.clamp(READ_LEN / 4, 4 * READ_LEN).min(most);
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
            connection.moved_ns = self.now_ns;
            connection.heard_s = now_s;
        }
        if direct && read > 0 {
            let done = self.carry_out(index, connection, &input[..read], cache, now_s);
            if let Ok(done) = done
                && done < read
            {
                let rest = &input[done..read];
                if connection.input.capacity() < rest.len() {
                    // Nothing is appended before there is memory for the whole command.
                    let is_whole = !connection.starving.is_empty() || self.service.shared.budget.is_short();
                    let longer = match is_whole {
                        true => self.pool.take_short(rest.len()),
                        false => self.pool.take(rest.len().max(READ_LEN / 16)),
                    };
                    self.pool.give(std::mem::replace(&mut connection.input, longer));
                }
                connection.input.extend_from_slice(rest);
            }
        }
        self.input = input;
        Ok(read)
    }

    /// Executes the commands in `input`; returns the bytes consumed.
    fn carry_out(
        &mut self,
        index: usize,
        connection: &mut Connection,
        input: &[u8],
        cache: &mut Cache,
        now_s: u32,
    ) -> io::Result<usize> {
        let mut done = 0;
        loop {
            let limit = self.service.limits.answer_len_max;
            let room = std::mem::take(&mut connection.room);
            let mut out = match room {
                0 => std::mem::take(&mut self.out),
                _ => self.pool.take_short(room + LONG),
            };
            out.clear();
            self.service.limits.answer_len_max = limit.max(room);
            let ran = connection.session.run(&mut self.service, cache, now_s, &input[done..], &mut out);
            self.service.limits.answer_len_max = limit;
            done += ran.consumed;
            connection.note_done(ran.consumed);
            self.service.publish(cache);
            let sent = self.say(connection, &out);
            if room == 0 {
                connection.say(&out[sent..], &mut self.pool);
                self.out = out;
            } else if sent < out.len() && connection.is_drained() {
                connection.adopt(out, sent, &mut self.pool);
            } else {
                connection.say(&out[sent..], &mut self.pool);
                self.pool.give(out);
            }
            match ran.then {
                Then::Input(wants) => {
                    connection.wants = wants;
                    if connection.session.awaited_len() > LONG && connection.input.capacity() < wants {
                        self.want(index, connection, Want::Input(wants));
                    }
                    return Ok(done);
                }
                Then::Output => {
                    connection.wants = 0;
                    return Ok(done);
                }
                Then::Room(len) => {
                    connection.wants = 0;
                    if !connection.is_behind_others() {
                        self.want(index, connection, Want::Answer(len));
                    }
                    return Ok(done);
                }
                Then::Close => {
                    connection.ending = true;
                    return Ok(done);
                }
                Then::HandOver(whom) => {
                    let request = &input[done - ran.request_len..done];
                    self.ask(index, connection, whom, request);
                    if connection.waits() {
                        connection.wants = 0;
                        return Ok(done);
                    }
                }
            }
        }
    }

    /// Sends an answer at once, unless earlier ones are still to be sent; returns the bytes that the kernel took.
    fn say(&mut self, connection: &mut Connection, answer: &[u8]) -> usize {
        if answer.is_empty() || !connection.is_drained() || connection.blocked {
            return 0;
        }
        // An error will show again on the next write.
        let sent = connection.stream.write(answer).unwrap_or(0);
        connection.note_taken(sent, self.now_ns);
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
        connection.note_taken(sent, self.now_ns);
        if blocked != connection.blocked {
            connection.blocked = blocked;
            connection.stream.watch_writable(self.poll.registry(), Token(index + CONNECTIONS), blocked)?;
        }
        if connection.out.is_empty() {
            self.pool.give(std::mem::take(&mut connection.out));
        }
        Ok(sent)
    }

    fn recycle_input(&mut self, connection: &mut Connection) {
        if connection.input.is_empty() && connection.starving.is_empty() && connection.wants <= LONG {
            self.pool.give(std::mem::take(&mut connection.input));
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
