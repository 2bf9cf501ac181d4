//! Frames that go over two virtual pairs, from one host to another, through a forwarder between them: all on one thread
//! and one core.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sinew::fabric::Clock;
use sinew::fabric::frames::{ETHERNET_HEADER_LEN, FramePort};
use sinew::forward::headers::{self, ether_type, ipv4, protocol};
use sinew::forward::interface::{Interface, Network};
use sinew::forward::router::{Router, RouterConfig};
use sinew::forward::{Fib, Forwarder, Outbox};
use sinew::host::HostClock;
use sinew::xdp::raw::{BareForwarder, BareSocket};
use sinew::xdp::testbed::{PairOptions, Path, PathNode, Side};
use sinew::xdp::{FrameOptions, InterfaceOptions, Mode, XdpFrames};

use super::report_open;
use crate::machine;

/// Frames that are sent, and then forwarded, together.
const BATCH: usize = 64;
/// Silence after which frames count as lost.
const LOST_AFTER: Duration = Duration::from_millis(20);
/// Bytes of the IPv4 and UDP headers before the payload.
const HEADERS_LEN: usize = 28;

/// Forwarder between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Middle {
    /// The router of `sinew forward run`, on frame ports.
    Router,
    /// Two bare sockets, which only write new Ethernet addresses.
    Bare,
    /// The kernel's own routing.
    Kernel,
}

enum Forwards {
    Router(Box<Forwarder<XdpFrames, Router>>, HostClock),
    Bare(Box<BareForwarder>),
    Kernel,
}

/// Frames that passed, in millions a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardRates {
    /// Over the whole time, that of sender and receiver included.
    pub end_to_end: f64,
    /// Over the time spent between the hosts alone; 0 for the kernel, whose work is part of the sender's call.
    pub between: f64,
}

/// Two hosts and a forwarder between them, on a thread of their own, which is idle while nothing is measured.
#[derive(Debug)]
pub struct ForwardBench {
    orders: Option<Sender<Duration>>,
    results: Receiver<anyhow::Result<ForwardRates>>,
    thread: Option<JoinHandle<()>>,
}

impl ForwardBench {
    /// Makes the hosts and the forwarder, on a processor.
    ///
    /// # Errors
    ///
    /// This user may not make pairs and open their ends.
    pub fn start(middle: Middle, frame_len: usize, cpu: Option<usize>) -> anyhow::Result<Self> {
        let (orders, order_receiver) = mpsc::channel();
        let (sender, results) = mpsc::channel();
        let (opened, is_open) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let made = machine::pin(cpu).and_then(|()| Ends::make(middle, frame_len));
            let Some(mut ends) = report_open(opened, made) else { return };
            while let Ok(duration) = order_receiver.recv() {
                if sender.send(ends.measure(duration)).is_err() {
                    return;
                }
            }
        });
        let passing = Self { orders: Some(orders), results, thread: Some(thread) };
        is_open.recv().context("a measuring thread ended")??;
        Ok(passing)
    }

    /// Passes frames for `duration`.
    ///
    /// # Errors
    ///
    /// More than one frame in a hundred was lost, or the thread has ended.
    pub fn measure(&self, duration: Duration) -> anyhow::Result<ForwardRates> {
        let asked = self.orders.as_ref().is_some_and(|ask| ask.send(duration).is_ok());
        asked.then(|| self.results.recv().ok()).flatten().context("the measuring thread ended")?
    }
}

impl Drop for ForwardBench {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Two hosts, which are bare sockets, and the forwarder between them.
struct Ends {
    path: Path,
    hosts: [BareSocket; 2],
    forwards: Forwards,
    frame: Vec<u8>,
}

/// Network of a side, with the forwarder's address in it.
fn network(side: Side) -> anyhow::Result<Network> {
    let options = PairOptions { network: side as u8, ..PairOptions::default() };
    Ok(Network::parse(&format!("{}/24", options.v4(Side::B)))?)
}

fn router() -> anyhow::Result<Forwarder<XdpFrames, Router>> {
    let interface = InterfaceOptions { zero_copy: false, ..InterfaceOptions::default() };
    let memory = XdpFrames::memory_for(Path::MIDDLE.map(|name| (name, interface)))?;
    let (mut ports, mut interfaces) = (Vec::new(), Vec::new());
    for (side, name) in Side::ALL.into_iter().zip(Path::MIDDLE) {
        let port = XdpFrames::open(name, &memory, &FrameOptions { interface, ..FrameOptions::default() })?;
        let networks = vec![network(side)?];
        interfaces.push(Interface { name: name.to_owned(), mac: port.mac(), mtu: 1500, networks });
        ports.push(port);
    }
    let fib = Fib::new(&interfaces, &[]).context("filling the tables")?;
    Ok(Forwarder::new(ports, Router::new(interfaces, fib, RouterConfig::default())?)?)
}

impl Ends {
    fn make(middle: Middle, frame_len: usize) -> anyhow::Result<Self> {
        let path = Path::new(PairOptions { addresses: middle == Middle::Kernel, ..PairOptions::default() })
            .context("making pairs of virtual interfaces")?;
        let (hosts, between) = (path.host_macs()?, path.middle_macs()?);
        let forwards = path.at(PathNode::Middle).within(|| {
            anyhow::Ok(match middle {
                Middle::Router => Forwards::Router(Box::new(router()?), HostClock::new()),
                Middle::Bare => Forwards::Bare(Box::new(BareForwarder::open(Path::MIDDLE, hosts, Mode::Auto)?)),
                Middle::Kernel => Forwards::Kernel,
            })
        })??;
        if middle == Middle::Kernel {
            path.route_in_kernel().context("having the kernel route")?;
        }
        let host = |side| path.at(PathNode::Host(side)).within(|| BareSocket::open(Path::HOST, Mode::Auto));
        let ends = [host(Side::A)??, host(Side::B)??];
        let payload = vec![0x5A; frame_len.saturating_sub(ETHERNET_HEADER_LEN + HEADERS_LEN)];
        let udp = [&[0x1B, 0x58, 0x1B, 0x58][..], &((8 + payload.len()) as u16).to_be_bytes(), &[0, 0]].concat();
        let [from, to] = Side::ALL.map(|side| path.host_v4(side));
        let ip = ipv4::header(from, to, protocol::UDP, 64, udp.len() + payload.len());
        let ethernet = headers::ethernet(between[0], hosts[0], ether_type::IPV4);
        let frame = [&ethernet[..], &ip, &udp, &payload].concat();
        Ok(Self { path, hosts: ends, forwards, frame })
    }

    fn measure(&mut self, duration: Duration) -> anyhow::Result<ForwardRates> {
        if let Forwards::Router(forwarder, clock) = &mut self.forwards {
            // Tell the router what a host with a kernel would have answered.
            let (address, mac) = (self.path.host_v4(Side::B).into(), self.path.host_macs()?[1]);
            forwarder.application_mut().learn(1, address, mac, clock.now_ns(), &mut Outbox::new());
        }
        let [sender, receiver] = &mut self.hosts;
        let (mut sent, mut received, mut between) = (0, 0, Duration::ZERO);
        let began = Instant::now();
        while began.elapsed() < duration {
            let batch = sender.send(&self.frame, BATCH);
            sent += batch;
            let turned = Instant::now();
            let mut forwarded = 0;
            while forwarded < batch {
                let count = match &mut self.forwards {
                    Forwards::Router(forwarder, clock) => forwarder.turn(clock.now_ns()),
                    Forwards::Bare(forwarder) => forwarder.turn(),
                    Forwards::Kernel => batch,
                };
                if count == 0 {
                    break;
                }
                forwarded += count;
            }
            let done = Instant::now();
            between += done - turned;
            while received < sent && done.elapsed() < LOST_AFTER {
                received += receiver.receive().0;
            }
            if received < sent {
                // Frames count as lost only once.
                ensure!(sent - received <= sent / 100, "{} of {sent} frames did not arrive", sent - received);
                sent = received;
            }
        }
        let whole = began.elapsed();
        let mops = |time: Duration| received as f64 / time.as_secs_f64() * 1e-6;
        let between = if matches!(self.forwards, Forwards::Kernel) { 0.0 } else { mops(between) };
        Ok(ForwardRates { end_to_end: mops(whole), between })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_pass_whatever_stands_between_and_an_idle_one_is_noticed() {
        for middle in [Middle::Router, Middle::Bare, Middle::Kernel] {
            let mut ends = match Ends::make(middle, 98) {
                Ok(ends) => ends,
                Err(error) => {
                    sinew_conformance::skipped(format_args!("no virtual pair can be made: {error:#}"));
                    return;
                }
            };
            let passed = ends.measure(Duration::from_millis(5)).unwrap();
            assert!(passed.end_to_end > 0.0 && (middle == Middle::Kernel || passed.between > 0.0), "{passed:?}");
            if middle == Middle::Bare {
                ends.forwards = Forwards::Kernel;
                assert!(ends.measure(Duration::from_millis(5)).is_err());
            }
        }
    }
}
