//! Calls that wait for a slot of their session. Each session has a list, all in one pool, so that a call can leave from
//! any position.

use std::num::NonZeroU64;

use sinew_mem::MessageBuffer;

use crate::table::SlotId;

/// Bit that is set in the numbers of calls that had to wait, which are larger than any on the wire.
const QUEUED_BIT: u64 = 1 << 63;
/// Stands for the absence of a place.
const NONE: u32 = u32::MAX;

/// A call's parameters, apart from its buffers.
#[derive(Clone, Copy)]
pub(crate) struct NewCall {
    pub request_type: u16,
    /// The index of the call's lane.
    pub lane: u32,
    pub tag: u64,
    pub deadline_ns: Option<NonZeroU64>,
}

impl NewCall {
    /// Whether the call's deadline has passed.
    #[inline(always)]
    pub fn is_too_late(&self, now_ns: u64) -> bool {
        self.deadline_ns.is_some_and(|deadline_ns| deadline_ns.get() <= now_ns)
    }
}

/// A call that waits for a slot.
pub(super) struct Queued {
    pub call: NewCall,
    pub request: MessageBuffer,
    pub response: MessageBuffer,
}

/// A session's calls in the pool, in order of arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallList {
    first: u32,
    last: u32,
    len: u32,
}

impl Default for CallList {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0 }
    }
}

impl CallList {
    pub fn len(&self) -> usize {
        self.len as usize
    }
}

#[derive(Default)]
enum State {
    #[default]
    Free,
    Waiting(Queued),
    /// The call has a slot now, but keeps the name that it got here.
    Started(SlotId),
}

struct Node {
    generation: u32,
    next: u32,
    previous: u32,
    /// The session's index.
    session: u32,
    state: State,
}

/// Present place of a call that had to wait.
pub(super) enum QueuedState {
    Waiting(QueuedId),
    Started(SlotId),
}

/// A place in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedId(u32);

#[derive(Default)]
pub(super) struct Queues {
    nodes: Vec<Node>,
    free: Vec<u32>,
    waiting: usize,
}

impl Queues {
    /// Appends a call to its session's list.
    pub fn push(&mut self, list: &mut CallList, session: usize, queued: Queued) -> QueuedId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node { generation: 0, next: NONE, previous: NONE, session: 0, state: State::Free });
            self.nodes.len() as u32 - 1
        });
        let place = &mut self.nodes[index as usize];
        (place.next, place.previous, place.session) = (NONE, list.last, session as u32);
        place.state = State::Waiting(queued);
        match list.last {
            NONE => list.first = index,
            last => self.nodes[last as usize].next = index,
        }
        list.last = index;
        list.len += 1;
        self.waiting += 1;
        QueuedId(index)
    }

    /// Removes a call from its session's list, at any position. Its place stays taken until it is [freed](Self::free).
    pub fn remove(&mut self, list: &mut CallList, id: QueuedId) -> Option<Queued> {
        let place = &mut self.nodes[id.0 as usize];
        let State::Waiting(queued) = std::mem::take(&mut place.state) else { return None };
        let (previous, next) = (place.previous, place.next);
        match previous {
            NONE => list.first = next,
            previous => self.nodes[previous as usize].next = next,
        }
        match next {
            NONE => list.last = previous,
            next => self.nodes[next as usize].previous = previous,
        }
        list.len -= 1;
        self.waiting -= 1;
        Some(queued)
    }

    /// The call that has waited longest.
    pub fn first(&self, list: &CallList) -> Option<QueuedId> {
        (list.first != NONE).then_some(QueuedId(list.first))
    }

    /// Notes that the call got a slot.
    pub fn start(&mut self, id: QueuedId, slot: SlotId) {
        self.nodes[id.0 as usize].state = State::Started(slot);
    }

    /// Frees the place of a call that is over, whose name then finds nothing.
    pub fn free(&mut self, id: QueuedId) {
        let place = &mut self.nodes[id.0 as usize];
        place.state = State::Free;
        // After two billion calls a place has run out of names, and is never used again.
        if place.generation < u32::MAX >> 1 {
            place.generation += 1;
            self.free.push(id.0);
        }
    }

    /// The number of a call that waits, or did.
    pub fn number(&self, id: QueuedId) -> u64 {
        QUEUED_BIT | u64::from(self.nodes[id.0 as usize].generation) << 32 | u64::from(id.0)
    }

    /// Whether a call's number is that of a call that had to wait.
    pub fn is_number(number: u64) -> bool {
        number & QUEUED_BIT != 0
    }

    /// Finds a call of a session by the number that it got here.
    pub fn find(&self, session: usize, number: u64) -> Option<QueuedState> {
        let id = QueuedId(number as u32);
        let place = self.nodes.get(number as u32 as usize)?;
        if self.number(id) != number || place.session as usize != session {
            return None;
        }
        match place.state {
            State::Waiting(_) => Some(QueuedState::Waiting(id)),
            State::Started(slot) => Some(QueuedState::Started(slot)),
            State::Free => None,
        }
    }

    /// Number of places that [`Self::waiting`] checks.
    pub fn nodes_in_use(&self) -> usize {
        if self.waiting == 0 { 0 } else { self.nodes.len() }
    }

    /// The waiting calls of all sessions, with their sessions' indices.
    pub fn waiting(&self) -> impl Iterator<Item = (QueuedId, usize, &Queued)> {
        let places = &self.nodes[..self.nodes_in_use()];
        places.iter().enumerate().filter_map(|(at, place)| match &place.state {
            State::Waiting(queued) => Some((QueuedId(at as u32), place.session as usize, queued)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(arena: &sinew_mem::Arena) -> Queued {
        let [request, response] = [0; 2].map(|len| arena.alloc(len, 1024).unwrap());
        let call = NewCall { request_type: 1, lane: 0, tag: 0, deadline_ns: None };
        Queued { call, request, response }
    }

    #[test]
    fn a_place_that_has_no_names_left_is_used_no_more() {
        let arena = sinew_mem::Arena::private(1 << 20).unwrap();
        let (mut queues, mut list) = (Queues::default(), CallList::default());
        let mut numbers = Vec::new();
        for round in 0..4 {
            let id = queues.push(&mut list, 7, queued(&arena));
            numbers.push(queues.number(id));
            assert!(Queues::is_number(numbers[round]) && queues.find(7, numbers[round]).is_some());
            assert!(queues.remove(&mut list, id).is_some());
            queues.free(id);
            assert!(queues.find(7, numbers[round]).is_none());
            if round == 1 {
                queues.nodes[0].generation = u32::MAX >> 1;
            }
        }
        // The third call used the place's last name.
        assert_eq!(numbers.iter().map(|number| *number as u32).collect::<Vec<_>>(), [0, 0, 0, 1]);
        numbers.dedup();
        assert_eq!(numbers.len(), 4);
    }
}
