//! What is measured, as both sides must know it.

use anyhow::{bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use sinew::fabric::verbs::Transport;

use super::message::{Exchange, Layout, SHORT};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Messages into buffers that the server posts
    Send,
    /// Into the server's memory
    Write,
    /// The same with an immediate, which takes a buffer that the server posts, and so tells it
    WriteImm,
    /// Out of the server's memory
    Read,
    /// An 8-byte word of the server's is added to
    FetchAdd,
    /// An 8-byte word of the server's is swapped
    CompareSwap,
}

/// How a message goes to the server and comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// WRITE there, WRITE back
    Ww,
    /// WRITE there, SEND back
    Ws,
    /// SEND there, SEND back
    Ss,
    /// WRITE with immediate there, WRITE with immediate back
    Imm,
}

/// How a queue pair talks to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagram
    Ud,
}

impl Carrier {
    /// As the traits have it.
    pub fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
        }
    }
}

/// How a thread waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Looks again and again
    Poll,
    /// Sleeps until the completion queue wakes it
    Events,
    /// Looks for some 50 us, then sleeps
    Adaptive,
}

/// What the server's threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Requests of one kind, from the client to the server.
    Load(Op),
    /// Messages that the server sends back.
    Echo(Form),
}

/// Which client thread works with which server thread.
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

/// Which side of the measurement somebody is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that asks.
    Client,
    /// The one that is asked.
    Server,
}

/// The name of a value as on the command line.
pub fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// What both sides must agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbsPlan {
    /// What requests do.
    pub work: Work,
    /// How queue pairs talk.
    #[serde(rename = "transport")]
    pub carrier: Carrier,
    /// Bytes of a message.
    pub size: usize,
    /// Requests of each queue pair that are not over.
    pub window: usize,
    /// Requests that start together.
    pub doorbell: usize,
    /// One in so many is signaled.
    pub signal: usize,
    /// Messages are copied into the requests.
    pub inline: bool,
    /// SEND with immediate and no bytes.
    pub header_only: bool,
    /// READs one after the other for one object: all but the last are of 8 bytes (READ-Intr-2 to 4 in apnet19).
    pub reads: usize,
    /// Before each READ the server writes what is read, so that it comes from its processor's cache.
    pub fresh: bool,
    /// Queue pairs between two threads.
    pub qps: usize,
    /// Threads of a side that has several.
    pub threads: usize,
    /// Which of them work with each other.
    pub shape: Shape,
    /// How they wait.
    pub wait: Wait,
    /// Of the server's threads.
    #[serde(rename = "server_cpus")]
    pub cpus: Vec<Option<usize>>,
}

/// Queue pairs of one run at most, and bytes of buffers and exposed memory of one side.
const LINKS_MAX: usize = 4096;
const BYTES_MAX: usize = 4 << 30;
/// A message's bytes at most.
pub const SIZE_MAX: usize = 64 << 20;
/// Requests of a queue pair at a time, at most.
pub const WINDOW_MAX: usize = 16 << 10;
/// Threads of a side, at most.
pub const THREADS_MAX: usize = 256;
/// Bytes of a queue pair's memory that a load spreads over, if more than one message needs.
const SPREAD: usize = 8 << 20;
/// READs of an object at most, as many as apnet19 has.
pub const READS_MAX: usize = 4;
/// Bytes of the READs that come before the object's own, and that each object has.
pub const POINTER: usize = 8;
/// Receives of a queue pair.
const RECEIVES: std::ops::RangeInclusive<usize> = 64..=512;
/// Bytes of a queue pair's receives, if there is more than the fewest.
const RECEIVE_BYTES: usize = 32 << 20;
/// Of so many short echoes one is signaled.
const ECHO_SIGNAL: usize = 64;

impl VerbsPlan {
    /// One queue pair between two threads that are not pinned; 128 requests in flight, of which one in 64 is signaled.
    pub fn new(work: Work, carrier: Carrier, size: usize) -> Self {
        Self {
            work,
            carrier,
            size,
            window: 128,
            doorbell: 1,
            signal: 64,
            inline: false,
            header_only: false,
            reads: 1,
            fresh: false,
            qps: 1,
            threads: 1,
            shape: Shape::Pairs,
            wait: Wait::Poll,
            cpus: Vec::new(),
        }
    }

    /// Whether the request is a message, or the echo's way there.
    pub fn sends(&self) -> bool {
        matches!(self.work, Work::Load(Op::Send) | Work::Echo(Form::Ss))
    }

    /// Whether a request is an atomic.
    pub fn is_atomic(&self) -> bool {
        matches!(self.work, Work::Load(Op::FetchAdd | Op::CompareSwap))
    }

    /// Whether a request takes a receive of the server's, and the server hears of it.
    pub fn takes_receives(&self) -> bool {
        self.sends() || matches!(self.work, Work::Load(Op::WriteImm) | Work::Echo(Form::Imm))
    }

    /// Whether a side exposes memory.
    pub fn exposes(&self, side: Side) -> bool {
        match side {
            Side::Client => matches!(self.work, Work::Echo(Form::Ww | Form::Imm)),
            Side::Server => !self.sends(),
        }
    }

    /// Whether a side posts receives.
    pub fn posts_receives(&self, side: Side) -> bool {
        match side {
            Side::Client => self.has_credits() || matches!(self.work, Work::Echo(Form::Ws | Form::Ss | Form::Imm)),
            Side::Server => self.takes_receives(),
        }
    }

    /// Whether answers go by a UD queue pair of their own, as in HERD (sigcomm14 4.3).
    pub fn has_reply_qp(&self) -> bool {
        self.work == Work::Echo(Form::Ws)
    }

    /// Whether the receiver tells the sender how far it is: on RC its device does.
    pub fn has_credits(&self) -> bool {
        matches!(self.work, Work::Load(_)) && self.takes_receives() && self.carrier != Carrier::Rc
    }

    /// Whether each message of a load carries its number as an immediate: one that is written, one without bytes, and one whose few
    /// bytes do not tell it from those before it that may be lost.
    pub fn is_numbered(&self) -> bool {
        match self.work {
            Work::Load(Op::Send) => self.header_only || (self.size < SHORT && self.carrier != Carrier::Rc),
            work => work == Work::Load(Op::WriteImm),
        }
    }

    /// Whether it becomes known what arrived: of WRITEs on an unreliable connection only that they have left.
    pub fn knows_arrivals(&self) -> bool {
        self.carrier == Carrier::Rc || self.work != Work::Load(Op::Write)
    }

    /// Requests of a queue pair that can be not over.
    pub fn requests(&self) -> usize {
        match self.work {
            Work::Load(_) => self.window,
            Work::Echo(_) => self.window + self.signal,
        }
    }

    /// Receives that are posted at a queue pair that messages come to.
    pub fn receives(&self) -> usize {
        let fit = RECEIVE_BYTES / self.size.max(1);
        let (fewest, most) = (*RECEIVES.start(), *RECEIVES.end());
        match self.work {
            Work::Load(_) => fit.clamp(fewest, most),
            // No more than the window are on their way.
            Work::Echo(_) => fit.clamp(self.window, most.max(self.window)),
        }
    }

    /// Of how many echoes of `size` bytes one is signaled, unless it is said: the sources of the others are kept until then.
    pub fn echo_signal(size: usize, inline: bool) -> usize {
        if inline { ECHO_SIGNAL } else { (RECEIVE_BYTES / size.max(1)).clamp(1, ECHO_SIGNAL) }
    }

    /// Buffers of one queue pair of a side at most: what its requests move, and what comes.
    pub fn buffers(&self, side: Side) -> usize {
        let moves = (side == Side::Client || matches!(self.work, Work::Echo(_))) && !self.inline;
        let receives = if self.posts_receives(side) { self.receives() } else { 0 };
        receives + if moves { self.requests() } else { 0 }
    }

    /// Where messages lie in exposed memory.
    pub fn layout(&self) -> Layout {
        match self.work {
            Work::Load(Op::Write | Op::WriteImm | Op::Read) => {
                let stride = Layout::new(self.size, 1).stride();
                Layout::new(self.size, (SPREAD / stride).clamp(1, self.window))
            }
            Work::Load(_) => Layout::new(8, 1),
            Work::Echo(_) => Layout::new(self.size, self.window),
        }
    }

    /// Bytes that a side exposes.
    pub fn exposed_bytes(&self) -> usize {
        if self.fresh { Exchange::of(self.layout()).bytes() } else { self.layout().bytes() }
    }

    /// Bytes of a request.
    pub fn message_len(&self) -> usize {
        match self.work {
            Work::Load(Op::FetchAdd | Op::CompareSwap) => 8,
            _ if self.header_only => 0,
            _ => self.size,
        }
    }

    /// Threads of the client and of the server.
    pub fn sides(&self) -> (usize, usize) {
        match self.shape {
            Shape::Pairs | Shape::All => (self.threads, self.threads),
            Shape::Inbound => (self.threads, 1),
            Shape::Outbound => (1, self.threads),
        }
    }

    /// For each thread of a side, the places of its links in [`Self::links`].
    pub fn links_of(&self, side: Side) -> Vec<Vec<usize>> {
        let (links, (clients, servers)) = (self.links(), self.sides());
        let thread = |&(client, server): &(usize, usize)| if side == Side::Client { client } else { server };
        let of = |index| (0..links.len()).filter(|&link| thread(&links[link]) == index).collect();
        (0..if side == Side::Client { clients } else { servers }).map(of).collect()
    }

    /// The two threads of each link, by the server's threads, in the order in which both sides name links.
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

    /// Whether it can be, whatever the machine.
    ///
    /// # Errors
    ///
    /// Names the option that cannot be as it is.
    pub fn check(&self) -> anyhow::Result<()> {
        let Self { size, window, doorbell, signal, .. } = *self;
        ensure!(size <= SIZE_MAX, "--size {size}: at most {SIZE_MAX}");
        ensure!((1..=WINDOW_MAX).contains(&window), "--window {window}: from 1 to {WINDOW_MAX}");
        ensure!((1..=window).contains(&doorbell), "--doorbell {doorbell}: from 1 to the {window} in flight (--window)");
        // An echo's answer says that its request is over: those that nobody hears of are no part of the window.
        let signal_max = if matches!(self.work, Work::Echo(_)) { WINDOW_MAX } else { window };
        ensure!((1..=signal_max).contains(&signal), "--signal {signal}: from 1 to {signal_max}, no more than --window");
        ensure!((1..=THREADS_MAX).contains(&self.threads), "--threads: from 1 to {THREADS_MAX}");
        ensure!(self.cpus.len() <= THREADS_MAX, "the plan names too many processors");
        ensure!((1..=LINKS_MAX).contains(&self.qps), "--qps: from 1 to {LINKS_MAX}");
        let per_qp = self.threads * if self.shape == Shape::All { self.threads } else { 1 };
        ensure!(per_qp * self.qps <= LINKS_MAX, "--threads and --qps: {LINKS_MAX} queue pairs at most");
        let of_link = |side| {
            let exposed = if self.exposes(side) { self.exposed_bytes() } else { 0 };
            self.buffers(side) * size.max(64) + exposed
        };
        let bytes = (per_qp * self.qps).saturating_mul(of_link(Side::Client).max(of_link(Side::Server)));
        ensure!(
            bytes <= BYTES_MAX,
            "--size {size} with --window {window} and --signal {signal}: {bytes} bytes of memory on a side, at most {BYTES_MAX}"
        );
        ensure!(
            !self.header_only || self.sends(),
            "--header-only: a WRITE or a READ is its bytes; it is for --op send"
        );
        ensure!(
            size > 0 || self.header_only,
            "--size 0: there is nothing to move; for a SEND of a header say --header-only"
        );
        ensure!(!self.is_atomic() || size == 8, "--size {size}: an atomic has 8 bytes");
        let is_read = self.work == Work::Load(Op::Read);
        ensure!((1..=READS_MAX).contains(&self.reads), "--read-intr {}: from 1 to {READS_MAX}", self.reads);
        ensure!(self.reads == 1 || is_read, "--read-intr: it is for --op read");
        let is_single = is_read && self.reads == 1 && window == 1 && per_qp * self.qps == 1;
        ensure!(!self.fresh || is_single, "the plan's `fresh` is for one READ at a time");
        ensure!(!self.inline || !(is_read || self.is_atomic()), "--inline: such a request has no source");
        match (self.work, self.carrier) {
            (Work::Load(Op::Send), _) | (_, Carrier::Rc) | (Work::Load(Op::Write | Op::WriteImm), Carrier::Uc) => {}
            (Work::Load(op), carrier) => bail!(
                "--op {} is not on --transport {}: rc has all, uc send, write and write-imm, ud send (Table 1 of atc16)",
                name(op),
                name(carrier)
            ),
            (Work::Echo(form), carrier) => ensure!(
                form == Form::Ss || carrier == Carrier::Uc,
                "--form {}: ud has no WRITE; take rc or uc",
                name(form)
            ),
        }
        ensure!(
            self.work != Work::Echo(Form::Ww) || self.wait == Wait::Poll,
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

    fn plan(work: Work, carrier: Carrier) -> VerbsPlan {
        let size = if matches!(work, Work::Load(Op::FetchAdd | Op::CompareSwap)) { 8 } else { 32 };
        VerbsPlan { window: 16, doorbell: 4, signal: 8, cpus: vec![None], ..VerbsPlan::new(work, carrier, size) }
    }

    #[test]
    fn a_plan_survives_the_way_and_what_is_none_is_refused() {
        let read = |value| VerbsPlan::deserialize(&value).ok().filter(|plan: &VerbsPlan| plan.check().is_ok());
        for work in [Work::Load(Op::WriteImm), Work::Load(Op::FetchAdd), Work::Echo(Form::Imm)] {
            let plan = VerbsPlan { cpus: vec![Some(3), None], ..plan(work, Carrier::Rc) };
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
            let mut plan = json!(plan(Work::Load(Op::Send), Carrier::Ud));
            plan[key] = bad;
            assert_eq!(read(plan), None, "{key}");
        }
    }

    #[test]
    fn what_nobody_hears_of_counts_as_memory() {
        let echo = |form, size, signal| VerbsPlan {
            window: 1,
            signal,
            ..VerbsPlan::new(Work::Echo(form), if form == Form::Ss { Carrier::Ud } else { Carrier::Rc }, size)
        };
        for form in [Form::Ww, Form::Ws, Form::Ss, Form::Imm] {
            assert!(echo(form, 64 << 20, 64).check().is_err(), "{form:?}");
            assert!(echo(form, 1 << 20, 16384).check().is_err(), "{form:?}");
            assert!(echo(form, 64, 16384).check().is_ok(), "{form:?}");
            let signal = VerbsPlan::echo_signal(64 << 20, false);
            assert!(echo(form, 64 << 20, signal).check().is_ok(), "{form:?}");
        }
        let inline = VerbsPlan { inline: true, ..echo(Form::Ww, 1024, 16384) };
        assert_eq!([Side::Client, Side::Server].map(|side| inline.buffers(side)), [0, 0]);
        assert_eq!([32, 64 << 10, 1 << 20, 64 << 20].map(|size| VerbsPlan::echo_signal(size, false)), [64, 64, 32, 1]);
    }

    #[test]
    fn links_are_as_the_shape_says() {
        let links = |shape| VerbsPlan { shape, threads: 2, qps: 2, ..plan(Work::Load(Op::Send), Carrier::Ud) }.links();
        assert_eq!(links(Shape::Pairs), [(0, 0), (0, 0), (1, 1), (1, 1)]);
        assert_eq!(links(Shape::Inbound), [(0, 0), (0, 0), (1, 0), (1, 0)]);
        assert_eq!(links(Shape::Outbound), [(0, 0), (0, 0), (0, 1), (0, 1)]);
        assert_eq!(links(Shape::All).len(), 8);
    }
}
