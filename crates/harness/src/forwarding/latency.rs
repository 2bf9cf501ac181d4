//! Latency of frames through an application on another core (nsdi15 4.5): they go over cables in shared memory at a
//! given rate, and are stamped with the time when they were due.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use sinew::fabric::frames::cable::Cable;
use sinew::fabric::frames::{FrameBurst, FramePort, FrameRx, FrameTx, LentFrame, MacAddress};
use sinew::fabric::{MAX_BURST, PacketPort};
use sinew::forward::{Application, Fate, Form, Forwarder};
use sinew::shm::{Hub, ShmPort};

use super::Pipeline;
use super::loads::PORTS;
use crate::machine::{Idle, Pair, two_threads};
use crate::{histogram, units};

/// Frames in flight when as many as possible are sent.
const WINDOW: u64 = 256;
/// Most frames in flight at any rate, if the rings hold as many.
const IN_FLIGHT_MAX: u64 = 512;
/// Time since the last arrival after which the remaining frames count as lost. It is long, since the other thread may
/// wait for its processor.
const LOST_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for the links.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to wait for a burst before there are links.
const PAUSE: Duration = Duration::from_millis(5);
/// Time without arrivals after which nothing is in flight.
const QUIET: Duration = Duration::from_millis(100);
/// Bits of a stamp that hold a time; the frame's number is above them.
const TIME_BITS: u32 = 40;
const STAMP_LEN: usize = 8;
/// Stamp of frames that only establish links, and may go anywhere.
const HELLO: u64 = u64::MAX;

/// Result at one rate.
#[derive(Clone, Debug)]
pub struct AtLoad {
    /// Millions of frames a second that came back.
    pub mops: f64,
    /// Nanoseconds from when each frame was due to when it was back.
    pub trips: Histogram<u64>,
}

/// The highest rate, and round trips at parts of it.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// Result with as many frames in flight as make sense.
    pub peak: AtLoad,
    /// Result at each requested part.
    pub at: Vec<AtLoad>,
}

struct Client<'a> {
    cables: Vec<Cable<ShmPort>>,
    frame: Vec<u8>,
    at: usize,
    len: usize,
    differences: &'a [u8],
    expected: &'a [Fate],
    next: usize,
    began: Instant,
    sent: u64,
    received: u64,
    stray: u64,
    /// A bit for each port from which a frame came.
    ports: u64,
    trips: Histogram<u64>,
}

fn mac(end: u8, port: u16) -> MacAddress {
    MacAddress([2, end, 0, 0, 0, port as u8])
}

impl Client<'_> {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Sends `count` frames, the `nth` of which is due at `due_ns(nth)`.
    fn send(&mut self, count: u64, due_ns: impl Fn(u64) -> u64) {
        let (_, tx) = self.cables[0].split();
        for _ in 0..count {
            let index = self.next;
            self.next = (index + 1) % self.expected.len();
            let difference = &self.differences[index * self.len..][..self.len];
            self.frame[self.at..self.at + self.len].copy_from_slice(difference);
            let stamp = (index as u64) << TIME_BITS | due_ns(self.sent) & ((1 << TIME_BITS) - 1);
            tx.push(&self.frame, &stamp.to_le_bytes());
            self.sent += 1;
        }
        tx.submit();
    }

    /// Takes the frames that have arrived. Returns whether there were any.
    fn receive(&mut self) -> bool {
        let now_ns = self.now_ns();
        let before = self.received;
        for (port, cable) in (0..).zip(&mut self.cables) {
            let mut burst = FrameBurst::new(now_ns);
            cable.split().0.receive(&mut burst);
            for frame in &burst.frames {
                let stamp = frame.bytes().last_chunk::<STAMP_LEN>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                let (index, due_ns) = ((stamp >> TIME_BITS) as usize, stamp & ((1 << TIME_BITS) - 1));
                if self.expected.get(index) == Some(&Fate::Forward(port)) {
                    self.received += 1;
                    self.ports |= 1 << port;
                    self.trips.saturating_record(now_ns.saturating_sub(due_ns).max(1));
                } else if stamp != HELLO {
                    self.stray += 1;
                }
            }
        }
        self.received > before
    }

    fn wait_for_all(&mut self) {
        let mut last = Instant::now();
        while self.received < self.sent && last.elapsed() < LOST_TIMEOUT {
            if self.receive() {
                last = Instant::now();
            }
        }
    }

    /// Makes the links: the other end of a cable is the port that first sends a frame over it. They exist once frames
    /// have come from all ports.
    fn begin(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.ports.count_ones() < self.cables.len() as u32 {
            ensure!(self.stray == 0, "{} did not go where they should", units::counted(self.stray, "frame"));
            ensure!(began.elapsed() < START_TIMEOUT, "no frames come back, or not from all ports");
            for cable in &mut self.cables {
                let (_, tx) = cable.split();
                tx.push(&self.frame, &HELLO.to_le_bytes());
                tx.submit();
            }
            self.send(MAX_BURST as u64, |_| 0);
            let sent = Instant::now();
            while sent.elapsed() < PAUSE {
                self.receive();
            }
        }
        // Frames that are still in flight must not count in the measurement.
        let mut last = Instant::now();
        while last.elapsed() < QUIET {
            if self.receive() {
                last = Instant::now();
            }
        }
        Ok(())
    }

    /// Sends at `rate` frames a second, or as fast as possible, and takes what arrives.
    fn load(&mut self, rate: Option<f64>, duration: Duration, idle: Idle) -> anyhow::Result<AtLoad> {
        (self.sent, self.received, self.stray, self.trips, self.began) = (0, 0, 0, histogram(), Instant::now());
        let held = self.cables.iter().map(|cable| cable.caps().receive_frames as u64).min().unwrap_or(0);
        let window = if rate.is_some() { IN_FLIGHT_MAX } else { WINDOW }.min(held.max(MAX_BURST as u64));
        loop {
            let now_ns = self.now_ns();
            if now_ns >= duration.as_nanos() as u64 {
                break;
            }
            let due = rate.map_or(u64::MAX, |rate| (now_ns as f64 * rate * 1e-9) as u64);
            let room = window.saturating_sub(self.sent.saturating_sub(self.received));
            let count = due.saturating_sub(self.sent).min(room).min(MAX_BURST as u64);
            // Without a rate nobody waits for the next frame, so bursts are whole.
            if count > 0 && (rate.is_some() || count == MAX_BURST as u64) {
                self.send(count, |nth| rate.map_or(now_ns, |rate| (nth as f64 / rate * 1e9) as u64));
            }
            if !self.receive() {
                idle.pass();
            }
        }
        let mops = self.received as f64 / self.began.elapsed().as_secs_f64() * 1e-6;
        self.wait_for_all();
        let (sent, received, stray) = (self.sent, self.received, self.stray);
        ensure!(stray == 0, "{stray} of {sent} frames did not go where they should");
        let lost = sent.saturating_sub(received);
        ensure!(lost <= sent / 100, "{lost} of {sent} frames did not come back");
        Ok(AtLoad { mops, trips: self.trips.clone() })
    }
}

impl<A: Application + Send> Pipeline<A> {
    /// Measures with the client on the first of two processors, and the application, which forwards the client's
    /// frames, on the second: first at the highest rate, then at each of `parts` of it, each for `duration`.
    ///
    /// # Errors
    ///
    /// A frame did not go where it should; one in a hundred was lost; there is no memory for the cables; there are no
    /// such processors.
    pub fn latencies(self, cpus: Pair, form: Form, parts: &[f64], duration: Duration) -> anyhow::Result<Latencies> {
        let Self { mut application, template, at, len, differences, expected, .. } = self;
        application.set_form(form);
        let (hub, idle) = (Hub::new(), Idle::new());
        let open = |end: &str| (0..PORTS).map(|port| hub.port(&format!("{end}{port}"))).collect::<Result<Vec<_>, _>>();
        let (here, there) = (open("client").context("opening cables")?, open("forwarder").context("opening cables")?);
        let addresses: Vec<_> = there.iter().map(PacketPort::address).collect();
        let measure = || {
            let cables = (0..).zip(here).zip(&addresses).map(|((port, end), to)| Cable::to(end, to, mac(1, port)));
            let mut client = Client {
                cables: cables.collect::<Result<_, _>>()?,
                frame: template,
                at,
                len,
                differences: &differences,
                expected: &expected,
                next: 0,
                began: Instant::now(),
                sent: 0,
                received: 0,
                stray: 0,
                ports: 0,
                trips: histogram(),
            };
            client.begin()?;
            let peak = client.load(None, duration, idle)?;
            let at = parts.iter().map(|part| client.load(Some(part * peak.mops * 1e6), duration, idle));
            let at = at.collect::<anyhow::Result<_>>()?;
            anyhow::Ok(Latencies { peak, at })
        };
        let forward = |stop: &AtomicBool| {
            let cables = (0..).zip(there).map(|(port, end)| Cable::to_first_sender(end, mac(2, port))).collect();
            let (mut forwarder, began) = (Forwarder::new(cables, application)?, Instant::now());
            while !stop.load(Ordering::Relaxed) {
                if forwarder.turn(began.elapsed().as_nanos() as u64) == 0 {
                    idle.pass();
                }
            }
            anyhow::Ok(())
        };
        let (measured, forwarded) = two_threads(cpus, measure, forward)?;
        // If the forwarder failed, that is why the client did.
        forwarded.and(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{echo, ipv6};
    use super::*;

    #[test]
    fn frames_come_back_at_every_rate_and_those_that_go_astray_are_noticed() {
        const SHORT: Duration = Duration::from_millis(20);
        for part in [0.1, 0.5] {
            let found = echo(1000).unwrap().latencies(None, Form::default(), &[part], SHORT).unwrap();
            assert!(found.peak.mops > 0.0 && found.at[0].mops < found.peak.mops * 0.8 && !found.at[0].trips.is_empty());
        }
        let found = ipv6(100, 1000).unwrap().latencies(None, Form::Plain, &[], SHORT).unwrap();
        assert!(found.at.is_empty() && found.peak.mops > 0.0);
        let mut wrong = echo(1000).unwrap();
        wrong.expected.iter_mut().for_each(|fate| *fate = Fate::Drop);
        assert!(wrong.latencies(None, Form::Plain, &[], SHORT).unwrap_err().to_string().contains("did not go where"));
    }
}
