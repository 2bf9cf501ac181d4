//! The memcached door of `sinew serve cache`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use sinew::fabric::Clock;
use sinew::host::{HostClock, Interrupt, lengthen_backlog, pin_current_thread, raise_descriptor_limit};
use sinew::kv::Partitions;
use sinew::kv::cache::{Partition, Service, seconds_of};
use sinew::kv::memcached::{Door, DoorConfig, Listener};

use crate::serve::{FAILED, READY, ThreadArgs, end_with_stdin};
use crate::{Outcome, output};

/// A thread that waits for clients looks at the clock so often.
const TICK: Duration = Duration::from_secs(1);
/// Clients that may wait to be let in, as with memcached.
const BACKLOG: u16 = 1024;

fn open(address: &str, threads: usize, value_len_max: usize) -> anyhow::Result<Vec<Door>> {
    // With fewer there can be fewer clients: `complain` says when it comes to that.
    let _ = raise_descriptor_limit();
    let listener = Listener::bind(address).with_context(|| format!("listening at {address}"))?;
    lengthen_backlog(&listener, BACKLOG).with_context(|| format!("listening at {address}"))?;
    let unix_s = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let epoch_unix_s = unix_s.saturating_sub(u64::from(seconds_of(HostClock::new().now_ns())));
    let config = DoorConfig { item_len_max: value_len_max, ..DoorConfig::default() };
    Ok(Door::open(listener, &Partitions::new(threads), epoch_unix_s, config)?)
}

/// Doors that the threads of endpoints are to have, each that of its partition.
#[derive(Clone)]
pub struct Doors {
    doors: Arc<Mutex<Vec<Option<Door>>>>,
    address: String,
}

impl Doors {
    /// Listens at `address`, for `threads`.
    pub fn open(address: &str, threads: usize, value_len_max: usize) -> anyhow::Result<Self> {
        let doors = open(address, threads, value_len_max)?;
        let address = doors[0].address().unwrap_or(address).to_owned();
        let doors = Arc::new(Mutex::new(doors.into_iter().map(Some).collect()));
        Ok(Self { doors, address })
    }

    /// Where clients come in.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The door of a partition, for its thread.
    pub fn take(&self, partition: &Partition) -> Option<Door> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        doors.get_mut(partition.index()).and_then(Option::take)
    }
}

/// Turns the door that a thread has beside its endpoint. Returns whether there was anything to do.
pub fn turn_beside(door: &mut Door, partition: &Partition) -> bool {
    let found = door.turn_beside(&mut partition.cache(), partition.now_s());
    if found {
        complain(door);
    }
    found
}

/// Says, once, that clients have to wait.
fn complain(door: &Door) {
    static HAS_COMPLAINED: AtomicBool = AtomicBool::new(false);
    if door.counters()[door.partition()].listen_disabled_num.get() > 0 && !HAS_COMPLAINED.swap(true, Ordering::Relaxed)
    {
        output::note(
            "no descriptor is left for another memcached client: further ones wait until others go (`ulimit -Hn` has the \
             limit, and listen_disabled_num of `stats` counts)",
        );
    }
}

/// Serves memcached clients alone, until a signal, or, as a child, until standard input ends.
pub fn serve_alone(
    address: &str,
    threads: &ThreadArgs,
    value_len_max: usize,
    service: impl FnOnce() -> anyhow::Result<Service>,
) -> anyhow::Result<Outcome> {
    threads.check_pins().map_err(crate::Usage::of)?;
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    if threads.is_child() {
        end_with_stdin(interrupt)?;
    }
    let opened = service().and_then(|service| Ok((service, open(address, threads.threads(), value_len_max)?)));
    let (service, doors) = match opened {
        Ok(opened) => opened,
        Err(error) if threads.is_child() => {
            output::print(format_args!("{FAILED}{}", output::describe(&error)))?;
            return Ok(Outcome::Failed);
        }
        Err(error) => return Err(error),
    };
    threads.warn_if_crowded();
    threads.tell_addresses(&[doors[0].address().unwrap_or(address).to_owned()])?;
    if threads.is_child() {
        output::print(READY)?;
    } else {
        threads.tell("Stop with Ctrl-C. Any memcached client can ask it.")?;
    }
    let doors = Mutex::new(doors.into_iter().map(Some).collect::<Vec<_>>());
    let serve = |index: usize| {
        if let Some(&cpu) = threads.pins().get(index) {
            pin_current_thread(cpu).with_context(|| format!("pinning a thread to processor {cpu}"))?;
        }
        let Some(partition) = service.claim(index) else { bail!("more threads than partitions") };
        let door = doors.lock().unwrap_or_else(PoisonError::into_inner)[partition.index()].take();
        serve_one(door.context("each partition has a door")?, &partition, interrupt);
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
        partition.set_now_s(seconds_of(clock.now_ns()));
        if door.turn(&mut partition.cache(), partition.now_s()) {
            complain(&door);
        }
    }
}
