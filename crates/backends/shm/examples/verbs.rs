//! Measures verbs beside their baseline, in the same run, on two pinned processors: SENDs beside the bare ring, WRITEs
//! and READs beside the same copies made by a plain loop.
//!
//! `cargo run --release -p sinew-shm --example verbs [processes]`
//!
//! On a machine with other work, one of the two threads is usually not running: everything is measured in many short
//! slices, and the figure is that of the best tenth.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Destination, Device, Exposed, Operation, ProtectionDomain, QpAddress,
    QpConfig, QueuePair, RemoteMemory, Request, Scatter, Source, ThreadDomain, Transport,
};
use sinew_mem::{Arena, SharedMemory, ring};
use sinew_shm::verbs::{ShmCompletionQueue, ShmDevice, ShmExposed, ShmQueuePair, ShmThread};

const MESSAGE: [u8; 32] = [7; 32];
/// As long as the packet of [`MESSAGE`].
const PACKET: [u8; 56] = [7; 56];
const SLICE: u64 = 20_000;
const WINDOW: u64 = 400;
const MEASURE: Duration = Duration::from_millis(500);

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Nanoseconds per step, of the best tenth of the slices.
fn best(steps: u64, mut slice: impl FnMut() -> Duration) -> f64 {
    let began = Instant::now();
    let mut samples = Vec::new();
    while began.elapsed() < MEASURE || samples.len() < 20 {
        samples.push(slice().as_nanos() as f64 / steps as f64);
    }
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 10]
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

static STOP: AtomicBool = AtomicBool::new(false);
static GOT: AtomicU64 = AtomicU64::new(0);
/// Rounds of writing that the owner was asked for.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// Rounds of writing that the owner has done.
static DONE: AtomicU64 = AtomicU64::new(0);

fn reset() {
    for word in [&GOT, &ASKED, &DONE] {
        word.store(0, Ordering::Relaxed);
    }
    STOP.store(false, Ordering::Relaxed);
}

struct End {
    arena: Arena,
    qp: ShmQueuePair,
    queue: ShmCompletionQueue,
    thread: ShmThread,
    exposed: ShmExposed,
}

impl End {
    fn new(device: &ShmDevice, transport: Transport, exposed: usize) -> Self {
        let domain = device.protection_domain().unwrap();
        let arena = domain.arena(16 << 20).unwrap();
        let thread = domain.thread().unwrap();
        let queue = thread.completion_queue(2048).unwrap();
        let config = QpConfig { send_depth: 512, receive_depth: 1024, ..QpConfig::new(transport) };
        let qp = thread.queue_pair(&config, &queue, &queue).unwrap();
        Self { arena, qp, queue, thread, exposed: domain.expose(exposed, Access::ALL).unwrap() }
    }
}

fn devices(processes: bool) -> (ShmDevice, ShmDevice) {
    if processes {
        let open = || ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
        (open(), open())
    } else {
        let device = ShmDevice::threads().unwrap();
        (device.clone(), device)
    }
}

/// Nanoseconds per packet of the bare ring.
fn bare_ring(burst: u64) -> f64 {
    reset();
    let (mut there, mut there_rx) = ring::pair(8192).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            let mut got = 0;
            while !STOP.load(Ordering::Relaxed) {
                let count = there_rx.receive(32, |bytes| {
                    std::hint::black_box(bytes);
                });
                if count > 0 {
                    got += count as u64;
                    GOT.store(got, Ordering::Relaxed);
                }
            }
        });
        pin(0);
        let mut sent = 0;
        let time = best(SLICE, || {
            timed(|| {
                for _ in 0..SLICE / burst {
                    while sent > GOT.load(Ordering::Relaxed) + WINDOW {}
                    for _ in 0..burst {
                        there.push(&PACKET, &[]).unwrap();
                    }
                    there.submit();
                    sent += burst;
                }
                while GOT.load(Ordering::Relaxed) < sent {}
            })
        });
        STOP.store(true, Ordering::Relaxed);
        time
    })
}

/// Receives messages and posts their buffers again.
fn receive(mut end: End) {
    pin(1);
    let mut completions: Vec<Completion> = Vec::with_capacity(32);
    let mut got = 0;
    while !STOP.load(Ordering::Relaxed) {
        if end.queue.poll(&mut completions, 32) == 0 {
            continue;
        }
        for mut completion in completions.drain(..) {
            std::hint::black_box(&completion.buffers[0][..]);
            got += 1;
            let mut buffer = completion.buffers.pop().unwrap();
            buffer.resize(MESSAGE.len()).unwrap();
            end.qp.post_buffer(completion.id, buffer).unwrap();
        }
        GOT.store(got, Ordering::Relaxed);
    }
}

fn send(to: Option<Destination>) -> Operation<'static> {
    Operation::Send { source: Source::Inline(&MESSAGE), immediate: None, to }
}

/// Nanoseconds per SEND in lists of `burst`.
fn sends(processes: bool, transport: Transport, burst: u64) -> f64 {
    reset();
    let (ours, theirs) = devices(processes);
    let (sender, receiver) = mpsc::channel::<QpAddress>();
    let (answer, answered) = mpsc::channel::<QpAddress>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut end = End::new(&theirs, transport, 8);
            sender.send(end.qp.address()).unwrap();
            end.qp.connect(Some(&answered.recv().unwrap())).unwrap();
            for id in 0..1000 {
                let buffer = end.arena.alloc(MESSAGE.len(), MESSAGE.len()).unwrap();
                end.qp.post_buffer(id, buffer).unwrap();
            }
            sender.send(end.qp.address()).unwrap();
            receive(end);
        });
        pin(0);
        let mut end = End::new(&ours, transport, 8);
        let remote = receiver.recv().unwrap();
        answer.send(end.qp.address()).unwrap();
        end.qp.connect(Some(&remote)).unwrap();
        receiver.recv().unwrap();
        let to = (transport == Transport::Ud).then(|| end.thread.destination(&remote).unwrap());
        let mut completions = Vec::with_capacity(64);
        let (mut sent, mut pushed, mut known) = (0u64, 0u64, 0u64);
        let time = best(SLICE, || {
            timed(|| {
                for _ in 0..SLICE / burst {
                    while sent > GOT.load(Ordering::Relaxed) + WINDOW {}
                    for _ in 0..burst {
                        pushed += 1;
                        let mut request = Request::new(0, send(to));
                        request.signaled = pushed.is_multiple_of(32);
                        if burst == 1 {
                            end.qp.post(request).unwrap();
                        } else {
                            end.qp.push(request).unwrap();
                        }
                    }
                    if burst > 1 {
                        end.qp.doorbell();
                    }
                    sent += burst;
                    // The queue holds 512 requests, which acknowledgements free.
                    while pushed - known > 480 || pushed % 64 < burst {
                        end.queue.poll(&mut completions, 64);
                        known += 32 * completions.len() as u64;
                        completions.clear();
                        if pushed - known <= 480 {
                            break;
                        }
                    }
                }
                while GOT.load(Ordering::Relaxed) < sent {}
            })
        });
        STOP.store(true, Ordering::Relaxed);
        time
    })
}

/// Measures at one end of a connection; the other end is on a thread that runs `owner` with its exposed memory.
fn with_owner<R>(
    processes: bool,
    transport: Transport,
    exposed: usize,
    owner: impl FnOnce(&SharedMemory) + Send,
    measure: impl FnOnce(&mut End, RemoteMemory, &SharedMemory) -> R,
) -> R {
    reset();
    let (ours, theirs) = devices(processes);
    let (sender, receiver) = mpsc::channel();
    let (answer, answered) = mpsc::channel::<QpAddress>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            let mut end = End::new(&theirs, transport, exposed);
            sender.send((end.qp.address(), end.exposed.remote(), (*end.exposed).clone())).unwrap();
            end.qp.connect(Some(&answered.recv().unwrap())).unwrap();
            sender.send((end.qp.address(), end.exposed.remote(), (*end.exposed).clone())).unwrap();
            owner(&end.exposed);
            while !STOP.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        pin(0);
        let mut end = End::new(&ours, transport, 8);
        let (address, remote, memory) = receiver.recv().unwrap();
        answer.send(end.qp.address()).unwrap();
        end.qp.connect(Some(&address)).unwrap();
        receiver.recv().unwrap();
        let result = measure(&mut end, remote, &memory);
        STOP.store(true, Ordering::Relaxed);
        result
    })
}

/// Offset of the next 32 bytes: lines come in an order that no prefetcher predicts.
fn next(at: &mut u64, bytes: usize) -> usize {
    *at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*at >> 33) as usize % (bytes / 64) * 64
}

/// Nanoseconds per copy of 32 bytes into a region of `bytes` bytes, per WRITE posted alone, and per WRITE in lists of
/// 16. The owner polls the region's lines meanwhile, if `polled`.
fn writes(processes: bool, bytes: usize, polled: bool) -> (f64, f64, f64) {
    let owner = |memory: &SharedMemory| {
        while polled && !STOP.load(Ordering::Relaxed) {
            for line in (0..memory.len()).step_by(64) {
                std::hint::black_box(memory.load(line).unwrap());
            }
        }
    };
    with_owner(processes, Transport::Uc, bytes, owner, |end, remote, memory| {
        let mut at = 1;
        let copy = best(SLICE, || {
            timed(|| {
                for _ in 0..SLICE {
                    memory.write(next(&mut at, bytes), &MESSAGE).unwrap();
                }
            })
        });
        let mut completions = Vec::with_capacity(64);
        let mut list = |end: &mut End, list: u64| {
            best(SLICE, || {
                timed(|| {
                    for number in 1..=SLICE {
                        let place = remote.at(next(&mut at, bytes) as u64).unwrap();
                        let operation =
                            Operation::Write { source: Source::Inline(&MESSAGE), remote: place, immediate: None };
                        let mut request = Request::new(0, operation);
                        request.signaled = number.is_multiple_of(64);
                        if list == 1 {
                            end.qp.post(request).unwrap();
                        } else {
                            end.qp.push(request).unwrap();
                            if number.is_multiple_of(list) {
                                end.qp.doorbell();
                            }
                        }
                        if number.is_multiple_of(128) {
                            end.queue.poll(&mut completions, 64);
                            completions.clear();
                        }
                    }
                    end.qp.doorbell();
                    end.queue.poll(&mut completions, 64);
                    completions.clear();
                })
            })
        };
        let alone = list(end, 1);
        (copy, alone, list(end, 16))
    })
}

/// Nanoseconds to fetch 32 bytes that the owner's processor has just written: by a plain copy, and by a READ. Each
/// fetch begins when the one before it is complete.
fn reads(processes: bool) -> (f64, f64) {
    const BYTES: usize = 128 << 10;
    const LINES: u64 = (BYTES / 64) as u64;
    let owner = |memory: &SharedMemory| {
        while !STOP.load(Ordering::Relaxed) {
            let asked = ASKED.load(Ordering::Acquire);
            if asked != DONE.load(Ordering::Relaxed) {
                for line in (0..memory.len()).step_by(64) {
                    memory.write(line, &[asked.to_ne_bytes(); 4].concat()).unwrap();
                }
                DONE.store(asked, Ordering::Release);
            }
        }
    };
    let fresh = || {
        let round = ASKED.fetch_add(1, Ordering::Release) + 1;
        while DONE.load(Ordering::Acquire) != round {}
        round
    };
    with_owner(processes, Transport::Rc, BYTES, owner, |end, remote, memory| {
        let mut at = 1;
        let copy = best(LINES, || {
            let round = fresh();
            timed(|| {
                for _ in 0..LINES {
                    let mut bytes = [0u8; 32];
                    memory.read(next(&mut at, BYTES), &mut bytes).unwrap();
                    let word = u64::from_ne_bytes(*bytes.first_chunk().unwrap());
                    assert!(word == round);
                    // The next address depends on what was read.
                    at += word - round;
                }
            })
        });
        let mut target: Scatter = [end.arena.alloc(32, 32).unwrap()].into_iter().collect();
        let mut completions = Vec::with_capacity(4);
        let read = best(LINES, || {
            let round = fresh();
            timed(|| {
                for _ in 0..LINES {
                    let place = remote.at(next(&mut at, BYTES) as u64).unwrap();
                    let operation = Operation::Read { target: std::mem::take(&mut target), remote: place };
                    end.qp.post(Request::new(0, operation)).unwrap();
                    while end.queue.poll(&mut completions, 1) == 0 {}
                    target = completions.pop().unwrap().buffers;
                    let word = u64::from_ne_bytes(*target[0].first_chunk().unwrap());
                    assert!(word == round);
                    at += word - round;
                }
            })
        });
        (copy, read)
    })
}

fn main() {
    let processes = std::env::args().nth(1).as_deref() == Some("processes");
    println!("{}", if processes { "devices as of two processes" } else { "threads of one device" });
    for _ in 0..2 {
        for burst in [16, 1] {
            let limit = bare_ring(burst);
            print!("SEND in lists of {burst}: ring {:.1} M/s", 1e3 / limit);
            for transport in [Transport::Ud, Transport::Uc, Transport::Rc] {
                let time = sends(processes, transport, burst);
                print!(", {transport:?} {:.1} M/s ({:.2})", 1e3 / time, limit / time);
            }
            println!();
        }
        for (bytes, polled) in [(4 << 10, false), (1 << 20, false), (64 << 20, false), (4 << 10, true), (1 << 20, true)]
        {
            let (copy, alone, list) = writes(processes, bytes, polled);
            println!(
                "WRITE of 32 B, region of {} KiB{}: copy {copy:.1} ns, posted alone {alone:.1} ns ({:.2}), in lists of 16 {list:.1} ns ({:.2})",
                bytes >> 10,
                if polled { " that its owner polls" } else { "" },
                copy / alone,
                copy / list
            );
        }
        let (copy, read) = reads(processes);
        println!("READ of 32 B from the other's cache: copy {copy:.0} ns, READ {read:.0} ns (+{:.0})", read - copy);
    }
}
