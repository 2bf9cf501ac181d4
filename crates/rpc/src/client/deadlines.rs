//! Deadlines of calls.

use super::Clients;
use super::state::Form;
use crate::error::Cause;
use crate::shared::Shared;

impl Clients {
    /// Ends the calls whose deadlines have passed; returns the next deadline. It checks all busy slots, so the caller
    /// limits how often that happens.
    pub fn end_expired(&mut self, shared: &mut Shared) -> Option<u64> {
        let now_ns = shared.now_ns;
        let mut next_ns: Option<u64> = None;
        let mut is_over = |deadline_ns: u64| {
            let is_over = deadline_ns <= now_ns;
            if !is_over {
                next_ns = Some(next_ns.map_or(deadline_ns, |next_ns| next_ns.min(deadline_ns)));
            }
            is_over
        };
        let waiting = self.queues.waiting().filter_map(|(place, index, queued)| {
            let deadline_ns = queued.call.deadline_ns?.get();
            is_over(deadline_ns).then_some((place, index))
        });
        let waiting: Vec<_> = waiting.collect();
        let mut late = Vec::new();
        for position in 0..self.listed.len() {
            let id = self.listed[position];
            let slot = &self.table.slots[id.index()];
            // For a plain call nothing else is read.
            if slot.form == Form::Short || slot.request.is_none() {
                continue;
            }
            if self.view(id).deadline_ns().is_some_and(&mut is_over) {
                late.push(id);
            }
        }
        for (place, index) in waiting {
            self.end_waiting(shared, index, place, Cause::DeadlinePassed);
        }
        for id in late {
            let index = self.table.entry_of(id);
            // The server knows the deadline. But it may hold a long response that will not be fetched any more, and it
            // says nothing about a call whose slot has the next one.
            self.abandon(shared, index, id, Cause::DeadlinePassed);
        }
        next_ns
    }

    /// Number of calls that [`Self::end_expired`] checks.
    pub fn expiring(&self) -> usize {
        self.listed.len() + self.queues.nodes_in_use()
    }
}
