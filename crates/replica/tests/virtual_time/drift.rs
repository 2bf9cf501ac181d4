//! Reads by lease, where the leader's clock runs slower than the others'.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_replica::client::{Client, RequestOutcome};
use sinew_replica::client_wire::{ClientRequest, Freshness};
use sinew_replica::kv::{Query, QueryResult};
use sinew_replica::member::MemberConfig;
use sinew_replica::wire;
use sinew_rpc::Endpoint;
use sinew_sim::{Actor, ActorState, HostId, SimClock};

use crate::clients::Event;
use crate::operator::Office;
use crate::sim::{MS, Setup, Sim, SimRpc, next_turn};

/// A read that was answered: when it began, and the value.
type Reading = (u64, Option<u64>);

/// Pause between two requests of a client.
const PAUSE_NS: u64 = MS / 4;

/// A client that reads by lease all the time.
struct Reader {
    client: Client<SimRpc>,
    clock: SimClock,
    begun_ns: u64,
    begin_ns: u64,
    readings: Rc<RefCell<Vec<Reading>>>,
}

impl Actor for Reader {
    fn turn(&mut self) -> ActorState {
        let mut busy = self.client.turn();
        let now_ns = self.client.rpc().now_ns();
        while let Some((_, result)) = self.client.poll() {
            busy = true;
            if let Ok(RequestOutcome::QueryAnswer(found)) = result {
                let Ok(QueryResult::Item { item, .. }) = wire::decode(&found) else { panic!("{found:?}") };
                let value = item.map(|item| u64::from_le_bytes(*item.value.first_chunk().unwrap()));
                self.readings.borrow_mut().push((self.begun_ns, value));
            }
        }
        if self.client.in_flight() == 0 && now_ns >= self.begin_ns {
            let mut bytes = Vec::new();
            wire::encode(&Query::Get { key: b"k" }, &mut bytes);
            self.client.read(0, Freshness::Lease, &bytes, 1_000 * MS).unwrap();
            (self.begun_ns, self.begin_ns, busy) = (now_ns, now_ns + PAUSE_NS, true);
        }
        next_turn(
            busy,
            self.client.next_turn_ns().unwrap_or(self.begin_ns.max(now_ns + 1000)),
            &self.clock,
            self.client.rpc(),
        )
    }
}

/// Cuts a leader off together with a client that reads by lease, while another client writes, with these clocks of the
/// leader and of the others. Returns how many reads did not see what had been written before they began, and how many
/// reads were answered after the cut.
fn stale_reads(leader_ppm: i32, others_ppm: i32, seed: u64) -> (usize, usize) {
    let drifts_ppm = vec![leader_ppm, others_ppm, others_ppm];
    let mut sim = Sim::with(Setup { members: 3, seed, drifts_ppm, ..Setup::default() });
    let log = sim.writer(1_000_000, PAUSE_NS);
    let host = sim.client_host() + 1;
    let (client, place) = sim.client(host, "reader", None);
    let readings = Rc::new(RefCell::new(Vec::new()));
    let reader = Reader { client, clock: sim.clock(host), begun_ns: 0, begin_ns: 0, readings: Rc::clone(&readings) };
    sim.cluster.add("reader", [place], Box::new(reader));
    let office = Office::new(&mut sim, host + 1, "operator");
    assert!(sim.pass_until(1_000, |sim| sim.leader().is_some()));
    office.order(&sim, ClientRequest::Transfer { name: Some("a".into()) });
    assert!(sim.pass_until(1_000, |sim| sim.leader() == Some(0) && !office.is_busy()));
    sim.pass_ms(150);
    assert_eq!(sim.leader(), Some(0), "seed {seed}");
    let cut_ns = sim.cluster.network().now_ns();
    for inside in [0, host] {
        for outside in (0..host + 2).filter(|outside| ![0, host].contains(outside)) {
            sim.cluster.network().set_cut(HostId(inside), HostId(outside), true);
            sim.cluster.network().set_cut(HostId(outside), HostId(inside), true);
        }
    }
    sim.pass_ms(300);
    let puts: Vec<(u64, u64)> = log
        .borrow()
        .iter()
        .filter_map(|event| match event {
            Event::Put { value, at_ns, .. } => Some((*at_ns, *value)),
            _ => None,
        })
        .collect();
    assert!(puts.last().is_some_and(|(at_ns, _)| *at_ns > cut_ns + 100 * MS), "seed {seed}: writes have stopped");
    let readings = readings.borrow();
    let written_before = |begun_ns| puts[..puts.partition_point(|(at_ns, _)| *at_ns < begun_ns)].last();
    let is_stale = |(begun_ns, value): &&Reading| written_before(*begun_ns).is_some_and(|(_, put)| *value < Some(*put));
    let late = readings.iter().filter(|(begun_ns, _)| *begun_ns > cut_ns + MS);
    (readings.iter().filter(is_stale).count(), late.count())
}

#[test]
fn reads_by_lease_are_linearizable_with_clocks_at_the_bound_and_not_far_beyond() {
    let bound_ppm = MemberConfig::default().drift_max_ppm as i32;
    let (mut stale_beyond, mut late_within) = (0, 0);
    for seed in 0..8 {
        let (stale, late) = stale_reads(0, bound_ppm, seed);
        assert_eq!(stale, 0, "seed {seed}");
        late_within += late;
        stale_beyond += stale_reads(-800_000, 0, seed).0;
    }
    // Leaders that were cut off went on answering for a while.
    assert!(late_within > 0);
    assert!(stale_beyond > 0, "the drift shows nothing");
}
