//! Verbs between two processes: over shared memory on any machine, or over an RDMA NIC.
//!
//! Without arguments the program starts a second process of itself. Or start both: `one_sided serve shm 127.0.0.1:7100`
//! and `one_sided visit shm 127.0.0.1:7100`; with `ibverbs` instead of `shm` they may run on two hosts.

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use sinew::fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed, Operation, ProtectionDomain, QpAddress, QpConfig, QueuePair,
    RemoteMemory, Request, Scatter, Source, ThreadDomain, Transport,
};
use sinew::host::{Rendezvous, RendezvousListener};
use sinew::ibverbs::IbDevice;
use sinew::shm::verbs::ShmDevice;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Layout of a guest book: the number of visitors, and a line for each.
const LINE: usize = 64;
const LINES: usize = 16;
/// As many requests as the completion queue has room for.
const DEPTH: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => both(),
        [role @ ("serve" | "visit"), "shm", at] => act(role, &ShmDevice::open(&"shm://".parse()?)?, at),
        [role @ ("serve" | "visit"), "ibverbs", at] => act(role, &IbDevice::open(&"".parse()?)?, at),
        _ => Err("usage: one_sided [serve|visit shm|ibverbs HOST:PORT]".into()),
    }
}

/// Serves, and starts another process that visits.
fn both() -> Result<()> {
    let listener = RendezvousListener::bind("127.0.0.1:0", Default::default())?;
    let at = listener.address().to_string();
    let mut visitor = std::process::Command::new(std::env::current_exe()?).args(["visit", "shm", &at]).spawn()?;
    serve(&ShmDevice::open(&"shm://".parse()?)?, &listener)?;
    if visitor.wait()?.success() { Ok(()) } else { Err("the visitor failed".into()) }
}

/// One program for every device.
fn act(role: &str, device: &impl Device, at: &str) -> Result<()> {
    match role {
        "serve" => serve(device, &RendezvousListener::bind(at, Default::default())?),
        _ => visit(device, at),
    }
}

fn config() -> QpConfig {
    QpConfig { send_depth: DEPTH, receive_depth: DEPTH, ..QpConfig::new(Transport::Rc) }
}

/// Exposes memory, and waits for a message. Until then, other processes' accesses to the memory take no time of this
/// processor.
fn serve(device: &impl Device, listener: &RendezvousListener) -> Result<()> {
    let domain = device.protection_domain()?;
    let book = domain.expose((LINES + 1) * LINE, Access::ALL)?;
    let arena = domain.arena(1 << 20)?;
    let thread = domain.thread()?;
    let mut completions = thread.completion_queue(2 * DEPTH)?;
    let mut qp = thread.queue_pair(&config(), &completions, &completions)?;

    let mut meeting = listener.accept(PATIENCE)?.ok_or("nobody came")?;
    meeting.send(&qp.address().to_bytes())?;
    meeting.send(&book.remote().to_bytes())?;
    qp.connect(Some(&address_from(&mut meeting)?))?;
    qp.post_buffer(1, arena.alloc(LINE, LINE)?)?;
    meeting.send(b"ready")?;

    let message = next(&mut completions)?;
    println!("a message: {}", text(&message.buffers[0]));
    let mut line = [0; LINE];
    book.read(LINE, &mut line)?;
    println!("visitors: {}; the first wrote: {}", book.load(0)?, text(&line));
    Ok(())
}

/// Takes a number, writes a line, reads it back, and says good-bye.
fn visit(device: &impl Device, at: &str) -> Result<()> {
    let domain = device.protection_domain()?;
    let arena = domain.arena(1 << 20)?;
    let thread = domain.thread()?;
    let mut completions = thread.completion_queue(2 * DEPTH)?;
    let mut qp = thread.queue_pair(&config(), &completions, &completions)?;

    let mut meeting = Rendezvous::connect(at, PATIENCE, Default::default())?;
    let server = address_from(&mut meeting)?;
    let book = RemoteMemory::from_bytes(meeting.receive()?[..].try_into()?);
    meeting.send(&qp.address().to_bytes())?;
    qp.connect(Some(&server))?;
    meeting.receive()?;

    // The old value comes back in the buffer that was moved in.
    let operation = Operation::FetchAdd { target: arena.alloc(8, 8)?, remote: book, add: 1 };
    qp.post(Request::new(0, operation))?;
    let number = u64::from_ne_bytes(next(&mut completions)?.buffers[0][..8].try_into()?);

    // A list of two requests, started by one doorbell. A queue pair's requests take effect in order, so the READ sees
    // the line, and the WRITE needs no completion of its own.
    let line = book.at((1 + number % LINES as u64) * LINE as u64).ok_or("the book is too short")?;
    let source = Source::Inline(b"hello from another process");
    qp.push(Request::new(1, Operation::Write { source, remote: line, immediate: None }).unsignaled())?;
    let target = Scatter::from_iter([arena.alloc(LINE, LINE)?]);
    qp.push(Request::new(2, Operation::Read { target, remote: line }))?;
    qp.doorbell();
    let read = next(&mut completions)?;
    println!("visitor {number} reads: {}", text(&read.buffers[0]));

    let source = Source::Inline(b"good-bye");
    qp.post(Request::new(3, Operation::Send { source, immediate: None, to: None }))?;
    next(&mut completions)?;
    Ok(())
}

/// Bytes up to the first zero.
fn text(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

fn address_from(meeting: &mut Rendezvous) -> Result<QpAddress> {
    QpAddress::from_bytes(&meeting.receive()?).ok_or_else(|| "that is not the address of a queue pair".into())
}

/// Sleeps until the next completion, and returns it.
fn next(queue: &mut impl CompletionQueue) -> Result<Completion> {
    let (mut completions, began) = (Vec::new(), Instant::now());
    while queue.poll(&mut completions, 1) == 0 {
        let left = PATIENCE.checked_sub(began.elapsed()).ok_or("the other side is silent")?;
        queue.wait(Some(left.as_nanos() as u64))?;
    }
    let completion = completions.remove(0);
    if completion.status.is_success() { Ok(completion) } else { Err(completion.status.to_string().into()) }
}
