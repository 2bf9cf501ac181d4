//! `sinew serve block`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Map, Value};
use sinew::host::{HostClock, Interrupt, lengthen_backlog, raise_descriptor_limit};
use sinew::remote_block::{Config, Counters, LastCopy, Listener, Server};
use sinew::remote_memory::volume::Donors;
use sinew::remote_memory::{RamStore, Store};
use sinew_harness::units::{self, parse_size};

use crate::donors::{DonorArgs, Names, WithDonors};
use crate::last_copy::{self, OfVolume, Told};
use crate::serve::{TellArgs, begin};
use crate::socket_args::{self, parse_mode};
use crate::volume::{self, Health, NewArgs, VolumeArgs};
use crate::{Outcome, Usage, advice, output, paging};

/// Clients that may wait to be let in.
const BACKLOG: u16 = 128;
/// The least there is a device of.
const MEMORY_MIN: usize = 4096;
/// At the end, what was written last has so long to reach all donors.
const FLUSH: Duration = Duration::from_secs(10);

const AFTER_HELP: &str = "\
The protocol is NBD: the kernel's client, qemu, libnbd's and nbdkit's tools and fio can use the device, several at once.

With --memory the device is this process's memory, and what is written is gone when it ends. With the addresses of donors (`sinew serve memory`)
it is a volume in their memory, with --copies of everything at different donors: what was written is there as long as one copy of each is, whoever dies, and
is found again by who opens the volume next under its name. A volume that is not there yet is made, with --size. It has one writer:
whoever opens it waits until the last one has been silent for three seconds, and is refused while that lives, unless --force takes the volume from it.
What a writer that was replaced still writes never appears.
With --last-copy FILE all of it is in a file of this host as well, which is the device's bytes and a trailer of 4 KB: what no donor has any more is read from
there, while what is written is an error. It costs the volume's size on a disk, a second write of all that is written, and a sync of the file with each flush. A write is
done when the donors have it and the file's cache does; a flush when the donors have flushed and then the file is synced. When the server begins, the file is copied
anew from the donors, and nothing that it had before is read. The file belongs to one volume, by a number that the volume got by lot when it was made: the file of another, of
the same name or not, is refused and stays as it is, and so is what is no regular file. Too few donors that answer end the volume after ten seconds; then the server
reads its own file as long as they are silent, though another may have taken the volume over there, and no longer: when enough of them answer again, or one says that
another has it, every request fails until the server is started anew.

Name the donors alike on all hosts: a donor is known by its address as it is written.

The device has no key: whoever reaches the server reads and writes all of it. So it listens on this host alone, unless --open says that whoever
reaches the port may have it. --key-file is the key of the donors.

JSON: first `serving`, a list of one address; at the end `counters`: what was asked for, by kind, and what was refused or closed, by reason; of a
volume also `volume`: its status, and what it did; with --last-copy `last_copy`: whether it has everything, why it was given up, how much was read from it and copied to it, and how often it was synced.

Examples:
  sinew serve block --memory 1G --at unix:/run/memory.sock
  sinew serve block udp://a:7200 udp://b:7200 udp://c:7200 --size 4G --key-file pool.key --at unix:/run/disk.sock
  sinew serve block udp://a:7200 udp://b:7200 udp://c:7200 --last-copy /var/lib/disk.img --at unix:/run/disk.sock
  nbdinfo 'nbd+unix:///?socket=/run/memory.sock'          elsewhere
  sinew serve block --memory 4G --at unix:/run/memory.sock --for-paging
  sinew swap on unix:/run/memory.sock                     elsewhere, as root
  sinew serve block --memory 1G --at 0.0.0.0:10809 --open";

/// Serve memory as a block device until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Donors, where `sinew serve memory` gives memory: the device is a volume there. Three or more survive any one's death
    #[arg(value_name = "DONOR", conflicts_with = "memory")]
    donors: Vec<String>,
    /// Bytes of the device, in this process's memory, which is taken as it is written
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = parse_size,
        required_unless_present = "donors", conflicts_with_all = ["size", "copies", "volume", "force", "fabric", "device", "key_file", "last_copy"])]
    memory: Option<usize>,
    #[command(flatten)]
    volume: VolumeArgs,
    #[command(flatten)]
    new: NewArgs,
    #[command(flatten)]
    reach: DonorArgs,
    /// Where clients come in: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    at: String,
    /// What the device is called; clients that ask for none get it, too
    #[arg(long, default_value = "memory")]
    name: String,
    /// Let other hosts in: whoever reaches the port reads and writes all of the device
    #[arg(long)]
    open: bool,
    /// A regular file of this host that has all of the volume, too: what no donor has any more is read from it. Costs as much room, a second write of everything, and a sync with each flush
    #[arg(long, value_name = "FILE", conflicts_with = "for_paging")]
    last_copy: Option<PathBuf>,
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
        match self.memory {
            Some(memory) => ensure!(
                memory >= MEMORY_MIN,
                "--memory {}: a device has {} at least",
                units::size(memory),
                units::size(MEMORY_MIN)
            ),
            None => {
                self.reach.check(&self.donors)?;
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
        Ok(listener)
    }

    /// Serves a store until a signal. Now and then `look` is shown it. Returns the server that has ended, and whether it failed, which it has said.
    fn serve<S: Store>(
        &self,
        mut server: Server<S>,
        interrupt: Interrupt,
        look: impl FnMut(&mut S),
    ) -> anyhow::Result<(Server<S>, Outcome)> {
        let address = server.address().to_owned();
        let ask = format!("Stop with Ctrl-C. Look at it with: nbdinfo {}", advice::quoted(&uri(&address)));
        self.tells.tell_ready(&[address], ask)?;
        let _guard = interrupt.wake_on_interrupt(server.waker());
        let result = server.run_and_look(&HostClock::new(), || interrupt.is_set(), look).context("waiting for clients");
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
        let server = Server::open(listener, store, config)?;
        let (server, outcome) = self.serve(server, interrupt, |_| {})?;
        let counters = server.counters();
        self.tells.tell_end("counters", all(counters), sentence(counters))?;
        Ok(outcome)
    }
}

/// A volume that is served.
struct Serving<'a> {
    args: &'a Args,
    interrupt: Interrupt,
}

impl WithDonors for Serving<'_> {
    type Result = Outcome;

    fn run<D: Donors + 'static>(self, donors: D, names: &Names) -> anyhow::Result<Outcome> {
        let Self { args, interrupt } = self;
        let listener = args.listen()?;
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
        store: impl OfVolume<D>,
        names: &Names,
        interrupt: Interrupt,
    ) -> anyhow::Result<Outcome> {
        let (mut health, mut told) = (Health::default(), Told::default());
        health.look(store.volume(), names);
        let server = Server::open(listener, store, self.config())?;
        let (server, mut outcome) = self.serve(server, interrupt, |store| {
            health.look(store.volume(), names);
            store.look(&mut told);
        })?;
        let counters = server.counters().clone();
        let mut store = server.into_store();
        // The last copy hears of what was written last as it is flushed, and is made to last when nothing can come any more.
        if let Err(error) = volume::flush(&mut store, FLUSH) {
            output::complain(format_args!("ending the volume in order: {}", names.told(output::describe(&error))));
            outcome = Outcome::Failed;
        }
        health.look(store.volume(), names);
        store.look(&mut told);
        volume::leave(store.volume_mut());
        let last_copy = store.last_copy();
        let (volume, synced) = store.into_volume();
        if let Err(error) = synced {
            output::complain(output::describe(&error));
            outcome = Outcome::Failed;
        }
        let mut told = all(&counters);
        told.insert("volume".to_owned(), volume::counters(&volume, names));
        told.extend(last_copy.map(|last_copy| ("last_copy".to_owned(), last_copy)));
        self.tells.tell_end("counters", told, sentence(&counters))?;
        Ok(outcome)
    }
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.check().map_err(Usage::of)?;
    if args.for_paging {
        paging::prepare()?;
    }
    let ended = begin(args.tells.is_child(), |interrupt| match args.memory {
        Some(memory) => args.serve_memory(memory, interrupt),
        None => {
            let arena_len = args.config().arena_bytes() + volume::ARENA;
            args.reach.run(&args.donors, arena_len, Serving { args, interrupt })
        }
    })?;
    Ok(ended.unwrap_or(Outcome::Failed))
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
