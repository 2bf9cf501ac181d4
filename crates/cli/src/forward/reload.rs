//! Tables that are read again while frames go on: the new one is made beside, and taken between two bursts.

use std::sync::{Arc, mpsc};

use anyhow::Context;
use sinew::fabric::Waker;
use sinew::host::Interrupt;

use crate::output;

/// Makes a table out of its file.
pub type Load<T> = Arc<dyn Fn() -> anyhow::Result<T> + Send + Sync>;

/// Reads a table again when SIGHUP asks for it.
pub struct Reload<T> {
    load: Load<T>,
    interrupt: Interrupt,
    wakes: Waker,
    /// Of the table that is being made.
    coming: Option<mpsc::Receiver<anyhow::Result<T>>>,
    /// Asked for once more meanwhile.
    again: bool,
    /// Tables taken, and files that were refused.
    pub taken: u64,
    pub refused: u64,
}

impl<T: Send + 'static> Reload<T> {
    /// Starts to listen for SIGHUP; `wakes` ends the sleep of whoever asks [`Self::poll`].
    pub fn new(load: Load<T>, interrupt: Interrupt, wakes: Waker) -> anyhow::Result<Self> {
        interrupt.catch_reload().context("catching SIGHUP")?;
        Ok(Self { load, interrupt, wakes, coming: None, again: false, taken: 0, refused: 0 })
    }

    /// The new table, if there is one by now. A file that is wrong is complained of, and changes nothing.
    pub fn poll(&mut self) -> Option<T> {
        if self.interrupt.take_reload() {
            self.again = true;
        }
        if self.coming.is_none() {
            if !std::mem::take(&mut self.again) {
                return None;
            }
            self.begin();
        }
        let made = match self.coming.as_ref()?.try_recv() {
            Err(mpsc::TryRecvError::Empty) => return None,
            Ok(made) => made,
            Err(mpsc::TryRecvError::Disconnected) => Err(anyhow::anyhow!("the thread that read it is gone")),
        };
        self.coming = None;
        match made {
            Ok(table) => {
                self.taken += 1;
                Some(table)
            }
            Err(error) => {
                self.refused += 1;
                output::complain(format_args!("the old table stays: {}", output::describe(&error)));
                None
            }
        }
    }

    fn begin(&mut self) {
        let (send, receive) = mpsc::channel();
        let (load, wakes) = (Arc::clone(&self.load), self.wakes.clone());
        let make = move || {
            // Nobody takes it when the forwarder has ended.
            let _ = send.send(load());
            wakes.wake();
        };
        match std::thread::Builder::new().name("sinew-reload".to_owned()).spawn(make) {
            Ok(_) => self.coming = Some(receive),
            Err(error) => {
                self.refused += 1;
                output::complain(format_args!("the old table stays: starting a thread: {error}"));
            }
        }
    }
}

/// Frees what takes long to be freed, on a thread of its own where there can be one.
pub fn free<T: Send + 'static>(old: T) {
    // Where there can be none, the closure is dropped here, and with it what it holds.
    let _ = std::thread::Builder::new().name("sinew-free".to_owned()).spawn(move || drop(old));
}
