//! `sinew serve block`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Map, Value};
use sinew::host::{HostClock, Interrupt, lengthen_backlog, raise_descriptor_limit};
use sinew::remote_block::{Config, Counters, LastCopy, LastCopyFile, Listener, Server};
use sinew::remote_memory::volume::Donors;
use sinew::remote_memory::{RamStore, Store};
use sinew_harness::units::{self, counted, parse_size};

use crate::donors::{Buffers, DonorArgs, DonorNames, WithDonors};
use crate::last_copy::{self, Reported, VolumeStore};
use crate::serve::{OutputArgs, begin};
use crate::socket_args::{self, parse_mode};
use crate::volume::{self, Health, NewArgs, VolumeArgs};
use crate::{Outcome, Usage, advice, output, paging};

/// Clients that may wait for `accept`.
const BACKLOG: u16 = 128;
/// Smallest device, in bytes.
const MEMORY_MIN: usize = 4096;
/// Time that the last writes have to reach all donors when the server ends.
const FLUSH: Duration = Duration::from_secs(10);

const AFTER_HELP: &str = "\
The protocol is NBD: the kernel's client, qemu, the tools of libnbd and nbdkit, and fio can use the device, several at
once.

With --memory the device is this process's memory, and its contents are lost when the process ends. With the addresses
of donors (`sinew serve memory`) it is a volume in their memory, with --copies of every page at different donors. Data
survives as long as one of its copies does, whatever else dies, and the next server that opens the volume by its name
finds it again. A volume that does not exist yet is created, with --size. It has one writer: a new server waits until
the last one has been silent for three seconds, and is refused while that one lives, unless --force takes the volume
from it. Late writes of a replaced writer never appear. The volume keeps its memory until `sinew memory remove` removes
it, or the donors end.

With --last-copy FILE a file of this host holds the whole volume as well: the device's bytes, and a trailer of 4 KB.
Data that no donor has any more is read from the file; writes of such data fail. This takes the volume's size on disk,
a second write of all data, and a sync of the file with each flush. A write is done once the donors and the file's
cache have it; a flush is done once the donors have flushed and the file has then been synced. A server that starts
copies the file anew from the donors, and reads nothing that the file held before. The file belongs to one volume, by
a random number that the volume got when it was created: the file of another volume, even one of the same name, is
refused and left as it is, and so is anything that is not a regular file.

When too few donors answer for ten seconds, the volume ends. From then on the server reads its own file as long as the
donors stay silent, even though another server may have taken the volume over. Once enough donors answer again, or one
says that another server has the volume, every request fails until the server is restarted.

Name the donors alike on all hosts: a donor is known by its address as written.

The device has no key: whoever reaches the server reads and writes all of it. It therefore listens on this host alone,
unless --open lets in whoever reaches the port. --key-file is the key of the donors.

--json prints first `serving`, a list of one address, and at the end `counters`: requests by kind, and refusals and
closed connections by reason; for a volume also `volume`: its status, and what it did; with --last-copy `last_copy`:
whether it has everything, why it was given up, how much was read from it and copied to it, and how often it was
synced.

Examples:
  sinew serve block --memory 1G --at unix:/run/memory.sock
  nbdinfo 'nbd+unix:///?socket=/run/memory.sock'     # in another terminal
  D='udp://a:7200 udp://b:7200 udp://c:7200'
  sinew serve block $D --size 4G --key-file pool.key \\
      --at unix:/run/disk.sock
  sinew serve block $D --last-copy /var/lib/disk.img \\
      --key-file pool.key --at unix:/run/disk.sock
  sinew serve block --memory 4G --at unix:/run/memory.sock --for-paging
  sinew swap on unix:/run/memory.sock                # elsewhere, as root
  sinew serve block --memory 1G --at 0.0.0.0:10809 --open";

/// Serve memory as a block device until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Addresses of the donors (`sinew serve memory`) whose memory holds the volume that becomes the device, at most
    /// 64; with three or more, any one may die; with two, only the one without a vote (the other had more free memory
    /// when the volume was made)
    #[arg(value_name = "DONOR", conflicts_with = "memory")]
    donors: Vec<String>,
    /// Size of a device in this process's own memory, in bytes, at least 4K; memory is taken as it is written
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = parse_size,
        required_unless_present = "donors", conflicts_with_all = ["size", "copies", "volume", "force", "fabric", "device", "key_file", "last_copy"])]
    memory: Option<usize>,
    #[command(flatten)]
    volume: VolumeArgs,
    #[command(flatten)]
    new: NewArgs,
    #[command(flatten)]
    donor_args: DonorArgs,
    /// Address to listen at: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    at: String,
    /// Name of the device; clients that ask for no name get it, too
    #[arg(long, default_value = "memory")]
    name: String,
    /// Listen for other hosts as well: anybody who reaches the port can read and write all of the device
    #[arg(long)]
    open: bool,
    /// Regular file that holds all of the volume as well, and from which data is read that no donor has any more. It
    /// takes the volume's size on disk, a second write of all data, and a sync with each flush
    #[arg(long, value_name = "FILE", conflicts_with = "for_paging")]
    last_copy: Option<PathBuf>,
    /// Make the device fit for this host's swap: memory for its buffers (and for all of the device, with --memory) is
    /// taken at the start, this process's memory is locked, and the kernel never kills the process when memory runs out
    #[arg(long)]
    for_paging: bool,
    /// Connections that can be open at a time, 1 to 65535
    #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Mode of the Unix socket, three octal digits that say who may connect [default: 700]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    socket_mode: Option<u32>,
    #[command(flatten)]
    output: OutputArgs,
}

fn parse_address(text: &str) -> Result<String, String> {
    socket_args::parse_address(text, "for example 127.0.0.1:10809, or unix:/run/memory.sock")
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        match self.memory {
            Some(memory) => ensure!(
                memory >= MEMORY_MIN,
                "--memory {}: the smallest device has {}",
                units::size(memory),
                units::size(MEMORY_MIN)
            ),
            None => {
                self.donor_args.check(&self.donors)?;
                self.new.check(self.donors.len())?;
            }
        }
        ensure!(
            self.socket_mode.is_none() || self.at.starts_with("unix:"),
            "--socket-mode is for a Unix socket: --at unix:PATH"
        );
        Ok(())
    }

    fn config(&self) -> Config {
        Config { name: self.name.clone(), connections_max: self.connections.into(), ..Config::default() }
    }

    fn listen(&self) -> anyhow::Result<Listener> {
        // A lower limit only means fewer clients.
        let _ = raise_descriptor_limit();
        let listening = || format!("listening at {}", self.at);
        let listener = Listener::bind(&self.at).with_context(listening)?;
        if listener.is_open_to_others() && !self.open {
            let text = format!(
                "--at {}: other hosts reach this address and could read and write all of the device, since NBD has no key; say --open if they may",
                self.at
            );
            return Err(Usage(text).into());
        }
        lengthen_backlog(&listener, BACKLOG).with_context(listening)?;
        if let Some(mode) = self.socket_mode {
            listener.set_mode(mode).with_context(listening)?;
        }
        Ok(listener)
    }

    /// Serves a store until a signal, and shows it to `look` now and then. Returns the server that has ended, and its
    /// outcome. A failure has been reported already.
    fn serve<S: Store>(
        &self,
        mut server: Server<S>,
        interrupt: Interrupt,
        look: impl FnMut(&mut S),
    ) -> anyhow::Result<(Server<S>, Outcome)> {
        let address = server.address().to_owned();
        let ask = format!("Stop with Ctrl-C. Look at it with: nbdinfo {}", advice::quoted(&uri(&address)));
        self.output.print_ready(&[address], ask)?;
        let _guard = interrupt.wake_on_interrupt(server.waker());
        let result =
            server.run_with_callback(&HostClock::new(), || interrupt.is_set(), look).context("waiting for clients");
        let outcome = result.map_or_else(
            |error| {
                output::complain(output::describe(&error));
                Outcome::Failed
            },
            |()| Outcome::Done,
        );
        Ok((server, outcome))
    }

    fn serve_memory(&self, memory: usize, interrupt: Interrupt) -> anyhow::Result<Outcome> {
        let config = self.config();
        let listener = self.listen()?;
        let store = RamStore::new(memory, config.arena_bytes())
            .with_context(|| format!("reserving {} of memory", units::size(memory)))?;
        if self.for_paging {
            store.memory().back();
            store.arena().back(paging::DATA);
        }
        let server = Server::open(listener, store, config)?;
        let (server, outcome) = self.serve(server, interrupt, |_| {})?;
        let counters = server.counters();
        self.output.print_end("counters", all(counters), sentence(counters))?;
        Ok(outcome)
    }
}

/// A volume to be served.
struct Serving<'a> {
    args: &'a Args,
    interrupt: Interrupt,
}

impl WithDonors for Serving<'_> {
    type Result = Outcome;

    fn run<D: Donors + 'static>(self, donors: D, names: &DonorNames) -> anyhow::Result<Outcome> {
        let Self { args, interrupt } = self;
        let listener = args.listen()?;
        if let Some(path) = &args.last_copy {
            // Before a volume is made for it.
            LastCopyFile::check_path(path).context("--last-copy")?;
        }
        let mut volume = volume::open_or_make(donors, names, &args.volume, &args.new, interrupt)?;
        let Some(path) = &args.last_copy else { return args.serve_volume(listener, volume, names, interrupt) };
        match last_copy::open(&volume, path) {
            Ok((file, pool)) => {
                let store = LastCopy::new(volume, file, HostClock::new(), pool).context("--last-copy")?;
                args.serve_volume(listener, store, names, interrupt)
            }
            Err(error) => {
                volume::leave(&mut volume);
                Err(error)
            }
        }
    }
}

impl Args {
    fn serve_volume<D: Donors + 'static>(
        &self,
        listener: Listener,
        store: impl VolumeStore<D>,
        names: &DonorNames,
        interrupt: Interrupt,
    ) -> anyhow::Result<Outcome> {
        let (mut health, mut reported) = (Health::default(), Reported::default());
        health.report_changes(store.volume(), names);
        let server = Server::open(listener, store, self.config())?;
        let (server, mut outcome) = self.serve(server, interrupt, |store| {
            health.report_changes(store.volume(), names);
            store.report_changes(&mut reported);
        })?;
        let counters = server.counters().clone();
        let mut store = server.into_store();
        // The last copy gets the last writes as they are flushed. It is synced further down, when no more can come.
        if let Err(error) = volume::flush(&mut store, FLUSH) {
            output::complain(format_args!(
                "shutting the volume down cleanly: {}",
                names.with_addresses(output::describe(&error))
            ));
            outcome = Outcome::Failed;
        }
        health.report_changes(store.volume(), names);
        store.report_changes(&mut reported);
        volume::leave(store.volume_mut());
        let last_copy = store.last_copy();
        let (volume, synced) = store.into_volume();
        if let Err(error) = synced {
            output::complain(output::describe(&error));
            outcome = Outcome::Failed;
        }
        let mut object = all(&counters);
        object.insert("volume".to_owned(), volume::counters(&volume, names));
        object.extend(last_copy.map(|last_copy| ("last_copy".to_owned(), last_copy)));
        self.output.print_end("counters", object, sentence(&counters))?;
        Ok(outcome)
    }
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.check().map_err(Usage::of)?;
    if args.for_paging {
        paging::prepare(args.memory.unwrap_or_default().saturating_add(paging::DATA))?;
    }
    let ended = begin(args.output.is_child(), |interrupt| match args.memory {
        Some(memory) => args.serve_memory(memory, interrupt),
        None => {
            let len = args.config().arena_bytes() + volume::ARENA;
            let buffers = Buffers { len, are_for_paging: args.for_paging };
            args.donor_args.run(&args.donors, buffers, Serving { args, interrupt })
        }
    })?;
    Ok(ended.unwrap_or(Outcome::Failed))
}

/// Address in the form that libnbd takes.
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
    let [read, written] = [counters.bytes_read, counters.bytes_written].map(units::amount);
    format!(
        "{}: {read} read by {}, {written} written by {writes}; {} refused",
        counted(*connections, "connection"),
        counted(*reads, "request"),
        counted(*refused, "request")
    )
}
