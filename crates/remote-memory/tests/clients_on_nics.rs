//! Several clients of one volume at a donor on modelled hosts: admitted, expelled, and admitted again.
#![cfg(not(miri))]

mod common;

use common::{AccessKind, ByCalls, DONORS, Endpoint, World, address};
use sinew_fabric::verbs::Slice;
use sinew_mem::atomic::Arc;
use sinew_remote_memory::donor::{Answer, Call, Refusal};
use sinew_remote_memory::engine::Op;
use sinew_remote_memory::pool::{AccessMethod, DonorHandle, PoolConfig};
use sinew_remote_memory::volume::{CallFailed, Event};
use sinew_rpc::SharedEndpoint;

const VOLUME: u64 = 9;
const LEN: usize = 4096;

/// A program on a host that reaches the first donor.
struct TestClient<M: AccessKind> {
    donor_handle: DonorHandle<SharedEndpoint<Endpoint>, M::Method>,
    access_method: Arc<M::Method>,
    events: Vec<Event>,
}

with_all_means!(
    clients_read_what_others_wrote_and_strangers_reach_nothing,
    what_an_expelled_client_has_on_its_way_changes_nothing_once_the_donor_has_answered,
    a_later_epoch_ends_all_clients_of_the_one_before,
    a_client_that_comes_again_hears_what_became_of_all_that_it_had_on_its_way,
);

impl<M: AccessKind> TestClient<M> {
    fn new(world: &World<M>, host: usize) -> Self {
        let config = PoolConfig { key: world.key.clone(), call_timeout_ns: 10_000_000, ..PoolConfig::default() };
        let name = world.opened.replace(world.opened.get() + 1);
        let rpc = SharedEndpoint::new(world.endpoint(host, &format!("somebody{name}")));
        let access_method = Arc::new(M::access_method(world, host, &rpc));
        let donor_handle = DonorHandle::new(address(0).parse().unwrap(), rpc, &access_method, &config);
        Self { donor_handle, access_method, events: Vec::new() }
    }

    fn turn(&mut self) {
        self.donor_handle.turn();
        self.donor_handle.poll(&mut self.events);
    }

    fn next(&mut self, world: &mut World<M>) -> Event {
        for _ in 0..100_000 {
            self.turn();
            if !self.events.is_empty() {
                return self.events.remove(0);
            }
            world.advance();
        }
        panic!("no event arrives");
    }

    fn ask(&mut self, world: &mut World<M>, call: Call) -> Result<Answer, CallFailed> {
        self.donor_handle.call(1, call);
        match self.next(world) {
            Event::CallAnswered { result, .. } => result,
            other => panic!("{other:?}"),
        }
    }

    fn admit(&mut self, world: &mut World<M>, epoch: u32, client: u64) -> Result<Answer, CallFailed> {
        self.ask(world, Call::Admit { volume: VOLUME, epoch, client, lane: 0 })
    }

    fn begin_write(&mut self, at: u64, byte: u8) {
        let mut source = self.access_method.arena().alloc(LEN, LEN).unwrap();
        source[..].fill(byte);
        self.donor_handle.submit(2, Op::Write { at, source: Slice::from(source.freeze()) }).unwrap();
    }

    fn write(&mut self, world: &mut World<M>, at: u64, byte: u8) -> Result<(), String> {
        self.begin_write(at, byte);
        self.next_result(world).map(|_| ())
    }

    fn read(&mut self, world: &mut World<M>, at: u64) -> Result<u8, String> {
        let target = self.access_method.arena().alloc(LEN, LEN).unwrap();
        self.donor_handle.submit(3, Op::Read { at, target }).unwrap();
        self.next_result(world)
    }

    fn next_result(&mut self, world: &mut World<M>) -> Result<u8, String> {
        match self.next(world) {
            Event::OpFinished { error: Some(error), .. } => Err(error),
            Event::OpFinished { target, .. } => Ok(target.map_or(0, |target| target[0])),
            other => panic!("{other:?}"),
        }
    }
}

/// Makes a writer that has fenced the volume and taken a slab. Returns the writer, and the base of the slab.
fn writer<M: AccessKind>(world: &mut World<M>, epoch: u32) -> (TestClient<M>, u64) {
    let mut writer = TestClient::new(world, DONORS);
    writer.ask(world, Call::Fence { volume: VOLUME, epoch }).unwrap();
    match writer.ask(world, Call::Take { volume: VOLUME, epoch, len: 1 << 20 }) {
        Ok(Answer::Taken { lent, .. }) => (writer, lent.base),
        other => panic!("{other:?}"),
    }
}

fn clients_read_what_others_wrote_and_strangers_reach_nothing<M: AccessKind>() {
    let mut world = World::<M>::new(1);
    let (mut writer, base) = writer(&mut world, 1);
    let mut clients: Vec<_> = (0..2).map(|host| TestClient::new(&world, DONORS + 1 + host)).collect();
    assert!(clients[0].write(&mut world, base, 1).is_err(), "it has no way");
    for (number, client) in clients.iter_mut().enumerate() {
        client.admit(&mut world, 1, number as u64).unwrap();
        client.write(&mut world, base + (number * LEN) as u64, number as u8 + 1).unwrap();
    }
    for client in clients.iter_mut().chain([&mut writer]) {
        for number in 0..2 {
            assert_eq!(client.read(&mut world, base + (number * LEN) as u64), Ok(number as u8 + 1));
        }
    }
    let mut unadmitted = TestClient::new(&world, DONORS + 1);
    let wrong_epoch = unadmitted.admit(&mut world, 2, 7);
    assert!(matches!(wrong_epoch, Err(CallFailed::Refused(_))), "{wrong_epoch:?}");
    assert!(unadmitted.read(&mut world, base).is_err());
}

fn what_an_expelled_client_has_on_its_way_changes_nothing_once_the_donor_has_answered<M: AccessKind>() {
    for seed in 0..12 {
        let mut world = World::<M>::new(seed);
        let (mut writer, base) = writer(&mut world, 1);
        let (mut client, mut other) = (TestClient::new(&world, DONORS + 1), TestClient::new(&world, DONORS + 2));
        client.admit(&mut world, 1, 5).unwrap();
        other.admit(&mut world, 1, 6).unwrap();
        // When it is expelled, some of its WRITEs are at the donor, some on the network, and some still in its NIC.
        (0..64).for_each(|page| client.begin_write(base + page * LEN as u64, 1));
        client.turn();
        world.network.run_until(world.network.now_ns() + 900 * seed);
        writer.ask(&mut world, Call::Expel { volume: VOLUME, epoch: 1, client: 5 }).unwrap();
        for page in 0..64 {
            other.write(&mut world, base + page * LEN as u64, 2).unwrap();
        }
        let failed = (0..64).filter(|_| client.next_result(&mut world).is_err()).count();
        assert!(failed > 0, "seed {seed}: some writes must fail");
        for page in 0..64 {
            assert_eq!(writer.read(&mut world, base + page * LEN as u64), Ok(2), "seed {seed}, page {page}");
        }
        let again = client.admit(&mut world, 1, 5);
        assert_eq!(again, Err(CallFailed::Refused(Refusal::Expelled { client: 5 })));
        client.admit(&mut world, 1, 7).unwrap();
        client.write(&mut world, base, 3).unwrap();
    }
}

fn a_later_epoch_ends_all_clients_of_the_one_before<M: AccessKind>() {
    let mut world = World::<M>::new(3);
    let (mut old, base) = writer(&mut world, 1);
    let mut client = TestClient::new(&world, DONORS + 1);
    client.admit(&mut world, 1, 5).unwrap();
    // A writer that fences again under the same epoch leaves its clients alone.
    old.ask(&mut world, Call::Fence { volume: VOLUME, epoch: 1 }).unwrap();
    client.write(&mut world, base, 1).unwrap();
    (0..16).for_each(|page| client.begin_write(base + page * LEN as u64, 2));
    client.turn();
    let mut new = TestClient::new(&world, DONORS + 2);
    new.ask(&mut world, Call::Fence { volume: VOLUME, epoch: 2 }).unwrap();
    for page in 0..16 {
        new.write(&mut world, base + page * LEN as u64, 3).unwrap();
    }
    (0..16).for_each(|_| _ = client.next_result(&mut world));
    assert!(client.write(&mut world, base, 4).is_err());
    for page in 0..16 {
        assert_eq!(new.read(&mut world, base + page * LEN as u64), Ok(3), "page {page}");
    }
    assert!(client.admit(&mut world, 1, 6).is_err());
    client.admit(&mut world, 2, 5).unwrap();
    assert_eq!(client.read(&mut world, base), Ok(3));
}

fn a_client_that_comes_again_hears_what_became_of_all_that_it_had_on_its_way<M: AccessKind>() {
    let mut world = World::<M>::new(4);
    let (_writer, base) = writer(&mut world, 1);
    let mut client = TestClient::new(&world, DONORS + 1);
    client.admit(&mut world, 1, 5).unwrap();
    (0..300).for_each(|page| client.begin_write(base + page % 64 * LEN as u64, 1));
    client.turn();
    client.donor_handle.call(1, Call::Admit { volume: VOLUME, epoch: 1, client: 5, lane: 0 });
    let (mut over, mut answered) = (0, 0);
    while over < 300 || answered < 1 {
        match client.next(&mut world) {
            Event::OpFinished { .. } => over += 1,
            Event::CallAnswered { result, .. } => answered += u32::from(result.is_ok()),
        }
    }
    client.write(&mut world, base, 2).unwrap();
    assert_eq!(client.read(&mut world, base), Ok(2));
}

/// With verbs, members of a pool can reach each other's slabs, because a device checks one key for all of a donor's
/// memory. With calls they cannot.
#[test]
fn by_calls_nobody_reaches_what_is_not_the_volumes() {
    let mut world = World::<ByCalls>::new(5);
    let (mut writer, base) = writer(&mut world, 1);
    let end = base + (1 << 20);
    writer.write(&mut world, end - LEN as u64, 1).unwrap();
    assert!(writer.write(&mut world, end - 1, 1).is_err());
    let mut other = TestClient::new(&world, DONORS + 1);
    other.ask(&mut world, Call::Fence { volume: VOLUME + 1, epoch: 1 }).unwrap();
    assert!(other.read(&mut world, base).is_err());
    let donor = &world.donors[0].as_ref().unwrap().service;
    assert_eq!((donor.stats().accesses, donor.stats().accesses_refused), (1, 2));
    let mut byte = [0];
    donor.memory().read(end as usize, &mut byte).unwrap();
    assert_eq!(byte, [0]);
}
