//! The limit of Spec-S0: datagrams without data, echoed by a thread that does nothing else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use sinew::fabric::verbs::{
    Completion, CompletionQueue, Destination, Device, Operation, ProtectionDomain, QpAddress, QpConfig, QueuePair,
    Request, Scatter, Source, ThreadDomain, Transport,
};

use sinew_harness::load::verbs::{Cq, Qp, Thread};
use sinew_harness::machine::{Pair, two_threads};

/// Completions taken, and answers sent, at a time.
const BURST: usize = 64;
/// Signaling interval: one message in this many is signaled.
const SIGNAL_EVERY: usize = 64;
/// Turns between readings of the clock.
const TURNS_PER_LOOK: u32 = 64;

/// One side: a queue pair whose messages have no data.
struct End<D: Device> {
    qp: Qp<D>,
    sends: Cq<D>,
    receives: Cq<D>,
    thread: Thread<D>,
    completions: Vec<Completion>,
    depth: usize,
    in_flight: usize,
    pushed: usize,
}

impl<D: Device> End<D> {
    fn new(device: &D, window: usize) -> anyhow::Result<Self> {
        let thread = device.protection_domain()?.thread()?;
        let depth = window + 2 * SIGNAL_EVERY;
        let (sends, receives) = (thread.completion_queue(depth)?, thread.completion_queue(window)?);
        let config =
            QpConfig { send_depth: depth, receive_depth: window, inline_max: 0, ..QpConfig::new(Transport::Ud) };
        let mut qp = thread.queue_pair(&config, &sends, &receives)?;
        qp.connect(None)?;
        let completions = Vec::with_capacity(BURST);
        let mut end = Self { qp, sends, receives, thread, completions, depth, in_flight: 0, pushed: 0 };
        (0..window).try_for_each(|_| end.post())?;
        Ok(end)
    }

    #[inline]
    fn post(&mut self) -> anyhow::Result<()> {
        self.qp.post_receive(0, Scatter::new()).map_err(|refused| anyhow!("posting a receive: {refused}"))
    }

    #[inline]
    fn push(&mut self, immediate: u32, to: Destination) -> anyhow::Result<()> {
        while self.in_flight == self.depth {
            for _ in 0..self.sends.poll(&mut self.completions, BURST) {
                self.in_flight -= SIGNAL_EVERY;
            }
            // No receive is among them: this is called when all have been taken out.
            self.completions.clear();
        }
        let operation = Operation::Send { source: Source::Empty, immediate: Some(immediate), to: Some(to) };
        let mut request = Request::new(0, operation);
        self.pushed += 1;
        self.in_flight += 1;
        request.signaled = self.pushed.is_multiple_of(SIGNAL_EVERY);
        self.qp.push(request).map_err(|refused| anyhow!("sending: {refused}"))
    }
}

/// Echoes datagrams without data between two threads, `window` in flight. Returns millions of round trips a second.
pub fn header_only_echo_mops<D: Device>(
    device: &D,
    cpus: Pair,
    window: usize,
    duration: Duration,
) -> anyhow::Result<f64> {
    let (sender, receiver) = mpsc::sync_channel::<QpAddress>(1);
    let first = move || -> anyhow::Result<f64> {
        let server = receiver.recv_timeout(Duration::from_secs(5)).context("the echoing thread did not start")?;
        let mut end = End::new(device, window)?;
        let to = end.thread.destination(&server)?;
        let (began, mut sent, mut came, mut turns) = (Instant::now(), 0u32, 0u32, 0u32);
        for _ in 0..window {
            end.push(sent, to)?;
            sent = sent.wrapping_add(1);
        }
        end.qp.doorbell();
        loop {
            let found = end.receives.poll(&mut end.completions, BURST);
            for completion in end.completions.drain(..) {
                ensure!(completion.immediate == Some(came), "an echo was lost, or came out of order");
                came = came.wrapping_add(1);
            }
            for _ in 0..found {
                end.post()?;
                end.push(sent, to)?;
                sent = sent.wrapping_add(1);
            }
            end.qp.doorbell();
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_PER_LOOK) {
                let elapsed = began.elapsed();
                if elapsed >= duration {
                    return Ok(f64::from(came) / elapsed.as_secs_f64() / 1e6);
                }
            }
        }
    };
    let second = |stop: &AtomicBool| -> anyhow::Result<()> {
        let mut end = End::new(device, window)?;
        let _ = sender.send(end.qp.address());
        let mut asked = Vec::with_capacity(BURST);
        while !stop.load(Ordering::Relaxed) {
            if end.receives.poll(&mut end.completions, BURST) == 0 {
                continue;
            }
            asked.extend(end.completions.drain(..).map(|completion| (completion.immediate, completion.from)));
            for (immediate, from) in asked.drain(..) {
                let (Some(immediate), Some(from)) = (immediate, from) else { continue };
                end.post()?;
                end.push(immediate, from)?;
            }
            end.qp.doorbell();
        }
        Ok(())
    };
    let (figure, echoed) = two_threads(cpus, first, second)?;
    echoed.and(figure)
}
