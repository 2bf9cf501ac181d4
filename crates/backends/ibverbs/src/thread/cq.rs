//! Completion queues, and sleeping on them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use rustix::fd::BorrowedFd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use sinew_fabric::readiness::Alarm;
use sinew_fabric::verbs::{Completion, CompletionQueue, QpNumber, VerbsError};
use sinew_fabric::{Armed, Descriptor, Readiness, Waker};

use super::ThreadInner;
use crate::abi::*;
use crate::library::{last_error, system};
use crate::work_id::WorkId;

/// Most completions taken from the device at once.
const BURST: usize = 16;

/// The queue in which operations of an [`IbQueuePair`](crate::IbQueuePair) complete.
pub struct IbCompletionQueue(pub(crate) Rc<CqInner>);

pub(crate) struct CqInner {
    pub thread: Rc<ThreadInner>,
    pub cq: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    poll: PollCq,
    request_notification: ReqNotifyCq,
    depth: usize,
    /// The array that the device writes. It is initialised, since drivers leave out fields that mean nothing for
    /// failures and for requests.
    completed: RefCell<[ibv_wc; BURST]>,
    /// Completions that queue pairs may produce before anybody polls.
    reserved: Cell<usize>,
    /// Completions that were taken from the device, or made without it, and not yet handed out. Oldest first, and older
    /// than those that the device still has.
    backlog: RefCell<VecDeque<Completion>>,
    /// Whether the device was asked to notify us of the next completion, and has not yet.
    armed: Cell<bool>,
    /// Whether the device reported that the queue does not work.
    broken: Cell<bool>,
    /// Readable when the channel is.
    alarm: Alarm,
}

impl std::fmt::Debug for CqInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqInner").field("depth", &self.depth).field("reserved", &self.reserved).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for IbCompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl IbCompletionQueue {
    pub(crate) fn new(thread: &Rc<ThreadInner>, depth: usize) -> Result<Self, VerbsError> {
        let device = &thread.domain.device;
        let limit = device.completions_max;
        if depth > limit {
            return Err(VerbsError::Limit { what: "completions of a queue", asked: depth, limit });
        }
        let alarm = Alarm::new().map_err(|error| system("making an epoll set and an eventfd", error, None))?;
        let (context, name, library) = (device.context.as_ptr(), &device.context.name, device.context.library);
        // SAFETY: an open device.
        let channel = unsafe { (library.ibv_create_comp_channel)(context) };
        let channel =
            NonNull::new(channel).ok_or_else(|| last_error(format!("making a completion channel on {name}")))?;
        // SAFETY: the channel, whose descriptor this is, lives.
        let watched = watch(&alarm, unsafe { channel_fd(channel) });
        let cq = match watched {
            // SAFETY: an open device, and a channel of it.
            Ok(()) => unsafe { (library.ibv_create_cq)(context, depth.max(1) as i32, null_mut(), channel.as_ptr(), 0) },
            Err(_) => null_mut(),
        };
        let Some(cq) = NonNull::new(cq) else {
            let doing = format!("making a completion queue of {depth} on {name}");
            let error = match watched {
                Ok(()) => last_error(doing),
                Err(error) => system(doing, error, None),
            };
            // SAFETY: made above; no queue was made on it.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let ops = device.context.ops();
        Ok(Self(Rc::new(CqInner {
            cq,
            channel,
            poll: ops.poll_cq,
            request_notification: ops.req_notify_cq,
            depth,
            completed: RefCell::new([ibv_wc::default(); BURST]),
            reserved: Cell::new(0),
            backlog: RefCell::new(VecDeque::with_capacity(BURST)),
            armed: Cell::new(false),
            broken: Cell::new(false),
            alarm,
            thread: Rc::clone(thread),
        })))
    }
}

/// # Safety
///
/// The channel lives as long as the result is used.
unsafe fn channel_fd<'a>(channel: NonNull<ibv_comp_channel>) -> BorrowedFd<'a> {
    // SAFETY: our caller's promise; the channel keeps its descriptor open.
    unsafe { BorrowedFd::borrow_raw(channel.as_ref().fd) }
}

/// Makes the alarm readable when the channel is, and the channel's reads non-blocking.
fn watch(alarm: &Alarm, fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
    alarm.watch(fd)
}

impl CqInner {
    /// Makes room for the completions of a queue pair; [`Self::release`] gives it back.
    pub fn reserve(&self, count: usize) -> Result<(), VerbsError> {
        let asked = self.reserved.get() + count;
        if asked > self.depth {
            let what = "completions of a queue's queue pairs together";
            return Err(VerbsError::Limit { what, asked, limit: self.depth });
        }
        self.reserved.set(asked);
        Ok(())
    }

    pub fn release(&self, count: usize) {
        self.reserved.set(self.reserved.get() - count);
    }

    /// Adds a completion that the device does not produce.
    pub fn add(&self, completion: Completion) {
        self.backlog.borrow_mut().push_back(completion);
    }

    /// Drops the completions of a queue pair that is gone, and gives back its places.
    pub fn leave(&self, qp: QpNumber, places: usize) {
        self.drain();
        self.backlog.borrow_mut().retain(|completion| completion.qp != qp);
        self.release(places);
    }

    /// Moves all completions that the device has to the backlog.
    pub fn drain(&self) {
        let mut backlog = self.backlog.borrow_mut();
        while self.take(BURST, &mut |completion| backlog.push_back(completion)) == BURST {}
    }

    /// Takes up to `max` completions, and at most a burst, from the device; returns how many it had. Each may stand for
    /// no operation of ours, or for several.
    #[inline]
    fn take(&self, max: usize, sink: &mut impl FnMut(Completion)) -> usize {
        let mut completed = self.completed.borrow_mut();
        let max = max.min(BURST);
        // SAFETY: our queue, and room for `max`. All fields are numbers, and stay valid whatever the device leaves out.
        let count = unsafe { (self.poll)(self.cq.as_ptr(), max as i32, completed.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            self.broken.set(true);
            return 0;
        };
        for completed in &completed[..count.min(max)] {
            let id = WorkId::unpack(completed.wr_id);
            let qp = self.thread.qps.borrow().find(id);
            if let Some(qp) = qp {
                qp.handle_completion(id, completed, sink);
            }
        }
        count
    }

    /// Takes the notifications that the device has sent.
    fn take_events(&self) {
        let library = self.thread.domain.library();
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: our channel, which does not block, and room for the answers.
        while unsafe { (library.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut context) } == 0 {
            self.armed.set(false);
            // SAFETY: ours is the channel's only queue, and one of its events was taken just now.
            unsafe { (library.ibv_ack_cq_events)(self.cq.as_ptr(), 1) };
        }
    }

    /// Whether there are completions to hand out. Takes some from the device if need be.
    fn has_some(&self) -> bool {
        let mut backlog = self.backlog.borrow_mut();
        // A burst can hold only completions of queue pairs that are gone.
        while backlog.is_empty() && self.take(BURST, &mut |completion| backlog.push_back(completion)) == BURST {}
        !backlog.is_empty()
    }

    /// Returns whether there is nothing to hand out, and the device will notify us of what comes from now on.
    /// (`meanwhile` is for tests: it runs where a completion could be slept through.)
    fn may_sleep(&self, meanwhile: impl FnOnce()) -> io::Result<bool> {
        if self.has_some() {
            return Ok(false);
        }
        // Polling has already taken everything that past notifications announced.
        if self.armed.get() {
            self.take_events();
        }
        meanwhile();
        if !self.armed.get() {
            // SAFETY: our queue.
            let status = unsafe { (self.request_notification)(self.cq.as_ptr(), 0) };
            if status != 0 {
                return Err(io::Error::from_raw_os_error(status.abs()));
            }
            self.armed.set(true);
        }
        // A completion from before the arming sends no notification; one after it does.
        if self.has_some() {
            return Ok(false);
        }
        if self.broken.get() {
            return Err(io::Error::other("the completion queue failed: its device no longer works"));
        }
        Ok(true)
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let library = self.thread.domain.library();
        // SAFETY: queue pairs that complete here hold this queue, so none is left, and nobody polls any more.
        unsafe {
            if (library.ibv_destroy_cq)(self.cq.as_ptr()) == 0 {
                (library.ibv_destroy_comp_channel)(self.channel.as_ptr());
            }
        }
    }
}

impl Readiness for IbCompletionQueue {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.0.alarm.descriptor())
    }

    fn arm(&mut self, _: u64) -> io::Result<Armed> {
        let inner = &*self.0;
        let may_sleep = inner.may_sleep(|| ())? && inner.alarm.set();
        Ok(if may_sleep { Armed::Sleep { until_ns: None } } else { Armed::Ready })
    }

    fn disarm(&mut self) -> bool {
        let inner = &*self.0;
        if inner.alarm.is_set() {
            // Notifications sent during the sleep would keep the descriptor readable.
            inner.take_events();
        }
        inner.alarm.clear()
    }
}

impl CompletionQueue for IbCompletionQueue {
    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>, max: usize) -> usize {
        let inner = &*self.0;
        let mut backlog = inner.backlog.borrow_mut();
        let mut taken = backlog.len().min(max);
        completions.extend(backlog.drain(..taken));
        while taken < max {
            let asked = (max - taken).min(BURST);
            // A completion that covers unsignaled READs before it yields several.
            let len_before = inner.take(asked, &mut |completion| {
                if taken < max {
                    completions.push(completion);
                    taken += 1;
                } else {
                    backlog.push_back(completion);
                }
            });
            if len_before < asked {
                break;
            }
        }
        taken
    }

    fn waker(&self) -> Waker {
        self.0.alarm.waker()
    }
}

#[cfg(test)]
mod tests {
    use crate::common::{Pair, assert_ok};
    use sinew_fabric::verbs::{QueuePair, Request, Source, Transport};

    #[test]
    fn what_comes_while_the_queue_is_armed_is_not_slept_through() {
        let Some(mut pair) = Pair::new(Transport::Rc) else { return };
        for round in 0..3 {
            let buffer = pair.empty(8);
            pair.b.qp.post_buffer(round, buffer).unwrap();
            let send = pair.send(Source::Inline(b"x"));
            let arrive = || {
                pair.a.qp.post(Request::new(round, send)).unwrap();
                assert_ok(&pair.a.sent());
                std::thread::sleep(std::time::Duration::from_millis(50));
            };
            assert!(!pair.b.receives.0.may_sleep(arrive).unwrap(), "round {round}");
            assert_eq!(pair.b.received().id, round);
            assert!(pair.b.receives.0.may_sleep(|| ()).unwrap(), "there is nothing any more");
            pair.b.receives.0.armed.set(false);
        }
    }
}
