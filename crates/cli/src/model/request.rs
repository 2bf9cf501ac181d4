//! Options that describe a request and its NIC.

use std::path::Path;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use sinew::fabric::verbs::Verb;
use sinew_harness::load::verbs::{Op, TransportKind, name};
use sinew_harness::units::{self, parse_count, parse_size};
use sinew_sim::nic::{Post, Profile, Requests, Source, transport_name, verb_name};

use crate::Usage;
use crate::infile::read;

/// Way in which WQEs get to the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// The core writes them: WQE-by-MMIO, or BlueFlame
    Mmio,
    /// The core rings a doorbell, and the NIC reads them
    Doorbell,
}

/// Options of a request.
#[derive(clap::Args)]
pub struct RequestArgs {
    /// NIC at both ends: a name from `sinew model nics`, or a TOML file
    #[arg(long, value_name = "NIC|FILE", default_value = "cib")]
    nic: String,
    /// Operation of the request
    #[arg(long, visible_alias = "op", value_enum, ignore_case = true)]
    pub verb: Option<Op>,
    /// Transport of its queue pair [default: ud for send, else rc]
    #[arg(long, visible_alias = "connection", value_enum, ignore_case = true)]
    transport: Option<TransportKind>,
    /// Length of its payload, in bytes, as 32 or 4K [default: 32; 4 with --header-only, 8 for atomics]
    #[arg(long, visible_alias = "size", allow_negative_numbers = true, value_parser = parse_size)]
    payload: Option<usize>,
    /// Number of requests that are posted together
    #[arg(long, default_value = "1", allow_negative_numbers = true, value_parser = parse_count)]
    batch: usize,
    /// Way in which they are posted [default: mmio for one, doorbell for several]
    #[arg(long, value_enum, ignore_case = true)]
    post: Option<Method>,
    /// Put the payload into the WQE, as is the default where it fits
    #[arg(long)]
    inline: bool,
    /// Leave the payload in memory, where the WQE points to it
    #[arg(long, conflicts_with = "inline")]
    no_inline: bool,
    /// Put up to 4 bytes into the header of a SEND without payload
    #[arg(long, conflicts_with_all = ["inline", "no_inline"])]
    header_only: bool,
    /// Number of signaled requests in the batch [default: 0; all for READs and atomics]
    #[arg(long, allow_negative_numbers = true, value_parser = parse_count)]
    signaled: Option<usize>,
    /// Let the responder's completions hold short messages
    #[arg(long)]
    inline_receive: bool,
    /// Offset of payloads within a line of 64 bytes, in bytes, 0 to 63
    #[arg(long, default_value = "0", value_parser = clap::value_parser!(u8).range(0..64))]
    place: u8,
}

/// Finds a NIC by its name, or reads it from a file.
pub fn nic(name: &str) -> anyhow::Result<Profile> {
    if let Some(profile) = Profile::built_in(name) {
        return Ok(profile);
    }
    let path = Path::new(name);
    if !name.contains(['.', '/']) && !path.exists() {
        let known = Profile::BUILT_IN.join(", ");
        return Err(Usage::of(anyhow!(
            "there is no NIC `{name}`; there are {known}, and files, as in --nic mine.toml"
        )));
    }
    read(path, |text| Ok(Profile::read(text)?))
}

fn verb(op: Op) -> Verb {
    match op {
        Op::Send => Verb::Send,
        Op::Write => Verb::Write,
        Op::WriteImm => Verb::WriteWithImmediate,
        Op::Read => Verb::Read,
        Op::FetchAdd => Verb::FetchAdd,
        Op::CompareSwap => Verb::CompareSwap,
    }
}

impl RequestArgs {
    /// The NIC.
    pub fn nic(&self) -> anyhow::Result<Profile> {
        nic(&self.nic)
    }

    /// Whether any option beside the NIC and the verb was given.
    pub fn has_more(&self) -> bool {
        let Self { nic: _, verb: _, transport, payload, batch, post, inline, no_inline, header_only, signaled, .. } =
            self;
        let is_given = transport.is_some() || payload.is_some() || post.is_some() || signaled.is_some();
        let is_set = *inline || *no_inline || *header_only || self.inline_receive;
        is_given || is_set || *batch != 1 || self.place != 0
    }

    /// The requests, if the NIC can do them.
    pub fn requests(&self, nic: &Profile) -> anyhow::Result<Requests> {
        self.requests_of(nic, self.verb.unwrap_or(Op::Send)).map_err(Usage::of)
    }

    fn requests_of(&self, nic: &Profile, op: Op) -> anyhow::Result<Requests> {
        let verb = verb(op);
        let is_atomic = matches!(verb, Verb::FetchAdd | Verb::CompareSwap);
        let brings = is_atomic || verb == Verb::Read;
        let carrier = self.transport.unwrap_or(if verb == Verb::Send { TransportKind::Ud } else { TransportKind::Rc });
        let usual = if is_atomic { 8 } else { 32 };
        let len = self.payload.unwrap_or(if self.header_only { 4 } else { usual });
        let source = match self {
            Self { header_only: true, .. } => Source::Header,
            Self { inline: true, .. } => Source::Inline,
            Self { no_inline: true, .. } => Source::Memory,
            _ if nic.wqe.can_inline(verb, len) => Source::Inline,
            _ => Source::Memory,
        };
        let post = match self.post {
            Some(Method::Mmio) => Post::Mmio,
            Some(Method::Doorbell) => Post::Doorbell,
            None if self.batch == 1 => Post::Mmio,
            None => Post::Doorbell,
        };
        let requests = Requests {
            verb,
            transport: carrier.transport(),
            len,
            source,
            post,
            count: self.batch,
            signaled: self.signaled.unwrap_or(if brings { self.batch } else { 0 }),
            inline_receive: self.inline_receive,
            place: usize::from(self.place),
        };
        requests.check(nic).with_context(|| format!("--verb {} on {}", name(op), nic.name))?;
        Ok(requests)
    }
}

/// A request in words: `SEND over UD, 32 B inline`.
pub fn text(requests: &Requests) -> String {
    let Requests { verb, transport, len, source, .. } = *requests;
    let how = match source {
        _ if matches!(verb, Verb::Read | Verb::CompareSwap | Verb::FetchAdd) => "",
        Source::Inline => " inline",
        Source::Memory => " in memory",
        Source::Header => " in the header",
    };
    format!("{} over {}, {}{how}", verb_name(verb), transport_name(transport), units::size(len))
}

/// Count of the requests, and how they are posted and signaled, in words.
pub fn batch_text(requests: &Requests) -> String {
    let Requests { count, signaled, post, .. } = *requests;
    let signaled = match signaled {
        0 => "unsignaled".to_owned(),
        all if all == count => "signaled".to_owned(),
        some => format!("{some} of them signaled"),
    };
    let by = match post {
        Post::Mmio => "WQE-by-MMIO",
        Post::Doorbell => "Doorbell",
    };
    match count {
        1 => format!("one, {signaled}, {by}"),
        _ => format!("{count} together, {signaled}, {by}"),
    }
}

/// The options in the schema of results.
pub fn setup(nic: &Profile, requests: &Requests) -> Map<String, Value> {
    let Requests { verb, transport, len, source, post, count, signaled, inline_receive, place } = *requests;
    let wqe_bytes = requests.wqe_len(nic);
    let value = json!({
        "nic": nic.name,
        "verb": verb_name(verb),
        "transport": transport_name(transport).to_lowercase(),
        "size": len,
        "inline": source == Source::Inline,
        "header_only": source == Source::Header,
        "post": if post == Post::Mmio { "mmio" } else { "doorbell" },
        "batch": count,
        "signaled": signaled,
        "inline_receive": inline_receive,
        "place": place,
        "wqe_bytes": wqe_bytes,
        "wqe_lines": sinew_sim::pcie::lines(wqe_bytes),
    });
    value.as_object().cloned().unwrap_or_default()
}
