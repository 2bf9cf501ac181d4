//! Frames that go over a virtual pair and back, through bare AF_XDP sockets or through frame ports.

mod forward;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use hdrhistogram::Histogram;
use sinew::fabric::frames::{FrameBurst, FramePort, FrameRx, FrameTx, LentFrame};
use sinew::xdp::raw::{self, BareSocket};
use sinew::xdp::testbed::{Pair, PairOptions, Side};
use sinew::xdp::{FrameOptions, InterfaceOptions, Mode, XdpFrames};

use crate::histogram;
use crate::machine::{self, Pair as Cpus};

pub use forward::{ForwardBench, ForwardRates, Middle};

/// Silence after which frames in flight count as lost.
const LOST_AFTER: Duration = Duration::from_millis(20);

/// Mover of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mover {
    /// A socket and its rings, and nothing else.
    Bare,
    /// A frame port.
    Port,
}

/// One end of the pair.
trait End {
    fn send(&mut self, frame: &[u8], count: usize);
    fn receive(&mut self) -> usize;
    fn echo(&mut self) -> usize;
}

impl End for BareSocket {
    fn send(&mut self, frame: &[u8], count: usize) {
        BareSocket::send(self, frame, count);
    }

    fn receive(&mut self) -> usize {
        let (count, sum) = BareSocket::receive(self);
        std::hint::black_box(sum);
        count
    }

    fn echo(&mut self) -> usize {
        BareSocket::echo(self)
    }
}

impl End for XdpFrames {
    fn send(&mut self, frame: &[u8], count: usize) {
        let (_, tx) = self.split();
        (0..count).for_each(|_| tx.push(frame, &[]));
        tx.submit();
    }

    fn receive(&mut self) -> usize {
        let mut burst = FrameBurst::new(0);
        self.split().0.receive(&mut burst);
        let sum: u64 = burst.frames.iter().map(|frame| u64::from(frame.bytes()[0])).sum();
        std::hint::black_box(sum);
        burst.frames.len()
    }

    fn echo(&mut self) -> usize {
        let (rx, tx) = self.split();
        let mut burst = FrameBurst::new(0);
        rx.receive(&mut burst);
        let count = burst.frames.len();
        for mut frame in burst.frames.drain(..) {
            let (to, from) = frame.bytes_mut().split_at_mut(6);
            to.swap_with_slice(&mut from[..6]);
            tx.forward(frame);
        }
        if count > 0 {
            tx.submit();
        }
        count
    }
}

fn open(mover: Mover, pair: &Pair, side: Side) -> anyhow::Result<Box<dyn End>> {
    pair.at(side).within(|| -> anyhow::Result<Box<dyn End>> {
        Ok(match mover {
            Mover::Bare => Box::new(BareSocket::open(side.interface(), Mode::Auto)?),
            Mover::Port => {
                let interface = InterfaceOptions { zero_copy: false, ..InterfaceOptions::default() };
                let options = FrameOptions { interface, ..FrameOptions::default() };
                Box::new(XdpFrames::open(side.interface(), &raw::comparable_memory()?, &options)?)
            }
        })
    })?
}

/// A measurement for the client to make.
#[derive(Clone, Copy, Debug)]
struct EchoOrder {
    frame_len: usize,
    window: usize,
    batch: usize,
    duration: Duration,
}

/// Round trips in ns, if one frame was in flight at a time, and millions of frames a second.
pub type Echoed = (Histogram<u64>, f64);

/// A client, and a server that sends frames back, each on its own processor, at the ends of a pair of their own. They
/// are idle while nothing is measured.
#[derive(Debug)]
pub struct XdpEcho {
    orders: Option<Sender<EchoOrder>>,
    results: Receiver<Echoed>,
    stop: Arc<AtomicBool>,
    active: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl XdpEcho {
    /// Starts both.
    ///
    /// # Errors
    ///
    /// This user may not make a pair and open its ends.
    pub fn start(mover: Mover, cpus: Cpus) -> anyhow::Result<Self> {
        let pair = Arc::new(
            Pair::new(PairOptions { addresses: false, ..PairOptions::default() })
                .context("making a pair of virtual interfaces")?,
        );
        let (orders, order_receiver) = mpsc::channel();
        let (sender, results) = mpsc::channel();
        let mut echo =
            Self { orders: Some(orders), results, stop: Arc::default(), active: Arc::default(), threads: Vec::new() };
        let (server_cpu, client_cpu) = (cpus.map(|cpus| cpus[1]), cpus.map(|cpus| cpus[0]));
        let (stop, active, at) = (Arc::clone(&echo.stop), Arc::clone(&echo.active), Arc::clone(&pair));
        echo.spawn(move |opened| {
            let Some(mut end) = report_open(opened, machine::pin(server_cpu).and_then(|()| open(mover, &at, Side::B)))
            else {
                return;
            };
            while !stop.load(Ordering::Relaxed) {
                if !active.load(Ordering::Relaxed) {
                    std::thread::park_timeout(Duration::from_millis(10));
                    // Frames that arrive late belong to no measurement.
                    while !active.load(Ordering::Relaxed) && end.receive() > 0 {}
                } else if end.echo() == 0 {
                    std::hint::spin_loop();
                }
            }
        })?;
        echo.spawn(move |opened| {
            let Some(mut end) =
                report_open(opened, machine::pin(client_cpu).and_then(|()| open(mover, &pair, Side::A)))
            else {
                return;
            };
            while let Ok(order) = order_receiver.recv() {
                let echoed = run(&mut *end, order);
                if sender.send(echoed).is_err() {
                    return;
                }
            }
        })?;
        Ok(echo)
    }

    /// Starts a thread, and waits until it has opened its end of the pair, or failed to.
    fn spawn(&mut self, run: impl FnOnce(Sender<anyhow::Result<()>>) + Send + 'static) -> anyhow::Result<()> {
        let (sender, receiver) = mpsc::channel();
        self.threads.push(std::thread::spawn(move || run(sender)));
        receiver.recv().context("a measuring thread ended")?
    }

    /// Keeps `window` frames of `frame_len` bytes in flight for `duration`, sent in batches.
    ///
    /// # Errors
    ///
    /// A thread has ended.
    pub fn measure(&self, frame_len: usize, window: usize, batch: usize, duration: Duration) -> anyhow::Result<Echoed> {
        self.active.store(true, Ordering::Relaxed);
        self.threads[0].thread().unpark();
        let order = EchoOrder { frame_len: frame_len.clamp(60, raw::FRAME_LEN_MAX), window, batch, duration };
        let is_sent = self.orders.as_ref().is_some_and(|asking| asking.send(order).is_ok());
        let result = is_sent.then(|| self.results.recv().ok()).flatten().context("the measuring thread ended");
        self.active.store(false, Ordering::Relaxed);
        result
    }
}

/// Reports the result of opening an end, and returns the end.
fn report_open<T>(opened: Sender<anyhow::Result<()>>, result: anyhow::Result<T>) -> Option<T> {
    let (outcome, end) = match result {
        Ok(end) => (Ok(()), Some(end)),
        Err(error) => (Err(error), None),
    };
    let _ = opened.send(outcome);
    end
}

fn run(end: &mut dyn End, EchoOrder { frame_len, window, batch, duration }: EchoOrder) -> Echoed {
    let mut frame = vec![0; frame_len];
    // Addresses that nobody has, and an EtherType for experiments.
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xB5]);
    let mut trips = histogram();
    while end.receive() > 0 {}
    let began = Instant::now();
    let (mut done, mut idle, mut last) = (0u64, window, began);
    loop {
        if idle >= batch.min(window) {
            if window == 1 {
                last = Instant::now();
            }
            end.send(&frame, idle);
            idle = 0;
        }
        let received = end.receive();
        if received > 0 {
            let now = Instant::now();
            if window == 1 {
                trips.saturating_record(now.duration_since(last).as_nanos() as u64);
            }
            last = now;
            done += received as u64;
            idle = (idle + received).min(window);
        } else if last.elapsed() > LOST_AFTER {
            (idle, last) = (window, Instant::now());
        }
        let elapsed = began.elapsed();
        if elapsed >= duration {
            return (trips, done as f64 / elapsed.as_secs_f64() * 1e-6);
        }
    }
}

impl Drop for XdpEcho {
    fn drop(&mut self) {
        self.orders = None;
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
