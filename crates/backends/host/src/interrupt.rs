//! Signals: Ctrl-C and its like, a request (SIGUSR1), and a reload (SIGHUP).

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{IntoRawFd, OwnedFd};
use sinew_fabric::Waker;
use sinew_mem::atomic::plain::{AtomicU32, Ordering};

// The signal handlers touch only these four words: lock-free atomics are all that is safe there.
/// Number of the signal that came; 0 before one does.
static INTERRUPTED: AtomicU32 = AtomicU32::new(0);
/// Whether SIGUSR1 came.
static REQUESTED: AtomicU32 = AtomicU32::new(0);
/// Whether SIGHUP came since the last [`Interrupt::take_reload`], once [`Interrupt::catch_reload`] has made it mean a
/// reload.
static RELOAD: AtomicU32 = AtomicU32::new(0);
/// Descriptor of the eventfd that wakes the thread of [`call_wakers`]; [`NO_FD`] before there is one.
static WAKE_FD: AtomicU32 = AtomicU32::new(NO_FD);
const NO_FD: u32 = u32::MAX;

/// The registered wakers. `None` until the first successful install.
static STATE: Mutex<Option<State>> = Mutex::new(None);

#[derive(Default)]
struct State {
    next_id: u64,
    wakers: Vec<(u64, Waker)>,
}

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process's reaction to Ctrl-C (SIGINT), SIGTERM, and the loss of its terminal (SIGHUP, unless it is ignored, as
/// under `nohup`): a flag to check, and wakers for threads that sleep.
///
/// The first signal sets the flag; a second one ends the process, as it would have done without this handler, so that a
/// program that hangs while it shuts down can still be stopped by hand.
///
/// ```
/// let interrupt = sinew_host::Interrupt::install()?;
/// while !interrupt.is_set() {
///     // one turn of the loop
/// #   break;
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Interrupt {
    _installed: (),
}

impl Interrupt {
    /// Starts to catch the signals, once for the process; later calls return the same interrupt.
    ///
    /// Starts one thread, which sleeps until a signal comes and then calls the wakers (a signal handler must not).
    ///
    /// # Errors
    ///
    /// The error of the system: no descriptor or no thread was available, or a signal could not be caught.
    pub fn install() -> io::Result<Self> {
        let mut state = state();
        if state.is_none() {
            install_once()?;
            *state = Some(State::default());
        }
        Ok(Self { _installed: () })
    }

    /// The interrupt that was installed earlier, if any.
    pub fn installed() -> Option<Self> {
        state().is_some().then_some(Self { _installed: () })
    }

    /// Whether a signal came.
    #[inline]
    pub fn is_set(&self) -> bool {
        // Acquire: partner of the store in `note_interrupt`, though nothing else is published with it.
        INTERRUPTED.load(Ordering::Acquire) != 0
    }

    /// Exit status of a program that the signal ended, as shells report it: 130 after Ctrl-C. `None` when no signal
    /// came.
    pub fn exit_status(&self) -> Option<u8> {
        let signal = u8::try_from(INTERRUPTED.load(Ordering::Acquire)).ok()?;
        (signal > 0).then(|| signal.saturating_add(128))
    }

    /// Starts to catch SIGUSR1 as well, for a program that gives it a meaning of its own. The signal sets a flag of its
    /// own and calls the same [wakers](Self::wake_on_interrupt). It can come any number of times.
    ///
    /// # Errors
    ///
    /// The error of `sigaction`.
    pub fn catch_request(&self) -> io::Result<()> {
        catch(libc::SIGUSR1, on_request, libc::SA_RESTART)
    }

    /// Whether SIGUSR1 came since [`Self::catch_request`]. Never goes back to false.
    #[inline]
    pub fn is_requested(&self) -> bool {
        // Acquire: as in `is_set`.
        REQUESTED.load(Ordering::Acquire) != 0
    }

    /// Makes SIGHUP ask the program to read its files again, instead of interrupting it. The signal then sets a flag of
    /// its own and calls the same [wakers](Self::wake_on_interrupt). It can come any number of times.
    ///
    /// # Errors
    ///
    /// The error of `sigaction`.
    pub fn catch_reload(&self) -> io::Result<()> {
        catch(libc::SIGHUP, on_reload, libc::SA_RESTART)
    }

    /// Whether SIGHUP came since the last call. Works after [`Self::catch_reload`].
    #[inline]
    pub fn take_reload(&self) -> bool {
        // The load spares the swap in the common case. Acquire: as in `is_set`.
        RELOAD.load(Ordering::Acquire) != 0 && RELOAD.swap(0, Ordering::AcqRel) != 0
    }

    /// Sets the flag and calls the wakers as Ctrl-C does, for a program that ends itself.
    pub fn set(&self) {
        note_interrupt(libc::SIGINT);
    }

    /// Calls `waker` when a signal comes, or at once if one has come already, until the returned guard is dropped.
    #[must_use = "dropping the guard takes the waker back"]
    pub fn wake_on_interrupt(&self, waker: Waker) -> WakeOnInterrupt {
        let mut state = state();
        let state = state.get_or_insert_default();
        let id = state.next_id;
        state.next_id += 1;
        // The thread that calls the wakers takes the same lock after the flag was set: either it finds this waker, or
        // we see the flag.
        if self.is_set() {
            waker.wake();
        }
        state.wakers.push((id, waker));
        WakeOnInterrupt { id }
    }
}

/// Guard that keeps a waker registered with [`Interrupt::wake_on_interrupt`].
#[derive(Debug)]
pub struct WakeOnInterrupt {
    id: u64,
}

impl Drop for WakeOnInterrupt {
    fn drop(&mut self) {
        if let Some(state) = state().as_mut() {
            state.wakers.retain(|(id, _)| *id != self.id);
        }
    }
}

/// Sets the flag and wakes the thread that calls the wakers. Async-signal-safe.
fn note_interrupt(signal: libc::c_int) {
    INTERRUPTED.store(signal as u32, Ordering::Release);
    wake_thread();
}

/// Wakes the thread that calls the wakers. Async-signal-safe.
fn wake_thread() {
    let fd = WAKE_FD.load(Ordering::Acquire);
    if fd != NO_FD {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the eventfd is never closed once it is in `WAKE_FD`, and eight bytes are readable. A full counter
        // means that the thread is being woken already, so the result does not matter.
        unsafe { libc::write(fd as libc::c_int, one.as_ptr().cast(), one.len()) };
    }
}

/// Handler of the signals that end the program. Async-signal-safe.
extern "C" fn on_signal(signal: libc::c_int) {
    // SAFETY: errno belongs to the interrupted code; `write` may change it, so it is put back.
    let errno = unsafe { *libc::__errno_location() };
    note_interrupt(signal);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Handler of SIGUSR1. Async-signal-safe.
extern "C" fn on_request(_: libc::c_int) {
    // SAFETY: errno belongs to the interrupted code; `write` may change it, so it is put back.
    let errno = unsafe { *libc::__errno_location() };
    REQUESTED.store(1, Ordering::Release);
    wake_thread();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Handler of SIGHUP once it means a reload. Async-signal-safe.
extern "C" fn on_reload(_: libc::c_int) {
    // SAFETY: errno belongs to the interrupted code; `write` may change it, so it is put back.
    let errno = unsafe { *libc::__errno_location() };
    RELOAD.store(1, Ordering::Release);
    wake_thread();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Installs `handler` for a signal. The handler must do only async-signal-safe things.
fn catch(signal: libc::c_int, handler: extern "C" fn(libc::c_int), flags: libc::c_int) -> io::Result<()> {
    // SAFETY: all-zero is a valid `sigaction` (no flags, empty mask), and the handlers here are async-signal-safe: they
    // store to an atomic and call `write`.
    let status = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = flags;
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn install_once() -> io::Result<()> {
    // If an earlier attempt failed after this, its thread is there. The caller holds the lock of `STATE`.
    if WAKE_FD.load(Ordering::Acquire) == NO_FD {
        let wake: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC)?;
        let reader = wake.try_clone()?;
        std::thread::Builder::new().name("sinew-interrupt".to_owned()).spawn(move || call_wakers(&reader))?;
        WAKE_FD.store(wake.into_raw_fd() as u32, Ordering::Release);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if signal == libc::SIGHUP && is_ignored(signal)? {
            continue;
        }
        // SA_RESETHAND removes the handler after the first signal, so a second one has its default effect.
        catch(signal, on_signal, libc::SA_RESTART | libc::SA_RESETHAND)?;
    }
    Ok(())
}

fn is_ignored(signal: libc::c_int) -> io::Result<bool> {
    // SAFETY: all-zero is a valid `sigaction` to be overwritten, and the null pointer means that no new action is set.
    let (status, action) = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &mut action), action)
    };
    if status == 0 { Ok(action.sa_sigaction == libc::SIG_IGN) } else { Err(io::Error::last_os_error()) }
}

fn call_wakers(wake: &OwnedFd) {
    let mut count = [0u8; 8];
    loop {
        match rustix::io::read(wake, &mut count) {
            Ok(_) => {
                let wakers: Vec<Waker> = state()
                    .as_ref()
                    .map(|state| state.wakers.iter().map(|(_, waker)| waker.clone()).collect())
                    .unwrap_or_default();
                // The lock is released first: a waker may do anything.
                wakers.iter().for_each(Waker::wake);
            }
            Err(rustix::io::Errno::INTR) => {}
            // Reading our own eventfd cannot fail; if it does, the flag still works.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sinew_fabric::WakeTarget;
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    struct NotifyChannel(mpsc::Sender<()>);

    impl WakeTarget for NotifyChannel {
        fn wake(&self) {
            let _ = self.0.send(());
        }
    }

    // This is one test, since the flag belongs to the process and is never cleared.
    #[test]
    fn a_signal_sets_the_flag_and_calls_the_wakers() {
        assert!(Interrupt::installed().is_none());
        let interrupt = Interrupt::install().unwrap();
        assert!(Interrupt::installed().is_some());
        assert!(!Interrupt::install().unwrap().is_set() && interrupt.exit_status().is_none());
        let (send, receive) = mpsc::channel();
        let (send_dropped, receive_dropped) = mpsc::channel();
        let _kept = interrupt.wake_on_interrupt(Waker::new(Arc::new(NotifyChannel(send))));
        interrupt.catch_reload().unwrap();
        for _ in 0..2 {
            assert!(!interrupt.take_reload());
            // SAFETY: raises a signal that has a handler.
            unsafe { libc::raise(libc::SIGHUP) };
            receive.recv_timeout(Duration::from_secs(20)).expect("the waker is called");
            assert!(
                interrupt.take_reload() && !interrupt.is_set(),
                "SIGHUP asks for files to be read again, and ends nothing"
            );
        }
        drop(interrupt.wake_on_interrupt(Waker::new(Arc::new(NotifyChannel(send_dropped)))));
        // SAFETY: raises a signal that has a handler.
        unsafe { libc::raise(libc::SIGTERM) };
        receive.recv_timeout(Duration::from_secs(20)).expect("the waker is called");
        assert!(interrupt.is_set());
        assert_eq!(interrupt.exit_status(), Some(143));
        assert!(receive_dropped.recv().is_err(), "a waker that was taken back is not called");
        let (send, receive) = mpsc::channel();
        let _late = interrupt.wake_on_interrupt(Waker::new(Arc::new(NotifyChannel(send))));
        receive.recv().expect("a waker that comes after the signal is called at once");
    }
}
