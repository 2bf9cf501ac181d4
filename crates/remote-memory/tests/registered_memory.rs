//! Requests whose memory the path has not registered: copied or registered, depending on their size (rdmabox IV-A), on
//! modelled NICs.

use sinew_fabric::verbs::{Access, Device, Exposed, ProtectionDomain};
use sinew_fabric::{Clock, ManualClock};
use sinew_mem::atomic::Arc;
use sinew_mem::{Arena, MessageBuffer};
use sinew_remote_memory::engine::{
    CostCurve, DonorQueuePairs, Engine, EngineConfig, Finished, Op, RegistrationPolicy, RegistrationStats, Request,
    Shared, SharedConfig, Unlimited, VerbsPath, VerbsPathConfig,
};
use sinew_sim::nic::Profile;
use sinew_sim::{HostId, Network, SimDomain, SimExposed, SimVerbs, Topology};

const LEN: usize = 16 << 20;
const KB: usize = 1 << 10;

struct Setup {
    network: Network,
    shared: Arc<Shared>,
    engine: Engine<VerbsPath<SimVerbs>>,
    memory: SimExposed,
    domain: SimDomain,
    _lending: DonorQueuePairs<SimVerbs>,
    /// Arena of the caller's buffers.
    callers: Arena,
}

impl Setup {
    fn new(config: &VerbsPathConfig, engine: EngineConfig) -> Self {
        let network = Network::new(Topology::star(2, 54.54, 10, 4096), 1).unwrap();
        let profile = Profile::built_in("cx3").unwrap();
        let open = |host: usize, name: &str| {
            network.attach_nic(HostId(host), &profile).unwrap();
            let device = network.verbs(HostId(host), name).unwrap();
            let domain = device.protection_domain().unwrap();
            (device, domain)
        };
        let ((device, domain), donor) = (open(0, "asking"), open(1, "donor"));
        let memory = donor.1.expose(LEN, Access::ALL).unwrap();
        let arena = domain.arena(LEN).unwrap();
        let mut path = VerbsPath::new(&device, &domain, &[arena], config).unwrap();
        let lending = DonorQueuePairs::new(&donor.0, &donor.1, &path.addresses()).unwrap();
        path.connect(&lending.addresses(), memory.remote()).unwrap();
        let shared = Shared::new("the donor", LEN as u64, Unlimited, SharedConfig::default());
        let engine = Engine::new(&shared, path, engine);
        let callers = Arena::private(8 * LEN).unwrap();
        Self { network, shared, engine, memory, domain, _lending: lending, callers }
    }

    fn with_policy(registering: RegistrationPolicy) -> Self {
        Self::new(&VerbsPathConfig { registration: registering, ..VerbsPathConfig::default() }, EngineConfig::default())
    }

    fn buffer(&self, len: usize, byte: u8) -> MessageBuffer {
        let mut buffer = self.callers.alloc(len, len).unwrap();
        buffer[..].fill(byte);
        buffer
    }

    fn submit(&mut self, tag: u64, op: Op) {
        self.engine.submit(Request { tag, op }).unwrap();
    }

    /// Runs until `count` requests are finished.
    fn finish(&mut self, count: usize) -> Vec<Finished> {
        let mut finished = Vec::new();
        for _ in 0..100_000 {
            self.engine.turn(self.network.now_ns());
            self.engine.poll(&mut finished, 64);
            if finished.len() == count && self.engine.is_idle() {
                break;
            }
            self.network.run_until(self.network.now_ns() + 1_000);
        }
        assert_eq!(finished.len(), count);
        finished.iter().for_each(|one| assert_eq!(one.result, Ok(())));
        finished
    }

    fn read(&mut self, at: u64, target: MessageBuffer) -> MessageBuffer {
        self.submit(1, Op::Read { at, target });
        self.finish(1).pop().and_then(|one| one.target).unwrap()
    }

    fn write(&mut self, at: u64, source: MessageBuffer) {
        self.submit(2, Op::Write { at, source: source.freeze().into() });
        self.finish(1);
    }

    fn stats(&mut self) -> RegistrationStats {
        self.engine.path().registration_stats()
    }
}

#[test]
fn requests_of_as_many_bytes_as_the_threshold_are_registered_and_shorter_ones_copied() {
    for (len, misses, copied) in [(64 * KB, 2, 0), (64 * KB - 64, 0, 2)] {
        let mut setup = Setup::with_policy(RegistrationPolicy::From(64 * KB));
        let source = setup.buffer(len, 7);
        setup.write(4096, source);
        let target = setup.buffer(len, 0);
        let target = setup.read(4096, target);
        assert!(target.iter().all(|byte| *byte == 7));
        let mut seen = vec![0; len];
        setup.memory.read(4096, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == 7));
        let (stats, engine) = (setup.stats(), setup.shared.stats());
        // A write's buffer returns to its arena, and may become the read's.
        assert_eq!((stats.misses + stats.hits, engine.copied), (misses, copied), "{len} bytes");
    }
}

#[test]
fn without_a_threshold_all_are_registered_or_none() {
    for (registering, asked) in [(RegistrationPolicy::Always, 1), (RegistrationPolicy::Never, 0)] {
        let mut setup = Setup::with_policy(registering);
        let target = setup.buffer(64, 0);
        setup.read(0, target);
        assert_eq!((setup.stats().misses, setup.engine.path().registered().0), (asked, asked as usize));
        assert_eq!(setup.shared.stats().copied, 1 - asked);
    }
}

#[test]
fn a_buffer_is_registered_once_and_found_afterwards() {
    let mut setup = Setup::with_policy(RegistrationPolicy::Always);
    let mut target = setup.buffer(4096, 0);
    let began_ns = setup.network.now_ns();
    target = setup.read(0, target);
    let first_ns = setup.network.now_ns() - began_ns;
    for _ in 0..3 {
        target = setup.read(0, target);
    }
    let RegistrationStats { hits, misses, .. } = setup.stats();
    assert_eq!((hits, misses), (3, 1));
    assert!(first_ns > 0);
    // A longer buffer needs a registration of its own, even at the same address.
    drop(target);
    let longer = setup.buffer(64 * KB, 0);
    setup.read(0, longer);
    assert_eq!(setup.stats().misses, 2);
}

#[test]
fn what_has_not_been_asked_for_the_longest_is_evicted() {
    let config = VerbsPathConfig {
        registration: RegistrationPolicy::Always,
        registrations_max: 2,
        ..VerbsPathConfig::default()
    };
    let mut setup = Setup::new(&config, EngineConfig::default());
    let mut buffers: Vec<_> = (0..3).map(|_| Some(setup.buffer(4096, 0))).collect();
    let mut read = |setup: &mut Setup, index: usize| {
        let target = buffers[index].take().unwrap();
        buffers[index] = Some(setup.read(0, target));
    };
    for index in [0, 1, 0, 2, 0, 1] {
        read(&mut setup, index);
    }
    // Reading 2 evicts 1, and reading 1 evicts 2.
    let stats = setup.stats();
    assert_eq!((stats.hits, stats.misses, stats.evictions, stats.refused), (2, 4, 2, 0));
    assert_eq!(setup.engine.path().registered(), (2, 8192));
}

#[test]
fn bytes_are_bounded_as_well_and_what_is_longer_than_that_is_copied() {
    let config = VerbsPathConfig {
        registration: RegistrationPolicy::Always,
        registered_bytes_max: 64 * KB,
        ..VerbsPathConfig::default()
    };
    let mut setup = Setup::new(&config, EngineConfig::default());
    for (len, byte, registered, refused) in [(64 * KB, 1, 1, 0), (64 * KB + 64, 2, 0, 1), (4 * KB, 3, 1, 1)] {
        let source = setup.buffer(len, byte);
        setup.write(0, source);
        let mut seen = vec![0; len];
        setup.memory.read(0, &mut seen).unwrap();
        assert!(seen.iter().all(|seen| *seen == byte));
        assert_eq!((setup.engine.path().registered().0, setup.stats().refused), (registered, refused));
    }
}

#[test]
fn what_is_in_flight_is_never_evicted_and_others_are_copied_meanwhile() {
    let config = VerbsPathConfig {
        registration: RegistrationPolicy::Always,
        registrations_max: 1,
        ..VerbsPathConfig::default()
    };
    let mut setup = Setup::new(&config, EngineConfig::default());
    setup.memory.write(0, &[5; 8192]).unwrap();
    let (first, second) = (setup.buffer(4096, 0), setup.buffer(4096, 0));
    setup.submit(1, Op::Read { at: 0, target: first });
    setup.engine.turn(setup.network.now_ns());
    setup.submit(2, Op::Read { at: 4096, target: second });
    setup.engine.turn(setup.network.now_ns());
    let finished = setup.finish(2);
    assert!(finished.iter().all(|one| one.target.as_ref().is_some_and(|target| **target == [5; 4096])));
    let stats = setup.stats();
    assert_eq!((stats.misses, stats.evictions, setup.shared.stats().copied), (1, 0, 1), "{stats:?}");
    // Now it is idle, and can be evicted.
    let target = setup.buffer(64 * KB, 0);
    setup.read(0, target);
    assert_eq!(setup.stats().evictions, 1);
}

#[test]
fn adjacent_requests_of_registered_memory_become_one_operation() {
    let mut setup = Setup::with_policy(RegistrationPolicy::From(64 * KB));
    let sources: Vec<_> = (1..=3).map(|byte| setup.buffer(64 * KB, byte)).collect();
    for (index, source) in sources.into_iter().enumerate() {
        let at = (index * 64 * KB) as u64;
        setup.submit(index as u64, Op::Write { at, source: source.freeze().into() });
    }
    setup.finish(3);
    let stats = setup.shared.stats();
    assert_eq!((stats.write_ops, stats.merged, stats.copied), (1, 3, 0));
    let mut seen = vec![0; 3 * 64 * KB];
    setup.memory.read(0, &mut seen).unwrap();
    assert!(seen.chunks(64 * KB).zip(1..).all(|(chunk, byte)| chunk.iter().all(|seen| *seen == byte)));
}

#[test]
fn a_write_that_is_cut_is_registered_once() {
    let engine = EngineConfig { fragment_len: 64 * KB, ..EngineConfig::default() };
    let config = VerbsPathConfig { registration: RegistrationPolicy::From(64 * KB), ..VerbsPathConfig::default() };
    let mut setup = Setup::new(&config, engine);
    let source = setup.buffer(256 * KB, 9);
    setup.write(0, source);
    let stats = setup.stats();
    assert_eq!((stats.misses, setup.shared.stats().write_ops), (1, 4));
    let mut seen = vec![0; 256 * KB];
    setup.memory.read(0, &mut seen).unwrap();
    assert!(seen.iter().all(|seen| *seen == 9));
}

#[test]
fn what_the_profile_charges_crosses_where_the_paper_says() {
    let setup = Setup::with_policy(RegistrationPolicy::Never);
    let registration = Profile::built_in("cx3").unwrap().registration;
    // Clusters charge a core's own time; here the clock advances only as told.
    let clock = sinew_fabric::ManualClock::new();
    let register = |len: usize| -> Result<(), sinew_fabric::verbs::VerbsError> {
        setup.domain.register(setup.callers.alloc(len, len)?.place())?;
        clock.advance(registration.call_ns + (len as u64).div_ceil(4096) * registration.page_ns);
        Ok(())
    };
    let copy = |len: usize| clock.advance((len as f64 / registration.copy_bytes_per_ns) as u64);
    let crossing = CostCurve::measure(&clock, 1, register, copy).unwrap();
    // "In user space, threshold that MR registration gets better is 928KB in our measurement" (rdmabox IV-A).
    assert_eq!(crossing.policy(), RegistrationPolicy::PAPER);
}

/// A clock on which every look takes a microsecond.
struct Ticking(std::cell::Cell<u64>);

impl Clock for Ticking {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + 1000);
        self.0.get()
    }
}

#[test]
fn the_threshold_is_measured_at_start_where_time_passes_and_stays_where_it_stands_still() {
    let setup = Setup::with_policy(RegistrationPolicy::PAPER);
    let config = VerbsPathConfig { registration: RegistrationPolicy::From(64 * KB), ..VerbsPathConfig::default() };
    let standing = config.measured(&setup.domain, &ManualClock::new()).unwrap();
    assert_eq!(standing.registration, RegistrationPolicy::From(64 * KB));
    // Registering and copying take as long as each other at every length, so the shortest is registered.
    let ticking = config.measured(&setup.domain, &Ticking(std::cell::Cell::new(0))).unwrap();
    assert_eq!(ticking.registration, RegistrationPolicy::From(4 * KB));
    assert_eq!(ticking.queue_pairs, config.queue_pairs);
}
