//! The account of a queue pair's requests: those that are complete, and those whose completion the user has seen.

use sinew_fabric::verbs::{Completion, Opcode, QpNumber, Scatter, Status};

use crate::verbs::fifo::Buffers;
use crate::verbs::queues::{Freed, FreedSlots, Life, Queues};

/// Counts of a queue pair's requests, and the fields that their completions share.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Changes when the queue pair is reset, so that completions of an earlier life do not count.
    pub life: Life,
    /// Index of the completion queue.
    pub queue: usize,
    /// UD: the queue pair's own key.
    pub qkey: u32,
    /// Requests that are complete.
    pub completed: u64,
    /// Requests whose completion, or that of a later request, the user has polled.
    pub polled: u64,
}

impl Ledger {
    /// Number and key of the queue pair, for its datagrams.
    #[inline(always)]
    pub fn sender(&self) -> (QpNumber, u32) {
        (self.life.number(), self.qkey)
    }

    /// Counts the oldest incomplete request as complete, and adds its completion; see [`Self::report`].
    #[inline(always)]
    pub fn complete<'a>(&mut self, id: u64, opcode: Opcode, len: usize, queues: &'a mut Queues) -> &'a mut Completion {
        self.completed += 1;
        self.report(id, opcode, len, queues)
    }

    /// As [`Self::complete`], and gives back what the request held.
    #[inline(always)]
    pub fn complete_held<'a>(
        &mut self,
        (id, opcode, len): (u64, Opcode, usize),
        held: &mut Buffers,
        queues: &'a mut Queues,
    ) -> &'a mut Completion {
        // Nearly always it is one buffer, which is added in place: that costs less than to move a list there.
        if let Some(buffer) = held.take_single() {
            let completion = self.complete(id, opcode, len, queues);
            completion.buffers.push(buffer);
            return completion;
        }
        let (buffers, range) = held.take_all(&mut queues.pool);
        let completion = self.complete(id, opcode, len, queues);
        (completion.buffers, completion.range) = (buffers, range);
        completion
    }

    /// Adds a successful completion without buffers for the last complete request. Returns it for changes.
    #[inline(always)]
    pub fn report<'a>(&self, id: u64, opcode: Opcode, len: usize, queues: &'a mut Queues) -> &'a mut Completion {
        let frees = Freed { of: self.life, slots: FreedSlots::Requests(self.completed) };
        queues.get(self.queue).place(frees).write(Completion {
            id,
            qp: self.life.number(),
            status: Status::Success,
            opcode,
            len,
            immediate: None,
            from: None,
            buffers: Scatter::new(),
            range: None,
        })
    }
}
