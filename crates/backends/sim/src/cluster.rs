//! Actors and their turns in virtual time.

mod ahead;

use std::collections::BTreeMap;
use std::fmt;

use sinew_fabric::Waker;
use sinew_mem::atomic::plain::Arc;

use crate::cores::{CoreShare, CoreState, CoreTime, IdleCount};
use crate::events::{Event, Events};
use crate::network::Network;
use crate::port::PortId;
use crate::time::SimClock;
use crate::wakes::{Listener, PendingWake, Source, WakeSource};
use crate::workers::{SimWorkers, WorkersConfig};
use ahead::{Ahead, LOOK_AHEAD_FROM_ACTORS};

/// A program that runs an endpoint's loop, on a core of the cluster.
pub trait Actor {
    /// Runs the loop once. The core is charged for what the ports do, and for what the actor
    /// [spends](SimClock::spend_ns) itself.
    fn turn(&mut self) -> ActorState;

    /// Prefetches what its next turn will read for a packet that it finds then. Where many actors have turns in
    /// between, the caches hold nothing of this one. An implementation reads the actor's own state alone, and changes
    /// nothing: it must not use ports or the network, which are borrowed meanwhile, so that it would panic. The default
    /// does nothing.
    fn prefetch(&self, packet: &[u8], step: PrefetchStep) {
        let _ = (packet, step);
    }
}

/// Step of [`Actor::prefetch`]. The second comes some nanoseconds of virtual time after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchStep {
    /// What the packet names: a session, or an item.
    First,
    /// What that points to.
    Second,
}

/// State of an actor after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActorState {
    /// It goes on as soon as its core is free.
    Work,
    /// It polls and finds nothing. Its next turn is when a packet comes to one of its ports, when it is
    /// [woken](Cluster::waker), or at the time that it gave to [`wait`](sinew_fabric::PacketPort::wait), the earliest
    /// where it has several ports. Turns before that would do nothing, and are skipped.
    Idle,
    /// As [`ActorState::Idle`], but its next turn is at this time at the latest.
    IdleUntil(u64),
    /// As [`ActorState::Idle`], but it sleeps, as on a descriptor. Its core is free for others meanwhile, and an
    /// interrupt wakes it, which takes time ([`Cluster::share_core`]).
    Asleep,
    /// As [`ActorState::Asleep`], but until this time at the latest.
    AsleepUntil(u64),
    /// It has ended.
    Done,
}

/// Name of an actor within its [`Cluster`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActorId(u32);

// What every event reads comes first, in as few cache lines as possible.
#[repr(C, align(64))]
struct ActorSlot {
    actor: Option<Box<dyn Actor>>,
    /// When its next turn is scheduled, if it is.
    next_ns: Option<u64>,
    /// Number of the turn that it waits for.
    turn: u32,
    core: CoreState,
    /// Bounds, as a time and a number, of the wakes that its last turn has seen: a wake below both needs no further
    /// turn.
    seen: (u64, u64),
    ports: Vec<PortId>,
    /// Wakes the actor without a port.
    source: Arc<Source>,
    name: String,
}

impl ActorSlot {
    /// Gives the actor a turn as soon as its core is free, unless it has one before that anyway.
    #[inline]
    fn wake(&mut self, actor: u32, now_ns: u64, events: &mut Events) {
        let next_ns = self.core.turn_ns(self.core.free_ns.max(now_ns));
        if self.actor.is_some() && self.next_ns.is_none_or(|foreseen_ns| next_ns < foreseen_ns) {
            self.schedule(actor, next_ns, events);
        }
    }

    /// Schedules the actor's next turn, in place of any scheduled before.
    fn schedule(&mut self, actor: u32, next_ns: u64, events: &mut Events) {
        self.cancel();
        self.next_ns = Some(next_ns);
        events.add(next_ns, Event::Turn { actor, number: self.turn });
    }

    /// Cancels the scheduled turn.
    #[inline]
    fn cancel(&mut self) {
        self.turn += 1;
        self.next_ns = None;
    }
}

/// Key of a wake: when it is due, its listener, and the number of wakes noted before it.
type WakeKey = (u64, Listener, u64);

/// A wake that is due at its key's time.
struct Wake {
    /// When it was made; it is due later if the woken core is busy.
    time_ns: u64,
    source: u32,
    effect: Option<Box<dyn FnOnce() + Send>>,
}

/// Error of a simulation that cannot go on: every actor waits for packets, and none is in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Time at which the simulation stopped, in ns.
    pub time_ns: u64,
    /// Name of each waiting actor, and what it waits for.
    pub waiting: Vec<(String, String)>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the simulation is stuck at {} ns: no events are left", self.time_ns)?;
        self.waiting.iter().try_for_each(|(waiter, what)| write!(f, "; {waiter} waits for {what}"))
    }
}

impl std::error::Error for Stuck {}

/// Actors at the ports of a [`Network`], each on a core of its own. Time passes as the cluster is turned.
///
/// From its first actor or pool on, and until it is dropped, time passes in the cluster alone: a port without an actor
/// cannot [wait](sinew_fabric::PacketPort::wait) meanwhile.
///
/// Events of one nanosecond happen in the order in which they were scheduled: packets, turns for packets and at
/// requested times, and the moments at which wakes are handled. Each such moment handles the first of all wakes that
/// are due by then: first those that only [take effect](sinew_fabric::Waker::take_effect) and wake nobody, then pools,
/// then actors, in the order in which they were added. So of two actors woken at one time, the one added first has the
/// first turn; an actor that has a turn at that time anyway has it before or after them, as it was scheduled.
pub struct Cluster {
    network: Network,
    actors: Vec<ActorSlot>,
    pools: Vec<SimWorkers>,
    wakes: BTreeMap<WakeKey, Wake>,
    /// Wakes noted so far.
    wakes_noted: u64,
    ahead: Ahead,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("network", &self.network).field("actors", &self.actors.len()).finish()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.network.0.is_driven.set(false);
        self.network.0.clock.pass_spent_time();
        self.network.0.wakes.end();
    }
}

impl Cluster {
    /// A cluster without actors.
    pub fn new(network: &Network) -> Self {
        Self {
            network: network.clone(),
            actors: Vec::new(),
            pools: Vec::new(),
            wakes: BTreeMap::new(),
            wakes_noted: 0,
            ahead: Ahead::default(),
        }
    }

    /// Its network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Its clock.
    pub fn clock(&self) -> SimClock {
        self.network.clock()
    }

    /// Adds an actor that works on these ports. It has its first turn at once.
    pub fn add(&mut self, name: &str, ports: impl IntoIterator<Item = PortId>, actor: Box<dyn Actor>) -> ActorId {
        self.network.0.is_driven.set(true);
        let index = self.actors.len() as u32;
        let ports: Vec<PortId> = ports.into_iter().collect();
        let mut world = self.network.0.world.borrow_mut();
        for port in &ports {
            let node = &mut world.nodes[port.0];
            node.actor = Some(index);
            node.source.listen(Listener::Actor(index));
        }
        let now_ns = self.network.0.clock.event_ns();
        let source = self.network.0.wakes.source();
        source.listen(Listener::Actor(index));
        let mut slot = ActorSlot {
            name: name.to_owned(),
            actor: Some(actor),
            ports,
            source,
            turn: 0,
            next_ns: None,
            core: CoreState::new(now_ns),
            seen: (0, 0),
        };
        slot.wake(index, now_ns, &mut world.events);
        drop(world);
        self.actors.push(slot);
        ActorId(index)
    }

    /// Returns a waker for an actor, whether or not the actor has a port. Use a [`WakeSource`] to get wakers before
    /// there is an actor.
    ///
    /// A wake from an actor's turn, or from a worker's job, is at the time that its core has reached; one from code
    /// that holds the cluster is now. The woken actor has a turn then, or as soon as its core is free; several wakes
    /// that it can see in one turn count as one. Wakes at one time are handled in the order in which the actors were
    /// added ([`Cluster`]). A wake from another thread is outside virtual time, and is noticed at the cluster's next
    /// step.
    pub fn waker(&self, actor: ActorId) -> Waker {
        Waker::new(self.actors[actor.0 as usize].source.clone())
    }

    /// Makes a source wake this actor, and no other, from now on.
    ///
    /// # Panics
    ///
    /// When the source is another network's.
    pub fn listen(&mut self, actor: ActorId, source: &WakeSource) {
        let source = source.source();
        assert!(source.is_of(&self.network.0.wakes), "the source is another network's");
        source.listen(Listener::Actor(actor.0));
    }

    /// Adds a pool of workers, each on a core of its own.
    pub fn workers(&mut self, name: &str, config: WorkersConfig) -> SimWorkers {
        self.network.0.is_driven.set(true);
        let (number, source) = (self.pools.len() as u32, self.network.0.wakes.source());
        source.listen(Listener::Pool(number));
        let pool = SimWorkers::new(name, config, source, self.clock());
        self.pools.push(pool.clone());
        pool
    }

    /// Ends an actor at once, as when a host crashes: it has no further turn, and only its destructor can still act.
    /// Its ports close. Returns the actor, unless it had ended.
    pub fn crash(&mut self, actor: ActorId) -> Option<Box<dyn Actor>> {
        let slot = &mut self.actors[actor.0 as usize];
        slot.cancel();
        let mut world = self.network.0.world.borrow_mut();
        let now_ns = self.network.0.clock.event_ns();
        slot.core.end(now_ns);
        slot.ports.iter().for_each(|port| world.close(port.0, now_ns));
        drop(world);
        slot.actor.take()
    }

    /// Stalls an actor until `end_ns`: packets arrive, but it has no turn in which to see them.
    pub fn pause(&mut self, actor: ActorId, end_ns: u64) {
        let slot = &mut self.actors[actor.0 as usize];
        if slot.core.has_ended() {
            return;
        }
        slot.core.pause(self.network.0.clock.event_ns(), end_ns);
        if slot.next_ns.is_some_and(|next_ns| next_ns < end_ns) {
            let next_ns = slot.core.turn_ns(end_ns);
            slot.schedule(actor.0, next_ns, &mut self.network.0.world.borrow_mut().events);
        }
    }

    /// Sets the cost of waking an actor from sleep, and the competitor for its core, from now on.
    pub fn share_core(&mut self, actor: ActorId, share: CoreShare) {
        let now_ns = self.network.0.clock.event_ns();
        self.actors[actor.0 as usize].core.share(share, now_ns);
    }

    /// Counts from now on the time for which an actor's core is idle: its thread sleeps, and nothing competes with it.
    /// The count is up to date whenever the actor has a turn.
    pub fn count_idle(&mut self, actor: ActorId) -> IdleCount {
        self.actors[actor.0 as usize].core.count_idle()
    }

    /// Returns how an actor's core has spent its time. A core polls whenever it neither works, stalls nor sleeps.
    pub fn core_time(&self, actor: ActorId) -> CoreTime {
        self.actors[actor.0 as usize].core.time(self.network.0.clock.event_ns())
    }

    /// Runs the simulation until `end_ns`.
    pub fn run_until(&mut self, end_ns: u64) {
        while self.step(end_ns) {}
        self.network.run_until(end_ns);
    }

    /// Runs the simulation until `done` returns true, or until `end_ns`. `done` is called after each turn of an actor
    /// and each wake. Returns whether it returned true.
    ///
    /// # Errors
    ///
    /// [`Stuck`]: no events are left, and `done` has not returned true.
    pub fn run_while(&mut self, end_ns: u64, mut done: impl FnMut(&Self) -> bool) -> Result<bool, Stuck> {
        loop {
            if done(self) {
                return Ok(true);
            }
            if !self.step(end_ns) {
                if self.network.0.world.borrow().events.next_ns().is_some() {
                    self.network.run_until(end_ns);
                    return Ok(false);
                }
                return Err(self.stuck());
            }
        }
    }

    fn stuck(&self) -> Stuck {
        let world = self.network.0.world.borrow();
        let waiting = self.actors.iter().filter(|place| place.actor.is_some()).map(|place| {
            let ports: Vec<&str> = place.ports.iter().map(|port| &*world.nodes[port.0].name).collect();
            let what =
                if ports.is_empty() { "a wake".to_owned() } else { format!("a packet at {}", ports.join(" or ")) };
            (place.name.clone(), what)
        });
        Stuck { time_ns: self.network.0.clock.event_ns(), waiting: waiting.collect() }
    }

    /// Runs the simulation until an actor has had a turn or a wake was handled, or until `end_ns`; returns false for
    /// the latter.
    fn step(&mut self, end_ns: u64) -> bool {
        if self.network.0.wakes.has_pending() {
            self.read_pending_wakes();
        }
        let mut shared = self.network.0.world.borrow_mut();
        let world = &mut *shared;
        if !world.touched.is_empty() {
            // Something was flushed in a turn, or between steps.
            let now_ns = self.network.0.clock.event_ns();
            for (actor, at_ns) in world.touched.drain(..) {
                self.actors[actor as usize].wake(actor, at_ns.max(now_ns), &mut world.events);
            }
        }
        while let Some((now_ns, event)) = world.events.pop_until(end_ns) {
            self.network.0.clock.advance_to(now_ns);
            if let Event::Turn { actor, number } = event {
                if self.actors.len() >= LOOK_AHEAD_FROM_ACTORS {
                    self.ahead.look(now_ns, world, &self.actors);
                }
                match self.actors.get(actor as usize) {
                    Some(place) if place.turn != number => continue,
                    Some(_) => {
                        drop(shared);
                        self.turn(actor, now_ns);
                    }
                    // No actor has this number: it is `WOKEN`, for a wake.
                    None => {
                        drop(shared);
                        self.handle_wake(now_ns);
                    }
                }
                return true;
            }
            world.handle(now_ns, event);
            for (actor, at_ns) in world.touched.drain(..) {
                self.actors[actor as usize].wake(actor, at_ns.max(now_ns), &mut world.events);
            }
        }
        false
    }

    /// Schedules the wakes that were noted since the last step, and turns for actors that packets reached between
    /// steps.
    #[cold]
    fn read_pending_wakes(&mut self) {
        let mut wakes = Vec::new();
        self.network.0.wakes.take(&mut wakes);
        // A note from another thread may hold an older reading of the clock.
        let now_ns = self.network.0.clock.event_ns();
        self.wake_touched(now_ns);
        for PendingWake { time_ns, source, listener, effect } in wakes {
            let time_ns = time_ns.max(now_ns);
            self.schedule_wake(time_ns, listener, Wake { time_ns, source, effect });
        }
    }

    fn wake_touched(&mut self, now_ns: u64) {
        let world = &mut *self.network.0.world.borrow_mut();
        for (actor, at_ns) in world.touched.drain(..) {
            self.actors[actor as usize].wake(actor, at_ns.max(now_ns), &mut world.events);
        }
    }

    fn schedule_wake(&mut self, due_ns: u64, listener: Listener, wake: Wake) {
        self.reschedule_wake((due_ns, listener, self.wakes_noted), wake);
        self.wakes_noted += 1;
    }

    fn reschedule_wake(&mut self, key: WakeKey, wake: Wake) {
        self.wakes.insert(key, wake);
        self.network.0.world.borrow_mut().events.add_wake(key.0);
    }

    /// Hears the first wake that is due.
    #[cold]
    fn handle_wake(&mut self, now_ns: u64) {
        let Some(first) = self.wakes.first_entry().filter(|first| first.key().0 <= now_ns) else { return };
        let ((_, listener, mut number), mut wake) = first.remove_entry();
        if let Some(effect) = wake.effect.take() {
            effect();
            // No earlier turn has seen this effect.
            number = self.wakes_noted;
            self.wakes_noted += 1;
        }
        if listener == Listener::Nobody {
            return;
        }
        if let Some(other) = self.network.0.wakes.listener(wake.source).filter(|other| *other != listener) {
            return self.reschedule_wake((now_ns, other, number), wake);
        }
        match listener {
            Listener::Nobody => {}
            Listener::Pool(pool) => {
                if let Some(next_ns) = self.pools[pool as usize].run(now_ns) {
                    self.schedule_wake(next_ns, listener, Wake { time_ns: next_ns, source: wake.source, effect: None });
                }
            }
            Listener::Actor(actor) => {
                let place = &mut self.actors[actor as usize];
                let (seen_ns, seen) = place.seen;
                if place.actor.is_none() || wake.time_ns < seen_ns && number < seen {
                    return;
                }
                let turn_ns = place.core.turn_ns(place.core.free_ns.max(seen_ns).max(wake.time_ns));
                if turn_ns > now_ns {
                    return self.reschedule_wake((turn_ns, listener, number), wake);
                }
                place.cancel();
                self.turn(actor, now_ns);
            }
        }
    }

    fn turn(&mut self, index: u32, now_ns: u64) {
        let slot = &mut self.actors[index as usize];
        slot.next_ns = None;
        slot.seen = (now_ns + 1, self.wakes_noted);
        slot.core.wake(now_ns);
        let Some(actor) = &mut slot.actor else { return };
        let (state, spent_ns) = self.network.0.clock.work(index, || actor.turn());
        slot.core.spend(now_ns, spent_ns);
        let mut world = self.network.0.world.borrow_mut();
        let (mut next_event_ns, mut has_more) = (None, false);
        for port in &slot.ports {
            has_more |= world.has_unpolled(port.0);
            let node = &mut world.nodes[port.0];
            next_event_ns = next_event_ns.into_iter().chain(node.wake_ns.take()).chain(node.next_arrival_ns()).min();
            has_more |= !node.waiting.is_empty();
        }
        let next_ns = match state {
            ActorState::Done => {
                slot.core.work(spent_ns);
                // Dropping the actor closes its ports, which borrow the network.
                drop(world);
                slot.core.end(slot.core.free_ns);
                slot.actor = None;
                return;
            }
            ActorState::Work => {
                slot.core.work(spent_ns);
                // Time must pass even if the turn cost nothing.
                Some(slot.core.free_ns.max(now_ns + 1))
            }
            ActorState::Idle | ActorState::IdleUntil(_) | ActorState::Asleep | ActorState::AsleepUntil(_)
                if has_more =>
            {
                Some(slot.core.free_ns.max(now_ns + 1))
            }
            ActorState::Idle | ActorState::Asleep => next_event_ns,
            ActorState::IdleUntil(until_ns) | ActorState::AsleepUntil(until_ns) => {
                Some(next_event_ns.map_or(until_ns, |wants_ns| wants_ns.min(until_ns)))
            }
        };
        if matches!(state, ActorState::Asleep | ActorState::AsleepUntil(_)) && !has_more {
            slot.core.sleep();
        }
        if let Some(next_ns) = next_ns {
            let next_ns = slot.core.turn_ns(next_ns.max(slot.core.free_ns).max(now_ns + 1));
            slot.schedule(index, next_ns, &mut world.events);
        }
    }
}
