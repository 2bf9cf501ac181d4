//! DrTM-KV over shared memory: stored keys are found, and locks are taken, contended for and released. Clients that
//! corrupt memory or leave locks behind harm only the data that they corrupted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use sinew::fabric::Clock;
use sinew::fabric::verbs::Device;
use sinew::herd::{ClientId, Worker, WorkerConfig};
use sinew::host::HostClock;
use sinew::kv::drtm::{self, ChangeService, ClientConfig, DrtmClient, Joining, Layout, Owner, OwnerConfig};
use sinew::kv::one_sided::{self, AskError, ClientError, Hello, KEY_LEN_MAX, Status, Welcome};
use sinew::mem::SharedMemory;
use sinew::shm::verbs::{ShmDevice, ShmDomain};
use sinew::store::locked::{LockWord, LockedTable};
use sinew::store::remote::{Index, Step};

const KEY_MAX: usize = 60;
const VALUE_MAX: usize = 200;
const LEASE_NS: u64 = 10_000_000;
const GIVE_UP_NS: u64 = 1_000_000;

/// The owner's side, which belongs to one thread.
struct Home {
    owner: Owner<ShmDevice>,
    worker: Worker<ShmDevice, ChangeService>,
    memory: SharedMemory,
    layout: Layout,
}

impl Home {
    fn new(device: &ShmDevice, items: u32, clients: usize) -> Self {
        let layout = drtm::layout(items, KEY_MAX as u32, VALUE_MAX as u32, 5);
        let config = OwnerConfig { calls: drtm::calls(&layout, clients, 8, 3), lease_ns: LEASE_NS };
        let (owner, seed, memory) = Owner::new(device, &config, &layout).unwrap();
        let service = ChangeService::new(LockedTable::new(layout, memory.clone()).unwrap());
        let worker = Worker::new(seed, &WorkerConfig::herd_opt(), service).unwrap();
        Self { owner, worker, memory, layout }
    }

    fn turn(&mut self, now_ns: u64) {
        self.worker.turn(now_ns);
        self.owner.tend(self.worker.service().table(), now_ns);
    }

    fn dismiss(&mut self, id: ClientId) -> bool {
        self.owner.dismiss(self.worker.service().table(), id)
    }

    fn config(&self, clients: usize, locations: usize) -> ClientConfig {
        let owner = drtm::calls(&self.layout, clients, 8, 3);
        let read_len_max = self.layout.read_len_max();
        ClientConfig::new(one_sided::ClientConfig { owner, window: 4, read_len_max, give_up_ns: GIVE_UP_NS }, locations)
    }

    /// Returns the record of a key and its lock word, as they are in memory.
    fn lock(&self, key: &[u8]) -> Option<(u32, LockWord)> {
        let (mut search, mut span) = self.layout.search(key);
        for _ in 0..1000 {
            let mut bytes = vec![0; span.len];
            self.memory.read(span.offset as usize, &mut bytes).unwrap();
            match self.layout.step(&mut search, key, &bytes) {
                Step::Read(next) | Step::Again(next) => span = next,
                Step::Found(_) => return search.found(),
                Step::Missing => return None,
            }
        }
        panic!("nothing but changes");
    }
}

/// Everything on one thread, in virtual time.
struct World {
    device: ShmDevice,
    domain: ShmDomain,
    home: Home,
    now_ns: u64,
}

const CLIENTS: usize = 3;

impl World {
    fn new(items: u32) -> Self {
        let device = ShmDevice::threads().unwrap();
        let domain = device.protection_domain().unwrap();
        let home = Home::new(&device, items, CLIENTS);
        Self { device, domain, home, now_ns: 0 }
    }

    fn client_with(&mut self, config: &ClientConfig) -> (DrtmClient<ShmDevice>, ClientId) {
        let (joining, hello) = Joining::prepare(&self.device, &self.domain, config).unwrap();
        let (id, welcome) = self.home.owner.admit(&Hello::from_bytes(&hello.to_bytes()).unwrap()).unwrap();
        (joining.join(&Welcome::from_bytes(&welcome.to_bytes()).unwrap()).unwrap(), id)
    }

    fn client(&mut self) -> (DrtmClient<ShmDevice>, ClientId) {
        self.client_with(&self.home.config(CLIENTS, 64))
    }

    /// Waits until a request ends, and returns its outcome.
    fn end(&mut self, client: &mut DrtmClient<ShmDevice>) -> Result<(u64, Option<Status>, Vec<u8>), ClientError> {
        client.flush();
        for _ in 0..100_000 {
            self.now_ns += 100;
            self.home.turn(self.now_ns);
            let mut ended = None;
            let count = client.poll(self.now_ns, |outcome| {
                assert!(ended.is_none());
                ended = Some((outcome.tag, outcome.status, outcome.value.to_vec()));
            })?;
            assert_eq!(count, usize::from(ended.is_some()));
            if let Some(ended) = ended {
                assert_eq!(client.in_flight(), 0);
                return Ok(ended);
            }
        }
        panic!("nothing ended");
    }

    fn get(&mut self, client: &mut DrtmClient<ShmDevice>, key: &[u8]) -> Option<Vec<u8>> {
        client.get(1, key, self.now_ns).unwrap();
        match self.end(client).unwrap() {
            (1, Some(Status::Found), value) => Some(value),
            (1, Some(Status::Absent), value) if value.is_empty() => None,
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, client: &mut DrtmClient<ShmDevice>, key: &[u8], value: &[u8]) -> Status {
        client.put(2, key, value, self.now_ns).unwrap();
        let (tag, status, _) = self.end(client).unwrap();
        assert_eq!(tag, 2);
        status.unwrap()
    }

    fn delete(&mut self, client: &mut DrtmClient<ShmDevice>, key: &[u8]) -> Status {
        client.delete(3, key, self.now_ns).unwrap();
        let (tag, status, _) = self.end(client).unwrap();
        assert_eq!(tag, 3);
        status.unwrap()
    }
}

#[test]
fn drtm_stores_finds_misses_deletes_and_refuses() {
    let mut world = World::new(50);
    let (mut first, first_id) = world.client();
    let (mut second, _) = world.client();

    // A key that nobody stored is missing, and deleting it does nothing.
    assert_eq!(world.get(&mut first, b"nothing"), None);
    assert_eq!(world.delete(&mut first, b"nothing"), Status::Absent);

    // Each client finds what the other has stored.
    assert_eq!(world.put(&mut first, b"key", b"value"), Status::Stored);
    assert_eq!(world.get(&mut second, b"key").as_deref(), Some(&b"value"[..]));
    assert_eq!(world.put(&mut second, b"key", &[5; 150]), Status::Stored);
    assert_eq!(world.get(&mut first, b"key").as_deref(), Some(&[5; 150][..]));
    assert_eq!(world.put(&mut first, b"key", b""), Status::Stored);
    assert_eq!(world.get(&mut second, b"key").as_deref(), Some(&b""[..]));
    assert_eq!(world.delete(&mut second, b"key"), Status::Deleted);
    assert_eq!(world.get(&mut first, b"key"), None);
    assert_eq!(world.delete(&mut first, b"key"), Status::Absent);

    // Keys and values have their greatest length here, or exceed it.
    let (key, value) = ([7; KEY_MAX], [8; VALUE_MAX]);
    assert_eq!(world.put(&mut first, &key, &value), Status::Stored);
    assert_eq!(world.put(&mut first, &key, &value), Status::Stored);
    assert_eq!(world.get(&mut second, &key).as_deref(), Some(&value[..]));
    assert_eq!(world.get(&mut second, &key[1..]), None);
    assert_eq!(world.put(&mut first, &[7; KEY_MAX + 1], &[8; VALUE_MAX - 1]), Status::TooLong);
    assert_eq!(world.put(&mut first, &[7; 3], &[8; VALUE_MAX + 1]), Status::TooLong);
    assert_eq!(world.get(&mut first, &key).as_deref(), Some(&value[..]));
    assert_eq!(world.get(&mut first, &[7; 200]), None);
    assert_eq!(first.get(1, b"", 0), Err(AskError::Key(0)));
    assert_eq!(first.put(1, &[0; KEY_LEN_MAX + 1], b"", 0), Err(AskError::Key(KEY_LEN_MAX + 1)));
    assert!(matches!(first.put(1, &key, &[8; VALUE_MAX + 1], 0), Err(AskError::Request(_))));

    // A full table refuses new keys, and keeps those that it has.
    let mut stored = 0u32;
    while world.put(&mut first, &stored.to_le_bytes(), &stored.to_le_bytes()) == Status::Stored {
        stored += 1;
        assert!(stored < 1000);
    }
    assert!(stored > 50, "{stored}");
    for key in 0..stored {
        assert_eq!(world.get(&mut second, &key.to_le_bytes()).as_deref(), Some(&key.to_le_bytes()[..]));
    }
    assert_eq!(world.get(&mut second, &stored.to_le_bytes()), None);
    assert_eq!(world.delete(&mut second, &7u32.to_le_bytes()), Status::Deleted);
    assert_eq!(world.get(&mut first, &7u32.to_le_bytes()), None);

    // All GETs of a window end, each with its own value.
    for tag in 10..14 {
        first.get(tag, &(tag as u32).to_le_bytes(), 0).unwrap();
    }
    assert!(!first.has_room());
    assert_eq!(first.get(1, b"key", 0), Err(AskError::Full));
    first.flush();
    let mut ended = Vec::new();
    for _ in 0..100 {
        let take = |outcome: one_sided::Outcome<'_>| {
            assert_eq!(outcome.value, (outcome.tag as u32).to_le_bytes());
            ended.push(outcome.tag);
        };
        first.poll(world.now_ns, take).unwrap();
    }
    ended.sort_unstable();
    assert_eq!(ended, [10, 11, 12, 13]);

    // A client that was dismissed makes room for another.
    assert!(world.home.dismiss(first_id) && !world.home.dismiss(first_id));
    drop(first);
    let (mut third, _) = world.client();
    assert_eq!(world.get(&mut third, &3u32.to_le_bytes()).as_deref(), Some(&3u32.to_le_bytes()[..]));
    assert_eq!(world.get(&mut second, &3u32.to_le_bytes()).as_deref(), Some(&3u32.to_le_bytes()[..]));
    assert_eq!(*world.home.owner.stats(), drtm::OwnerStats::default());
}

#[test]
fn clients_see_what_a_map_would_hold() {
    for seed in 1..=3u64 {
        let mut world = World::new(60);
        // One client remembers everything, one forgets most, and one forgets nearly all.
        let mut clients = [64, 8, 1].map(|locations| {
            let config = world.home.config(CLIENTS, locations);
            world.client_with(&config).0
        });
        let mut map: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let mut random = seed;
        for step in 0..4000u32 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let client = &mut clients[random as usize % 3];
            let key = vec![(random >> 8) as u8 % 80; 1 + (random >> 8) as usize % 80 % KEY_MAX];
            match random >> 16 & 7 {
                0..3 => {
                    let value: Vec<u8> = step.to_le_bytes().repeat((random >> 24) as usize % (VALUE_MAX / 4 + 1));
                    match world.put(client, &key, &value) {
                        Status::Stored => drop(map.insert(key, value)),
                        Status::Full => assert!(!map.contains_key(&key) && map.len() >= 60, "{seed} {step}"),
                        other => panic!("{seed} {step}: {other:?}"),
                    }
                }
                3 => {
                    let expected = if map.remove(&key).is_some() { Status::Deleted } else { Status::Absent };
                    assert_eq!(world.delete(client, &key), expected, "{seed} {step}");
                }
                _ => assert_eq!(world.get(client, &key).as_ref(), map.get(&key), "{seed} {step}"),
            }
        }
        assert_eq!(world.home.worker.service().table().len(), map.len());
    }
}

#[test]
fn a_put_of_a_remembered_key_is_two_atomics_and_a_write() {
    let mut world = World::new(50);
    let (mut client, _) = world.client();
    assert_eq!(world.put(&mut client, b"key", b"value"), Status::Stored);
    assert!(world.get(&mut client, b"key").is_some());
    for len in [0, 48, 49, VALUE_MAX] {
        let before = *client.stats();
        assert_eq!(world.put(&mut client, b"key", &vec![1; len]), Status::Stored);
        assert!(world.get(&mut client, b"key").is_some());
        let stats = *client.stats();
        assert_eq!((stats.atomics - before.atomics, stats.writes - before.writes), (2, 1));
        assert_eq!((stats.reads - before.reads, stats.calls), (1, 1));
    }
    assert_eq!((client.stats().conflicts, client.stats().retries), (0, 0));
}

/// Lets a client take the lock of an item, and leaves it there.
fn holds(world: &World, client: &mut DrtmClient<ShmDevice>, key: &[u8], value: &[u8]) {
    client.put(2, key, value, world.now_ns).unwrap();
    client.flush();
    let (_, lock) = world.home.lock(key).unwrap();
    assert_eq!(lock.holder(), Some(client.holder()));
}

#[test]
fn who_dies_with_a_lock_is_read_past_and_its_lock_is_released() {
    let mut world = World::new(50);
    let (mut victim, id) = world.client();
    let (mut other, _) = world.client();
    for key in [b"one", b"two"] {
        assert_eq!(world.put(&mut victim, key, b"before"), Status::Stored);
    }
    // The victim dies holding locks, with half a value written beside each valid one.
    for key in [b"one", b"two"] {
        assert!(world.get(&mut victim, key).is_some());
    }
    for key in [b"one", b"two"] {
        holds(&world, &mut victim, key, &[1; 100]);
        let (record, lock) = world.home.lock(key).unwrap();
        let mut image = Vec::new();
        let layout = world.home.layout;
        let at = layout.image(&mut image, layout.hash(key), record, lock.next().version(), &[1; 100]);
        world.home.memory.write(at as usize, &image[..60]).unwrap();
    }
    drop(victim);

    // Others can still read, but not write.
    assert_eq!(world.get(&mut other, b"one").as_deref(), Some(&b"before"[..]));
    assert_eq!(world.put(&mut other, b"one", b"after"), Status::Contended);
    assert_eq!(world.delete(&mut other, b"one"), Status::Contended);
    assert!(other.stats().conflicts > 60, "{:?}", other.stats());
    assert_eq!(world.get(&mut other, b"one").as_deref(), Some(&b"before"[..]));

    // The victim's lease ends.
    assert_eq!(world.home.owner.stats().released, 0);
    world.now_ns += LEASE_NS;
    assert_eq!(world.put(&mut other, b"one", b"after"), Status::Stored);
    assert_eq!(world.get(&mut other, b"one").as_deref(), Some(&b"after"[..]));
    assert_eq!(world.get(&mut other, b"two").as_deref(), Some(&b"before"[..]));
    assert_eq!(world.put(&mut other, b"two", b"after"), Status::Stored);
    assert!(!world.home.dismiss(id));
    let stats = drtm::OwnerStats { overdue: 1, released: 2, moved: 2, repaired: 0 };
    assert_eq!(*world.home.owner.stats(), stats);
}

#[test]
fn a_client_that_is_dismissed_holds_nothing_any_more() {
    let mut world = World::new(50);
    let (mut other, _) = world.client();
    assert_eq!(world.put(&mut other, b"key", b"before"), Status::Stored);
    let mut holders = Vec::new();
    for round in 0..20u8 {
        let (mut victim, id) = world.client();
        assert!(world.get(&mut victim, b"key").is_some());
        holds(&world, &mut victim, b"key", b"never");
        holders.push(victim.holder());
        assert!(world.home.dismiss(id));
        assert_eq!(world.put(&mut other, b"key", &[round; 9]), Status::Stored);
        // The victim is alive, and tries to go on.
        let ends = (0..1000).find_map(|_| victim.poll(world.now_ns, |outcome| panic!("{outcome:?}")).err());
        assert!(ends.is_some());
        assert_eq!(world.get(&mut other, b"key").as_deref(), Some(&[round; 9][..]));
    }
    // Holders' numbers are not reused soon.
    holders.sort_unstable();
    holders.dedup();
    assert_eq!(holders.len(), 20);
    assert_eq!((world.home.owner.stats().released, world.home.owner.stats().overdue), (20, 0));
}

#[test]
fn clients_that_hold_a_lock_for_a_moment_are_not_overdue() {
    let mut world = World::new(50);
    let (mut client, _) = world.client();
    assert_eq!(world.put(&mut client, b"key", b"value"), Status::Stored);
    assert!(world.get(&mut client, b"key").is_some());
    for round in 0..20u8 {
        holds(&world, &mut client, b"key", &[round; 9]);
        for _ in 0..10 {
            world.now_ns += LEASE_NS / 20;
            world.home.turn(world.now_ns);
        }
        assert_eq!(world.end(&mut client).unwrap().1, Some(Status::Stored));
    }
    assert_eq!(*world.home.owner.stats(), drtm::OwnerStats::default());
}

#[test]
fn spoiled_memory_is_torn_for_clients_and_the_owner_repairs_it() {
    let mut world = World::new(50);
    let (mut client, _) = world.client();
    let (mut other, _) = world.client();
    let mut random = 7u64;
    for round in 0..30u32 {
        for key in 0..20u32 {
            let status = world.put(&mut client, &key.to_le_bytes(), &round.to_le_bytes());
            assert_eq!(status, Status::Stored, "{round} {key}");
        }
        // Writes words of all sorts all over the memory, as a client could.
        for _ in 0..200 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let word = match random & 3 {
                0 => random >> 40,
                1 => u64::from(client.holder()) << 48 | random >> 62,
                2 => 0,
                _ => random,
            };
            let place = (random >> 8) as usize % (world.home.memory.len() / 8);
            world.home.memory.store(place * 8, word).unwrap();
        }
        for key in 0..30u32 {
            for client in [&mut client, &mut other] {
                // The owner takes part for odd keys only.
                client.get(u64::from(key), &key.to_le_bytes(), world.now_ns).unwrap();
                if key % 2 == 0 {
                    client.flush();
                    let mut ends = 0;
                    while client.in_flight() > 0 {
                        world.now_ns += 1000;
                        ends += client.poll(world.now_ns, |outcome| whole(&outcome, round)).unwrap();
                    }
                    assert_eq!(ends, 1);
                } else {
                    let (_, status, value) = world.end(client).unwrap();
                    whole(&one_sided::Outcome { tag: key.into(), status, value: &value, asked_ns: 0 }, round);
                }
            }
        }
        // Nothing is corrupted for a while. A client that a corrupted lock names as its holder may be dismissed.
        for _ in 0..4 {
            world.now_ns += LEASE_NS;
            world.home.turn(world.now_ns);
        }
        let before = *world.home.owner.stats();
        for _ in 0..4 {
            world.now_ns += LEASE_NS;
            world.home.turn(world.now_ns);
        }
        assert_eq!(*world.home.owner.stats(), before);
        if before.overdue > 0 && client.get(0, b"key", world.now_ns).is_ok() && world.end(&mut client).is_err() {
            (client, _) = world.client();
        }
    }
    assert!(world.home.owner.stats().repaired > 100, "{:?}", world.home.owner.stats());

    fn whole(outcome: &one_sided::Outcome<'_>, round: u32) {
        match outcome.status {
            // The value may be of another round, if the lock word was changed to that.
            Some(Status::Found) => {
                let found = u32::from_le_bytes(outcome.value.try_into().unwrap());
                assert!(outcome.tag < 20 && found <= round, "{found} {round}");
            }
            Some(Status::Absent | Status::Torn) => assert!(outcome.value.is_empty()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_client_for_shorter_items_does_not_join() {
    let mut world = World::new(50);
    let mut config = world.home.config(CLIENTS, 8);
    config.reads.read_len_max = 64;
    let (joining, hello) = Joining::prepare(&world.device, &world.domain, &config).unwrap();
    let (_, welcome) = world.home.owner.admit(&hello).unwrap();
    assert!(matches!(joining.join(&welcome), Err(ClientError::Table)));
    let config = world.home.config(CLIENTS, 8);
    for table in [&welcome.table[..1], &[]] {
        let (joining, _) = Joining::prepare(&world.device, &world.domain, &config).unwrap();
        let welcome = Welcome { table: table.to_vec(), ..welcome.clone() };
        assert!(matches!(joining.join(&welcome), Err(ClientError::Table)));
    }
}

/// A client that asks to be admitted: its earlier identity, its greeting, and the channel for the answer.
type Knock = (Option<ClientId>, Hello, mpsc::Sender<(ClientId, Welcome)>);

/// Clients in threads of their own PUT the same keys at the same time, and some are killed in the middle. Every PUT
/// that was reported as stored has made a version of its own.
#[test]
fn puts_of_many_clients_are_all_there_whoever_is_killed() {
    const WRITERS: usize = 2;
    const KEYS: u32 = 3;
    const PUTS: u64 = 3000;
    let device = ShmDevice::threads().unwrap();
    let clock = HostClock::new();
    let (knock, knocks) = mpsc::channel::<Knock>();
    let is_done = AtomicBool::new(false);
    let (made, versions, released) = std::thread::scope(|scope| {
        let (device, clock, is_done) = (&device, &clock, &is_done);
        let (sender, config) = mpsc::channel();
        let home = scope.spawn(move || {
            let mut home = Home::new(device, 50, WRITERS);
            for key in 0..KEYS {
                assert_eq!(home.worker.service().table().insert(&key.to_le_bytes(), &[0; 16]), Ok(true));
            }
            sender.send(home.config(WRITERS, 16)).unwrap();
            // Versions of a record count its changes. An item that moves to another record goes on with that record's
            // versions.
            let mut changes = vec![0u64; KEYS as usize];
            let mut last: Vec<_> = (0..KEYS).map(|key| home.lock(&key.to_le_bytes()).unwrap()).collect();
            while !is_done.load(Ordering::Acquire) {
                home.worker.turn(clock.now_ns());
                if let Ok((left, hello, answer)) = knocks.try_recv() {
                    // The killed client's thread has ended, so what it held no longer changes.
                    let held: Vec<_> = (0..KEYS).map(|key| home.lock(&key.to_le_bytes()).unwrap()).collect();
                    assert!(left.is_none_or(|id| home.dismiss(id)));
                    for (key, (record, lock)) in held.iter().enumerate() {
                        let now = home.lock(&(key as u32).to_le_bytes()).unwrap();
                        if now.0 != *record {
                            changes[key] += lock.version() - last[key].1.version();
                            last[key] = now;
                        }
                    }
                    answer.send(home.owner.admit(&hello).unwrap()).unwrap();
                }
                std::thread::yield_now();
            }
            for key in 0..KEYS as usize {
                let (record, lock) = home.lock(&(key as u32).to_le_bytes()).unwrap();
                assert_eq!((record, lock.holder()), (last[key].0, None));
                changes[key] += lock.version() - last[key].1.version();
            }
            (changes.iter().sum::<u64>(), home.owner.stats().released)
        });
        let config: ClientConfig = config.recv().unwrap();
        let writers: Vec<_> = (0..WRITERS as u64)
            .map(|writer| {
                let knock = knock.clone();
                scope.spawn(move || {
                    let mut config = ClientConfig { conflicts_max: u32::MAX, ..config };
                    // A writer whose thread gets no processor in the middle of a WRITE leaves a record torn for that
                    // time.
                    config.reads.give_up_ns = u64::MAX;
                    let join = |left| {
                        let domain = device.protection_domain().unwrap();
                        let (joining, hello) = Joining::prepare(device, &domain, &config).unwrap();
                        let (answer, welcome) = mpsc::channel();
                        knock.send((left, hello, answer)).unwrap();
                        let (id, welcome) = welcome.recv().unwrap();
                        (joining.join(&welcome).unwrap(), id)
                    };
                    let (mut client, mut id) = join(None);
                    let (mut sure, mut unsure, mut tag) = (0u64, 0u64, 0u64);
                    while sure < PUTS {
                        while client.has_room() {
                            tag += 1;
                            let key = (tag * 7 + writer) as u32 % KEYS;
                            client.put(tag, &key.to_le_bytes(), &[writer as u8; 100], clock.now_ns()).unwrap();
                        }
                        client.flush();
                        // Now and then the client is killed with PUTs in flight, some of which hold locks.
                        if writer == 0 && tag % 401 < 4 && client.in_flight() == 4 {
                            tag += 4;
                            unsure += 4;
                            drop(client);
                            (client, id) = join(Some(id));
                            continue;
                        }
                        client
                            .poll(clock.now_ns(), |outcome| {
                                assert_eq!(outcome.status, Some(Status::Stored));
                                sure += 1;
                            })
                            .unwrap();
                        std::thread::yield_now();
                    }
                    // The remaining PUTs end well.
                    while client.in_flight() > 0 {
                        client.poll(clock.now_ns(), |_| sure += 1).unwrap();
                        std::thread::yield_now();
                    }
                    (sure, unsure)
                })
            })
            .collect();
        let ends: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_done.store(true, Ordering::Release);
        let (changes, released) = home.join().unwrap();
        let ends = ends.into_iter().map(Result::unwrap).fold((0, 0), |sum, end| (sum.0 + end.0, sum.1 + end.1));
        (ends, changes, released)
    });
    let (sure, unsure) = made;
    assert!((sure..=sure + unsure).contains(&versions), "{versions} changes for {sure} and {unsure} PUTs");
    assert!(unsure > 0 && released > 0, "{unsure} {released}");
}
