//! The check of every page of every copy.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use sinew_fabric::{Armed, Descriptor, Readiness};
use sinew_mem::MessageBuffer;
use sinew_remote_memory::donor::{Answer, Call, LentSlab};
use sinew_remote_memory::engine::Op;
use sinew_remote_memory::volume::{CallFailed, Donors, Event, checksum};

use super::Finding;
use crate::durable_state::{DurableState, Member};
use crate::protocol::{Ino, PAGE, Pages};
use crate::tree::Body;

/// Pages read by one request, at most.
const STEP: u32 = 64;
/// Reads in flight, at most.
const WINDOW: usize = 16;

/// Progress of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Pages of copies that have been checked, or cannot be.
    pub done: u64,
    /// Pages of copies in total.
    pub all: u64,
}

/// A page that a file has.
#[derive(Clone, Copy, Debug)]
struct Owned {
    ino: Ino,
    at: u64,
    sum: u64,
}

/// A read of one copy that is still to be made.
struct Todo {
    lane: usize,
    base: u64,
    pages: Pages,
}

/// A check that reads all pages of files from all donors, and compares them with their checksums.
pub struct PageCheck<D> {
    donors: D,
    names: Vec<String>,
    owners: BTreeMap<(u32, u32), Owned>,
    members: BTreeMap<u32, Vec<Member>>,
    /// Donors that have not answered the fence.
    fencing: usize,
    todo: Vec<Todo>,
    reading: HashMap<u64, Todo>,
    last_tag: u64,
    right: BTreeSet<(u32, u32)>,
    progress: Progress,
    findings: Vec<Finding>,
    events: Vec<Event>,
    is_over: bool,
}

impl<D: Donors> PageCheck<D> {
    /// Begins a check, with donors whose addresses are `names`, in the order of [`Donors::ids`].
    pub fn new(kept: &DurableState, mut donors: D, names: Vec<String>) -> Self {
        let mut owners = BTreeMap::new();
        for (ino, inode) in kept.tree.inodes() {
            let Body::File(map) = inode.body() else { continue };
            for run in map.all() {
                for (index, sum) in run.sums.0.iter().enumerate() {
                    let place = (run.pages.segment, run.pages.first + index as u32);
                    owners.insert(place, Owned { ino, at: run.at + index as u64, sum: *sum });
                }
            }
        }
        let members: BTreeMap<u32, Vec<Member>> = kept
            .segments
            .iter()
            .map(|(number, segment)| {
                (*number, segment.members.iter().filter(|member| member.is_whole).copied().collect())
            })
            .collect();
        let copies = |segment: &u32| members.get(segment).map_or(0, Vec::len) as u64;
        let all = owners.keys().map(|(segment, _)| copies(segment)).sum();
        let (volume, epoch) = (kept.volume, kept.epoch + 1);
        let lanes = donors.ids().len();
        (0..lanes).for_each(|lane| donors.call(lane, lane as u64, Call::Fence { volume, epoch }));
        Self {
            donors,
            names,
            owners,
            members,
            fencing: lanes,
            todo: Vec::new(),
            reading: HashMap::new(),
            last_tag: lanes as u64,
            right: BTreeSet::new(),
            progress: Progress { done: 0, all },
            findings: Vec::new(),
            events: Vec::new(),
            is_over: false,
        }
    }

    /// Progress so far.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Does the work that is due. Returns all findings when the check is complete, and `None` before and after.
    pub fn turn(&mut self) -> Option<Vec<Finding>> {
        self.donors.turn();
        let mut events = std::mem::take(&mut self.events);
        self.donors.poll(&mut events);
        for event in events.drain(..) {
            match event {
                Event::CallAnswered { tag, result } => self.fenced(tag as usize, result),
                Event::OpFinished { tag, error, target } => self.read(tag, error, target),
            }
        }
        self.events = events;
        self.go_on();
        let is_done = self.fencing == 0 && self.todo.is_empty() && self.reading.is_empty();
        if !is_done || std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        for (place, owned) in &self.owners {
            if !self.right.contains(place) {
                self.findings.push(Finding::Lost { ino: owned.ino, at: owned.at });
            }
        }
        Some(std::mem::take(&mut self.findings))
    }

    fn name(&self, lane: usize) -> String {
        self.names.get(lane).cloned().unwrap_or_else(|| format!("donor {lane}"))
    }

    fn fenced(&mut self, lane: usize, result: Result<Answer, CallFailed>) {
        self.fencing -= 1;
        let donor = self.donors.ids()[lane].0;
        let (incarnation, slabs, why) = match result {
            Ok(Answer::Fenced { incarnation, slabs, .. }) => (Some(incarnation), slabs, "it has restarted"),
            _ => (None, Vec::new(), "it does not answer"),
        };
        // Current address of a slab: a donor moves a slab away if a client was cut off in the middle of a write to it.
        let place = |member: &Member| {
            let is_it = |lent: &&LentSlab| Some(member.incarnation) == incarnation && lent.slab == member.slab;
            slabs.iter().find(is_it).map(|lent| lent.base)
        };
        let mut lacks = 0;
        let ours: Vec<(u32, Member)> = self
            .members
            .iter()
            .flat_map(|(segment, members)| members.iter().map(|member| (*segment, *member)))
            .filter(|(_, member)| member.donor == donor)
            .collect();
        for (segment, member) in ours {
            let pages = self.runs(segment);
            if let Some(base) = place(&member) {
                self.todo.extend(pages.into_iter().map(|pages| Todo { lane, base, pages }));
            } else {
                lacks += 1;
                self.progress.done += pages.iter().map(|pages| u64::from(pages.count)).sum::<u64>();
            }
        }
        if lacks > 0 || incarnation.is_none() {
            let why = format!("{why} ({lacks} {})", if lacks == 1 { "copy" } else { "copies" });
            self.findings.push(Finding::Donor { donor: self.name(lane), why });
        }
    }

    /// Pages of a segment that belong to files, in runs of at most [`STEP`].
    fn runs(&self, segment: u32) -> Vec<Pages> {
        let mut runs: Vec<Pages> = Vec::new();
        for (_, page) in self.owners.range((segment, 0)..=(segment, u32::MAX)).map(|(place, _)| *place) {
            match runs.last_mut() {
                Some(run) if run.first + run.count == page && run.count < STEP => run.count += 1,
                _ => runs.push(Pages { segment, first: page, count: 1 }),
            }
        }
        runs
    }

    fn go_on(&mut self) {
        while self.reading.len() < WINDOW
            && let Some(next) = self.todo.pop()
        {
            let len = next.pages.count as usize * PAGE;
            let Ok(target) = self.donors.arena().alloc(len, len) else {
                self.todo.push(next);
                return;
            };
            self.last_tag += 1;
            let at = next.base + u64::from(next.pages.first) * PAGE as u64;
            if self.donors.submit(next.lane, self.last_tag, Op::Read { at, target }).is_err() {
                self.todo.push(next);
                return;
            }
            self.reading.insert(self.last_tag, next);
        }
    }

    fn read(&mut self, tag: u64, error: Option<String>, target: Option<MessageBuffer>) {
        let Some(Todo { lane, pages, .. }) = self.reading.remove(&tag) else { return };
        self.progress.done += u64::from(pages.count);
        let bytes = target.filter(|_| error.is_none());
        for index in 0..pages.count {
            let place = (pages.segment, pages.first + index);
            let Some(owned) = self.owners.get(&place).copied() else { continue };
            let page = bytes.as_ref().and_then(|bytes| bytes.get(index as usize * PAGE..(index as usize + 1) * PAGE));
            if page.is_some_and(|page| checksum(page) == owned.sum) {
                self.right.insert(place);
            } else {
                let donor = self.name(lane);
                self.findings.push(Finding::Page { ino: owned.ino, at: owned.at, donor });
            }
        }
    }
}

impl<D> std::fmt::Debug for PageCheck<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageCheck").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl<D: Donors> Readiness for PageCheck<D> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.donors.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        self.donors.arm(now_ns)
    }

    fn disarm(&mut self) -> bool {
        self.donors.disarm()
    }
}
