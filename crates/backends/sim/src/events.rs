//! What is going to happen, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A host's packet, and those chained to it, reach its network interface.
    Sent { packet: u32 },
    /// The head of a packet reaches the switch, or all of it the host, that the link leads to which it is on.
    Arrives { packet: u32 },
    /// A link is done with a packet, and others wait for it.
    LinkFree { link: u32 },
    /// A link's sender hears that it is to pause, or to go on.
    Paused { link: u32, paused: bool },
    /// An actor is to have its turn, if it still waits for this one.
    Turn { actor: u32, number: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    time_ns: u64,
    /// Events of one time happen in the order in which they were foreseen.
    number: u64,
    event: Event,
}

/// Events, the next first.
#[derive(Debug, Default)]
pub(crate) struct Events {
    heap: BinaryHeap<Reverse<Entry>>,
    next: u64,
}

impl Events {
    #[inline]
    pub fn add(&mut self, time_ns: u64, event: Event) {
        self.heap.push(Reverse(Entry { time_ns, number: self.next, event }));
        self.next += 1;
    }

    /// When the next is.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.time_ns)
    }

    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse(Entry { time_ns, event, .. })| (time_ns, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_they_were_foreseen() {
        let mut events = Events::default();
        for (time_ns, link) in [(5, 0), (3, 9), (5, 1), (4, 7), (3, 2), (5, 2)] {
            events.add(time_ns, Event::LinkFree { link });
        }
        let mut order = Vec::new();
        while let Some((time_ns, Event::LinkFree { link })) = events.pop() {
            order.push((time_ns, link));
        }
        assert_eq!(order, [(3, 9), (3, 2), (4, 7), (5, 0), (5, 1), (5, 2)]);
    }
}
