//! `sinew verbs`: SEND, WRITE, READ and atomics, measured as perftest and the tools of atc16 do, beside the machine's
//! own limit in the same run.
//!
//! - `args` makes a plan, on which both sides agree over the rendezvous (`control`).
//! - `serve` starts a thread for each server thread of the plan, `run` a driver of the harness for each client thread.
//! - `limit` is what a figure is compared with, `show` prints the figure, `device` opens what moves the messages.

mod args;
mod control;
mod device;
mod kind;
mod limit;
mod run;
mod serve;
mod show;

use std::time::Duration;

use clap::Subcommand;
use sinew_harness::load::verbs::{Op, TransportKind, VerbsPlan, WorkKind};
use sinew_harness::reference::References;
use sinew_harness::run::Progress;
use sinew_harness::{Figure, machine};

pub use args::INLINE_DEFAULT;
pub use device::{DeviceArgs, Job, VerbsFabric};
pub use kind::Kind;
pub use run::Bare;
pub use serve::parse_address;

use crate::Outcome;

/// The measurements, and their server.
#[derive(Subcommand)]
pub enum Command {
    /// Measure the bandwidth of requests, with many in flight
    #[command(after_help = args::BW_HELP)]
    #[command(mut_arg("size", |arg| arg.help(
        "Length of a message, in bytes, at most 64M [default: 64K; 8 for atomics]"
    )))]
    #[command(mut_arg("doorbell", |arg| arg.help("Requests started by one doorbell, at most --window [default: 1]")))]
    Bw(args::LoadArgs),
    /// Measure the rate of small messages
    #[command(after_help = args::RATE_HELP)]
    Rate(args::LoadArgs),
    /// Measure the latency of one request at a time
    #[command(after_help = args::LAT_HELP)]
    #[command(mut_arg("inline", |arg| arg.help(
        "Copy messages into the requests [default up to 220 bytes, for send, write and write-imm]"
    )))]
    #[command(mut_arg("signal", |arg| arg.help(
        "Signaling interval: one request in this many is signaled [default: 64 or less; 1 for READs and atomics]"
    )))]
    // A latency is that of one request at a time on one queue pair: other values are refused.
    #[command(mut_arg("window", |arg| arg.hide(true)), mut_arg("qps", |arg| arg.hide(true)))]
    #[command(mut_arg("threads", |arg| arg.hide(true)), mut_arg("inbound", |arg| arg.hide(true)))]
    #[command(mut_arg("outbound", |arg| arg.hide(true)), mut_arg("all_to_all", |arg| arg.hide(true)))]
    Lat(args::OpArgs),
    /// Measure messages that the server sends back
    #[command(after_help = args::ECHO_HELP)]
    #[command(mut_arg("transport", |arg| arg.help("Transport of the queue pairs [default: uc; ud for --form ss]")))]
    #[command(mut_arg("size", |arg| arg.help("Length of a message, in bytes, at most 64M [default: 32]")))]
    #[command(mut_arg("inline", |arg| arg.help("Copy messages into the requests [default up to 220 bytes]")))]
    #[command(mut_arg("window", |arg| arg.help("Messages in flight on each queue pair, 1 to 16384 [default: 1]")))]
    #[command(mut_arg("signal", |arg| arg.help(
        "Signaling interval: one request in this many is signaled, 1 to 16384 [default: 64, less for long messages]"
    )))]
    #[command(mut_arg("wait", |arg| arg.help("Way in which threads wait for completions [default: poll]")))]
    Echo(args::EchoArgs),
    /// List the devices that can be measured
    Devices(device::Args),
    /// Serve measurements to clients
    Serve(serve::Args),
}

/// Runs the command.
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

/// Measures for the tour a WRITE, a SEND, a READ and an atomic, each between two processes. What each one writes or
/// returns is checked.
pub fn for_tour(fabric: VerbsFabric, duration: Duration, progress: &mut Progress<'_>) -> anyhow::Result<Vec<Figure>> {
    let pair = machine::default_pair();
    let cpus = || vec![pair.map(|cpus| cpus[1])];
    let rate = |op, carrier| {
        let plan = VerbsPlan::new(WorkKind::Load(op), carrier, 32);
        (Kind::Rate, VerbsPlan { doorbell: 16, inline: true, cpus: cpus(), ..plan })
    };
    let latency = |op, size, fresh| {
        let plan = VerbsPlan::new(WorkKind::Load(op), TransportKind::Rc, size);
        (Kind::Latency, VerbsPlan { window: 1, signal: 1, fresh, cpus: cpus(), ..plan })
    };
    let plans = [
        rate(Op::Write, TransportKind::Rc),
        rate(Op::Send, TransportKind::Ud),
        latency(Op::Read, 32, fabric == VerbsFabric::Shm),
        latency(Op::FetchAdd, 8, false),
    ];
    let device = DeviceArgs { fabric, device: None };
    device.run(run::Measure {
        plans: &plans,
        inline_asked: false,
        duration,
        client_cpus: &[pair.map(|cpus| cpus[0])],
        references: &References::default(),
        device: &device,
        address: None,
        progress,
    })
}
