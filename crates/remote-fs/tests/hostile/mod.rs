//! Properties that the service, its messages and its durable state must have for any input. Fuzz targets and property
//! tests share this.

use sinew_fabric::{Descriptor, Readiness, SeededGenerator};
use sinew_mem::Arena;
use sinew_remote_fs::check::{self, Finding};
use sinew_remote_fs::disk::{Disk, SimDisk};
use sinew_remote_fs::durable_state::{DurableState, Op};
use sinew_remote_fs::journal::Journal;
use sinew_remote_fs::protocol::{
    Answer, Caller, Envelope, Extent, Joined, Message, Pages, Reply, Request, Reservation, Sums, Time,
};
use sinew_remote_fs::service::{Accepted, Config, Now, OpenError, Service};
use sinew_remote_memory::donor::{Call, Donor, DonorLimits};
use sinew_remote_memory::engine;
use sinew_remote_memory::volume::{DonorId, Donors, Event};

/// Checks that any bytes are either not a message, or one that survives being written and read again.
pub fn messages(bytes: &[u8]) {
    if let Ok(message) = Message::read(bytes) {
        assert_eq!(Message::read(&message.to_bytes()), Ok(message));
    }
    if let Ok(reply) = Reply::read(bytes) {
        assert_eq!(Reply::read(&reply.to_bytes()), Ok(reply));
    }
}

/// Donors that answer at once.
struct Near {
    donors: Vec<Donor>,
    ids: Vec<DonorId>,
    arena: Arena,
    events: Vec<Event>,
}

/// Bytes that each donor lends, and bytes of a slab.
const MEMORY: u64 = 256 << 10;
const SLAB: u64 = 128 << 10;

impl Near {
    fn new() -> Self {
        let donors = (1..=2).map(|number| Donor::new(number, MEMORY, DonorLimits::default())).collect();
        let ids = [DonorId(1), DonorId(2)].into();
        Self { donors, ids, arena: Arena::private(1 << 20).unwrap(), events: Vec::new() }
    }
}

impl Readiness for Near {
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }
}

impl Donors for Near {
    fn ids(&self) -> &[DonorId] {
        &self.ids
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn call(&mut self, lane: usize, tag: u64, call: Call) {
        let donor = &mut self.donors[lane];
        let result = donor.handle(&call).map_err(Into::into);
        while donor.next_to_zero(u64::MAX).is_some() {}
        self.events.push(Event::CallAnswered { tag, result });
    }

    fn submit(&mut self, _: usize, tag: u64, op: engine::Op) -> Result<(), engine::Op> {
        let target = match op {
            engine::Op::Read { target, .. } => Some(target),
            engine::Op::Write { .. } => None,
        };
        self.events.push(Event::OpFinished { tag, error: None, target });
        Ok(())
    }

    fn turn(&mut self) -> bool {
        false
    }

    fn now_ns(&self) -> u64 {
        0
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.events);
    }
}

struct World {
    service: Service<Near, SimDisk, u64>,
    disk: SimDisk,
    now: Now,
}

impl World {
    /// Starts a service on a disk's contents, unless it refuses them.
    fn on(disk: SimDisk) -> Result<Self, OpenError> {
        let now = Now { ns: 1_000_000_000, time: Time { s: 1, ns: 0 } };
        let generators = (Box::new(SeededGenerator::new(1)) as _, Box::new(SeededGenerator::new(2)) as _);
        let config = Config { copies: 2, slab_len: SLAB, ..Config::default() };
        let names = vec!["one".to_owned(), "two".to_owned()];
        let service = Service::open(Some(disk.clone()), Near::new(), names, None, generators, config, now)?;
        let mut world = Self { service, disk, now };
        (0..8).for_each(|_| world.turn());
        Ok(world)
    }

    fn turn(&mut self) {
        self.now.ns += 1_000_000;
        self.service.turn(self.now).unwrap();
    }

    /// Sends bytes to the service, and returns its answer.
    fn say(&mut self, peer: u64, bytes: &[u8]) -> Reply {
        let answer = match self.service.take(peer, bytes, self.now) {
            Accepted::Answer(answer) => answer,
            Accepted::Deferred(id) => self.wait(id),
        };
        Reply::read(&answer).expect("a service says what makes sense")
    }

    /// Waits for an answer that was held until a change was durable or a reservation found memory, which takes seconds
    /// at most.
    fn wait(&mut self, id: u64) -> Vec<u8> {
        for _ in 0..100 {
            self.turn();
            let mut answers = Vec::new();
            self.service.poll(&mut answers);
            if let Some((_, answer)) = answers.into_iter().find(|(of, _)| *of == id) {
                return answer;
            }
            self.now.ns += 100_000_000;
        }
        panic!("the service does not answer");
    }

    fn join(&mut self, peer: u64) -> Joined {
        match self.say(peer, &Message::Join(Default::default()).to_bytes()) {
            Reply::Joined(joined) => joined,
            other => panic!("{other:?}"),
        }
    }
}

/// Feeds a service with `bytes`, as messages of a joined client and of strangers. Its durable state must stay
/// consistent, and equal that on the disk.
pub fn service(bytes: &[u8]) {
    let mut world = World::on(SimDisk::new()).unwrap();
    let of = world.join(1);
    let mut fresh: Vec<(Pages, u32)> = Vec::new();
    let mut sequence = 0;
    let mut steps = Steps(bytes);
    while let Some(step) = steps.byte() {
        if step % 16 == 0 {
            world.say(2, steps.bytes());
            continue;
        }
        let Ok((mut request, rest)) = postcard::take_from_bytes::<Request>(steps.0) else { continue };
        steps.0 = rest;
        if let Request::Commit { extents, .. } = &mut request
            && step % 4 == 1
        {
            *extents = steps.extents(&fresh);
        }
        sequence += u64::from(request.changes());
        let number = if request.changes() { sequence } else { 0 };
        let (client, secret) = (of.client, of.secret);
        let settled = if step % 32 == 2 { 0 } else { sequence };
        let caller = Caller { uid: u32::from(step / 128), ..Default::default() };
        let epoch = if step % 16 == 3 { 0 } else { of.epoch };
        let message = Message::Request(Envelope { client, secret, sequence: number, settled, epoch, caller, request });
        match world.say(1, &message.to_bytes()) {
            Reply::Answer(Answer::Reserved(more)) => fresh.extend(reserved(&more)),
            Reply::Answer(_) | Reply::Refused(_) | Reply::Malformed => {}
            other => panic!("{other:?}"),
        }
    }
    let kept = world.service.state();
    let findings = check::names(kept, 0);
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(DurableState::read(&kept.to_bytes()).as_ref(), Some(kept));
    assert_eq!(check::read(world.disk.clone()).unwrap().as_ref(), Some(kept));
}

/// Reserved pages, with the generations of their segments.
fn reserved(fresh: &Reservation) -> impl Iterator<Item = (Pages, u32)> {
    fresh.runs.iter().filter_map(|pages| {
        let place = fresh.places.iter().find(|place| place.segment == pages.segment)?;
        Some((*pages, place.generation))
    })
}

/// Writes `bytes` to a disk, with correct checksums. The disk must be refused, or be readable and usable.
pub fn kept(bytes: &[u8]) {
    let mut steps = Steps(bytes);
    let (is_whole, disk) = (steps.byte().is_some_and(|byte| byte % 2 == 0), SimDisk::new());
    let mut journal = Journal::open(disk.clone(), 7).unwrap().journal;
    let snapshot = if is_whole { steps.bytes().to_vec() } else { DurableState::new(7, Time::default()).to_bytes() };
    journal.replace(&snapshot).unwrap();
    while !steps.0.is_empty() {
        journal.append(steps.bytes());
    }
    journal.sync().unwrap();
    let Ok(Some(kept)) = check::read(disk.clone()) else { return };
    let _: Vec<Finding> = check::names(&kept, 2);
    assert_eq!(DurableState::read(&kept.to_bytes()).map(|again| again.to_bytes()), Some(kept.to_bytes()));
    if let Ok(mut world) = World::on(disk) {
        world.join(1);
    }
}

/// Writes a journal, damages it as `bytes` say, and opens it. Everything that was made durable must be there, or the
/// damage reported; and nothing may be there that was not written.
pub fn journal(bytes: &[u8]) {
    let mut steps = Steps(bytes);
    let disk = SimDisk::new();
    let mut journal = Journal::open(disk.clone(), 7).unwrap().journal;
    journal.replace(b"first").unwrap();
    let (mut written, mut lasting, mut is_damaged): (Vec<Vec<u8>>, usize, bool) = (Vec::new(), 0, false);
    let mut snapshot = b"first".to_vec();
    while let Some(step) = steps.byte() {
        match step % 8 {
            0..=3 => {
                let record = steps.bytes().to_vec();
                journal.append(&record);
                written.push(record);
            }
            4 | 5 => {
                journal.sync().unwrap();
                lasting = written.len();
            }
            6 => {
                snapshot = steps.bytes().to_vec();
                journal.replace(&snapshot).unwrap();
                (written, lasting) = (Vec::new(), 0);
            }
            _ => {
                let names = disk.clone().names().unwrap();
                let name = &names[usize::from(steps.small()) % names.len()];
                let len = disk.clone().read(name).unwrap().len();
                let at = usize::from(steps.small()) | usize::from(steps.small()) << 8;
                if at < len {
                    disk.corrupt(name, at);
                    is_damaged = true;
                }
            }
        }
    }
    drop(journal);
    disk.crash(u64::from(steps.small()) + bytes.len() as u64);
    match Journal::open(disk, 8) {
        Ok(opened) => {
            let records = opened.records;
            assert!(written.starts_with(&records), "{records:?} of {written:?}");
            assert_eq!(opened.snapshot, Some(snapshot));
            // Damage at the end of a log looks like the effect of a crash.
            assert!(is_damaged || records.len() >= lasting, "{} of {lasting} that last", records.len());
        }
        Err(error) => assert!(is_damaged, "{error}"),
    }
}

/// Applies the operations in `bytes` to a consistent tree. Each must be performed or refused, and the tree stay
/// consistent.
pub fn records(bytes: &[u8]) {
    let mut kept = DurableState::new(7, Time::default());
    let mut freed = Vec::new();
    kept.apply(&Op::Join { client: 1, secret: [1; 16] }, &mut freed).unwrap();
    let mut rest = bytes;
    while let Ok((op, behind)) = postcard::take_from_bytes::<Op>(rest) {
        rest = behind;
        let before = kept.to_bytes();
        if kept.apply(&op, &mut freed).is_err() {
            assert!(kept.to_bytes() == before, "{op:?} was refused, and has changed something");
        }
    }
    let findings = kept.tree.check();
    assert!(findings.is_empty(), "{findings:?}");
}

/// The unread rest of the input.
struct Steps<'a>(&'a [u8]);

impl<'a> Steps<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn small(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.small()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    /// Extents of pages that may be reserved.
    fn extents(&mut self, fresh: &[(Pages, u32)]) -> Vec<Extent> {
        let mut at = 0;
        let mut extents = Vec::new();
        for _ in 0..self.small() % 4 {
            let Some((mut pages, generation)) = fresh.get(usize::from(self.small() % 8)).copied() else { continue };
            let (skip, from, count) = (self.small(), self.small(), self.small());
            pages.first = pages.first.wrapping_add(u32::from(from % 8));
            pages.count = u32::from(count % 8) + 1;
            at += u64::from(skip % 8);
            let sums = Sums(vec![u64::from(count) + 1; pages.count as usize]);
            extents.push(Extent { at, pages, generation, sums, replaces: None });
            at += u64::from(pages.count);
        }
        extents
    }
}
