//! Plan of a measurement, which both sides must know.

use anyhow::{bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use sinew::fabric::verbs::Transport;

use super::message::{Exchange, Layout, SHORT};

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Messages into buffers that the server posts
    Send,
    /// Data into the server's memory
    Write,
    /// Data into the server's memory, with an immediate, which takes a receive that the server posts and so notifies it
    WriteImm,
    /// Data out of the server's memory
    Read,
    /// An addition to an 8-byte word of the server
    FetchAdd,
    /// A swap of an 8-byte word of the server
    CompareSwap,
}

/// Verbs by which a message goes to the server and comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum EchoForm {
    /// WRITE there, WRITE back
    Ww,
    /// WRITE there, SEND back
    Ws,
    /// SEND there, SEND back
    Ss,
    /// WRITE with immediate there, WRITE with immediate back
    Imm,
}

/// Transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TransportKind {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagram
    Ud,
}

impl TransportKind {
    /// The transport in the terms of the verbs traits.
    pub fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
        }
    }
}

/// Way in which a thread waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Polls without pause
    Poll,
    /// Sleeps until the completion queue wakes it
    Events,
    /// Polls for some 50 us, then sleeps
    Adaptive,
}

/// Two kinds of messages in a random order, and their lengths in bytes. Messages to the server have lengths that are
/// multiples of 8, and no length is under 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EchoMix {
    /// Lengths of the first kind, there and back.
    pub first: [usize; 2],
    /// Lengths of the second kind.
    pub second: [usize; 2],
    /// Messages of the second kind among [`Self::PARTS`].
    pub second_parts: u32,
}

impl EchoMix {
    /// All messages.
    pub const PARTS: u32 = 1 << 16;

    /// Kind of the `nth` message of a link: 0 is the first, and 1 the second.
    #[inline(always)]
    pub fn kind(&self, nth: u64) -> usize {
        // Both sides draw it anew for each message: the finalizer of splitmix64, in part.
        let product = (nth ^ nth >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let product = (product ^ product >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::from(((product >> 48) as u32) < self.second_parts)
    }

    /// Lengths of the messages there, by kind.
    #[inline(always)]
    pub fn there(&self) -> [usize; 2] {
        [self.first[0], self.second[0]]
    }

    /// Lengths of the messages back, by kind.
    #[inline(always)]
    pub fn back(&self) -> [usize; 2] {
        [self.first[1], self.second[1]]
    }

    /// The longest of these lengths, up to a multiple of 8: the size in a plan.
    pub fn size(&self) -> usize {
        self.first.into_iter().chain(self.second).fold(0, usize::max).next_multiple_of(8)
    }

    fn check(&self, plan: &VerbsPlan) -> anyhow::Result<()> {
        let lens = self.first.into_iter().chain(self.second);
        let fit = lens.clone().all(|len| (8..=SIZE_MAX).contains(&len)) && self.size() == plan.size;
        ensure!(fit, "the plan's `mix` has lengths from 8 up to the plan's size");
        ensure!(self.there().iter().all(|len| len.is_multiple_of(8)), "the plan's `mix` has lengths there in words");
        ensure!(self.second_parts <= Self::PARTS, "the plan's `mix` has more messages of a kind than of all kinds");
        let is_echo = plan.work == WorkKind::Echo(EchoForm::Ws) && plan.doorbell == 1 && plan.wait == Wait::Poll;
        ensure!(is_echo, "the plan's `mix` is for echoes of form `ws` whose sides poll");
        ensure!(plan.window.is_power_of_two(), "the plan's `mix` takes a window that is a power of two");
        Ok(())
    }
}

/// Work of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkKind {
    /// Requests of one kind, from the client to the server.
    Load(Op),
    /// Messages that the server sends back.
    Echo(EchoForm),
}

/// Connections between client threads and server threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One to one
    Pairs,
    /// All to one
    Inbound,
    /// One to all
    Outbound,
    /// All to all
    All,
}

/// Side of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that makes requests.
    Client,
    /// The side that answers them.
    Server,
}

/// Name of a value on the command line.
pub fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Parameters on which both sides must agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsPlan {
    /// Work to do.
    pub work: WorkKind,
    /// Transport of the queue pairs.
    #[serde(rename = "transport")]
    pub carrier: TransportKind,
    /// Length of a message, in bytes.
    pub size: usize,
    /// Requests of each queue pair in flight.
    pub window: usize,
    /// Requests started together.
    pub doorbell: usize,
    /// Whether all READs for which there is room start together, by the call that costs the least, as in the clients of
    /// stores.
    pub starts_together: bool,
    /// Lengths of an echo's messages, if they are not all `size` long. All for which there is room start together, too.
    pub mix: Option<EchoMix>,
    /// Signaling interval: one request in this many is signaled.
    pub signal: usize,
    /// Whether messages are copied into the requests.
    pub inline: bool,
    /// Whether to SEND an immediate without data.
    pub header_only: bool,
    /// READs for each object, one after another; all but the last read 8 bytes (READ-Intr-2 to 4 in apnet19).
    pub reads: usize,
    /// Whether the server writes the data before each READ, so that it comes from its processor's cache.
    pub fresh: bool,
    /// Queue pairs between two threads.
    pub qps: usize,
    /// Threads of a side that has several.
    pub threads: usize,
    /// Threads of the server, if clients are connected to all of them in the inbound shape.
    pub inbound_threads: usize,
    /// Connections between the threads.
    pub shape: Shape,
    /// Way in which the threads wait.
    pub wait: Wait,
    /// Processors of the server's threads.
    #[serde(rename = "server_cpus")]
    pub cpus: Vec<Option<usize>>,
}

/// Most queue pairs of one run, and most bytes of buffers and exposed memory of one side.
pub const LINKS_MAX: usize = 4096;
const BYTES_MAX: usize = 4 << 30;
/// Longest message, in bytes.
pub const SIZE_MAX: usize = 64 << 20;
/// Most requests of a queue pair in flight.
pub const WINDOW_MAX: usize = 16 << 10;
/// Most threads of a side.
pub const THREADS_MAX: usize = 256;
/// Bytes of a queue pair's memory over which a load spreads, unless a single message needs more.
const SPREAD: usize = 8 << 20;
/// Most READs of an object, as in apnet19.
pub const READS_MAX: usize = 4;
/// Length in bytes of the READs that come before the object's own. Buffers of objects are at least as long.
pub const POINTER: usize = 8;
/// Fewest and most receives of a queue pair.
const RECEIVES: std::ops::RangeInclusive<usize> = 64..=512;
/// Bytes of a queue pair's receives, unless the fewest receives take more.
const RECEIVE_BYTES: usize = 32 << 20;
/// Signaling interval of short echoes: one in this many is signaled.
const ECHO_SIGNAL: usize = 64;

impl VerbsPlan {
    /// A plan of one queue pair between two threads that are not pinned, with 128 requests in flight, one in 64 of
    /// which is signaled.
    pub fn new(work: WorkKind, carrier: TransportKind, size: usize) -> Self {
        Self {
            work,
            carrier,
            size,
            window: 128,
            doorbell: 1,
            starts_together: false,
            mix: None,
            signal: 64,
            inline: false,
            header_only: false,
            reads: 1,
            fresh: false,
            qps: 1,
            threads: 1,
            inbound_threads: 1,
            shape: Shape::Pairs,
            wait: Wait::Poll,
            cpus: Vec::new(),
        }
    }

    /// Whether the request, or the echo's way there, is a SEND.
    pub fn sends(&self) -> bool {
        matches!(self.work, WorkKind::Load(Op::Send) | WorkKind::Echo(EchoForm::Ss))
    }

    /// Whether a request is an atomic.
    pub fn is_atomic(&self) -> bool {
        matches!(self.work, WorkKind::Load(Op::FetchAdd | Op::CompareSwap))
    }

    /// Whether a request takes a receive of the server, which then gets a completion.
    pub fn takes_receives(&self) -> bool {
        self.sends() || matches!(self.work, WorkKind::Load(Op::WriteImm) | WorkKind::Echo(EchoForm::Imm))
    }

    /// Whether a side exposes memory.
    pub fn exposes(&self, side: Side) -> bool {
        match side {
            Side::Client => matches!(self.work, WorkKind::Echo(EchoForm::Ww | EchoForm::Imm)),
            Side::Server => !self.sends(),
        }
    }

    /// Whether a side posts receives.
    pub fn posts_receives(&self, side: Side) -> bool {
        match side {
            Side::Client => {
                self.has_credits() || matches!(self.work, WorkKind::Echo(EchoForm::Ws | EchoForm::Ss | EchoForm::Imm))
            }
            Side::Server => self.takes_receives(),
        }
    }

    /// Whether answers use a UD queue pair of their own, as in HERD (sigcomm14 4.3).
    pub fn has_reply_qp(&self) -> bool {
        self.work == WorkKind::Echo(EchoForm::Ws)
    }

    /// Whether the receiver tells the sender how far it is. On RC its device does that.
    pub fn has_credits(&self) -> bool {
        matches!(self.work, WorkKind::Load(_)) && self.takes_receives() && self.carrier != TransportKind::Rc
    }

    /// Whether each message of a load carries its number as an immediate: if it is written, has no data, or has too few
    /// bytes to be told from earlier messages, which may be lost.
    pub fn is_numbered(&self) -> bool {
        match self.work {
            WorkKind::Load(Op::Send) => self.header_only || (self.size < SHORT && self.carrier != TransportKind::Rc),
            work => work == WorkKind::Load(Op::WriteImm),
        }
    }

    /// Whether it is known which messages arrived. Of WRITEs on an unreliable connection it is only known that they
    /// were sent.
    pub fn knows_arrivals(&self) -> bool {
        self.carrier == TransportKind::Rc || self.work != WorkKind::Load(Op::Write)
    }

    /// Most requests of a queue pair that may not be over.
    pub fn requests(&self) -> usize {
        match self.work {
            WorkKind::Load(_) => self.window,
            WorkKind::Echo(_) => self.window + self.signal,
        }
    }

    /// Receives posted at a queue pair that messages come to.
    pub fn receives(&self) -> usize {
        let fit = RECEIVE_BYTES / self.size.max(1);
        let (fewest, most) = (*RECEIVES.start(), *RECEIVES.end());
        match self.work {
            WorkKind::Load(_) => fit.clamp(fewest, most),
            // No more messages than the window are in flight.
            WorkKind::Echo(_) => fit.clamp(self.window, most.max(self.window)),
        }
    }

    /// Default signaling interval for echoes of `size` bytes. The sources of the unsignaled ones are kept until then.
    pub fn echo_signal(size: usize, inline: bool) -> usize {
        if inline { ECHO_SIGNAL } else { (RECEIVE_BYTES / size.max(1)).clamp(1, ECHO_SIGNAL) }
    }

    /// Most buffers of one queue pair of a side: for its requests' data, and for messages to it.
    pub fn buffers(&self, side: Side) -> usize {
        let moves = (side == Side::Client || matches!(self.work, WorkKind::Echo(_))) && !self.inline;
        let receives = if self.posts_receives(side) { self.receives() } else { 0 };
        receives + if moves { self.requests() } else { 0 }
    }

    /// Layout of the messages in exposed memory.
    pub fn layout(&self) -> Layout {
        match self.work {
            WorkKind::Load(Op::Write | Op::WriteImm | Op::Read) => {
                let stride = Layout::new(self.size, 1).stride();
                Layout::new(self.size, (SPREAD / stride).clamp(1, self.window))
            }
            WorkKind::Load(_) => Layout::new(8, 1),
            WorkKind::Echo(_) => Layout::new(self.size, self.window),
        }
    }

    /// Bytes that a side exposes.
    pub fn exposed_bytes(&self) -> usize {
        if self.fresh { Exchange::of(self.layout()).bytes() } else { self.layout().bytes() }
    }

    /// Length of a request's data, in bytes.
    pub fn message_len(&self) -> usize {
        match self.work {
            WorkKind::Load(Op::FetchAdd | Op::CompareSwap) => 8,
            _ if self.header_only => 0,
            _ => self.size,
        }
    }

    /// Number of threads of the client and of the server.
    pub fn sides(&self) -> (usize, usize) {
        match self.shape {
            Shape::Pairs | Shape::All => (self.threads, self.threads),
            Shape::Inbound => (self.threads, self.inbound_threads),
            Shape::Outbound => (1, self.threads),
        }
    }

    /// Indices of the links in [`Self::links`], for each thread of a side.
    pub fn links_of(&self, side: Side) -> Vec<Vec<usize>> {
        let (links, (clients, servers)) = (self.links(), self.sides());
        let thread = |&(client, server): &(usize, usize)| if side == Side::Client { client } else { server };
        let of = |index| (0..links.len()).filter(|&link| thread(&links[link]) == index).collect();
        (0..if side == Side::Client { clients } else { servers }).map(of).collect()
    }

    /// The client and server thread of each link, sorted by server thread. Both sides number links in this order.
    pub fn links(&self) -> Vec<(usize, usize)> {
        let (clients, servers) = self.sides();
        let mut links = Vec::new();
        for server in 0..servers {
            for client in 0..clients {
                if self.shape != Shape::Pairs || client == server {
                    links.extend(std::iter::repeat_n((client, server), self.qps));
                }
            }
        }
        links
    }

    /// Checks that the plan is possible on some machine.
    ///
    /// # Errors
    ///
    /// Names the option that is not possible.
    pub fn check(&self) -> anyhow::Result<()> {
        let Self { size, window, doorbell, signal, .. } = *self;
        ensure!(size <= SIZE_MAX, "--size {size}: must be at most {SIZE_MAX}");
        ensure!((1..=WINDOW_MAX).contains(&window), "--window {window}: must be from 1 to {WINDOW_MAX}");
        ensure!(
            (1..=window).contains(&doorbell),
            "--doorbell {doorbell}: must be from 1 to the {window} in flight (--window)"
        );
        // An echo is over once it is answered, so echoes whose own completion is never reported do not fill the window.
        let signal_max = if matches!(self.work, WorkKind::Echo(_)) { WINDOW_MAX } else { window };
        ensure!((1..=signal_max).contains(&signal), "--signal {signal}: must be from 1 to {signal_max}");
        ensure!((1..=THREADS_MAX).contains(&self.threads), "--threads: must be from 1 to {THREADS_MAX}");
        ensure!(self.cpus.len() <= THREADS_MAX, "the plan names too many processors");
        ensure!((1..=LINKS_MAX).contains(&self.qps), "--qps: must be from 1 to {LINKS_MAX}");
        ensure!((1..=THREADS_MAX).contains(&self.inbound_threads), "the plan's server has up to {THREADS_MAX} threads");
        let peers = match self.shape {
            Shape::All => self.threads,
            Shape::Inbound => self.inbound_threads,
            Shape::Pairs | Shape::Outbound => 1,
        };
        let per_qp = self.threads * peers;
        ensure!(per_qp * self.qps <= LINKS_MAX, "--threads and --qps: must be {LINKS_MAX} queue pairs at most");
        let of_link = |side| {
            let exposed = if self.exposes(side) { self.exposed_bytes() } else { 0 };
            self.buffers(side) * size.max(64) + exposed
        };
        let bytes = (per_qp * self.qps).saturating_mul(of_link(Side::Client).max(of_link(Side::Server)));
        ensure!(
            bytes <= BYTES_MAX,
            "--size {size} with --window {window} and --signal {signal}: {bytes} bytes of memory on a side exceed {BYTES_MAX}"
        );
        ensure!(
            !self.header_only || self.sends(),
            "--header-only: a WRITE or a READ needs data; use it with --op send"
        );
        ensure!(
            size > 0 || self.header_only,
            "--size 0: there is nothing to move; for a SEND without data use --header-only"
        );
        ensure!(!self.is_atomic() || size == 8, "--size {size}: an atomic has 8 bytes");
        let is_read = self.work == WorkKind::Load(Op::Read);
        ensure!((1..=READS_MAX).contains(&self.reads), "--read-intr {}: must be from 1 to {READS_MAX}", self.reads);
        ensure!(self.reads == 1 || is_read, "--read-intr: use it with --op read");
        let is_single = is_read && self.reads == 1 && window == 1 && per_qp * self.qps == 1;
        ensure!(!self.fresh || is_single, "the plan's `fresh` is for one READ at a time");
        ensure!(!self.inline || !(is_read || self.is_atomic()), "--inline: this request has no source");
        let is_list = is_read && self.reads == 1 && !self.fresh && doorbell == 1 && signal == 1;
        ensure!(!self.starts_together || is_list, "the plan's `starts_together` is for READs that are all signaled");
        self.mix.map_or(Ok(()), |mix| mix.check(self))?;
        match (self.work, self.carrier) {
            (WorkKind::Load(Op::Send), _)
            | (_, TransportKind::Rc)
            | (WorkKind::Load(Op::Write | Op::WriteImm), TransportKind::Uc) => {}
            (WorkKind::Load(op), carrier) => bail!(
                "--op {} is not possible on --transport {}: rc has all operations, uc has send, write and write-imm, ud has send (Table 1 of atc16)",
                name(op),
                name(carrier)
            ),
            (WorkKind::Echo(form), carrier) => ensure!(
                form == EchoForm::Ss || carrier == TransportKind::Uc,
                "--form {}: ud has no WRITE; use rc or uc",
                name(form)
            ),
        }
        ensure!(
            self.work != WorkKind::Echo(EchoForm::Ww) || self.wait == Wait::Poll,
            "--wait {}: a WRITE wakes nobody; an echo by WRITE polls memory",
            name(self.wait)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan(work: WorkKind, carrier: TransportKind) -> VerbsPlan {
        let size = if matches!(work, WorkKind::Load(Op::FetchAdd | Op::CompareSwap)) { 8 } else { 32 };
        VerbsPlan { window: 16, doorbell: 4, signal: 8, cpus: vec![None], ..VerbsPlan::new(work, carrier, size) }
    }

    #[test]
    fn a_plan_survives_the_way_and_what_is_none_is_refused() {
        let read = |value| VerbsPlan::deserialize(&value).ok().filter(|plan: &VerbsPlan| plan.check().is_ok());
        for work in [WorkKind::Load(Op::WriteImm), WorkKind::Load(Op::FetchAdd), WorkKind::Echo(EchoForm::Imm)] {
            let plan = VerbsPlan { cpus: vec![Some(3), None], ..plan(work, TransportKind::Rc) };
            assert_eq!(read(json!(plan)), Some(plan));
        }
        for (key, bad) in [
            ("work", json!({ "load": 7 })),
            ("work", json!({ "sleep": "write" })),
            ("transport", json!("xrc")),
            ("size", json!(-1)),
            ("size", json!(u64::MAX)),
            ("window", json!(0)),
            ("qps", json!(1u64 << 40)),
            ("reads", json!(2)),
            ("threads", json!(0)),
            ("server_cpus", json!(vec![0; 257])),
            ("inline", json!(1)),
            ("colour", json!("red")),
            ("fresh", json!(true)),
        ] {
            let mut plan = json!(plan(WorkKind::Load(Op::Send), TransportKind::Ud));
            plan[key] = bad;
            assert_eq!(read(plan), None, "{key}");
        }
    }

    #[test]
    fn what_nobody_hears_of_counts_as_memory() {
        let echo = |form, size, signal| VerbsPlan {
            window: 1,
            signal,
            ..VerbsPlan::new(
                WorkKind::Echo(form),
                if form == EchoForm::Ss { TransportKind::Ud } else { TransportKind::Rc },
                size,
            )
        };
        for form in [EchoForm::Ww, EchoForm::Ws, EchoForm::Ss, EchoForm::Imm] {
            assert!(echo(form, 64 << 20, 64).check().is_err(), "{form:?}");
            assert!(echo(form, 1 << 20, 16384).check().is_err(), "{form:?}");
            assert!(echo(form, 64, 16384).check().is_ok(), "{form:?}");
            let signal = VerbsPlan::echo_signal(64 << 20, false);
            assert!(echo(form, 64 << 20, signal).check().is_ok(), "{form:?}");
        }
        let inline = VerbsPlan { inline: true, ..echo(EchoForm::Ww, 1024, 16384) };
        assert_eq!([Side::Client, Side::Server].map(|side| inline.buffers(side)), [0, 0]);
        assert_eq!([32, 64 << 10, 1 << 20, 64 << 20].map(|size| VerbsPlan::echo_signal(size, false)), [64, 64, 32, 1]);
    }

    #[test]
    fn links_are_as_the_shape_says() {
        let (work, carrier) = (WorkKind::Load(Op::Send), TransportKind::Ud);
        let links = |shape| {
            VerbsPlan { shape, threads: 2, qps: 2, ..plan(WorkKind::Load(Op::Send), TransportKind::Ud) }.links()
        };
        assert_eq!(links(Shape::Pairs), [(0, 0), (0, 0), (1, 1), (1, 1)]);
        assert_eq!(links(Shape::Inbound), [(0, 0), (0, 0), (1, 0), (1, 0)]);
        assert_eq!(links(Shape::Outbound), [(0, 0), (0, 0), (0, 1), (0, 1)]);
        assert_eq!(links(Shape::All).len(), 8);
        let inbound = VerbsPlan { shape: Shape::Inbound, threads: 2, inbound_threads: 3, ..plan(work, carrier) };
        assert_eq!(inbound.links(), [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
    }
}
