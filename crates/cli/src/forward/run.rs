//! `sinew forward run`: forwards frames between interfaces.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::{Map, Value};
use sinew::fabric::frames::FramePort;
use sinew::fabric::readiness::wait_on;
use sinew::fabric::{Clock, Generator, PollPolicy, Poller, Step};
use sinew::forward::echo::Echo;
use sinew::forward::interface::{self, INTERFACES_MAX, Interface};
use sinew::forward::named::{self, NameForwarder};
use sinew::forward::router::{Router, RouterConfig};
use sinew::forward::switch::{self, Switch};
use sinew::forward::{Application, Fib, Forwarder, NeighbourLimits, routes};
use sinew::host::{HostClock, Interrupt, SystemEntropy};
use sinew_harness::machine;
use sinew_harness::units::{counted, parse_seconds};

use super::FormName;
use super::counter_report::{CounterReport, ports};
use super::ports::{Job, LEFT_UNDONE, Spec, with_ports};
use super::reload::{Load, Reload, free};
use crate::serve::{OutputArgs, begin};
use crate::{Outcome, Usage, infile, output};

pub const HELP: &str = "\
Each interface has a name, a port, and options, separated by commas:

  NAME=PORT            the port: xdp://INTERFACE, all frames of a network
                       interface, which the kernel then does not see (needs
                       root and Linux 5.9); or shm://NAME or udp://HOST:PORT,
                       each of whose packets is a frame
  to=PORT              the other end of shm:// or udp:// [default: the sender
                       of the first frame]
  ip=ADDRESS/LENGTH    an address and its network; may be repeated
  mac=ADDRESS          its Ethernet address, for shm:// and udp://
                       [default: random]
  mtu=BYTES            the largest packet
                       [default: 1500, or what the port carries]

A network interface must accept frames for other addresses than its own: ip link set INTERFACE promisc on, for a
switch, and allmulticast on, for a router of IPv6. If the port is one end of a virtual pair, the kernel at the other
end must not leave checksums and segmentation to hardware: run ethtool -K INTERFACE tx off gso off tso off there, with
the name of the other end. Otherwise sinew warns, at start or when such packets arrive; packets that are too long
are dropped and counted as `unfinished`.

--table is a file with one entry on each line; comments begin with #:

  router   10.0.0.0/8 via 10.1.0.2 dev lan      default via fe80::1 dev wan
           192.0.2.0/24 dev lan                 198.51.100.0/24 discard
  switch   02:00:00:00:00:01 dev lan
  names    /org/example dev lan

On SIGHUP the file is read again while forwarding goes on, and the new table is swapped in between two bursts; no
frame is lost. A file with an error changes nothing; the complaint names the line. A half-written file may look right,
so write a new one and rename it. Ctrl-C ends the command.

--json prints one object on each line: first `serving`, the interfaces; then, every --every seconds and at the end,
`forwarder`, with frames received, forwarded, taken (for the forwarder itself), made (answers, questions, errors),
dropped by reason, and the counts of each interface.

Examples:
  sinew forward run --interface lan=shm://lan,ip=10.1.0.1/24 \\
      --interface wan=udp://0.0.0.0:7000,to=udp://peer:7000,ip=10.2.0.1/24 \\
      --table routes
  sinew forward run --interface lan=xdp://eth1,ip=10.1.0.1/24 \\
      --interface wan=xdp://eth2,ip=10.2.0.1/24 --table routes
  sinew forward run --as switch --every 10 \\
      --interface a=shm://a --interface b=shm://b
  kill -HUP $(pidof sinew)";

/// Forwarding application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// By IPv4 and IPv6 destination
    Router,
    /// By Ethernet address; it learns where stations are
    Switch,
    /// By names of Interests (NDN)
    Names,
    /// By a number in the frame, without any lookup
    Echo,
}

/// Options of `sinew forward run`.
#[derive(clap::Args)]
pub struct Args {
    /// Interface to forward from and to, as NAME=PORT with options (see below); repeat the option for each, at most 32
    #[arg(long = "interface", value_name = "NAME=PORT,...", required = true)]
    interfaces: Vec<Spec>,
    /// Way in which frames are forwarded
    #[arg(long = "as", value_enum, default_value = "router")]
    kind: Kind,
    /// File of routes, stations or names (see below), at most 256 MB [default: an empty table]
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Form in which the keys of a burst are looked up
    #[arg(long, value_enum, default_value = "interleaved")]
    form: FormName,
    /// Stations that a switch has room for, 1 to 1073741824
    #[arg(long, default_value_t = 1 << 16, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    stations: u32,
    /// Let a switch know only the stations of its table
    #[arg(long)]
    no_learning: bool,
    /// Never sleep, for the lowest latency, at the cost of one whole processor
    #[arg(long)]
    busy: bool,
    /// Processor to pin the forwarder to [default: it is not pinned]
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
    /// Seconds between lines of counters, 0.01 to 86400 [default: they are printed at the end only]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = parse_seconds)]
    every: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Largest file of a table, in bytes: some five million routes.
const TABLE_LEN_MAX: u64 = 256 << 20;

/// An application whose table can be exchanged.
trait Live: Application + Sized {
    type Table: Send + 'static;
    /// Noun for an entry of the table.
    const ENTRY: &'static str;

    /// Installs a new table, and returns the old one, which takes long to free.
    fn exchange(&mut self, table: Self::Table) -> Self::Table;

    /// Further values that it reports beside its counters, by name. The first is the number of the table's entries.
    fn more(&self) -> Vec<(&'static str, u64)>;

    /// Takes an interface whose packets turned out to arrive unfinished, if there is one to report.
    fn unfinished(&mut self) -> Option<u16> {
        None
    }
}

impl Live for Router {
    type Table = Fib;
    const ENTRY: &'static str = "route";

    fn exchange(&mut self, table: Fib) -> Fib {
        self.install(table)
    }

    fn more(&self) -> Vec<(&'static str, u64)> {
        let (neighbours, waiting) = self.neighbours();
        vec![("routes", self.fib().routes() as u64), ("neighbours", neighbours as u64), ("waiting", waiting as u64)]
    }

    #[inline]
    fn unfinished(&mut self) -> Option<u16> {
        self.take_unfinished()
    }
}

impl Live for Switch {
    type Table = Self;
    const ENTRY: &'static str = "station";

    fn exchange(&mut self, table: Self) -> Self {
        self.install(table)
    }

    fn more(&self) -> Vec<(&'static str, u64)> {
        vec![("stations", self.stations() as u64)]
    }
}

impl Live for NameForwarder {
    type Table = Self;
    const ENTRY: &'static str = "prefix";

    fn exchange(&mut self, table: Self) -> Self {
        self.install(table)
    }

    fn more(&self) -> Vec<(&'static str, u64)> {
        vec![("prefixes", self.prefixes() as u64)]
    }
}

impl Live for Echo {
    type Table = ();
    const ENTRY: &'static str = "entry";

    fn exchange(&mut self, (): ()) {}

    fn more(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Forwards until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.check().map_err(Usage::of)?;
    let result = begin(args.output.is_child(), |interrupt| {
        if let Some(cpu) = args.pin {
            machine::pin(Some(cpu))?;
        }
        with_ports(&args.interfaces, Serving { args, interrupt })
    })?;
    Ok(if result.is_some() { Outcome::Done } else { Outcome::Failed })
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        let names: Vec<&str> = self.interfaces.iter().map(|spec| &*spec.name).collect();
        ensure!(
            names.len() <= INTERFACES_MAX,
            "{} interfaces are too many: there can be {INTERFACES_MAX}",
            names.len()
        );
        for (at, name) in names.iter().enumerate() {
            ensure!(!names[..at].contains(name), "two interfaces are called {name}: give each a name of its own");
        }
        let has_addresses = self.interfaces.iter().any(Spec::has_addresses);
        ensure!(
            self.kind != Kind::Router || has_addresses,
            "a router needs addresses: give interfaces ip=ADDRESS/LENGTH"
        );
        ensure!(
            self.kind == Kind::Router || !has_addresses,
            "ip= is for routers: the other applications have no addresses"
        );
        ensure!(self.kind != Kind::Names || self.table.is_some(), "--as names needs a --table of names");
        ensure!(self.kind != Kind::Echo || self.table.is_none(), "--as echo looks nothing up, and has no --table");
        machine::check_pins(self.pin.as_slice())
    }
}

/// Reads a table from its file, or returns an empty one if no file was given.
fn read<T: Default>(
    path: Option<&Path>,
    parse: impl FnOnce(&str) -> Result<T, routes::LineError>,
) -> anyhow::Result<T> {
    path.map_or_else(|| Ok(T::default()), |path| infile::read_up_to(path, TABLE_LEN_MAX, |text| Ok(parse(text)?)))
}

struct Serving<'a> {
    args: &'a Args,
    interrupt: Interrupt,
}

impl Job for Serving<'_> {
    type Result = ();

    fn run<P: FramePort>(self, ports: Vec<(P, String)>) -> anyhow::Result<()> {
        let args = self.args;
        let (ports, addresses): (Vec<P>, Vec<String>) = ports.into_iter().unzip();
        let specs = args.interfaces.iter().zip(&ports);
        let interfaces: Vec<Interface> =
            specs.map(|(spec, port)| spec.interface(port)).collect::<anyhow::Result<_>>().map_err(Usage::of)?;
        let names: Vec<String> = interfaces.iter().map(|interface| interface.name.clone()).collect();
        let (path, form) = (args.table.clone(), args.form.form());
        let mut entropy = SystemEntropy::new()?;
        match args.kind {
            Kind::Router => {
                interface::check(&interfaces).map_err(Usage::of)?;
                let of = interfaces.clone();
                let load: Load<Fib> = Arc::new(move || {
                    let routes = read(path.as_deref(), |text| routes::parse(text, &of))?;
                    let fib = Fib::new(&of, &routes);
                    fib.with_context(|| path.as_deref().unwrap_or(Path::new("routes")).display().to_string())
                });
                let hash_keys = (entropy.next_u64(), entropy.next_u64());
                let neighbours = NeighbourLimits { hash_keys, ..NeighbourLimits::default() };
                let config = RouterConfig { form, neighbours, ..RouterConfig::default() };
                let router = Router::new(interfaces.clone(), load()?, config).map_err(Usage::of)?;
                self.serve(ports, addresses, &interfaces, router, load)
            }
            Kind::Switch => {
                let (capacity, learns, seed) = (args.stations as usize, !args.no_learning, entropy.next_u64());
                let load: Load<Switch> = Arc::new(move || {
                    let names = names.iter().map(|name| &**name);
                    let stations = read(path.as_deref(), |text| switch::parse(text, names))?;
                    Ok(Switch::new(&stations, capacity, learns, form, seed)?)
                });
                self.serve(ports, addresses, &interfaces, load()?, load)
            }
            Kind::Names => {
                let seed = entropy.next_u64();
                let load: Load<NameForwarder> = Arc::new(move || {
                    let names = names.iter().map(|name| &**name);
                    let prefixes = read(path.as_deref(), |text| named::parse(text, names))?;
                    let named = NameForwarder::new(&prefixes, form, seed);
                    named.with_context(|| path.as_deref().unwrap_or(Path::new("names")).display().to_string())
                });
                self.serve(ports, addresses, &interfaces, load()?, load)
            }
            Kind::Echo => {
                let count = ports.len() as u16;
                self.serve(ports, addresses, &interfaces, Echo::new(count), Arc::new(|| Ok(())))
            }
        }
    }
}

impl Serving<'_> {
    fn serve<P: FramePort, A: Live>(
        &self,
        ports: Vec<P>,
        addresses: Vec<String>,
        interfaces: &[Interface],
        application: A,
        load: Load<A::Table>,
    ) -> anyhow::Result<()> {
        let output = &self.args.output;
        let places: Vec<String> = interfaces
            .iter()
            .zip(&addresses)
            .map(|(interface, address)| format!("{}={address}", interface.name))
            .collect();
        let wakes = ports.first().context("there are no interfaces")?.waker();
        // Made before the command announces that it serves: a reader of that may send SIGHUP at once.
        let reload = Reload::new(load, self.interrupt, wakes.clone())?;
        let _woken = self.interrupt.wake_on_interrupt(wakes);
        let mut live = Running {
            forwarder: Forwarder::new(ports, application)?,
            names: interfaces.iter().map(|interface| interface.name.clone()).collect(),
            reload,
        };
        let macs: Vec<String> = interfaces
            .iter()
            .map(|interface| format!("{} {} (packets of {} bytes)", interface.name, interface.mac, interface.mtu))
            .collect();
        output.print_ready(&places, format_args!("Interfaces: {}. Stop with Ctrl-C.", macs.join(", ")))?;
        self.forward(&mut live)?;
        let counted = live.counted();
        output.print_end("forwarder", counted.to_json(), counted.to_text())
    }

    fn forward<P: FramePort, A: Live>(&self, live: &mut Running<P, A>) -> anyhow::Result<()> {
        let clock = HostClock::new();
        let mut poller = Poller::new(if self.args.busy { PollPolicy::Busy } else { PollPolicy::ADAPTIVE });
        let every_ns = self.args.every.map(|every| every.as_nanos() as u64);
        let mut tell_ns = every_ns.map(|every_ns| clock.now_ns() + every_ns);
        while !self.interrupt.is_set() {
            let now_ns = clock.now_ns();
            if let Some(table) = live.reload.poll() {
                free(live.forwarder.application_mut().exchange(table));
                output::note(format_args!("sinew: a new table is in use: {}", live.entries()));
            }
            let taken = live.forwarder.turn(now_ns);
            if let Some(interface) = live.forwarder.application_mut().unfinished() {
                let spec = self.args.interfaces.get(usize::from(interface));
                let (name, finish) = spec.map_or(("", String::new()), |spec| (&*spec.name, spec.advice()));
                output::complain(format_args!("interface {name}: {LEFT_UNDONE}: {finish}"));
            }
            if let (Some(due_ns), Some(every_ns)) = (tell_ns, every_ns)
                && now_ns >= due_ns
            {
                tell_ns = Some(now_ns + every_ns);
                let counted = live.counted();
                self.args.output.print_end("forwarder", counted.to_json(), counted.to_text())?;
            }
            if poller.step(now_ns, taken > 0) == Step::Block {
                let until_ns = live.forwarder.next_ns().into_iter().chain(tell_ns).min();
                wait_on(&mut live.forwarder.sources(), now_ns, until_ns).context("waiting for frames")?;
                poller.woken(clock.now_ns());
            }
        }
        Ok(())
    }
}

struct Running<P, A: Live> {
    forwarder: Forwarder<P, A>,
    names: Vec<String>,
    reload: Reload<A::Table>,
}

impl<P: FramePort, A: Live> Running<P, A> {
    fn counted(&self) -> CounterReport {
        let application = self.forwarder.application();
        let more: Map<String, Value> =
            application.more().into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
        CounterReport {
            counters: application.counters().clone(),
            ports: ports(&self.names, self.forwarder.ports()),
            reloads: (self.reload.loaded, self.reload.rejected),
            more,
        }
    }

    /// Size of the table, in words.
    fn entries(&self) -> String {
        let first = self.forwarder.application().more().into_iter().next();
        first.map_or_else(String::new, |(_, count)| counted(count, A::ENTRY))
    }
}
