//! Both sides on one thread, in virtual time.

use sinew::fabric::time::ManualClock;
use sinew::fabric::verbs::{Device, Opcode};
use sinew::shm::verbs::ShmDevice;

use super::link::{Rig, link_of};
use super::plan::{Carrier, Form, Op, Side, VerbsPlan, Work};
use super::{Requester, Responder};
use crate::load::{Load, Slice, State};

/// What a turn takes.
const TURN_NS: u64 = 1000;
/// How long a slice is.
const SLICE_NS: u64 = 200 * TURN_NS;

fn device() -> ShmDevice {
    ShmDevice::open(&"shm://".parse().unwrap()).unwrap()
}

/// Turns a requester for a slice, and what `other` does after each of its turns.
fn slice<D: Device>(
    requester: &mut Requester<D, ManualClock>,
    clock: &ManualClock,
    len_ns: u64,
    mut other: impl FnMut(),
) -> Slice {
    let now = || sinew::fabric::Clock::now_ns(clock);
    requester.begin(now(), now() + len_ns).unwrap();
    while requester.turn(now()).unwrap() != State::Over {
        other();
        clock.advance(TURN_NS);
    }
    requester.end()
}

fn plans() -> impl Iterator<Item = (VerbsPlan, bool)> {
    let of =
        |work, carrier, size| VerbsPlan { window: 8, doorbell: 4, signal: 4, ..VerbsPlan::new(work, carrier, size) };
    let loads = [
        (Op::Send, Carrier::Rc, 32),
        (Op::Send, Carrier::Ud, 5),
        (Op::Write, Carrier::Uc, 33),
        (Op::WriteImm, Carrier::Rc, 4096),
        (Op::Read, Carrier::Rc, 64),
        (Op::FetchAdd, Carrier::Rc, 8),
        (Op::CompareSwap, Carrier::Rc, 8),
    ];
    let echoes = [(Form::Ww, Carrier::Uc), (Form::Ws, Carrier::Uc), (Form::Ss, Carrier::Ud), (Form::Imm, Carrier::Rc)];
    let loads = loads.into_iter().map(move |(op, carrier, size)| of(Work::Load(op), carrier, size));
    let echoes = echoes.into_iter().map(move |(form, carrier)| VerbsPlan {
        doorbell: 1,
        qps: 2,
        signal: 3,
        ..of(Work::Echo(form), carrier, 40)
    });
    let inline = |plan: &VerbsPlan| plan.work == Work::Load(Op::Write) || plan.work == Work::Echo(Form::Ws);
    let many = loads.chain(echoes).map(move |plan| (VerbsPlan { inline: inline(&plan), ..plan }, false));
    let one = VerbsPlan { window: 1, signal: 1, ..VerbsPlan::new(Work::Load(Op::Read), Carrier::Rc, 64) };
    let objects = VerbsPlan { reads: 3, ..one.clone() };
    many.chain([(one.clone(), true), (objects, true), (VerbsPlan { fresh: true, ..one }, true)])
}

#[test]
fn every_kind_of_request_is_made_answered_and_checked_in_virtual_time() {
    for (plan, times) in plans() {
        let (device, clock) = (device(), ManualClock::new());
        let domain = device.protection_domain().unwrap();
        let mut responder = Responder::new(&device, &domain, &plan, plan.qps).unwrap();
        let mut requester = Requester::new(&device, &domain, &plan, plan.qps, times, clock.clone()).unwrap();
        let (theirs, ours) = (responder.addresses().unwrap(), requester.addresses().unwrap());
        requester.connect(&theirs).unwrap();
        responder.connect(&ours).unwrap();
        for _ in 0..2 {
            let slice = slice(&mut requester, &clock, SLICE_NS, || _ = responder.turn().unwrap());
            let made = requester.made();
            assert!(slice.done >= 60 && slice.elapsed_ns >= SLICE_NS, "{plan:?}: {}", slice.done);
            assert!(!slice.latency.is_empty() || !(times || matches!(plan.work, Work::Echo(_))), "{plan:?}");
            for _ in 0..100 {
                responder.turn().unwrap();
            }
            assert!(responder.is_settled(&made).unwrap(), "{plan:?}");
            let found = responder.check(&made).unwrap();
            assert_eq!((found.wrong, found.lost), (0, 0), "{plan:?}");
            let hears = plan.takes_receives() || matches!(plan.work, Work::Echo(_));
            assert_eq!(found.received, if hears { made.iter().sum() } else { 0 }, "{plan:?}");
            let looks = matches!(plan.work, Work::Load(Op::Write | Op::WriteImm));
            assert_eq!(found.looked > 0, looks, "{plan:?}");
        }
    }
}

#[test]
fn what_was_not_written_is_found_and_what_counts_wrong_is_told() {
    for op in [Op::Write, Op::FetchAdd] {
        let plan = VerbsPlan::new(Work::Load(op), Carrier::Rc, 8);
        let (device, clock) = (device(), ManualClock::new());
        let domain = device.protection_domain().unwrap();
        let mut responder = Responder::new(&device, &domain, &plan, 1).unwrap();
        let mut requester = Requester::new(&device, &domain, &plan, 1, false, clock.clone()).unwrap();
        requester.connect(&responder.addresses().unwrap()).unwrap();
        responder.connect(&requester.addresses().unwrap()).unwrap();
        slice(&mut requester, &clock, SLICE_NS, || ());
        let more: Vec<u64> = requester.made().iter().map(|made| made + 1).collect();
        assert_eq!(responder.check(&more).unwrap().wrong, 1, "{op:?}");
        assert!(responder.check(&[1, 2]).is_err() && responder.is_settled(&[]).is_err());
    }
}

#[test]
fn a_server_that_answers_nothing_is_noticed() {
    let plan = VerbsPlan { window: 2, ..VerbsPlan::new(Work::Echo(Form::Ww), Carrier::Rc, 32) };
    let (device, clock) = (device(), ManualClock::new());
    let domain = device.protection_domain().unwrap();
    let mut responder = Responder::new(&device, &domain, &plan, 1).unwrap();
    let mut requester = Requester::new(&device, &domain, &plan, 1, false, clock.clone()).unwrap();
    requester.connect(&responder.addresses().unwrap()).unwrap();
    requester.begin(0, SLICE_NS).unwrap();
    assert_eq!(requester.turn(4_000_000_000).unwrap(), State::Idle);
    assert!(requester.turn(6_000_000_000).unwrap_err().to_string().contains("not answered"));
}

#[test]
fn a_link_whose_last_messages_were_lost_goes_on_while_others_are_answered() {
    let plan = VerbsPlan {
        window: 16,
        doorbell: 4,
        signal: 8,
        qps: 2,
        ..VerbsPlan::new(Work::Load(Op::Send), Carrier::Ud, 32)
    };
    let (device, clock) = (device(), ManualClock::new());
    let domain = device.protection_domain().unwrap();
    let mut rig = Rig::new(&device, &domain, &plan, Side::Server, 2).unwrap();
    let mut requester = Requester::new(&device, &domain, &plan, 2, false, clock.clone()).unwrap();
    let addresses = requester.addresses().unwrap();
    requester.connect(&rig.addresses().unwrap()).unwrap();
    rig.connect(Side::Server, &addresses).unwrap();
    // It receives what comes on both links, and gives credits on the first alone.
    let mut received = 0;
    let serve = || {
        rig.poll().unwrap();
        for mut completion in std::mem::take(&mut rig.completions) {
            let (index, _) = link_of(completion.id);
            if completion.opcode != Opcode::Receive {
                rig.links[index].flow.completed();
                continue;
            }
            rig.post_receive(index, completion.buffers.pop().unwrap()).unwrap();
            received += u64::from(index == 0);
            if index == 0 && received % 16 == 0 {
                rig.push_credit(0, received as u32).unwrap();
            }
        }
    };
    slice(&mut requester, &clock, 100_000_000, serve);
    let [answered, unanswered] = requester.made()[..] else { panic!("two links") };
    let receives = plan.receives() as u64;
    assert!(answered > 10 * receives && unanswered > receives, "{answered} {unanswered} {receives}");
    assert!(unanswered < 7 * receives, "one that hears of nothing waits: {unanswered}");
}
