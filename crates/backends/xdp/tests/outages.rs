//! Interfaces that are off for a while, and queues that are full.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sinew_fabric::frames::{FrameBurst, FramePort, FrameRx, FrameTx, LentFrame};
use sinew_fabric::{Armed, Dropped, MAX_BURST, Readiness};
use sinew_xdp::testbed::{Pair, PairOptions, Side};
use sinew_xdp::{FrameOptions, InterfaceOptions, Memory, Mode, XdpFrames};

mod common;

const PATIENCE: Duration = Duration::from_secs(10);
const RING: u32 = 256;

fn open(pair: &Pair, side: Side, memory: &Arc<Memory>, queue: Option<u32>) -> XdpFrames {
    let interface = InterfaceOptions { ring: RING, ..InterfaceOptions::default() };
    let options = FrameOptions { interface, queue, ..FrameOptions::default() };
    pair.at(side).within(|| XdpFrames::open(side.interface(), memory, &options)).unwrap().unwrap()
}

fn frame(mark: u8) -> Vec<u8> {
    [&[2; 12][..], &[0x88, 0xB5], &[mark; 90]].concat()
}

fn send(port: &mut XdpFrames, mark: u8, count: usize) {
    let (_, tx) = port.split();
    (0..count).for_each(|_| tx.push(&frame(mark), &[]));
    tx.submit();
}

/// The marks of the frames of one burst.
fn marks(port: &mut XdpFrames) -> Vec<u8> {
    let mut burst = FrameBurst::new(0);
    port.split().0.receive(&mut burst);
    burst.frames.iter().map(|frame| frame.bytes()[20]).collect()
}

/// Passes on received frames; returns how many.
fn pass(from: &mut XdpFrames, to: &mut XdpFrames) -> usize {
    let mut burst = FrameBurst::new(0);
    from.split().0.receive(&mut burst);
    let count = burst.frames.len();
    burst.frames.drain(..).for_each(|frame| to.split().1.forward(frame));
    drop(burst);
    to.split().1.submit();
    count
}

/// Repeats `done` until it returns true.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what}");
    }
}

#[test]
fn an_interface_that_is_down_costs_its_own_frames_alone_and_works_when_it_is_up_again() {
    let alike = PairOptions { addresses: false, ..PairOptions::default() };
    let (Some(left), Some(right)) = (common::pair(alike), common::pair(alike)) else { return };
    // Exactly as many chunks as the ports are promised.
    let memory = Memory::new(2 * (RING + RING + RING / 2) as usize, 2048).unwrap();
    let (mut from, mut to) = (open(&left, Side::B, &memory, None), open(&right, Side::A, &memory, None));
    let (mut near, mut far) = (common::frames(&left, Side::A), common::frames(&right, Side::B));
    right.switch(Side::A, false).unwrap();
    const FRAMES: usize = 4096;
    for round in 0..FRAMES / 32 {
        send(&mut near, 1, 32);
        let mut passed = 0;
        until(&format!("round {round}: {} chunks are free", memory.free_chunks()), || {
            passed += pass(&mut from, &mut to);
            passed == 32
        });
    }
    assert!(to.stats().dropped(Dropped::Full) > 0, "{:?}", to.stats());
    right.switch(Side::A, true).unwrap();
    until("nothing goes through although all are up", || {
        send(&mut near, 2, 1);
        pass(&mut from, &mut to);
        marks(&mut far).contains(&2)
    });
    drop((from, to));
    assert_eq!(memory.free_chunks(), memory.chunks());
}

#[test]
fn a_queue_that_is_full_keeps_no_other_waiting() {
    let Some(pair) = common::pair(PairOptions { addresses: false, queues: 2, ..PairOptions::default() }) else {
        return;
    };
    let memory = Memory::new(8192, 2048).unwrap();
    // In native mode, a frame arrives at the queue at which it was sent.
    let interface = InterfaceOptions { mode: Mode::Native, ring: RING, ..InterfaceOptions::default() };
    let options = FrameOptions { interface, ..FrameOptions::default() };
    let mut port =
        pair.at(Side::B).within(|| XdpFrames::open(Side::B.interface(), &memory, &options)).unwrap().unwrap();
    let [mut first, mut second] = [0, 1].map(|queue| open(&pair, Side::A, &memory, Some(queue)));
    send(&mut first, 1, 3 * MAX_BURST);
    send(&mut second, 2, 1);
    std::thread::sleep(Duration::from_millis(100));
    let got = [marks(&mut port), marks(&mut port)].concat();
    assert_eq!(got.len(), 2 * MAX_BURST);
    assert!(got.contains(&1) && got.contains(&2), "one queue alone was looked at");
}

#[test]
fn frames_that_were_lent_when_a_port_is_closed_are_free_again() {
    let Some(pair) = common::pair(PairOptions { addresses: false, ..PairOptions::default() }) else { return };
    let memory = Memory::new(1024, 2048).unwrap();
    let (mut port, mut near) = (open(&pair, Side::B, &memory, None), common::frames(&pair, Side::A));
    send(&mut near, 1, 32);
    until("nothing came", || !marks(&mut port).is_empty());
    drop(port);
    assert_eq!(memory.free_chunks(), memory.chunks());
}

#[test]
fn what_the_kernel_left_goes_later_without_another_push() {
    let Some(pair) = common::pair(PairOptions { addresses: false, ..PairOptions::default() }) else { return };
    let memory = Memory::new(1024, 2048).unwrap();
    let (mut port, mut far) = (open(&pair, Side::A, &memory, None), common::frames(&pair, Side::B));
    for operation in ["submit", "receive", "arm"] {
        pair.switch(Side::A, false).unwrap();
        send(&mut port, 1, 8);
        let armed = port.arm(7).unwrap();
        port.disarm();
        assert!(matches!(armed, Armed::Sleep { until_ns: Some(8..) }), "{armed:?}");
        pair.switch(Side::A, true).unwrap();
        let mut came = 0;
        until(operation, || {
            match operation {
                "submit" => port.split().1.submit(),
                "receive" => drop(marks(&mut port)),
                _ => {
                    let _ = port.arm(0).unwrap();
                    port.disarm();
                }
            }
            came += marks(&mut far).len();
            came == 8
        });
        let armed = port.arm(7).unwrap();
        port.disarm();
        assert!(matches!(armed, Armed::Sleep { until_ns: None }), "{armed:?}");
    }
}
