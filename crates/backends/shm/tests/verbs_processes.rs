//! Tests of verbs between processes, some of which are killed or stopped. The test binary starts itself again: a child
//! runs the test `child`, whose role is in the environment, and the two exchange addresses as lines of hexadecimal
//! digits.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed, Opcode, Operation, ProtectionDomain, QpAddress, QpConfig,
    QpState, QueuePair, RemoteMemory, Request, Source, Status, ThreadDomain, Transport, VerbsError,
};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_mem::Arena;
use sinew_shm::verbs::{ShmCompletionQueue, ShmDevice, ShmDomain, ShmQueuePair, ShmThread};

const PATIENCE: Duration = Duration::from_secs(60);
const LINE_PREFIX: &str = "told: ";
/// Bytes of the region that children write in long pieces.
const LONG: usize = 64 << 20;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn eventually<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(got) = get() {
            return got;
        }
        assert!(since.elapsed() < PATIENCE, "{what}: never");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A queue pair and everything that it needs.
struct End {
    device: ShmDevice,
    domain: ShmDomain,
    arena: Arena,
    qp: ShmQueuePair,
    queue: ShmCompletionQueue,
    thread: ShmThread,
}

impl End {
    fn new(transport: Transport) -> Self {
        Self::on(&ShmDevice::open(&"shm://".parse().unwrap()).unwrap(), transport)
    }

    fn on(device: &ShmDevice, transport: Transport) -> Self {
        let domain = device.protection_domain().unwrap();
        let arena = domain.arena(256 << 20).unwrap();
        let thread = domain.thread().unwrap();
        let queue = thread.completion_queue(1024).unwrap();
        let config = QpConfig { send_depth: 256, receive_depth: 256, ..QpConfig::new(transport) };
        let qp = thread.queue_pair(&config, &queue, &queue).unwrap();
        Self { device: device.clone(), domain, arena, qp, queue, thread }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut completions = Vec::new();
        self.queue.poll(&mut completions, 1);
        completions.pop()
    }

    fn next(&mut self) -> Completion {
        eventually("a completion", || self.poll())
    }

    fn post_receive(&mut self, id: u64) {
        let buffer = self.arena.alloc(64, 64).unwrap();
        self.qp.post_buffer(id, buffer).unwrap();
    }

    fn write(&mut self, id: u64, bytes: &[u8], remote: RemoteMemory) {
        let operation = Operation::Write { source: Source::Inline(bytes), remote, immediate: None };
        self.qp.post(Request::new(id, operation)).unwrap();
    }

    fn send(&mut self, id: u64, bytes: &[u8]) {
        let operation = Operation::Send { source: Source::Inline(bytes), immediate: None, to: None };
        self.qp.post(Request::new(id, operation)).unwrap();
    }

    fn connect(&mut self, line: &str) {
        let address = QpAddress::from_bytes(&unhex(line)).unwrap();
        self.qp.connect(Some(&address)).unwrap();
    }

    fn address(&self) -> String {
        hex(&self.qp.address().to_bytes())
    }
}

/// A child process, which does not outlive its test.
struct Peer {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stdin: ChildStdin,
}

impl Peer {
    fn start(role: &str) -> Self {
        Self::named(role, "shm://")
    }

    fn named(role: &str, device: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("SINEW_VERBS_ROLE", role)
            .env("SINEW_VERBS_DEVICE", device)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stdin = child.stdin.take().unwrap();
        Self { child, stdout, stdin }
    }

    fn read_line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the child has ended");
            // The test harness also prints, without an end of line before the test's first line.
            if let Some(at) = line.find(LINE_PREFIX) {
                return line[at + LINE_PREFIX.len()..].trim().to_owned();
            }
        }
    }

    fn write_line(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn remote(&mut self) -> RemoteMemory {
        RemoteMemory::from_bytes(&unhex(&self.read_line()).try_into().unwrap())
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        eventually("the stop", || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('T').then_some(())
        });
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The roles of the children.
mod roles {
    use super::*;

    fn write_line(line: &str) {
        println!("{LINE_PREFIX}{line}");
    }

    fn read_line() -> String {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn connect_pair(transport: Transport) -> End {
        let device = std::env::var("SINEW_VERBS_DEVICE").unwrap();
        let mut end = End::on(&ShmDevice::open(&device.parse().unwrap()).unwrap(), transport);
        write_line(&end.address());
        end.connect(&read_line());
        end
    }

    fn target() -> RemoteMemory {
        RemoteMemory::from_bytes(&unhex(&read_line()).try_into().unwrap())
    }

    /// Exposes memory and answers messages, asleep in between, until its peer is gone.
    pub fn serve(transport: Transport) {
        let mut end = connect_pair(transport);
        let exposed = end.domain.expose(4096, Access::ALL).unwrap();
        for id in 0..64 {
            end.post_receive(id);
        }
        write_line(&hex(&exposed.remote().to_bytes()));
        while end.qp.state() == QpState::ReadyToSend {
            end.queue.wait(None).unwrap();
            while let Some(completion) = end.poll() {
                if completion.opcode == Opcode::Receive && completion.status.is_success() {
                    let bytes = completion.buffers[0].to_vec();
                    end.send(completion.id, &bytes);
                    end.post_receive(completion.id);
                }
            }
        }
    }

    /// Writes its peer's memory in pieces so long that it is inside the region nearly all the time; then tells how the
    /// last WRITE ended.
    pub fn write_long() {
        let mut end = connect_pair(Transport::Rc);
        let remote = target();
        let source = end.arena.alloc(LONG, LONG).unwrap().freeze();
        let status = loop {
            let operation = Operation::Write { source: source.clone().into(), remote, immediate: None };
            end.qp.post(Request::new(0, operation)).unwrap();
            let completion = end.next();
            if !completion.status.is_success() {
                break completion.status;
            }
        };
        write_line(&format!("{status:?}"));
        read_line();
    }

    /// Answers datagrams for ever.
    pub fn echo_datagrams() {
        let mut end = connect_pair(Transport::Ud);
        for id in 0..64 {
            end.post_receive(id);
        }
        write_line("ready");
        loop {
            let Some(completion) = end.poll() else {
                std::thread::yield_now();
                continue;
            };
            if completion.opcode == Opcode::Receive {
                let source = Source::Inline(&completion.buffers[0]);
                let operation = Operation::Send { source, immediate: None, to: completion.from };
                end.qp.post(Request::new(100, operation)).unwrap();
                end.post_receive(completion.id);
            }
        }
    }

    /// Memory that this process shares and may write, as (start, bytes).
    fn shared_mappings() -> Vec<(usize, usize)> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let lines = maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("/memfd:sinew"));
        lines
            .map(|line| {
                let (start, rest) = line.split_once('-').unwrap();
                let end = rest.split_once(' ').unwrap().0;
                let number = |digits| usize::from_str_radix(digits, 16).unwrap();
                (number(start), number(end) - number(start))
            })
            .collect()
    }

    /// Connects, writes to the peer's memory once, and then writes arbitrary words over all that it shares: rings,
    /// boards, directories, exposed memory. It may well crash itself.
    pub fn overwrite_mappings() {
        let mut end = connect_pair(Transport::Rc);
        let theirs = target();
        let exposed = end.domain.expose(4096, Access::ALL).unwrap();
        for id in 0..64 {
            end.post_receive(id);
        }
        end.write(0, b"12345678", theirs);
        write_line(&hex(&exposed.remote().to_bytes()));
        let mut random = SeededGenerator::new(read_line().parse().unwrap());
        let mappings = shared_mappings();
        // These are a link, a board, a directory and exposed memory of its own, and a directory and exposed memory of
        // the peer's.
        assert!(mappings.len() >= 6, "{mappings:x?}");
        loop {
            let (start, bytes) = mappings[random.below(mappings.len() as u64) as usize];
            // Mostly write to the start of each part, where the words that matter lie. The parts of a directory start
            // at odd places.
            let place = [0, 4096, 528_384, 2_625_536, bytes / 2][random.below(5) as usize];
            let words = [64, 4096, 1 << 20][random.below(3) as usize];
            let at = (place + random.below(words) as usize * 8) % bytes / 8 * 8;
            // SAFETY: this is a word of a mapping of this process, which exists to be spoiled.
            unsafe {
                let word = (start + at) as *mut u64;
                let was = word.read_volatile();
                word.write_volatile(match random.below(4) {
                    0 => random.next_u64(),
                    1 => was ^ 1 << random.below(64),
                    2 => was.wrapping_add(random.below(9)).wrapping_sub(4),
                    _ => 0,
                });
            }
            if random.chance(0.01) {
                end.poll();
                std::thread::yield_now();
            }
        }
    }

    /// Sends numbered messages for ever.
    pub fn stream() {
        let mut end = connect_pair(Transport::Rc);
        let mut number = 0u64;
        loop {
            end.send(0, &[number.to_le_bytes(); 4].concat());
            number += 1;
            while number.is_multiple_of(64) && end.poll().is_none() {
                std::thread::yield_now();
            }
            while end.poll().is_some() {}
        }
    }
}

#[test]
fn child() {
    match std::env::var("SINEW_VERBS_ROLE").as_deref() {
        Ok("serve rc") => roles::serve(Transport::Rc),
        Ok("serve uc") => roles::serve(Transport::Uc),
        Ok("write long") => roles::write_long(),
        Ok("stream") => roles::stream(),
        Ok("echo ud") => roles::echo_datagrams(),
        Ok("scribble") => roles::overwrite_mappings(),
        Ok(other) => panic!("no such role: {other}"),
        Err(_) => {}
    }
}

/// A child that serves, and our end of the connection to it.
fn serving(transport: Transport) -> (Peer, End, RemoteMemory) {
    let mut peer = Peer::start(if transport == Transport::Rc { "serve rc" } else { "serve uc" });
    let mut end = End::new(transport);
    peer.write_line(&end.address());
    end.connect(&peer.read_line());
    let remote = peer.remote();
    (peer, end, remote)
}

#[test]
fn processes_write_read_and_send_and_sleep_in_between() {
    for transport in [Transport::Rc, Transport::Uc] {
        let (_peer, mut end, remote) = serving(transport);
        for round in 0..50u64 {
            end.post_receive(round);
            end.write(1000, &round.to_ne_bytes(), remote);
            end.send(1001, &round.to_le_bytes());
            let mut answered = false;
            while !answered {
                let completion = end.next();
                assert_eq!(completion.status, Status::Success);
                if completion.opcode == Opcode::Receive {
                    assert_eq!(completion.buffers[0][..], round.to_le_bytes());
                    answered = true;
                }
            }
            if transport == Transport::Rc {
                let target = [end.arena.alloc(8, 8).unwrap()].into_iter().collect();
                end.qp.post(Request::new(5, Operation::Read { target, remote })).unwrap();
                let read = eventually("the read", || end.poll().filter(|completion| completion.id == 5));
                assert_eq!(read.buffers[0][..], round.to_ne_bytes());
            }
            while end.poll().is_some() {}
        }
    }
}

#[test]
fn a_killed_peer_ends_the_next_request_at_once() {
    let (mut peer, mut end, remote) = serving(Transport::Rc);
    end.write(1, b"12345678", remote);
    assert_eq!(end.next().status, Status::Success);
    end.post_receive(2);
    peer.kill();
    // Nothing on our side has polled since.
    end.write(3, b"12345678", remote);
    end.write(4, b"12345678", remote);
    let ends: Vec<(u64, Status)> = (0..3)
        .map(|_| {
            let completion = end.next();
            (completion.id, completion.status)
        })
        .collect();
    assert_eq!(ends, [(3, Status::RemoteAccess), (2, Status::Flushed), (4, Status::Flushed)]);
    assert_eq!(end.qp.state(), QpState::Error);
}

#[test]
fn the_death_of_a_peer_wakes_who_waits_for_its_message() {
    for transport in [Transport::Rc, Transport::Uc] {
        let (peer, mut end, _) = serving(transport);
        end.post_receive(7);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            let mut peer = peer;
            peer.kill();
        });
        let since = Instant::now();
        let completion = loop {
            if let Some(completion) = end.poll() {
                break completion;
            }
            end.queue.wait(None).unwrap();
            assert!(since.elapsed() < PATIENCE);
        };
        assert_eq!((completion.id, completion.status), (7, Status::Flushed));
        killer.join().unwrap();
    }
}

#[test]
fn a_sender_killed_in_mid_stream_leaves_whole_messages_and_then_an_error() {
    for _ in 0..5 {
        let mut peer = Peer::start("stream");
        let mut end = End::new(Transport::Rc);
        end.connect(&peer.read_line());
        for id in 0..256 {
            end.post_receive(id);
        }
        peer.write_line(&end.address());
        let mut expected = 0u64;
        let since = Instant::now();
        let mut killed = false;
        loop {
            let Some(completion) = end.poll() else {
                std::thread::yield_now();
                assert!(since.elapsed() < PATIENCE);
                continue;
            };
            if !completion.status.is_success() {
                assert!(killed && completion.status == Status::Flushed, "{completion:?}");
                break;
            }
            let bytes = [expected.to_le_bytes(); 4].concat();
            assert_eq!(completion.buffers[0][..], bytes);
            expected += 1;
            let mut buffer = completion.buffers.into_iter().next().unwrap();
            buffer.resize(64).unwrap();
            end.qp.post_buffer(completion.id, buffer).unwrap();
            if expected == 20_000 {
                peer.kill();
                killed = true;
            }
        }
        assert!(expected >= 20_000);
    }
}

#[test]
fn a_stopped_peer_delays_its_own_messages_only() {
    let (peer, mut end, remote) = serving(Transport::Rc);
    let mut other = End::on(&end.device, Transport::Rc);
    let mut second = Peer::start("serve rc");
    second.write_line(&other.address());
    let line = second.read_line();
    other.connect(&line);
    second.remote();
    peer.stop();
    end.post_receive(1);
    end.send(2, b"to the stopped");
    // Operations in the stopped peer's memory still work.
    end.write(3, b"87654321", remote);
    other.post_receive(4);
    other.send(5, b"to the other");
    let answer = eventually("an answer", || other.poll().filter(|completion| completion.id == 4));
    assert_eq!(answer.buffers[0][..], *b"to the other");
    assert!(end.poll().is_none(), "completions come in order, and the first is not acknowledged");
    peer.signal(Signal::CONT);
    let mut ids: Vec<u64> = (0..3).map(|_| end.next().id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3]);
}

/// Tries random operations with a peer that follows no rules. `open` counts requests and receives that were posted and
/// have not come back.
fn post_random(end: &mut End, remote: RemoteMemory, random: &mut SeededGenerator, open: &mut usize) {
    let target = || [end.arena.alloc(64, 64).unwrap()].into_iter().collect();
    let operation = match random.below(4) {
        0 => Operation::Send { source: Source::Inline(b"a message"), immediate: None, to: None },
        1 => Operation::Write { source: Source::Inline(b"some bytes"), remote, immediate: None },
        2 => Operation::Read { target: target(), remote },
        _ => Operation::FetchAdd { target: end.arena.alloc(8, 8).unwrap(), remote, add: 1 },
    };
    // The queue may be full of requests that are never acknowledged.
    *open += usize::from(end.qp.post(Request::new(1, operation)).is_ok());
    if random.chance(0.3) {
        let buffer = end.arena.alloc(64, 64).unwrap();
        *open += usize::from(end.qp.post_buffer(1, buffer).is_ok());
    }
    *open -= usize::from(end.poll().is_some());
}

#[test]
fn a_peer_that_writes_over_all_it_shares_harms_itself_and_no_datagram_of_another() {
    let fresh = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0) >> 1;
    let seed: u64 = std::env::var("SINEW_SEED").map_or(fresh, |seed| seed.parse().unwrap());
    println!("SINEW_SEED={seed}");
    let mut random = SeededGenerator::new(seed);
    let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
    for round in 0..4 {
        let mut end = End::on(&device, Transport::Rc);
        // These are on the same thread, and so on the same port.
        let mut honest = end.thread.completion_queue(1024).unwrap();
        let mut datagrams = end.thread.queue_pair(&QpConfig::new(Transport::Ud), &honest, &honest).unwrap();
        datagrams.connect(None).unwrap();
        let mut friend = Peer::start("echo ud");
        let friend_address = QpAddress::from_bytes(&unhex(&friend.read_line())).unwrap();
        friend.write_line(&hex(&datagrams.address().to_bytes()));
        assert_eq!(friend.read_line(), "ready");
        let to = Some(end.thread.destination(&friend_address).unwrap());
        let mut scribbler = Peer::start("scribble");
        scribbler.write_line(&end.address());
        end.connect(&scribbler.read_line());
        let exposed = end.domain.expose(4096, Access::ALL).unwrap();
        scribbler.write_line(&hex(&exposed.remote().to_bytes()));
        let remote = scribbler.remote();
        let canary = end.arena.alloc(4096, 4096).unwrap();
        let canary_bytes = canary.to_vec();
        let mut open = 0;
        post_random(&mut end, remote, &mut random, &mut open);
        scribbler.write_line(&(seed ^ round).to_string());
        let since = Instant::now();
        let (mut number, mut completions) = (0u64, Vec::new());
        while since.elapsed() < Duration::from_millis(400) || number < 20 {
            number += 1;
            let buffer = end.arena.alloc(64, 64).unwrap();
            datagrams.post_buffer(number, buffer).unwrap();
            let bytes = number.to_le_bytes();
            let operation = Operation::Send { source: Source::Inline(&bytes), immediate: None, to };
            datagrams.post(Request::new(0, operation)).unwrap();
            let answer = eventually("an answer of the honest peer", || {
                post_random(&mut end, remote, &mut random, &mut open);
                honest.poll(&mut completions, 16);
                completions.drain(..).find(|completion| completion.opcode == Opcode::Receive)
            });
            assert_eq!((answer.status, &answer.buffers[0][..]), (Status::Success, &bytes[..]), "round {round}");
        }
        assert_eq!(canary[..], canary_bytes, "round {round}");
        scribbler.kill();
        post_random(&mut end, remote, &mut random, &mut open);
        eventually("the end of all that was asked of the dead", || {
            open -= usize::from(end.poll().is_some());
            (open == 0).then_some(())
        });
        assert_eq!(end.qp.state(), QpState::Error);
        // This wait is bounded, whatever the seats say.
        exposed.deregister();
    }
}

/// A child that writes our memory and was stopped inside it, and the memory, whose exposure has ended.
fn stopped_inside() -> (Peer, End, RemoteMemory) {
    loop {
        let mut peer = Peer::start("write long");
        let mut end = End::new(Transport::Rc);
        peer.write_line(&end.address());
        end.connect(&peer.read_line());
        let exposed = end.domain.expose(LONG, Access::ALL).unwrap();
        let remote = exposed.remote();
        exposed.store(LONG - 8, 1).unwrap();
        peer.write_line(&hex(&remote.to_bytes()));
        eventually("the end of a write", || (exposed.load(LONG - 8) != Ok(1)).then_some(()));
        peer.stop();
        // The child is outside the region for a moment now and then.
        if exposed.deregister().is_none() {
            return (peer, end, remote);
        }
    }
}

#[test]
fn memory_is_kept_aside_while_an_initiator_is_stopped_inside_and_until_it_goes() {
    for kill in [false, true] {
        let (mut peer, end, old) = stopped_inside();
        assert_eq!(end.device.quarantined(), 1);
        let fresh = end.domain.expose(LONG, Access::ALL).unwrap();
        let (start, len) = (fresh.remote().address, fresh.remote().len);
        assert!(start + len <= old.address || start >= old.address + old.len, "the range is not used again");
        if kill {
            peer.kill();
        } else {
            peer.signal(Signal::CONT);
            assert_eq!(peer.read_line(), "RemoteAccess");
        }
        eventually("the range", || (end.device.quarantined() == 0).then_some(()));
        assert_eq!(fresh.load(0), Ok(0));
        assert_eq!(fresh.load(LONG - 8), Ok(0));
        drop(fresh);
        let again = end.domain.expose(LONG, Access::ALL).unwrap();
        assert_eq!(again.remote().address, old.address);
        assert_eq!(again.load(LONG / 2), Ok(0));
    }
}

#[test]
fn a_device_that_was_opened_anew_is_not_taken_for_the_old_one() {
    let name = format!("shm://{}", &sinew_conformance::unique("anew")[..20]);
    let mut peer = Peer::named("serve rc", &name);
    let old = peer.read_line();
    peer.kill();
    let mut peer = Peer::named("serve rc", &name);
    peer.read_line();
    let mut end = End::new(Transport::Rc);
    let address = QpAddress::from_bytes(&unhex(&old)).unwrap();
    let error = end.qp.connect(Some(&address)).unwrap_err();
    assert!(matches!(&error, VerbsError::Address(reason) if reason.contains("reopened")), "{error}");
    peer.kill();
    end.qp.modify(QpState::Reset, None).unwrap();
    let error = end.qp.connect(Some(&address)).unwrap_err();
    assert!(matches!(&error, VerbsError::Address(reason) if reason.contains("cannot be reached")), "{error}");
    assert_eq!(end.thread.discarded(sinew_shm::verbs::Discarded::Malformed), 0);
}
