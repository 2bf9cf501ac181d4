//! Tests that posting allocates no memory and makes no system call.

use std::process::{Command, ExitStatus};

use sinew_fabric::verbs::{
    Completion, CompletionQueue, Destination, Exposed, Operation, QpConfig, QueuePair, RemoteMemory, Request, Scatter,
    Source, Transport,
};
use sinew_mem::{Frozen, MessageBuffer};

#[path = "../../../../xtask/cost/src/counting.rs"]
mod counting;
#[allow(dead_code)] // shared with other tests
#[path = "verbs/pair.rs"]
mod pair;
use counting::allocations;
use pair::{Pair, devices};

/// Requests of each kind between two polls.
const ROUND: usize = 16;

/// Two ends, and everything that their requests need.
struct World {
    pair: Pair,
    to: Option<Destination>,
    remote: RemoteMemory,
    source: Frozen,
    /// Buffers for READs and atomics, while they are not posted.
    targets: Vec<MessageBuffer>,
    /// Buffers for receives, while they are not posted.
    received: Vec<MessageBuffer>,
    completions: Vec<Completion>,
}

impl World {
    fn new(devices: &(sinew_shm::verbs::ShmDevice, sinew_shm::verbs::ShmDevice), transport: Transport) -> Self {
        let config = QpConfig { gather_max: 4, send_depth: 256, receive_depth: 256, ..QpConfig::new(transport) };
        let pair = Pair::new(devices, &config);
        let exposed = pair.b.expose(1 << 16);
        let remote = exposed.remote();
        // The memory stays exposed for good.
        std::mem::forget(exposed);
        let source = pair.a.filled(&[7; 200]).freeze();
        let targets = (0..3 * ROUND).map(|_| pair.a.buffer(64)).collect();
        let received = (0..4 * ROUND).map(|_| pair.b.buffer(256)).collect();
        let to = pair.to_b();
        Self { pair, to, remote, source, targets, received, completions: Vec::with_capacity(256) }
    }

    /// Posts every request that the transport allows [`ROUND`] times: by turns alone, and as a list for one doorbell.
    fn post(&mut self) {
        let transport = self.pair.a.qp.transport();
        let (to, remote) = (self.to, self.remote);
        for mut buffer in self.received.drain(..) {
            buffer.resize(256).unwrap();
            self.pair.b.qp.post_buffer(0, buffer).unwrap();
        }
        for at in 0..ROUND {
            let mut post = |operation: Operation<'_>| {
                let mut request = Request::new(at as u64, operation);
                request.signaled = at + 1 == ROUND;
                if at % 2 == 0 {
                    self.pair.a.qp.post(request).unwrap();
                } else {
                    self.pair.a.qp.push(request).unwrap();
                }
            };
            let slices = |count| Source::Gather((0..count).map(|_| self.source.clone().into()).collect());
            post(Operation::Send { source: Source::Inline(&[1; 32]), immediate: Some(3), to });
            post(Operation::Send { source: slices(1), immediate: None, to });
            if transport != Transport::Ud {
                post(Operation::Write { source: Source::Inline(&[2; 32]), remote, immediate: None });
                post(Operation::Write { source: slices(4), remote, immediate: None });
                post(Operation::Write { source: slices(1), remote, immediate: Some(9) });
            }
            if transport == Transport::Rc {
                let mut target = || self.targets.pop().unwrap();
                let scatter: Scatter = [target()].into_iter().collect();
                post(Operation::Read { target: scatter, remote });
                post(Operation::FetchAdd { target: target(), remote, add: 1 });
                post(Operation::CompareSwap { target: target(), remote, expected: 1, desired: 2 });
            }
            self.pair.a.qp.doorbell();
        }
    }

    /// Polls until both ends have their buffers back.
    fn finish_round(&mut self) {
        let expected = (if self.pair.a.qp.transport() == Transport::Ud { 2 } else { 3 }) * ROUND;
        let reliable = self.pair.a.qp.transport() == Transport::Rc;
        while self.received.len() < expected || (reliable && self.targets.len() < 3 * ROUND) {
            self.pair.b.receives.poll(&mut self.completions, 256);
            self.received.extend(self.completions.drain(..).flat_map(|completion| completion.buffers));
            self.pair.a.sends.poll(&mut self.completions, 256);
            self.targets.extend(self.completions.drain(..).flat_map(|completion| completion.buffers));
        }
        for buffer in &mut self.targets {
            buffer.resize(64).unwrap();
        }
    }
}

#[test]
fn warm_requests_receives_and_completions_allocate_nothing() {
    for (name, devices) in devices() {
        for transport in Transport::ALL {
            let mut world = World::new(&devices, transport);
            let mut rounds = |rounds: u32| {
                for _ in 0..rounds {
                    world.post();
                    world.finish_round();
                }
            };
            rounds(300);
            let before = allocations();
            rounds(300);
            assert_eq!(allocations() - before, 0, "{transport:?}, {name}");
        }
    }
}

/// Makes every later system call of this thread end the process. Allowed are the call that ends it anyway, and that of
/// the clock, which is no system call where the kernel maps the clock into memory.
fn forbid_system_calls() {
    let (load, equal, decide) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ, libc::BPF_RET);
    let step = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let filter = [
        // The number of the call is the first word.
        step(load, 0, 0),
        step(equal, libc::SYS_exit_group as u32, 2),
        step(equal, libc::SYS_clock_gettime as u32, 1),
        step(decide, libc::SECCOMP_RET_KILL_PROCESS, 0),
        step(decide, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the filter is read during the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Runs in a process of its own: plays `SINEW_COSTS_ROLE` without system calls, and exits with success if it made none.
#[test]
fn child() {
    let Ok(role) = std::env::var("SINEW_COSTS_ROLE") else { return };
    let (transport, devices) = role.split_once(' ').unwrap();
    if transport == "control" {
        forbid_system_calls();
        // SAFETY: the call only returns a number.
        unsafe { libc::syscall(libc::SYS_getppid) };
    } else {
        let transport = Transport::ALL.into_iter().find(|other| format!("{other:?}") == transport).unwrap();
        let devices = pair::devices().into_iter().find(|(name, _)| *name == devices).unwrap().1;
        let mut world = World::new(&devices, transport);
        for _ in 0..300 {
            world.post();
            world.finish_round();
        }
        forbid_system_calls();
        world.post();
        // Dropping it would make system calls.
        std::mem::forget(world);
    }
    // SAFETY: the call ends this process, whose other threads hold nothing that matters.
    unsafe { libc::_exit(0) };
}

fn run(role: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("SINEW_COSTS_ROLE", role)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap()
}

#[test]
fn posting_makes_no_system_call() {
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(run("control x").signal(), Some(libc::SIGSYS), "a system call is noticed");
    for devices in ["threads", "one process", "two processes"] {
        for transport in Transport::ALL {
            let status = run(&format!("{transport:?} {devices}"));
            assert!(status.success(), "{transport:?}, {devices}: {status}");
        }
    }
}
