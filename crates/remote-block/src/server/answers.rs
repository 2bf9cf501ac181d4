//! Replies: made from the requests that the store has finished, and sent.

use sinew_mem::FRONT_ROOM;
use sinew_remote_memory::Store;

use super::budget::{ConnectionId, claim_of};
use super::connection::Connection;
use super::counters::Closed;
use super::jobs::{JobKind, PartResult};
use super::{FINISHED_PER_TURN, Server};
use crate::protocol::{ErrorCode, data_front, put_done, put_error};

/// Bytes sent to one client before the others get a turn.
const SEND_PER_TURN: usize = 1 << 20;

impl<S: Store> Server<S> {
    /// Replies to what the store has finished. Returns whether there was anything.
    pub(super) fn handle_finished(&mut self) -> bool {
        if !self.jobs.poll(&mut self.store, FINISHED_PER_TURN) {
            return false;
        }
        let mut finished = std::mem::take(&mut self.jobs.finished);
        for one in finished.drain(..) {
            let (job, result) = self.jobs.complete_part(&mut self.store, &self.zeros, one);
            self.answer(job, result);
        }
        self.jobs.finished = finished;
        true
    }

    /// The connection with this name, if it still exists.
    fn owner(&mut self, name: ConnectionId) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(name.index)?.as_deref_mut()?;
        (connection.id == name).then_some(connection)
    }

    fn free(&mut self, owner: ConnectionId, len: usize) {
        self.budget.give_back(len);
        if let Some(connection) = self.owner(owner) {
            connection.claimed -= len;
        }
    }

    fn answer(&mut self, index: usize, part_result: PartResult) {
        let job_result = self.jobs.result(index);
        let job = self.jobs.job(index);
        let (owner, cookie, kind, structured) = (job.owner, job.cookie, job.kind, job.is_structured);
        // If all went well, the last chunk of data ends the reply.
        let mut is_answered = false;
        match part_result {
            PartResult::Nothing => {}
            PartResult::Freed(len) => self.free(owner, len),
            PartResult::Data { mut buffer, at } => {
                let data_range = (at, buffer.len());
                is_answered = job_result == Some(Ok(()));
                match self.owner(owner) {
                    Some(connection) => {
                        let front = data_front(buffer.front_mut(), structured, cookie, data_range, is_answered);
                        connection.out.put_data(buffer, front);
                    }
                    None => self.budget.give_back(claim_of(data_range.1)),
                }
            }
        }
        if let Some(result) = job_result {
            if let (JobKind::Read { at, len, in_one: true }, false) = (kind, is_answered) {
                self.answer_in_one(index, result, (at, len));
            } else if !is_answered {
                self.queue_result(owner, cookie, structured, result);
            }
            self.jobs.free_job(index);
            if let Some(connection) = self.owner(owner) {
                connection.requests_in_progress -= 1;
                // It may have waited for that.
                if connection.input_len() > 0 || connection.readable || connection.ending {
                    self.enqueue(owner.index);
                }
            }
        }
        self.queue_send(owner.index);
    }

    fn queue_result(&mut self, owner: ConnectionId, cookie: u64, structured: bool, result: Result<(), ErrorCode>) {
        if let Err(error) = result {
            self.counters.count_error(error);
        }
        if let Some(connection) = self.owner(owner) {
            connection.out.put(|out| match result {
                Ok(()) => put_done(out, cookie),
                Err(error) => put_error(out, structured, cookie, error),
            });
        }
    }

    /// Replies to a read whose pieces waited for each other.
    fn answer_in_one(&mut self, index: usize, result: Result<(), ErrorCode>, (at, len): (u64, u32)) {
        let job = self.jobs.job(index);
        let (owner, cookie, structured) = (job.owner, job.cookie, job.is_structured);
        let mut is_first = true;
        let mut lost = 0;
        for mut buffer in self.jobs.parts(index) {
            let connection = self.connections.get_mut(owner.index).and_then(Option::as_deref_mut);
            match connection.filter(|connection| connection.id == owner) {
                Some(connection) if result.is_ok() => {
                    let front = match std::mem::take(&mut is_first) {
                        true => data_front(buffer.front_mut(), structured, cookie, (at, len as usize), true),
                        false => 0,
                    };
                    connection.out.put_data(buffer, front);
                }
                _ => lost += claim_of(buffer.len()),
            }
        }
        self.free(owner, lost);
        if result.is_err() {
            self.queue_result(owner, cookie, structured, result);
        }
    }

    /// Marks a connection to be sent to, if it has output.
    pub(super) fn note_output(&mut self, connection: &mut Connection) {
        if !connection.out.is_empty() && !std::mem::replace(&mut connection.is_send_queued, true) {
            self.to_send.push(connection.id.index);
        }
    }

    /// Sends the output of marked connections. Returns whether anything was sent.
    pub(super) fn send_queued(&mut self) -> bool {
        let mut dirty = std::mem::take(&mut self.to_send);
        let mut has_sent = false;
        for index in dirty.drain(..) {
            let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else { continue };
            connection.is_send_queued = false;
            match self.send(&mut connection) {
                Ok(len) => {
                    has_sent |= len > 0;
                    let may_go_on = len > 0 && (connection.input_len() > 0 || connection.readable);
                    let is_finished = connection.ending && connection.is_done();
                    let has_more = !connection.out.is_empty() && !connection.blocked;
                    self.connections[index] = Some(connection);
                    if may_go_on || is_finished || has_more {
                        self.enqueue(index);
                    }
                }
                Err(why) => self.close(connection, why),
            }
        }
        // Connections marked meanwhile keep their place for the next turn.
        dirty.append(&mut self.to_send);
        self.to_send = dirty;
        has_sent
    }

    fn send(&mut self, connection: &mut Connection) -> Result<usize, Closed> {
        if connection.out.is_empty() {
            return Ok(0);
        }
        let sent = connection.out.send(&mut connection.stream, SEND_PER_TURN).map_err(|_| Closed::Vanished)?;
        connection.claimed -= sent.freed;
        self.budget.give_back(sent.freed);
        if sent.len > 0 {
            connection.note_progress(sent.len, self.now_ns);
        }
        connection.blocked = sent.is_blocked;
        // A client with much to receive is blocked again and again, so it is watched until its output is empty.
        let watch = sent.is_blocked || connection.is_watched && !connection.out.is_empty();
        if watch != connection.is_watched {
            connection.is_watched = watch;
            let index = connection.id.index;
            self.sockets.set_writable_interest(&mut connection.stream, index, watch).map_err(|_| Closed::Vanished)?;
        }
        Ok(sent.len)
    }
}

const _: () = assert!(FRONT_ROOM >= crate::protocol::DATA_FRONT_MAX);
