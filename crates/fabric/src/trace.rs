//! A port that shows the packets that pass.
//!
//! [`Traced`] wraps any port and hands a [`TraceRecord`] for each packet to a [`TraceSink`]: a closure, or
//! [`TextSink`], which writes lines such as
//!
//! ```text
//!      1.204500 ms  -> udp://10.0.0.2:7000       56 B  a7 01 00 00 2a 00 00 00 ...
//! ```
//!
//! If it is given a decoder, the line shows the decoder's text instead of the bytes.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;

use crate::address::Peer;
use crate::layer::{Layer, Layered, OwnedPacket, Pool};
use crate::port::{PacketPort, PacketTx, TxPacket};

/// The most bytes of a packet that a record shows.
pub const TRACED_BYTES: usize = 64;
/// The most peers whose names a layer remembers, so that strangers cannot fill the memory.
const NAMES_MAX: usize = 1024;

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Out of this port.
    Sent,
    /// Into this port.
    Received,
}

/// One packet that passed.
#[derive(Clone, Copy, Debug)]
pub struct TraceRecord<'a> {
    /// Direction of the packet.
    pub direction: Direction,
    /// Time at which its burst was received or, for a packet sent, at which the port last received, in nanoseconds.
    pub time_ns: u64,
    /// The other side.
    pub peer: Peer,
    /// Name of the other side, as its port describes it.
    pub peer_name: &'a str,
    /// The packet's length in bytes.
    pub len: usize,
    /// The packet's first bytes, at most [`TRACED_BYTES`].
    pub start: &'a [u8],
}

/// Receiver of the records of a [`Traced`] port. Closures are sinks.
pub trait TraceSink {
    /// Takes the record of a packet that passed.
    fn record(&mut self, record: &TraceRecord<'_>);
}

impl<F: FnMut(&TraceRecord<'_>)> TraceSink for F {
    fn record(&mut self, record: &TraceRecord<'_>) {
        self(record);
    }
}

/// Makes a text of a packet's first bytes, or `None` to show them as they are.
pub type Decoder = Box<dyn FnMut(&TraceRecord<'_>) -> Option<String>>;

/// A sink that writes a line for each packet.
pub struct TextSink<W> {
    writer: W,
    decoder: Option<Decoder>,
    line: String,
    error: Option<io::Error>,
}

impl<W: io::Write> TextSink<W> {
    /// A sink that writes to `writer`, a line at a time.
    pub fn new(writer: W) -> Self {
        Self { writer, decoder: None, line: String::new(), error: None }
    }

    /// Shows packets as `decoder` explains them.
    pub fn with_decoder(mut self, decoder: impl FnMut(&TraceRecord<'_>) -> Option<String> + 'static) -> Self {
        self.decoder = Some(Box::new(decoder));
        self
    }

    /// The writer.
    pub fn writer(&self) -> &W {
        &self.writer
    }

    /// The error that ended the writing, if there was one. Tracing never disturbs the port.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }
}

impl<W: io::Write> TraceSink for TextSink<W> {
    fn record(&mut self, record: &TraceRecord<'_>) {
        if self.error.is_some() {
            return;
        }
        self.line.clear();
        let arrow = match record.direction {
            Direction::Sent => "->",
            Direction::Received => "<-",
        };
        let (ms, ns) = (record.time_ns / 1_000_000, record.time_ns % 1_000_000);
        let name = record.peer_name;
        let written = write!(self.line, "{ms:>9}.{ns:06} ms  {arrow} {name:<24} {:>6} B ", record.len);
        // Writing to a String cannot fail.
        debug_assert!(written.is_ok());
        if let Some(text) = self.decoder.as_mut().and_then(|decode| decode(record)) {
            self.line.push(' ');
            self.line.push_str(&text);
        } else {
            let shown = record.start.len().min(24);
            for &byte in &record.start[..shown] {
                // By hand, since formatting each byte would be most of a trace's cost.
                let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value & 15)]);
                self.line.extend([' ', digit(byte >> 4), digit(byte)]);
            }
            if shown < record.len {
                self.line.push_str(" ...");
            }
        }
        self.line.push('\n');
        self.error = self.writer.write_all(self.line.as_bytes()).err();
    }
}

/// A port that shows the packets that pass; see the [module](self).
pub type Traced<P, S> = Layered<P, TraceLayer<S>>;

impl<P: PacketPort, S: TraceSink> Layered<P, TraceLayer<S>> {
    /// Wraps `port`.
    pub fn new(port: P, sink: S) -> Self {
        Self::wrap_unchecked(port, TraceLayer { sink, names: HashMap::new() })
    }

    /// Gives access to the sink.
    pub fn with_sink<R>(&self, look: impl FnOnce(&mut S) -> R) -> R {
        self.with_layer(|layer| look(&mut layer.sink))
    }
}

/// The layer of a [`Traced`] port.
pub struct TraceLayer<S> {
    sink: S,
    names: HashMap<Peer, String>,
}

impl<S: TraceSink> TraceLayer<S> {
    fn record(&mut self, direction: Direction, time_ns: u64, peer: Peer, len: usize, start: &[u8]) {
        let peer_name = self.names.get(&peer).map_or("?", String::as_str);
        self.sink.record(&TraceRecord { direction, time_ns, peer, peer_name, len, start });
    }
}

impl<S: TraceSink> Layer for TraceLayer<S> {
    fn meet(&mut self, peer: Peer, describe: &mut dyn FnMut() -> String) {
        if self.names.contains_key(&peer) {
            return;
        }
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(peer, describe());
    }

    /// A port may later give the peer's name to another peer.
    fn forgotten(&mut self, peer: Peer) {
        self.names.remove(&peer);
    }

    fn push(&mut self, packet: TxPacket<'_>, now_ns: u64, tx: &mut dyn PacketTx, _pool: &mut Pool) {
        let mut start = [0; TRACED_BYTES];
        let mut filled = 0;
        for part in [packet.head, packet.data.as_slice()] {
            let taken = part.len().min(TRACED_BYTES - filled);
            start[filled..filled + taken].copy_from_slice(&part[..taken]);
            filled += taken;
        }
        self.record(Direction::Sent, now_ns, packet.to, packet.len(), &start[..filled]);
        tx.push(packet);
    }

    fn receive(&mut self, packet: OwnedPacket, now_ns: u64, ready: &mut VecDeque<OwnedPacket>, _pool: &mut Pool) {
        let shown = packet.bytes.len().min(TRACED_BYTES);
        self.record(Direction::Received, now_ns, packet.peer, packet.bytes.len(), &packet.bytes[..shown]);
        ready.push_back(packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::Network;
    use crate::port::{PacketRx, RxBurst, TxData};
    use crate::time::ManualClock;

    fn exchange(sink: TextSink<Vec<u8>>) -> String {
        let network = Network::new(ManualClock::new());
        let mut traced = Traced::new(network.port("alice").unwrap(), sink);
        let mut bob = network.port("bob").unwrap();
        let to = traced.resolve(&bob.address()).unwrap();
        traced.split().0.receive(&mut RxBurst::new(1_204_500));
        traced.split().1.push(TxPacket { to, head: &[0xA7, 1], data: TxData::Bytes(&[7; 100]) });
        traced.split().1.submit();
        bob.split().1.push(TxPacket { to: network.peer("alice").unwrap(), head: b"hi", data: TxData::None });
        bob.split().1.submit();
        traced.split().0.receive(&mut RxBurst::new(2_000_000));
        traced.with_sink(|sink| String::from_utf8(sink.writer().clone()).unwrap())
    }

    #[test]
    fn lines_show_time_direction_peer_length_and_first_bytes() {
        let text = exchange(TextSink::new(Vec::new()));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("        1.204500 ms  -> loopback://bob "), "{text}");
        assert!(lines[0].contains("102 B  a7 01 07 07") && lines[0].ends_with("07 ..."), "{text}");
        assert!(lines[1].contains("2.000000 ms  <- loopback://bob") && lines[1].ends_with("2 B  68 69"), "{text}");
    }

    #[test]
    fn a_decoder_explains_the_packets_that_it_knows() {
        let sink = TextSink::new(Vec::new())
            .with_decoder(|record| (record.start[0] == 0xA7).then(|| format!("request {}", record.start[1])));
        let text = exchange(sink);
        assert!(text.lines().next().unwrap().ends_with("102 B  request 1"), "{text}");
        assert!(text.lines().nth(1).unwrap().ends_with("68 69"), "{text}");
    }

    #[test]
    fn a_failing_writer_ends_the_trace_and_not_the_traffic() {
        struct Broken;
        impl io::Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let network = Network::new(ManualClock::new());
        let mut traced = Traced::new(network.port("a").unwrap(), TextSink::new(Broken));
        for _ in 0..2 {
            network.inject("a", Network::stranger(1), b"x");
            let mut burst = RxBurst::new(0);
            traced.split().0.receive(&mut burst);
            assert_eq!(burst.packets.len(), 1);
        }
        assert!(traced.with_sink(|sink| sink.error().is_some()));
    }

    #[test]
    fn a_forgotten_peer_is_asked_for_its_name_anew() {
        let network = Network::new(ManualClock::new());
        let mut traced = Traced::new(network.port("a").unwrap(), |_: &TraceRecord<'_>| {});
        let to = network.port("b").unwrap().peer();
        for names in [1, 0, 1] {
            match names {
                0 => traced.forget(to),
                _ => traced.split().1.push(TxPacket { to, head: b"x", data: TxData::None }),
            }
            assert_eq!(traced.with_layer(|layer| layer.names.len()), names);
        }
    }

    #[test]
    fn closures_are_sinks_and_strangers_do_not_fill_the_memory() {
        let network = Network::new(ManualClock::new());
        let mut seen = 0;
        let mut traced = Traced::new(network.port("a").unwrap(), |_: &TraceRecord<'_>| seen += 1);
        for number in 0..3000 {
            network.inject("a", Network::stranger(number), b"x");
            traced.split().0.receive(&mut RxBurst::new(0));
        }
        assert!(traced.with_layer(|layer| layer.names.len()) <= NAMES_MAX);
        drop(traced);
        assert_eq!(seen, 3000);
    }
}
