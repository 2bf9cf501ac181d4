//! Calls of the sequencer.

use std::sync::Arc;

use anyhow::{Context, ensure};
use sinew_cost::{CALL_NS, Count, Ends, Operation, Rings, operation};
use sinew_rpc::{Config, Nexus};
use sinew_sequencer::rpc::{NEXT, RpcClient, handler};
use sinew_sequencer::{Client, Epoch, Sequence};

const OPERATIONS: &[Operation] = &[operation("call of the sequencer in batches of 8", &["client", "server"], calls)];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const BATCH: usize = 8;
const ROUNDS: usize = 1024;

fn calls(count: &mut Count) -> anyhow::Result<()> {
    // Two batches are in flight in one session.
    let config = || Config { slots: 2 * BATCH as u16, ..Config::default() };
    let sequence = Arc::new(Sequence::new(0, Epoch(1), 8));
    let server = Nexus::builder().config(config()).handle_burst(NEXT, handler(sequence)).build()?;
    let mut ends = Ends::new(Rings::Private, &server, &Nexus::builder().config(config()).build()?)?;
    let session = ends.connect()?;
    let Ends { clock, mut server, client } = ends;
    let mut client = RpcClient::new(client, session, 2 * BATCH, None)?;
    let (mut round, mut next) = (0, 0);
    count.rounds(ROUNDS, ROUNDS, |count| {
        let answered = count.step("client", BATCH, || {
            let mut answered = 0;
            while let Some(answer) = client.answer() {
                if answer.result.ok()?.first != next {
                    return None;
                }
                next += 1;
                answered += 1;
            }
            for tag in 0..BATCH as u64 {
                client.request(tag, 1).ok()?;
            }
            client.turn(0).ok()?;
            Some(answered)
        });
        let answered = answered.context("a call failed")?;
        let handled = server.stats().requests_handled;
        count.step("server", BATCH, || server.turn());
        ensure!(server.stats().requests_handled - handled == BATCH as u64, "another burst than of {BATCH}");
        ensure!(answered == if round < 2 { 0 } else { BATCH }, "{answered} answers in round {round}");
        round += 1;
        clock.advance(CALL_NS * BATCH as u64);
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
