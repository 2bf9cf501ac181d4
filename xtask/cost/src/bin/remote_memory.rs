//! A lone READ of 4 KB of a donor's memory: by bare verbs, and by an engine.

use anyhow::{Context, ensure};
use sinew_cost::{Count, Operation, device, operation};
use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed, Operation as Verb, ProtectionDomain, QpConfig, QueuePair,
    Request as Post, Scatter, ThreadDomain, Transport,
};
use sinew_remote_memory::engine::{
    DonorQueuePairs, Engine, EngineConfig, Op, Request, Shared, SharedConfig, StaticWindow, VerbsPath, VerbsPathConfig,
};

const OPERATIONS: &[Operation] = &[
    Operation { without_copies: true, ..operation("a lone READ of 4 KB by the bare verbs", &["initiator"], bare) },
    Operation { without_copies: true, ..operation("a lone read of 4 KB by an engine", &["initiator"], engine) },
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const LEN: usize = 4096;
const MEMORY: usize = 1 << 20;
const ROUNDS: usize = 2048;

fn bare(count: &mut Count) -> anyhow::Result<()> {
    let device = device()?;
    let domain = device.protection_domain()?;
    let memory = domain.expose(MEMORY, Access::ALL)?;
    let arena = domain.arena(4 << 20)?;
    let ends = [domain.thread()?, domain.thread()?];
    let config = QpConfig { gather_max: 4, ..QpConfig::new(Transport::Rc) };
    let mut queues = ends.iter().map(|end| end.completion_queue(1024)).collect::<Result<Vec<_>, _>>()?;
    let mut qps = Vec::new();
    for (end, queue) in ends.iter().zip(&queues) {
        qps.push(end.queue_pair(&config, queue, queue)?);
    }
    let addresses = [qps[1].address(), qps[0].address()];
    for (qp, address) in qps.iter_mut().zip(&addresses) {
        qp.connect(Some(address))?;
    }
    let (mut qp, cq) = (qps.swap_remove(0), &mut queues[0]);
    let mut target = Some(arena.alloc(LEN, LEN)?);
    let mut completions: Vec<Completion> = Vec::with_capacity(64);
    let mut at = 0;
    count.rounds(ROUNDS, ROUNDS, |count| {
        at = (at + 5 * LEN as u64) % MEMORY as u64;
        let buffer = target.take().context("it came back")?;
        let back = count.step("initiator", 1, || {
            let mut target = Scatter::new();
            target.push(buffer);
            let remote = memory.remote().at(at)?;
            qp.push(Post::new(at, Verb::Read { target, remote })).ok()?;
            qp.doorbell();
            cq.poll(&mut completions, 64);
            let mut completion = completions.pop()?;
            completion.buffers.pop().filter(|_| completion.status.is_success())
        });
        target = Some(back.context("a READ failed")?);
        Ok(())
    })
}

fn engine(count: &mut Count) -> anyhow::Result<()> {
    let device = device()?;
    let domain = device.protection_domain()?;
    let memory = domain.expose(MEMORY, Access::ALL)?;
    let arena = domain.arena(4 << 20)?;
    let mut path = VerbsPath::new(&device, &domain, std::slice::from_ref(&arena), &VerbsPathConfig::default())?;
    let lending = DonorQueuePairs::new(&device, &domain, &path.addresses())?;
    path.connect(&lending.addresses(), memory.remote())?;
    let shared = Shared::new("donor", MEMORY as u64, StaticWindow::PAPER, SharedConfig::default());
    let mut engine = Engine::new(&shared, path, EngineConfig::default());
    let mut target = Some(arena.alloc(LEN, LEN)?);
    let mut finished = Vec::with_capacity(64);
    let (mut at, mut now_ns) = (0, 0);
    count.rounds(ROUNDS, ROUNDS, |count| {
        at = (at + 5 * LEN as u64) % MEMORY as u64;
        now_ns += 1000;
        let target_of = target.take().context("it came back")?;
        let back = count.step("initiator", 1, || {
            engine.submit(Request { tag: at, op: Op::Read { at, target: target_of } }).ok()?;
            // The first turn posts it, and the second finds it complete.
            engine.turn(now_ns);
            engine.turn(now_ns + 500);
            engine.poll(&mut finished, 64);
            let one = finished.pop()?;
            one.target.filter(|_| one.result.is_ok())
        });
        target = Some(back.context("a read failed")?);
        Ok(())
    })?;
    let stats = shared.stats();
    ensure!(stats.read_ops == 2 * ROUNDS as u64 && stats.doorbells == stats.read_ops, "{stats:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::OPERATIONS;

    #[test]
    fn two_runs_are_equal() {
        sinew_cost::check_that_runs_are_equal(OPERATIONS);
    }
}
