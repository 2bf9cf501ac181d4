//! Both sides on one thread, in virtual time.

use serde_json::json;
use sinew::fabric::time::ManualClock;
use sinew::fabric::verbs::{Device, Opcode};
use sinew::shm::verbs::{ShmDevice, ShmDomain};

use super::link::{LinkAddress, Rig, link_of};
use super::plan::{EchoForm, EchoMix, Op, Side, TransportKind, VerbsPlan, WorkKind};
use super::{Requester, Responder};
use crate::load::{Load, Slice, State};

/// Duration of a turn.
const TURN_NS: u64 = 1000;
/// Duration of a slice.
const SLICE_NS: u64 = 200 * TURN_NS;

type Client = Requester<ShmDevice, ManualClock>;

/// A client's thread for a plan, with its links' addresses and its clock, and a server's, as `server` makes it.
fn sides<S>(
    plan: &VerbsPlan,
    times: bool,
    server: impl Fn(&ShmDevice, &ShmDomain) -> anyhow::Result<(S, Vec<LinkAddress>)>,
) -> (Client, S, Vec<LinkAddress>, ManualClock) {
    let (device, clock) = (ShmDevice::open(&"shm://".parse().unwrap()).unwrap(), ManualClock::new());
    let domain = device.protection_domain().unwrap();
    let (server, theirs) = server(&device, &domain).unwrap();
    let (mut client, ours) = Requester::new(&device, &domain, plan, plan.qps, times, clock.clone()).unwrap();
    client.connect(&theirs).unwrap();
    (client, server, ours, clock)
}

fn connected(plan: &VerbsPlan, times: bool) -> (Client, Responder<ShmDevice>, ManualClock) {
    let server = |device: &_, domain: &_| Responder::new(device, domain, plan, plan.qps);
    let (client, mut server, ours, clock) = sides(plan, times, server);
    server.connect(&ours).unwrap();
    (client, server, clock)
}

/// Turns a requester for a slice, and calls `other` after each of its turns.
fn slice(requester: &mut Client, clock: &ManualClock, len_ns: u64, mut other: impl FnMut()) -> Slice {
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
        (Op::Send, TransportKind::Rc, 32),
        (Op::Send, TransportKind::Ud, 5),
        (Op::Write, TransportKind::Uc, 33),
        (Op::WriteImm, TransportKind::Rc, 4096),
        (Op::Read, TransportKind::Rc, 64),
        (Op::FetchAdd, TransportKind::Rc, 8),
        (Op::CompareSwap, TransportKind::Rc, 8),
    ];
    let echoes = [
        (EchoForm::Ww, TransportKind::Uc),
        (EchoForm::Ws, TransportKind::Uc),
        (EchoForm::Ss, TransportKind::Ud),
        (EchoForm::Imm, TransportKind::Rc),
    ];
    let loads = loads.into_iter().map(move |(op, carrier, size)| of(WorkKind::Load(op), carrier, size));
    let echoes = echoes.into_iter().map(move |(form, carrier)| VerbsPlan {
        doorbell: 1,
        qps: 2,
        signal: 3,
        ..of(WorkKind::Echo(form), carrier, 40)
    });
    let inline = |plan: &VerbsPlan| plan.work == WorkKind::Load(Op::Write) || plan.work == WorkKind::Echo(EchoForm::Ws);
    // SENDs are made in both ways.
    let sends = |plan: &VerbsPlan| plan.work == WorkKind::Load(Op::Send) && !plan.header_only;
    let inline_sends = loads.clone().filter(sends).map(|plan| (VerbsPlan { inline: true, ..plan }, false));
    let many = loads.chain(echoes).map(move |plan| (VerbsPlan { inline: inline(&plan), ..plan }, false));
    let many = many.chain(inline_sends);
    let mixes = [([32, 40], [64, 8]), ([24, 8], [400, 301])].map(|(first, second)| {
        let mix = EchoMix { first, second, second_parts: EchoMix::PARTS / 4 };
        let echo = of(WorkKind::Echo(EchoForm::Ws), TransportKind::Uc, mix.size());
        (VerbsPlan { doorbell: 1, qps: 2, signal: 3, mix: Some(mix), ..echo }, false)
    });
    let many = many.chain(mixes);
    let one = VerbsPlan { window: 1, signal: 1, ..VerbsPlan::new(WorkKind::Load(Op::Read), TransportKind::Rc, 64) };
    let objects = VerbsPlan { reads: 3, ..one.clone() };
    let lists = VerbsPlan { window: 8, qps: 2, starts_together: true, ..one.clone() };
    many.chain([(one.clone(), true), (objects, true), (lists, false), (VerbsPlan { fresh: true, ..one }, true)])
}

#[test]
fn every_kind_of_request_is_made_answered_and_checked_in_virtual_time() {
    for (plan, times) in plans() {
        let (mut requester, mut responder, clock) = connected(&plan, times);
        for _ in 0..2 {
            let slice = slice(&mut requester, &clock, SLICE_NS, || _ = responder.turn().unwrap());
            let made = requester.made();
            assert!(slice.done >= 60 && slice.elapsed_ns >= SLICE_NS, "{plan:?}: {}", slice.done);
            assert!(!slice.latency.is_empty() || !(times || matches!(plan.work, WorkKind::Echo(_))), "{plan:?}");
            let mut turns = 0..100;
            let found = responder.check(&made, || turns.next().is_some()).unwrap();
            assert!(!turns.is_empty(), "{plan:?}");
            assert_eq!((found.wrong, found.lost), (0, 0), "{plan:?}");
            let hears = plan.takes_receives() || matches!(plan.work, WorkKind::Echo(_));
            assert_eq!(found.received, if hears { made.iter().sum() } else { 0 }, "{plan:?}");
            let looks = matches!(plan.work, WorkKind::Load(Op::Write | Op::WriteImm));
            assert_eq!(found.looked > 0, looks, "{plan:?}");
        }
    }
}

#[test]
fn what_was_not_written_is_found_and_what_counts_wrong_is_told() {
    for op in [Op::Write, Op::FetchAdd] {
        let plan = VerbsPlan::new(WorkKind::Load(op), TransportKind::Rc, 8);
        let (mut requester, mut responder, clock) = connected(&plan, false);
        slice(&mut requester, &clock, SLICE_NS, || ());
        let more: Vec<u64> = requester.made().iter().map(|made| made + 1).collect();
        assert_eq!(responder.check(&more, || false).unwrap().wrong, 1, "{op:?}");
        assert!(responder.check(&[1, 2], || false).is_err());
    }
}

#[test]
fn a_server_that_answers_nothing_is_noticed() {
    let plan = VerbsPlan { window: 2, ..VerbsPlan::new(WorkKind::Echo(EchoForm::Ww), TransportKind::Rc, 32) };
    let (mut requester, _server, _) = connected(&plan, false);
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
        ..VerbsPlan::new(WorkKind::Load(Op::Send), TransportKind::Ud, 32)
    };
    let server = |device: &_, domain: &_| Rig::new(device, domain, &plan, Side::Server, 2);
    let (mut requester, mut rig, addresses, clock) = sides(&plan, false, server);
    rig.connect(&addresses).unwrap();
    // Receives messages on both links, but gives credits on the first alone.
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

#[test]
fn a_mix_has_both_kinds_of_messages_in_their_shares() {
    let mix = EchoMix { first: [32, 40], second: [64, 8], second_parts: EchoMix::PARTS / 20 };
    let second = (0..100_000).filter(|nth| mix.kind(*nth) == 1).count();
    assert!((4_700..5_300).contains(&second), "{second}");
    for (parts, kind) in [(0, 0), (EchoMix::PARTS, 1)] {
        let mix = EchoMix { second_parts: parts, ..mix };
        assert!((0..1_000).all(|nth| mix.kind(nth) == kind));
    }
}

#[test]
fn a_mix_whose_lengths_do_not_fit_its_plan_is_refused() {
    let good = EchoMix { first: [32, 40], second: [64, 8], second_parts: 1 };
    let plan = |mix: EchoMix, size| VerbsPlan {
        window: 16,
        mix: Some(mix),
        ..VerbsPlan::new(WorkKind::Echo(EchoForm::Ws), TransportKind::Uc, size)
    };
    assert!(plan(good, 64).check().is_ok());
    for (bad, size) in [
        (good, 72),
        (good, 32),
        (EchoMix { first: [33, 40], ..good }, 64),
        (EchoMix { first: [32, 4], ..good }, 64),
        (EchoMix { second_parts: EchoMix::PARTS + 1, ..good }, 64),
    ] {
        assert!(plan(bad, size).check().is_err(), "{bad:?} {size}");
    }
    assert!(VerbsPlan { window: 12, ..plan(good, 64) }.check().is_err());
    assert!(VerbsPlan { work: WorkKind::Echo(EchoForm::Ww), ..plan(good, 64) }.check().is_err());
}

#[test]
fn what_is_no_link_is_refused() {
    let plan = VerbsPlan { window: 4, ..VerbsPlan::new(WorkKind::Echo(EchoForm::Ws), TransportKind::Rc, 32) };
    let server = |device: &_, domain: &_| Rig::new(device, domain, &plan, Side::Server, 1);
    let (_client, mut rig, addresses, _) = sides(&plan, false, server);
    assert!(rig.connect(&[]).is_err());
    for (key, bad) in [("qp", json!(null)), ("qp", json!([0])), ("reply", json!("zz")), ("reply", json!([1, 2]))] {
        let mut address = json!(addresses[0]);
        address[key] = bad;
        let address = serde_json::from_value::<LinkAddress>(address);
        assert!(address.is_err() || rig.connect(&[address.unwrap()]).is_err(), "{key}");
    }
}
