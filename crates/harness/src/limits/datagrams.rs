//! Datagrams between two bare queue pairs of an RDMA device, each on a thread of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use sinew::fabric::verbs::Device;
use sinew::fabric::{Address, Clock, PacketPort, PacketRx, PacketTx, Peer, RxBurst, TxData, TxPacket};
use sinew::host::HostClock;
use sinew::ibverbs::{IbDevice, IbOptions};

use crate::histogram;
use crate::machine::{Idle, Pair, two_threads};

/// Polls between readings of the clock.
const POLLS_PER_LOOK: u64 = 64;
/// Silence after which datagrams in flight are lost, in ns.
const LOST_NS: u64 = 1_000_000_000;
/// Options of the ports, which need no room for long messages: receives, and bytes of the arena.
const RECEIVES: &str = "1024";
const ARENA_BYTES: &str = "33554432";

/// Echoes to measure.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams<'a> {
    /// Processors of client and server.
    pub cpus: Pair,
    /// Options of the fabric's addresses, such as `?device=rxe0`.
    pub options: &'a str,
    /// Length of a request, and of its answer, in bytes.
    pub lens: [usize; 2],
    /// Requests in flight.
    pub window: usize,
    /// Requests sent together.
    pub batch: usize,
}

/// Length of the longest datagram, in bytes.
pub fn datagram_len_max(options: &str) -> anyhow::Result<usize> {
    let options = IbOptions::of(&address(options)?)?;
    Ok(IbDevice::open(&options.device)?.attributes().mtu)
}

fn address(options: &str) -> anyhow::Result<Address> {
    let address: Address = format!("ibverbs://{options}").parse()?;
    Ok(address.with_option("receives", RECEIVES).with_option("arena", ARENA_BYTES))
}

impl Datagrams<'_> {
    /// Measures for `duration`. Returns the latency of each echo in ns, if one was in flight at a time, and millions of
    /// echoes a second.
    pub fn measure(&self, duration: Duration) -> anyhow::Result<(Histogram<u64>, f64)> {
        let (address_sender, address_receiver) = mpsc::channel();
        let client = move || {
            let to: Address = address_receiver.recv().context("there is no server for the limit")?;
            self.ask(&to, duration)
        };
        let server = move |stop: &AtomicBool| self.answer(address_sender, stop);
        let (measured, served) = two_threads(self.cpus, client, server)?;
        // If the server failed, that is why the client did.
        served.and(measured)
    }

    fn answer(&self, address_sender: mpsc::Sender<Address>, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut port = sinew::ibverbs_port(&address(self.options)?)?;
        address_sender.send(port.address()).context("there is no client for the limit")?;
        let (idle, answer) = (Idle::new(), vec![0xA5; self.lens[1]]);
        while !stop.load(Ordering::Relaxed) {
            let (rx, tx) = port.split();
            let mut burst = RxBurst::new(0);
            rx.receive(&mut burst);
            for packet in &burst.packets {
                tx.push(TxPacket { to: packet.from, head: &answer, data: TxData::None });
            }
            tx.submit();
            if burst.packets.is_empty() {
                idle.pass();
            }
        }
        Ok(())
    }

    fn ask(&self, server: &Address, duration: Duration) -> anyhow::Result<(Histogram<u64>, f64)> {
        let mut port = sinew::ibverbs_port(&address(self.options)?)?;
        let to: Peer = port.resolve(server)?;
        let (idle, clock, request) = (Idle::new(), HostClock::new(), vec![0xA5; self.lens[0]]);
        let window = self.window.min(port.caps().receive_packets);
        let batch = self.batch.min(window);
        let (mut trips, mut polls, mut in_flight, mut returned) = (histogram(), 0u64, 0, 0u64);
        let began_ns = clock.now_ns();
        let (mut now_ns, mut sent_ns, mut heard_ns) = (began_ns, began_ns, began_ns);
        while now_ns - began_ns < duration.as_nanos() as u64 {
            let (rx, tx) = port.split();
            if in_flight + batch <= window {
                for _ in 0..batch {
                    tx.push(TxPacket { to, head: &request, data: TxData::None });
                }
                tx.submit();
                in_flight += batch;
                sent_ns = now_ns;
            }
            let mut burst = RxBurst::new(now_ns);
            rx.receive(&mut burst);
            let back = burst.packets.len();
            polls += 1;
            // With one in flight each echo is timed; with many, only their number counts.
            if polls.is_multiple_of(POLLS_PER_LOOK) || (window == 1 && back > 0) {
                now_ns = clock.now_ns();
            }
            if back == 0 {
                idle.pass();
                if now_ns.saturating_sub(heard_ns) > LOST_NS {
                    (in_flight, heard_ns) = (0, now_ns);
                }
                continue;
            }
            heard_ns = now_ns;
            in_flight = in_flight.saturating_sub(back);
            returned += back as u64;
            if window == 1 {
                trips.saturating_record(now_ns - sent_ns);
            }
        }
        Ok((trips, returned as f64 * 1e3 / (now_ns - began_ns) as f64))
    }
}
