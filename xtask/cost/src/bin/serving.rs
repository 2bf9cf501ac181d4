//! Calls served by a handler with published counters, by a closure, and by polling.

use anyhow::{Context, ensure};
use sinew_cost::{CALL_NS, Count, Ends, Operation, Rings, operation};
use sinew_fabric::ManualClock;
use sinew_mem::MessageBuffer;
use sinew_rpc::{Nexus, NexusBuilder, RequestType, Rpc};
use sinew_shm::ShmPort;

type Server = Rpc<ShmPort, ManualClock>;

const OPERATIONS: &[Operation] = &[
    operation("call in batches of 8, counters published", SERVER, |count| {
        calls(count, 8, with_handler(), true, |server| server.turn())
    }),
    operation("call in batches of 1, counters published", SERVER, |count| {
        calls(count, 1, with_handler(), true, |server| server.turn())
    }),
    operation("call in batches of 8, to a closure", SERVER, |count| {
        calls(count, 8, Nexus::builder(), false, |server| {
            server.turn_with(|call| {
                let request = call.request();
                call.reply(&request[..LEN]);
            })
        })
    }),
    operation("call in batches of 8, polled", SERVER, |count| {
        calls(count, 8, Nexus::builder().handle_polled(ECHO), false, |server| {
            let busy = server.turn();
            while let Some(call) = server.poll_request() {
                server.reply_with(call, LEN, |request, response| response.copy_from_slice(&request[..LEN]));
            }
            busy
        })
    }),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const SERVER: &[&str] = &["server"];
const ECHO: RequestType = RequestType::new(1);
const SESSIONS: usize = 8;
const CALLS: usize = 8192;
const LEN: usize = 32;

fn with_handler() -> NexusBuilder {
    Nexus::builder().handle(ECHO, |call| {
        let request = call.request();
        call.reply(&request[..LEN]);
    })
}

/// Makes `batch` calls in each turn of either end.
fn calls(
    count: &mut Count,
    batch: usize,
    nexus: NexusBuilder,
    is_watched: bool,
    mut turn: impl FnMut(&mut Server) -> bool,
) -> anyhow::Result<()> {
    let mut ends = Ends::new(Rings::Private, &nexus.build()?, &Nexus::client())?;
    let sessions = (0..SESSIONS).map(|_| ends.connect()).collect::<anyhow::Result<Vec<_>>>()?;
    let mut idle: Vec<(MessageBuffer, MessageBuffer)> = Vec::new();
    for _ in 0..4 * batch {
        idle.push((ends.client.alloc(LEN)?, ends.client.alloc(LEN)?));
    }
    let Ends { clock, server, client } = &mut ends;
    let reader = is_watched.then(|| server.stats_reader());
    let (mut started, mut over) = (0, 0);
    let rounds = CALLS / batch;
    count.rounds(rounds, rounds, |count| {
        while let Some(completion) = client.poll_completion() {
            completion.result?;
            over += 1;
            idle.push((completion.request, completion.response));
        }
        for _ in 0..batch {
            let (request, response) = idle.pop().context("the answers are late")?;
            client.enqueue_request(sessions[started % SESSIONS], ECHO, request, response, 0)?;
            started += 1;
        }
        client.turn();
        let handled = server.stats().requests_handled;
        count.step("server", batch, || turn(server));
        let handled = server.stats().requests_handled - handled;
        ensure!(handled == batch as u64, "{handled} requests in a turn");
        if let Some(reader) = &reader {
            ensure!(reader.read().stats == server.stats(), "the counters were not published");
        }
        clock.advance(CALL_NS * batch as u64);
        Ok(())
    })?;
    ensure!(started - over <= 4 * batch && client.stats().retransmissions == 0);
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
