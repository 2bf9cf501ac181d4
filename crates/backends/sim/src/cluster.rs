//! Who has a turn, and when.

use std::collections::BTreeMap;
use std::fmt;

use sinew_fabric::Waker;
use sinew_mem::atomic::plain::Arc;

use crate::cores::{Core, CoreShare, CoreTime, IdleCount};
use crate::events::{Event, Events};
use crate::network::Network;
use crate::port::PortId;
use crate::time::SimClock;
use crate::wakes::{Listener, Note, Source, WakeSource};
use crate::workers::{SimWorkers, WorkersConfig};

/// What a core of the cluster runs: a program that turns an endpoint's loop.
pub trait Actor {
    /// Runs the loop once. What it costs is what the ports charge, and what the actor [spends](SimClock::spend_ns) itself.
    fn turn(&mut self) -> Doing;
}

/// What an actor does after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It goes on as soon as its core is free.
    Work,
    /// It polls in vain: its next turn is when a packet comes to one of its ports, when it is [woken](Cluster::waker), or when it said in
    /// [`wait`](sinew_fabric::PacketPort::wait) that it wants one: the earliest counts, where it has several ports. The turns until then need not be
    /// run, since nothing comes of them.
    Idle,
    /// As [`Doing::Idle`], but at this time at the latest.
    IdleUntil(u64),
    /// As [`Doing::Idle`], but it sleeps, as on a descriptor: its core is somebody else's meanwhile, and what wakes it is an interrupt, which takes its
    /// time ([`Cluster::share_core`]).
    Asleep,
    /// As [`Doing::Asleep`], but until this time at the latest.
    AsleepUntil(u64),
    /// It has ended.
    Done,
}

/// An actor, as its [`Cluster`] knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActorId(u32);

struct Place {
    name: String,
    actor: Option<Box<dyn Actor>>,
    ports: Vec<PortId>,
    /// Wakes the actor, without a port.
    source: Arc<Source>,
    /// Of the turn that it waits for.
    turn: u32,
    /// When that is foreseen.
    next_ns: Option<u64>,
    core: Core,
    /// Wakes before this time, and before this number, were there when it had its last turn.
    seen: (u64, u64),
}

impl Place {
    /// Gives the actor a turn as soon as its core is free, unless it has one before that anyway.
    #[inline]
    fn wake(&mut self, actor: u32, now_ns: u64, events: &mut Events) {
        let next_ns = self.core.turn_ns(self.core.free_ns.max(now_ns));
        if self.actor.is_some() && self.next_ns.is_none_or(|foreseen_ns| next_ns < foreseen_ns) {
            self.foresee(actor, next_ns, events);
        }
    }

    /// The next turn of the actor, in place of the one that was foreseen.
    fn foresee(&mut self, actor: u32, next_ns: u64, events: &mut Events) {
        self.foresee_none();
        self.next_ns = Some(next_ns);
        events.add(next_ns, Event::Turn { actor, number: self.turn });
    }

    /// The turn that was foreseen is not to be.
    #[inline]
    fn foresee_none(&mut self) {
        self.turn += 1;
        self.next_ns = None;
    }
}

/// When a wake is due, for whom, and how many were noted before it.
type WakeKey = (u64, Listener, u64);

/// A wake that is due at some time.
struct Wake {
    /// When it was made; it is due later where a core is busy.
    time_ns: u64,
    source: u32,
    effect: Option<Box<dyn FnOnce() + Send>>,
}

/// A simulation that cannot go on: everybody waits for packets, and none is on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// When.
    pub time_ns: u64,
    /// Who waits, and for what.
    pub waiting: Vec<(String, String)>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {} ns nothing happens any more", self.time_ns)?;
        self.waiting.iter().try_for_each(|(who, what)| write!(f, "; {who} waits for {what}"))
    }
}

impl std::error::Error for Stuck {}

/// Actors, each on a core of its own, at the ports of a [`Network`]: whoever turns it lets time pass.
///
/// From the first actor or pool on, time passes in the cluster alone, for as long as it is there: a port of no actor cannot
/// [wait](sinew_fabric::PacketPort::wait) beside it.
///
/// What happens at one nanosecond happens in the order in which it was foreseen: packets, the turns for packets and at times that were asked
/// for, and the moments at which wakes are heard. At such a moment the first is heard of all wakes that are due by then: what
/// [takes effect](sinew_fabric::Waker::take_effect) and wakes nobody, then pools, then actors, in the order in which they were added. So of two actors that
/// are woken at one time the first that was added has the first turn, and an actor that has a turn at that time anyway has it before or after them as it was
/// foreseen.
pub struct Cluster {
    network: Network,
    places: Vec<Place>,
    pools: Vec<SimWorkers>,
    wakes: BTreeMap<WakeKey, Wake>,
    /// Wakes that were noted so far.
    noted: u64,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("network", &self.network).field("actors", &self.places.len()).finish()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.network.0.is_driven.set(false);
        self.network.0.clock.rest();
        self.network.0.wakes.end();
    }
}

impl Cluster {
    /// A cluster without actors.
    pub fn new(network: &Network) -> Self {
        Self { network: network.clone(), places: Vec::new(), pools: Vec::new(), wakes: BTreeMap::new(), noted: 0 }
    }

    /// Its network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Its clock.
    pub fn clock(&self) -> SimClock {
        self.network.clock()
    }

    /// Adds an actor, which works on these ports and has its first turn at once.
    pub fn add(&mut self, name: &str, ports: impl IntoIterator<Item = PortId>, actor: Box<dyn Actor>) -> ActorId {
        self.network.0.is_driven.set(true);
        let index = self.places.len() as u32;
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
        let mut place = Place {
            name: name.to_owned(),
            actor: Some(actor),
            ports,
            source,
            turn: 0,
            next_ns: None,
            core: Core::new(now_ns),
            seen: (0, 0),
        };
        place.wake(index, now_ns, &mut world.events);
        drop(world);
        self.places.push(place);
        ActorId(index)
    }

    /// Wakes an actor, whether or not it has a port. A [`WakeSource`] has wakers before there is an actor.
    ///
    /// A wake in an actor's turn, or in a worker's job, is at the time that its core has come to; one from code that holds the cluster is now. The actor that
    /// is woken has a turn then, or as soon as its core is free; several wakes that it can see in one turn are one. Wakes at one time are heard in
    /// the order in which the actors were added ([`Cluster`]). A wake from another thread is no part of virtual time: it is noticed at the cluster's next step.
    pub fn waker(&self, actor: ActorId) -> Waker {
        Waker::new(self.places[actor.0 as usize].source.clone())
    }

    /// Lets a source wake this actor, and no other, from now on.
    ///
    /// # Panics
    ///
    /// When the source is another network's.
    pub fn listen(&mut self, actor: ActorId, source: &WakeSource) {
        let source = source.source();
        assert!(source.is_of(&self.network.0.wakes), "the source is another network's");
        source.listen(Listener::Actor(actor.0));
    }

    /// A pool of workers, each on a core of its own.
    pub fn workers(&mut self, name: &str, config: WorkersConfig) -> SimWorkers {
        self.network.0.is_driven.set(true);
        let (number, source) = (self.pools.len() as u32, self.network.0.wakes.source());
        source.listen(Listener::Pool(number));
        let pool = SimWorkers::new(name, config, source, self.clock());
        self.pools.push(pool.clone());
        pool
    }

    /// Ends an actor at once, as a host that crashes does: it has no turn in which to say farewell, unless its destructor does.
    /// Its ports close.
    pub fn crash(&mut self, actor: ActorId) -> Option<Box<dyn Actor>> {
        let place = &mut self.places[actor.0 as usize];
        place.foresee_none();
        let mut world = self.network.0.world.borrow_mut();
        let now_ns = self.network.0.clock.event_ns();
        place.core.end(now_ns);
        place.ports.iter().for_each(|port| world.close(port.0, now_ns));
        drop(world);
        place.actor.take()
    }

    /// Lets an actor stand still until `end_ns`: packets come, and it does not look.
    pub fn pause(&mut self, actor: ActorId, end_ns: u64) {
        let place = &mut self.places[actor.0 as usize];
        if place.core.has_ended() {
            return;
        }
        place.core.pause(self.network.0.clock.event_ns(), end_ns);
        if place.next_ns.is_some_and(|next_ns| next_ns < end_ns) {
            let next_ns = place.core.turn_ns(end_ns);
            place.foresee(actor.0, next_ns, &mut self.network.0.world.borrow_mut().events);
        }
    }

    /// How an actor's core wakes it from sleep, and whom it shares it with, from now on.
    pub fn share_core(&mut self, actor: ActorId, share: CoreShare) {
        let now_ns = self.network.0.clock.event_ns();
        self.places[actor.0 as usize].core.share(share, now_ns);
    }

    /// Counts from now on how long an actor's core is idle: its thread sleeps, and nothing competes with it. The count is up to date whenever the actor has a turn.
    pub fn count_idle(&mut self, actor: ActorId) -> IdleCount {
        self.places[actor.0 as usize].core.count_idle()
    }

    /// How an actor's core spent its time. A core polls whenever it does not work or stand still, as a loop that never sleeps does.
    pub fn core_time(&self, actor: ActorId) -> CoreTime {
        self.places[actor.0 as usize].core.time(self.network.0.clock.event_ns())
    }

    /// Lets everything happen until `end_ns`.
    pub fn run_until(&mut self, end_ns: u64) {
        while self.step(end_ns) {}
        self.network.run_until(end_ns);
    }

    /// Lets things happen until `done` says so, which is asked after each turn of an actor and each wake, and at most until `end_ns`. Returns
    /// whether it said so.
    ///
    /// # Errors
    ///
    /// [`Stuck`]: before that nothing is left to happen.
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
        let waiting = self.places.iter().filter(|place| place.actor.is_some()).map(|place| {
            let ports: Vec<&str> = place.ports.iter().map(|port| &*world.nodes[port.0].name).collect();
            let what =
                if ports.is_empty() { "a wake".to_owned() } else { format!("a packet at {}", ports.join(" or ")) };
            (place.name.clone(), what)
        });
        Stuck { time_ns: self.network.0.clock.event_ns(), waiting: waiting.collect() }
    }

    /// Lets things happen until an actor has had its turn or a wake was heard, or until `end_ns`; returns whether that was.
    fn step(&mut self, end_ns: u64) -> bool {
        if self.network.0.wakes.any() {
            self.read_notes();
        }
        let mut shared = self.network.0.world.borrow_mut();
        let world = &mut *shared;
        if !world.touched.is_empty() {
            // In a turn, or while nobody turned the cluster: something was flushed.
            let now_ns = self.network.0.clock.event_ns();
            for (actor, at_ns) in world.touched.drain(..) {
                self.places[actor as usize].wake(actor, at_ns.max(now_ns), &mut world.events);
            }
        }
        while let Some((now_ns, event)) = world.events.pop_until(end_ns) {
            self.network.0.clock.advance_to(now_ns);
            if let Event::Turn { actor, number } = event {
                match self.places.get(actor as usize) {
                    Some(place) if place.turn != number => continue,
                    Some(_) => {
                        drop(shared);
                        self.turn(actor, now_ns);
                    }
                    // Nobody's turn is that of `WOKEN`.
                    None => {
                        drop(shared);
                        self.hear(now_ns);
                    }
                }
                return true;
            }
            world.happen(now_ns, event);
            for (actor, at_ns) in world.touched.drain(..) {
                self.places[actor as usize].wake(actor, at_ns.max(now_ns), &mut world.events);
            }
        }
        false
    }

    /// Foresees the wakes that were noted since the last step, and the turns of those whom packets came to while nobody turned the cluster.
    #[cold]
    fn read_notes(&mut self) {
        let mut notes = Vec::new();
        self.network.0.wakes.take(&mut notes);
        // One from another thread may have read the clock a while ago.
        let now_ns = self.network.0.clock.event_ns();
        self.wake_touched(now_ns);
        for Note { time_ns, source, listener, effect } in notes {
            let time_ns = time_ns.max(now_ns);
            self.foresee_wake(time_ns, listener, Wake { time_ns, source, effect });
        }
    }

    fn wake_touched(&mut self, now_ns: u64) {
        let world = &mut *self.network.0.world.borrow_mut();
        for (actor, at_ns) in world.touched.drain(..) {
            self.places[actor as usize].wake(actor, at_ns.max(now_ns), &mut world.events);
        }
    }

    fn foresee_wake(&mut self, due_ns: u64, listener: Listener, wake: Wake) {
        self.put_off_wake((due_ns, listener, self.noted), wake);
        self.noted += 1;
    }

    fn put_off_wake(&mut self, key: WakeKey, wake: Wake) {
        self.wakes.insert(key, wake);
        self.network.0.world.borrow_mut().events.add_wake(key.0);
    }

    /// The first wake that is due is heard.
    #[cold]
    fn hear(&mut self, now_ns: u64) {
        let Some(first) = self.wakes.first_entry().filter(|first| first.key().0 <= now_ns) else { return };
        let ((_, listener, mut number), mut wake) = first.remove_entry();
        if let Some(effect) = wake.effect.take() {
            effect();
            // Whatever turn was before, it did not see this.
            number = self.noted;
            self.noted += 1;
        }
        if listener == Listener::Nobody {
            return;
        }
        if let Some(other) = self.network.0.wakes.listener(wake.source).filter(|other| *other != listener) {
            return self.put_off_wake((now_ns, other, number), wake);
        }
        match listener {
            Listener::Nobody => {}
            Listener::Pool(pool) => {
                if let Some(next_ns) = self.pools[pool as usize].run(now_ns) {
                    self.foresee_wake(next_ns, listener, Wake { time_ns: next_ns, source: wake.source, effect: None });
                }
            }
            Listener::Actor(actor) => {
                let place = &mut self.places[actor as usize];
                let (seen_ns, seen) = place.seen;
                if place.actor.is_none() || wake.time_ns < seen_ns && number < seen {
                    return;
                }
                let turn_ns = place.core.turn_ns(place.core.free_ns.max(seen_ns).max(wake.time_ns));
                if turn_ns > now_ns {
                    return self.put_off_wake((turn_ns, listener, number), wake);
                }
                place.foresee_none();
                self.turn(actor, now_ns);
            }
        }
    }

    fn turn(&mut self, index: u32, now_ns: u64) {
        let place = &mut self.places[index as usize];
        place.next_ns = None;
        place.seen = (now_ns + 1, self.noted);
        place.core.wake(now_ns);
        let Some(actor) = &mut place.actor else { return };
        let (doing, spent_ns) = self.network.0.clock.work(index, || actor.turn());
        place.core.spend(now_ns, spent_ns);
        let mut world = self.network.0.world.borrow_mut();
        let (mut wants_ns, mut has_more) = (None, false);
        for port in &place.ports {
            has_more |= world.has_left(port.0);
            let node = &mut world.nodes[port.0];
            wants_ns = wants_ns.into_iter().chain(node.wake_ns.take()).chain(node.next_ns()).min();
            has_more |= !node.waiting.is_empty();
        }
        let next_ns = match doing {
            Doing::Done => {
                place.core.work(spent_ns);
                // Its ports close, and look at the network.
                drop(world);
                place.core.end(place.core.free_ns);
                place.actor = None;
                return;
            }
            Doing::Work => {
                place.core.work(spent_ns);
                // Where nothing costs anything, time passes all the same.
                Some(place.core.free_ns.max(now_ns + 1))
            }
            Doing::Idle | Doing::IdleUntil(_) | Doing::Asleep | Doing::AsleepUntil(_) if has_more => {
                Some(place.core.free_ns.max(now_ns + 1))
            }
            Doing::Idle | Doing::Asleep => wants_ns,
            Doing::IdleUntil(until_ns) | Doing::AsleepUntil(until_ns) => {
                Some(wants_ns.map_or(until_ns, |wants_ns| wants_ns.min(until_ns)))
            }
        };
        if matches!(doing, Doing::Asleep | Doing::AsleepUntil(_)) && !has_more {
            place.core.sleep();
        }
        if let Some(next_ns) = next_ns {
            let next_ns = place.core.turn_ns(next_ns.max(place.core.free_ns).max(now_ns + 1));
            place.foresee(index, next_ns, &mut world.events);
        }
    }
}
