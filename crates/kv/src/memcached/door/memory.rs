//! Memory for connections: which get it, which wait for it, and which are closed for lack of it.

use std::collections::VecDeque;

use super::super::budget::Claim;
use super::super::connection::{Connection, LARGE_LEN, MemoryNeed};
use super::super::hand_over::Message;
use super::super::protocol::Limits;
use super::Door;

/// Time without progress, in nanoseconds, after which a connection may be closed to free memory for others.
const STALLED_NS: u64 = 1_000_000_000;
/// Least time between two searches for stalled connections, in nanoseconds.
const CHECK_INTERVAL_NS: u64 = 20_000_000;

/// One grant of memory in this many goes to the connection that has waited longest.
const GRANTS_PER_OLDEST: usize = 4;

/// Bytes of answers that a connection may have without asking; fewer while memory is scarce.
const OUT_LEN_MAX: usize = 256 << 10;
const OUT_LEN_MAX_WHEN_SHORT: usize = 16 << 10;

/// The limits within which connections need not ask for memory.
pub(super) fn limits(is_short: bool) -> Limits {
    let out_len_max = if is_short { OUT_LEN_MAX_WHEN_SHORT } else { OUT_LEN_MAX };
    Limits { out_len_max, answer_len_max: LARGE_LEN.min(out_len_max), ..Limits::default() }
}

/// Connections that wait for memory.
#[derive(Default)]
pub(super) struct MemoryQueue {
    /// Unproven connections, and proven ones, by [`Claim`].
    queues: [WaitingConnections; 2],
    /// Time of the next search for stalled connections, in nanoseconds.
    next_check_ns: u64,
    /// Bytes accounted for this thread's own buffers.
    counted: usize,
}

#[derive(Default)]
struct WaitingConnections {
    /// Indices and generations.
    connections: VecDeque<(usize, u64)>,
    /// Connections that got memory.
    grants: usize,
}

impl MemoryQueue {
    pub fn has_waiting(&self) -> bool {
        self.queues.iter().any(|queue| !queue.connections.is_empty())
    }
}

impl Door {
    /// Accounts for changes of a connection's buffers.
    pub(super) fn update_memory(&self, connection: &mut Connection) {
        let kept = connection.memory_held();
        self.service.shared.budget.adjust(connection.memory_counted, kept);
        connection.memory_counted = kept;
    }

    /// Accounts for this thread's own buffers, and makes room when the budget is spent.
    pub(super) fn update_thread_memory(&mut self) {
        let kept =
            self.pool.len_kept() + self.batches.len_kept() + self.out.capacity() + self.service.request.capacity();
        let budget = &self.service.shared.budget;
        budget.adjust(self.memory_queue.counted, kept);
        self.memory_queue.counted = kept;
        let is_short = budget.is_short();
        let Limits { out_len_max, answer_len_max, .. } = limits(is_short);
        self.service.limits.out_len_max = out_len_max;
        self.service.limits.answer_len_max = answer_len_max;
        if is_short && budget.is_spent() {
            self.request_room();
        }
    }

    /// Gives back the memory accounted for a connection that is gone.
    pub(super) fn release_memory(&self, connection: &Connection) {
        self.service.shared.budget.adjust(connection.memory_counted, 0);
    }

    /// Takes memory for `need`, or lets the connection wait for it.
    pub(super) fn need_memory(&mut self, index: usize, connection: &mut Connection, need: MemoryNeed) {
        connection.add_memory_need(need);
        self.grant_or_queue(index, connection);
    }

    /// Takes memory for what the connection needs next, or lets it wait. Long answers of other threads get memory one
    /// after the other.
    pub(super) fn grant_or_queue(&mut self, index: usize, connection: &mut Connection) {
        let queue = connection.claim() as usize;
        while let Some(len) = connection.memory_needs.front().map(MemoryNeed::len)
            && connection.may_take_memory()
        {
            if self.memory_queue.queues[queue].connections.is_empty() && self.take_memory(connection, len) {
                self.grant(connection);
            } else {
                self.service.count().memory_waits.add(1);
                connection.is_queued_for_memory = true;
                self.memory_queue.queues[queue].connections.push_back((index, connection.generation));
                return;
            }
        }
    }

    /// Takes `len` bytes for a connection, if they are available.
    fn take_memory(&self, connection: &mut Connection, len: usize) -> bool {
        let taken = self.service.shared.budget.try_claim(len, connection.claim());
        if taken {
            connection.memory_counted += len;
        }
        taken
    }

    /// Provides the buffer or the room for which memory was taken.
    fn grant(&mut self, connection: &mut Connection) {
        let Some(need) = connection.memory_needs.pop_front() else { return };
        match need {
            MemoryNeed::Input(len) => {
                // A buffer for the whole command, so that the client can send it to the end.
                let mut input = self.pool.take_short(len);
                input.extend_from_slice(&connection.input);
                self.pool.put_back(std::mem::replace(&mut connection.input, input));
            }
            // The next answer has this length.
            MemoryNeed::Answer(len) => connection.answer_room = len,
            MemoryNeed::Remote(len, entry, request) => {
                connection.remote_room = len;
                self.repeat_remote(entry, len, &request);
                self.pool.put_back(request);
            }
        }
        self.update_memory(connection);
    }

    /// Grants the available memory to waiting connections.
    pub(super) fn grant_waiting(&mut self) {
        for queue in (0..self.memory_queue.queues.len()).rev() {
            loop {
                let WaitingConnections { connections, grants } = &mut self.memory_queue.queues[queue];
                // Usually the newest is served, and every few grants the one that has waited longest, so that a crowd
                // that arrived together does not shut out all later ones.
                let is_oldest = grants.is_multiple_of(GRANTS_PER_OLDEST);
                let next = if is_oldest { connections.pop_front() } else { connections.pop_back() };
                let Some((index, generation)) = next else { break };
                let Some(mut connection) =
                    self.connections[index].take_if(|connection| connection.generation == generation)
                else {
                    continue;
                };
                connection.is_queued_for_memory = false;
                if !connection.may_take_memory() {
                    // It will ask again when its turn comes.
                    self.connections[index] = Some(connection);
                    self.enqueue(index);
                    continue;
                }
                let len = connection.memory_needs.front().map_or(0, MemoryNeed::len);
                if !self.take_memory(&mut connection, len) {
                    connection.is_queued_for_memory = true;
                    self.connections[index] = Some(connection);
                    let connections = &mut self.memory_queue.queues[queue].connections;
                    if is_oldest {
                        connections.push_front((index, generation));
                    } else {
                        connections.push_back((index, generation));
                    }
                    break;
                }
                self.memory_queue.queues[queue].grants += 1;
                self.grant(&mut connection);
                self.grant_or_queue(index, &mut connection);
                connection.last_progress_ns = self.now_ns;
                self.connections[index] = Some(connection);
                self.enqueue(index);
            }
        }
        if self.memory_queue.has_waiting() {
            self.request_room();
        }
    }

    /// Closes stalled connections, here and at the other threads.
    fn request_room(&mut self) {
        if self.now_ns < self.memory_queue.next_check_ns {
            return;
        }
        self.close_stalled();
        for other in (0..self.peers.len()).filter(|other| *other != self.service.partition) {
            let _ = self.peers[other].mailbox.send(Message::MakeRoom);
        }
    }

    /// Closes stalled connections, the longest stalled first, until half of the memory for unproven connections is
    /// free.
    pub(super) fn close_stalled(&mut self) {
        if self.now_ns < self.memory_queue.next_check_ns {
            return;
        }
        self.memory_queue.next_check_ns = self.now_ns + CHECK_INTERVAL_NS;
        let Some(before_ns) = self.now_ns.checked_sub(STALLED_NS) else { return };
        let held = self.connections.iter().enumerate();
        let held = held.filter_map(|(index, connection)| Some((index, connection.as_deref()?)));
        let stalled = held.filter(|(_, connection)| {
            connection.memory_counted > 0 && connection.last_progress_ns <= before_ns && connection.is_stalled()
        });
        let mut stalled: Vec<_> = stalled
            .map(|(index, connection)| (connection.last_progress_ns, usize::MAX - connection.memory_counted, index))
            .collect();
        stalled.sort_unstable();
        let budget = self.service.shared.budget.max();
        for (_, _, index) in stalled {
            if self.service.shared.budget.used() <= budget / 4 {
                break;
            }
            let Some(mut connection) = self.connections[index].take() else { continue };
            // The kernel is late to report that it would accept more, so try once more.
            let before = connection.last_progress_ns;
            while connection.blocked && self.send(index, &mut connection).is_ok_and(|sent| sent > 0) {}
            if connection.last_progress_ns != before {
                self.update_memory(&mut connection);
                self.connections[index] = Some(connection);
                self.enqueue(index);
                continue;
            }
            self.service.count().stalled_kicks.add(1);
            self.close(index, connection);
        }
        if !self.memory_queue.queues[Claim::New as usize].connections.is_empty() {
            // Waiting connections need the memory more than the pool does.
            self.pool.clear();
        }
        self.close_starved(before_ns);
    }

    /// Closes unproven connections that have waited for memory since `before_ns`, as long as waiting ones hold too much
    /// memory themselves, or even the reserve for proven ones is in use. Otherwise they would all wait for each other.
    fn close_starved(&mut self, before_ns: u64) {
        let queue = Claim::New as usize;
        let WaitingConnections { connections, .. } = &self.memory_queue.queues[queue];
        let held = |(index, generation): &(usize, u64)| {
            let connection = self.connections[*index].as_deref();
            connection
                .filter(|connection| connection.generation == *generation)
                .map_or(0, |connection| connection.memory_counted)
        };
        let mut held: usize = connections.iter().map(held).sum();
        let held_max = self.service.shared.budget.waiting_max() / self.service.partitions.count();
        for _ in 0..connections.len() {
            if held <= held_max && !self.service.shared.budget.is_spent() {
                break;
            }
            let Some((index, generation)) = self.memory_queue.queues[queue].connections.pop_front() else { break };
            let is_old = |connection: &mut Box<Connection>| {
                connection.generation == generation && connection.last_progress_ns <= before_ns
            };
            match self.connections[index].take_if(is_old) {
                Some(connection) => {
                    held = held.saturating_sub(connection.memory_counted);
                    self.service.count().stalled_kicks.add(1);
                    self.close(index, connection);
                }
                None => self.memory_queue.queues[queue].connections.push_back((index, generation)),
            }
        }
    }
}

const _: () = assert!(Claim::New as usize == 0 && Claim::Proven as usize == 1);
