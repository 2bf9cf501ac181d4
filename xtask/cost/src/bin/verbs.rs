//! Verbs over shared memory, between the queue pairs of two thread domains, both on one thread.

use anyhow::{Context, ensure};
use sinew_cost::{Count, Operation, device, operation};
use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed, InlineRequest, ProtectionDomain, QpConfig, QueuePair,
    ThreadDomain, Transport,
};
use sinew_mem::{Arena, MessageBuffer};
use sinew_shm::verbs::{ShmCompletionQueue, ShmDomain, ShmQueuePair, ShmThread};

const OPERATIONS: &[Operation] = &[
    operation("WRITE of 32 B, a doorbell each", &["initiator"], |count| writes(count, Form::Alone)),
    operation("WRITE of 32 B, in lists of 16", &["initiator"], |count| writes(count, Form::List)),
    operation("WRITE of 32 B at once, in lists of 16", &["initiator"], |count| writes(count, Form::AtOnce)),
    operation("READ of 32 B, a doorbell each", &["initiator"], |count| reads(count, false)),
    operation("READ of 32 B, in lists of 16", &["initiator"], |count| reads(count, true)),
    operation("SEND of 32 B over UD, in lists of 16", &["sender", "receiver"], |count| datagrams(count, true)),
    operation("SEND of 32 B over UD, whose receive completes", &["receiver"], |count| datagrams(count, false)),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const LEN: usize = 32;
/// Requests of a step, of which the last reports that they are complete.
const BURST: usize = 16;
const ROUNDS: usize = 512;

struct End {
    qp: ShmQueuePair,
    sends: ShmCompletionQueue,
    receives: ShmCompletionQueue,
    thread: ShmThread,
    arena: Arena,
}

impl End {
    fn new(domain: &ShmDomain, transport: Transport) -> anyhow::Result<Self> {
        let thread = domain.thread()?;
        let (sends, receives) = (thread.completion_queue(64)?, thread.completion_queue(64)?);
        let config = QpConfig { send_depth: 64, receive_depth: 64, ..QpConfig::new(transport) };
        let qp = thread.queue_pair(&config, &sends, &receives)?;
        Ok(Self { qp, sends, receives, thread, arena: domain.arena(4 << 20)? })
    }

    fn buffer(&self) -> anyhow::Result<MessageBuffer> {
        Ok(self.arena.alloc(LEN, LEN)?)
    }
}

fn pair(transport: Transport) -> anyhow::Result<(ShmDomain, [End; 2])> {
    let domain = device()?.protection_domain()?;
    let mut ends = [End::new(&domain, transport)?, End::new(&domain, transport)?];
    let addresses = [ends[1].qp.address(), ends[0].qp.address()];
    for (end, address) in ends.iter_mut().zip(addresses) {
        end.qp.connect(Some(&address))?;
    }
    Ok((domain, ends))
}

/// The request, which reports its completion if it is the last of a step.
fn last_reports(request: InlineRequest<'_>) -> InlineRequest<'_> {
    InlineRequest { signaled: request.id + 1 == BURST as u64, ..request }
}

fn all_good(completions: &[Completion], expected: usize) -> anyhow::Result<()> {
    let good = completions.iter().filter(|completion| completion.status.is_success()).count();
    ensure!(good == completions.len() && good == expected, "{completions:?}");
    Ok(())
}

/// How WRITEs are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Alone,
    /// Posted as a list, of which the last completes.
    List,
    /// Performed as a list, without a completion.
    AtOnce,
}

fn writes(count: &mut Count, form: Form) -> anyhow::Result<()> {
    let (domain, [mut end, _other]) = pair(Transport::Rc)?;
    let exposed = domain.expose(4096, Access::ALL)?;
    let remote = exposed.remote();
    let mut completions = Vec::with_capacity(64);
    count.rounds(ROUNDS, ROUNDS, |count| {
        let bytes = &std::hint::black_box([7; LEN]);
        let posted = count.step("initiator", BURST, || {
            if form == Form::AtOnce {
                return end.qp.write_at_once((0..BURST).map(move |_| (&bytes[..], remote))) == BURST;
            }
            let mut writes = (0..BURST as u64).map(move |id| last_reports(InlineRequest::write(id, bytes, remote)));
            let posted = if form == Form::List {
                end.qp.post_inline_list(writes).is_ok()
            } else {
                writes.all(|write| end.qp.post_inline(write).is_ok())
            };
            end.sends.poll(&mut completions, BURST);
            posted
        });
        ensure!(posted, "a WRITE was refused");
        all_good(&completions, usize::from(form != Form::AtOnce))?;
        completions.clear();
        Ok(())
    })
}

/// Makes READs, each of which returns its buffer.
fn reads(count: &mut Count, in_lists: bool) -> anyhow::Result<()> {
    let (domain, [mut end, _other]) = pair(Transport::Rc)?;
    let exposed = domain.expose(4096, Access::ALL)?;
    let remote = exposed.remote().at(0).context("there is memory")?;
    let mut targets = (0..BURST).map(|_| end.buffer()).collect::<anyhow::Result<Vec<_>>>()?;
    let mut filled = Vec::with_capacity(BURST);
    let mut completions: Vec<Completion> = Vec::with_capacity(64);
    count.rounds(ROUNDS, ROUNDS, |count| {
        let good = count.step("initiator", BURST, || {
            let reads = targets.drain(..).zip(0..).map(|(buffer, number)| (number, buffer, remote));
            let posted = if in_lists {
                end.qp.post_reads(reads, |_, buffer| filled.push(buffer))
            } else {
                { reads }.try_for_each(|(number, buffer, remote)| end.qp.post_read(number, buffer, remote))
            };
            let mut good = posted.is_ok();
            if filled.len() < BURST {
                end.sends.poll(&mut completions, BURST);
            }
            for completion in &mut completions {
                good &= completion.status.is_success();
                filled.extend(completion.buffers.pop());
            }
            completions.clear();
            good
        });
        ensure!(good && filled.len() == BURST, "{} READs of {BURST}", filled.len());
        std::mem::swap(&mut filled, &mut targets);
        Ok(())
    })
}

/// Sends datagrams, which the receiver is shown, or whose completions it takes and whose buffers it posts again.
fn datagrams(count: &mut Count, are_shown: bool) -> anyhow::Result<()> {
    let (_, [mut sender, mut receiver]) = pair(Transport::Ud)?;
    let to = Some(sender.thread.destination(&receiver.qp.address())?);
    for _ in 0..2 * BURST {
        let buffer = receiver.buffer()?;
        receiver.qp.post_buffer(0, buffer)?;
    }
    let mut sent: Vec<Completion> = Vec::with_capacity(64);
    let mut received: Vec<Completion> = Vec::with_capacity(64);
    let mut round = 0;
    count.rounds(ROUNDS, ROUNDS, |count| {
        let bytes = std::hint::black_box([7; LEN]);
        let posted = count.step("sender", BURST, || {
            let sends = (0..BURST as u64).map(|id| last_reports(InlineRequest::send(id, &bytes, to)));
            let posted = sender.qp.post_inline_list(sends).is_ok();
            sender.sends.poll(&mut sent, BURST);
            posted
        });
        ensure!(posted, "a SEND was refused");
        all_good(&sent, 1)?;
        sent.clear();
        let good = count.step("receiver", BURST, || {
            if are_shown {
                let mut good = 0;
                let taken = receiver.receives.poll_messages(&mut receiver.qp, &mut received, BURST, |message| {
                    good += usize::from(message.bytes == bytes);
                });
                return if taken.is_ok_and(|taken| taken == good) && received.is_empty() { good } else { 0 };
            }
            receiver.receives.poll(&mut received, BURST);
            let good = received.iter().filter(|completion| completion.status.is_success()).count();
            let buffers = received.iter_mut().filter_map(|completion| completion.buffers.pop());
            let posted = receiver.qp.post_buffers(buffers.map(|buffer| (0, buffer)));
            received.clear();
            posted.map_or(0, |()| good)
        });
        // The first messages wait until the link is complete.
        ensure!(round < ROUNDS / 2 || good == BURST, "{good} messages");
        round += 1;
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
