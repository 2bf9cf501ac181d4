//! Tests that peers leave no descriptors behind. This is a binary of its own, as it counts the descriptors of its
//! process.

use std::time::{Duration, Instant};

use sinew_fabric::verbs::{
    CompletionQueue, Device, ProtectionDomain, QpConfig, QpState, QueuePair, ThreadDomain, Transport,
};
use sinew_shm::verbs::{ShmCompletionQueue, ShmDevice, ShmQueuePair};

const PATIENCE: Duration = Duration::from_secs(2);

fn end() -> (ShmDevice, ShmCompletionQueue, ShmQueuePair) {
    let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
    let thread = device.protection_domain().unwrap().thread().unwrap();
    let queue = thread.completion_queue(16).unwrap();
    let config = QpConfig { send_depth: 4, receive_depth: 4, ..QpConfig::new(Transport::Rc) };
    let qp = thread.queue_pair(&config, &queue, &queue).unwrap();
    (device, queue, qp)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn peers_that_came_and_went_leave_no_descriptors() {
    let (_device, mut queue, mut qp) = end();
    let mut counts = Vec::new();
    for _ in 0..12 {
        let (device, mut their_queue, mut theirs) = end();
        qp.connect(Some(&theirs.address())).unwrap();
        theirs.connect(Some(&qp.address())).unwrap();
        drop(theirs);
        let mut completions = Vec::new();
        for _ in 0..100 {
            their_queue.poll(&mut completions, 16);
            queue.poll(&mut completions, 16);
        }
        drop((their_queue, device));
        qp.modify(QpState::Reset, None).unwrap();
        // Links to closed ports are removed when the thread's own port does its occasional work.
        let since = Instant::now();
        while counts.get(1).is_some_and(|&count| descriptors() > count) && since.elapsed() < PATIENCE {
            queue.poll(&mut completions, 16);
            queue.wait(Some(1_000_000)).unwrap();
        }
        counts.push(descriptors());
    }
    assert!(counts[11] <= counts[1], "{counts:?}");
}
