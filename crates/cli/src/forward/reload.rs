//! Tables that are read again while forwarding goes on: the new one is built beside the old, and swapped in between two
//! bursts.

use std::sync::{Arc, mpsc};

use anyhow::Context;
use sinew::fabric::Waker;
use sinew::host::Interrupt;

use crate::output;

/// Builds a table from its file.
pub type Load<T> = Arc<dyn Fn() -> anyhow::Result<T> + Send + Sync>;

/// Reads a table again when SIGHUP asks for it.
pub struct Reload<T> {
    load: Load<T>,
    interrupt: Interrupt,
    waker: Waker,
    /// Delivers the table that is being built.
    loading: Option<mpsc::Receiver<anyhow::Result<T>>>,
    /// Another reload was requested meanwhile.
    is_pending: bool,
    /// Tables swapped in, and files refused.
    pub loaded: u64,
    pub rejected: u64,
}

impl<T: Send + 'static> Reload<T> {
    /// Starts to listen for SIGHUP. `waker` wakes the thread that calls [`Self::poll`].
    pub fn new(load: Load<T>, interrupt: Interrupt, waker: Waker) -> anyhow::Result<Self> {
        interrupt.catch_reload().context("catching SIGHUP")?;
        Ok(Self { load, interrupt, waker, loading: None, is_pending: false, loaded: 0, rejected: 0 })
    }

    /// Returns the new table once it is built. A bad file is reported, and changes nothing.
    pub fn poll(&mut self) -> Option<T> {
        if self.interrupt.take_reload() {
            self.is_pending = true;
        }
        if self.loading.is_none() {
            if !std::mem::take(&mut self.is_pending) {
                return None;
            }
            self.begin();
        }
        let result = match self.loading.as_ref()?.try_recv() {
            Err(mpsc::TryRecvError::Empty) => return None,
            Ok(made) => made,
            Err(mpsc::TryRecvError::Disconnected) => Err(anyhow::anyhow!("the thread that read the new one died")),
        };
        self.loading = None;
        // Begin at once, since the caller may sleep after this until the thread wakes it.
        if std::mem::take(&mut self.is_pending) {
            self.begin();
        }
        match result {
            Ok(table) => {
                self.loaded += 1;
                Some(table)
            }
            Err(error) => {
                self.rejected += 1;
                output::complain(format_args!("the old table stays: {}", output::describe(&error)));
                None
            }
        }
    }

    fn begin(&mut self) {
        let (send, receive) = mpsc::channel();
        let (load, waker) = (Arc::clone(&self.load), self.waker.clone());
        let make = move || {
            // The receiver is gone once the forwarder has ended.
            let _ = send.send(load());
            waker.wake();
        };
        match std::thread::Builder::new().name("sinew-reload".to_owned()).spawn(make) {
            Ok(_) => self.loading = Some(receive),
            Err(error) => {
                self.rejected += 1;
                output::complain(format_args!("the old table stays: starting a thread: {error}"));
            }
        }
    }
}

/// Frees a value that takes long to free, on a thread of its own if one can be started.
pub fn free<T: Send + 'static>(old: T) {
    // If no thread can be started, the closure is dropped here, and the value with it.
    let _ = std::thread::Builder::new().name("sinew-free".to_owned()).spawn(move || drop(old));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use sinew::fabric::WakeTarget;

    use super::*;

    struct Nobody;

    impl WakeTarget for Nobody {
        fn wake(&self) {}
    }

    #[test]
    fn what_is_asked_for_while_a_table_is_made_is_made_without_another_look() {
        let (allow, allowed) = mpsc::channel::<()>();
        let (allowed, made) = (std::sync::Mutex::new(allowed), Arc::new(AtomicU32::new(0)));
        let counter = Arc::clone(&made);
        let load: Load<u32> = Arc::new(move || {
            allowed.lock().unwrap().recv()?;
            Ok(counter.fetch_add(1, Ordering::Relaxed) + 1)
        });
        let wakes = Waker::new(Arc::new(Nobody));
        let mut reload = Reload::new(load, Interrupt::install().unwrap(), wakes).unwrap();
        reload.is_pending = true;
        assert_eq!(reload.poll(), None, "it is being made");
        reload.is_pending = true;
        let first = || {
            allow.send(()).unwrap();
            let began = Instant::now();
            loop {
                if let Some(table) = reload.poll() {
                    return table;
                }
                assert!(began.elapsed() < Duration::from_secs(60));
                std::thread::yield_now();
            }
        };
        assert_eq!({ first }(), 1);
        // Nobody polls again, yet the second is built.
        allow.send(()).unwrap();
        let began = Instant::now();
        while made.load(Ordering::Relaxed) < 2 {
            assert!(began.elapsed() < Duration::from_secs(60), "nobody makes the second");
            std::thread::yield_now();
        }
    }
}
