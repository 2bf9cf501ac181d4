//! Routes to other ports: paths with their address handles, made when a datagram is first sent there, and kept for
//! later ones.

use std::collections::HashMap;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use sinew_mem::atomic::plain::{AtomicU64, Ordering};

use crate::abi::*;
use crate::registration::DomainInner;
use crate::time_budget::TimeBudget;

/// Most routes that are remembered. A new one evicts one that has not been used lately.
pub(crate) const ROUTES_MAX: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 16;

/// Time for which an unknown sender (see [`Routes::reply_handle`]) that could not be reached is not tried again.
const FAILURE_MEMORY_NS: u64 = 30_000_000_000;

/// Most hops of a packet; the usual value.
const HOPS_MAX: u8 = 64;

/// The target of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// By local identifier, within an InfiniBand subnet.
    Lid(u16),
    /// By global identifier: on Ethernet (where the local one is 0), and on InfiniBand where packets must carry it, or
    /// go to another subnet by the local identifier of a router.
    Gid { gid: [u8; 16], lid: u16 },
}

/// Describes the path to a target, for a queue pair or an address handle.
pub(crate) fn ah_attr(target: Target, port: u8, sgid_index: u8) -> ibv_ah_attr {
    let (gid, lid, is_global) = match target {
        Target::Lid(lid) => ([0; 16], lid, false),
        Target::Gid { gid, lid } => (gid, lid, true),
    };
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: gid },
            flow_label: 0,
            sgid_index,
            hop_limit: HOPS_MAX,
            traffic_class: 0,
        },
        dlid: lid,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: is_global.into(),
        port_num: port,
    }
}

/// A route, with its address handle `H` once there is one.
#[derive(Debug)]
pub(crate) struct Route<H> {
    pub target: Target,
    /// Most bytes of a datagram on it, as far as we know.
    pub mtu: usize,
    /// The handle, which requests that use the route also hold until they are over.
    pub handle: Option<Rc<H>>,
    /// The error with which making a handle failed, and the time until which no other attempt is made.
    last_failure: Option<(i32, u64)>,
}

/// The device's description of a target, which on Ethernet holds the MAC address of the next hop.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    ah: NonNull<ibv_ah>,
    domain: Arc<DomainInner>,
}

impl AddressHandle {
    /// Makes a handle. The device asks the kernel, which on Ethernet waits for the next hop's answer: for a second or
    /// more when there is none.
    pub fn new(domain: &Arc<DomainInner>, target: Target) -> io::Result<Self> {
        let device = &domain.device;
        let sgid_index = device.gid.as_ref().map_or(0, |gid| gid.index);
        let mut attributes = ah_attr(target, device.port.number, sgid_index);
        // SAFETY: our domain, and a description.
        let ah = unsafe { (domain.library().ibv_create_ah)(domain.pd(), &raw mut attributes) };
        let ah = NonNull::new(ah).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { ah, domain: Arc::clone(domain) })
    }

    pub fn as_ptr(&self) -> *mut ibv_ah {
        self.ah.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: requests that name it hold this handle, so none is left.
        unsafe { (self.domain.library().ibv_destroy_ah)(self.ah.as_ptr()) };
    }
}

/// The routes of one thread.
#[derive(Debug)]
pub(crate) struct Routes<H> {
    slots: Vec<Slot<H>>,
    by_target: HashMap<Target, usize>,
    /// The last target and its handle, since the same one is usually asked for again.
    last: Option<(Target, u64)>,
    /// The hand of the clock algorithm: the slot at which the next search for a route to evict begins.
    clock_hand: usize,
    slots_max: usize,
    /// Most bytes of a message on a route, unless its peer takes fewer.
    mtu: usize,
    /// Budget of the thread's time for making the address handles of unknown senders.
    time_budget: TimeBudget,
}

#[derive(Debug)]
struct Slot<H> {
    /// The slot's index, and above it a number that no other route of this process has. A handle of another thread, or
    /// of a route that was evicted, matches nothing.
    handle: u64,
    /// Whether the route was used since the clock hand last passed.
    used: bool,
    route: Route<H>,
}

fn new_handle(slot: usize) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: the numbers only have to differ.
    NEXT.fetch_add(1, Ordering::Relaxed) << SLOT_BITS | slot as u64
}

impl<H> Routes<H> {
    pub fn new(mtu: usize) -> Self {
        Self::with_slots(mtu, ROUTES_MAX)
    }

    fn with_slots(mtu: usize, slots_max: usize) -> Self {
        let (slots, by_target, time_budget) = (Vec::new(), HashMap::new(), TimeBudget::default());
        Self { slots, by_target, last: None, clock_hand: 0, slots_max, mtu, time_budget }
    }

    /// The handle of the route to a target, which stays the same while the route is remembered.
    #[inline]
    pub fn handle_to(&mut self, target: Target) -> u64 {
        if let Some((last, handle)) = self.last
            && last == target
            && self.get(handle).is_some()
        {
            return handle;
        }
        let handle = self.find_or_add(target);
        self.last = Some((target, handle));
        handle
    }

    fn find_or_add(&mut self, target: Target) -> u64 {
        if let Some(&index) = self.by_target.get(&target) {
            let slot = &mut self.slots[index];
            slot.used = true;
            return slot.handle;
        }
        let index = if self.slots.len() < self.slots_max { self.slots.len() } else { self.evict() };
        let route = Route { target, mtu: self.mtu, handle: None, last_failure: None };
        let slot = Slot { handle: new_handle(index), used: false, route };
        let handle = slot.handle;
        if index == self.slots.len() {
            self.slots.push(slot);
        } else {
            self.slots[index] = slot;
        }
        self.by_target.insert(target, index);
        handle
    }

    /// Evicts a route that has not been used since the clock hand last passed it.
    fn evict(&mut self) -> usize {
        loop {
            let index = self.clock_hand;
            self.clock_hand = (index + 1) % self.slots.len();
            let slot = &mut self.slots[index];
            if !std::mem::take(&mut slot.used) {
                self.by_target.remove(&slot.route.target);
                return index;
            }
        }
    }

    /// The route of a handle; `None` if the route was evicted, or is another thread's.
    pub fn get(&mut self, handle: u64) -> Option<&mut Route<H>> {
        let index = (handle & (ROUTES_MAX as u64 - 1)) as usize;
        let slot = self.slots.get_mut(index).filter(|slot| slot.handle == handle)?;
        slot.used = true;
        Some(&mut slot.route)
    }

    /// Makes the address handle for answering an unknown sender, one to whom nobody here asked for a route. This is
    /// refused if it failed lately, or if unknown senders have used up their budget of the thread's time. The error is
    /// the system's number; [`libc::EAGAIN`] if the budget is used up.
    #[cold]
    pub fn reply_handle(
        &mut self,
        handle: u64,
        now_ns: impl Fn() -> u64,
        make: impl FnOnce(Target) -> io::Result<H>,
    ) -> Result<Rc<H>, i32> {
        let began_ns = now_ns();
        let is_in_budget = self.time_budget.may_begin(began_ns);
        let route = self.get(handle).ok_or(libc::EINVAL)?;
        match route.last_failure {
            Some((error, until_ns)) if began_ns < until_ns => return Err(error),
            _ if !is_in_budget => return Err(libc::EAGAIN),
            _ => {}
        }
        let result = make(route.target).map(Rc::new).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO));
        let ended_ns = now_ns();
        match &result {
            Ok(made) => (route.handle, route.last_failure) = (Some(Rc::clone(made)), None),
            Err(error) => route.last_failure = Some((*error, ended_ns.saturating_add(FAILURE_MEMORY_NS))),
        }
        self.time_budget.charge(began_ns, ended_ns);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_target_has_one_handle_and_no_other_thread_knows_it() {
        let mut routes = Routes::<()>::new(4096);
        let handles = [1, 2].map(|lid| routes.handle_to(Target::Lid(lid)));
        assert_ne!(handles[0], handles[1]);
        assert_eq!(routes.handle_to(Target::Lid(1)), handles[0]);
        assert_eq!(routes.get(handles[1]).unwrap().target, Target::Lid(2));
        assert_eq!(routes.get(handles[1]).unwrap().mtu, 4096);
        let mut other = Routes::<()>::new(4096);
        other.handle_to(Target::Lid(1));
        assert!(other.get(handles[0]).is_none());
        assert!([0, 1, u64::MAX].into_iter().all(|forged| routes.get(forged).is_none()));
    }

    #[test]
    fn strangers_push_out_each_other_and_not_those_in_use() {
        let mut routes = Routes::<()>::with_slots(4096, 4);
        let friend = routes.handle_to(Target::Lid(1));
        let idle = routes.handle_to(Target::Lid(2));
        for sender in 0..100 {
            assert!(routes.get(friend).is_some());
            routes.handle_to(Target::Gid { gid: [sender; 16], lid: 0 });
            assert!(routes.slots.len() <= 4 && routes.by_target.len() == routes.slots.len());
        }
        assert!(routes.get(idle).is_none());
        assert_ne!(routes.handle_to(Target::Lid(2)), idle);
    }

    const SECOND_NS: u64 = 1_000_000_000;

    /// Answers an unknown sender, for whose handle the system takes `takes_ns`; returns whether the system was asked,
    /// and the outcome.
    fn answer(
        routes: &mut Routes<()>,
        sender: u16,
        now: &Cell<u64>,
        takes_ns: u64,
        works: bool,
    ) -> (bool, Result<(), i32>) {
        let (handle, mut asked) = (routes.handle_to(Target::Lid(sender)), false);
        let make = |_| {
            asked = true;
            now.set(now.get() + takes_ns);
            if works { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH)) }
        };
        let made = routes.reply_handle(handle, || now.get(), make);
        (asked, made.map(|handle| *handle))
    }

    #[test]
    fn a_stranger_whom_nothing_reached_is_not_tried_again_for_a_while() {
        let (mut routes, now) = (Routes::new(4096), Cell::new(7));
        let unreachable = Err(libc::EHOSTUNREACH);
        assert_eq!(answer(&mut routes, 1, &now, SECOND_NS / 1000, false), (true, unreachable));
        now.set(now.get() + FAILURE_MEMORY_NS - 1);
        assert_eq!(answer(&mut routes, 1, &now, 0, true), (false, unreachable));
        assert_eq!(answer(&mut routes, 2, &now, 0, true), (true, Ok(())), "it is nobody else's fault");
        now.set(now.get() + 1);
        assert_eq!(answer(&mut routes, 1, &now, 0, true), (true, Ok(())));
    }

    #[test]
    fn strangers_to_whom_the_way_is_long_wait_for_their_share() {
        let (mut routes, now) = (Routes::new(4096), Cell::new(0));
        let mut busy_ns = 0;
        for sender in 0..10_000 {
            let asked = answer(&mut routes, sender, &now, SECOND_NS, sender % 2 == 0).0;
            busy_ns += if asked { SECOND_NS } else { 0 };
            now.set(now.get() + SECOND_NS / 100);
        }
        assert!(busy_ns * 9 < now.get(), "busy for {busy_ns} of {} ns", now.get());
        assert!(busy_ns * 20 > now.get(), "busy for {busy_ns} of {} ns", now.get());
        assert_eq!(answer(&mut routes, 20_000, &now, 0, true), (false, Err(libc::EAGAIN)));
    }

    #[test]
    fn a_description_says_whether_it_is_global() {
        let local = ah_attr(Target::Lid(7), 2, 3);
        assert_eq!((local.is_global, local.dlid, local.port_num), (0, 7, 2));
        let global = ah_attr(Target::Gid { gid: [5; 16], lid: 0 }, 1, 3);
        assert_eq!((global.is_global, global.grh.dgid.raw, global.grh.sgid_index), (1, [5; 16], 3));
    }
}
