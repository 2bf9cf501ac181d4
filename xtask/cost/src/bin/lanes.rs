//! Lanes: a thousand idle ones add nothing to a turn or to a call; and the cost of a call on one of them.
//!
//! This is a program of its own, because these calls would change what is inlined in `calls`.

use anyhow::{Context, ensure};
use sinew_cost::{CALL_NS, Count, Ends, Operation, Rings, operation};
use sinew_fabric::ManualClock;
use sinew_mem::MessageBuffer;
use sinew_rpc::{CallOptions, Completion, LaneId, Nexus, RequestType, Rpc};
use sinew_shm::ShmPort;

type Client = Rpc<ShmPort, ManualClock>;

const OPERATIONS: &[Operation] = &[
    operation("call in batches of 8, no lane open", CLIENT, |count| main_calls(count, 0)),
    operation("call in batches of 8, beside 1,000 idle lanes", CLIENT, |count| main_calls(count, LANES)),
    operation("call in batches of 8, on one of 1,000 lanes", CLIENT, lane_calls),
    operation("turn that finds nothing, no lane open", CLIENT, |count| idle_turns(count, 0)),
    operation("turn that finds nothing, beside 1,000 idle lanes", CLIENT, |count| idle_turns(count, LANES)),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const CLIENT: &[&str] = &["client"];
const ECHO: RequestType = RequestType::new(1);
const LANES: usize = 1000;
const SESSIONS: usize = 8;
const BATCH: usize = 8;
const CALLS: usize = 8192;
const LEN: usize = 32;

fn ends() -> anyhow::Result<Ends> {
    let server = Nexus::builder().handle(ECHO, |call| {
        let request = call.request();
        call.reply(&request[..LEN]);
    });
    Ends::new(Rings::Private, &server.build()?, &Nexus::client())
}

/// Makes the calls of the endpoint's owner, beside this many lanes.
#[inline(never)]
fn main_calls(count: &mut Count, lanes: usize) -> anyhow::Result<()> {
    calls(count, lanes, |_, tag| tag, |client, _| client.poll_completion())
}

/// Makes the calls of a library that shares the endpoint.
fn lane_calls(count: &mut Count) -> anyhow::Result<()> {
    calls(count, LANES, |lane, tag| CallOptions::tag(tag).lane(lane), |client, lane| client.poll_lane(lane))
}

/// Makes a batch of calls in each turn of either end; `options` and `poll` are handed the first lane.
fn calls<O: Into<CallOptions>>(
    count: &mut Count,
    lanes: usize,
    options: impl Fn(LaneId, u64) -> O,
    poll: impl Fn(&mut Client, LaneId) -> Option<Completion>,
) -> anyhow::Result<()> {
    let mut ends = ends()?;
    let sessions = (0..SESSIONS).map(|_| ends.connect()).collect::<anyhow::Result<Vec<_>>>()?;
    let mut idle: Vec<(MessageBuffer, MessageBuffer)> = Vec::new();
    for _ in 0..2 * BATCH {
        idle.push((ends.client.alloc(LEN)?, ends.client.alloc(LEN)?));
    }
    let Ends { clock, server, client } = &mut ends;
    let lanes: Vec<_> = (0..lanes).map(|_| client.open_lane()).collect();
    let lane = lanes.first().copied().unwrap_or_default();
    let (mut started, mut over) = (0u64, 0u64);
    let rounds = CALLS / BATCH;
    let mut number = 0;
    count.rounds(rounds, rounds, |count| {
        let completed = count.step("client", BATCH, || {
            let mut completed = 0;
            while let Some(completion) = poll(client, lane) {
                let in_order = completion.response[..8] == completion.tag.to_le_bytes();
                if completion.result.is_err() || !in_order {
                    return None;
                }
                completed += 1;
                idle.push((completion.request, completion.response));
            }
            for _ in 0..BATCH {
                let (mut request, response) = idle.pop()?;
                request[..8].copy_from_slice(&started.to_le_bytes());
                let session = sessions[started as usize % SESSIONS];
                client.enqueue_request(session, ECHO, request, response, options(lane, started)).ok()?;
                started += 1;
            }
            client.turn();
            Some(completed)
        });
        let completed = completed.context("a call failed")?;
        server.turn();
        // The answers to a batch arrive in the turn after it, and are seen in the step after that.
        let expected = if number < 2 { 0 } else { BATCH };
        ensure!(completed == expected, "{completed} answers");
        over += completed as u64;
        number += 1;
        clock.advance(CALL_NS * BATCH as u64);
        Ok(())
    })?;
    ensure!(over + 2 * BATCH as u64 == started && client.stats().retransmissions == 0);
    ensure!(lanes.iter().skip(1).all(|&other| client.poll_lane(other).is_none()), "an idle lane has something");
    Ok(())
}

/// Takes turns with eight sessions and this many lanes open, and nothing to do in any.
#[inline(never)]
fn idle_turns(count: &mut Count, lanes: usize) -> anyhow::Result<()> {
    let mut ends = ends()?;
    for _ in 0..SESSIONS {
        ends.connect()?;
    }
    let Ends { clock, server, client } = &mut ends;
    (0..lanes).for_each(|_| _ = client.open_lane());
    count.rounds(5_000, 5_000, |count| {
        let busy = count.step("client", 1, || client.turn()) | server.turn();
        ensure!(!busy, "a turn found something");
        clock.advance(CALL_NS);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::OPERATIONS;

    #[test]
    fn two_runs_are_equal() {
        sinew_cost::check_that_runs_are_equal(OPERATIONS);
    }
}
