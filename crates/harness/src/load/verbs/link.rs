//! A thread's queue pairs, on either side.

use std::collections::VecDeque;

use anyhow::{Context, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sinew::fabric::verbs::{
    Access, Attributes, Completion, CompletionQueue, Destination, Device, Exposed, InlineOperation, InlineRequest,
    Message, Opcode, Operation, ProtectionDomain, QpAddress, QpConfig, QueuePair, RemoteMemory, Request, Source,
    ThreadDomain, Transport,
};
use sinew::mem::{Arena, Frozen, MessageBuffer};

use super::message::{self, Layout};
use super::plan::{Op, Side, TransportKind, VerbsPlan, Wait, WorkKind};

/// Completions taken at a time.
const BURST: usize = 32;
/// Polls of an adaptively waiting thread before it sleeps; some 50 us.
const LOOKS_BEFORE_SLEEP: u32 = 1000;
/// Longest sleep of a thread, in ns; it then looks whether it should end.
const NAP_NS: u64 = 20_000_000;
/// Longest inline source of a message, in bytes, if the device allows as much.
const INLINE_MAX: usize = 1024;
/// As [`INLINE_MAX`], of the messages of a mix: as much as in HERD.
const MIX_INLINE_MAX: usize = 256;

/// Verbs objects of a device's thread.
pub type Thread<D> = <<D as Device>::Domain as ProtectionDomain>::Thread;
/// Completion queue of such a thread.
pub type Cq<D> = <Thread<D> as ThreadDomain>::Cq;
/// Queue pair of such a thread.
pub type Qp<D> = <Thread<D> as ThreadDomain>::Qp;

/// Address of a link, as one side sends it to the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkAddress {
    qp: Vec<u8>,
    /// Queue pair that answers go to, if it is another one.
    reply: Option<Vec<u8>>,
    /// Memory that this side exposes.
    memory: Option<[u8; RemoteMemory::BYTES]>,
}

/// Bytes as hexadecimal digits.
pub fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that a value's hexadecimal digits stand for; `None` if it is not a text of such digits.
pub fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    let (pairs, []) = value.as_str()?.as_bytes().as_chunks::<2>() else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

/// Accounting of a queue pair's requests: which are signaled, and how many are in flight.
#[derive(Debug)]
pub struct Flow {
    pub in_flight: usize,
    depth: usize,
    every: usize,
    batch: usize,
    unsignaled: u32,
    /// Whether each request completes by itself, with its buffer, rather than with the next signaled one.
    completes_alone: bool,
    /// Requests that each signaled one stands for, oldest first.
    signals: VecDeque<u32>,
}

impl Flow {
    /// The flow of a plan's requests.
    pub fn of(plan: &VerbsPlan) -> Self {
        let completes_alone = plan.is_atomic() || plan.work == WorkKind::Load(Op::Read);
        Self { completes_alone, ..Self::new(plan.requests(), plan.signal, plan.doorbell) }
    }

    /// `depth` requests in flight, pushed `batch` at a time, one in `every` of which is signaled.
    fn new(depth: usize, every: usize, batch: usize) -> Self {
        let signals = VecDeque::with_capacity(depth);
        Self { in_flight: 0, depth, every, batch, unsignaled: 0, completes_alone: false, signals }
    }

    /// Whether a batch can be pushed.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.in_flight + self.batch <= self.depth
    }

    /// Number of further requests that can be pushed.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.depth - self.in_flight
    }

    /// Whether the next request must be signaled: its turn has come, or it is the last of a batch and no further batch
    /// fits until something completes.
    #[inline(always)]
    pub fn is_signal_due(&self, is_last: bool) -> bool {
        self.unsignaled as usize + 1 >= self.every || (is_last && self.in_flight + 1 + self.batch > self.depth)
    }

    #[inline(always)]
    pub fn pushed(&mut self, signaled: bool) {
        self.in_flight += 1;
        self.unsignaled += 1;
        if signaled {
            let completed = std::mem::take(&mut self.unsignaled);
            if !self.completes_alone {
                self.signals.push_back(completed);
            }
        }
    }

    /// Handles a completion. Returns the number of requests that are over.
    #[inline(always)]
    pub fn completed(&mut self) -> usize {
        let completed = if self.completes_alone { 1 } else { self.signals.pop_front().unwrap_or(0) as usize };
        self.in_flight -= completed.min(self.in_flight);
        completed
    }

    /// Whether the last requests are unsignaled, so that their completion would go unreported.
    pub fn has_silent_tail(&self) -> bool {
        self.unsignaled > 0
    }

    /// Whether a completion is due.
    #[inline(always)]
    pub fn is_awaited(&self) -> bool {
        !self.signals.is_empty()
    }
}

/// A pair of queue pairs, one on each side, and what belongs to it.
pub struct Link<D: Device> {
    pub qp: Qp<D>,
    /// UD queue pair for the answers of echoes whose requests are WRITEs.
    pub(super) reply: Option<Qp<D>>,
    /// Queue of its receives, if they do not complete in that of the thread.
    reply_cq: Option<Cq<D>>,
    pub exposed: Option<<D::Domain as ProtectionDomain>::Exposed>,
    pub remote: Option<RemoteMemory>,
    /// Destination of datagrams.
    pub to: Option<Destination>,
    pub flow: Flow,
    /// Messages, or requests, that this side has made so far.
    pub made: u64,
    /// Sources of requests that are not inline, by their place in the window.
    pub(super) staged: Vec<Option<Frozen>>,
}

/// Result of a turn.
pub(super) struct TurnOutcome {
    /// Whether anything was begun or has arrived.
    pub is_busy: bool,
    /// Whether a request, or a credit, came back.
    pub has_returned: bool,
    /// Whether nothing is in flight.
    pub is_drained: bool,
}

/// Operation that carries a message.
#[derive(Clone, Copy, Debug)]
pub enum MessageOp {
    Write { slot: usize, immediate: Option<u32> },
    Send { immediate: Option<u32> },
}

/// The verbs objects that a thread measures with. Fields are dropped in this order: children first.
pub struct Rig<D: Device> {
    pub links: Vec<Link<D>>,
    pub cq: Cq<D>,
    thread: Thread<D>,
    pub arena: Arena,
    side: Side,
    pub plan: VerbsPlan,
    pub layout: Layout,
    /// Longest source of a request that the queue pairs take inline, in bytes.
    pub inline_max: usize,
    /// The message that is being put together; `seen` is one that is being checked.
    pub message: Vec<u8>,
    /// Messages of a list, one after another.
    messages: Vec<u8>,
    pub seen: Vec<u8>,
    pub completions: Vec<Completion>,
    empty_polls: u32,
}

/// Checks that a device can do what a plan asks for.
///
/// # Errors
///
/// Names the option that asks for too much.
pub fn check_device(plan: &VerbsPlan, attributes: &Attributes) -> anyhow::Result<()> {
    let (name, size) = (&attributes.name, plan.size);
    let is_datagram = plan.carrier == TransportKind::Ud || plan.has_reply_qp();
    let limit = if is_datagram { attributes.mtu } else { attributes.message_len_max };
    ensure!(size <= limit, "--size {size}: {name} takes up to {limit} bytes in a message over this transport");
    let limit = attributes.inline_max.min(INLINE_MAX);
    ensure!(!plan.inline || size <= limit, "--inline: {name} takes up to {limit} bytes inline, and --size is {size}");
    let limit = attributes.queue_depth_max;
    ensure!(
        plan.requests().max(plan.receives()) + 8 < limit,
        "--window {}: {name} takes {limit} requests in a queue",
        plan.window
    );
    ensure!(!plan.is_atomic() || attributes.atomics, "{name} has no atomics");
    Ok(())
}

impl<D: Device> Rig<D> {
    /// The rig of the calling thread, with `count` links that are not connected yet, and their addresses for the other
    /// side. UD queue pairs need no connection, and can be reached from now on.
    pub fn new(
        device: &D,
        domain: &D::Domain,
        plan: &VerbsPlan,
        side: Side,
        count: usize,
    ) -> anyhow::Result<(Self, Vec<LinkAddress>)> {
        let attributes = device.attributes();
        check_device(plan, attributes)?;
        let receives = plan.receives();
        let thread = domain.thread()?;
        // Credits and similar messages need a few more than the window.
        let send_depth = (plan.requests() + 8).min(attributes.queue_depth_max);
        let qps = count * if plan.has_reply_qp() { 2 } else { 1 };
        let cq = thread.completion_queue((qps * (send_depth + receives)).max(1))?;
        // A block takes at most half as much again as is asked for, including what is in front of it.
        let block_bytes = (plan.size.max(64) + 512) * 3 / 2;
        let arena = domain.arena((count.max(1) * (plan.buffers(side) + 2) * block_bytes).max(16 << 20))?;
        let inline_max = if plan.mix.is_some() {
            MIX_INLINE_MAX.min(attributes.inline_max)
        } else if plan.inline {
            plan.size.max(8)
        } else if plan.fresh {
            // A word says which message is asked for.
            8
        } else {
            0
        };
        let config =
            QpConfig { send_depth, receive_depth: receives, inline_max, ..QpConfig::new(plan.carrier.transport()) };
        let (mut links, mut addresses) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for _ in 0..count {
            let mut qp = thread.queue_pair(&config, &cq, &cq)?;
            let reply_config = QpConfig { transport: Transport::Ud, ..config };
            let has_own_queue = plan.mix.is_some() && side == Side::Client;
            let reply_cq = has_own_queue.then(|| thread.completion_queue(send_depth + receives)).transpose()?;
            let receives_in = reply_cq.as_ref().unwrap_or(&cq);
            let reply = plan.has_reply_qp().then(|| thread.queue_pair(&reply_config, &cq, receives_in));
            let mut reply = reply.transpose()?;
            let exposed = plan.exposes(side).then(|| domain.expose(plan.exposed_bytes(), Access::ALL)).transpose()?;
            for qp in std::iter::once(&mut qp).chain(&mut reply).filter(|qp| !qp.transport().is_connected()) {
                qp.connect(None).context("starting a UD queue pair")?;
            }
            addresses.push(LinkAddress {
                qp: qp.address().to_bytes().to_vec(),
                reply: reply.as_ref().map(|reply| reply.address().to_bytes().to_vec()),
                memory: exposed.as_ref().map(|exposed| exposed.remote().to_bytes()),
            });
            let staged = (0..plan.requests()).map(|_| None).collect();
            let flow = Flow::of(plan);
            links.push(Link { qp, reply, reply_cq, exposed, remote: None, to: None, flow, made: 0, staged });
        }
        let mut message = vec![0; plan.message_len()];
        message::write_body(&mut message);
        let rig = Self {
            links,
            cq,
            thread,
            arena,
            side,
            layout: plan.layout(),
            inline_max,
            messages: message.repeat(plan.doorbell),
            message,
            seen: vec![0; plan.size],
            completions: Vec::with_capacity(BURST),
            plan: plan.clone(),
            empty_polls: 0,
        };
        Ok((rig, addresses))
    }

    /// Connects the links, and posts the receives of those queue pairs that messages come to.
    pub fn connect(&mut self, addresses: &[LinkAddress]) -> anyhow::Result<()> {
        ensure!(addresses.len() == self.links.len(), "{} addresses for {} links", addresses.len(), self.links.len());
        let side = self.side;
        let other = if side == Side::Client { Side::Server } else { Side::Client };
        let needed = if self.plan.exposes(other) { self.plan.exposed_bytes() as u64 } else { 0 };
        for (index, address) in addresses.iter().enumerate() {
            let link = &mut self.links[index];
            if link.qp.transport().is_connected() {
                link.qp.connect(Some(&qp_address(&address.qp)?)).context("connecting a queue pair")?;
                if let (Side::Server, Some(reply)) = (side, &address.reply) {
                    link.to = Some(self.thread.destination(&qp_address(reply)?)?);
                }
            } else {
                link.to = Some(self.thread.destination(&qp_address(&address.qp)?)?);
            }
            link.remote = address.memory.as_ref().map(RemoteMemory::from_bytes);
            let bytes = link.remote.map_or(0, |remote| remote.len);
            ensure!(bytes >= needed, "the other side exposes {bytes} bytes, but {needed} are needed");
            if self.plan.posts_receives(side) {
                for _ in 0..self.plan.receives() {
                    let buffer = self.arena.alloc(self.plan.size.max(8), self.plan.size.max(8))?;
                    self.post_receive(index, buffer)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the message that arrived on a link is the `nth`.
    #[inline]
    pub fn is_message(&mut self, index: usize, came: &Completion, nth: u64) -> anyhow::Result<bool> {
        let (slot, sequence) = self.layout.place(nth);
        let is_good = match (came.opcode, came.buffers.first()) {
            (Opcode::ReceiveWrite, _) => self.holds(index, slot, sequence)?,
            (_, Some(buffer)) => message::is_good(&buffer[..came.len], sequence),
            (_, None) => false,
        };
        Ok(is_good && came.len == self.plan.message_len())
    }

    /// Whether the exposed memory of a link holds message number `sequence` in a slot.
    pub fn holds(&mut self, index: usize, slot: usize, sequence: u64) -> anyhow::Result<bool> {
        let exposed = self.links[index].exposed.as_ref().context("no memory is exposed")?;
        exposed.read(self.layout.offset(slot), &mut self.seen)?;
        Ok(message::is_good(&self.seen, sequence))
    }

    /// Whether message number `sequence` has arrived in the exposed memory of a link.
    #[inline]
    pub fn has_arrived(&mut self, index: usize, slot: usize, sequence: u64) -> bool {
        let exposed = self.links[index].exposed.as_ref();
        exposed.is_some_and(|exposed| self.layout.arrived(exposed, slot, sequence, &mut self.seen))
    }

    /// Posts a buffer to the queue pair that messages of a link come to.
    #[inline]
    pub fn post_receive(&mut self, index: usize, mut buffer: MessageBuffer) -> anyhow::Result<()> {
        buffer.resize(self.plan.size.max(8))?;
        let link = &mut self.links[index];
        let qp = link.reply.as_mut().unwrap_or(&mut link.qp);
        qp.post_buffer(id(index, 0), buffer).map_err(|refused| anyhow!("posting a receive: {refused}"))
    }

    /// Takes up to [`BURST`] completions into `self.completions`. Returns their number. An unsuccessful one is an
    /// error.
    #[inline]
    pub fn poll(&mut self) -> anyhow::Result<usize> {
        let count = self.cq.poll(&mut self.completions, BURST);
        self.check_polled(count)
    }

    /// As [`Self::poll`], but passes the messages of a link to `take` while they lie in their receives, which stay
    /// posted. They count as well.
    #[inline]
    pub fn poll_messages(
        &mut self,
        index: usize,
        mut take: impl FnMut(&VerbsPlan, Message<'_>),
    ) -> anyhow::Result<usize> {
        let Self { cq, links, completions, plan, .. } = self;
        let shown = cq.poll_messages(&mut links[index].qp, completions, BURST, |message| take(plan, message));
        let shown = shown.map_err(|refused| anyhow!("posting a receive: {refused}"))?;
        self.check_polled(shown + self.completions.len())
    }

    /// Passes the answers of a link, which come to a queue of their own, to `take` while they lie in their receives.
    /// Returns their number.
    #[inline]
    pub fn poll_answers(&mut self, index: usize, take: impl FnMut(Message<'_>)) -> anyhow::Result<usize> {
        let Self { links, completions, .. } = self;
        let Link { reply: Some(reply), reply_cq: Some(cq), .. } = &mut links[index] else {
            bail!("a link has no queue of its own for answers")
        };
        let shown = cq.poll_messages(reply, completions, BURST, take);
        let shown = shown.map_err(|refused| anyhow!("posting a receive: {refused}"))?;
        // A receive that does not show a message has failed.
        self.check_polled(shown)
    }

    /// Takes the completions of this side's own requests, when no others come to the thread's queue.
    #[inline]
    pub fn take_own_completions(&mut self) -> anyhow::Result<()> {
        self.poll()?;
        let Self { links, completions, .. } = self;
        for completion in completions.drain(..) {
            links[link_of(completion.id).0].flow.completed();
        }
        Ok(())
    }

    #[inline]
    fn check_polled(&mut self, count: usize) -> anyhow::Result<usize> {
        if count > 0 {
            self.empty_polls = 0;
        }
        if let Some(bad) = self.completions.iter().find(|completion| !completion.status.is_success()) {
            bail!("{:?} {} failed: {}", bad.opcode, bad.id & NTH_MASK, bad.status);
        }
        Ok(count)
    }

    /// Waits after a poll that found nothing. Returns whether the thread has slept.
    #[inline]
    pub fn rest(&mut self, wait: Wait) -> anyhow::Result<bool> {
        self.empty_polls = self.empty_polls.saturating_add(1);
        let sleeps = wait == Wait::Events || (wait == Wait::Adaptive && self.empty_polls >= LOOKS_BEFORE_SLEEP);
        if sleeps {
            self.cq.wait(Some(NAP_NS)).context("waiting for completions")?;
        }
        Ok(sleeps)
    }

    /// Starts a message as [`Self::push_message`] does, signaled when its turn has come. Returns whether there was room
    /// for it.
    #[inline(always)]
    pub fn start(&mut self, index: usize, sequence: u64, message_op: MessageOp) -> anyhow::Result<bool> {
        let flow = &self.links[index].flow;
        if !flow.has_room() {
            return Ok(false);
        }
        self.push_message(index, sequence, message_op, flow.is_signal_due(true))?;
        let link = &mut self.links[index];
        match (&mut link.reply, message_op) {
            (Some(reply), MessageOp::Send { .. }) => reply.doorbell(),
            _ => link.qp.doorbell(),
        }
        Ok(true)
    }

    /// Pushes a message, which is `self.message` with number `sequence`, as a WRITE to `slot`, or as a SEND.
    #[inline(always)]
    pub fn push_message(
        &mut self,
        index: usize,
        sequence: u64,
        message_op: MessageOp,
        signaled: bool,
    ) -> anyhow::Result<()> {
        if !self.plan.inline || self.message.is_empty() {
            return self.push_staged(index, sequence, message_op, signaled);
        }
        message::stamp(&mut self.message, sequence);
        self.links[index].push_from(index, self.layout, Source::Inline(&self.message), message_op, signaled)
    }

    /// Pushes a message that lies in a buffer, or has no bytes.
    #[inline(never)]
    fn push_staged(
        &mut self,
        index: usize,
        sequence: u64,
        message_op: MessageOp,
        signaled: bool,
    ) -> anyhow::Result<()> {
        let (link, len) = (&mut self.links[index], self.message.len());
        let mut source = Source::Empty;
        if len > 0 {
            let turn = link.made % link.staged.len() as u64;
            let place = &mut link.staged[turn as usize];
            let mut buffer = match place.take().map(Frozen::thaw) {
                Some(Ok(buffer)) => buffer,
                // The place has no buffer yet, or the queue pair still holds a reference to it.
                _ => {
                    let mut fresh = self.arena.alloc(len, len)?;
                    message::write_body(&mut fresh);
                    fresh
                }
            };
            message::stamp(&mut buffer, sequence);
            let buffer = buffer.freeze();
            *place = Some(buffer.clone());
            source = Source::from(buffer);
        }
        link.push_from(index, self.layout, source, message_op, signaled)
    }

    /// Whether messages are posted with [`Self::post_messages`].
    #[inline(always)]
    pub fn posts_lists(&self) -> bool {
        let is_message = matches!(self.plan.work, WorkKind::Load(Op::Write | Op::Send));
        self.plan.inline && is_message && !self.message.is_empty()
    }

    /// Posts as many messages as one doorbell starts, as a list of inline WRITEs or SENDs.
    #[inline]
    pub fn post_messages(&mut self, index: usize) -> anyhow::Result<()> {
        let Self { links, messages, message, layout, plan, .. } = self;
        let (layout, len) = (*layout, message.len());
        let link = &mut links[index];
        let first = link.made;
        link.made += plan.doorbell as u64;
        for (nth, message) in (first..link.made).zip(messages.chunks_exact_mut(len)) {
            message::stamp(message, layout.place(nth).1);
        }
        let messages = (first..link.made).zip(messages.chunks_exact(len));
        if plan.work == WorkKind::Load(Op::Send) {
            let (to, is_numbered) = (InlineOperation::Send(link.to), plan.is_numbered());
            return link.post_inline_list(index, messages, |nth| (to, is_numbered.then_some(nth as u32)));
        }
        let RemoteMemory { address, rkey, len } = link.remote.context("the other side exposes no memory")?;
        link.post_inline_list(index, messages, |nth| {
            let offset = layout.offset(layout.place(nth).0) as u64;
            // The other side's memory has room for the whole layout, and the device checks bounds.
            let remote = RemoteMemory { address: address.wrapping_add(offset), rkey, len: len.saturating_sub(offset) };
            (InlineOperation::Write(remote), None)
        })
    }

    /// Tells the sender of a link's messages how far they were received, with a SEND of a header alone.
    pub fn push_credit(&mut self, index: usize, credit: u32) -> anyhow::Result<()> {
        let link = &mut self.links[index];
        let signaled = link.flow.is_signal_due(true);
        let operation = Operation::Send { source: Source::Empty, immediate: Some(credit), to: link.to };
        let mut request = Request::new(id(index, 0), operation);
        request.signaled = signaled;
        link.qp.post(request).map_err(|refused| anyhow!("posting a credit: {refused}"))?;
        link.flow.pushed(signaled);
        Ok(())
    }
}

impl<D: Device> Link<D> {
    /// The other side's memory from an offset on.
    #[inline(always)]
    pub fn remote_at(&self, offset: usize) -> anyhow::Result<RemoteMemory> {
        self.remote.and_then(|remote| remote.at(offset as u64)).context("the other side exposes too little memory")
    }

    /// Posts a list of inline messages, of which the last has number `self.made - 1`. `operation` returns the operation
    /// for a message's number, and the immediate.
    #[inline(always)]
    fn post_inline_list<'a>(
        &mut self,
        index: usize,
        messages: impl Iterator<Item = (u64, &'a [u8])>,
        operation: impl Fn(u64) -> (InlineOperation, Option<u32>),
    ) -> anyhow::Result<()> {
        let Self { qp, flow, made, .. } = self;
        let requests = messages.map(
            // Without inlining, each request is put together in memory, which costs more than a WRITE or a SEND.
            #[inline(always)]
            |(nth, bytes)| {
                let signaled = flow.is_signal_due(nth + 1 == *made);
                flow.pushed(signaled);
                let (operation, immediate) = operation(nth);
                InlineRequest { id: id(index, nth), bytes, operation, immediate, signaled }
            },
        );
        qp.post_inline_list(requests).map_err(|error| anyhow!("posting a list of requests before {made}: {error}"))
    }

    /// Pushes a message. Each request is put together where it is pushed: moving it costs more than a WRITE of a few
    /// bytes.
    #[inline(always)]
    fn push_from(
        &mut self,
        index: usize,
        layout: Layout,
        source: Source<'_>,
        message_op: MessageOp,
        signaled: bool,
    ) -> anyhow::Result<()> {
        let id = id(index, self.made);
        let pushed = match message_op {
            MessageOp::Write { slot, immediate } => {
                let remote = self.remote_at(layout.offset(slot))?;
                let operation = Operation::Write { source, remote, immediate };
                self.qp.push(Request { id, operation, signaled, fence: false, solicited: false })
            }
            MessageOp::Send { immediate } => {
                let operation = Operation::Send { source, immediate, to: self.to };
                let qp = self.reply.as_mut().unwrap_or(&mut self.qp);
                qp.push(Request { id, operation, signaled, fence: false, solicited: false })
            }
        };
        pushed.map_err(|refused| anyhow!("posting request {}: {refused}", self.made))?;
        self.made += 1;
        self.flow.pushed(signaled);
        Ok(())
    }
}

fn qp_address(bytes: &[u8]) -> anyhow::Result<QpAddress> {
    QpAddress::from_bytes(bytes).with_context(|| format!("{bytes:02x?} is not the address of a queue pair"))
}

/// Whether a completion reports a message that arrived.
#[inline(always)]
pub fn is_arrival(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Receive | Opcode::ReceiveWrite)
}

const NTH_BITS: u32 = 48;
/// Bits of a request's id that hold its number within the link; no link makes more requests than these can count.
pub const NTH_MASK: u64 = (1 << NTH_BITS) - 1;

/// Id of the `nth` request of a link, or of a receive.
#[inline(always)]
pub fn id(link: usize, nth: u64) -> u64 {
    (link as u64) << NTH_BITS | nth & NTH_MASK
}

/// Link of an id, and number of the request.
#[inline(always)]
pub fn link_of(id: u64) -> (usize, u64) {
    ((id >> NTH_BITS) as usize, id & NTH_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_request_that_fits_is_always_signaled() {
        for (depth, every, batch) in [(1, 1, 1), (10, 10, 4), (10, 3, 3), (16, 16, 16), (128, 64, 1), (7, 7, 2)] {
            let mut flow = Flow::new(depth, every, batch);
            let mut over = 0;
            for _ in 0..1000 {
                while flow.has_room() {
                    for nth in 1..=batch {
                        flow.pushed(flow.is_signal_due(nth == batch));
                    }
                }
                assert!(flow.is_awaited(), "{depth} {every} {batch}");
                over += flow.completed();
                assert!(flow.in_flight <= depth);
            }
            assert!(over >= 1000);
        }
    }
}
