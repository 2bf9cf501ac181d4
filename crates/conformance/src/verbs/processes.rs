//! Peers in processes of their own.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use sinew_fabric::verbs::port::{address_of, read_address};
use sinew_fabric::verbs::{
    Completion, CompletionQueue, Exposed, Opcode, Operation, QpAddress, QpState, QueuePair, RemoteMemory, Request,
    Source, Status, Verb,
};

use super::death::connection_ends;
use super::ends::*;
use super::*;

/// Mark of the peer's own lines in the output of its process, to which its test harness writes too.
const MARK: &str = "sinew-verbs-peer:";
/// Length in bytes of the memory that the peer exposes.
const MEMORY: usize = 64 << 10;
/// Receives that the peer keeps posted.
const RECEIVES: u64 = 4;
/// Number that the peer adds to the immediate of a message that it sends back.
const ECHO: u32 = 1;

/// Length in bytes of a receive at either side.
fn receive_len<D: Device>(device: &D) -> usize {
    device.attributes().mtu.max(8192) + 1
}

/// The body of a process of [`Fixture::peer_process`]. It reads the address of a queue pair from standard input,
/// connects one of `device`'s to it, prints that one's address on standard output, and sends every message back until
/// standard input ends.
///
/// # Panics
///
/// When any of that fails.
pub fn serve_peer<D: Device>(device: &D) {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("standard input can be read");
    let peer = line.trim().parse().ok().and_then(|address| read_address(&address).ok()).expect("the address of a peer");
    let mut end = End::new(device.clone(), &config(device, peer.transport));
    let memory = end.expose(MEMORY);
    end.qp.connect(peer.transport.is_connected().then_some(&peer)).expect("a connection");
    let room = receive_len(device);
    (0..RECEIVES).for_each(|id| end.receive(id, room));
    let RemoteMemory { address, rkey, len } = memory.remote();
    println!("\n{MARK} {} {address} {rkey} {len}", address_of(&end.qp.address()));
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, waker) = (Arc::clone(&stop), end.receives.waker());
    std::thread::spawn(move || {
        // The process that started us writes nothing more; its input ends when it does.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopped.store(true, Ordering::Release);
        waker.wake();
    });
    while !stop.load(Ordering::Acquire) && end.qp.state() == QpState::ReadyToSend {
        if end.poll() == 0 {
            end.receives.wait(Some(10_000_000)).expect("waiting works");
        }
        end.sent.clear();
        while let Some(received) = end.received.pop_front().filter(|received| received.status.is_success()) {
            let bytes = joined(&received.buffers);
            let source = if bytes.is_empty() { Source::Empty } else { end.frozen(&bytes).into() };
            let immediate = received.immediate.map(|immediate| immediate.wrapping_add(ECHO));
            end.receive(received.id, room);
            end.post(Request::new(0, Operation::Send { source, immediate, to: received.from }));
        }
    }
}

/// A process with a peer. Dropping this kills it.
struct Process {
    child: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<String>,
}

impl Process {
    fn start<F: Fixture>(fixture: &F) -> Option<Self> {
        let mut command = match fixture.peer_process() {
            Ok(command) => command,
            Err(reason) => {
                eprintln!("left out: a peer in another process: {reason}");
                return None;
            }
        };
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process for the peer starts");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (say, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some((_, message)) = line.split_once(MARK)
                    && say.send(message.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        Some(Self { child, input, lines })
    }

    /// Connects `near` to the peer; returns the peer's address and memory.
    fn connect_near<F: Fixture>(&mut self, fixture: &F, near: &mut End<F::Device>) -> (QpAddress, RemoteMemory) {
        writeln!(self.input, "{}", address_of(&near.qp.address())).expect("the peer listens");
        let patience = Duration::from_nanos(fixture.expectations().patience_ns);
        let line = self.lines.recv_timeout(patience).expect("the peer says where it is");
        let mut words = line.split_whitespace();
        let address = words.next().and_then(|word| read_address(&word.parse().ok()?).ok()).expect("the peer's address");
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("the peer's memory");
        let (start, rkey, len): (u64, u64, u64) = (number(), number(), number());
        near.qp.connect(near.transport().is_connected().then_some(&address)).expect("a connection");
        (address, RemoteMemory { address: start, rkey: rkey as u32, len })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Posts a request; returns its own completion and the peer's answer.
fn request_answer<F: Fixture>(
    fixture: &F,
    near: &mut End<F::Device>,
    operation: Operation<'_>,
    id: u64,
) -> (Completion, Completion) {
    let now_ns = || fixture.now_ns();
    let watch = Watch { now_ns: &now_ns, patience_ns: fixture.expectations().patience_ns };
    near.receive(id, receive_len(&near.device));
    near.post(Request::new(id, operation));
    let sent = eventually(watch, &mut [near], "a request to the process is over", |ends| ends[0].sent.pop_front());
    assert_eq!((sent.id, sent.status), (id, Status::Success), "{sent:?}");
    let answer = eventually(watch, &mut [near], "the process answers", |ends| ends[0].received.pop_front());
    assert_eq!((answer.id, answer.status, answer.opcode), (id, Status::Success, Opcode::Receive), "{answer:?}");
    (sent, answer)
}

fn perform<F: Fixture>(fixture: &F, near: &mut End<F::Device>, operation: Operation<'_>) -> Completion {
    let now_ns = || fixture.now_ns();
    let watch = Watch { now_ns: &now_ns, patience_ns: fixture.expectations().patience_ns };
    near.post(Request::new(1, operation));
    let sent = eventually(watch, &mut [near], "a request to the process is over", |ends| ends[0].sent.pop_front());
    assert_eq!(sent.status, Status::Success, "{sent:?}");
    sent
}

/// Operations work between processes as they do within one.
pub fn operations_work_between_processes<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        if transport != Transport::Rc && fixture.expectations().lossless != Promise::Kept {
            continue;
        }
        let Some(mut process) = Process::start(fixture) else { return };
        let device = fixture.device();
        let config = config(&device, transport);
        let mut near = End::new(device, &config);
        let (address, memory) = process.connect_near(fixture, &mut near);
        let to = (!transport.is_connected()).then(|| near_destination(&near, &address));
        let mtu = near.device.attributes().mtu;
        let lens = [0, 1, 31, 255, mtu, mtu + 1];
        for (number, len) in lens.into_iter().filter(|&len| len <= mtu || transport.is_connected()).enumerate() {
            let bytes = pattern(number, len);
            let immediate = Some(number as u32 * 1000);
            let source = near.frozen(&bytes).into();
            let (_, answer) =
                request_answer(fixture, &mut near, Operation::Send { source, immediate, to }, number as u64);
            assert_message(&answer, &bytes, immediate.map(|immediate| immediate + ECHO));
            if !transport.is_connected() {
                continue;
            }
            let remote = memory.at(64).expect("inside the memory");
            let write = Operation::Write { source: near.frozen(&bytes).into(), remote, immediate };
            let (_, answer) = request_answer(fixture, &mut near, write, number as u64);
            assert_message(&answer, &[], immediate.map(|immediate| immediate + ECHO));
            if near.allows(Verb::Read) {
                let target = near.buffers(&[len]);
                let completion = perform(fixture, &mut near, Operation::Read { target, remote });
                assert!(joined(&completion.buffers) == bytes, "{len} bytes came back from the process as others");
            }
        }
        if near.allows(Verb::FetchAdd) {
            for was in 0..3 {
                let target = near.buffer(8);
                let add = Operation::FetchAdd { target, remote: memory, add: 1 };
                assert_eq!(word(&perform(fixture, &mut near, add)), was);
            }
        }
    }
}

fn near_destination<D: Device>(near: &End<D>, address: &QpAddress) -> sinew_fabric::verbs::Destination {
    use sinew_fabric::verbs::ThreadDomain;
    near.thread.destination(address).expect("a way to a living queue pair")
}

/// A peer whose process is killed cannot announce its end, which is noticed all the same.
pub fn a_killed_peer_ends_its_peers_work<F: Fixture>(fixture: &F) {
    for transport in connected(fixture) {
        let Some(mut process) = Process::start(fixture) else { return };
        let device = fixture.device();
        let config = config(&device, transport);
        let mut near = End::new(device, &config);
        let (_, memory) = process.connect_near(fixture, &mut near);
        let (_, answer) =
            request_answer(fixture, &mut near, Operation::Send { source: Source::Empty, immediate: None, to: None }, 1);
        assert_message(&answer, &[], None);
        (0..3).for_each(|id| near.receive(id, 64));
        process.child.kill().expect("the process is ours");
        process.child.wait().expect("the process is ours");
        if transport == Transport::Rc {
            for id in 0..2 {
                let (source, remote) = (Source::Inline(b"too late"), memory);
                near.post(Request::new(id, Operation::Write { source, remote, immediate: None }));
            }
            let first = connection_ends(fixture, &mut near, 2, 3);
            // A NIC hears no answer. A device that knows of the death knows that the memory went with its owner.
            assert!(matches!(first, Some(Status::RetryExceeded | Status::RemoteAccess)), "{first:?}");
        } else {
            connection_ends(fixture, &mut near, 0, 3);
        }
    }
}
