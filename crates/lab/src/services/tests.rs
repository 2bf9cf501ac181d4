//! Services on modelled NICs work as they do on real ones.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use sinew_fabric::verbs::Device;
use sinew_fabric::{Clock, SeededGenerator};
use sinew_harness::load::store::Store;
use sinew_harness::workload::{Distribution, Mix};
use sinew_herd::{Client, ClientConfig, Layout, Server, ServerConfig, Worker, WorkerConfig};
use sinew_kv::Partitions;
use sinew_kv::herd::{CacheClient, CacheService, Status, layout};
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, ActorState, SimVerbs};
use sinew_store::cache::{Cache, CacheConfig};

use super::cache::CacheRun;
use super::charges::{Accesses, Charged, Memory, SharedWord};
use super::rpc::RpcRun;
use super::sequencer::{Design, SequencerRun};
use super::store::{StoreKind, StoreRun};
use super::{Driven, DriverResults, Hosts, Serving, Working};

fn cx3() -> Profile {
    Profile::built_in("cx3").unwrap()
}

/// A cache with one charged worker and one client.
fn cache(
    hosts: &mut Hosts,
    layout: Layout,
    worker: &WorkerConfig,
    client: &ClientConfig,
) -> (Worker<SimVerbs, Charged<CacheService>>, SimVerbs, CacheClient<SimVerbs>) {
    let device = hosts.server();
    let (mut server, seeds) = Server::new(&device, &ServerConfig { layout, seed: 1 }).unwrap();
    let table = Cache::new(&CacheConfig { items: 1000, value_len_max: 900, ..CacheConfig::default() }).unwrap();
    let service = CacheService::new(table, Partitions::new(1), 0);
    let accesses = Accesses { first: 1, second: 1, unforeseen: 0 };
    let service = Charged::new(service, hosts.clock(), hosts.profile().core, accesses);
    let mut worker = Worker::new(seeds.into_iter().next().unwrap(), worker, service).unwrap();
    let device = hosts.client(0);
    let (joining, hello) = Client::prepare(&device, &device.protection_domain().unwrap(), client).unwrap();
    let (_, welcome) = server.admit(&hello).unwrap();
    worker.process_changes();
    // Dropping the server would drop the client's connection.
    std::mem::forget(server);
    (worker, device, CacheClient::new(joining.join(&welcome).unwrap()))
}

#[test]
fn what_is_found_is_what_was_stored_last() {
    const KEYS: u64 = 50;
    for worker in [WorkerConfig::herd(), WorkerConfig::herd_opt()] {
        let mut hosts = Hosts::new(&cx3(), 1, 1);
        let layout = layout(1, 1, 4);
        let (mut server, _, mut client) = cache(&mut hosts, layout, &worker, &ClientConfig::new(layout));
        let (mut random, mut model, mut found) = (SeededGenerator::new(3), HashMap::<u64, Vec<u8>>::new(), 0);
        for step in 0..600u64 {
            let key = random.below(KEYS);
            let bytes = key.to_le_bytes();
            let value: Vec<u8> = (0..random.below(300)).map(|at| (at ^ step) as u8).collect();
            let now_ns = hosts.network.now_ns();
            let asked = random.below(3);
            match asked {
                0 => client.put(step, &bytes, &value, now_ns).unwrap(),
                1 => client.delete(step, &bytes, now_ns).unwrap(),
                _ => client.get(step, &bytes, now_ns).unwrap(),
            }
            client.flush();
            let mut ended = None;
            for _ in 0..1000 {
                hosts.network.run_until(hosts.network.now_ns() + 500);
                server.turn(hosts.network.now_ns());
                let take = |outcome: sinew_kv::herd::Outcome<'_>| {
                    ended = Some((outcome.tag, outcome.status.unwrap(), outcome.value.to_vec()));
                };
                client.poll(hosts.network.now_ns(), take).unwrap();
                if ended.is_some() {
                    break;
                }
            }
            let expected = match (asked, model.get(&key)) {
                (0, _) => (Status::Stored, Vec::new()),
                (1, Some(_)) => (Status::Deleted, Vec::new()),
                (2, Some(value)) => (Status::Found, value.clone()),
                _ => (Status::Absent, Vec::new()),
            };
            found += u32::from(expected.0 == Status::Found);
            assert_eq!(ended, Some((step, expected.0, expected.1)), "step {step}");
            match asked {
                0 => drop(model.insert(key, value)),
                1 => drop(model.remove(&key)),
                _ => {}
            }
        }
        assert!(found > 50 && !server.is_pending());
    }
}

#[test]
fn equal_seeds_are_equal_runs_of_every_service_and_others_are_others() {
    let cib = Profile::built_in("cib").unwrap();
    let cache = |seed| {
        let run =
            CacheRun { workers: 2, hosts: 3, clients: 6, keys: 1000, measured_ns: 30_000, ..CacheRun::sigcomm14() };
        let found = CacheRun { seed, distribution: Distribution::Zipf, ..run }.run(&cib);
        assert_eq!(found.hit_percent, 100.0);
        (found.trace_hash, found.mops.to_bits())
    };
    let sequencer = |design, seed| {
        let run = SequencerRun::atc16(design, 2);
        let found = SequencerRun { hosts: 2, clients: 6, window: 4, measured_ns: 30_000, seed, ..run }.run(&cib);
        // Nothing was lost, so there are no gaps.
        assert!(found.numbers > 30 && found.end == found.numbers, "{design:?}: {found:?}");
        (found.trace_hash, found.mops.to_bits())
    };
    let store = |kind, seed| {
        let run = StoreRun { hosts: 2, clients: 4, keys: 500, get_percent: 80.0, seed, ..StoreRun::sigcomm14(kind) };
        let found = StoreRun { measured_ns: 30_000, ..run }.run(&cib);
        (found.trace_hash, found.mops.to_bits())
    };
    let rpc = |seed| {
        let found =
            RpcRun { hosts: 3, callers: 3, window: 6, measured_ns: 30_000, seed, ..RpcRun::small_calls() }.run(&cib);
        (found.trace_hash, found.mops.to_bits())
    };
    let spec = |is_batched| Design::Spec { queue_pairs: 2, is_batched };
    let designs = [Design::Herd(WorkerConfig::herd()), Design::Herd(WorkerConfig::herd_opt()), spec(true), spec(false)];
    for design in designs.into_iter().chain([Design::Atomics]) {
        assert_eq!(sequencer(design, 1), sequencer(design, 1), "{design:?}");
    }
    for kind in [StoreKind::Pilaf, StoreKind::Farm, StoreKind::FarmVar, StoreKind::Drtm] {
        assert_eq!(store(kind, 1), store(kind, 1), "{kind:?}");
        assert_ne!(store(kind, 1), store(kind, 2), "{kind:?}");
    }
    assert_eq!((cache(1), rpc(1)), (cache(1), rpc(1)));
    assert_ne!(cache(1), cache(2));
}

#[test]
fn a_client_hears_that_its_worker_was_killed() {
    let mut hosts = Hosts::new(&cx3(), 1, 1);
    let layout = layout(1, 1, 4);
    let config = ClientConfig { timeout_ns: 100_000, give_up_ns: 1_000_000, ..ClientConfig::new(layout) };
    let herd = WorkerConfig::herd();
    let (worker, device, client) = cache(&mut hosts, layout, &herd, &config);
    let (clock, look_ns, serving) = (hosts.clock(), hosts.profile().core.look_ns, Rc::<Serving>::default());
    let working = Working::new(worker, &herd, clock.clone(), look_ns, &serving);
    let worker = hosts.cluster.add("worker", [], Box::new(working));
    let found = Rc::<RefCell<DriverResults>>::default();
    let load = Store::with_trace(vec![client], clock.clone(), &Mix::YcsbA.workload(100, 32, 1), 256, false, 0);
    let mut driven = Driven::new(load, clock.clone(), &[50_000_000], 10_000, &found);
    struct Until(Rc<RefCell<Option<u64>>>, Box<dyn FnMut() -> ActorState>, sinew_sim::SimClock);
    impl Actor for Until {
        fn turn(&mut self) -> ActorState {
            let doing = (self.1)();
            if doing == ActorState::Done {
                *self.0.borrow_mut() = Some(self.2.now_ns());
            }
            doing
        }
    }
    let ended_ns = Rc::<RefCell<Option<u64>>>::default();
    let actor = Until(Rc::clone(&ended_ns), Box::new(move || driven.turn()), clock);
    hosts.cluster.add("client", [device.place()], Box::new(actor));
    hosts.cluster.run_until(200_000);
    let answered = serving.answered.get();
    assert!(answered > 100, "{answered}");
    hosts.cluster.crash(worker);
    hosts.cluster.run_until(3_000_000);
    let error = found.borrow().error().map(str::to_owned).unwrap_or_default();
    assert!(error.contains("worker 0 of the server has answered nothing"), "{error:?}");
    assert!((1_200_000..2_000_000).contains(&ended_ns.borrow().unwrap()), "{ended_ns:?}");
    assert_eq!(serving.answered.get(), answered);
}

/// Has an actor do something once, and returns the time that it spent.
fn spent_ns(hosts: &mut Hosts, work: impl FnMut() + 'static) -> u64 {
    struct Once<F>(F);
    impl<F: FnMut()> Actor for Once<F> {
        fn turn(&mut self) -> ActorState {
            (self.0)();
            ActorState::Done
        }
    }
    let actor = hosts.cluster.add("once", [], Box::new(Once(work)));
    hosts.cluster.run_until(hosts.network.now_ns() + 1_000_000);
    hosts.cluster.core_time(actor).worked_ns
}

#[test]
fn prefetched_lines_cost_what_is_left_of_them_and_ten_are_under_way_at_most() {
    let mut hosts = Hosts::new(&cx3(), 1, 1);
    let (clock, core) = (hosts.clock(), hosts.profile().core);
    let of = |hosts: &mut Hosts, lines: usize, between_ns: u64| {
        let clock = clock.clone();
        spent_ns(hosts, move || {
            let mut memory = Memory::new(clock.clone(), &core);
            let there_ns = memory.prefetch(lines);
            clock.spend_ns(between_ns);
            memory.wait(there_ns);
        })
    };
    let memory_ns = core.memory_ns;
    assert_eq!(of(&mut hosts, 1, 0), memory_ns);
    assert_eq!(of(&mut hosts, 1, memory_ns + 5), memory_ns + 5);
    assert_eq!([10, 11, 20, 21].map(|lines| of(&mut hosts, lines, 0) / memory_ns), [1, 2, 2, 3]);
}

#[test]
fn a_word_goes_from_core_to_core_one_at_a_time_and_is_cheap_for_who_is_alone() {
    let mut hosts = Hosts::new(&cx3(), 1, 1);
    let (clock, core) = (hosts.clock(), hosts.profile().core);
    let word = SharedWord::new(clock.clone(), &core);
    let alone = Rc::clone(&word);
    let cheap_ns = spent_ns(&mut hosts, move || (0..10).for_each(|_| alone.borrow_mut().change(0)));
    assert_eq!(cheap_ns, 10 * core.look_ns);
    // Four cores take turns within one turn of an actor: each change waits for the one before.
    let others = Rc::clone(&word);
    let dear_ns = spent_ns(&mut hosts, move || (0..100).for_each(|nth| others.borrow_mut().change(nth % 4)));
    let each_ns = dear_ns as f64 / 100.0 / core.contended_ns as f64;
    assert!((0.9..1.6).contains(&each_ns), "{each_ns}");
}
