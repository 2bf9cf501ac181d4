//! `sinew serve block`.

use anyhow::{Context, ensure};
use serde_json::{Map, Value};
use sinew::host::{HostClock, lengthen_backlog, raise_descriptor_limit, serve_paging};
use sinew::remote_block::{Config, Counters, Listener, Server};
use sinew::remote_memory::RamStore;
use sinew_harness::units::{self, parse_size};

use crate::serve::{TellArgs, begin};
use crate::socket_args::{self, parse_mode};
use crate::{Outcome, Usage, advice, output};

/// Clients that may wait to be let in.
const BACKLOG: u16 = 128;
/// The least there is a device of.
const MEMORY_MIN: usize = 4096;

const AFTER_HELP: &str = "\
The protocol is NBD: the kernel's client, qemu, libnbd's and nbdkit's tools and fio can use the device, several at once. What is written is gone when the
server ends.

There is no key: whoever reaches the server reads and writes all of the device. So it listens on this host alone, unless --open says that whoever
reaches the port may have it.

JSON: first `serving`, a list of one address; at the end `counters`: what was asked for, by kind, and what was refused or closed, by reason.

Examples:
  sinew serve block --memory 1G --at unix:/run/memory.sock
  nbdinfo 'nbd+unix:///?socket=/run/memory.sock'          elsewhere
  sinew serve block --memory 4G --at unix:/run/memory.sock --for-paging
  sinew swap on unix:/run/memory.sock                     elsewhere, as root
  sinew serve block --memory 1G --at 0.0.0.0:10809 --open";

/// Serve memory as a block device until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Bytes of the device, in this process's memory, which is taken as it is written
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = parse_size)]
    memory: usize,
    /// Where clients come in: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    at: String,
    /// What the device is called; clients that ask for none get it, too
    #[arg(long, default_value = "memory")]
    name: String,
    /// Let other hosts in: whoever reaches the port reads and writes all of the device
    #[arg(long)]
    open: bool,
    /// Be fit to be swapped to by this host: memory is locked, and the kernel never ends this process
    #[arg(long)]
    for_paging: bool,
    /// Connections
    #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Mode of a Unix socket, in octal: who may connect [default: 700]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    socket_mode: Option<u32>,
    #[command(flatten)]
    tells: TellArgs,
}

fn parse_address(text: &str) -> Result<String, String> {
    socket_args::parse_address(text, "for example 127.0.0.1:10809, or unix:/run/memory.sock")
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.memory >= MEMORY_MIN,
            "--memory {}: a device has {} at least",
            units::size(self.memory),
            units::size(MEMORY_MIN)
        );
        ensure!(
            self.socket_mode.is_none() || self.at.starts_with("unix:"),
            "--socket-mode is for a Unix socket: --at unix:PATH"
        );
        Ok(())
    }

    fn start(&self) -> anyhow::Result<Server<RamStore>> {
        let config = Config { name: self.name.clone(), connections_max: self.connections.into(), ..Config::default() };
        // With fewer there can be fewer clients.
        let _ = raise_descriptor_limit();
        let listening = || format!("listening at {}", self.at);
        let listener = Listener::bind(&self.at).with_context(listening)?;
        if listener.is_open_to_others() && !self.open {
            let text = format!(
                "--at {}: other hosts reach it, and whoever does reads and writes all of the device, since NBD has no key; say --open if that is meant",
                self.at
            );
            return Err(Usage(text).into());
        }
        lengthen_backlog(&listener, BACKLOG).with_context(listening)?;
        if let Some(mode) = self.socket_mode {
            listener.set_mode(mode).with_context(listening)?;
        }
        let memory = units::size(self.memory);
        let store = RamStore::new(self.memory, config.arena_bytes())
            .with_context(|| format!("reserving {memory} of memory"))?;
        Ok(Server::open(listener, store, config)?)
    }
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.check().map_err(Usage::of)?;
    if args.for_paging {
        // Before there are threads, which are to be so, too.
        for missing in serve_paging().context("--for-paging")? {
            output::complain(format_args!("--for-paging: {missing}; it goes on without"));
        }
    }
    let started = begin(args.tells.is_child(), |interrupt| Ok((args.start()?, interrupt)))?;
    let Some((mut server, interrupt)) = started else { return Ok(Outcome::Failed) };
    let address = server.address().to_owned();
    let ask = format!("Stop with Ctrl-C. Look at it with: nbdinfo {}", advice::quoted(&uri(&address)));
    args.tells.tell_ready(&[address], ask)?;
    let _guard = interrupt.wake_on_interrupt(server.waker());
    let result = server.run(&HostClock::new(), || interrupt.is_set()).context("waiting for clients");
    let counters = server.counters();
    args.tells.tell_end("counters", all(counters), sentence(counters))?;
    if let Err(error) = result {
        output::complain(output::describe(&error));
        return Ok(Outcome::Failed);
    }
    Ok(Outcome::Done)
}

/// What libnbd calls the address.
fn uri(address: &str) -> String {
    match address.strip_prefix("unix:") {
        Some(path) => format!("nbd+unix:///?socket={path}"),
        None => format!("nbd://{address}"),
    }
}

fn all(counters: &Counters) -> Map<String, Value> {
    counters.all().into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect()
}

fn sentence(counters: &Counters) -> String {
    let Counters { connections, reads, writes, refused, .. } = counters;
    let [read, written] = [counters.bytes_read, counters.bytes_written].map(|bytes| units::size(bytes as usize));
    format!(
        "{connections} connections: {read} read by {reads} requests, {written} written by {writes}; {refused} requests refused"
    )
}
