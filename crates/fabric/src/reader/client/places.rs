//! The places of gets under way. A place is named by a number that never comes again.

use crate::reader::choice::{Choice, Class, Notice};
use crate::reader::object::Object;
use sinew_mem::MessageBuffer;

/// Bits of a number that say which place it is.
const INDEX_BITS: u32 = 16;

/// Whether a get is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its owner waits for it.
    Live,
    /// It was told to its owner, but a READ or an answer is still to come.
    Ended,
}

/// A get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub tag: u64,
    pub object: Object,
    pub class: Class,
    pub choice: Choice,
    /// Whether the policy chose.
    pub is_chosen: bool,
    pub access: u32,
    pub asked_ns: u64,
    pub deadline_ns: u64,
    /// The time spent in vain when it began.
    pub vain_ns: u64,
    /// The time lost to others when it began.
    pub lost_ns: u64,
    /// Gets that poll which had begun when it did, or `u64::MAX` when one was under way.
    pub polls_begun: u64,
    /// It is to sleep, and a get polled since the last that was to.
    pub is_first_sleep: bool,
    pub stage: Stage,
}

struct Slot {
    place: Option<Place>,
    /// How often it was used.
    uses: u64,
    /// For READs, while none has it.
    buffer: Option<MessageBuffer>,
}

/// The places of a window.
pub(super) struct Places {
    slots: Vec<Slot>,
    free: Vec<usize>,
    live: usize,
    polling: usize,
    polls_begun: u64,
    /// Of [`Self::polls_begun`], when a get was begun last that sleeps.
    polls_before_sleep: u64,
    /// No deadline is earlier.
    due_ns: u64,
}

impl Places {
    pub fn new(buffers: Vec<MessageBuffer>) -> Self {
        let slot = |buffer| Slot { place: None, uses: 0, buffer: Some(buffer) };
        let slots: Vec<_> = buffers.into_iter().map(slot).collect();
        let free = (0..slots.len()).rev().collect();
        Self { slots, free, live: 0, polling: 0, polls_begun: 0, polls_before_sleep: 0, due_ns: u64::MAX }
    }

    pub fn window(&self) -> usize {
        self.slots.len()
    }

    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Gets whose owner waits for them.
    pub fn in_flight(&self) -> usize {
        self.live
    }

    /// Of them, those that poll.
    pub fn polling(&self) -> usize {
        self.polling
    }

    /// Takes a free place, of which there is one, and gives its number.
    pub fn begin(&mut self, mut place: Place) -> u64 {
        let index = self.free.pop().expect("there is room");
        if place.choice.notice == Notice::Polling {
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
        slot.uses += 1;
        slot.place = Some(place);
        slot.uses << INDEX_BITS | index as u64
    }

    /// Whether no get has polled since one began that noted this.
    pub fn was_silent_since(&self, polls_begun: u64) -> bool {
        polls_begun == self.polls_begun
    }

    fn index(&self, number: u64) -> Option<usize> {
        let index = (number & ((1 << INDEX_BITS) - 1)) as usize;
        let slot = self.slots.get(index)?;
        (slot.uses == number >> INDEX_BITS && slot.place.is_some()).then_some(index)
    }

    /// Where the get of this number is; `None` when it is over, or there was none.
    pub fn stage(&self, number: u64) -> Option<Stage> {
        Some(self.slots[self.index(number)?].place?.stage)
    }

    /// A get that is here, and the place of its buffer.
    pub fn with_buffer(&mut self, number: u64) -> (&mut Place, &mut Option<MessageBuffer>) {
        let index = self.index(number).expect("it is here");
        let Slot { place, buffer, .. } = &mut self.slots[index];
        (place.as_mut().expect("it is here"), buffer)
    }

    /// The buffer comes back to the place, which may be free by now.
    pub fn give_buffer(&mut self, number: u64, buffer: MessageBuffer) {
        let index = (number & ((1 << INDEX_BITS) - 1)) as usize;
        self.slots[index].buffer = Some(buffer);
    }

    /// A live get ends for its owner. Returns it.
    pub fn end(&mut self, number: u64) -> Place {
        let (place, _) = self.with_buffer(number);
        debug_assert_eq!(place.stage, Stage::Live);
        place.stage = Stage::Ended;
        let place = *place;
        self.live -= 1;
        self.polling -= usize::from(place.choice.notice == Notice::Polling);
        place
    }

    /// Nothing is to come for a get that has ended: its place is free.
    pub fn free(&mut self, number: u64) {
        let index = self.index(number).expect("it is here");
        self.slots[index].place = None;
        self.free.push(index);
    }

    /// A get that did not begin after all.
    pub fn abandon(&mut self, number: u64) {
        self.end(number);
        self.free(number);
    }

    fn live(&self) -> impl Iterator<Item = (u64, &Place)> {
        let number = |index: usize, slot: &Slot| slot.uses << INDEX_BITS | index as u64;
        let live = |slot: &'_ Slot| slot.place.as_ref().is_some_and(|place| place.stage == Stage::Live);
        let slots = self.slots.iter().enumerate().filter(move |(_, slot)| live(slot));
        slots.filter_map(move |(index, slot)| Some((number(index, slot), slot.place.as_ref()?)))
    }

    /// A get whose owner waits for it.
    pub fn any_live(&self) -> Option<u64> {
        self.live().next().map(|(number, _)| number)
    }

    /// Whether a deadline may have passed. One comparison.
    pub fn is_any_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// A live get whose deadline has passed; looks at all, and without one sets when to look again.
    pub fn next_due(&mut self, now_ns: u64) -> Option<u64> {
        let due = self.live().find(|(_, place)| place.deadline_ns <= now_ns).map(|(number, _)| number);
        if due.is_none() {
            self.due_ns = self.next_deadline_ns().unwrap_or(u64::MAX);
        }
        due
    }

    /// The earliest deadline of all.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.live().map(|(_, place)| place.deadline_ns).min()
    }
}
