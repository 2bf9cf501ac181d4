//! Clients of the remote file system in this process, whose data is committed when a test says so: how they share a
//! full file system, and how a mount keeps locks.

mod common;
mod mounts {
    #[allow(dead_code)] // Nothing is mounted here.
    pub mod remote;
}

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{PATIENCE, Server, sinew, unique};
use mounts::remote::Cluster;
use rustix::fs::OFlags;
use rustix::io::Errno;
use sinew::Rpc;
use sinew::shm::verbs::ShmDevice;
use sinew_mount::files::{self, CacheLifetimes, Files, Lock, LockFamily, LockKind};
use sinew_mount::remote::MakeLane;
use sinew_mount::{Remote, Result};
use sinew_remote_fs::client::{Client, ClientConfig, ClientError, Lane, RangeChange, Whence};
use sinew_remote_fs::protocol::{
    Access, Answer, Caller, Envelope, Error, FILES, Ino, Join, Joined, Message, PAGE, Reply, Request, SetAttr, Time,
    VERSION,
};
use sinew_remote_memory::donor::{Answer as DonorAnswer, Call};
use sinew_remote_memory::pool::{AccessMethod, DonorHandle, PoolConfig, Verbs};
use sinew_remote_memory::volume::Event;
use sinew_rpc::{Endpoint, SessionId, SharedEndpoint};

type Method = Verbs<ShmDevice>;
type FileLane = Lane<Rpc, Method>;

const READ_WRITE: Access = Access { read: true, write: true, execute: false };
const NO_SPACE: ClientError = ClientError::Refused(Error::NoSpace);

/// A file system that is soon full.
fn small() -> Cluster {
    let mut donor = sinew(&["serve", "memory", &format!("shm://{}", unique("donor")), "--child", "--memory", "16M"]);
    Cluster::with_donors("shm", vec![Server::of(&mut donor)], 1, false)
}

fn client(address: &str) -> (Arc<Client>, sinew_mem::atomic::Arc<Method>) {
    let config = ClientConfig::new(None, || Time { s: 1, ns: 0 }, Arc::new(|line: &str| eprintln!("{line}")));
    let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
    let method = Verbs::new(&device, 256 << 20, config.pool.path).unwrap();
    (Client::new(address.parse().unwrap(), method.arena(), config), sinew_mem::atomic::Arc::new(method))
}

/// The only lane of a client.
fn lane(address: &str) -> FileLane {
    let (client, method) = client(address);
    let mut lane = Lane::new(&client, 0, common::client(address), &method);
    lane.begin(PATIENCE.as_nanos() as u64).unwrap();
    lane
}

fn bytes(number: u8, pages: usize) -> Vec<u8> {
    (0..pages * PAGE).map(|at| (at / 7) as u8 ^ number).collect()
}

/// Creates a file, open for reading and writing. Returns its inode and the handle.
fn create(lane: &mut FileLane, name: &[u8]) -> (Ino, u64) {
    let made = lane.create(&Caller::default(), Ino::ROOT, name, 0o644, READ_WRITE).unwrap();
    (made.attr.ino, made.handle)
}

fn open(lane: &mut FileLane, ino: Ino) -> u64 {
    lane.open(&Caller::default(), ino, READ_WRITE, false).unwrap().handle
}

/// Writes to a file until there is no room left, and commits it. Returns its length.
fn fill(lane: &mut FileLane, handle: u64) -> u64 {
    let (data, mut len) = (bytes(9, 64), 0);
    loop {
        match lane.write(handle, len, &data) {
            Ok(written) => len += written as u64,
            Err(error) => {
                assert_eq!(error, NO_SPACE);
                lane.sync(handle).unwrap();
                return len;
            }
        }
    }
}

/// Reads pages of a file as a client finds them that opens it now.
fn read(lane: &mut FileLane, ino: Ino, page: u64, pages: usize) -> Vec<u8> {
    let handle = open(lane, ino);
    let mut found = None;
    lane.read(handle, page * PAGE as u64, pages * PAGE, |result| found = Some(result.map(<[u8]>::to_vec)));
    lane.close(handle).unwrap();
    found.unwrap().unwrap()
}

#[test]
fn a_write_that_replaces_pages_waits_for_a_client_that_has_all_there_are_for_that() {
    let cluster = small();
    let mut one = lane(&cluster.address);
    let (ino, file) = create(&mut one, b"file");
    fill(&mut one, file);
    // A sixty-fourth of the memory is kept to replace pages.
    let kept = one.space().unwrap().pages / 64;
    assert!(kept > 1);
    let (holds, held) = mpsc::channel();
    let (begins, begun) = mpsc::channel();
    let is_written = AtomicBool::new(false);
    thread::scope(|scope| {
        let (address, is_written) = (&cluster.address, &is_written);
        scope.spawn(move || {
            let mut other = lane(address);
            let theirs = open(&mut other, ino);
            for page in 0..kept {
                assert_eq!(other.write(theirs, page * PAGE as u64, &bytes(1, 1)), Ok(PAGE));
            }
            holds.send(()).unwrap();
            begun.recv().unwrap();
            thread::sleep(Duration::from_millis(300));
            assert!(!is_written.load(Ordering::Acquire), "there was a page left");
            other.sync(theirs).unwrap();
        });
        held.recv().unwrap();
        begins.send(()).unwrap();
        assert_eq!(one.write(file, kept * PAGE as u64, &bytes(2, 3)), Ok(3 * PAGE));
        is_written.store(true, Ordering::Release);
    });
    one.sync(file).unwrap();
    assert!(read(&mut one, ino, kept - 1, 4) == [bytes(1, 1), bytes(2, 3)].concat());
}

#[test]
fn data_that_was_to_replace_pages_goes_to_new_ones_once_the_file_has_lost_those() {
    let cluster = small();
    let (mut one, mut other) = (lane(&cluster.address), lane(&cluster.address));
    let (ino, file) = create(&mut one, b"file");
    fill(&mut one, file);
    assert_eq!(one.write(file, 0, &bytes(1, 8)), Ok(8 * PAGE));
    let theirs = open(&mut other, ino);
    other.change_range(theirs, 0, 8 * PAGE as u64, RangeChange::Hole, true).unwrap();
    assert!(read(&mut other, ino, 0, 8) == vec![0; 8 * PAGE]);
    one.sync(file).unwrap();
    assert!(read(&mut other, ino, 0, 8) == bytes(1, 8));
}

#[test]
fn data_for_which_others_have_taken_the_room_is_lost_and_no_other_and_the_next_sync_says_so() {
    let cluster = small();
    let (mut one, mut other) = (lane(&cluster.address), lane(&cluster.address));
    let (ino, file) = create(&mut one, b"file");
    fill(&mut one, file);
    assert_eq!(one.write(file, 0, &bytes(1, 8)), Ok(8 * PAGE));
    assert_eq!(one.write(file, 20 * PAGE as u64, &bytes(2, 2)), Ok(2 * PAGE));
    let theirs = open(&mut other, ino);
    other.change_range(theirs, 0, 8 * PAGE as u64, RangeChange::Hole, true).unwrap();
    let (_, new) = create(&mut other, b"new");
    assert_eq!(fill(&mut other, new), 8 * PAGE as u64);
    assert_eq!(one.sync(file), Err(NO_SPACE));
    assert_eq!(one.sync(file), Ok(()), "it is told once");
    assert!(read(&mut other, ino, 0, 8) == vec![0; 8 * PAGE]);
    assert!(read(&mut other, ino, 20, 2) == bytes(2, 2), "what replaces pages needs no room");
}

/// A client that says what a test wants it to.
struct Plain {
    rpc: SharedEndpoint<Rpc>,
    session: SessionId,
    joined: Joined,
}

impl Plain {
    fn join(address: &str) -> Self {
        let mut rpc = SharedEndpoint::new(common::client(address));
        let session = rpc.connect(address).unwrap();
        let mut send = |message: &Message| send(&mut rpc, session, message);
        assert_eq!(send(&Message::Greet(VERSION)), Reply::Welcome);
        let join = Message::Join(Join { before: None, opens: Vec::new(), locks: Vec::new() });
        let Reply::Joined(joined) = send(&join) else { panic!("it lets everybody in") };
        Self { rpc, session, joined }
    }

    fn ask(&mut self, request: Request) -> Answer {
        let Joined { client, secret, .. } = self.joined;
        let (sequence, settled, epoch, caller) = (0, 0, 0, Caller::default());
        let message = Message::Request(Envelope { client, secret, sequence, settled, epoch, caller, request });
        match send(&mut self.rpc, self.session, &message) {
            Reply::Answer(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// The copies of the segment that has a file's first page, as donors and whether they are whole, and how often they
    /// have changed.
    fn copies(&mut self, ino: Ino) -> (Vec<(u64, bool)>, u32) {
        self.ask(Request::Open { handle: 1, ino, access: READ_WRITE });
        let Answer::Layout(mut layout) = self.ask(Request::Layout { handle: 1, at: 0, count: 1 }) else {
            panic!("it is open")
        };
        self.ask(Request::Close { handle: 1 });
        let place = layout.places.remove(0);
        (place.copies.iter().map(|copy| (copy.donor.0, copy.is_whole)).collect(), place.generation)
    }

    /// Has all donors refuse a client's number, as they do once the client has left.
    fn expel(&self, client: u64) {
        for donor in &self.joined.donors {
            let (_, method) = self::client(&donor.address);
            let rpc = SharedEndpoint::new(common::client(&donor.address));
            let mut handle = DonorHandle::new(donor.address.parse().unwrap(), rpc, &method, &PoolConfig::default());
            handle.call(1, Call::Expel { volume: self.joined.volume, epoch: self.joined.epoch, client });
            let mut events = Vec::new();
            while events.is_empty() {
                handle.turn();
                handle.poll(&mut events);
            }
            assert!(matches!(events[0], Event::CallAnswered { result: Ok(DonorAnswer::Expelled { .. }), .. }));
        }
    }
}

fn send(rpc: &mut SharedEndpoint<Rpc>, session: SessionId, message: &Message) -> Reply {
    let reply = rpc.call_within(session, FILES, &message.to_bytes(), PATIENCE.as_nanos() as u64).unwrap();
    Reply::read(&reply).unwrap()
}

#[test]
fn a_client_whose_number_donors_refuse_goes_on_under_another_and_no_copy_counts_as_lost() {
    let cluster = Cluster::new(2, 2, false);
    let mut one = lane(&cluster.address);
    let (ino, file) = create(&mut one, b"file");
    assert_eq!(one.write(file, 0, &bytes(1, 8)), Ok(8 * PAGE));
    one.sync(file).unwrap();
    // Numbers are consecutive.
    let mut other = Plain::join(&cluster.address);
    let before = other.copies(ino);
    assert_eq!(before.0.iter().filter(|(_, is_whole)| *is_whole).count(), 2);
    other.expel(other.joined.client - 1);
    assert_eq!(one.write(file, 4 * PAGE as u64, &bytes(2, 8)), Ok(8 * PAGE));
    one.sync(file).unwrap();
    assert!(read(&mut one, ino, 0, 12) == [&bytes(1, 8)[..4 * PAGE], &bytes(2, 8)].concat());
    // The same if a read is what comes next.
    other.expel(other.joined.client + 1);
    assert!(read(&mut one, ino, 4, 8) == bytes(2, 8));
    assert_eq!(other.copies(ino), before);
}

fn size(bytes: u64) -> SetAttr {
    SetAttr { size: Some(bytes), ..SetAttr::default() }
}

#[test]
fn what_another_client_has_cut_off_does_not_come_back_with_a_page_that_was_written_in_part() {
    let cluster = small();
    let (mut one, mut other) = (lane(&cluster.address), lane(&cluster.address));
    let (ino, file) = create(&mut one, b"file");
    assert_eq!(one.write(file, 0, &[b'X'; PAGE]), Ok(PAGE));
    one.sync(file).unwrap();
    assert_eq!(one.write(file, 0, b"a"), Ok(1));
    for bytes in [50, PAGE as u64] {
        other.set_attributes(&Caller::default(), ino, size(bytes), None).unwrap();
    }
    one.sync(file).unwrap();
    let mut expected = [&b"a"[..], &[b'X'; 49]].concat();
    expected.resize(PAGE, 0);
    assert!(read(&mut other, ino, 0, 1) == expected);
}

#[test]
fn a_file_is_not_cut_before_what_was_written_to_it_is_committed_or_lost() {
    let cluster = small();
    let (client, method) = client(&cluster.address);
    let mut one = Lane::new(&client, 0, common::client(&cluster.address), &method);
    one.begin(PATIENCE.as_nanos() as u64).unwrap();
    let mut other = lane(&cluster.address);
    let (ino, file) = create(&mut one, b"file");
    assert_eq!(one.write(file, 0, &bytes(1, 4)), Ok(4 * PAGE));
    one.sync(file).unwrap();
    // Another client has changed a page that was written in part, so it must be written anew, and there is no memory.
    assert_eq!(one.write(file, 3 * PAGE as u64, &[7; 9]), Ok(9));
    let theirs = open(&mut other, ino);
    assert_eq!(other.write(theirs, 3 * PAGE as u64, &bytes(2, 1)), Ok(PAGE));
    other.sync(theirs).unwrap();
    let arena = method.arena();
    let mut taken = Vec::new();
    for len in [1 << 20, 64 * PAGE, PAGE] {
        taken.extend(std::iter::from_fn(|| arena.alloc(len, len).ok()));
    }
    let cut = |one: &mut FileLane| one.set_attributes(&Caller::default(), ino, size(PAGE as u64), None);
    assert_eq!(cut(&mut one).err(), Some(ClientError::NoMemory));
    assert_eq!(one.change_range(file, 0, 9, RangeChange::Hole, true), Err(ClientError::NoMemory));
    assert_eq!(one.seek(file, 0, Whence::Hole), Err(ClientError::NoMemory));
    drop(taken);
    assert_eq!(cut(&mut one).map(|attr| attr.size), Ok(PAGE as u64));
    let _ = one.sync(file);
    assert_eq!(one.attributes(ino).map(|attr| attr.size), Ok(PAGE as u64));
    assert!(read(&mut other, ino, 0, 1) == bytes(1, 1));
}

type RemoteFiles = Remote<Rpc, Method>;

/// The file system as a mount has it, with no kernel in front.
fn remote(address: &str) -> RemoteFiles {
    let (client, method) = client(address);
    let own = address.to_owned();
    let make: MakeLane<Rpc, Method> =
        Box::new(move |client, number| Ok(Lane::new(client, number, common::client(&own), &method)));
    let lifetimes = CacheLifetimes { name: Duration::ZERO, attributes: Duration::ZERO };
    Remote::join(&client, make, lifetimes, PATIENCE).unwrap()
}

/// Creates a file. Returns its inode and a handle.
fn create_at(files: &RemoteFiles, name: &[u8]) -> (u64, u64) {
    let flags = OFlags::RDWR.bits() as i32;
    let (attributes, opened) = files.create(&files::Caller::default(), Ino::ROOT.0, name, 0o644, flags).unwrap();
    (attributes.ino, opened.handle)
}

fn set(files: &RemoteFiles, ino: u64, owner: u64, family: LockFamily, kind: LockKind) -> Result<()> {
    files.set_lock(ino, &Lock { owner, pid: 1, start: 0, last: i64::MAX as u64, kind, family }, true)
}

#[test]
fn a_lock_of_which_the_call_is_unknown_is_one_of_both_until_its_owner_shows_which() {
    use LockFamily::{Either, Fcntl, Flock};
    use LockKind::{Exclusive, Unlocked};
    const BUSY: Result<()> = Err(Errno::AGAIN);
    let cluster = small();
    let (one, other) = (remote(&cluster.address), remote(&cluster.address));
    let (ino, handle) = create_at(&one, b"file");
    let ours = |family, kind| set(&one, ino, 7, family, kind);
    let theirs = |family, kind| set(&other, ino, 8, family, kind);
    let excluded = || [Fcntl, Flock].map(|family| theirs(family, Exclusive) == BUSY);
    let give_back = || theirs(Either, Unlocked).unwrap();
    for (known, unknown) in [(Fcntl, Flock), (Flock, Fcntl)] {
        ours(Either, Exclusive).unwrap();
        assert_eq!((excluded(), theirs(Either, Exclusive)), ([true, true], BUSY));
        ours(known, Exclusive).unwrap();
        assert_eq!((theirs(unknown, Exclusive), theirs(known, Exclusive)), (Ok(()), BUSY), "{known:?}");
        ours(known, Unlocked).unwrap();
        assert_eq!(theirs(known, Exclusive), Ok(()));
        give_back();
        // The same by an unlock.
        ours(Either, Exclusive).unwrap();
        ours(known, Unlocked).unwrap();
        assert_eq!(excluded(), [false, false], "{known:?}");
        give_back();
    }
    ours(Either, Exclusive).unwrap();
    ours(Either, Unlocked).unwrap();
    assert_eq!(excluded(), [false, false]);
    give_back();
    // It is had as a whole or not at all.
    for held in [Fcntl, Flock] {
        theirs(held, Exclusive).unwrap();
        assert_eq!(ours(Either, Exclusive), BUSY);
        assert_eq!(excluded(), [false, false], "{held:?}");
        give_back();
    }
    let flush = || one.flush(ino, handle, 7).unwrap();
    let release = || one.release(ino, handle, Some(7));
    for close in [&flush as &dyn Fn(), &release] {
        ours(Either, Exclusive).unwrap();
        close();
        assert_eq!(excluded(), [false, false]);
        give_back();
    }
    one.unmounted();
    other.unmounted();
}

#[test]
fn only_locks_that_are_known_to_be_by_fcntl_are_refused_for_a_deadlock() {
    use LockFamily::{Either, Fcntl, Flock};
    use LockKind::{Exclusive, Unlocked};
    let cluster = small();
    let (one, other) = (remote(&cluster.address), remote(&cluster.address));
    let [a, b] = [&b"a"[..], b"b"].map(|name| create_at(&one, name).0);
    for (family, refused) in [(Flock, Errno::AGAIN), (Either, Errno::AGAIN), (Fcntl, Errno::DEADLK)] {
        set(&one, a, 7, family, Exclusive).unwrap();
        set(&other, b, 8, family, Exclusive).unwrap();
        assert_eq!(set(&one, b, 7, family, Exclusive), Err(Errno::AGAIN));
        assert_eq!(set(&other, a, 8, family, Exclusive), Err(refused), "{family:?}");
        // The one that is refused gives way.
        set(&other, b, 8, family, Unlocked).unwrap();
        assert_eq!(set(&one, b, 7, family, Exclusive), Ok(()));
        for ino in [a, b] {
            set(&one, ino, 7, family, Unlocked).unwrap();
        }
    }
    one.unmounted();
    other.unmounted();
}
