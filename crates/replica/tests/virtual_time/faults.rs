//! Faults of members, disks and the network, and the changes that operators make among them.

use sinew_journal::disk::{Fault, SimDisk};
use sinew_replica::client_wire::ClientRequest;
use sinew_sim::{HostId, LinkFaults, LinkId};

use crate::random::{CLIENTS, RandomRun};
use crate::rules::Members;
use crate::sim::MS;

/// Voters that no removal goes below.
const VOTERS_MIN: usize = 2;

impl RandomRun {
    fn inject_network_fault(&mut self, one: usize) {
        let nodes = self.sim.nodes.len();
        let (other, client) = (self.draw(nodes), nodes + self.draw(CLIENTS));
        match self.draw(11) {
            0 => self.part(&[one]),
            1 => self.part(&[one, client]),
            2 => self.part(&[one, other]),
            3 => self.part(&[one, other, client]),
            4 => self.set_cut(one, other, true),
            5 => {
                // Any shape, such as two halves of which only one member hears both.
                for _ in 0..1 + self.draw(3 * nodes) {
                    let (from, to) = (self.draw(nodes + CLIENTS), self.draw(nodes + CLIENTS));
                    self.set_cut(from, to, true);
                }
            }
            6 => {
                let faults = LinkFaults {
                    loss: self.draw(30) as f64 / 100.0,
                    duplication: self.draw(30) as f64 / 100.0,
                    reordering: self.draw(50) as f64 / 100.0,
                    reordering_ns: self.draw(20) as u64 * MS,
                    ..LinkFaults::default()
                };
                let link = LinkId(self.draw(nodes + CLIENTS));
                (0..2).for_each(|direction| self.sim.cluster.network().set_faults(link, direction, faults));
            }
            _ => self.join_all(),
        }
    }

    pub fn inject_fault(&mut self) {
        let nodes = self.sim.nodes.len();
        // Faults of the leader matter most.
        let one = match self.sim.leader() {
            Some(leader) if self.draw(2) == 0 => leader,
            _ => self.draw(nodes),
        };
        match self.draw(34) {
            0..=7 => self.inject_network_fault(one),
            8 | 9 => self.crash(one),
            10 | 11 => self.crash_at_write(one),
            12 | 13 => self.lose_and_restart(one),
            14 => self.move_elsewhere(one),
            15..=17 => self.start_all(),
            18 | 19 => self.freeze(one),
            20 => self.sim.set_full(one, true),
            21 => self.make_room(),
            22 => self.slow_down(one),
            23 => self.start_newcomer(),
            24..=28 => self.add_outsider(),
            29 | 30 => self.promote_learner(),
            31 | 32 => self.remove(one),
            _ => self.transfer(one),
        }
    }

    /// Lets a member stand still for a while, during which messages to it wait.
    fn freeze(&mut self, at: usize) {
        let ms_max = if self.draw(4) == 0 { 300 } else { 40 };
        let ms = self.draw(ms_max) as u64;
        self.sim.pause(at, ms);
        self.count("pauses", u64::from(self.sim.nodes[at].is_up()));
    }

    fn slow_down(&mut self, at: usize) {
        let sync_ns = self.draw(15 * MS as usize) as u64;
        self.sim.nodes[at].sync_ns.set(sync_ns);
    }

    pub fn heal(&mut self) {
        self.join_all();
        self.make_room();
        for node in &self.sim.nodes {
            // No death at a later write.
            node.disk.iter().for_each(SimDisk::heal);
        }
        self.start_all();
    }

    /// Parts the hosts within `group` from those outside: in both directions, or in one of them.
    fn part(&mut self, group: &[usize]) {
        let (is_mute, is_deaf) = [(true, true), (true, false), (false, true)][self.draw(3)];
        for inside in group {
            for outside in (0..self.sim.nodes.len() + CLIENTS).filter(|host| !group.contains(host)) {
                if is_mute {
                    self.set_cut(*inside, outside, true);
                }
                if is_deaf {
                    self.set_cut(outside, *inside, true);
                }
            }
        }
    }

    fn set_cut(&self, from: usize, to: usize, is_cut: bool) {
        if from != to {
            self.sim.cluster.network().set_cut(HostId(from), HostId(to), is_cut);
        }
    }

    fn join_all(&mut self) {
        let hosts = self.sim.nodes.len() + CLIENTS;
        for from in 0..hosts {
            (0..hosts).for_each(|to| self.set_cut(from, to, false));
        }
        self.sim.cluster.network().set_all_faults(LinkFaults::default());
    }

    fn start_all(&mut self) {
        for at in 0..self.sim.nodes.len() {
            if self.sim.nodes[at].is_used && !self.sim.nodes[at].is_up() {
                self.sim.start(at);
            }
        }
    }

    fn make_room(&mut self) {
        (0..self.sim.nodes.len()).for_each(|at| self.sim.set_full(at, false));
    }

    /// Takes a host down. A member without a disk thereby loses all.
    fn crash(&mut self, at: usize) {
        if !self.sim.nodes[at].is_up() {
            return;
        }
        if self.sim.nodes[at].disk.is_none() {
            return self.lose_and_restart(at);
        }
        self.sim.crash(at);
        self.count("crashes", 1);
        // Sometimes others are down, too, and sometimes all are.
        let other = self.draw(self.sim.nodes.len());
        if self.draw(3) == 0 {
            self.sim.crash(other);
        }
    }

    /// Lets a member die at one of its next writes.
    fn crash_at_write(&mut self, at: usize) {
        let write = 1 + self.draw(30) as u64;
        let node = &self.sim.nodes[at];
        if let (Some(disk), true, false) = (&node.disk, node.is_up(), node.is_full) {
            disk.fail_at(write, Fault::Crash);
        }
    }

    /// Takes a host down, with all that its member had, if the rules allow it. Returns whether they did.
    fn lose(&mut self, at: usize) -> bool {
        let Some(members) = Members::of(&self.sim) else { return false };
        let may_lose = members.may_lose(&self.sim, at, &self.changes.desk.borrow());
        if let (true, true, Some(id)) = (self.sim.nodes[at].is_used, may_lose, self.sim.nodes[at].id) {
            let mut desk = self.changes.desk.borrow_mut();
            if desk.request.is_some() && !members.votes(id) {
                desk.lost.insert(id);
            }
            drop(desk);
            self.sim.lose(at);
            self.count("voters lost", u64::from(members.votes(id)));
            return true;
        }
        false
    }

    /// As [`Self::lose`]. The host comes back at once, or is down for a while.
    fn lose_and_restart(&mut self, at: usize) {
        if self.lose(at) && self.draw(2) == 0 {
            self.sim.start(at);
        }
    }

    /// A host that was never used.
    fn spare(&self) -> Option<usize> {
        (0..self.sim.nodes.len()).find(|at| !self.sim.nodes[*at].is_used && !self.gone.contains(at))
    }

    /// Loses a host for good. Another host takes over the name of its member.
    fn move_elsewhere(&mut self, at: usize) {
        if let Some(spare) = self.spare().filter(|_| self.lose(at)) {
            self.sim.nodes[at].is_used = false;
            self.gone.insert(at);
            self.sim.nodes[spare].name = self.sim.nodes[at].name.clone();
            self.sim.nodes[spare].is_used = true;
            self.sim.start(spare);
            self.count("moves to other hosts", 1);
        }
    }

    /// Starts a member with a new name on a spare host.
    fn start_newcomer(&mut self) {
        if let Some(spare) = self.spare() {
            self.sim.nodes[spare].is_used = true;
            self.sim.start(spare);
        }
    }

    /// Members that run and are outside: that lost all, were removed, or have never been members.
    pub fn outsiders(&self, members: &Members) -> Vec<usize> {
        let is_outside = |at: &usize| {
            let node = &self.sim.nodes[*at];
            node.is_up() && node.id.is_some_and(|id| !members.has(id))
        };
        (0..self.sim.nodes.len()).filter(is_outside).collect()
    }

    /// A learner that runs.
    pub fn learner(&self, members: &Members) -> Option<usize> {
        let is_learner = |id| members.has(id) && !members.votes(id);
        self.sim.nodes.iter().position(|node| node.is_up() && node.id.is_some_and(is_learner))
    }

    pub fn add_request(&self, at: usize, learner: bool) -> ClientRequest<'static> {
        let node = &self.sim.nodes[at];
        ClientRequest::Add { name: node.name.clone(), address: node.address(), learner }
    }

    fn add_outsider(&mut self) {
        let stays_learner = self.draw(3) == 0;
        let Some(members) = self.members_for_a_change() else { return };
        let outsiders = self.outsiders(&members);
        if !outsiders.is_empty() {
            let at = outsiders[self.draw(outsiders.len())];
            self.order(&members, self.add_request(at, stays_learner));
        }
    }

    fn promote_learner(&mut self) {
        let Some(members) = self.members_for_a_change() else { return };
        if let Some(at) = self.learner(&members) {
            self.order(&members, ClientRequest::Promote { name: self.sim.nodes[at].name.clone() });
        }
    }

    fn remove(&mut self, at: usize) {
        let Some(members) = self.members_for_a_change() else { return };
        let node = &self.sim.nodes[at];
        if members.voters() > VOTERS_MIN || !node.id.is_some_and(|id| members.votes(id)) {
            self.order(&members, ClientRequest::Remove { name: node.name.clone() });
        }
    }

    fn transfer(&mut self, to: usize) {
        if !self.transfers.is_busy() {
            let name = (self.draw(3) > 0).then(|| self.sim.nodes[to].name.clone());
            self.transfers.order(&self.sim, ClientRequest::Transfer { name });
        }
    }

    fn members_for_a_change(&self) -> Option<Members> {
        if self.changes.is_busy() { None } else { Members::of(&self.sim) }
    }

    fn order(&self, members: &Members, request: ClientRequest<'static>) {
        if members.may_order(&self.sim, &request) {
            self.changes.order(&self.sim, request);
        }
    }
}
