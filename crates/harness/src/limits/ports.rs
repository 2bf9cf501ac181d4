//! Messages that are too long for a ring's packets, between two bare ports of shared memory. A packet is a descriptor
//! in a ring, and its receiver copies the bytes from the sender's memory. Their contents are not checked.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use sinew::fabric::{Clock, PacketPort, PacketRx, PacketTx, Peer, RxBurst, TxData, TxPacket};
use sinew::host::HostClock;
use sinew::mem::{Arena, Frozen, MessageBuffer};
use sinew::shm::{Hub, ShmPort};

use super::HEADER_LEN;
use crate::histogram;
use crate::machine::{Idle, Pair, two_threads};

/// Most bytes that one side's messages take together: more than its caches hold.
const MESSAGES_BYTES: usize = 64 << 20;
/// Polls between readings of the clock.
const POLLS_PER_LOOK: u64 = 64;
/// Time after which an answer will not come any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// A port, and the message that it is receiving.
struct End {
    port: ShmPort,
    /// Bytes of a packet after its header.
    data_per_packet: usize,
    message: MessageBuffer,
    filled: usize,
    clock: HostClock,
    now_ns: u64,
    polls: u64,
}

impl End {
    fn new(port: ShmPort, len: usize) -> anyhow::Result<Self> {
        let clock = HostClock::new();
        Ok(Self {
            data_per_packet: port.caps().packet_len_max - HEADER_LEN,
            message: message(port.arena(), len)?,
            filled: 0,
            now_ns: clock.now_ns(),
            clock,
            polls: 0,
            port,
        })
    }

    /// Pushes a message, to be sent with the next submit.
    fn push(&mut self, to: Peer, message: &Frozen) {
        let (_, tx) = self.port.split();
        for start in (0..message.len()).step_by(self.data_per_packet) {
            let len = self.data_per_packet.min(message.len() - start);
            let data = TxData::Frozen { buffer: message, start, len };
            tx.push(TxPacket { to, head: &[0; HEADER_LEN], data });
        }
    }

    fn submit(&mut self) {
        self.port.split().1.submit();
    }

    /// Takes the packets that have arrived. `done` is given each message's sender and the message, and may swap in
    /// another buffer. Returns the number of messages.
    fn receive(
        &mut self,
        mut done: impl FnMut(Peer, &mut MessageBuffer) -> anyhow::Result<()>,
    ) -> anyhow::Result<usize> {
        self.polls += 1;
        if self.polls.is_multiple_of(POLLS_PER_LOOK) {
            self.now_ns = self.clock.now_ns();
        }
        let mut burst = RxBurst::new(self.now_ns);
        self.port.split().0.receive(&mut burst);
        let mut messages = 0;
        for packet in &burst.packets {
            let end = self.filled + packet.len() - HEADER_LEN;
            let target = &mut self.message[self.filled..end];
            match packet.tail {
                Some(tail) => tail.copy_to(target)?,
                None => target.copy_from_slice(&packet.head[HEADER_LEN..]),
            }
            self.filled = end;
            if end == self.message.len() {
                done(packet.from, &mut self.message)?;
                self.filled = 0;
                messages += 1;
            }
        }
        Ok(messages)
    }
}

fn message(arena: &Arena, len: usize) -> anyhow::Result<MessageBuffer> {
    let mut message = arena.alloc(len, len).context("a message for the limit")?;
    message.fill(&vec![0xA5; len])?;
    Ok(message)
}

/// Sends back every message until the flag is set.
fn serve(mut end: End, stop: &AtomicBool) -> anyhow::Result<()> {
    let (idle, arena, len) = (Idle::new(), end.port.arena().clone(), end.message.len());
    let mut answers = Vec::new();
    // Answers in the order in which the client copies them; copied ones can be reused, oldest first.
    let mut sent: VecDeque<Frozen> = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let messages = end.receive(|from, message_here| {
            let spare = match sent.pop_front().map(Frozen::thaw) {
                Some(Ok(free)) => free,
                Some(Err(held)) => {
                    sent.push_front(held);
                    message(&arena, len)?
                }
                None => message(&arena, len)?,
            };
            answers.push((from, std::mem::replace(message_here, spare).freeze()));
            Ok(())
        })?;
        for (to, answer) in answers.drain(..) {
            end.push(to, &answer);
            sent.push_back(answer);
        }
        end.submit();
        if messages == 0 {
            idle.pass();
        }
    }
    Ok(())
}

/// The side that asks, with more messages than its nearest cache holds.
struct Client {
    end: End,
    to: Peer,
    requests: VecDeque<Frozen>,
    responses: VecDeque<MessageBuffer>,
    idle: Idle,
}

impl Client {
    fn push(&mut self) {
        self.requests.rotate_left(1);
        self.end.push(self.to, &self.requests[0]);
    }

    fn receive(&mut self) -> anyhow::Result<usize> {
        let messages = self.end.receive(|_, message| {
            if let Some(next) = self.responses.pop_front() {
                self.responses.push_back(std::mem::replace(message, next));
            }
            Ok(())
        })?;
        if messages == 0 {
            self.idle.pass();
        }
        Ok(messages)
    }

    fn round_trip(&mut self) -> anyhow::Result<()> {
        let began_ns = self.end.now_ns;
        self.push();
        self.end.submit();
        while self.receive()? == 0 {
            ensure!(self.end.now_ns - began_ns < PATIENCE.as_nanos() as u64, "no answer between two bare ports");
        }
        Ok(())
    }
}

/// Runs `measure` on one thread, and its server on another. The first message, which makes the link, has already come
/// back.
fn with_server<T: Send>(
    cpus: Pair,
    len: usize,
    window: usize,
    measure: impl FnOnce(&mut Client) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let hub = Hub::new();
    let (server, mut port) = (hub.port("limit")?, hub.port("")?);
    let to = port.resolve(&server.address())?;
    let messages = window.min(MESSAGES_BYTES / len).max(1);
    let fresh = |_| message(port.arena(), len);
    let requests = (0..messages).map(fresh).map(|message| message.map(MessageBuffer::freeze));
    let requests = requests.collect::<anyhow::Result<_>>()?;
    let responses = (0..messages).map(fresh).collect::<anyhow::Result<_>>()?;
    let mut client = Client { end: End::new(port, len)?, to, requests, responses, idle: Idle::new() };
    let server = End::new(server, len)?;
    // The client outlives its server, which may still be copying messages that the client would reclaim.
    let first = || {
        client.round_trip()?;
        measure(&mut client)
    };
    let (measured, served) = two_threads(cpus, first, |stop| serve(server, stop))?;
    // If the server failed, that is why the client did.
    served.and(measured)
}

/// Round trips of one message of `len` bytes.
pub fn round_trips(cpus: Pair, len: usize, duration: Duration) -> anyhow::Result<Histogram<u64>> {
    with_server(cpus, len, 1, |client| {
        let mut trips = histogram();
        let began = Instant::now();
        let mut now = began;
        while now - began < duration {
            client.round_trip()?;
            let done = Instant::now();
            trips.saturating_record((done - now).as_nanos() as u64);
            now = done;
        }
        Ok(trips)
    })
}

/// Messages that go to another thread and come back, `window` in flight (or as many as the rings hold), sent `batch` at
/// a time, in millions a second.
pub fn echo_mops(cpus: Pair, len: usize, window: usize, batch: usize, duration: Duration) -> anyhow::Result<f64> {
    with_server(cpus, len, window, |client| {
        let packets = len.div_ceil(client.end.data_per_packet);
        let window = (client.end.port.caps().receive_packets_per_peer / packets).clamp(1, window);
        let batch = batch.min(window);
        let (mut in_flight, mut returned) = (0, 0);
        let began = Instant::now();
        loop {
            if in_flight + batch <= window {
                (0..batch).for_each(|_| client.push());
                client.end.submit();
                in_flight += batch;
            }
            let messages = client.receive()?;
            in_flight -= messages;
            returned += messages;
            if client.end.polls.is_multiple_of(POLLS_PER_LOOK) && began.elapsed() >= duration {
                return Ok(returned as f64 / began.elapsed().as_nanos() as f64 * 1e3);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // A single test, since its threads spin.
    #[test]
    fn messages_of_one_packet_and_of_many_come_back_whole() {
        const SHORT: Duration = Duration::from_millis(20);
        for (len, packets) in [(HEADER_LEN, 1), (225, 1), (32 << 10, 2), (1 << 20, 33)] {
            let received = with_server(None, len, 1, |client| {
                (0..3).try_for_each(|_| client.round_trip())?;
                Ok(client.end.port.stats())
            })
            .unwrap();
            // The first message made the link.
            assert_eq!(received.rx_bytes, 4 * (len + packets * HEADER_LEN) as u64, "{len}");
        }
        assert!(!round_trips(None, 4096, SHORT).unwrap().is_empty());
        // The last two windows are more packets than a ring holds.
        for (len, window, batch) in [(300, 60, 3), (300, 5_000, 5_000), (1 << 20, 100, 100)] {
            assert!(echo_mops(None, len, window, batch, 5 * SHORT).unwrap() > 0.0, "{len} {window}");
        }
    }
}
