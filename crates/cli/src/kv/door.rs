//! The memcached door of `sinew serve cache`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use sinew::fabric::Clock;
use sinew::host::{HostClock, Interrupt, cpu_times, give_back_long_buffers};
use sinew::host::{lengthen_backlog, raise_descriptor_limit};
use sinew::kv::Partitions;
use sinew::kv::cache::{Partition, Service, seconds_of};
use sinew::kv::memcached::{Door, DoorConfig, Listener};

use sinew_harness::machine;
use sinew_harness::units::{self, parse_count, parse_size};

use crate::serve::{ThreadArgs, begin};
use crate::socket_args::{self, parse_mode};
use crate::{Outcome, output};

/// Longest time that a thread waits for clients before it reads the clock.
const TICK: Duration = Duration::from_secs(1);
/// Descriptors that Linux allows a process by default.
const CONNECTIONS_MAX: usize = 1 << 20;
/// Clients that may wait for `accept`, as with memcached.
const BACKLOG: u16 = 1024;

/// Default memory for the buffers of connections, in bytes, unless the longest values need more.
const CONNECTION_MEMORY: usize = 64 << 20;

/// Options for memcached clients.
#[derive(clap::Args)]
#[command(next_help_heading = "Memcached clients")]
pub struct DoorArgs {
    /// Address at which to serve memcached clients, HOST:PORT or unix:PATH: alone, or beside the cache's own address
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    memcached: Option<String>,
    /// Connections of memcached clients that can be open at a time, over all threads, 1 to 1048576
    #[arg(long, value_name = "COUNT", default_value = "16384", requires = "memcached", value_parser = parse_connections)]
    connections: usize,
    /// Memory for requests not yet complete and answers not yet read, over all connections, in bytes: at least four
    /// times the longest value [default: 64M, or the least if that is more]
    #[arg(long, value_name = "BYTES", requires = "memcached", allow_negative_numbers = true, value_parser = parse_size)]
    connection_memory: Option<usize>,
    /// Seconds of silence after which a connection is closed, from 1 [default: never]
    #[arg(long, value_name = "SECONDS", requires = "memcached", value_parser = clap::value_parser!(u32).range(1..))]
    idle_timeout: Option<u32>,
    /// Mode of the Unix socket, three octal digits that say who may connect [default: 700]
    #[arg(long, value_name = "MODE", requires = "memcached", value_parser = parse_mode)]
    socket_mode: Option<u32>,
}

fn parse_address(text: &str) -> Result<String, String> {
    socket_args::parse_address(text, "for example 0.0.0.0:11211, or unix:/tmp/cache")
}

fn parse_connections(text: &str) -> Result<usize, String> {
    let count = parse_count(text)?;
    let is_one = (1..=CONNECTIONS_MAX).contains(&count);
    is_one.then_some(count).ok_or_else(|| format!("must be from 1 to {CONNECTIONS_MAX}, for example 1024"))
}

impl DoorArgs {
    /// Address for memcached clients.
    pub fn address(&self) -> Option<&str> {
        self.memcached.as_deref()
    }

    /// Configuration of the door, for values of up to `value_len_max` bytes.
    pub fn config(&self, value_len_max: usize, evicts: bool) -> anyhow::Result<DoorConfig> {
        let min = DoorConfig::connection_memory_min(value_len_max);
        let connection_memory = self.connection_memory.unwrap_or(CONNECTION_MEMORY.max(min));
        ensure!(
            connection_memory >= min,
            "--connection-memory {}: four of the longest values have to fit, for example --connection-memory {}M",
            units::size(connection_memory),
            CONNECTION_MEMORY.max(min).div_ceil(1 << 20)
        );
        let is_unix = self.memcached.as_deref().is_some_and(|address| address.starts_with("unix:"));
        ensure!(self.socket_mode.is_none() || is_unix, "--socket-mode is for a Unix socket: --memcached unix:PATH");
        Ok(DoorConfig {
            connections_max: self.connections,
            connection_memory,
            item_len_max: value_len_max,
            idle_timeout_s: self.idle_timeout.unwrap_or(0),
            evicts,
            cpu_times,
            socket_mode: self.socket_mode.unwrap_or(DoorConfig::default().socket_mode),
        })
    }
}

/// Doors for the threads, one for each partition.
#[derive(Clone)]
pub struct Doors {
    doors: Arc<Mutex<Vec<Option<Door>>>>,
    address: String,
}

impl Doors {
    /// Listens at `address`, with a door for each of `threads`.
    pub fn open(address: &str, threads: usize, config: DoorConfig) -> anyhow::Result<Self> {
        // A lower limit only means fewer clients: `complain` reports it when it is reached.
        let _ = raise_descriptor_limit();
        give_back_long_buffers();
        let listener = Listener::bind(address).with_context(|| format!("listening at {address}"))?;
        lengthen_backlog(&listener, BACKLOG).with_context(|| format!("listening at {address}"))?;
        let unix_s = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        let epoch_unix_s = unix_s.saturating_sub(u64::from(seconds_of(HostClock::new().now_ns())));
        let doors = Door::open(listener, &Partitions::new(threads), epoch_unix_s, config)?;
        let address = doors[0].address().unwrap_or(address).to_owned();
        Ok(Self { doors: Arc::new(Mutex::new(doors.into_iter().map(Some).collect())), address })
    }

    /// Address for memcached clients.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Takes the door of a partition, for its thread.
    pub fn take(&self, partition: &Partition) -> Option<Door> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        doors.get_mut(partition.index()).and_then(Option::take)
    }
}

/// Turns the door that a thread has beside its endpoint. Returns whether there was work.
pub fn turn_beside(door: &mut Door, partition: &Partition, now_ns: u64) -> bool {
    let found = door.turn_shared(&mut partition.cache(), now_ns);
    if found {
        complain(door);
    }
    found
}

/// Reports, once, that clients have to wait.
fn complain(door: &Door) {
    static HAS_COMPLAINED: AtomicBool = AtomicBool::new(false);
    if door.counters()[door.partition()].listen_disabled_num.get() > 0 && !HAS_COMPLAINED.swap(true, Ordering::Relaxed)
    {
        output::note(
            "no file descriptor is left for another memcached client: new clients wait until others leave (`ulimit -Hn` shows the \
             limit, and listen_disabled_num in `stats` counts how often this happened)",
        );
    }
}

/// Serves only memcached clients, until a signal, or, as a child, until standard input ends.
pub fn serve_alone(
    address: &str,
    threads: &ThreadArgs,
    config: DoorConfig,
    service: impl FnOnce() -> anyhow::Result<Service>,
) -> anyhow::Result<Outcome> {
    threads.check_pins().map_err(crate::Usage::of)?;
    let open = |interrupt| Ok((service()?, Doors::open(address, threads.threads(), config)?, interrupt));
    let Some((service, doors, interrupt)) = begin(threads.is_child(), open)? else { return Ok(Outcome::Failed) };
    threads.tell_ready(&[doors.address().to_owned()], "Stop with Ctrl-C. Any memcached client can use it.")?;
    let serve = |index: usize| {
        machine::pin(threads.pins().get(index).copied())?;
        let Some(partition) = service.claim(index) else { bail!("more threads than partitions") };
        serve_one(doors.take(&partition).context("a partition has no door")?, &partition, interrupt);
        Ok(())
    };
    let serve = &serve;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.threads()).map(|index| scope.spawn(move || serve(index))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })?;
    Ok(Outcome::Done)
}

fn serve_one(mut door: Door, partition: &Partition, interrupt: Interrupt) {
    let clock = HostClock::new();
    let _guard = interrupt.wake_on_interrupt(door.waker());
    while !interrupt.is_set() {
        door.wait(TICK);
        let now_ns = clock.now_ns();
        partition.set_now_s(seconds_of(now_ns));
        if door.turn(&mut partition.cache(), now_ns) {
            complain(&door);
        }
    }
}
