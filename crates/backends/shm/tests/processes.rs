//! Tests of ports of different processes. The test binary starts itself again: a child runs the test `child` with its
//! role in the environment, and everything it sends carries a checksum.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use sinew_conformance::unique;
use sinew_fabric::{
    Address, Clock, Dropped, PacketPort, PacketRx, PacketTx, Peer, PeerLoss, PortError, PortEvent, RxBurst, TxData,
    TxPacket,
};
use sinew_shm::ShmPort;

/// The clock of these tests: they wait for other processes.
struct Now(Instant);

impl Clock for Now {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

fn address(test: &str) -> Address {
    format!("shm://{}?arena=16777216", unique(test)).parse().unwrap()
}

fn command(role: &str, address: &Address) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture"])
        .env("SINEW_SHM_ROLE", role)
        .env("SINEW_SHM_ADDRESS", address.to_string())
        .stdout(Stdio::null());
    command
}

fn start(role: &str, address: &Address) -> Running {
    Running(command(role, address).spawn().unwrap())
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}: never");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A child that does not outlive its test.
struct Running(Child);

impl Running {
    fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A packet of `len` bytes that can be checked: number, length, and bytes that follow from both.
fn fill(bytes: &mut [u8], number: u64) {
    let len = bytes.len();
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let value = match at {
            0 => number,
            1 => len as u64,
            _ => number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (at as u64) << 32,
        };
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

/// Checks that a packet arrived whole, and returns its number.
fn check(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let mut expected = vec![0; bytes.len()];
    fill(&mut expected, number);
    assert!(bytes == expected, "packet {number} of {} bytes is corrupt", bytes.len());
    number
}

/// Receives one burst, checks its packets, and passes their senders and numbers to `got`.
fn receive(port: &mut ShmPort, now_ns: u64, mut got: impl FnMut(Peer, u64)) -> usize {
    let mut burst = RxBurst::new(now_ns);
    port.split().0.receive(&mut burst);
    for packet in &burst.packets {
        let mut bytes = packet.head.to_vec();
        if let Some(tail) = packet.tail {
            let head = bytes.len();
            bytes.resize(head + tail.len(), 0);
            if tail.copy_to(&mut bytes[head..]).is_err() {
                continue;
            }
        }
        got(packet.from, check(&bytes));
    }
    burst.packets.len()
}

/// Sends numbered packets of many lengths for ever; after each long one, reclaims its buffer and rewrites it.
fn stream(address: &Address) {
    let clock = Now(Instant::now());
    let mut port = ShmPort::open(&"shm://?arena=16777216".parse().unwrap()).unwrap();
    let peer = port.resolve(address).unwrap();
    let mut number = 0u64;
    let mut buffer = port.arena().alloc(9000, 9000).unwrap();
    loop {
        let long_len = 300 + number as usize * 8 % 8000;
        buffer.resize(long_len).unwrap();
        fill(&mut buffer, number);
        let frozen = buffer.freeze();
        let tx = port.split().1;
        tx.push(TxPacket { to: peer, head: &[], data: TxData::Frozen { buffer: &frozen, start: 0, len: long_len } });
        for _ in 0..8 {
            number += 1;
            let mut packet = vec![0; 16 + number as usize * 8 % 232];
            fill(&mut packet, number);
            tx.push(TxPacket { to: peer, head: &packet, data: TxData::None });
        }
        tx.submit();
        number += 1;
        tx.reclaim(&frozen);
        buffer = frozen.thaw().expect("nothing holds the buffer after a reclaim");
        receive(&mut port, clock.now_ns(), |_, _| {});
        if number.is_multiple_of(64) {
            // There may be only one CPU.
            std::thread::yield_now();
        }
    }
}

/// Answers every packet with its own head, sleeping in between, until all peers are gone.
fn echo(mut port: ShmPort, clock: &Now) {
    let mut met = false;
    loop {
        let mut burst = RxBurst::new(clock.now_ns());
        let (rx, tx) = port.split();
        rx.receive(&mut burst);
        for packet in &burst.packets {
            met = true;
            tx.push(TxPacket { to: packet.from, head: packet.head, data: TxData::None });
        }
        let idle = burst.packets.is_empty();
        drop(burst);
        tx.submit();
        while let Some(PortEvent::PeerLost { .. }) = port.poll_event() {
            if met && port.links().0 == 0 {
                return;
            }
        }
        if idle {
            port.wait(Some(1_000_000_000)).unwrap();
        }
    }
}

/// Waits for a peer with only `spare` descriptors left, too few to accept it, and checks that it sleeps rather than
/// spins; then raises the limit and echoes.
fn starved(address: &Address, spare: u64) {
    let mut port = ShmPort::open(address).unwrap();
    let clock = Now(Instant::now());
    let limit = getrlimit(Resource::Nofile);
    let next = std::fs::File::open("/dev/null").unwrap();
    let used = next.as_raw_fd() as u64;
    drop(next);
    setrlimit(Resource::Nofile, Rlimit { current: Some(used + spare), ..limit }).unwrap();
    while port.out_of_descriptors() == 0 {
        assert_eq!(receive(&mut port, clock.now_ns(), |_, _| {}), 0);
        port.wait(None).unwrap();
    }
    let (since, mut waits) = (Instant::now(), 0);
    while since.elapsed() < Duration::from_millis(300) {
        assert_eq!(receive(&mut port, clock.now_ns(), |_, _| {}), 0);
        port.wait(Some(20_000_000)).unwrap();
        waits += 1;
    }
    // Each attempt to accept wakes it a few times. A port that spun would have made tens of thousands of waits.
    assert!(waits < 300, "{waits} waits in 300 ms");
    assert!(port.out_of_descriptors() > 1, "the port tries again");
    assert_eq!(port.stats().dropped_total(), 0);
    setrlimit(Resource::Nofile, limit).unwrap();
    echo(port, &clock);
}

/// Asks a server for a link, and has no descriptor left for its answer.
fn starved_guest(address: &Address) {
    let clock = Now(Instant::now());
    let mut port = ShmPort::open(&"shm://?arena=16777216".parse().unwrap()).unwrap();
    let peer = resolve_patiently(&mut port, address);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..getrlimit(Resource::Nofile) }).unwrap();
    let mut lost = None;
    eventually("a loss", || {
        assert_eq!(receive(&mut port, clock.now_ns(), |_, _| {}), 0);
        lost = port.poll_event();
        lost.is_some()
    });
    assert_eq!(lost, Some(PortEvent::PeerLost { peer, loss: PeerLoss::Refused }));
    assert_eq!((port.out_of_descriptors(), port.stats().dropped_total()), (1, 0));
}

/// Runs the role of a child. As a test of its own it does nothing.
#[test]
fn child() {
    let Ok(role) = std::env::var("SINEW_SHM_ROLE") else { return };
    let address: Address = std::env::var("SINEW_SHM_ADDRESS").unwrap().parse().unwrap();
    match role.as_str() {
        "stream" => stream(&address),
        "echo" => echo(ShmPort::open(&address).unwrap(), &Now(Instant::now())),
        "starved-of-all" => starved(&address, 0),
        "starved-of-some" => starved(&address, 2),
        "starved-guest" => starved_guest(&address),
        "look-up" => {
            let found = ShmPort::open(&"shm://".parse().unwrap()).unwrap().resolve(&address);
            assert!(matches!(found, Err(PortError::NotFound { .. })), "{found:?}");
        }
        role => panic!("no such role: {role}"),
    }
}

fn resolve_patiently(port: &mut ShmPort, address: &Address) -> Peer {
    let since = Instant::now();
    loop {
        match port.resolve(address) {
            Ok(peer) => return peer,
            Err(PortError::NotFound { .. }) if since.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn two_processes_exchange_packets_and_sleep_in_between() {
    let address = address("echo");
    let mut server = start("echo", &address);
    let clock = Now(Instant::now());
    let mut port = ShmPort::open(&"shm://?arena=16777216".parse().unwrap()).unwrap();
    let peer = resolve_patiently(&mut port, &address);
    for number in 0..2000u64 {
        let mut packet = [0; 56];
        fill(&mut packet, number);
        let tx = port.split().1;
        tx.push(TxPacket { to: peer, head: &packet, data: TxData::None });
        tx.submit();
        let mut answer = None;
        while answer.is_none() {
            receive(&mut port, clock.now_ns(), |from, number| answer = Some((from, number)));
            if answer.is_none() {
                // A lost wake-up would make this wait time out.
                let slept = Instant::now();
                port.wait(Some(PATIENCE.as_nanos() as u64)).unwrap();
                assert!(slept.elapsed() < PATIENCE, "a wake-up was lost");
            }
        }
        assert_eq!(answer, Some((peer, number)));
    }
    drop(port);
    assert!(server.0.wait().unwrap().success());
    let error = ShmPort::open(&"shm://".parse().unwrap()).unwrap().resolve(&address).unwrap_err();
    assert!(matches!(error, PortError::NotFound { .. }), "nothing stale is left: {error}");
}

#[test]
fn a_port_without_descriptors_sleeps_and_lets_peers_in_once_it_has_some() {
    for role in ["starved-of-all", "starved-of-some"] {
        let address = address(role);
        let mut server = start(role, &address);
        let clock = Now(Instant::now());
        let mut port = ShmPort::open(&"shm://?arena=16777216".parse().unwrap()).unwrap();
        let mut answered = false;
        while !answered {
            let peer = resolve_patiently(&mut port, &address);
            let mut packet = [0; 56];
            fill(&mut packet, 7);
            let tx = port.split().1;
            tx.push(TxPacket { to: peer, head: &packet, data: TxData::None });
            tx.submit();
            // A peer for which there is no descriptor has to wait; one for which there are too few is refused, and can
            // come again.
            let mut refused = false;
            eventually("an answer", || {
                receive(&mut port, clock.now_ns(), |from, number| answered = (from, number) == (peer, 7));
                refused = port.poll_event() == Some(PortEvent::PeerLost { peer, loss: PeerLoss::Refused });
                answered || refused
            });
            assert!(answered || role == "starved-of-some");
            // Each attempt rightly wakes the other side; the pause lets the test count only the wake-ups of its own
            // making.
            std::thread::sleep(Duration::from_millis(if answered { 0 } else { 20 }));
        }
        drop(port);
        assert!(server.0.wait().unwrap().success());
    }
}

#[test]
fn a_port_that_has_no_descriptor_for_an_answer_says_that_there_is_no_room() {
    let address = address("starved-guest");
    let mut port = ShmPort::open(&address).unwrap();
    let clock = Now(Instant::now());
    let mut guest = start("starved-guest", &address);
    eventually("the guest's end", || {
        receive(&mut port, clock.now_ns(), |_, _| {});
        guest.0.try_wait().unwrap().is_some_and(|status| {
            assert!(status.success(), "{status}");
            true
        })
    });
}

/// Receives until `enough` returns true.
fn receive_until(
    port: &mut ShmPort,
    clock: &Now,
    last: &mut std::collections::BTreeMap<Peer, u64>,
    enough: impl Fn(&std::collections::BTreeMap<Peer, u64>, &mut ShmPort) -> bool,
) {
    let since = Instant::now();
    loop {
        let got = receive(port, clock.now_ns(), |from, number| {
            if let Some(before) = last.insert(from, number) {
                assert!(number > before, "packets of one sender keep their order");
            }
        });
        if enough(last, port) {
            return;
        }
        assert!(since.elapsed() < PATIENCE, "waited too long");
        if got == 0 {
            port.wait(Some(1_000_000)).unwrap();
        }
    }
}

#[test]
fn a_sender_killed_in_mid_stream_is_seen_at_once_and_corrupts_nothing() {
    let address = address("kill");
    let mut port = ShmPort::open(&address).unwrap();
    let clock = Now(Instant::now());
    for round in 0..8u64 {
        let sender = start("stream", &address);
        let mut last = Default::default();
        receive_until(&mut port, &clock, &mut last, |last, _| last.values().any(|&number| number > 200 + round * 17));
        sender.signal(Signal::KILL);
        let peer = *last.keys().next().unwrap();
        let mut lost = Vec::new();
        let since = Instant::now();
        while lost.is_empty() {
            receive(&mut port, clock.now_ns(), |_, _| {});
            lost.extend(port.poll_event());
            port.wait(Some(1_000_000)).unwrap();
            assert!(since.elapsed() < PATIENCE);
        }
        assert_eq!(lost, [PortEvent::PeerLost { peer, loss: PeerLoss::ProcessDied }]);
        assert_eq!(port.links().0, 0);
    }
    assert_eq!(port.stats().dropped(Dropped::Malformed), 0);
}

#[test]
fn a_sender_stopped_in_mid_send_delays_only_its_own_packets() {
    let address = address("stop");
    let mut port = ShmPort::open(&address).unwrap();
    let clock = Now(Instant::now());
    let senders = [start("stream", &address), start("stream", &address)];
    let mut last = Default::default();
    receive_until(&mut port, &clock, &mut last, |last, _| last.len() == 2);
    for round in 0..25u64 {
        // The sender is stopped at an arbitrary instruction.
        senders[0].signal(Signal::STOP);
        // Receive until the stopped sender is silent, and then some more from the other.
        let mut before = last.clone();
        let mut quiet = None;
        while quiet.is_none() {
            receive_until(&mut port, &clock, &mut last, |last, _| {
                last.iter().any(|(peer, &number)| number > before[peer] + 2000)
            });
            quiet = last.iter().find(|&(peer, number)| before[peer] == *number).map(|(peer, _)| *peer);
            before = last.clone();
        }
        senders[0].signal(Signal::CONT);
        let quiet = quiet.unwrap();
        receive_until(&mut port, &clock, &mut last, |last, _| last[&quiet] > before[&quiet] + 100 + round);
    }
    assert_eq!(port.stats().dropped(Dropped::Malformed), 0);
    assert!(port.poll_event().is_none(), "nobody is taken for dead");
}

/// A runtime directory for one test. Its path is short, since sockets' paths contain it.
struct RuntimeDirectory(PathBuf);

impl RuntimeDirectory {
    fn new() -> Self {
        let path = Path::new("/tmp").join(unique("sinew-run"));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn start(&self, role: &str, address: &Address) -> Running {
        Running(command(role, address).env("XDG_RUNTIME_DIR", &self.0).spawn().unwrap())
    }

    /// Names whose sockets exist, and the number of files in all.
    fn names(&self) -> (Vec<String>, usize) {
        let files: Vec<String> = std::fs::read_dir(self.0.join("sinew"))
            .map(|entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
            .unwrap_or_default();
        let names = files.iter().filter_map(|file| Some(file.strip_suffix(".sock")?.to_owned())).collect();
        (names, files.len())
    }
}

impl Drop for RuntimeDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn files_of_killed_servers_go_when_another_starts_or_somebody_looks_for_one() {
    let runtime = RuntimeDirectory::new();
    let [first, second] = ["first", "second"].map(address);
    let name = |address: &Address| address.rest().to_owned();
    let mut server = runtime.start("echo", &first);
    eventually("the first server listens", || runtime.names() == (vec![name(&first)], 2));
    server.signal(Signal::KILL);
    server.0.wait().unwrap();
    assert_eq!(runtime.names().1, 2, "the killed server left its files");
    let mut server = runtime.start("echo", &second);
    eventually("only the second server's files are there", || runtime.names() == (vec![name(&second)], 2));
    server.signal(Signal::KILL);
    server.0.wait().unwrap();
    assert_eq!(runtime.names().1, 2, "the killed server left its files");
    assert!(runtime.start("look-up", &second).0.wait().unwrap().success());
    assert_eq!(runtime.names().1, 0);
}
