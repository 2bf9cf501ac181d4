//! `sinew index get`, `put`, `delete`, `scan`, `sum` and `stats`: requests to an index.

use std::io::Read;
use std::ops::Bound;

use anyhow::Context;
use serde_json::{Value, json};
use sinew::kv::ordered::{Client, Range, VALUE_LEN_MAX, prefix_range};
use sinew::prelude::*;
use sinew::store::ordered::KEY_LEN_MAX;
use sinew_harness::units;

use super::ADDRESS;
use crate::fabrics::{self, Purpose};
use crate::key_form::KeyForm;
use crate::{Outcome, Usage, advice, interrupted, output};

/// Place of the index.
#[derive(clap::Args)]
pub struct At {
    /// Address at which `sinew serve index` serves, that of any of its threads
    #[arg(long, default_value = ADDRESS, value_name = "URL")]
    address: String,
}

/// A range of keys.
#[derive(clap::Args)]
pub struct RangeArgs {
    /// Begin with this key, or the next one [default: the first of the index]
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// Begin with the first key after this one
    #[arg(long, value_name = "KEY", conflicts_with = "from")]
    after: Option<String>,
    /// End before this key [default: after the last of the index]
    #[arg(long, value_name = "KEY")]
    to: Option<String>,
    /// Take only keys that begin with this text
    #[arg(long, conflicts_with_all = ["from", "after", "to"])]
    prefix: Option<String>,
}

/// The requests to an index.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Print a value
    Get {
        /// The key
        key: String,
        #[command(flatten)]
        form: KeyForm,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Store a value
    Put {
        /// The key
        key: String,
        #[command(flatten)]
        form: KeyForm,
        /// The value [default: standard input]
        value: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// Remove a key
    Delete {
        /// The key
        key: String,
        #[command(flatten)]
        form: KeyForm,
        #[command(flatten)]
        at: At,
    },
    /// Print keys and their values, in the order of the keys
    Scan {
        #[command(flatten)]
        range: RangeArgs,
        #[command(flatten)]
        form: KeyForm,
        /// Number of entries to print at most [default: all]
        #[arg(long)]
        limit: Option<u64>,
        /// Print one JSON object: `entries`, each with `key` and `value`, and `more`
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Sum values that are 8-byte little-endian numbers
    Sum {
        #[command(flatten)]
        range: RangeArgs,
        #[command(flatten)]
        form: KeyForm,
        /// Number of entries to look at, at most [default: all]
        #[arg(long)]
        limit: Option<u64>,
        /// Print one JSON object: `sum`, as text, and the numbers of entries `added` and `passed_over`
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Print how much an index holds
    Stats {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
}

impl At {
    fn connect(&self) -> anyhow::Result<Client<Rpc>> {
        let fabric = fabrics::check(&self.address, Purpose::Call).map_err(Usage::of)?;
        interrupted::exit_on_signal()?;
        // Enough for the longest values of any index.
        let config = Config { message_len_max: (VALUE_LEN_MAX + 2 * KEY_LEN_MAX) as u32, ..Config::default() };
        let nexus = Nexus::builder().config(config).build()?;
        let rpc = Rpc::open_with(&nexus, &fabric.client_address("", Some(&self.address)))?;
        let client = Client::connect(rpc, &self.address);
        client.map_err(|error| advice::with_start_hint(error, "sinew serve index", &self.address))
    }
}

/// The bounds of a range as bytes.
enum RangeBytes {
    Prefix(Vec<u8>),
    Bounds(Bound<Vec<u8>>, Bound<Vec<u8>>),
}

impl RangeArgs {
    fn bytes(&self, form: KeyForm) -> anyhow::Result<RangeBytes> {
        if let Some(prefix) = &self.prefix {
            return Ok(RangeBytes::Prefix(form.parse(prefix)?));
        }
        let from = match (&self.from, &self.after) {
            (Some(from), _) => Bound::Included(form.parse(from)?),
            (None, Some(after)) => Bound::Excluded(form.parse(after)?),
            (None, None) => Bound::Unbounded,
        };
        let to = self.to.as_ref().map(|to| form.parse(to)).transpose()?;
        Ok(RangeBytes::Bounds(from, to.map_or(Bound::Unbounded, Bound::Excluded)))
    }
}

impl RangeBytes {
    fn range<'a>(&'a self, end: &'a mut Vec<u8>) -> Range<'a> {
        match self {
            Self::Prefix(prefix) => prefix_range(prefix, end),
            Self::Bounds(from, to) => (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice)),
        }
    }
}

/// Sends the request. The exit status is 5 if there is no such key.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    let (is_there, key) = match command {
        Command::Get { key, form, json, at } => {
            let bytes = form.parse(key)?;
            (get(at.connect()?.get(&bytes)?, *form, *json)?, key)
        }
        Command::Put { key, form, value, at } => {
            put(at, &form.parse(key)?, value.as_deref())?;
            (true, key)
        }
        Command::Delete { key, form, at } => {
            let bytes = form.parse(key)?;
            (at.connect()?.delete(&bytes)?, key)
        }
        Command::Scan { range, form, limit, json, at } => {
            return scan(at, &range.bytes(*form)?, *form, limit.unwrap_or(u64::MAX), *json);
        }
        Command::Sum { range, form, limit, json, at } => {
            return sum(at, &range.bytes(*form)?, limit.unwrap_or(u64::MAX), *json);
        }
        Command::Stats { json, at } => return stats(at, *json),
    };
    if is_there {
        return Ok(Outcome::Done);
    }
    output::complain(format_args!("the index has no key `{key}`"));
    Ok(Outcome::FoundWrong)
}

/// Prints a value. Returns false if there is none.
fn get(value: Option<Vec<u8>>, form: KeyForm, json: bool) -> anyhow::Result<bool> {
    let Some(value) = value else { return Ok(false) };
    if json {
        output::print(json!({ "value": form.text(&value), "len": value.len() }))?;
    } else {
        output::print_bytes(&value)?;
    }
    Ok(true)
}

/// Stores a value, or the contents of standard input.
fn put(at: &At, key: &[u8], value: Option<&str>) -> anyhow::Result<()> {
    let value = match value {
        Some(value) => value.as_bytes().to_vec(),
        None => {
            let mut value = Vec::new();
            std::io::stdin().lock().read_to_end(&mut value).context("reading the value from standard input")?;
            value
        }
    };
    at.connect()?.put(key, &value)?;
    Ok(())
}

/// Prints entries as they come, or all of them together as JSON.
fn scan(at: &At, range: &RangeBytes, form: KeyForm, limit: u64, json: bool) -> anyhow::Result<Outcome> {
    let (mut client, mut end) = (at.connect()?, Vec::new());
    let (mut entries, mut written): (Vec<Value>, anyhow::Result<bool>) = (Vec::new(), Ok(true));
    let more = client.scan_all(range.range(&mut end), limit, |key, value| {
        if json {
            entries.push(json!({ "key": form.text(key), "value": form.text(value) }));
        } else {
            let [key, value] = [key, value].map(|bytes| form.line_bytes(bytes));
            written = output::print_line(&[&key[..], &value].join(&b'\t'));
        }
        // The reader of our output may have seen enough.
        matches!(written, Ok(true))
    })?;
    written?;
    if json {
        output::print(json!({ "entries": entries, "more": more }))?;
    }
    Ok(Outcome::Done)
}

fn sum(at: &At, range: &RangeBytes, limit: u64, json: bool) -> anyhow::Result<Outcome> {
    let (mut client, mut end) = (at.connect()?, Vec::new());
    let total = client.sum(range.range(&mut end), limit)?;
    if json {
        // A sum may be greater than the numbers that JSON readers accept.
        let sum = total.sum.to_string();
        output::print(json!({ "sum": sum, "added": total.added, "passed_over": total.passed_over }))?;
        return Ok(Outcome::Done);
    }
    output::print(total.sum)?;
    if total.passed_over > 0 {
        let [added, passed_over] = [total.added, total.passed_over].map(|count| units::counted(count, "value"));
        output::note(format_args!("{added} added; {passed_over} passed over: only 8-byte numbers are added"));
    }
    Ok(Outcome::Done)
}

fn stats(at: &At, json: bool) -> anyhow::Result<Outcome> {
    let stats = at.connect()?.stats()?;
    if json {
        output::print(json!({
            "entries": stats.entries,
            "used_bytes": stats.used_bytes,
            "memory_bytes": stats.memory_bytes,
        }))?;
        return Ok(Outcome::Done);
    }
    let [used, memory] = [stats.used_bytes, stats.memory_bytes].map(units::amount);
    for (name, value) in [("entries", stats.entries.to_string()), ("used", used), ("memory", memory)] {
        output::print(format_args!("{name:<16}{value}"))?;
    }
    Ok(Outcome::Done)
}
