//! Calls: small ones in batches, the packets of a long one, and a turn that finds nothing.

use anyhow::{Context, ensure};
use sinew_cost::{CALL_NS, Count, Ends, Operation, Perform, Rings, operation};
use sinew_fabric::ManualClock;
use sinew_mem::MessageBuffer;
use sinew_rpc::{CallOptions, Nexus, RequestType, Rpc, SessionId};
use sinew_shm::ShmPort;

const OPERATIONS: &[Operation] = &[
    operation("call in batches of 8, private rings", ENDS, |count| calls::<LEN, _>(count, Rings::Private, 8, plain)),
    operation("call in batches of 3, private rings", ENDS, |count| calls::<LEN, _>(count, Rings::Private, 3, plain)),
    operation("call in batches of 1, private rings", ENDS, |count| calls::<LEN, _>(count, Rings::Private, 1, plain)),
    operation("call with a deadline in batches of 8, private rings", ENDS, |count| {
        calls::<LEN, _>(count, Rings::Private, 8, with_deadline)
    }),
    // As long as the answers of the sequencer, whose budget at the server is 60 more.
    operation("call of 16 B in batches of 8, private rings", ENDS, |count| {
        calls::<16, _>(count, Rings::Private, 8, plain)
    }),
    operation("call of 24 B in batches of 8, private rings", ENDS, |count| {
        calls::<24, _>(count, Rings::Private, 8, plain)
    }),
    operation("call of 24 B with a deadline in batches of 8, private rings", ENDS, |count| {
        calls::<24, _>(count, Rings::Private, 8, with_deadline)
    }),
    // Of two lines of the ring, as the answers of the cache are, whose budget at the server is 350 more.
    operation("call of 40 B in batches of 8, private rings", ENDS, |count| {
        calls::<40, _>(count, Rings::Private, 8, plain)
    }),
    operation("call in batches of 8, shared rings", ENDS, |count| calls::<LEN, _>(count, Rings::Shared, 8, plain)),
    operation("call in batches of 3, shared rings", ENDS, |count| calls::<LEN, _>(count, Rings::Shared, 3, plain)),
    operation("call in batches of 1, shared rings", ENDS, |count| calls::<LEN, _>(count, Rings::Shared, 1, plain)),
    long("packet of an 8 MB request, private rings", |count| packets(count, Rings::Private)),
    long("packet of an 8 MB request, shared rings", |count| packets(count, Rings::Shared)),
    operation("turn that finds nothing", ENDS, idle_turns),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const ENDS: &[&str] = &["client", "server"];

const fn long(name: &'static str, perform: Perform) -> Operation {
    Operation { without_copies: true, ..operation(name, ENDS, perform) }
}

const ECHO: RequestType = RequestType::new(1);
const SESSIONS: usize = 8;
const CALLS: usize = 8192;
const LEN: usize = 32;
const LONG_LEN: usize = 8 << 20;

fn echo<const LEN: usize>() -> anyhow::Result<Nexus> {
    let builder = Nexus::builder().handle(ECHO, |call| {
        let request = call.request();
        // A long request gets a short response, since its packets are what is counted.
        call.reply(&request[..LEN]);
    });
    Ok(builder.build()?)
}

fn plain(tag: u64) -> u64 {
    tag
}

/// Options with a deadline later than the end of any call.
fn with_deadline(tag: u64) -> CallOptions {
    CallOptions::tag(tag).timeout_ns(1_000_000_000)
}

/// Makes `batch` calls in each turn of either end: the client takes the answers to the batch before the last, calls
/// again with their buffers, and turns.
fn calls<const LEN: usize, O: Into<CallOptions>>(
    count: &mut Count,
    rings: Rings,
    batch: usize,
    options: impl Fn(u64) -> O,
) -> anyhow::Result<()> {
    let mut ends = Ends::new(rings, &echo::<LEN>()?, &Nexus::client())?;
    let sessions = (0..SESSIONS).map(|_| ends.connect()).collect::<anyhow::Result<Vec<_>>>()?;
    let mut idle: Vec<(MessageBuffer, MessageBuffer)> = Vec::new();
    for _ in 0..2 * batch {
        idle.push((ends.client.alloc(LEN)?, ends.client.alloc(LEN)?));
    }
    let Ends { clock, server, client } = &mut ends;
    let (mut started, mut over) = (0u64, 0u64);
    let rounds = CALLS / batch;
    let mut number = 0;
    count.rounds(rounds, rounds, |count| {
        let completed = count.step("client", batch, || {
            let mut completed = 0;
            while let Some(completion) = client.poll_completion() {
                let in_order = completion.response[..8] == completion.tag.to_le_bytes();
                if completion.result.is_err() || !in_order {
                    return None;
                }
                completed += 1;
                idle.push((completion.request, completion.response));
            }
            for _ in 0..batch {
                let (mut request, response) = idle.pop()?;
                request[..8].copy_from_slice(&started.to_le_bytes());
                let session = sessions[started as usize % SESSIONS];
                client.enqueue_request(session, ECHO, request, response, options(started)).ok()?;
                started += 1;
            }
            client.turn();
            Some(completed)
        });
        let completed = completed.context("a call failed")?;
        let handled = server.stats().requests_handled;
        count.step("server", batch, || server.turn());
        let handled = server.stats().requests_handled - handled;
        // The answers to a batch arrive in the turn after it, and are seen in the step after that.
        let expected = if number < 2 { 0 } else { batch };
        ensure!(completed == expected && handled == batch as u64, "{completed} answers, {handled} requests");
        over += completed as u64;
        number += 1;
        clock.advance(CALL_NS * batch as u64);
        Ok(())
    })?;
    ensure!(over + 2 * batch as u64 == started && client.stats().retransmissions == 0);
    Ok(())
}

/// Sends long requests, one after the other, and counts their packets. The requests' other costs count, too.
fn packets(count: &mut Count, rings: Rings) -> anyhow::Result<()> {
    let mut ends = Ends::new(rings, &echo::<LEN>()?, &Nexus::client())?;
    let session = ends.connect()?;
    let mut buffers = Some((ends.client.alloc(LONG_LEN)?, ends.client.alloc(LEN)?));
    let Ends { clock, server, client } = &mut ends;
    let packets_of_request = {
        let before = client.port_stats().tx_packets;
        long_request(&mut Count::of(""), clock, client, server, session, &mut buffers, 1)?;
        (client.port_stats().tx_packets - before) as usize
    };
    count.rounds(1, 2, |count| {
        let before = client.port_stats().tx_packets;
        long_request(count, clock, client, server, session, &mut buffers, packets_of_request)?;
        let packets = (client.port_stats().tx_packets - before) as usize;
        ensure!(packets == packets_of_request, "{packets} packets, not {packets_of_request}");
        Ok(())
    })
}

/// Makes one long request, from its first turn to its last; all its steps together count as `packets` operations.
fn long_request(
    count: &mut Count,
    clock: &ManualClock,
    client: &mut Rpc<ShmPort, ManualClock>,
    server: &mut Rpc<ShmPort, ManualClock>,
    session: SessionId,
    buffers: &mut Option<(MessageBuffer, MessageBuffer)>,
    packets: usize,
) -> anyhow::Result<()> {
    let (request, response) = buffers.take().context("the buffers are back")?;
    // They count with the first step of either side.
    let mut operations = packets;
    count.step("client", operations, || client.enqueue_request(session, ECHO, request, response, 0))?;
    for _ in 0..1_000 {
        count.step("client", 0, || client.turn());
        count.step("server", operations, || server.turn());
        operations = 0;
        clock.advance(10_000);
        if let Some(completion) = count.step("client", 0, || client.poll_completion()) {
            completion.result?;
            *buffers = Some((completion.request, completion.response));
            return Ok(());
        }
    }
    anyhow::bail!("there was no answer to a long request")
}

/// Takes turns with eight sessions open, and nothing to do in any.
fn idle_turns(count: &mut Count) -> anyhow::Result<()> {
    let mut ends = Ends::new(Rings::Private, &echo::<LEN>()?, &Nexus::client())?;
    for _ in 0..SESSIONS {
        ends.connect()?;
    }
    let Ends { clock, server, client } = &mut ends;
    count.rounds(5_000, 5_000, |count| {
        let busy = count.step("client", 1, || client.turn()) | count.step("server", 1, || server.turn());
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
