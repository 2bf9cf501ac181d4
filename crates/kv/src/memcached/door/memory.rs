//! Memory for connections: which get it, which wait for it, and which are closed for lack of it.

use std::collections::VecDeque;

use super::super::budget::Claim;
use super::super::connection::{Connection, LONG, Want};
use super::super::hand_over::Message;
use super::super::protocol::Limits;
use super::Door;

/// Time without progress, in nanoseconds, after which a connection may be closed to free memory for others.
const STALLED_NS: u64 = 1_000_000_000;
/// Least time between two searches for stalled connections, in nanoseconds.
const BETWEEN_LOOKS_NS: u64 = 20_000_000;

/// One grant of memory in this many goes to the connection that has waited longest.
const FED_FOR_AN_OLD_ONE: usize = 4;

/// Bytes of answers that a connection may have without asking; fewer while memory is scarce.
const OUT_LEN_MAX: usize = 256 << 10;
const OUT_LEN_MAX_WHEN_SHORT: usize = 16 << 10;

/// The limits within which connections need not ask for memory.
pub(super) fn limits(is_short: bool) -> Limits {
    let out_len_max = if is_short { OUT_LEN_MAX_WHEN_SHORT } else { OUT_LEN_MAX };
    Limits { out_len_max, answer_len_max: LONG.min(out_len_max), ..Limits::default() }
}

/// Connections that wait for memory.
#[derive(Default)]
pub(super) struct Hunger {
    /// Unproven connections, and proven ones, by [`Claim`].
    queues: [Waiting; 2],
    /// Time of the next search for stalled connections, in nanoseconds.
    next_look_ns: u64,
    /// Bytes accounted for this thread's own buffers.
    counted: usize,
}

#[derive(Default)]
struct Waiting {
    /// Indices and generations.
    connections: VecDeque<(usize, u64)>,
    /// Connections that got memory.
    fed: usize,
}

impl Hunger {
    pub fn is_any(&self) -> bool {
        self.queues.iter().any(|queue| !queue.connections.is_empty())
    }
}

impl Door {
    /// Accounts for changes of a connection's buffers.
    pub(super) fn count(&self, connection: &mut Connection) {
        let kept = connection.kept();
        self.service.shared.budget.change(connection.counted, kept);
        connection.counted = kept;
    }

    /// Accounts for this thread's own buffers, and makes room when the budget is spent.
    pub(super) fn count_memory(&mut self) {
        let kept = self.pool.kept() + self.batches.kept() + self.out.capacity() + self.service.request.capacity();
        let budget = &self.service.shared.budget;
        budget.change(self.hunger.counted, kept);
        self.hunger.counted = kept;
        let is_short = budget.is_short();
        let Limits { out_len_max, answer_len_max, .. } = limits(is_short);
        self.service.limits.out_len_max = out_len_max;
        self.service.limits.answer_len_max = answer_len_max;
        if is_short && budget.is_spent() {
            self.make_room();
        }
    }

    /// Gives back the memory accounted for a connection that is gone.
    pub(super) fn forget(&self, connection: &Connection) {
        self.service.shared.budget.change(connection.counted, 0);
    }

    /// Takes memory for `want`, or lets the connection wait for it.
    pub(super) fn want(&mut self, index: usize, connection: &mut Connection, want: Want) {
        connection.starve(want);
        self.feed_or_queue(index, connection);
    }

    /// Takes memory for what the connection needs next, or lets it wait. Long answers of other threads get memory one
    /// after the other.
    pub(super) fn feed_or_queue(&mut self, index: usize, connection: &mut Connection) {
        let queue = connection.claim() as usize;
        while let Some(len) = connection.starving.front().map(Want::len)
            && connection.may_be_fed()
        {
            if self.hunger.queues[queue].connections.is_empty() && self.take_for(connection, len) {
                self.give(connection);
            } else {
                self.service.count().memory_waits.add(1);
                connection.is_queued_for_memory = true;
                self.hunger.queues[queue].connections.push_back((index, connection.generation));
                return;
            }
        }
    }

    /// Takes `len` bytes for a connection, if they are available.
    fn take_for(&self, connection: &mut Connection, len: usize) -> bool {
        let taken = self.service.shared.budget.try_take(len, connection.claim());
        if taken {
            connection.counted += len;
        }
        taken
    }

    /// Provides the buffer or the room for which memory was taken.
    fn give(&mut self, connection: &mut Connection) {
        let Some(want) = connection.starving.pop_front() else { return };
        match want {
            Want::Input(len) => {
                // A buffer for the whole command, so that the client can send it to the end.
                let mut input = self.pool.take_short(len);
                input.extend_from_slice(&connection.input);
                self.pool.give(std::mem::replace(&mut connection.input, input));
            }
            // The next answer has this length.
            Want::Answer(len) => connection.room = len,
            Want::Others(len, entry, request) => {
                connection.others_room = len;
                self.ask_again(entry, len, &request);
                self.pool.give(request);
            }
        }
        self.count(connection);
    }

    /// Grants the available memory to waiting connections.
    pub(super) fn feed(&mut self) {
        for queue in (0..self.hunger.queues.len()).rev() {
            loop {
                let Waiting { connections, fed } = &mut self.hunger.queues[queue];
                // Usually the newest is served, and every few grants the one that has waited longest, so that a crowd
                // that arrived together does not shut out all later ones.
                let is_oldest = fed.is_multiple_of(FED_FOR_AN_OLD_ONE);
                let next = if is_oldest { connections.pop_front() } else { connections.pop_back() };
                let Some((index, generation)) = next else { break };
                let Some(mut connection) = self.connections[index].take_if(|it| it.generation == generation) else {
                    continue;
                };
                connection.is_queued_for_memory = false;
                if !connection.may_be_fed() {
                    // It will ask again when its turn comes.
                    self.connections[index] = Some(connection);
                    self.enqueue(index);
                    continue;
                }
                let len = connection.starving.front().map_or(0, Want::len);
                if !self.take_for(&mut connection, len) {
                    connection.is_queued_for_memory = true;
                    self.connections[index] = Some(connection);
                    let connections = &mut self.hunger.queues[queue].connections;
                    if is_oldest {
                        connections.push_front((index, generation));
                    } else {
                        connections.push_back((index, generation));
                    }
                    break;
                }
                self.hunger.queues[queue].fed += 1;
                self.give(&mut connection);
                self.feed_or_queue(index, &mut connection);
                connection.moved_ns = self.now_ns;
                self.connections[index] = Some(connection);
                self.enqueue(index);
            }
        }
        if self.hunger.is_any() {
            self.make_room();
        }
    }

    /// Closes stalled connections, here and at the other threads.
    fn make_room(&mut self) {
        if self.now_ns < self.hunger.next_look_ns {
            return;
        }
        self.shed();
        for other in (0..self.others.len()).filter(|other| *other != self.service.partition) {
            let _ = self.others[other].mailbox.send(Message::MakeRoom);
        }
    }

    /// Closes stalled connections, the longest stalled first, until half of the memory for unproven connections is
    /// free.
    pub(super) fn shed(&mut self) {
        if self.now_ns < self.hunger.next_look_ns {
            return;
        }
        self.hunger.next_look_ns = self.now_ns + BETWEEN_LOOKS_NS;
        let Some(before_ns) = self.now_ns.checked_sub(STALLED_NS) else { return };
        let held = self.connections.iter().enumerate();
        let held = held.filter_map(|(index, connection)| Some((index, connection.as_deref()?)));
        let stalled = held.filter(|(_, it)| it.counted > 0 && it.moved_ns <= before_ns && it.is_stalled());
        let mut stalled: Vec<_> = stalled.map(|(index, it)| (it.moved_ns, usize::MAX - it.counted, index)).collect();
        stalled.sort_unstable();
        let budget = self.service.shared.budget.max();
        for (_, _, index) in stalled {
            if self.service.shared.budget.used() <= budget / 4 {
                break;
            }
            let Some(mut connection) = self.connections[index].take() else { continue };
            // The kernel is late to report that it would accept more, so try once more.
            let before = connection.moved_ns;
            while connection.blocked && self.send(index, &mut connection).is_ok_and(|sent| sent > 0) {}
            if connection.moved_ns != before {
                self.count(&mut connection);
                self.connections[index] = Some(connection);
                self.enqueue(index);
                continue;
            }
            self.service.count().stalled_kicks.add(1);
            self.close(index, connection);
        }
        if !self.hunger.queues[Claim::New as usize].connections.is_empty() {
            // Waiting connections need the memory more than the pool does.
            self.pool.clear();
        }
        self.turn_away(before_ns);
    }

    /// Closes unproven connections that have waited for memory since `before_ns`, as long as waiting ones hold too much
    /// memory themselves, or even the reserve for proven ones is in use. Otherwise they would all wait for each other.
    fn turn_away(&mut self, before_ns: u64) {
        let queue = Claim::New as usize;
        let Waiting { connections, .. } = &self.hunger.queues[queue];
        let held = |(index, generation): &(usize, u64)| {
            let it = self.connections[*index].as_deref();
            it.filter(|it| it.generation == *generation).map_or(0, |it| it.counted)
        };
        let mut held: usize = connections.iter().map(held).sum();
        let held_max = self.service.shared.budget.waiting_max() / self.service.partitions.count();
        for _ in 0..connections.len() {
            if held <= held_max && !self.service.shared.budget.is_spent() {
                break;
            }
            let Some((index, generation)) = self.hunger.queues[queue].connections.pop_front() else { break };
            let is_old = |it: &mut Box<Connection>| it.generation == generation && it.moved_ns <= before_ns;
            match self.connections[index].take_if(is_old) {
                Some(connection) => {
                    held = held.saturating_sub(connection.counted);
                    self.service.count().stalled_kicks.add(1);
                    self.close(index, connection);
                }
                None => self.hunger.queues[queue].connections.push_back((index, generation)),
            }
        }
    }
}

const _: () = assert!(Claim::New as usize == 0 && Claim::Proven as usize == 1);
