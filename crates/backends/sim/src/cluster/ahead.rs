//! Prefetching for events that come soon.
//!
//! With a thousand actors, several have turns in each nanosecond, and when one has its next turn no cache holds its
//! state any more. Most turns are for one packet, whose reads each depend on the last: event, actor, packet, session,
//! buffer. So a few nanoseconds before an event, its reads are prefetched in steps, each of which reads what the step
//! before has prefetched. Events that are scheduled later than that are not prefetched. All of this only takes less
//! time: results are the same.

use super::{ActorSlot, PrefetchStep};
use crate::events::Event;
use crate::world::World;

/// Number of actors from which prefetching pays: the state of fewer stays in the caches.
pub(super) const LOOK_AHEAD_FROM_ACTORS: usize = 64;

/// How long before an event each step is, in ns. Far earlier, what was prefetched would be gone again.
const STEPS_NS: [u64; 5] = [10, 8, 6, 4, 2];

/// The times up to which each step has been done.
#[derive(Default)]
pub(super) struct Ahead {
    done_ns: [u64; STEPS_NS.len()],
}

impl Ahead {
    /// Prefetches for the events that come within reach as time passes to `now_ns`.
    #[inline]
    pub fn look(&mut self, now_ns: u64, world: &World, actors: &[ActorSlot]) {
        if self.done_ns[0] < now_ns.saturating_add(STEPS_NS[0]) {
            self.go_on(now_ns, world, actors);
        }
    }

    #[inline(never)]
    fn go_on(&mut self, now_ns: u64, world: &World, actors: &[ActorSlot]) {
        for (step, (done_ns, ahead_ns)) in self.done_ns.iter_mut().zip(STEPS_NS).enumerate() {
            let (from_ns, to_ns) = (done_ns.saturating_add(1), now_ns.saturating_add(ahead_ns));
            *done_ns = to_ns;
            world.events.show(from_ns, to_ns, |event| match event {
                Event::Turn { actor, number } => prefetch_turn(step, actors.get(actor as usize), number, world, to_ns),
                Event::Landed { flight, .. } | Event::Sent { first: flight, .. } => {
                    prefetch_landing(step, flight, world, actors);
                }
                _ => {}
            });
        }
    }
}

/// Prefetches what an actor's turn reads.
#[inline]
fn prefetch_turn(step: usize, slot: Option<&ActorSlot>, number: u32, world: &World, until_ns: u64) {
    let Some(slot) = slot else { return };
    if step == 0 {
        return sinew_mem::prefetch_read(slot);
    }
    if slot.turn != number {
        // Another turn has replaced it.
        return;
    }
    let (Some(port), Some(actor)) = (slot.ports.first(), slot.actor.as_deref()) else { return };
    let node = &world.nodes[port.0];
    match step {
        1 => {
            sinew_mem::prefetch_read(node);
            sinew_mem::prefetch_read(actor);
        }
        2 => node.prefetch(until_ns),
        3 => node.arrived(until_ns).for_each(|packet| actor.prefetch(packet.bytes(), PrefetchStep::First)),
        _ => node.arrived(until_ns).for_each(|packet| actor.prefetch(packet.bytes(), PrefetchStep::Second)),
    }
}

/// Prefetches what a packet's arrival at a switch or at a host reads.
#[inline]
fn prefetch_landing(step: usize, flight: u32, world: &World, actors: &[ActorSlot]) {
    match step {
        0 => world.prefetch_flight(flight),
        1 => sinew_mem::prefetch_read(world.target(flight)),
        2 => {
            let actor = world.target(flight).actor;
            if let Some(slot) = actor.and_then(|actor| actors.get(actor as usize)) {
                sinew_mem::prefetch_read(slot);
            }
        }
        _ => {}
    }
}
