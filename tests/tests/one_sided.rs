//! Pilaf and FaRM over shared memory: stored keys are found and others are missing, whatever the table and its size.

use sinew::fabric::verbs::Device;
use sinew::herd::{AdmitError, ClientId, Worker, WorkerConfig};
use sinew::kv::one_sided::{
    AskError, ChangeService, ClientConfig, ClientError, Emulation, Hello, Joining, KEY_LEN_MAX, NoTable,
    OneSidedClient, Owner, OwnerConfig, Status, Welcome,
};
use sinew::kv::{farm, pilaf};
use sinew::mem::SharedMemory;
use sinew::shm::verbs::{ShmDevice, ShmDomain};
use sinew::store::cuckoo::CuckooTable;
use sinew::store::hopscotch::HopscotchTable;
use sinew::store::remote::{Index, Table};

const OWNER: OwnerConfig = OwnerConfig { clients: 2, window: 8, item_len_max: 1000, seed: 3 };
const GIVE_UP_NS: u64 = 1_000_000;

struct World<I: Index, T: Table> {
    device: ShmDevice,
    domain: ShmDomain,
    owner: Owner<ShmDevice>,
    worker: Worker<ShmDevice, ChangeService<T>>,
    memory: SharedMemory,
    index: I,
    now_ns: u64,
}

impl<I: Index, T: Table> World<I, T> {
    fn new(index: I, table: impl FnOnce(SharedMemory) -> T) -> Self {
        let device = ShmDevice::threads().unwrap();
        let domain = device.protection_domain().unwrap();
        let (owner, seed, memory) = Owner::new(&device, &OWNER, &index).unwrap();
        let service = ChangeService::new(table(memory.clone()));
        let worker = Worker::new(seed, &WorkerConfig::herd_opt(), service).unwrap();
        Self { device, domain, owner, worker, memory, index, now_ns: 0 }
    }

    fn client(&mut self) -> (OneSidedClient<ShmDevice, I>, ClientId) {
        let config =
            ClientConfig { owner: OWNER, window: 4, read_len_max: self.index.read_len_max(), give_up_ns: GIVE_UP_NS };
        let (joining, hello) = Joining::prepare(&self.device, &self.domain, &config).unwrap();
        let (id, welcome) = self.owner.admit(&Hello::from_bytes(&hello.to_bytes()).unwrap()).unwrap();
        (joining.join(&Welcome::from_bytes(&welcome.to_bytes()).unwrap()).unwrap(), id)
    }

    /// Waits until a request ends, and returns its outcome.
    fn end(&mut self, client: &mut OneSidedClient<ShmDevice, I>) -> Result<(u64, Status, Vec<u8>), ClientError> {
        client.flush();
        for _ in 0..100_000 {
            self.now_ns += 10;
            self.worker.turn(self.now_ns);
            self.owner.tend();
            let mut ended = None;
            let count = client.poll(self.now_ns, |outcome| {
                assert!(ended.is_none());
                ended = Some((outcome.tag, outcome.status.unwrap(), outcome.value.to_vec()));
            })?;
            assert_eq!(count, usize::from(ended.is_some()));
            if let Some(ended) = ended {
                assert_eq!(client.in_flight(), 0);
                return Ok(ended);
            }
        }
        panic!("nothing ended");
    }

    fn get(&mut self, client: &mut OneSidedClient<ShmDevice, I>, key: &[u8]) -> Option<Vec<u8>> {
        client.get(1, key, self.now_ns).unwrap();
        match self.end(client).unwrap() {
            (1, Status::Found, value) => Some(value),
            (1, Status::Absent, value) if value.is_empty() => None,
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, client: &mut OneSidedClient<ShmDevice, I>, key: &[u8], value: &[u8]) -> Status {
        client.put(2, key, value, self.now_ns).unwrap();
        let (tag, status, _) = self.end(client).unwrap();
        assert_eq!(tag, 2);
        status
    }

    fn delete(&mut self, client: &mut OneSidedClient<ShmDevice, I>, key: &[u8]) -> bool {
        client.delete(3, key, self.now_ns).unwrap();
        match self.end(client).unwrap() {
            (3, Status::Deleted, _) => true,
            (3, Status::Absent, _) => false,
            other => panic!("{other:?}"),
        }
    }
}

const KEY_MAX: usize = 60;
const VALUE_MAX: usize = 200;

fn pilaf_world(items: u32) -> World<sinew::store::cuckoo::Layout, CuckooTable> {
    let layout = pilaf::layout(items, (KEY_MAX + VALUE_MAX) as u32, 5);
    World::new(layout, |memory| CuckooTable::new(layout, memory).unwrap())
}

fn farm_world(items: u32, is_inline: bool) -> World<sinew::store::hopscotch::Layout, HopscotchTable> {
    let layout = farm::layout(items, KEY_MAX as u32, VALUE_MAX as u32, is_inline, 5);
    World::new(layout, |memory| HopscotchTable::new(layout, memory).unwrap())
}

fn conforms<I: Index, T: Table>(mut world: World<I, T>) {
    let (mut first, first_id) = world.client();
    let (mut second, _) = world.client();

    // A key that nobody stored is missing, and deleting it does nothing.
    assert_eq!(world.get(&mut first, b"nothing"), None);
    assert!(!world.delete(&mut first, b"nothing"));

    // Each client finds what the other has stored.
    assert_eq!(world.put(&mut first, b"key", b"value"), Status::Stored);
    assert_eq!(world.get(&mut second, b"key").as_deref(), Some(&b"value"[..]));
    assert_eq!(world.put(&mut second, b"key", b"another, longer value"), Status::Stored);
    assert_eq!(world.get(&mut first, b"key").as_deref(), Some(&b"another, longer value"[..]));
    assert_eq!(world.put(&mut second, b"key", b""), Status::Stored);
    assert_eq!(world.get(&mut first, b"key").as_deref(), Some(&b""[..]));
    assert!(world.delete(&mut first, b"key"));
    assert_eq!(world.get(&mut second, b"key"), None);

    // Keys and values have their greatest length here, or exceed it.
    let (key, value) = ([7; KEY_MAX], [8; VALUE_MAX]);
    assert_eq!(world.put(&mut first, &key, &value), Status::Stored);
    assert_eq!(world.get(&mut second, &key).as_deref(), Some(&value[..]));
    assert_eq!(world.get(&mut second, &key[1..]), None);
    assert_eq!(world.put(&mut first, &[7; KEY_MAX + 1], &[8; VALUE_MAX]), Status::TooLong);
    assert_eq!(world.put(&mut first, &key, &[8; VALUE_MAX + 1]), Status::TooLong);
    assert_eq!(world.get(&mut first, &key).as_deref(), Some(&value[..]));
    assert_eq!(world.get(&mut first, &[7; 5000]), None);
    assert_eq!(first.get(1, b"", 0), Err(AskError::Key(0)));
    assert_eq!(first.put(1, &[0; KEY_LEN_MAX + 1], b"", 0), Err(AskError::Key(KEY_LEN_MAX + 1)));
    assert!(matches!(first.put(1, &[0; 1001], b"", 0), Err(AskError::Request(_))));

    // A full table refuses new keys, and keeps those that it has.
    let mut stored = 0u32;
    while world.put(&mut first, &stored.to_le_bytes(), &stored.to_le_bytes()) == Status::Stored {
        stored += 1;
        assert!(stored < 100_000);
    }
    assert!(stored > 40, "{stored}");
    for key in 0..stored {
        assert_eq!(world.get(&mut second, &key.to_le_bytes()).as_deref(), Some(&key.to_le_bytes()[..]));
    }
    assert_eq!(world.get(&mut second, &stored.to_le_bytes()), None);
    assert!(world.delete(&mut second, &7u32.to_le_bytes()));
    assert_eq!(world.get(&mut first, &7u32.to_le_bytes()), None);

    // All GETs of a window end, each with its own value.
    for tag in 10..14 {
        first.get(tag, &(tag as u32).to_le_bytes(), 0).unwrap();
    }
    assert!(!first.has_room_to_get());
    assert_eq!(first.get(1, b"key", 0), Err(AskError::Full));
    first.flush();
    let mut ended = Vec::new();
    for _ in 0..100 {
        let take = |outcome: sinew::kv::one_sided::Outcome<'_>| {
            assert_eq!(outcome.value, (outcome.tag as u32).to_le_bytes());
            ended.push(outcome.tag);
        };
        first.poll(world.now_ns, take).unwrap();
    }
    ended.sort_unstable();
    assert_eq!(ended, [10, 11, 12, 13]);

    // A client that was dismissed makes room for another.
    assert!(world.owner.dismiss(first_id) && !world.owner.dismiss(first_id));
    drop(first);
    let (mut third, _) = world.client();
    assert_eq!(world.get(&mut third, &3u32.to_le_bytes()).as_deref(), Some(&3u32.to_le_bytes()[..]));
    assert_eq!(world.get(&mut second, &3u32.to_le_bytes()).as_deref(), Some(&3u32.to_le_bytes()[..]));
}

#[test]
fn pilaf_stores_finds_misses_deletes_and_refuses() {
    conforms(pilaf_world(50));
}

#[test]
fn farm_stores_finds_misses_deletes_and_refuses() {
    conforms(farm_world(50, true));
    conforms(farm_world(50, false));
}

fn gives_up<I: Index, T: Table>(mut world: World<I, T>) {
    let (mut client, _) = world.client();
    assert_eq!(world.put(&mut client, b"key", b"value"), Status::Stored);
    for word in 0..world.memory.len() / 8 {
        world.memory.store(word * 8, 0x5555_5555_5555_5555).unwrap();
    }
    client.get(1, b"key", world.now_ns).unwrap();
    assert!(matches!(world.end(&mut client), Err(ClientError::Torn(GIVE_UP_NS..))));
    assert!(client.stats().reads_repeated > 1000);
}

#[test]
fn a_get_from_spoiled_memory_is_given_up() {
    gives_up(pilaf_world(50));
    gives_up(farm_world(50, true));
    gives_up(farm_world(50, false));
}

#[test]
fn a_client_for_shorter_items_or_another_table_does_not_join() {
    let mut world = pilaf_world(50);
    let config = ClientConfig { owner: OWNER, window: 4, read_len_max: 64, give_up_ns: GIVE_UP_NS };
    let (joining, hello) = Joining::prepare(&world.device, &world.domain, &config).unwrap();
    let (id, welcome) = world.owner.admit(&hello).unwrap();
    assert!(matches!(joining.join::<sinew::store::cuckoo::Layout>(&welcome), Err(ClientError::Table)));
    world.owner.dismiss(id);
    let config = ClientConfig { read_len_max: 1 << 20, ..config };
    let (joining, hello) = Joining::prepare(&world.device, &world.domain, &config).unwrap();
    let (_, welcome) = world.owner.admit(&hello).unwrap();
    assert!(matches!(joining.join::<sinew::store::hopscotch::Layout>(&welcome), Err(ClientError::Table)));
    for len in 0..hello.to_bytes().len() {
        assert_eq!(Hello::from_bytes(&hello.to_bytes()[..len]), None);
    }
    for len in 0..welcome.to_bytes().len() {
        assert_eq!(Welcome::from_bytes(&welcome.to_bytes()[..len]), None);
    }
}

#[test]
fn a_client_too_many_is_told_so() {
    let mut world = pilaf_world(50);
    let (_first, first_id) = world.client();
    let (_second, _) = world.client();
    let config = ClientConfig { owner: OWNER, window: 4, read_len_max: 1000, give_up_ns: GIVE_UP_NS };
    let (_joining, hello) = Joining::prepare(&world.device, &world.domain, &config).unwrap();
    assert!(matches!(world.owner.admit(&hello), Err(AdmitError::Full(2))));
    assert!(world.owner.dismiss(first_id) && world.owner.admit(&hello).is_ok());
}

#[test]
fn emulations_read_as_often_as_the_papers_say() {
    for (emulation, reads, len) in [
        (pilaf::emulation(10_000, 32), 2.6, 32),
        (farm::emulation(10_000, 16, 32, true), 1.0, 288),
        (farm::emulation(10_000, 16, 32, false), 2.0, 32),
    ] {
        assert_eq!(Emulation::from_description(&emulation.describe()), Some(emulation));
        let mut world = World::new(emulation, |memory| {
            emulation.fill(&memory);
            NoTable
        });
        let (mut client, _) = world.client();
        for key in 0..5000u32 {
            assert_eq!(world.get(&mut client, &key.to_le_bytes()).unwrap().len(), len);
        }
        assert_eq!(world.put(&mut client, b"key", b"value"), Status::Stored);
        let stats = *client.stats();
        let per_get = stats.reads as f64 / stats.gets as f64;
        assert!((per_get - reads).abs() < 0.05, "{per_get} {reads}");
        assert_eq!(stats.reads_repeated, 0);
    }
}

#[test]
fn a_client_whose_owner_has_gone_says_so() {
    let mut world = pilaf_world(50);
    let (mut client, _) = world.client();
    assert_eq!(world.put(&mut client, b"key", b"value"), Status::Stored);
    let World { owner, worker, memory, .. } = world;
    drop((owner, worker, memory));
    let _ = client.get(1, b"key", 0);
    client.flush();
    let ends = (0..1000).find_map(|turn| client.poll(turn, |_| ()).err());
    assert!(ends.is_some());
}
