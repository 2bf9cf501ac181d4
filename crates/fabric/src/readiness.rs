//! Sleeping on ports, completion queues, endpoints and anything else that has a file descriptor, all at once.
//!
//! Anything that can be waited for is a [`Readiness`]. A thread that wants to sleep *arms* it: that submits what it
//! holds back, makes visible that somebody sleeps, checks once more everything that may have come, and then says either
//! that there is something to do ([`Armed::Ready`]) or until when the thread may sleep ([`Armed::Sleep`]). From then on
//! its [`Descriptor`] becomes readable when something comes, and stays so until it is disarmed. Since arming costs
//! system calls, the thread's one [`Poller`](crate::Poller) decides when to arm: after it has spun for a while, not in
//! every idle turn.
//!
//! [`wait_on`] does all of this for a thread of our own:
//!
//! ```
//! use sinew_fabric::readiness::{Alarm, wait_on};
//!
//! let (mut a, mut b) = (Alarm::new()?, Alarm::new()?);
//! let waker = b.waker();
//! let thread = std::thread::spawn(move || waker.wake());
//! wait_on(&mut [&mut a, &mut b], 0, None)?; // sleeps until one of them is woken
//! # thread.join().unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A foreign event loop registers the descriptors, level-triggered and for reading. It arms before it blocks, blocks no
//! longer than it is told, and turns what it drives afterwards.
//!
//! This module is the only one of the crate that calls the system: `poll`, `epoll` and `eventfd`.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use sinew_mem::WakeCell;

use crate::waker::{WakeTarget, Waker};

/// Result of [`Readiness::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// There is, or may be, something to do. It is not armed.
    Ready,
    /// There is nothing to do. It is armed, and the thread may sleep.
    Sleep {
        /// End of the sleep at the latest, on the caller's clock; `None`: only when the descriptor is readable.
        until_ns: Option<u64>,
    },
}

impl Armed {
    /// The same, with an additional deadline of the caller's own.
    pub fn min_deadline(self, deadline_ns: Option<u64>) -> Self {
        match self {
            Self::Ready => Self::Ready,
            Self::Sleep { until_ns } => Self::Sleep { until_ns: until_ns.into_iter().chain(deadline_ns).min() },
        }
    }

    /// The same on another clock, which shows `other_now_ns` when this one shows `now_ns`.
    pub fn on_clock(self, now_ns: u64, other_now_ns: u64) -> Self {
        match self {
            Self::Ready => Self::Ready,
            Self::Sleep { until_ns } => Self::Sleep {
                until_ns: until_ns.map(|until_ns| other_now_ns.saturating_add(until_ns.saturating_sub(now_ns))),
            },
        }
    }

    /// Time for which the thread may block from `now_ns` on: 0 when there is something to do, `None` for no limit.
    pub fn timeout_ns(self, now_ns: u64) -> Option<u64> {
        match self {
            Self::Ready => Some(0),
            Self::Sleep { until_ns } => until_ns.map(|until_ns| until_ns.saturating_sub(now_ns)),
        }
    }
}

/// A file descriptor to wait for, and nothing else: it is readable or not, and reading it would take data that belongs
/// to its owner. Cheap to clone. It may outlive its owner harmlessly: it then stays readable, or not, for ever.
#[derive(Clone, Debug)]
pub struct Descriptor(Arc<OwnedFd>);

impl Descriptor {
    /// Blocks until the descriptor is readable or `timeout_ns` has passed (`None`: no time-out). Returns whether it is
    /// readable. A signal ends the wait early.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn wait(&self, timeout_ns: Option<u64>) -> io::Result<bool> {
        poll(&mut [PollFd::new(&*self.0, PollFlags::IN)], timeout_ns)
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn poll(fds: &mut [PollFd<'_>], timeout_ns: Option<u64>) -> io::Result<bool> {
    let timeout = timeout_ns.map(|ns| Timespec {
        tv_sec: (ns / 1_000_000_000).try_into().unwrap_or(i64::MAX / 2),
        tv_nsec: (ns % 1_000_000_000) as _,
    });
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Something that a thread can sleep on.
///
/// Receiving from it, polling it or turning it while it is armed is allowed, and ends what arming promised: a thread
/// that wants to sleep must then arm it again, which is allowed too.
pub trait Readiness {
    /// The descriptor that becomes readable; the same each time. `None` where there is none, as on simulated networks,
    /// whose time does not pass by itself: such a thing cannot be armed.
    fn descriptor(&self) -> Option<Descriptor>;

    /// Prepares for the caller to sleep, and submits what is held back. After [`Armed::Sleep`] the descriptor becomes
    /// readable when there is something to do or a waker is called, and stays so until [`Self::disarm`]; it may also
    /// become so for no reason. `now_ns` is on the caller's clock, as deadlines are.
    ///
    /// A wake-up since the last [`Self::disarm`], or since the last `Ready`, makes it return [`Armed::Ready`]: none is
    /// lost.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Unsupported`] where there is no descriptor; the system's error.
    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        let _ = now_ns;
        Err(no_descriptor())
    }

    /// Reports that the thread is awake: the descriptor is no longer readable, and nobody has to wake the thread.
    /// Returns whether a waker was called since it was armed, where that can be distinguished from other causes; that
    /// wake-up is then consumed. Does nothing if it is not armed.
    fn disarm(&mut self) -> bool {
        false
    }
}

/// The error of [`Readiness::arm`] where there is no descriptor.
pub fn no_descriptor() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "nothing to sleep on: it has no file descriptor (simulated networks have none)",
    )
}

/// Arms one thing, sleeps unless it is ready, and disarms it: the `wait` of everything that has a descriptor.
pub(crate) fn wait(source: &mut (impl Readiness + ?Sized), timeout_ns: Option<u64>) -> io::Result<()> {
    // With a clock that stands at 0, deadlines are durations.
    let armed = source.arm(0)?;
    if armed == Armed::Ready {
        return Ok(());
    }
    let descriptor = source.descriptor().ok_or_else(no_descriptor)?;
    let slept = descriptor.wait(armed.min_deadline(timeout_ns).timeout_ns(0));
    source.disarm();
    slept.map(|_| ())
}

/// Sleeps until there is something to do at one of `sources`, or until `until_ns` (`None`: no limit), on the clock that
/// shows `now_ns`. Returns at once when one of them is ready. Afterwards none is armed. Returns whether it slept.
///
/// # Errors
///
/// As for [`Readiness::arm`] of any of them.
pub fn wait_on(sources: &mut [&mut dyn Readiness], now_ns: u64, until_ns: Option<u64>) -> io::Result<bool> {
    let slept = arm_and_sleep(sources, now_ns, until_ns);
    for source in sources {
        source.disarm();
    }
    slept
}

/// Number of sources up to which a sleep allocates nothing: the sleeping thread may be one that the system waits for
/// when memory is short.
const SOURCES_INLINE_MAX: usize = 8;

fn arm_and_sleep(sources: &mut [&mut dyn Readiness], now_ns: u64, until_ns: Option<u64>) -> io::Result<bool> {
    let mut all = Armed::Sleep { until_ns };
    let fits_inline = sources.len() <= SOURCES_INLINE_MAX;
    let mut inline = ArrayVec::<_, SOURCES_INLINE_MAX>::new();
    let mut heap = Vec::new();
    for source in sources {
        match source.arm(now_ns)? {
            Armed::Ready => return Ok(false),
            Armed::Sleep { until_ns } => all = all.min_deadline(until_ns),
        }
        let descriptor = source.descriptor().ok_or_else(no_descriptor)?;
        if fits_inline { inline.push(descriptor) } else { heap.push(descriptor) }
    }
    let fd = |descriptor| PollFd::new(descriptor, PollFlags::IN);
    if fits_inline {
        poll(&mut inline.iter().map(fd).collect::<ArrayVec<_, SOURCES_INLINE_MAX>>(), all.timeout_ns(now_ns))?;
    } else {
        poll(&mut heap.iter().map(fd).collect::<Vec<_>>(), all.timeout_ns(now_ns))?;
    }
    Ok(true)
}

/// A foreign descriptor, such as a socket, as something to sleep on: readable when the system says so, armed or not.
#[derive(Clone, Debug)]
pub struct ForeignFd(pub Descriptor);

impl Readiness for ForeignFd {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.0.clone())
    }

    fn arm(&mut self, _: u64) -> io::Result<Armed> {
        Ok(Armed::Sleep { until_ns: None })
    }

    fn disarm(&mut self) -> bool {
        false
    }
}

/// A descriptor that becomes readable when a waker is called, or when anything [watched](Self::watch) is readable.
/// Ports and queues whose news come through descriptors are built on it.
#[derive(Debug)]
pub struct Alarm {
    set: Descriptor,
    shared: Arc<AlarmShared>,
    armed: Cell<bool>,
    /// Writes to the eventfd that wakers have made, or are about to make, and that were not read.
    pending_writes: Cell<u64>,
}

/// The part of an [`Alarm`] that its wakers share.
#[derive(Debug)]
struct AlarmShared {
    event: OwnedFd,
    cell: WakeCell,
}

impl WakeTarget for AlarmShared {
    fn wake(&self) {
        if self.cell.wake() {
            // A full counter is as good as one more.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

impl Alarm {
    /// An alarm that only wakers set off.
    ///
    /// # Errors
    ///
    /// The system's error when it has no descriptors; an alarm takes two.
    pub fn new() -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(AlarmShared { event, cell: WakeCell::new() });
        let alarm = Self { set: set.into(), shared, armed: Cell::new(false), pending_writes: Cell::new(0) };
        alarm.watch(&alarm.shared.event)?;
        Ok(alarm)
    }

    /// Makes the alarm readable whenever `fd` is readable or has an error, whether the alarm is set or not.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
    }

    /// Stops watching a descriptor. News for a watched one cost their sender a pass through the set, so a source that
    /// is rarely slept on is best watched only during the sleep.
    ///
    /// # Errors
    ///
    /// The system's error; [`io::ErrorKind::NotFound`] if it was not watched.
    pub fn unwatch(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.set, fd)?)
    }

    /// A waker that sets the alarm off. Waking an alarm that is not set costs no system call.
    pub fn waker(&self) -> Waker {
        Waker::new(Arc::clone(&self.shared) as _)
    }

    /// The descriptor that becomes readable.
    pub fn descriptor(&self) -> Descriptor {
        self.set.clone()
    }

    /// Whether the alarm is set, and was not cleared since.
    pub fn is_set(&self) -> bool {
        self.armed.get()
    }

    /// Sets the alarm: from now on wakers make it readable. Returns false when a waker was called before; the alarm is
    /// then not set, and that wake-up is consumed. Either a check after this call sees what was done before a waker was
    /// called, or the alarm becomes readable.
    pub fn set(&self) -> bool {
        let was_woken = self.armed.get() && self.clear();
        let is_set = !was_woken && self.shared.cell.sleep();
        self.armed.set(is_set);
        is_set
    }

    /// Clears the alarm and any wake-up; returns whether there was one. Does nothing when the alarm is not set.
    pub fn clear(&self) -> bool {
        if !self.armed.replace(false) {
            return false;
        }
        let was_woken = self.shared.cell.end_sleep();
        let mut pending_writes = self.pending_writes.get() + u64::from(was_woken);
        if pending_writes > 0 {
            // The waker may not have written yet: then it is read another time.
            let mut count = [0; 8];
            if rustix::io::read(&self.shared.event, &mut count).is_ok() {
                pending_writes = pending_writes.saturating_sub(u64::from_ne_bytes(count));
            }
            self.pending_writes.set(pending_writes);
        }
        was_woken
    }
}

impl Readiness for Alarm {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.set.clone())
    }

    fn arm(&mut self, _: u64) -> io::Result<Armed> {
        Ok(if self.set() { Armed::Sleep { until_ns: None } } else { Armed::Ready })
    }

    fn disarm(&mut self) -> bool {
        self.clear()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_LONG: Option<u64> = Some(0);

    #[test]
    fn an_alarm_that_is_woken_is_readable_until_it_is_cleared() {
        let alarm = Alarm::new().unwrap();
        let descriptor = alarm.descriptor();
        assert!(alarm.set());
        assert!(!descriptor.wait(NOT_LONG).unwrap());
        (0..3).for_each(|_| alarm.waker().wake());
        for _ in 0..2 {
            assert!(descriptor.wait(NOT_LONG).unwrap());
        }
        assert!(alarm.clear());
        assert!(!descriptor.wait(NOT_LONG).unwrap() && !alarm.clear());
        assert!(alarm.set(), "the wake-ups are over");
    }

    #[test]
    fn a_wake_up_before_an_alarm_is_set_is_told_and_costs_nothing() {
        let alarm = Alarm::new().unwrap();
        alarm.waker().wake();
        assert!(!alarm.set());
        assert!(!alarm.descriptor().wait(NOT_LONG).unwrap());
        assert!(alarm.set());
    }

    #[test]
    fn an_alarm_that_is_set_again_forgets_no_wake_up() {
        let alarm = Alarm::new().unwrap();
        assert!(alarm.set() && alarm.set());
        alarm.waker().wake();
        assert!(!alarm.set());
        assert!(!alarm.descriptor().wait(NOT_LONG).unwrap() && alarm.set());
    }

    /// A late write is read once it is there.
    #[test]
    fn a_waker_that_was_stopped_before_it_wrote_keeps_nobody_awake() {
        let mut alarm = Alarm::new().unwrap();
        for _ in 0..2 {
            assert!(alarm.set());
            assert!(alarm.shared.cell.wake());
            assert!(alarm.clear());
        }
        rustix::io::write(&alarm.shared.event, &1u64.to_ne_bytes()).unwrap();
        assert!(alarm.set() && alarm.descriptor().wait(NOT_LONG).unwrap() && !alarm.clear());
        assert!(!alarm.descriptor().wait(NOT_LONG).unwrap());
        rustix::io::write(&alarm.shared.event, &1u64.to_ne_bytes()).unwrap();
        wait(&mut alarm, Some(u64::MAX)).unwrap();
        assert!(!alarm.descriptor().wait(NOT_LONG).unwrap());
    }

    #[test]
    fn what_is_watched_sets_an_alarm_off_and_a_closed_alarm_is_harmless() {
        let (outer, inner) = (Alarm::new().unwrap(), Alarm::new().unwrap());
        outer.watch(inner.descriptor()).unwrap();
        assert!(outer.set() && inner.set());
        let descriptor = outer.descriptor();
        inner.waker().wake();
        assert!(descriptor.wait(NOT_LONG).unwrap());
        assert!(!outer.clear(), "no waker of its own was called");
        let waker = inner.waker();
        drop((outer, inner));
        waker.wake();
        let _ = descriptor.wait(NOT_LONG).unwrap();
    }

    #[test]
    fn what_is_watched_no_more_sets_no_alarm_off_and_news_from_before_it_is_watched_do() {
        let (outer, inner) = (Alarm::new().unwrap(), Alarm::new().unwrap());
        assert!(outer.set() && inner.set());
        outer.watch(inner.descriptor()).unwrap();
        outer.unwatch(inner.descriptor()).unwrap();
        assert_eq!(outer.unwatch(inner.descriptor()).unwrap_err().kind(), io::ErrorKind::NotFound);
        inner.waker().wake();
        assert!(!outer.descriptor().wait(NOT_LONG).unwrap());
        outer.watch(inner.descriptor()).unwrap();
        assert!(outer.descriptor().wait(NOT_LONG).unwrap());
    }

    #[test]
    fn deadlines_are_the_earliest_of_all() {
        let sleep = |until_ns| Armed::Sleep { until_ns };
        assert_eq!(sleep(None).min_deadline(None), sleep(None));
        assert_eq!(sleep(Some(7)).min_deadline(None), sleep(Some(7)));
        assert_eq!(sleep(Some(7)).min_deadline(Some(5)), sleep(Some(5)));
        assert_eq!(Armed::Ready.min_deadline(Some(5)), Armed::Ready);
        let timeouts = [sleep(None), sleep(Some(7)), sleep(Some(4)), Armed::Ready].map(|armed| armed.timeout_ns(5));
        assert_eq!(timeouts, [None, Some(2), Some(0), Some(0)]);
    }

    #[test]
    fn a_thread_sleeps_on_several_things_until_one_is_there_or_the_first_deadline() {
        let (mut a, mut b) = (Alarm::new().unwrap(), Alarm::new().unwrap());
        assert!(wait_on(&mut [&mut a, &mut b], 5, Some(1_000_005)).unwrap());
        b.waker().wake();
        assert!(!wait_on(&mut [&mut a, &mut b], 5, None).unwrap(), "one is ready");
        assert!(!a.armed.get(), "and none stays armed");
        for waker in [a.waker(), b.waker()] {
            let thread = std::thread::spawn(move || waker.wake());
            wait_on(&mut [&mut a, &mut b], 5, None).unwrap();
            thread.join().unwrap();
            // The wake-up may have come before the sleep, and been reported, or during it.
            assert!(a.set() && b.set());
            a.clear();
            b.clear();
        }
    }

    #[test]
    fn what_has_no_descriptor_says_so() {
        struct Nothing;
        impl Readiness for Nothing {
            fn descriptor(&self) -> Option<Descriptor> {
                None
            }
        }
        let mut alarm = Alarm::new().unwrap();
        let error = wait_on(&mut [&mut alarm, &mut Nothing], 0, None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(!alarm.armed.get());
    }
}
