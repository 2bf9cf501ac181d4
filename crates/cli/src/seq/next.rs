//! `sinew seq next`: takes numbers from a sequencer.

use anyhow::ensure;
use serde_json::json;
use sinew::prelude::*;
use sinew::sequencer::rpc::{NEXT, read_answer, request_bytes};
use sinew::sequencer::{CallError, Epoch};

use super::{ADDRESS, parse_epoch};
use crate::fabrics::{self, Purpose};
use crate::{Outcome, Usage, advice, interrupted, output};

const AFTER_HELP: &str = "\
Prints the numbers, one on each line. No other call gets them, and a call that begins after this one is over gets
greater ones.

The epoch identifies the run of the server that gave them. A restarted server may have forgotten how far it had got
(unless it keeps notes: see `sinew serve sequencer --help`); with --epoch its numbers are refused.

--json prints first, last, count and epoch.

Examples:
  sinew seq next
  sinew seq next --address udp://10.0.0.1:7000 --count 100
  sinew seq next --epoch 00c0ffee00c0ffee";

/// Take the next number, or several.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Address of the sequencer: shm://NAME, udp://HOST:PORT, ibverbs://HOST:PORT or xdp://INTERFACE/IP:PORT
    #[arg(long, value_name = "URL", default_value = ADDRESS)]
    address: String,
    /// Count of consecutive numbers to take, from 1
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Fail unless the server has this epoch, 16 hexadecimal digits, as an earlier call printed it
    #[arg(long, value_parser = parse_epoch)]
    epoch: Option<Epoch>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Takes numbers, and prints them.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let fabric = fabrics::check(&args.address, Purpose::Call).map_err(Usage::of)?;
    interrupted::exit_on_signal()?;
    let mut rpc = Rpc::open(&fabric.client_address("", Some(&args.address)))?;
    let absent = |error| advice::with_start_hint(error, "sinew serve sequencer", &args.address);
    let session = rpc.connect(&args.address).map_err(absent)?;
    let reply = rpc.call(session, NEXT, request_bytes(args.count))?;
    let (numbers, found) = read_answer(&reply, args.count)?;
    if let Some(expected) = args.epoch {
        ensure!(found == expected, CallError::Restarted { expected, found });
    }
    if args.json {
        let (first, last) = (numbers.first, numbers.last());
        output::print(json!({ "first": first, "last": last, "count": numbers.count, "epoch": found.to_string() }))?;
        return Ok(Outcome::Done);
    }
    let lines: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    output::print(lines.join("\n"))?;
    Ok(Outcome::Done)
}
