//! The places of gets in flight. A place is named by a number that never repeats.

use crate::reader::choice::{Choice, CompletionMode, GetClass};
use crate::reader::object::Object;
use sinew_mem::MessageBuffer;

/// Bits of a number that hold the index of the place.
const INDEX_BITS: u32 = 16;

/// Stage of a get in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The owner waits for it.
    Pending,
    /// The owner was told that it ended, but a READ or an answer is still to come.
    Ended,
}

/// A get in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightGet {
    pub tag: u64,
    pub object: Object,
    pub class: GetClass,
    pub choice: Choice,
    /// Whether the policy made the choice.
    pub is_by_policy: bool,
    pub access: u32,
    pub started_ns: u64,
    pub deadline_ns: u64,
    /// Time that had been spun without finding work when the get began, in nanoseconds.
    pub wasted_ns: u64,
    /// Time that had been lost to others when the get began, in nanoseconds.
    pub lost_ns: u64,
    /// Polling gets that had begun when this one did, or `u64::MAX` when one was in flight.
    pub polls_begun: u64,
    /// Whether the get is to sleep, and some get has polled since the last one that was to sleep.
    pub is_first_sleep: bool,
    pub stage: Stage,
}

struct GetSlot {
    place: Option<InFlightGet>,
    /// Times that the slot has been used.
    generation: u64,
    /// Buffer for READs, while none of them has it.
    buffer: Option<MessageBuffer>,
}

/// The places of a window.
pub(super) struct Window {
    slots: Vec<GetSlot>,
    free: Vec<usize>,
    live: usize,
    polling: usize,
    polls_begun: u64,
    /// Value of [`Self::polls_begun`] when a sleeping get last began.
    polls_before_sleep: u64,
    /// Lower bound on all deadlines, in nanoseconds.
    due_ns: u64,
}

impl Window {
    pub fn new(buffers: Vec<MessageBuffer>) -> Self {
        let slot = |buffer| GetSlot { place: None, generation: 0, buffer: Some(buffer) };
        let slots: Vec<_> = buffers.into_iter().map(slot).collect();
        let free = (0..slots.len()).rev().collect();
        Self { slots, free, live: 0, polling: 0, polls_begun: 0, polls_before_sleep: 0, due_ns: u64::MAX }
    }

    pub fn size(&self) -> usize {
        self.slots.len()
    }

    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Gets whose owner waits for them.
    pub fn in_flight(&self) -> usize {
        self.live
    }

    /// Those of the gets in flight that poll.
    pub fn polling(&self) -> usize {
        self.polling
    }

    /// Takes a free place, of which there must be one, and returns its number.
    pub fn begin(&mut self, mut place: InFlightGet) -> u64 {
        let index = self.free.pop().expect("the caller checks `has_room`");
        if place.choice.mode == CompletionMode::Polling {
            self.polling += 1;
            self.polls_begun += 1;
        } else {
            place.is_first_sleep = self.polls_begun != self.polls_before_sleep;
            self.polls_before_sleep = self.polls_begun;
        }
        place.polls_begun = if self.polling > 0 { u64::MAX } else { self.polls_begun };
        self.due_ns = self.due_ns.min(place.deadline_ns);
        self.live += 1;
        let slot = &mut self.slots[index];
        slot.generation += 1;
        slot.place = Some(place);
        slot.generation << INDEX_BITS | index as u64
    }

    /// Whether no get has polled since the one that noted this value of `polls_begun`.
    pub fn has_not_polled_since(&self, polls_begun: u64) -> bool {
        polls_begun == self.polls_begun
    }

    fn index(&self, number: u64) -> Option<usize> {
        let index = (number & ((1 << INDEX_BITS) - 1)) as usize;
        let slot = self.slots.get(index)?;
        (slot.generation == number >> INDEX_BITS && slot.place.is_some()).then_some(index)
    }

    /// Stage of the get with this number; `None` when it is over, or never existed.
    pub fn stage(&self, number: u64) -> Option<Stage> {
        Some(self.slots[self.index(number)?].place?.stage)
    }

    /// A get in flight, and the place of its buffer.
    pub fn with_buffer(&mut self, number: u64) -> (&mut InFlightGet, &mut Option<MessageBuffer>) {
        let index = self.index(number).expect("the get is in flight");
        let GetSlot { place, buffer, .. } = &mut self.slots[index];
        (place.as_mut().expect("the get is in flight"), buffer)
    }

    /// Gives the buffer back to its place, which may be free by now.
    pub fn give_buffer(&mut self, number: u64, buffer: MessageBuffer) {
        let index = (number & ((1 << INDEX_BITS) - 1)) as usize;
        self.slots[index].buffer = Some(buffer);
    }

    /// Ends a live get for its owner, and returns it.
    pub fn end(&mut self, number: u64) -> InFlightGet {
        let (place, _) = self.with_buffer(number);
        debug_assert_eq!(place.stage, Stage::Pending);
        place.stage = Stage::Ended;
        let place = *place;
        self.live -= 1;
        self.polling -= usize::from(place.choice.mode == CompletionMode::Polling);
        place
    }

    /// Frees the place of a get that has ended and for which nothing is to come.
    pub fn free(&mut self, number: u64) {
        let index = self.index(number).expect("the get is in flight");
        self.slots[index].place = None;
        self.free.push(index);
    }

    /// Removes a get that did not begin after all.
    pub fn abandon(&mut self, number: u64) {
        self.end(number);
        self.free(number);
    }

    fn live(&self) -> impl Iterator<Item = (u64, &InFlightGet)> {
        let number = |index: usize, slot: &GetSlot| slot.generation << INDEX_BITS | index as u64;
        let live = |slot: &'_ GetSlot| slot.place.as_ref().is_some_and(|place| place.stage == Stage::Pending);
        let slots = self.slots.iter().enumerate().filter(move |(_, slot)| live(slot));
        slots.filter_map(move |(index, slot)| Some((number(index, slot), slot.place.as_ref()?)))
    }

    /// The number of any get whose owner waits for it.
    pub fn any_live(&self) -> Option<u64> {
        self.live().next().map(|(number, _)| number)
    }

    /// Whether a deadline may have passed. One comparison.
    pub fn is_any_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// The number of a live get whose deadline has passed. Looks at all gets; if there is none, sets the time of the
    /// next look.
    pub fn next_due(&mut self, now_ns: u64) -> Option<u64> {
        let due = self.live().find(|(_, place)| place.deadline_ns <= now_ns).map(|(number, _)| number);
        if due.is_none() {
            self.due_ns = self.next_deadline_ns().unwrap_or(u64::MAX);
        }
        due
    }

    /// The earliest deadline of all live gets.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.live().map(|(_, place)| place.deadline_ns).min()
    }
}
