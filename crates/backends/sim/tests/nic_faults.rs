//! Verbs on modelled NICs whose links lose, duplicate, delay and damage packets, and whose queue pairs come and go.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed, Opcode, Operation, ProtectionDomain, QpConfig, QpState,
    QueuePair, RemoteMemory, Request, Scatter, Source, Status, ThreadDomain, Transport,
};
use sinew_fabric::{PacketPort, PacketTx, Peer, SeededGenerator, TxData, TxPacket};
use sinew_mem::{Arena, MessageBuffer};
use sinew_sim::nic::Profile;
use sinew_sim::{
    Actor, ActorState, Cluster, Competitor, CoreShare, HostId, LinkFaults, Network, PortConfig, SimCq, SimDomain,
    SimExposed, SimQp, SimThread, Topology,
};

fn network(seed: u64, profiles: [&str; 2]) -> Network {
    let network = Network::new(Topology::star(2, 54.54, 10, 4096), seed).unwrap();
    for (host, profile) in profiles.iter().enumerate() {
        network.attach_nic(HostId(host), &Profile::built_in(profile).unwrap()).unwrap();
    }
    network
}

/// Faults of every kind.
fn faults(generator: &mut SeededGenerator) -> LinkFaults {
    let reordering_ns = [50, 300, 2_000, 200_000][generator.below(4) as usize];
    LinkFaults { loss: 0.01, corruption: 0.01, duplication: 0.03, reordering: 0.05, reordering_ns }
}

/// Test bytes for a message or a place in memory.
fn pattern(tag: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (tag.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(at * 0x0101_0301) >> 13) as u8)
        .collect()
}

fn scatter(arena: &Arena, len: usize) -> Scatter {
    let mut targets = Scatter::new();
    targets.push(buffer(arena, len));
    targets
}

fn buffer(arena: &Arena, len: usize) -> MessageBuffer {
    arena.alloc(len, len.max(1)).unwrap()
}

fn gather(arena: &Arena, bytes: &[u8]) -> Source<'static> {
    let mut buffer = buffer(arena, bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.freeze().into()
}

fn bytes_of(completion: &Completion) -> Vec<u8> {
    completion.buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect()
}

const LEN_MAX: usize = 13_000;
const WORDS: usize = 4096;
/// Memory that others read and nobody changes.
const STILL: usize = WORDS;
const STILL_LEN: usize = 1 << 16;
/// Memory that WRITEs go to, each to a place of its own.
const WRITTEN: usize = STILL + STILL_LEN;
const PLACES: usize = 256;
const MEMORY: usize = WRITTEN + PLACES * LEN_MAX;
const RECEIVE_DEPTH: usize = 32;

/// The expected contents of a message when it arrives.
struct Arrives {
    bytes: Vec<u8>,
    immediate: Option<u32>,
    /// The place of a WRITE.
    written: Option<usize>,
    /// A place that a WRITE before the message wrote, and its bytes.
    before: Option<(usize, Vec<u8>)>,
}

/// The expected outcome of a request.
struct Ends {
    id: u64,
    opcode: Opcode,
    is_told: bool,
    brings: Option<Vec<u8>>,
}

struct End {
    arena: Arena,
    exposed: SimExposed,
    cq: SimCq,
    qp: SimQp,
    /// Messages that must arrive at the other end, in order.
    sent: VecDeque<Arrives>,
    ends: VecDeque<Ends>,
    places: usize,
    added: u64,
    swapped: u64,
    ids: u64,
    receives: u64,
    posted: u64,
    last_write: Option<(usize, Vec<u8>)>,
}

impl End {
    fn new(network: &Network, host: usize, config: &QpConfig) -> Self {
        let device = network.verbs(HostId(host), &format!("end {host}")).unwrap();
        let domain = device.protection_domain().unwrap();
        let arena = domain.arena(16 << 20).unwrap();
        let exposed = domain.expose(MEMORY, Access::ALL).unwrap();
        exposed.write(STILL, &pattern(1, STILL_LEN)).unwrap();
        let thread = domain.thread().unwrap();
        let cq = thread.completion_queue(1024).unwrap();
        let qp = thread.queue_pair(config, &cq, &cq).unwrap();
        Self {
            arena,
            exposed,
            cq,
            qp,
            sent: VecDeque::new(),
            ends: VecDeque::new(),
            places: 0,
            added: 0,
            swapped: 0,
            ids: 0,
            receives: 0,
            posted: 0,
            last_write: None,
        }
    }

    fn post_receives(&mut self, upto: u64) {
        while self.posted < upto && self.posted - self.receives < RECEIVE_DEPTH as u64 {
            self.qp.post_receive(1 << 32 | self.posted, scatter(&self.arena, LEN_MAX)).unwrap();
            self.posted += 1;
        }
    }

    /// Posts a random request; returns whether the other end needs a receive for it.
    fn post(&mut self, other: &Self, generator: &mut SeededGenerator) -> bool {
        let remote = other.exposed.remote();
        let id = self.ids;
        self.ids += 1;
        let len = match generator.below(4) {
            0 => generator.below(64) as usize,
            1 => generator.below(300) as usize,
            2 => 4096 * (1 + generator.below(3) as usize),
            _ => generator.below(LEN_MAX as u64) as usize,
        };
        let source = |arena: &Arena, bytes: &[u8], inline: &'_ mut Vec<u8>| {
            inline.clear();
            inline.extend_from_slice(bytes);
            if bytes.len() <= 64 { None } else { Some(gather(arena, bytes)) }
        };
        let mut inline = Vec::new();
        let immediate = generator.chance(0.3).then_some(id as u32);
        let mut takes_receive = false;
        let mut brings = None;
        let operation = match generator.below(8) {
            0..3 => {
                let bytes = pattern(id + 7, len);
                let made = source(&self.arena, &bytes, &mut inline);
                self.sent.push_back(Arrives { bytes, immediate, written: None, before: self.last_write.clone() });
                takes_receive = true;
                Operation::Send { source: made.unwrap_or(Source::Inline(&inline)), immediate, to: None }
            }
            3..5 if self.places < PLACES => {
                let at = WRITTEN + self.places * LEN_MAX;
                self.places += 1;
                let bytes = pattern(id + 7, len);
                let made = source(&self.arena, &bytes, &mut inline);
                self.last_write = Some((at, bytes.clone()));
                if immediate.is_some() {
                    self.sent.push_back(Arrives { bytes, immediate, written: Some(at), before: None });
                    takes_receive = true;
                }
                let remote = remote.at(at as u64).unwrap();
                Operation::Write { source: made.unwrap_or(Source::Inline(&inline)), remote, immediate }
            }
            5 => {
                let (at, bytes) = match self.last_write.clone().filter(|_| generator.chance(0.5)) {
                    Some(written) => written,
                    None => {
                        let at = generator.below((STILL_LEN - LEN_MAX) as u64) as usize;
                        (STILL + at, pattern(1, STILL_LEN)[at..at + len].to_vec())
                    }
                };
                let target = scatter(&self.arena, bytes.len());
                brings = Some(bytes);
                Operation::Read { target, remote: remote.at(at as u64).unwrap() }
            }
            6 => {
                brings = Some(self.swapped.to_ne_bytes().to_vec());
                let (expected, desired) = (self.swapped, self.swapped + 3);
                self.swapped = desired;
                let target = buffer(&self.arena, 8);
                Operation::CompareSwap { target, remote: remote.at(8).unwrap(), expected, desired }
            }
            _ => {
                brings = Some(self.added.to_ne_bytes().to_vec());
                self.added += id;
                Operation::FetchAdd { target: buffer(&self.arena, 8), remote, add: id }
            }
        };
        let mut request = Request::new(id, operation);
        request.signaled = generator.chance(0.6);
        request.fence = generator.chance(0.1);
        let is_told = request.signaled || brings.is_some();
        self.ends.push_back(Ends { id, opcode: request.operation.opcode(), is_told, brings });
        self.qp.push(request).unwrap();
        takes_receive
    }

    fn take(&mut self, other: &mut Self, seed: u64) {
        let mut completions = Vec::new();
        self.cq.poll(&mut completions, 7);
        for completion in completions {
            assert_eq!(completion.status, Status::Success, "seed {seed}: {completion:?}");
            if matches!(completion.opcode, Opcode::Receive | Opcode::ReceiveWrite) {
                assert_eq!(completion.id, 1 << 32 | self.receives, "seed {seed}");
                self.receives += 1;
                let sent = other.sent.pop_front().expect("nothing comes that was not sent");
                assert_eq!(completion.immediate, sent.immediate, "seed {seed}");
                assert_eq!(completion.len, sent.bytes.len(), "seed {seed}");
                let arrived = match sent.written {
                    Some(at) => self.memory(at, sent.bytes.len()),
                    None => bytes_of(&completion),
                };
                assert!(arrived == sent.bytes, "seed {seed}: other bytes in {completion:?}");
                if let Some((at, bytes)) = sent.before {
                    assert!(self.memory(at, bytes.len()) == bytes, "seed {seed}: a message before a WRITE's bytes");
                }
                continue;
            }
            let ends = loop {
                let ends = self.ends.pop_front().expect("nothing is over that was not posted");
                if ends.is_told {
                    break ends;
                }
            };
            assert_eq!((completion.id, completion.opcode), (ends.id, ends.opcode), "seed {seed}");
            if let Some(bytes) = ends.brings {
                assert!(bytes_of(&completion) == bytes, "seed {seed}: {completion:?} brings something else");
            }
        }
    }

    fn memory(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.exposed.read(at, &mut bytes).unwrap();
        bytes
    }
}

fn over_rc(seed: u64, profiles: [&str; 2], is_faulty: bool) -> u64 {
    let mut generator = SeededGenerator::new(seed);
    let network = network(seed, profiles);
    if is_faulty {
        network.set_all_faults(faults(&mut generator));
    }
    let config = QpConfig { receive_depth: RECEIVE_DEPTH, ..QpConfig::new(Transport::Rc) };
    let mut ends = [0, 1].map(|host| End::new(&network, host, &config));
    let addresses = [0, 1].map(|end| ends[end].qp.address());
    ends[0].qp.connect(Some(&addresses[1])).unwrap();
    ends[1].qp.connect(Some(&addresses[0])).unwrap();
    let mut needs = [0, 0];
    let rounds = 80;
    for round in 0.. {
        for from in 0..2 {
            let [a, b] = &mut ends;
            let (end, other) = if from == 0 { (a, b) } else { (b, a) };
            if round < rounds {
                for _ in 0..generator.below(6) {
                    // Places are held until a completion accounts for them.
                    if end.ends.len() < 60 {
                        needs[1 - from] += u64::from(end.post(other, &mut generator));
                        if generator.chance(0.4) {
                            end.qp.doorbell();
                        }
                    }
                }
                end.qp.doorbell();
            }
            // Receives are sometimes posted late.
            if generator.chance(0.7) {
                other.post_receives(needs[1 - from]);
            }
            end.take(other, seed);
        }
        let ahead_ns = if round < rounds { generator.below(20_000) } else { 20_000_000 };
        let untold = ends.iter().any(|end| end.ends.iter().any(|ends| ends.is_told) || !end.sent.is_empty());
        if round >= rounds && !untold {
            break;
        }
        assert!(round < rounds + 1_000, "seed {seed}: it never ends, at {} ns", network.now_ns());
        network.run_until(network.now_ns() + ahead_ns);
    }
    network.run_until(network.now_ns() + 1_000_000_000);
    for end in 0..2 {
        let (this, other) = (&ends[end], &ends[1 - end]);
        assert_eq!(this.qp.state(), QpState::ReadyToSend, "seed {seed}");
        assert_eq!(other.exposed.load(0).unwrap(), this.added, "seed {seed}");
        assert_eq!(other.exposed.load(8).unwrap(), this.swapped, "seed {seed}");
    }
    assert_eq!(network.in_flight(), 0, "seed {seed}");
    network.trace_hash()
}

#[test]
fn over_rc_everything_arrives_once_and_in_order() {
    for seed in 0..60 {
        over_rc(seed, ["cx3", "cx3"], seed % 4 != 0);
    }
    assert_eq!(over_rc(3, ["cx3", "cx3"], true), over_rc(3, ["cx3", "cx3"], true));
}

#[test]
fn packets_are_as_long_as_both_ends_can_have_them() {
    for seed in 0..8 {
        over_rc(seed, ["cx3", "cx4"], seed % 2 != 0);
        over_rc(seed, ["cx5", "cx3"], seed % 2 != 0);
    }
}

/// A message that begins with its number and its length.
fn message(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = pattern(u64::from(number), len.max(8));
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..8].copy_from_slice(&(len.max(8) as u32).to_le_bytes());
    bytes
}

#[test]
fn over_uc_and_ud_what_arrives_is_whole() {
    for seed in 0..40 {
        for transport in [Transport::Uc, Transport::Ud] {
            unreliable(seed, transport);
        }
    }
}

fn unreliable(seed: u64, transport: Transport) {
    let mut generator = SeededGenerator::new(seed);
    let network = network(seed, ["cx3", "cx3"]);
    network.set_all_faults(LinkFaults { loss: 0.05, duplication: 0.05, ..faults(&mut generator) });
    let config = QpConfig::new(transport);
    let mut ends = [0, 1].map(|host| End::new(&network, host, &config));
    let addresses = [0, 1].map(|end| ends[end].qp.address());
    let is_datagram = transport == Transport::Ud;
    for end in 0..2 {
        ends[end].qp.connect((!is_datagram).then_some(&addresses[1 - end])).unwrap();
    }
    let device = network.verbs(HostId(0), "for a destination").unwrap();
    let thread = device.protection_domain().unwrap().thread().unwrap();
    let to = is_datagram.then(|| thread.destination(&addresses[1]).unwrap());
    let [from, at] = &mut ends;
    let mut arrived = 0;
    let mut places = 0;
    for number in 0..300u32 {
        if number % 3 != 0 {
            let upto = at.receives + 1 + generator.below(16);
            at.post_receives(upto.max(at.posted));
        }
        let len_max = if is_datagram { 4096 } else { LEN_MAX as u64 };
        let bytes = message(number, generator.below(len_max) as usize);
        let source = gather(&from.arena, &bytes);
        let is_write = !is_datagram && places < PLACES && generator.chance(0.3);
        let operation = if is_write {
            let remote = at.exposed.remote().at((WRITTEN + places * LEN_MAX) as u64).unwrap();
            // The place and the number, in one word.
            let immediate = Some((places as u32) << 16 | number);
            places += 1;
            Operation::Write { source, remote, immediate }
        } else {
            Operation::Send { source, immediate: Some(number), to }
        };
        let signaled = number % 8 == 0;
        let mut request = Request::new(u64::from(number), operation);
        request.signaled = signaled;
        from.qp.post(request).unwrap();
        if generator.chance(0.3) {
            network.run_until(network.now_ns() + generator.below(15_000));
        }
        let mut completions = Vec::new();
        from.cq.poll(&mut completions, 100);
        at.cq.poll(&mut completions, 100);
        for completion in completions {
            assert_eq!(completion.status, Status::Success, "seed {seed}");
            match completion.opcode {
                Opcode::Receive => {
                    let bytes = bytes_of(&completion);
                    let number = completion.immediate.unwrap();
                    assert_eq!(completion.len, bytes.len());
                    let len = u32::from_le_bytes(*bytes[4..].first_chunk().unwrap());
                    assert!(bytes == message(number, len as usize), "seed {seed}: {transport:?} message {number}");
                }
                Opcode::ReceiveWrite => {
                    let (place, number) = (completion.immediate.unwrap() >> 16, completion.immediate.unwrap() & 0xFFFF);
                    let bytes = at.memory(WRITTEN + place as usize * LEN_MAX, completion.len);
                    assert!(bytes == message(number, completion.len), "seed {seed}: WRITE {number}");
                }
                _ => continue,
            }
            at.receives += 1;
            arrived += 1;
        }
    }
    assert!(arrived > 50, "seed {seed}: {arrived}");
}

/// A queue pair of a host, and the turn in which it was made or reset.
struct Place {
    qp: SimQp,
    tag: u64,
}

struct Host {
    domain: SimDomain,
    thread: SimThread,
    arena: Arena,
    exposed: SimExposed,
    cq: SimCq,
}

/// Ends queue pairs with work of all kinds in flight, and makes others in their places, which must not receive anything
/// that is not theirs.
fn come_and_go(seed: u64) {
    let mut generator = SeededGenerator::new(seed);
    let network = network(seed, ["cx3", "cx3"]);
    if seed % 2 == 1 {
        network.set_all_faults(faults(&mut generator));
    }
    let mut hosts = [0, 1].map(|host| {
        let device = network.verbs(HostId(host), &format!("host {host}")).unwrap();
        let domain = device.protection_domain().unwrap();
        let arena = domain.arena(16 << 20).unwrap();
        let exposed = domain.expose(1 << 16, Access::ALL).unwrap();
        let thread = domain.thread().unwrap();
        let cq = thread.completion_queue(2048).unwrap();
        Host { domain, thread, arena, exposed, cq }
    });
    let mut pairs: [Vec<Place>; 2] = [Vec::new(), Vec::new()];
    let mut held: Option<SimExposed> = None;
    let config = |transport| QpConfig { send_depth: 32, receive_depth: 16, ..QpConfig::new(transport) };
    for turn in 0..150u64 {
        let transport = Transport::ALL[generator.below(2) as usize];
        if pairs[0].len() < 3 {
            let made = [0, 1].map(|host| {
                let Host { thread, cq, .. } = &hosts[host];
                Place { qp: thread.queue_pair(&config(transport), cq, cq).unwrap(), tag: turn }
            });
            for (host, place) in made.into_iter().enumerate() {
                pairs[host].push(place);
            }
        } else if generator.chance(0.6) {
            let at = generator.below(3) as usize;
            let host = generator.below(2) as usize;
            match generator.below(3) {
                // Both begin anew, one after the other.
                0 => [host, 1 - host].into_iter().for_each(|host| {
                    let Place { qp, tag } = &mut pairs[host][at];
                    qp.modify(QpState::Reset, None).unwrap();
                    *tag = turn;
                }),
                1 => pairs[host][at].qp.modify(QpState::Error, None).unwrap(),
                _ => {
                    let old = [0, 1].map(|host| pairs[host].remove(at));
                    drop(old);
                }
            }
            if held.take().is_none() {
                held = Some(hosts[1].domain.expose(64, Access::ALL).unwrap());
            }
        }
        for at in 0..pairs[0].len() {
            let both = [0, 1].map(|host| pairs[host][at].qp.state());
            if both == [QpState::Reset; 2] {
                let addresses = [0, 1].map(|host| pairs[host][at].qp.address());
                for host in 0..2 {
                    let Host { arena, .. } = &hosts[host];
                    let Place { qp, .. } = &mut pairs[host][at];
                    qp.connect(Some(&addresses[1 - host])).unwrap();
                    while qp.post_receive(0, scatter(arena, LEN_MAX)).is_ok() {}
                }
            }
            for host in 0..2 {
                let Host { arena, .. } = &hosts[host];
                let remote = hosts[1 - host].exposed.remote();
                let Place { qp, tag } = &mut pairs[host][at];
                if qp.state() == QpState::ReadyToSend {
                    while qp.post_receive(0, scatter(arena, LEN_MAX)).is_ok() {}
                }
                for _ in 0..generator.below(4) {
                    let len = 8 + generator.below(9000) as usize;
                    let is_rc = qp.transport() == Transport::Rc;
                    let operation = match generator.below(4) {
                        1 if is_rc => Operation::Read { target: scatter(arena, len), remote },
                        2 if is_rc => {
                            let remote = match &held {
                                Some(memory) if host == 0 => memory.remote(),
                                _ => remote,
                            };
                            Operation::FetchAdd { target: buffer(arena, 8), remote, add: 1 }
                        }
                        _ => {
                            let bytes = [tag.to_le_bytes().to_vec(), pattern(*tag, len)].concat();
                            Operation::Send { source: gather(arena, &bytes), immediate: Some(*tag as u32), to: None }
                        }
                    };
                    let _ = qp.push(Request::new(*tag, operation));
                    if generator.chance(0.5) {
                        qp.doorbell();
                    }
                }
                if generator.chance(0.8) {
                    qp.doorbell();
                }
            }
        }
        let ahead_ns = [300, 3_000, 30_000][generator.below(3) as usize];
        network.run_until(network.now_ns() + generator.below(ahead_ns));
        for host in 0..2 {
            let mut completions = Vec::new();
            hosts[host].cq.poll(&mut completions, 1000);
            for completion in completions {
                let place = pairs[host].iter().find(|place| place.qp.number() == completion.qp);
                let place = place.expect("of a queue pair that is there");
                if completion.opcode == Opcode::Receive && completion.status.is_success() {
                    let bytes = bytes_of(&completion);
                    let tag = u64::from_le_bytes(*bytes.first_chunk().unwrap());
                    assert!(tag <= place.tag, "seed {seed}: from the future");
                    assert_eq!(completion.immediate, Some(tag as u32), "seed {seed}");
                    assert!(bytes[8..] == pattern(tag, bytes.len() - 8), "seed {seed}: other bytes");
                }
            }
        }
    }
    pairs.iter_mut().for_each(Vec::clear);
    network.run_until(network.now_ns() + 1_000_000_000);
    assert_eq!(network.in_flight(), 0, "seed {seed}");
    for Host { cq, .. } in &mut hosts {
        assert_eq!(cq.poll(&mut Vec::new(), 1), 0, "seed {seed}");
    }
}

#[test]
fn queue_pairs_come_and_go() {
    (0..60).for_each(come_and_go);
}

/// Two ends connected over RC.
fn connected(network: &Network, config: &QpConfig) -> [End; 2] {
    let mut ends = [0, 1].map(|host| End::new(network, host, config));
    connect(&mut ends);
    ends
}

fn connect(ends: &mut [End; 2]) {
    let addresses = [0, 1].map(|end| ends[end].qp.address());
    (0..2).for_each(|end| ends[end].qp.connect(Some(&addresses[1 - end])).unwrap());
}

fn statuses(end: &mut End) -> Vec<(u64, Status)> {
    let mut completions = Vec::new();
    end.cq.poll(&mut completions, 100);
    completions.iter().map(|completion| (completion.id, completion.status)).collect()
}

fn send(bytes: &[u8]) -> Operation<'_> {
    Operation::Send { source: Source::Inline(bytes), immediate: None, to: None }
}

#[test]
fn a_read_whose_answer_is_lost_is_asked_for_again_before_a_failure_is_told() {
    let network = network(1, ["cx3", "cx3"]);
    let [mut a, b] = connected(&network, &QpConfig::new(Transport::Rc));
    let remote = b.exposed.remote();
    network.set_cut(HostId(1), HostId(0), true);
    a.qp.post(Request::new(1, Operation::Read { target: scatter(&a.arena, 100), remote })).unwrap();
    network.run_until(50_000);
    network.set_cut(HostId(1), HostId(0), false);
    let forbidden = RemoteMemory { rkey: remote.rkey ^ 1, ..remote };
    let write = Operation::Write { source: Source::Inline(&[1; 8]), remote: forbidden, immediate: None };
    a.qp.post(Request::new(2, write)).unwrap();
    network.run_until(1_000_000_000);
    assert_eq!(statuses(&mut a), [(1, Status::Success), (2, Status::RemoteAccess)]);
}

#[test]
fn an_atomic_whose_memory_goes_meanwhile_is_refused_at_once() {
    let mut refused = 0;
    for delay_ns in (0..3_000).step_by(20) {
        let network = network(1, ["cx3", "cx3"]);
        let [mut a, mut b] = connected(&network, &QpConfig::new(Transport::Rc));
        b.post_receives(8);
        a.qp.push(Request::new(
            1,
            Operation::FetchAdd { target: buffer(&a.arena, 8), remote: b.exposed.remote(), add: 1 },
        ))
        .unwrap();
        (2..6).for_each(|id| a.qp.push(Request::new(id, send(b"behind it"))).unwrap());
        a.qp.doorbell();
        network.run_until(delay_ns);
        let End { exposed, qp: _qp, cq: _cq, .. } = b;
        exposed.deregister();
        network.run_until(1_000_000);
        let all = statuses(&mut a);
        assert!(
            all.len() == 5 && all.iter().all(|(_, status)| *status != Status::RetryExceeded),
            "{delay_ns}: {all:?}"
        );
        refused += u32::from(all[0].1 == Status::RemoteAccess);
    }
    assert!(refused > 0);
}

#[test]
fn what_came_before_a_message_that_is_too_long_is_there() {
    for len in [0, 10, 60] {
        let network = network(1, ["cx3", "cx3"]);
        let [mut a, mut b] = connected(&network, &QpConfig::new(Transport::Rc));
        for id in 0..4 {
            b.qp.post_receive(id, scatter(&b.arena, len)).unwrap();
        }
        a.qp.push(Request::new(0, send(&[1; 64][..len]))).unwrap();
        a.qp.push(Request::new(1, send(&[1; 64]))).unwrap();
        a.qp.doorbell();
        network.run_until(1_000_000);
        let [success, too_long, flushed] = [Status::Success, Status::LocalLength, Status::Flushed];
        assert_eq!(statuses(&mut b), [(0, success), (1, too_long), (2, flushed), (3, flushed)]);
        assert_eq!(statuses(&mut a), [(0, success), (1, Status::RemoteInvalidRequest)]);
    }
}

#[test]
fn places_of_what_nobody_is_told_of_are_free_after_a_reset() {
    let network = network(1, ["cx3", "cx3"]);
    let mut ends = connected(&network, &QpConfig { send_depth: 4, ..QpConfig::new(Transport::Rc) });
    for round in 1..4 {
        ends[1].post_receives(4 * round);
        for id in 0..4 {
            ends[0].qp.post(Request::new(id, send(b"unsignaled")).unsignaled()).unwrap();
        }
        network.run_until(network.now_ns() + 1_000_000);
        assert_eq!(statuses(&mut ends[0]), []);
        assert_eq!(statuses(&mut ends[1]).len(), 4);
        ends[1].receives += 4;
        ends.iter_mut().for_each(|end| end.qp.modify(QpState::Reset, None).unwrap());
        connect(&mut ends);
    }
}

/// Runs a closure in its first turn, then polls and finds nothing.
struct Once<F>(Option<F>, Rc<Cell<u32>>);

impl<F: FnOnce()> Actor for Once<F> {
    fn turn(&mut self) -> ActorState {
        self.1.set(self.1.get() + 1);
        self.0.take().into_iter().for_each(|once| once());
        ActorState::Idle
    }
}

#[test]
fn who_breaks_a_queue_pair_in_a_turn_has_another_for_what_was_flushed() {
    let network = network(1, ["cx3", "cx3"]);
    let device = network.verbs(HostId(0), "device").unwrap();
    let domain = device.protection_domain().unwrap();
    let thread = domain.thread().unwrap();
    let cq = thread.completion_queue(1024).unwrap();
    let mut qp = thread.queue_pair(&QpConfig::new(Transport::Ud), &cq, &cq).unwrap();
    qp.connect(None).unwrap();
    qp.post_receive(0, Scatter::new()).unwrap();
    let turns = Rc::new(Cell::new(0));
    let breaks = move || qp.modify(QpState::Error, None).map(|()| std::mem::forget(qp)).unwrap();
    let mut cluster = Cluster::new(&network);
    cluster.add("actor", [device.place()], Box::new(Once(Some(breaks), Rc::clone(&turns))));
    cluster.run_until(1_000_000);
    assert!(turns.get() > 1);
}

#[test]
fn who_looks_beside_actors_takes_no_turn_of_theirs() {
    let network = network(1, ["cx3", "cx3"]);
    let device = network.verbs(HostId(0), "device").unwrap();
    let mut cq = device.protection_domain().unwrap().thread().unwrap().completion_queue(1).unwrap();
    let turns = Rc::new(Cell::new(0));
    let mut cluster = Cluster::new(&network);
    cluster.add("actor", [], Box::new(Once(Some(|| ()), Rc::clone(&turns))));
    cq.wait(Some(0)).unwrap();
    cluster.run_until(1_000);
    assert_eq!(turns.get(), 1);
}

/// The header of a NIC's packet, with random and plausible contents.
fn header(generator: &mut SeededGenerator, numbers: &[u32], keys: &[u32]) -> Vec<u8> {
    let mut any = |values: &[u64]| match generator.below(4) {
        0 => generator.below(u64::MAX),
        1 => generator.below(4),
        _ => values[generator.below(values.len() as u64) as usize],
    };
    let mut bytes = vec![any(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]) as u8, any(&[0, 1, 2, 3, 7, 11]) as u8, 0, 0];
    let numbers: Vec<u64> = numbers.iter().map(|number| u64::from(*number)).collect();
    let keys: Vec<u64> = keys.iter().map(|key| u64::from(*key)).collect();
    for word in [any(&[0]), any(&numbers), any(&[0]), any(&numbers), any(&[0, 1, 5]), any(&keys)] {
        bytes.extend((word as u32).to_le_bytes());
    }
    bytes.extend([0; 4]);
    for long in [any(&[0, 2 << 20, 1]), any(&[0, 8, 4096, u64::MAX]), any(&[0])] {
        bytes.extend(long.to_le_bytes());
    }
    bytes
}

#[test]
fn packets_that_others_make_up_change_nothing() {
    for seed in 0..20 {
        let mut generator = SeededGenerator::new(seed);
        let network = Network::new(Topology::star(3, 54.54, 10, 4096), seed).unwrap();
        let profile = Profile::built_in("cx3").unwrap();
        (0..2).for_each(|host| network.attach_nic(HostId(host), &profile).unwrap());
        let mut port = network.open(HostId(2), "port", PortConfig::default()).unwrap();
        let Peer([_, mark, _]) = port.peer();
        let [mut a, mut b] = connected(&network, &QpConfig::new(Transport::Rc));
        let devices = [0, 1].map(|host| network.verbs(HostId(host), &format!("datagrams {host}")).unwrap());
        let domains = devices.map(|device| device.protection_domain().unwrap());
        let arenas = [0, 1].map(|at: usize| domains[at].arena(16 << 20).unwrap());
        let threads = [0, 1].map(|at: usize| domains[at].thread().unwrap());
        let mut cqs = [0, 1].map(|at: usize| threads[at].completion_queue(1024).unwrap());
        let config = QpConfig::new(Transport::Ud);
        let mut datagrams = [0, 1].map(|at: usize| threads[at].queue_pair(&config, &cqs[at], &cqs[at]).unwrap());
        datagrams.iter_mut().for_each(|qp| qp.connect(None).unwrap());
        let to = threads[0].destination(&datagrams[1].address()).unwrap();
        let numbers = [&a.qp, &b.qp, &datagrams[0], &datagrams[1]].map(|qp| qp.number().0);
        let keys = [b.exposed.remote().rkey, a.exposed.remote().rkey, config.qkey];
        let (mut sent, mut heard) = (0, 0);
        for _ in 0..300 {
            for _ in 0..generator.below(6) {
                let to = Peer([generator.below(2), mark, 0]);
                let mut head = header(&mut generator, &numbers, &keys);
                head.resize(head.len() + generator.below(100) as usize, 7);
                head.truncate(if generator.chance(0.1) { generator.below(60) as usize + 1 } else { head.len() });
                port.split().1.push(TxPacket { to, head: &head, data: TxData::None });
            }
            port.split().1.submit();
            b.post_receives(u64::MAX);
            while datagrams[1].post_receive(0, scatter(&arenas[1], 200)).is_ok() {}
            a.qp.post(Request::new(sent, send(&sent.to_le_bytes()))).unwrap();
            let bytes = pattern(sent, 150);
            let source = gather(&arenas[0], &bytes);
            let operation = Operation::Send { source, immediate: Some(sent as u32), to: Some(to) };
            datagrams[0].post(Request::new(sent, operation)).unwrap();
            sent += 1;
            network.run_until(network.now_ns() + generator.below(3_000));
            let mut completions = Vec::new();
            b.cq.poll(&mut completions, 100);
            for completion in completions.drain(..) {
                assert_eq!(completion.id, 1 << 32 | heard, "seed {seed}");
                assert_eq!(bytes_of(&completion), heard.to_le_bytes(), "seed {seed}");
                heard += 1;
                b.receives += 1;
            }
            cqs[1].poll(&mut completions, 1000);
            for completion in &completions {
                let bytes = bytes_of(completion);
                // Anyone who knows the key may send datagrams, but only whole ones.
                let is_ours = completion.immediate.is_some_and(|number| bytes == pattern(u64::from(number), 150));
                assert!(is_ours || bytes.iter().all(|byte| *byte == 7), "seed {seed}: {bytes:?}");
            }
            a.cq.poll(&mut completions, 1000);
            cqs[0].poll(&mut completions, 1000);
            assert!(completions.iter().all(|completion| completion.status.is_success()), "seed {seed}");
        }
        assert!(datagrams.iter().all(|qp| qp.state() == QpState::ReadyToSend), "seed {seed}");
        assert!(heard > 100, "seed {seed}: {heard}");
    }
}

#[test]
fn a_core_that_is_shared_in_slices_of_nothing_is_not_shared() {
    let network = network(1, ["cx3", "cx3"]);
    let turns = Rc::new(Cell::new(0));
    let mut cluster = Cluster::new(&network);
    let actor = cluster.add("actor", [], Box::new(Once(Some(|| ()), Rc::clone(&turns))));
    cluster.share_core(actor, CoreShare { interrupt_ns: 10, competitor: Some(Competitor::with_slice_ns(0)) });
    cluster.waker(actor).wake();
    cluster.run_until(1_000);
    assert!(turns.get() > 0);
}
