//! The handler's loop: serves faults, the store and requests of other threads, and sleeps.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sinew_fabric::Armed;
use sinew_remote_memory::Store;

use super::{Handler, REQUESTS_MAX, RETRY_NS};
use crate::error::FarError;

/// Time without work after which the thread sleeps, in ns. It is longer than a thread whose fault was answered takes to
/// wake up and fault again, so that one that faults repeatedly meets a handler that is awake.
const SPIN_NS: u64 = 50_000;
/// Free frames: when fewer than the first are free, frames are freed together up to the second, ahead of the next
/// faults. Dropping pages interrupts the processors that run the program's threads.
const FREE_FRAMES_LOW_HIGH: [usize; 2] = [4, 32];

impl<S: Store> Handler<S> {
    /// Serves faults until [`Control::stop`](super::super::Control::stop). Failures that no caller receives are passed
    /// to `report`: lost pages, pages that cannot be fetched now, and failed writes, whose pages stay local. It may be
    /// called again.
    ///
    /// The thread must not touch the mapping: nothing would fetch the page for it.
    ///
    /// # Errors
    ///
    /// [`FarError::System`] and [`FarError::Sleep`]: errors of the system; [`FarError::Lost`] and [`FarError::Fetch`]
    /// when the store can never take a request. Then threads that fault keep waiting.
    pub fn run(&mut self, mut report: impl FnMut(FarError)) -> Result<(), FarError> {
        self.area.lock_requests().has_stopped = false;
        let result = self.serve(&mut report);
        self.fail_flush();
        {
            // Threads that wait for a flush stop waiting.
            let mut requests = self.area.lock_requests();
            (requests.stop, requests.has_stopped) = (false, true);
        }
        self.area.notify_done();
        result
    }

    fn serve(&mut self, report: &mut impl FnMut(FarError)) -> Result<(), FarError> {
        let mut last_work_ns = self.clock.now_ns();
        loop {
            let (stop, forgive, flushes) = {
                let mut requests = self.area.lock_requests();
                (requests.stop, std::mem::take(&mut requests.retry_lost), requests.flushes)
            };
            if stop {
                return Ok(());
            }
            if forgive {
                self.retry_lost()?;
            }
            self.begin_flush(flushes.0, flushes.1);
            let now_ns = self.clock.now_ns();
            let has_worked = self.turn(now_ns)?;
            if let Some(failure) = self.failure.take() {
                report(failure);
            }
            if has_worked {
                last_work_ns = now_ns;
            } else if now_ns.saturating_sub(last_work_ns) > SPIN_NS {
                self.sleep()?;
                last_work_ns = self.clock.now_ns();
            }
        }
    }

    /// Does the work that is due, without waiting. Returns whether there was any.
    fn turn(&mut self, now_ns: u64) -> Result<bool, FarError> {
        let area = std::sync::Arc::clone(&self.area);
        let mut result = Ok(());
        let mut has_worked = area
            .uffd()
            .faults(|fault| {
                if result.is_ok() {
                    result = self.fault(fault, now_ns);
                }
            })
            .map_err(FarError::System)?;
        result?;
        has_worked |= self.retry_waiting(now_ns)?;
        has_worked |= self.store.turn();
        let mut finished = std::mem::take(&mut self.finished);
        has_worked |= self.store.poll(&mut finished, REQUESTS_MAX) > 0;
        for finished in finished.drain(..) {
            self.handle_finished(finished, now_ns)?;
        }
        self.finished = finished;
        if self.is_flushing() {
            has_worked |= self.continue_flush()?;
        } else {
            has_worked |= self.clean(false)?;
        }
        if !has_worked {
            // Idle time is used to free frames for the next faults.
            let [low, high] = FREE_FRAMES_LOW_HIGH.map(|spare| spare.min(self.frames.len() / 8));
            if self.free.len() < low {
                let before = self.free.len();
                self.make_room(high)?;
                has_worked = self.free.len() > before;
            }
        }
        Ok(has_worked)
    }

    /// Retries faults that waited for room, or for their next attempt.
    fn retry_waiting(&mut self, now_ns: u64) -> Result<bool, FarError> {
        let mut has_retried = false;
        for _ in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.pop_front() else { break };
            if waiting.retry_at_ns > now_ns {
                self.waiting.push_back(waiting);
                continue;
            }
            if let Some(frame) = self.table.frame(waiting.page) {
                // Another thread's fault has fetched the page, or is fetching it.
                let frame = &mut self.frames[frame as usize];
                if frame.is_reading {
                    frame.is_awaited = true;
                    frame.wants_write |= waiting.is_write;
                } else {
                    let address = self.area.address(waiting.page);
                    self.area.uffd().wake(address, crate::options::PAGE).map_err(super::system)?;
                }
                has_retried = true;
                continue;
            }
            let before = self.waiting.len();
            self.begin_fault(waiting, None)?;
            if self.waiting.len() > before {
                // No room: changed pages must be written first. If writes are failing, the retry can wait.
                if self.failed > 0
                    && let Some(waiting) = self.waiting.back_mut()
                {
                    waiting.retry_at_ns = now_ns + RETRY_NS;
                }
                has_retried |= self.writing == 0 && self.clean(true)?;
                break;
            }
            has_retried = true;
        }
        Ok(has_retried)
    }

    /// Sleeps until a fault, progress of the store, or a request of another thread.
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
            let requests = self.area.lock_requests();
            if requests.stop || requests.retry_lost || requests.flushes.0 > requests.flushes.1 && !self.is_flushing() {
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
        let retry_ns = self.waiting.iter().map(|waiting| waiting.retry_at_ns.max(now_ns + 1_000_000)).min();
        let timeout = armed
            .min_deadline(retry_ns)
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
