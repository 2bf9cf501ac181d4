//! `sinew rpc serve`, and what other servers of endpoints share with it.

use std::fmt::Display;
use std::io::Read;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::json;
use sinew::host::Interrupt;
use sinew::prelude::*;
use sinew_harness::units::counted;
use sinew_harness::{machine, service};

use crate::endpoint_args::LimitArgs;
use crate::fabrics::{self, Purpose};
use crate::{Outcome, Usage, advice, output};

/// Line with which a child server tells its parent that it serves at all its addresses.
pub const READY: &str = "ready";
/// Prefix of each address that is served.
pub const SERVING: &str = "serving ";
/// Prefix of the reason why a child cannot serve, which its parent reports.
pub const FAILED: &str = "failed ";

/// Time that a child whose parent is gone has to shut down cleanly.
const GRACE: Duration = Duration::from_secs(2);

const AFTER_HELP: &str = "\
The server answers these request types:
  1 echo     the request comes back
  2 sink     checks a test message, and answers 32 bytes with the verdict
  3 report   the endpoint's counters as JSON
  4 sleep    a worker answers, after the milliseconds given in the request
  5 repeat   as many bytes come back as the first 4 say (little-endian): the request, over and over

--json prints first `serving`, a list of addresses, and at the end `endpoints`, with the address, sessions,
requests_handled, packets_received, packets_sent and drops by reason of each.

Examples:
  sinew rpc serve shm://test
  sinew rpc serve udp://0.0.0.0:7000 --threads 2 --pin 2,3   # 7000 and 7001
  sinew rpc serve ibverbs://0.0.0.0:7000     # the first usable RDMA device
  sinew rpc serve 'ibverbs://0.0.0.0:7000?device=mlx5_0:2&gid=3'";

/// Run a test server until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Address to serve at: shm://NAME, udp://HOST:PORT, ibverbs://HOST:PORT or xdp://INTERFACE/IP:PORT
    address: String,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// Threads of a server, and their limits.
#[derive(clap::Args)]
pub struct ThreadArgs {
    /// Number of server threads, each with an endpoint of its own; all but the first serve at NAME.1, NAME.2, ... or
    /// PORT+1, PORT+2, ...
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Processors to pin the threads to, one for each; repeat the option, or separate them by commas [default: threads
    /// are not pinned]
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Form of a server's reports, and their reader.
#[derive(clap::Args)]
pub struct OutputArgs {
    /// Print JSON, one object on each line: first the addresses, at the end a summary
    #[arg(long)]
    json: bool,
    /// Serve for a parent process: print `ready`, and end when standard input does
    #[arg(long, hide = true)]
    child: bool,
}

impl OutputArgs {
    /// Whether a parent process started it and waits for it.
    pub fn is_child(&self) -> bool {
        self.child
    }

    /// Prints its addresses, and, for people, what to do next.
    pub fn print_ready(&self, addresses: &[String], next_step: impl Display) -> anyhow::Result<()> {
        if self.json {
            output::print(json!({ "serving": addresses }))?;
        } else {
            print_addresses(addresses)?;
        }
        if self.child {
            output::print(READY)?;
        }
        self.print(next_step)
    }

    /// Prints a value at the end: as JSON, or as `text` for people.
    pub fn print_end(&self, name: &str, value: impl Serialize, text: impl Display) -> anyhow::Result<()> {
        if self.json && !self.child {
            output::print(json!({ name: value }))?;
        }
        self.print(text)
    }

    /// Prints text for people only.
    pub fn print(&self, text: impl Display) -> anyhow::Result<()> {
        if !self.json && !self.child {
            output::print(text)?;
        }
        Ok(())
    }
}

impl ThreadArgs {
    /// Whether a parent process started it and waits for it.
    pub fn is_child(&self) -> bool {
        self.output.child
    }

    /// Threads to serve with.
    pub fn threads(&self) -> usize {
        usize::from(self.threads)
    }

    /// Processors to keep them on, if any were given.
    pub fn pins(&self) -> &[usize] {
        &self.pin
    }

    /// Configuration of the endpoints.
    pub fn config(&self) -> Config {
        self.limits.config()
    }

    /// One address for each thread, or an error about the options.
    pub fn addresses(&self, address: &str) -> anyhow::Result<Vec<String>> {
        self.check_pins()?;
        let addresses = (0..self.threads()).map(|index| fabrics::nth_address(address, index));
        let addresses = addresses.collect::<anyhow::Result<Vec<_>>>()?;
        addresses.iter().try_for_each(|address| fabrics::check(address, Purpose::Serve).map(|_| ()))?;
        Ok(addresses)
    }

    /// Checks that the threads can run on the processors given.
    pub fn check_pins(&self) -> anyhow::Result<()> {
        let threads = self.threads();
        ensure!(
            self.pin.is_empty() || self.pin.len() == threads,
            "--pin: {} for {}; name one for each",
            counted(self.pin.len(), "processor"),
            counted(threads, "thread")
        );
        machine::check_pins(&self.pin)
    }

    /// Warns if threads would have to share processors.
    fn warn_if_crowded(&self) {
        let (threads, cpus) = (self.threads(), machine::cpus().len());
        if threads > cpus && !self.output.child {
            output::complain(format_args!(
                "--threads {threads}: there {} for this process, so threads take turns and answers wait; give as many \
                 threads as processors, or fewer",
                format_args!("{} {}", if cpus == 1 { "is" } else { "are" }, counted(cpus, "processor"))
            ));
        }
    }

    /// Starts a server with a thread at each address.
    pub fn start(&self, server: sinew::Server, addresses: Vec<String>) -> anyhow::Result<sinew::ServerHandle> {
        let mut server = server;
        for (index, address) in addresses.into_iter().enumerate() {
            server = match self.pin.get(index) {
                Some(&cpu) => server.at_on_cpu(address, cpu),
                None => server.at(address),
            };
        }
        Ok(server.start()?)
    }

    /// Runs the server that `start` starts until a signal, or, as a child, until standard input ends. `next_step` says,
    /// for an address, what can be done with the server. Returns the endpoints' reports, or `None` after a failure that
    /// has been reported.
    pub fn serve(
        &self,
        start: impl FnOnce() -> anyhow::Result<sinew::ServerHandle>,
        next_step: impl FnOnce(&str) -> String,
    ) -> anyhow::Result<Option<Vec<sinew::EndpointReport>>> {
        let Some((handle, interrupt)) = begin(self.output.child, |interrupt| Ok((start()?, interrupt)))? else {
            return Ok(None);
        };
        let addresses: Vec<_> = handle.addresses().iter().map(ToString::to_string).collect();
        self.tell_ready(&addresses, format_args!("Stop with Ctrl-C. {}", next_step(&advice::quoted(&addresses[0]))))?;
        match handle.run_until_interrupted(interrupt) {
            // The requested stop did not cause this error. It is reported here, because `main` would print only
            // "interrupted".
            Err(error) if interrupt.is_set() => {
                output::complain(output::describe(&error.into()));
                Ok(None)
            }
            result => Ok(Some(result?)),
        }
    }

    /// Prints its addresses, and, for people, what to do next.
    pub fn tell_ready(&self, addresses: &[String], next_step: impl Display) -> anyhow::Result<()> {
        self.warn_if_crowded();
        self.output.print_ready(addresses, next_step)
    }

    /// Prints a value at the end: as JSON, or as `text` for people.
    pub fn tell_end(&self, name: &str, value: u64, text: impl Display) -> anyhow::Result<()> {
        self.output.print_end(name, value, text)
    }

    /// Prints, at the end, what each endpoint did.
    pub fn print_reports(&self, reports: &[sinew::EndpointReport]) -> anyhow::Result<()> {
        if self.output.child {
            return Ok(());
        }
        if self.output.json {
            output::print(json!({ "endpoints": reports.iter().map(service::report).collect::<Vec<_>>() }))?;
            return Ok(());
        }
        for report in reports {
            let (address, sessions) = (report.address.to_string(), report.sessions);
            output::print(service::sentence(&address, &report.stats, &report.port_stats, sessions))?;
        }
        Ok(())
    }
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let threads = &args.threads;
    let addresses = threads.addresses(&args.address).map_err(Usage::of)?;
    let start = || {
        let server = service::nexus(threads.config())?
            .server()
            .program(|_endpoint, _rpc| Ok(|rpc: &mut Rpc| -> sinew::Result<Flow> { Ok(service::turn(rpc).into()) }));
        threads.start(server, addresses)
    };
    let advice = |address: &str| {
        let more = if threads.threads() > 1 { format!(" --threads {}", threads.threads()) } else { String::new() };
        format!("Measure with: sinew rpc bench latency --address {address}{more}")
    };
    let Some(reports) = threads.serve(start, advice)? else { return Ok(Outcome::Failed) };
    threads.print_reports(&reports)?;
    Ok(Outcome::Done)
}

/// Prints the addresses, one on each line.
pub fn print_addresses(addresses: &[String]) -> anyhow::Result<()> {
    addresses.iter().try_for_each(|address| output::print(format_args!("{SERVING}{address}")).map(|_| ()))
}

/// Does work that ends with a signal, or, for a child, with standard input. A child that fails reports the error to its
/// parent, and returns `None`.
pub fn begin<T>(is_child: bool, work: impl FnOnce(Interrupt) -> anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    if is_child {
        end_with_stdin(interrupt)?;
    }
    match work(interrupt) {
        Err(error) if is_child => {
            output::print(format_args!("{FAILED}{}", output::describe(&error)))?;
            Ok(None)
        }
        result => result.map(Some),
    }
}

/// Has the process shut down cleanly when its parent closes the pipe; the kernel closes it for a parent that was
/// killed.
pub fn end_with_stdin(interrupt: Interrupt) -> anyhow::Result<()> {
    let watch = move || {
        let mut ignored = [0; 64];
        let mut stdin = std::io::stdin().lock();
        while !matches!(stdin.read(&mut ignored), Ok(0) | Err(_)) {}
        interrupt.set();
        std::thread::sleep(GRACE);
        std::process::exit(1);
    };
    std::thread::Builder::new().name("sinew-parent".to_owned()).spawn(watch).context("starting a thread")?;
    Ok(())
}
