//! `sinew kv get`, `set`, `delete`, `touch`, `incr`, `flush` and `stats`: one request to a cache.

use std::io::Read;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use sinew::kv::cache::protocol::{PutOptions, Refusal, Stats};
use sinew::kv::cache::{Client, Error};
use sinew::prelude::*;
use sinew::store::cache::{KEY_LEN_MAX, VALUE_LEN_MAX};

use super::ADDRESS;
use crate::fabrics::{self, Purpose};
use sinew_harness::units;

use crate::{Outcome, Usage, advice, interrupted, output};

/// Where the cache is.
#[derive(clap::Args)]
pub struct At {
    /// The cache: the address of its first thread
    #[arg(long, default_value = ADDRESS, value_name = "URL")]
    address: String,
}

/// Print a value; with exit status 1 when there is none.
#[derive(clap::Args)]
pub struct GetArgs {
    key: String,
    /// Print one JSON object, with what is known about the item
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: At,
}

/// Store a value.
#[derive(clap::Args)]
pub struct SetArgs {
    key: String,
    /// The value; without it, what standard input holds
    value: Option<String>,
    /// A number that is given back with the value
    #[arg(long, default_value_t = 0)]
    flags: u32,
    /// Seconds until it ends [default: never]
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    expires: u32,
    #[command(flatten)]
    at: At,
}

/// Forget a key; with exit status 1 when there was none.
#[derive(clap::Args)]
pub struct DeleteArgs {
    key: String,
    #[command(flatten)]
    at: At,
}

/// Give an item another lifetime; with exit status 1 when there is none.
#[derive(clap::Args)]
pub struct TouchArgs {
    key: String,
    /// Seconds from now on until it ends [default: never]
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    expires: u32,
    #[command(flatten)]
    at: At,
}

/// Add to a number, and print what it is then; with exit status 1 when there is none.
///
/// The value is read as decimal digits, of 64 bits without a sign: it wraps around at the upper end, and stays at 0 at the lower one.
#[derive(clap::Args)]
pub struct IncrArgs {
    key: String,
    /// What to add; less than 0: to take away
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    by: i64,
    #[command(flatten)]
    at: At,
}

/// Forget all keys.
#[derive(clap::Args)]
pub struct FlushArgs {
    #[command(flatten)]
    at: At,
}

/// Print what a cache counted.
#[derive(clap::Args)]
pub struct StatsArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: At,
}

impl At {
    fn connect(&self) -> anyhow::Result<Client<Rpc>> {
        let fabric = fabrics::check(&self.address, Purpose::Call).map_err(Usage::of)?;
        interrupted::ends()?;
        // As long as any server's values can be.
        let config = Config { message_len_max: (VALUE_LEN_MAX + 2 * KEY_LEN_MAX) as u32, ..Config::default() };
        let rpc = Rpc::open_with(&Nexus::builder().config(config).build()?, &fabric.client_address(""))?;
        let client = Client::connect(rpc, addresses_from(&self.address));
        client.map_err(|error| advice::serve_there(error, "sinew serve cache", &self.address))
    }
}

/// The addresses of a cache's threads, the first of which is at `address`.
pub fn addresses_from(address: &str) -> impl Iterator<Item = String> + use<> {
    let address = address.to_owned();
    (0..).map_while(move |index| fabrics::nth_address(&address, index).ok())
}

/// What is said where there is no item.
fn no_item(key: &str) -> Outcome {
    output::complain(format_args!("no item has the key `{key}`"));
    Outcome::Failed
}

/// Asks for a value.
pub fn get(args: &GetArgs) -> anyhow::Result<Outcome> {
    let Some(item) = args.at.connect()?.inspect(args.key.as_bytes())? else {
        return Ok(no_item(&args.key));
    };
    if args.json {
        output::print(json!({
            "value": String::from_utf8_lossy(&item.value),
            "len": item.value.len(),
            "flags": item.flags,
            "expires_s": item.lives_s,
            "version": item.version,
        }))?;
    } else {
        output::print_bytes(&item.value)?;
    }
    Ok(Outcome::Done)
}

/// Stores a value.
pub fn set(args: &SetArgs) -> anyhow::Result<Outcome> {
    let value = match &args.value {
        Some(value) => value.clone().into_bytes(),
        None => {
            let mut value = Vec::new();
            std::io::stdin().lock().read_to_end(&mut value).context("reading the value from standard input")?;
            value
        }
    };
    let options = PutOptions { flags: args.flags, lives_s: args.expires, ..PutOptions::default() };
    match args.at.connect()?.put(args.key.as_bytes(), &value, options) {
        Ok(_) => Ok(Outcome::Done),
        Err(error @ Error::Refused(Refusal::ValueTooLong { .. })) => {
            Err(anyhow!("{error}: start the cache with a higher --value-max"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Forgets a key.
pub fn delete(args: &DeleteArgs) -> anyhow::Result<Outcome> {
    let was = args.at.connect()?.delete(args.key.as_bytes())?;
    Ok(if was { Outcome::Done } else { no_item(&args.key) })
}

/// Gives an item another lifetime.
pub fn touch(args: &TouchArgs) -> anyhow::Result<Outcome> {
    let is = args.at.connect()?.touch(args.key.as_bytes(), args.expires)?;
    Ok(if is { Outcome::Done } else { no_item(&args.key) })
}

/// Adds to a number.
pub fn incr(args: &IncrArgs) -> anyhow::Result<Outcome> {
    let Some(number) = args.at.connect()?.add(args.key.as_bytes(), args.by)? else { return Ok(no_item(&args.key)) };
    output::print(number)?;
    Ok(Outcome::Done)
}

/// Forgets everything.
pub fn flush(args: &FlushArgs) -> anyhow::Result<Outcome> {
    args.at.connect()?.flush()?;
    Ok(Outcome::Done)
}

/// Shows counters.
pub fn stats(args: &StatsArgs) -> anyhow::Result<Outcome> {
    let partitions = args.at.connect()?.stats()?;
    let all = partitions.iter().fold(Stats::default(), |all, one| all.plus(one));
    if args.json {
        let of =
            |stats: &Stats| -> Value { stats.named().map(|(name, value)| (name.to_owned(), json!(value))).collect() };
        let mut object = of(&all);
        object["partitions"] = partitions.iter().map(of).collect();
        output::print(object)?;
        return Ok(Outcome::Done);
    }
    for (name, value) in all.named() {
        let value = if name.ends_with("_bytes") { units::size(value as usize) } else { value.to_string() };
        output::print(format_args!("{:<16}{value}", name.trim_end_matches("_bytes")))?;
    }
    output::print(format_args!("{:<16}{}", "partitions", partitions.len()))?;
    Ok(Outcome::Done)
}
