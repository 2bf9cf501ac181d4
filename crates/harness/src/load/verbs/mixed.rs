//! Echoes of two kinds of messages, each with a length of its own there and another one back, by the calls of verbs
//! that HERD makes: WRITEs that are performed at once where the device can, and datagrams that are shown where they
//! lie.
//!
//! As in HERD, the messages of a link take its slots in turn and end at the ends of the slots, so the server looks for
//! the next one in one place, whatever its length.

use anyhow::{Context, anyhow, ensure};
use sinew::fabric::Clock;
use sinew::fabric::verbs::{
    Device, InlineOperation, InlineRequest, Operation, QueuePair, RemoteMemory, Request, Source,
};
use sinew::mem::{Arena, Frozen};

use super::link::{Flow, Link, Rig, TurnOutcome, id};
use super::message::{self, Layout};
use super::plan::EchoMix;
use crate::load::Slice;

/// Sampling interval: the latency of the messages of one list in this many is recorded.
const SAMPLE_EVERY: u64 = 32;
/// Answers that a server starts together at most.
const BATCH: usize = 32;

/// Room for the messages of each kind that start together, one after another.
struct Images {
    /// By kind.
    bytes: [Vec<u8>; 2],
    /// By kind: length of a message.
    lens: [usize; 2],
}

impl Images {
    fn new(lens: [usize; 2], count: usize) -> Self {
        let images = |len| {
            let mut image = vec![0; len];
            message::write_body(&mut image);
            image.repeat(count)
        };
        Self { bytes: lens.map(images), lens }
    }

    /// Makes the image in a place message number `sequence`.
    #[inline(always)]
    fn stamp(&mut self, kind: usize, place: usize, sequence: u64) {
        let len = self.lens[kind];
        message::stamp(&mut self.bytes[kind][place * len..][..len], sequence);
    }

    #[inline(always)]
    fn at(&self, kind: usize, place: usize) -> &[u8] {
        let len = self.lens[kind];
        &self.bytes[kind][place * len..][..len]
    }
}

/// A message that is on its way.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Number of the message and one more; 0 if the slot is free.
    awaited: u64,
    /// Time when it began, if its latency is recorded; else 0.
    began_ns: u64,
}

/// Messages of a client's link.
struct Window {
    slots: Vec<Slot>,
    images: Images,
    in_flight: usize,
}

/// The client's side.
pub struct MixedEchoes {
    mix: EchoMix,
    windows: Vec<Window>,
    lists: u64,
}

impl MixedEchoes {
    pub fn new<D: Device>(rig: &Rig<D>, mix: EchoMix) -> Self {
        let count = rig.layout.slots;
        let window =
            || Window { slots: vec![Slot::default(); count], images: Images::new(mix.there(), count), in_flight: 0 };
        Self { mix, windows: rig.links.iter().map(|_| window()).collect(), lists: 0 }
    }

    #[inline]
    pub fn turn<D: Device>(
        &mut self,
        rig: &mut Rig<D>,
        clock: &impl Clock,
        may_start: bool,
        slice: &mut Slice,
    ) -> anyhow::Result<TurnOutcome> {
        let (mut arrivals, mut left, mut is_awaited) = (0, 0, false);
        for index in 0..rig.links.len() {
            if may_start {
                self.start(rig, index, clock)?;
            }
            arrivals += self.take_answers(rig, index, clock, may_start, slice)?;
            left += self.windows[index].in_flight;
            is_awaited |= rig.links[index].flow.is_awaited();
        }
        if is_awaited {
            rig.take_own_completions()?;
        }
        Ok(TurnOutcome { is_busy: arrivals > 0, has_returned: arrivals > 0, is_drained: left == 0 })
    }

    /// Starts the messages of all free slots of a link, up to the first slot that is not free.
    #[inline]
    fn start<D: Device>(&mut self, rig: &mut Rig<D>, index: usize, clock: &impl Clock) -> anyhow::Result<()> {
        let (mix, layout, inline_max) = (self.mix, rig.layout, rig.inline_max);
        let Window { slots, images, in_flight } = &mut self.windows[index];
        let Rig { links, arena, .. } = rig;
        let link = &mut links[index];
        let (first, room) = (link.made, link.flow.room() as u64);
        if slots[layout.place(first).0].awaited != 0 || room == 0 {
            return Ok(());
        }
        self.lists += 1;
        let began_ns = if self.lists.is_multiple_of(SAMPLE_EVERY) || layout.slots == 1 { clock.now_ns() } else { 0 };
        let mut next = first;
        while next - first < room {
            let (slot, sequence) = layout.place(next);
            let state = &mut slots[slot];
            if state.awaited != 0 {
                break;
            }
            *state = Slot { awaited: next + 1, began_ns };
            images.stamp(mix.kind(next), slot, sequence);
            next += 1;
        }
        *in_flight += (next - first) as usize;
        let remote = link.remote.context("the other side exposes no memory")?;
        let write = |nth| {
            let (slot, bytes) = (layout.place(nth).0, images.at(mix.kind(nth), layout.place(nth).0));
            (bytes, range(remote, place(layout, slot, bytes.len()), bytes.len()))
        };
        let done = link.qp.write_at_once((first..next).map(write)) as u64;
        link.made += done;
        if link.made < next {
            let requests = (link.made..next).map(|nth| {
                let (bytes, remote) = write(nth);
                (nth, bytes, InlineOperation::Write(remote), None)
            });
            let Link { qp, flow, made, staged, .. } = link;
            Poster { qp, flow, made, staged, arena, index }.post(requests, next, images, inline_max)?;
        }
        Ok(())
    }

    /// Takes the answers of a link that have come. Returns their number.
    #[inline]
    fn take_answers<D: Device>(
        &mut self,
        rig: &mut Rig<D>,
        index: usize,
        clock: &impl Clock,
        counts: bool,
        slice: &mut Slice,
    ) -> anyhow::Result<u64> {
        let (mix, layout) = (self.mix, rig.layout);
        let Window { slots, in_flight, .. } = &mut self.windows[index];
        let (mut answers, mut now_ns, mut wrong) = (0, 0, None);
        rig.poll_answers(index, |answer| {
            let low = answer.immediate.unwrap_or(0);
            let slot = &mut slots[low as usize & (layout.slots - 1)];
            let nth = slot.awaited.wrapping_sub(1);
            let is_right = slot.awaited != 0
                && nth as u32 == low
                && answer.bytes.len() == mix.back()[mix.kind(nth)]
                && message::is_good(answer.bytes, layout.place(nth).1);
            if !is_right {
                wrong = Some(low);
                return;
            }
            slot.awaited = 0;
            answers += 1;
            if slot.began_ns > 0 {
                if now_ns == 0 {
                    now_ns = clock.now_ns();
                }
                slice.latency.saturating_record(now_ns.saturating_sub(slot.began_ns).max(1));
            }
        })?;
        if let Some(low) = wrong {
            return Err(anyhow!("echo {low} is not a message that was sent: the fabric corrupts data"));
        }
        *in_flight -= answers as usize;
        if counts {
            slice.done += answers;
        }
        Ok(answers)
    }
}

/// The server's side.
pub struct MixedAnswers {
    mix: EchoMix,
    images: Images,
    /// By link: number of the next message, which is also the number of those received.
    next: Vec<u64>,
}

impl MixedAnswers {
    pub fn new(mix: EchoMix, links: usize) -> Self {
        Self { mix, images: Images::new(mix.back(), BATCH), next: vec![0; links] }
    }

    /// Messages of a link that were received so far.
    pub fn received(&self, index: usize) -> u64 {
        self.next[index]
    }

    /// Answers the messages that have arrived. Returns their number.
    #[inline]
    pub fn turn<D: Device>(&mut self, rig: &mut Rig<D>) -> anyhow::Result<usize> {
        let (mut found, mut is_awaited) = (0, false);
        for index in 0..rig.links.len() {
            found += self.answer(rig, index)?;
            is_awaited |= rig.links[index].flow.is_awaited();
        }
        if is_awaited {
            rig.take_own_completions()?;
        }
        Ok(found)
    }

    #[inline]
    fn answer<D: Device>(&mut self, rig: &mut Rig<D>, index: usize) -> anyhow::Result<usize> {
        let Self { mix, images, next } = self;
        let Rig { links, arena, layout, seen, inline_max, .. } = rig;
        let link = &mut links[index];
        let exposed = link.exposed.as_ref().context("no memory is exposed")?;
        let (first, room) = (next[index], link.flow.room().min(BATCH));
        let mut count = 0;
        while count < room {
            let nth = first + count as u64;
            let (kind, (slot, sequence)) = (mix.kind(nth), layout.place(nth));
            let len = mix.there()[kind];
            if !message::arrived_at(exposed, place(*layout, slot, len), sequence, &mut seen[..len]) {
                break;
            }
            images.stamp(kind, count, sequence);
            count += 1;
        }
        if count == 0 {
            return Ok(0);
        }
        next[index] += count as u64;
        let (operation, end) = (InlineOperation::Send(link.to), next[index]);
        let requests = (first..end)
            .map(|nth| (nth, images.at(mix.kind(nth), (nth - first) as usize), operation, Some(nth as u32)));
        let Link { reply, flow, made, staged, .. } = link;
        let qp = reply.as_mut().context("there is no queue pair for answers")?;
        Poster { qp, flow, made, staged, arena, index }.post(requests, end, images, *inline_max)?;
        Ok(count)
    }
}

/// Offset of a message of `len` bytes in a slot.
#[inline(always)]
fn place(layout: Layout, slot: usize, len: usize) -> usize {
    layout.offset(slot) + layout.size - len
}

/// Part of a peer's memory, which has room for the whole layout; the device checks its bounds.
#[inline(always)]
fn range(memory: RemoteMemory, offset: usize, len: usize) -> RemoteMemory {
    RemoteMemory { address: memory.address.wrapping_add(offset as u64), len: len as u64, ..memory }
}

/// What posting requests on a link takes.
struct Poster<'a, Q> {
    qp: &'a mut Q,
    flow: &'a mut Flow,
    /// Requests that the link has made.
    made: &'a mut u64,
    staged: &'a mut Vec<Option<Frozen>>,
    arena: &'a Arena,
    index: usize,
}

impl<Q: QueuePair> Poster<'_, Q> {
    /// Posts messages, of which the last has number `end - 1`, with one doorbell: as a list if both kinds are inline.
    #[inline(always)]
    fn post<'b>(
        self,
        messages: impl Iterator<Item = (u64, &'b [u8], InlineOperation, Option<u32>)>,
        end: u64,
        images: &Images,
        inline_max: usize,
    ) -> anyhow::Result<()> {
        let Self { qp, flow, made, staged, arena, index } = self;
        let requests = messages.map(
            // As in other lists, requests need not be put together in memory.
            #[inline(always)]
            |(nth, bytes, operation, immediate)| {
                let signaled = flow.is_signal_due(nth + 1 == end);
                flow.pushed(signaled);
                InlineRequest { id: id(index, nth), bytes, operation, immediate, signaled }
            },
        );
        if images.lens.iter().all(|len| *len <= inline_max) {
            qp.post_inline_list(requests)
                .map_err(|error| anyhow!("posting a list of requests before {end}: {error}"))?;
        } else {
            for request in requests {
                if request.bytes.len() <= inline_max {
                    qp.push_inline(request).map_err(|error| anyhow!("posting a request before {end}: {error}"))?;
                } else {
                    push_staged(qp, staged, arena, request)?;
                }
            }
            qp.doorbell();
        }
        *made = end;
        Ok(())
    }
}

/// Pushes a message that is too long to be inline, from a buffer.
#[inline(never)]
fn push_staged<Q: QueuePair>(
    qp: &mut Q,
    staged: &mut [Option<Frozen>],
    arena: &Arena,
    request: InlineRequest<'_>,
) -> anyhow::Result<()> {
    let InlineRequest { bytes, operation, immediate, signaled, .. } = request;
    ensure!(!staged.is_empty(), "there are no places for messages");
    let turn = (request.id % staged.len() as u64) as usize;
    let mut buffer = match staged[turn].take().map(Frozen::thaw) {
        // A buffer may have held a shorter message.
        Some(Ok(buffer)) if buffer.capacity() >= bytes.len() => buffer,
        // The place has no buffer yet, or the queue pair still holds a reference to it.
        _ => arena.alloc(bytes.len(), bytes.len())?,
    };
    buffer.fill(bytes)?;
    let buffer = buffer.freeze();
    staged[turn] = Some(buffer.clone());
    let source = Source::from(buffer);
    let operation = match operation {
        InlineOperation::Send(to) => Operation::Send { source, immediate, to },
        InlineOperation::Write(remote) => Operation::Write { source, remote, immediate },
    };
    let pushed = qp.push(Request { signaled, ..Request::new(request.id, operation) });
    pushed.map_err(|refused| anyhow!("posting a request: {refused}"))
}
