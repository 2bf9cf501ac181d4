//! `sinew kv get`, `set`, `delete`, `touch`, `incr`, `flush` and `stats`: one request to a cache.

use std::io::Read;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use sinew::kv::cache::protocol::{PutOptions, Refusal, Stats};
use sinew::kv::cache::{Client, Error, Item};
use sinew::prelude::*;
use sinew::store::cache::{KEY_LEN_MAX, VALUE_LEN_MAX};

use super::ADDRESS;
use crate::fabrics::{self, Purpose};
use crate::key_form::KeyForm;
use sinew_harness::units;

use crate::{Outcome, Usage, advice, interrupted, output};

/// Place of the cache.
#[derive(clap::Args)]
pub struct At {
    /// Address of the first thread of `sinew serve cache`
    #[arg(long, default_value = ADDRESS, value_name = "URL")]
    address: String,
}

/// The requests to a cache.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Print a value
    Get {
        /// The key
        key: String,
        #[command(flatten)]
        form: KeyForm,
        /// Print one JSON object, with the item's metadata
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Store a value
    Set {
        /// The key
        key: String,
        #[command(flatten)]
        form: KeyForm,
        /// The value [default: standard input]
        value: Option<String>,
        /// Number that is stored with the value, and that `get --json` returns
        #[arg(long, default_value_t = 0)]
        flags: u32,
        /// Seconds from now until the item expires [default: never]
        #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
        expires: u32,
        #[command(flatten)]
        at: At,
    },
    /// Delete a key
    Delete {
        /// The key
        key: String,
        #[command(flatten)]
        form: KeyForm,
        #[command(flatten)]
        at: At,
    },
    /// Change an item's lifetime
    Touch {
        /// The key
        key: String,
        #[command(flatten)]
        form: KeyForm,
        /// Seconds from now until the item expires [default: never]
        #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
        expires: u32,
        #[command(flatten)]
        at: At,
    },
    // The value is read as decimal digits, of 64 bits unsigned: it wraps around at the upper end, and stays at 0 at the
    // lower one.
    /// Add to a value that is a decimal number
    Incr {
        /// The key
        key: String,
        #[command(flatten)]
        form: KeyForm,
        /// Number to add; a negative one is subtracted
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
        #[command(flatten)]
        at: At,
    },
    /// Delete all keys
    Flush {
        #[command(flatten)]
        at: At,
    },
    /// Print a cache's counters
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
        // Enough for the longest values of any server.
        let config = Config { message_len_max: (VALUE_LEN_MAX + 2 * KEY_LEN_MAX) as u32, ..Config::default() };
        let rpc =
            Rpc::open_with(&Nexus::builder().config(config).build()?, &fabric.client_address("", Some(&self.address)))?;
        let client = Client::connect(rpc, addresses_from(&self.address));
        client.map_err(|error| advice::with_start_hint(error, "sinew serve cache", &self.address))
    }
}

/// Addresses of a cache's threads, the first of which is at `address`.
pub fn addresses_from(address: &str) -> impl Iterator<Item = String> + use<> {
    let address = address.to_owned();
    (0..).map_while(move |index| fabrics::nth_address(&address, index).ok())
}

/// Sends the request. The exit status is 5 if there is no such item.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    let (is_there, key) = match command {
        Command::Get { key, form, json, at } => {
            let bytes = form.parse(key)?;
            (get(at.connect()?.inspect(&bytes)?, *form, *json)?, key)
        }
        Command::Set { key, form, value, flags, expires, at } => {
            let options = PutOptions { flags: *flags, lives_s: *expires, ..PutOptions::default() };
            set(at, &form.parse(key)?, value.as_deref(), options)?;
            (true, key)
        }
        Command::Delete { key, form, at } => {
            let bytes = form.parse(key)?;
            (at.connect()?.delete(&bytes)?, key)
        }
        Command::Touch { key, form, expires, at } => {
            let bytes = form.parse(key)?;
            (at.connect()?.touch(&bytes, *expires)?, key)
        }
        Command::Incr { key, form, by, at } => {
            let bytes = form.parse(key)?;
            let number = at.connect()?.add(&bytes, *by)?;
            (number.map(output::print).transpose()?.is_some(), key)
        }
        Command::Flush { at } => return at.connect()?.flush().map(|()| Outcome::Done).map_err(Into::into),
        Command::Stats { json, at } => return stats(&at.connect()?.stats()?, *json),
    };
    if is_there {
        return Ok(Outcome::Done);
    }
    output::complain(format_args!("no item has the key `{key}`"));
    Ok(Outcome::FoundWrong)
}

/// Prints an item. Returns false if there is none.
fn get(item: Option<Item>, form: KeyForm, json: bool) -> anyhow::Result<bool> {
    let Some(item) = item else { return Ok(false) };
    if json {
        output::print(json!({
            "value": form.text(&item.value),
            "len": item.value.len(),
            "flags": item.flags,
            "expires_s": item.lives_s,
            "version": item.version,
        }))?;
    } else {
        output::print_bytes(&item.value)?;
    }
    Ok(true)
}

/// Stores a value, or the contents of standard input.
fn set(at: &At, key: &[u8], value: Option<&str>, options: PutOptions) -> anyhow::Result<()> {
    let value = match value {
        Some(value) => value.as_bytes().to_vec(),
        None => {
            let mut value = Vec::new();
            std::io::stdin().lock().read_to_end(&mut value).context("reading the value from standard input")?;
            value
        }
    };
    match at.connect()?.put(key, &value, options) {
        Ok(_) => Ok(()),
        Err(error @ Error::Refused(Refusal::ValueTooLong { .. })) => {
            Err(anyhow!("{error}: start the cache with a higher --value-max"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Prints counters.
fn stats(partitions: &[Stats], json: bool) -> anyhow::Result<Outcome> {
    let all = partitions.iter().fold(Stats::default(), |all, one| all.plus(one));
    if json {
        let of =
            |stats: &Stats| -> Value { stats.named().map(|(name, value)| (name.to_owned(), json!(value))).collect() };
        let mut object = of(&all);
        object["partitions"] = partitions.iter().map(of).collect();
        output::print(object)?;
        return Ok(Outcome::Done);
    }
    for (name, value) in all.named() {
        let value = if name.ends_with("_bytes") { units::amount(value) } else { value.to_string() };
        output::print(format_args!("{:<16}{value}", name.trim_end_matches("_bytes")))?;
    }
    output::print(format_args!("{:<16}{}", "partitions", partitions.len()))?;
    Ok(Outcome::Done)
}
