//! `sinew serve files`: the service of a file system whose pages lie in donors' memory.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::ensure;
use clap::ArgGroup;
use serde_json::{Map, Value, json};
use sinew::ServerHandle;
use sinew::fabric::Clock;
use sinew::host::{HostClock, Interrupt, SystemEntropy};
use sinew::prelude::*;
use sinew::remote_memory::donor::Key;
use sinew::remote_memory::volume::Donors;
use sinew::rpc::{ClientEvent, ClientId, DeferredCall};
use sinew_harness::units::{counted, parse_size};
use sinew_mount::remote::time_of;
use sinew_remote_fs::disk::HostDisk;
use sinew_remote_fs::protocol::FILES;
use sinew_remote_fs::service::{Accepted, Config as FilesConfig, Now, Service, Stats};

use crate::donors::{Buffers, DonorArgs, DonorNames, WithDonors};
use crate::fabrics::{self, Purpose};
use crate::memory;
use crate::serve::{OutputArgs, begin};
use crate::{Outcome, Usage, advice, output, paging};

/// Memory for buffers in which lost copies are rebuilt, in bytes.
const ARENA: usize = 8 << 20;
/// Longest sleep before timers are checked again.
const SLEEP_MAX_NS: u64 = 10_000_000;

const AFTER_HELP: &str = "\
This program keeps the files' names, sizes and attributes, with --data also in a directory of this host. The files'
contents lie in donors' memory, with --copies of each page at different donors. Clients (`sinew mount`) read and write
them there by themselves.

What a client has flushed (close, fsync) survives the client, and the loss of all but one of the donors that hold its
copies. With --data it also survives this program as long as the donors go on: stop it, start it again with the same
--data and donors, and clients go on. Without --data the file system is lost with the program. When all donors that
held a page are gone, the file keeps its name, and a read of that page fails (EIO). Contents never lie in a file of
this host: clients write them to the donors, and not through this program. A file system of the kernel's on `sinew
serve block --last-copy FILE`, for one host, can be read even when all donors are gone.

With --memory the program lends memory itself, as a donor at the next address (NAME.1, or the next port). That memory
is lost with the program, and with it all that has no copy elsewhere because of --copies 1 or too few other donors. To
keep contents over a restart, have --copies of them at donors other than this program.

Of the donors' memory, a sixty-fourth, and at most 16 MiB, is kept to replace data on a full file system: changes are
written beside the old data. What `fallocate` reserves for a file is nobody else's until the file gives it up; it is
not given back to donors for lost copies either, which then wait for memory.

Beyond shared memory and this host, clients and donors need the key in --key-file; with --open, anybody may be a
client. All clients with the key are trusted: they read and write the donors' memory themselves, and say on whose
behalf they make a request.

--json prints first `serving`, a list of one address, and at the end `counters`: requests, changes, and copies lost and
rebuilt.

Examples:
  sinew serve files shm://files --memory 1G
  sinew serve files udp://10.0.0.1:7300 --data /var/lib/sinew \\
      --donor udp://10.0.0.2:7200 --donor udp://10.0.0.3:7200 \\
      --key-file pool.key
  sinew mount udp://10.0.0.1:7300 /mnt --key-file pool.key   # elsewhere";

/// Serve the names of a file system whose files lie in donors' memory, until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP, group(ArgGroup::new("lenders").required(true).multiple(true)))]
pub struct Args {
    /// Address at which to serve clients: shm://NAME, udp://HOST:PORT, ibverbs://HOST:PORT or xdp://INTERFACE/IP:PORT
    address: String,
    /// Memory of this process to lend as a donor, in bytes, at least 1M [default: none]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = parse_size, group = "lenders")]
    memory: Option<usize>,
    /// Address of a donor (`sinew serve memory`); repeat the option for further donors
    #[arg(long = "donor", value_name = "ADDRESS", group = "lenders")]
    donors: Vec<String>,
    /// Copies of each page, each at another donor, 1 to 8 [default: 2, or 1 if there is only one donor]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=8))]
    copies: Option<u8>,
    /// Files, directories and links that can exist at a time, 1 to 4294967296; each takes 500 bytes of this program's
    /// memory, and its name
    #[arg(long, value_name = "COUNT", default_value_t = FilesConfig::default().inodes_max, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    inodes: u64,
    /// Memory for the extended attributes of all files together, in bytes
    #[arg(long, value_name = "BYTES", default_value = "256M", allow_negative_numbers = true, value_parser = parse_size)]
    attributes: usize,
    /// Directory in which names and attributes survive this program, and which nothing else uses [default: they are
    /// lost with the program]
    #[arg(long, value_name = "DIRECTORY")]
    data: Option<PathBuf>,
    #[command(flatten)]
    donor_args: DonorArgs,
    /// Make the service, and memory that it lends, fit for a file that this host swaps to: that memory is taken at the
    /// start, this process's memory is locked, and the kernel never kills the process when memory runs out
    #[arg(long)]
    for_paging: bool,
    /// Admit anybody who reaches the address, without a key
    #[arg(long, conflicts_with = "key_file")]
    open: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        fabrics::check(&self.address, Purpose::Serve)?;
        let own = self.own_address()?;
        let all: Vec<String> = own.iter().chain(&self.donors).cloned().collect();
        self.donor_args.check(&all)?;
        if let Some(bytes) = self.memory {
            memory::serve::check_len(bytes)?;
            ensure!(
                !["://0.0.0.0", "://[::]"].iter().any(|any| self.address.contains(any)),
                "{}: with --memory, clients must be able to reach the memory at this address: give one of the host's own",
                self.address
            );
        }
        let is_local_only = self.donor_args.is_local_only(&self.address);
        ensure!(
            is_local_only || self.open || self.donor_args.has_key(),
            "{}: hosts other than this one reach it, and could read and write all files. Give clients a key \
             (--key-file FILE, the same for clients and donors), or let everybody in (--open)",
            self.address
        );
        let donors = all.len();
        ensure!(
            usize::from(self.copies()) <= donors,
            "--copies {}: this needs as many donors, and {donors} {} named; name more with --donor, or say --copies {donors}, which loses \
             files if {}",
            self.copies(),
            if donors == 1 { "is" } else { "are" },
            if donors == 1 { "the donor fails" } else { "that many donors fail" }
        );
        Ok(())
    }

    fn copies(&self) -> u8 {
        let donors = self.donors.len() + usize::from(self.memory.is_some());
        self.copies.unwrap_or(if donors > 1 { 2 } else { 1 })
    }

    /// Address at which this program lends memory, if it does.
    fn own_address(&self) -> anyhow::Result<Option<String>> {
        self.memory.map(|_| fabrics::nth_address(&self.address, 1)).transpose()
    }

    fn lend(&self, key: Option<Key>) -> anyhow::Result<Option<ServerHandle>> {
        let (Some(bytes), Some(address)) = (self.memory, self.own_address()?) else { return Ok(None) };
        let lent = memory::serve::Lent { memory: bytes, key, is_backed: self.for_paging };
        memory::serve::lend(self.donor_args.access(), &address, lent).map(Some)
    }

    /// Warns of what would be lost, and when.
    fn warn(&self) {
        if self.output.is_child() {
            return;
        }
        if self.copies() == 1 {
            output::complain("each page has one copy: when a donor dies, its pages are lost");
        }
        match (&self.data, self.memory) {
            (None, _) => output::complain("no --data: the whole file system is gone when this program ends"),
            (Some(_), Some(_)) if self.copies() == 1 => output::complain(
                "--memory: contents in this program's memory are lost when it ends, and names stay; a second copy at another donor (--donor ADDRESS, --copies 2) survives it",
            ),
            _ => {}
        }
    }
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.check().map_err(Usage::of)?;
    if args.for_paging {
        paging::prepare(args.memory.unwrap_or_default().saturating_add(ARENA))?;
    }
    let ended = begin(args.output.is_child(), |interrupt| {
        let key = args.donor_args.key()?;
        args.warn();
        let own = args.lend(key.clone())?;
        let own_address = own.as_ref().map(|own| own.addresses()[0].to_string());
        let donors: Vec<String> = own_address.into_iter().chain(args.donors.iter().cloned()).collect();
        let buffers = Buffers { len: ARENA, are_for_paging: args.for_paging };
        let outcome = args.donor_args.run(&donors, buffers, Serving { args, interrupt, key })?;
        if let Some(own) = own {
            own.stop()?;
        }
        Ok(outcome)
    })?;
    Ok(ended.unwrap_or(Outcome::Failed))
}

struct Serving<'a> {
    args: &'a Args,
    interrupt: Interrupt,
    key: Option<Key>,
}

type Files<D> = Service<D, HostDisk, ClientId>;

impl WithDonors for Serving<'_> {
    type Result = Outcome;

    fn run<D: Donors + 'static>(self, donors: D, names: &DonorNames) -> anyhow::Result<Outcome> {
        let Self { args, interrupt, key } = self;
        let disk = args.data.as_deref().map(HostDisk::open).transpose()?;
        let nexus = Nexus::builder().config(Config { client_events: true, ..Config::default() }).build()?;
        let mut rpc = Rpc::open_with(&nexus, &args.address)?;
        if args.for_paging {
            rpc.back_buffers(paging::MESSAGES);
        }
        let config = FilesConfig {
            copies: args.copies().into(),
            inodes_max: args.inodes,
            xattrs_len_max: args.attributes as u64,
            ..FilesConfig::default()
        };
        let clock = HostClock::new();
        let random = (Box::new(SystemEntropy::new()?) as _, Box::new(SystemEntropy::new()?) as _);
        let names: Vec<String> = names.all().map(str::to_owned).collect();
        let service = Service::open(disk, donors, names, key, random, config, now(&clock));
        let mut service: Files<D> = service.map_err(|error| match &args.data {
            Some(data) => anyhow::Error::from(error).context(format!("opening what {} keeps", data.display())),
            None => error.into(),
        })?;
        let address = rpc.address().to_string();
        let ask = format!("Stop with Ctrl-C. Mount it with: sinew mount {} DIRECTORY", advice::quoted(&address));
        args.output.print_ready(&[address], ask)?;
        let _guard = interrupt.wake_on_interrupt(rpc.waker());
        let mut health = Health::default();
        let result = drive(&mut rpc, &mut service, &clock, interrupt, |service| health.check(service));
        let closed = result.and_then(|()| Ok(service.close()?));
        let stats = service.stats();
        args.output.print_end("counters", counters(&stats), sentence(&stats))?;
        closed.map(|()| Outcome::Done)
    }
}

fn now(clock: &HostClock) -> Now {
    Now { ns: clock.now_ns(), time: time_of(SystemTime::now()) }
}

/// Answers clients until the interrupt, and shows the service to `check` now and then.
fn drive<D: Donors>(
    rpc: &mut Rpc,
    service: &mut Files<D>,
    clock: &HostClock,
    interrupt: Interrupt,
    mut check: impl FnMut(&Files<D>),
) -> anyhow::Result<()> {
    let mut held: HashMap<u64, DeferredCall> = HashMap::new();
    let mut answers = Vec::new();
    let mut next_check_ns = 0;
    while !interrupt.is_set() {
        let now = now(clock);
        let mut busy = rpc.turn_with(|call| {
            if call.request_type() != FILES {
                return call.refuse_type();
            }
            match service.take(call.client(), call.request(), now) {
                Accepted::Answer(answer) => call.reply(&answer),
                // If there is no memory to defer the call, the client is told that the server is busy, and sends it
                // again.
                Accepted::Deferred(id) => match call.defer() {
                    Ok(call) => drop(held.insert(id, call)),
                    Err(_) => service.abandon(id),
                },
            }
        });
        while let Some(event) = rpc.poll_client_event() {
            if let ClientEvent::Left { client, .. } = event {
                service.peer_left(client, now);
            }
        }
        while rpc.poll_completion().is_some() || rpc.poll_event().is_some() {}
        busy |= service.turn(now)?;
        service.poll(&mut answers);
        for (id, answer) in answers.drain(..) {
            busy = true;
            if let Some(call) = held.remove(&id) {
                call.reply(&answer);
            }
        }
        if next_check_ns <= now.ns {
            next_check_ns = now.ns + 10 * SLEEP_MAX_NS;
            let abandoned: Vec<u64> = held.iter().filter(|(_, call)| call.is_abandoned()).map(|(id, _)| *id).collect();
            for id in abandoned {
                held.remove(&id);
                service.abandon(id);
            }
            check(service);
        }
        rpc.rest_beside(busy, &mut [service.donors()], Some(SLEEP_MAX_NS))?;
    }
    Ok(())
}

/// Checks at the start during which donors that are not found yet are not reported.
const FIRST_CHECKS: u32 = 30;

/// The files' health as last reported.
#[derive(Default)]
struct Health {
    /// Checks so far, up to [`FIRST_CHECKS`].
    checks: u32,
    last: Option<((usize, usize), (usize, usize))>,
    /// Donors that did not answer at the last check.
    away: BTreeSet<String>,
    /// Refusals of donors at the last check.
    refusals: Vec<String>,
    /// Room that a missing copy wanted at the last check.
    wanted: Option<u64>,
    /// Number of clients that had been given up at the last check.
    clients_expired: u64,
    /// Donors that wanted their memory back at the last check, each with whether it had all of it.
    withdrawing: BTreeSet<(String, bool)>,
}

impl Health {
    /// Reports what has changed.
    fn check<D: Donors>(&mut self, service: &Files<D>) {
        let refusals: Vec<String> = service.refusals().map(|(name, why)| format!("{name}: {why}")).collect();
        refusals.iter().filter(|refusal| !self.refusals.contains(refusal)).for_each(output::note);
        self.refusals = refusals;
        self.check_room(service);
        self.check_expired_clients(service);
        self.check_withdrawals(service);
        let (degraded, ready) = (service.degraded(), service.donors_ready());
        self.checks = FIRST_CHECKS.min(self.checks + 1);
        let is_first = self.last.is_none() && ready.0 < ready.1 && self.checks < FIRST_CHECKS;
        if self.last == Some((degraded, ready)) || is_first {
            // At the start, donors have a moment to be found.
            return;
        }
        for (name, why) in service.donors_away().filter(|(name, _)| !self.away.contains(*name)) {
            output::note(format_args!("donor {name}: {}", why.unwrap_or("it does not answer")));
        }
        self.away = service.donors_away().map(|(name, _)| name.to_owned()).collect();
        if self.last.map_or(ready.0 < ready.1, |(_, before)| before != ready) {
            output::note(format_args!("donors that answer: {} of {}", ready.0, ready.1));
        }
        let before = self.last.map_or((0, 0), |(before, _)| before);
        match degraded {
            _ if before == degraded => {}
            (0, 0) => output::note("all files have all their copies"),
            (lacking, 0) => output::note(format_args!(
                "{} {} a copy, which is rebuilt where donors have room",
                counted(lacking, "segment"),
                if lacking == 1 { "lacks" } else { "lack" }
            )),
            (_, lost) => output::note(format_args!(
                "{} {} at no donor any more: files with data there cannot be read",
                counted(lost, "segment"),
                if lost == 1 { "is" } else { "are" }
            )),
        }
        self.last = Some((degraded, ready));
    }

    /// Reports clients that were given up.
    fn check_expired_clients<D: Donors>(&mut self, service: &Files<D>) {
        let all = service.stats().clients_expired;
        match all - self.clients_expired {
            0 => {}
            1 => output::note("a client was silent for too long: its locks are released, and its open files closed"),
            more => output::note(format_args!(
                "{more} clients were silent for too long: their locks are released, and their open files closed"
            )),
        }
        self.clients_expired = all;
    }

    /// Reports donors that want their memory back, and those that have it.
    fn check_withdrawals<D: Donors>(&mut self, service: &Files<D>) {
        let all: BTreeSet<_> = service.donors_withdrawing().map(|(name, has_all)| (name.to_owned(), has_all)).collect();
        for (name, has_all) in all.difference(&self.withdrawing) {
            match has_all {
                true => output::note(format_args!("donor {name} has its memory back: no files lie there any more")),
                false => output::note(format_args!(
                    "donor {name} wants its memory back: what lies there moves to other donors, as far as they have room"
                )),
            }
        }
        self.withdrawing = all;
    }

    /// Reports that a missing copy has no room.
    fn check_room<D: Donors>(&mut self, service: &Files<D>) {
        let wanted = service.wanted_len();
        if let Some(len) = wanted.filter(|_| wanted != self.wanted) {
            let mb = len >> 20;
            output::note(format_args!(
                "no donor has {mb} MB free in one piece for a missing copy: give more memory, or another donor"
            ));
        }
        self.wanted = wanted;
    }
}

fn counters(stats: &Stats) -> Map<String, Value> {
    let Stats {
        answered,
        refused,
        malformed,
        not_admitted,
        changes,
        syncs,
        clients_expired,
        lost_copies,
        moved_copies,
        repaired,
        mended_pages,
        ..
    } = *stats;
    let counters = json!({
        "answered": answered, "refused": refused, "malformed": malformed, "not_admitted": not_admitted,
        "changes": changes, "syncs": syncs, "dead_clients": clients_expired, "lost_copies": lost_copies,
        "moved_copies": moved_copies, "repaired_copies": repaired,
        "mended_pages": mended_pages,
    });
    match counters {
        Value::Object(counters) => counters,
        _ => Map::new(),
    }
}

fn sentence(stats: &Stats) -> String {
    let Stats { answered, changes, syncs, lost_copies, repaired, .. } = stats;
    format!(
        "{} answered, {}, {}; {} lost, {repaired} rebuilt",
        counted(*answered, "request"),
        counted(*changes, "change"),
        counted(*syncs, "sync"),
        counted(*lost_copies, "copy")
    )
}
