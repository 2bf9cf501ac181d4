//! Completion queues that queue pairs share: rdmabox's SCQ(M) (III-B).

use std::io;
use std::os::fd::AsRawFd;

use super::completion::Completion;
use super::error::VerbsError;
use super::traits::CompletionQueue;
use crate::readiness::{Alarm, Armed, Descriptor, Readiness};
use crate::waker::Waker;

/// A queue, with the number of completions taken from it.
#[derive(Debug)]
struct Counted<C> {
    queue: C,
    completions: u64,
}

impl<C: CompletionQueue> Counted<C> {
    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>, max: usize) -> usize {
        let count = self.queue.poll(completions, max);
        self.completions += count as u64;
        count
    }
}

/// A fixed number of completion queues, over which any number of queue pairs is spread: rdmabox's SCQ(M).
///
/// Their thread polls them all, as if they were one queue. How long it polls before it sleeps is the business of its
/// [`Poller`](crate::Poller). Polling begins with another queue whenever it could not take everything, so none starves.
/// Or each queue has a poller of its own, as an actor of a simulation is one ([`Self::into_each`]).
///
/// Several queues without descriptors, as those in virtual time, can be polled as one and not slept on as one:
/// [`CompletionQueue::wait`] and [`Readiness::arm`] then fail as unsupported.
#[derive(Debug)]
pub struct SharedQueues<C> {
    first: Counted<C>,
    others: Vec<Counted<C>>,
    /// Queue that the next poll begins with.
    next: usize,
    /// Readable whenever one of several queues is. `None` with one queue, or where queues have no descriptors.
    alarm: Option<Alarm>,
}

impl<C: CompletionQueue> SharedQueues<C> {
    /// Makes `count` queues, or one if that is 0; `make_queue` is given each one's index.
    ///
    /// # Errors
    ///
    /// The error of `make_queue`; [`VerbsError::System`] if there is no descriptor for sleeping on several.
    pub fn new(count: usize, mut make_queue: impl FnMut(usize) -> Result<C, VerbsError>) -> Result<Self, VerbsError> {
        let mut counted = |nth| Ok(Counted { queue: make_queue(nth)?, completions: 0 });
        let first = counted(0)?;
        let others = (1..count).map(counted).collect::<Result<Vec<_>, VerbsError>>()?;
        let mut queues = Self { first, others, next: 0, alarm: None };
        if !queues.others.is_empty() {
            let doing = "making a descriptor for several completion queues".to_owned();
            let failed = |source| VerbsError::System { doing, source, remedy: None };
            queues.alarm = queues.alarm_of_all().map_err(failed)?;
        }
        Ok(queues)
    }

    /// Makes an alarm that watches all queues, where they have descriptors.
    fn alarm_of_all(&self) -> io::Result<Option<Alarm>> {
        let alarm = Alarm::new()?;
        let mut watched: Vec<Descriptor> = Vec::new();
        for queue in self.all() {
            let Some(descriptor) = queue.queue.descriptor() else { return Ok(None) };
            // Queues of one thread may have one descriptor in common.
            if watched.iter().all(|other| other.as_raw_fd() != descriptor.as_raw_fd()) {
                alarm.watch(&descriptor)?;
                watched.push(descriptor);
            }
        }
        Ok(Some(alarm))
    }

    fn all(&self) -> impl Iterator<Item = &Counted<C>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Counted<C>> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// Number of queues, at least one.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Queue in which the queue pair with this index completes: they take turns.
    pub fn queue_for(&self, queue_pair: usize) -> &C {
        match queue_pair % self.count() {
            0 => &self.first.queue,
            nth => &self.others[nth - 1].queue,
        }
    }

    /// The queues one by one, for as many pollers.
    pub fn into_each(self) -> impl Iterator<Item = Self> {
        let alone = |queue| Self { first: queue, others: Vec::new(), next: 0, alarm: None };
        std::iter::once(self.first).chain(self.others).map(alone)
    }

    /// Completions taken from each queue.
    pub fn completions(&self) -> impl Iterator<Item = u64> {
        self.all().map(|queue| queue.completions)
    }

    #[inline(never)]
    fn poll_several(&mut self, completions: &mut Vec<Completion>, max: usize) -> usize {
        let (count, mut taken) = (self.count(), 0);
        for nth in (self.next..count).chain(0..self.next) {
            let queue = if nth == 0 { &mut self.first } else { &mut self.others[nth - 1] };
            taken += queue.poll(completions, max - taken);
            if taken >= max {
                self.next = (nth + 1) % count;
                break;
            }
        }
        taken
    }

    /// Arms all queues, up to the first that is ready.
    fn arm_all(&mut self, now_ns: u64) -> io::Result<Armed> {
        let mut all = Armed::Sleep { until_ns: None };
        for queue in self.all_mut() {
            match queue.queue.arm(now_ns)? {
                Armed::Ready => return Ok(Armed::Ready),
                Armed::Sleep { until_ns } => all = all.min_deadline(until_ns),
            }
        }
        Ok(all)
    }
}

impl<C: CompletionQueue> Readiness for SharedQueues<C> {
    fn descriptor(&self) -> Option<Descriptor> {
        if self.others.is_empty() { self.first.queue.descriptor() } else { self.alarm.as_ref().map(Alarm::descriptor) }
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        if self.others.is_empty() {
            return self.first.queue.arm(now_ns);
        }
        let armed = self.arm_all(now_ns);
        if !matches!(armed, Ok(Armed::Sleep { .. })) {
            self.disarm();
        }
        armed
    }

    fn disarm(&mut self) -> bool {
        self.all_mut().fold(false, |was_woken, queue| queue.queue.disarm() | was_woken)
    }
}

impl<C: CompletionQueue> CompletionQueue for SharedQueues<C> {
    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>, max: usize) -> usize {
        if self.others.is_empty() { self.first.poll(completions, max) } else { self.poll_several(completions, max) }
    }

    fn passes_time(&self) -> bool {
        self.first.queue.passes_time()
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        if self.others.is_empty() {
            return self.first.queue.wait(timeout_ns);
        }
        crate::readiness::wait(self, timeout_ns)
    }

    /// The first queue's waker, which ends a sleep on all.
    fn waker(&self) -> Waker {
        self.first.queue.waker()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    use super::*;
    use crate::verbs::{Opcode, QpNumber, Scatter, Status};

    /// A queue whose completions the test puts in, with an alarm of its own or none.
    struct Scripted {
        ready: Rc<RefCell<VecDeque<u64>>>,
        alarm: Option<Alarm>,
    }

    impl Readiness for Scripted {
        fn descriptor(&self) -> Option<Descriptor> {
            self.alarm.as_ref().map(Alarm::descriptor)
        }

        fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
            let Some(alarm) = &mut self.alarm else { return Err(crate::readiness::no_descriptor()) };
            if self.ready.borrow().is_empty() { alarm.arm(now_ns) } else { Ok(Armed::Ready) }
        }

        fn disarm(&mut self) -> bool {
            self.alarm.as_mut().is_some_and(Readiness::disarm)
        }
    }

    impl CompletionQueue for Scripted {
        fn poll(&mut self, completions: &mut Vec<Completion>, max: usize) -> usize {
            let mut ready = self.ready.borrow_mut();
            let count = ready.len().min(max);
            completions.extend(ready.drain(..count).map(|id| Completion {
                id,
                qp: QpNumber(0),
                status: Status::Success,
                opcode: Opcode::Write,
                len: 0,
                immediate: None,
                from: None,
                buffers: Scatter::new(),
                range: None,
            }));
            count
        }

        fn waker(&self) -> Waker {
            self.alarm.as_ref().expect("it has one").waker()
        }
    }

    type Ready = Vec<Rc<RefCell<VecDeque<u64>>>>;

    fn scripted(count: usize, has_alarms: bool) -> (SharedQueues<Scripted>, Ready) {
        let ready: Ready = (0..count.max(1)).map(|_| Rc::default()).collect();
        let make = |nth: usize| {
            let alarm = has_alarms.then(|| Alarm::new().unwrap());
            Ok(Scripted { ready: Rc::clone(&ready[nth]), alarm })
        };
        (SharedQueues::new(count, make).unwrap(), ready)
    }

    fn taken(queues: &mut SharedQueues<Scripted>, max: usize) -> Vec<u64> {
        let mut completions = Vec::new();
        let count = queues.poll(&mut completions, max);
        assert_eq!(count, completions.len());
        completions.into_iter().map(|completion| completion.id).collect()
    }

    #[test]
    fn queue_pairs_take_turns_and_there_is_at_least_one_queue() {
        let (queues, ready) = scripted(3, false);
        for queue_pair in 0..7 {
            assert!(Rc::ptr_eq(&queues.queue_for(queue_pair).ready, &ready[queue_pair % 3]), "{queue_pair}");
        }
        assert_eq!((queues.count(), scripted(0, false).0.count()), (3, 1));
    }

    #[test]
    fn no_queue_starves_behind_one_that_is_always_full() {
        let (mut queues, ready) = scripted(3, false);
        ready[0].borrow_mut().extend(0..100);
        ready[2].borrow_mut().extend([200, 201]);
        assert_eq!(taken(&mut queues, 2), [0, 1]);
        assert_eq!(taken(&mut queues, 3), [200, 201, 2]);
        ready[1].borrow_mut().push_back(100);
        assert_eq!(taken(&mut queues, 2), [100, 3]);
        assert_eq!(taken(&mut queues, usize::MAX), (4..100).collect::<Vec<_>>());
        assert!(taken(&mut queues, 2).is_empty());
        assert_eq!(queues.completions().collect::<Vec<_>>(), [100, 1, 2]);
    }

    #[test]
    fn a_thread_for_each_queue_takes_only_what_completes_there() {
        let (queues, ready) = scripted(2, false);
        ready[0].borrow_mut().push_back(1);
        ready[1].borrow_mut().push_back(2);
        let all: Vec<Vec<u64>> = queues.into_each().map(|mut alone| taken(&mut alone, 9)).collect();
        assert_eq!(all, [[1], [2]]);
    }

    #[test]
    fn a_sleep_on_several_queues_ends_with_news_of_any_and_leaves_none_armed() {
        let (mut queues, ready) = scripted(3, true);
        let descriptor = queues.descriptor().unwrap();
        for nth in 0..3 {
            assert!(matches!(queues.arm(0).unwrap(), Armed::Sleep { .. }));
            assert!(!descriptor.wait(Some(0)).unwrap(), "nothing has come");
            queues.queue_for(nth).waker().wake();
            assert!(descriptor.wait(Some(0)).unwrap(), "queue {nth} has news");
            assert!(queues.disarm() && !queues.disarm());
        }
        // What is there already prevents the sleep, whichever queue holds it.
        for ready in &ready {
            ready.borrow_mut().push_back(7);
            assert_eq!(queues.arm(0).unwrap(), Armed::Ready);
            assert!(queues.all().all(|queue| !queue.queue.alarm.as_ref().unwrap().is_set()), "none stays armed");
            assert_eq!(taken(&mut queues, 9), [7]);
        }
        let waker = queues.waker();
        waker.wake();
        queues.wait(Some(u64::MAX)).unwrap();
    }

    #[test]
    fn queues_without_descriptors_cannot_be_slept_on() {
        for count in [1, 2] {
            let (mut queues, _) = scripted(count, false);
            assert!(queues.descriptor().is_none());
            assert_eq!(queues.arm(0).unwrap_err().kind(), io::ErrorKind::Unsupported);
        }
    }
}
