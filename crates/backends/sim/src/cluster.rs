//! Who works on the ports, and when.

use std::fmt;

use crate::events::{Event, Events};
use crate::network::Network;
use crate::port::PortId;
use crate::time::SimClock;

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
    /// It polls in vain: its next turn is when a packet comes to one of its ports, or when it said in
    /// [`wait`](sinew_fabric::PacketPort::wait) that it wants one. The turns until then need not be run, since nothing comes of them.
    Idle,
    /// As [`Doing::Idle`], but at this time at the latest.
    IdleUntil(u64),
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
    /// Of the turn that it waits for.
    turn: u32,
    /// When that is foreseen.
    next_ns: Option<u64>,
    /// When its core is free.
    free_ns: u64,
    began_ns: u64,
    ended_ns: Option<u64>,
    worked_ns: u64,
    paused_ns: u64,
    /// The last pause, if no turn came after it.
    pauses_ns: u64,
}

impl Place {
    /// Gives the actor a turn as soon as its core is free, unless it has one before that anyway.
    #[inline]
    fn wake(&mut self, actor: u32, now_ns: u64, events: &mut Events) {
        let next_ns = self.free_ns.max(now_ns);
        if self.actor.is_some() && self.next_ns.is_none_or(|foreseen_ns| next_ns < foreseen_ns) {
            self.foresee(actor, next_ns, events);
        }
    }

    /// The next turn of the actor, in place of the one that was foreseen.
    fn foresee(&mut self, actor: u32, next_ns: u64, events: &mut Events) {
        self.turn += 1;
        self.next_ns = Some(next_ns);
        events.add(next_ns, Event::Turn { actor, number: self.turn });
    }
}

/// How an actor's core spent its time until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// On turns that found something, or did.
    pub worked_ns: u64,
    /// Polling in vain: turns that need not be run are charged all the same.
    pub polled_ns: u64,
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
pub struct Cluster {
    network: Network,
    places: Vec<Place>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("network", &self.network).field("actors", &self.places.len()).finish()
    }
}

impl Cluster {
    /// A cluster without actors.
    pub fn new(network: &Network) -> Self {
        Self { network: network.clone(), places: Vec::new() }
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
        let index = self.places.len() as u32;
        let ports: Vec<PortId> = ports.into_iter().collect();
        let mut world = self.network.0.world.borrow_mut();
        for port in &ports {
            world.nodes[port.0].actor = Some(index);
        }
        drop(world);
        self.places.push(Place {
            name: name.to_owned(),
            actor: Some(actor),
            ports,
            turn: 0,
            next_ns: None,
            free_ns: 0,
            began_ns: self.network.0.clock.event_ns(),
            ended_ns: None,
            worked_ns: 0,
            paused_ns: 0,
            pauses_ns: 0,
        });
        let now_ns = self.network.0.clock.event_ns();
        let mut world = self.network.0.world.borrow_mut();
        self.places[index as usize].wake(index, now_ns, &mut world.events);
        ActorId(index)
    }

    /// Ends an actor at once, as a host that crashes does: it has no turn in which to say farewell, unless its destructor does.
    /// Its ports close.
    pub fn crash(&mut self, actor: ActorId) -> Option<Box<dyn Actor>> {
        let place = &mut self.places[actor.0 as usize];
        place.next_ns = None;
        place.turn += 1;
        let mut world = self.network.0.world.borrow_mut();
        let now_ns = self.network.0.clock.event_ns();
        place.ended_ns.get_or_insert(now_ns);
        place.ports.iter().for_each(|port| world.close(port.0, now_ns));
        drop(world);
        place.actor.take()
    }

    /// Lets an actor stand still until `end_ns`: packets come, and it does not look.
    pub fn pause(&mut self, actor: ActorId, end_ns: u64) {
        let place = &mut self.places[actor.0 as usize];
        if place.ended_ns.is_some() {
            return;
        }
        let from_ns = place.free_ns.max(self.network.0.clock.event_ns());
        let ns = end_ns.saturating_sub(from_ns);
        place.paused_ns += ns;
        place.pauses_ns += ns;
        place.free_ns = place.free_ns.max(end_ns);
        if place.next_ns.is_some_and(|next_ns| next_ns < end_ns) {
            place.foresee(actor.0, end_ns, &mut self.network.0.world.borrow_mut().events);
        }
    }

    /// How an actor's core spent its time. A core polls whenever it does not work or stand still, as a loop that never sleeps does.
    pub fn core_time(&self, actor: ActorId) -> CoreTime {
        let place = &self.places[actor.0 as usize];
        let end_ns = place.ended_ns.unwrap_or(self.network.0.clock.event_ns());
        // The last pause, or turn, may last longer.
        let beyond_ns = place.free_ns.saturating_sub(end_ns);
        let of_pause_ns = beyond_ns.min(place.pauses_ns);
        let paused_ns = place.paused_ns - of_pause_ns;
        let worked_ns = place.worked_ns.saturating_sub(beyond_ns - of_pause_ns);
        CoreTime { worked_ns, polled_ns: end_ns.saturating_sub(place.began_ns + worked_ns + paused_ns) }
    }

    /// Lets everything happen until `end_ns`.
    pub fn run_until(&mut self, end_ns: u64) {
        while self.step(end_ns) {}
        self.network.run_until(end_ns);
    }

    /// Lets things happen until `done` says so, which is asked after each turn of an actor, and at most until `end_ns`. Returns
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
            (place.name.clone(), format!("a packet at {}", ports.join(" or ")))
        });
        Stuck { time_ns: self.network.0.clock.event_ns(), waiting: waiting.collect() }
    }

    /// Lets things happen until an actor has had its turn, or until `end_ns`; returns whether one had.
    fn step(&mut self, end_ns: u64) -> bool {
        let mut shared = self.network.0.world.borrow_mut();
        let world = &mut *shared;
        while let Some((now_ns, event)) = world.events.pop_until(end_ns) {
            self.network.0.clock.advance_to(now_ns);
            if let Event::Turn { actor, number } = event {
                if self.places[actor as usize].turn == number {
                    drop(shared);
                    self.turn(actor, now_ns);
                    return true;
                }
                continue;
            }
            world.happen(now_ns, event);
            for (actor, at_ns) in world.touched.drain(..) {
                self.places[actor as usize].wake(actor, at_ns.max(now_ns), &mut world.events);
            }
        }
        false
    }

    fn turn(&mut self, index: u32, now_ns: u64) {
        let place = &mut self.places[index as usize];
        place.next_ns = None;
        let Some(actor) = &mut place.actor else { return };
        let (doing, spent_ns) = self.network.0.clock.work(|| actor.turn());
        (place.free_ns, place.pauses_ns) = (now_ns + spent_ns, 0);
        let mut world = self.network.0.world.borrow_mut();
        let (mut wants_ns, mut has_more) = (None, false);
        for port in &place.ports {
            let node = &mut world.nodes[port.0];
            wants_ns = wants_ns.into_iter().chain(node.wake_ns.take()).chain(node.next_ns()).min();
            has_more |= !node.waiting.is_empty() || node.woken.take();
        }
        let next_ns = match doing {
            Doing::Done => {
                place.worked_ns += spent_ns;
                // Its ports close, and look at the network.
                drop(world);
                (place.actor, place.ended_ns) = (None, Some(place.free_ns));
                return;
            }
            Doing::Work => {
                place.worked_ns += spent_ns;
                // Where nothing costs anything, time passes all the same.
                Some(place.free_ns.max(now_ns + 1))
            }
            Doing::Idle | Doing::IdleUntil(_) if has_more => Some(place.free_ns.max(now_ns + 1)),
            Doing::Idle => wants_ns,
            Doing::IdleUntil(until_ns) => Some(wants_ns.map_or(until_ns, |wants_ns| wants_ns.min(until_ns))),
        };
        if let Some(next_ns) = next_ns {
            let next_ns = next_ns.max(place.free_ns).max(now_ns + 1);
            place.foresee(index, next_ns, &mut world.events);
        }
    }
}
