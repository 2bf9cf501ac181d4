//! The handler's loop: faults, the store, what other threads ask for, and sleep.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sinew_fabric::Armed;
use sinew_remote_memory::Store;

use super::{Handler, REQUESTS, RETRY_NS};
use crate::error::FarError;

/// How long the thread looks for news before it goes to sleep: longer than a thread that was answered takes to wake up and to come with its next fault, so that
/// one that faults again and again meets a handler that is awake.
const AWAKE_NS: u64 = 50_000;
/// Frames that are freed ahead of the next faults, all at once, when fewer than the first are free: dropping pages interrupts the processors that run the program's
/// threads.
const SPARE: [usize; 2] = [4, 32];

impl<S: Store> Handler<S> {
    /// Serves faults until [`Control::stop`](super::super::Control::stop). Failures that nobody waits for as such are told to `tell`: lost pages, pages that cannot be fetched now, writes that
    /// failed; their pages stay. It may be called again.
    ///
    /// The thread must not touch the mapping: nobody would bring it the page.
    ///
    /// # Errors
    ///
    /// [`FarError::System`] and [`FarError::Sleep`]: what the system says. Faults wait then.
    pub fn run(&mut self, mut tell: impl FnMut(FarError)) -> Result<(), FarError> {
        self.area.asked().has_stopped = false;
        let result = self.serve(&mut tell);
        self.give_up_flush();
        {
            // Who waits for a flush waits no longer.
            let mut asked = self.area.asked();
            (asked.stop, asked.has_stopped) = (false, true);
        }
        self.area.tell_answered();
        result
    }

    fn serve(&mut self, tell: &mut impl FnMut(FarError)) -> Result<(), FarError> {
        let mut news_ns = self.clock.now_ns();
        loop {
            let (stop, forgive, flushes) = {
                let mut asked = self.area.asked();
                (asked.stop, std::mem::take(&mut asked.forgive), asked.flushes)
            };
            if stop {
                return Ok(());
            }
            if forgive {
                self.forgive()?;
            }
            self.begin_flush(flushes.0, flushes.1);
            let now_ns = self.clock.now_ns();
            let some = self.turn(now_ns)?;
            if let Some(failure) = self.failure.take() {
                tell(failure);
            }
            if some {
                news_ns = now_ns;
            } else if now_ns.saturating_sub(news_ns) > AWAKE_NS {
                self.sleep()?;
                news_ns = self.clock.now_ns();
            }
        }
    }

    /// Does what there is to do, without waiting. Returns whether there was anything.
    fn turn(&mut self, now_ns: u64) -> Result<bool, FarError> {
        let area = std::sync::Arc::clone(&self.area);
        let mut result = Ok(());
        let mut some = area
            .uffd()
            .faults(|fault| {
                if result.is_ok() {
                    result = self.fault(fault, now_ns);
                }
            })
            .map_err(FarError::System)?;
        result?;
        some |= self.try_again(now_ns)?;
        some |= self.store.turn();
        let mut finished = std::mem::take(&mut self.finished);
        some |= self.store.poll(&mut finished, REQUESTS) > 0;
        for finished in finished.drain(..) {
            self.settle(finished, now_ns)?;
        }
        self.finished = finished;
        if self.is_flushing() {
            some |= self.go_on_flushing()?;
        } else {
            some |= self.clean(false)?;
        }
        if !some {
            // While nobody waits: room for who comes next.
            let [few, many] = SPARE.map(|spare| spare.min(self.frames.len() / 8));
            if self.free.len() < few {
                let before = self.free.len();
                self.make_room(many)?;
                some = self.free.len() > before;
            }
        }
        Ok(some)
    }

    /// Faults that waited for room, or for their time.
    fn try_again(&mut self, now_ns: u64) -> Result<bool, FarError> {
        let mut some = false;
        for _ in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.pop_front() else { break };
            if waiting.from_ns > now_ns {
                self.waiting.push_back(waiting);
                continue;
            }
            if let Some(frame) = self.table.frame(waiting.page) {
                // Another thread's fault has brought it, or is about to.
                let frame = &mut self.frames[frame as usize];
                if frame.is_reading {
                    frame.is_awaited = true;
                    frame.wants_write |= waiting.is_write;
                } else {
                    let at = self.area.address(waiting.page);
                    self.area.uffd().wake(at, crate::options::PAGE).map_err(super::system)?;
                }
                some = true;
                continue;
            }
            let before = self.waiting.len();
            self.begin(waiting, None)?;
            if self.waiting.len() > before {
                // No room: what is changed has to go. If it cannot, there is time.
                if self.failed > 0
                    && let Some(waiting) = self.waiting.back_mut()
                {
                    waiting.from_ns = now_ns + RETRY_NS;
                }
                some |= self.writing == 0 && self.clean(true)?;
                break;
            }
            some = true;
        }
        Ok(some)
    }

    /// Sleeps until there is a fault, news of the store, or somebody asks for something.
    fn sleep(&mut self) -> Result<(), FarError> {
        let now_ns = self.clock.now_ns();
        if !self.alarm.set() {
            return Ok(());
        }
        let slept = self.sleep_armed(now_ns);
        self.alarm.clear();
        slept
    }

    fn sleep_armed(&mut self, now_ns: u64) -> Result<(), FarError> {
        {
            let asked = self.area.asked();
            if asked.stop || asked.forgive || asked.flushes.0 > asked.flushes.1 && !self.is_flushing() {
                return Ok(());
            }
        }
        let armed = match self.store.arm(now_ns) {
            Ok(armed) => armed,
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                std::thread::yield_now();
                return Ok(());
            }
            Err(error) => return Err(FarError::Sleep(error)),
        };
        if armed == Armed::Ready {
            return Ok(());
        }
        let retry_ns = self.waiting.iter().map(|waiting| waiting.from_ns.max(now_ns + 1_000_000)).min();
        let timeout = armed
            .by(retry_ns)
            .timeout_ns(now_ns)
            .map(|ns| Timespec { tv_sec: (ns / 1_000_000_000).min(3600) as i64, tv_nsec: (ns % 1_000_000_000) as _ });
        let (alarm, store) = (self.alarm.descriptor(), self.store.descriptor());
        let mut fds = [
            PollFd::from_borrowed_fd(self.area.uffd().as_fd(), PollFlags::IN),
            PollFd::new(&alarm, PollFlags::IN),
            PollFd::new(store.as_ref().unwrap_or(&alarm), PollFlags::IN),
        ];
        let slept = poll(&mut fds, timeout.as_ref());
        self.store.disarm();
        match slept {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(FarError::Sleep(error.into())),
        }
    }
}
