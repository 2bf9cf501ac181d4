//! `sinew verbs`: SEND, WRITE, READ and atomics, measured as perftest and the tools of atc16 do, beside the machine's own limit in the
//! same run.
//!
//! - `args` makes a `plan`, on which both sides agree over the rendezvous (`control`).
//! - `serve` starts a `worker` for each server thread, `run` a `client` for each client thread; both work on a `link`'s rig.
//! - `written` is the echo that other benchmarks are measured beside.
//! - `reads` is the rate that other benchmarks are measured beside.
//! - `tour` is what `sinew` alone shows. `limit` is what a figure of `result` stands beside. `message` is what is moved, `device` what moves it.

mod args;
mod client;
mod control;
mod device;
mod limit;
mod link;
mod message;
mod plan;
mod reads;
mod result;
mod run;
mod serve;
pub mod tour;
mod worker;
mod written;

use clap::Subcommand;
pub use device::{Carried, DeviceArgs, Job};
pub use link::{Cq, Domain, Qp, Thread, bytes_of, digits};
pub use reads::ReadRate;
pub use result::{Figures, Kind};
pub use serve::parse_address;
pub use written::WrittenEcho;

use crate::Outcome;

/// The measurements, and their server.
#[derive(Subcommand)]
pub enum Command {
    /// Bytes a second, with many requests in flight
    #[command(after_help = args::BW_HELP)]
    Bw(args::LoadArgs),
    /// Small messages a second
    #[command(after_help = args::RATE_HELP)]
    Rate(args::LoadArgs),
    /// One request at a time: how long it takes
    #[command(after_help = args::LAT_HELP)]
    Lat(args::OpArgs),
    /// Messages that the server sends back
    #[command(after_help = args::ECHO_HELP)]
    Echo(args::EchoArgs),
    /// What there is to measure
    Devices(device::Args),
    /// The other side of measurements
    Serve(serve::Args),
}

/// Does what was asked for.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Bw(args) => args::load(args, Kind::Bandwidth),
        Command::Rate(args) => args::load(args, Kind::Rate),
        Command::Lat(args) => args::latency(args),
        Command::Echo(args) => args::echo(args),
        Command::Devices(args) => device::run(args),
        Command::Serve(args) => serve::run(args),
    }
}
