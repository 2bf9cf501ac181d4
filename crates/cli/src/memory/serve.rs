//! `sinew serve memory`: a donor, which lends memory to other hosts.

use anyhow::{Context, ensure};
use sinew::Program;
use sinew::fabric::verbs::Device;
use sinew::host::{Interrupt, SystemEntropy, WakeOnInterrupt};
use sinew::prelude::*;
use sinew::remote_memory::donor::{CallsOnly, Key, MemoryProvider, Service, ServiceConfig};
use sinew_harness::units::{self, parse_size};

use crate::fabrics::{self, Purpose};
use crate::reach::{AccessArgs, AccessMeans, KeyArgs, is_of_this_host};
use crate::serve::ThreadArgs;
use crate::verbs::{Job, VerbsFabric};
use crate::{Outcome, Usage, output, paging};

const AFTER_HELP: &str = "\
Other hosts keep volumes in this memory; at ADDRESS they ask for slabs (large pieces) of it. With an address of shm://
or ibverbs:// they read and write the memory themselves, past this program; with one of udp:// or xdp:// this program
does so for them, by calls. --fabric overrides that. Memory is taken from the system as it is used, and is lost with the
server: so a volume has copies at several donors. A volume keeps its memory until it moves a copy elsewhere, is removed
(`sinew memory remove`) or the servers end. `sinew memory volumes` lists who has memory here. What is given back is
zeroed before it is lent again.

SIGUSR1 asks for the memory back: the server lends nothing more, open volumes (serve block) and file services (serve
files) move what they have here to other donors with room, and the server ends once nothing is left here. Meanwhile new
files have fewer copies if too few other donors are left. Ctrl-C ends it at once, and copies are rebuilt from others.

An address that other hosts can reach needs --key-file, any 16 bytes or more that all hosts of a pool share, or --open,
with which no key is needed.

Examples:
  sinew serve memory shm://donor1 --memory 8G
  head -c 32 /dev/urandom > pool.key                 # makes a key
  sinew serve memory udp://0.0.0.0:7200 --memory 8G --key-file pool.key
  sinew serve memory ibverbs://0.0.0.0:7200 --memory 8G \\
      --key-file pool.key
  sinew serve block udp://a:7200 udp://b:7200 udp://c:7200 --size 4G \\
      --key-file pool.key --at unix:/run/disk.sock   # uses the memory";

/// Lend memory to other hosts' volumes until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Address at which users ask for memory: shm://NAME, udp://HOST:PORT, ibverbs://HOST:PORT or
    /// xdp://INTERFACE/IP:PORT
    address: String,
    /// Memory to lend, in bytes, at least 1M, as in 8G
    #[arg(long, allow_negative_numbers = true, value_parser = parse_size)]
    memory: usize,
    #[command(flatten)]
    key: KeyArgs,
    /// Lend memory to anybody who reaches the address, without a key
    #[arg(long, conflicts_with = "key_file")]
    open: bool,
    /// Make the memory fit for this host's own swap: all of it is taken at the start and locked, and the kernel never
    /// kills the process when memory runs out
    #[arg(long)]
    for_paging: bool,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// Smallest amount of memory worth lending, in bytes: a slab of a small volume.
const MEMORY_MIN: usize = 1 << 20;

/// Checks that the memory to lend is at least `MEMORY_MIN`.
pub fn check_len(memory: usize) -> anyhow::Result<()> {
    let least = units::size(MEMORY_MIN);
    ensure!(
        memory >= MEMORY_MIN,
        "--memory {}: must be at least {least}, for example --memory 8G",
        units::size(memory)
    );
    Ok(())
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        fabrics::check(&self.address, Purpose::Serve)?;
        self.access.check(&self.address)?;
        ensure!(self.threads.threads() == 1, "--threads: a donor gets so few requests that one thread is enough");
        check_len(self.memory)?;
        let is_local_only =
            is_of_this_host(&self.address) && self.access.means_for(&self.address) != AccessMeans::Ibverbs;
        ensure!(
            is_local_only || self.open || self.key.key_file.is_some(),
            "{}: hosts other than this one reach it, and would get memory to read and write. Give them a key \
             (--key-file FILE, the same on all hosts of the pool), or let everybody in (--open)",
            self.address
        );
        Ok(())
    }
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.check().map_err(Usage::of)?;
    let addresses = args.threads.addresses(&args.address).map_err(Usage::of)?;
    if args.for_paging {
        paging::prepare(args.memory.saturating_mul(addresses.len()))?;
    }
    let serving = Serving { args, addresses, key: args.key.key()? };
    match args.access.device_args(&args.address) {
        Some(device) => device.run(serving),
        None => serving.with(CallsOnly),
    }
}

struct Serving<'a> {
    args: &'a Args,
    addresses: Vec<String>,
    key: Option<Key>,
}

impl Job for Serving<'_> {
    type Result = Outcome;

    fn run<D: Device + 'static>(self, device: D, _: VerbsFabric) -> anyhow::Result<Outcome> {
        self.with(device)
    }
}

impl Serving<'_> {
    fn with<L: MemoryProvider + Clone + Send + Sync + 'static>(self, lends: L) -> anyhow::Result<Outcome> {
        let Self { args, addresses, key } = self;
        let (threads, memory) = (&args.threads, args.memory);
        let lent = Lent { memory, key, is_backed: args.for_paging };
        let start = || {
            // Events of clients that leave, so that strangers leave nothing behind.
            let config = Config { client_events: true, ..threads.config() };
            let nexus = Nexus::builder().config(config).build()?;
            let interrupt = Interrupt::install()?;
            interrupt.catch_request().context("catching SIGUSR1")?;
            threads.start(server(&nexus, lends, lent, Some(interrupt)), addresses)
        };
        let advice = |_: &str| format!("It lends {} of memory.", units::size(memory));
        let Some(reports) = threads.serve(start, advice)? else { return Ok(Outcome::Failed) };
        threads.print_reports(&reports)?;
        Ok(Outcome::Done)
    }
}

/// Memory that is lent.
#[derive(Clone)]
pub struct Lent {
    /// Bytes.
    pub memory: usize,
    /// Key that clients need.
    pub key: Option<Key>,
    /// Whether all of it is taken from the system at the start.
    pub is_backed: bool,
}

/// A server of a donor. It withdraws its memory when `interrupt`, if there is one, gets a request.
fn server<L: MemoryProvider + Clone + Send + Sync + 'static>(
    nexus: &Nexus,
    lends: L,
    lent: Lent,
    interrupt: Option<Interrupt>,
) -> sinew::Server {
    nexus.server().program(move |_endpoint, rpc| {
        let Lent { memory, key, is_backed } = lent.clone();
        let config = ServiceConfig { is_backed, ..ServiceConfig::new(memory, key) };
        let service = Service::new(&lends, config, Box::new(SystemEntropy::new()?));
        let service = service.with_context(|| format!("exposing {} of memory", units::size(memory)))?;
        if is_backed {
            rpc.back_buffers(paging::DATA);
        }
        let wakes = interrupt.map(|interrupt| interrupt.wake_on_interrupt(rpc.waker()));
        Ok::<_, anyhow::Error>(Part { service, interrupt, is_withdrawing: false, _wakes: wakes })
    })
}

/// Lends memory at an address, on a thread of its own, beside another service.
pub fn lend(access: &AccessArgs, address: &str, lent: Lent) -> anyhow::Result<sinew::ServerHandle> {
    let lending = Lending { address, lent };
    match access.device_args(address) {
        Some(device) => device.run(lending),
        None => lending.with(CallsOnly),
    }
}

struct Lending<'a> {
    address: &'a str,
    lent: Lent,
}

impl Job for Lending<'_> {
    type Result = sinew::ServerHandle;

    fn run<D: Device + 'static>(self, device: D, _: VerbsFabric) -> anyhow::Result<sinew::ServerHandle> {
        self.with(device)
    }
}

impl Lending<'_> {
    fn with<L: MemoryProvider + Clone + Send + Sync + 'static>(self, lends: L) -> anyhow::Result<sinew::ServerHandle> {
        let nexus = Nexus::builder().config(Config { client_events: true, ..Config::default() }).build()?;
        Ok(server(&nexus, lends, self.lent, None).at(self.address).start()?)
    }
}

/// The donor's thread, which answers requests for slabs, and reads and writes by calls.
struct Part<L: MemoryProvider> {
    service: Service<L>,
    interrupt: Option<Interrupt>,
    /// Whether it has asked for its memory back.
    is_withdrawing: bool,
    _wakes: Option<WakeOnInterrupt>,
}

impl<L: MemoryProvider> Part<L> {
    /// Asks for the memory back, and ends the server once it has all of it.
    fn begin_withdrawal(&mut self, interrupt: Interrupt) {
        if !self.is_withdrawing {
            self.is_withdrawing = true;
            self.service.begin_withdrawal();
            let lent = self.service.donor().lent_bytes();
            output::complain(format_args!(
                "nothing more is lent; {} are still in use by volumes and file services, which move them while they run",
                units::size(lent as usize)
            ));
        }
        if self.service.donor().lent_bytes() == 0 {
            output::complain("none of the memory is in use any more");
            interrupt.set();
        }
    }
}

impl<L: MemoryProvider> Program for Part<L> {
    type Error = anyhow::Error;

    fn turn(&mut self, rpc: &mut Rpc) -> anyhow::Result<Flow> {
        let service = &mut self.service;
        let busy = rpc.turn_with(|call| service.handle_call(call)) | self.service.turn();
        while let Some(event) = rpc.poll_client_event() {
            self.service.handle_event(event);
        }
        while rpc.poll_completion().is_some() || rpc.poll_event().is_some() {}
        if let Some(interrupt) = self.interrupt.filter(|it| it.is_requested() && !it.is_set()) {
            self.begin_withdrawal(interrupt);
        }
        Ok(busy.into())
    }
}
