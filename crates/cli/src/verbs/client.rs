//! A client's thread: requests, and what came of them.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use hdrhistogram::Histogram;
use sinew::fabric::Clock;
use sinew::fabric::verbs::{Completion, Device, Opcode, Operation, QueuePair, Request, Scatter, Source};
use sinew::host::{HostClock, Interrupt};
use sinew::mem::MessageBuffer;

use super::link::{Domain, LinkAddress, Patience, Rig, Side, Way, id, is_arrival, link_of};
use super::message::{self, Exchange};
use super::plan::{Form, Op, POINTER, Plan, READS_MAX, Wait, Work};
use crate::client::histogram;

/// The clock is looked at every so many turns of the loop, and after each sleep.
const TURNS_PER_LOOK: u32 = 64;
/// Of so many echoes in flight the time of one is taken.
const SAMPLE_EVERY: u64 = 32;
/// How long an answer, or the end of a request, is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Silence after which messages of an unreliable transport count as lost.
const LOST_AFTER: Duration = Duration::from_millis(20);
/// One READ in so many is looked at byte for byte.
const FULL_CHECK_EVERY: u64 = 64;

/// What came of a slice.
pub struct Slice {
    /// Requests, or echoes, that are over.
    pub done: u64,
    pub elapsed_ns: u64,
    pub latency: Histogram<u64>,
    /// Results of READs and atomics, and echoes, that were not what they had to be.
    pub wrong: u64,
}

/// Overwrites a buffer's ends: what the last result left is no result.
#[inline(always)]
fn spoil(target: &mut [u8]) {
    let len = target.len();
    target[..len.min(8)].fill(0xEE);
    target[len - len.min(8)..].fill(0xEE);
}

/// A client thread's state.
pub struct Client<D: Device> {
    rig: Rig<D>,
    clock: HostClock,
    interrupt: Interrupt,
    /// Requests of each link so far.
    made: Vec<u64>,
    /// How far each link's messages were received, by credits.
    credits: Vec<u64>,
    /// How long a link that may send no more has waited for a credit.
    silences: Vec<Patience>,
    /// Buffers for results of READs and atomics.
    targets: Vec<MessageBuffer>,
    receives: u64,
    done: u64,
    wrong: u64,
    /// By link and slot: when the echo in flight began, if that is recorded,
    began: Vec<u64>,
    /// which it is, or will be,
    next: Vec<u64>,
    /// and whether there is one.
    is_asked: Vec<bool>,
    latency: Histogram<u64>,
    /// When echoes end, and whether they do.
    end_ns: u64,
    ends: bool,
}

impl<D: Device> Client<D> {
    pub fn new(
        device: &D,
        domain: &Domain<D>,
        plan: &Plan,
        count: usize,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let rig = Rig::new(device, domain, plan, Side::Client, count)?;
        let mut targets = Vec::new();
        if matches!(plan.work, Work::Load(Op::Read | Op::FetchAdd | Op::CompareSwap)) {
            for _ in 0..count * plan.window {
                let capacity = plan.size.max(POINTER);
                let mut target = rig.arena.alloc(capacity, capacity)?;
                target.resize(plan.size)?;
                targets.push(target);
            }
        }
        let slots = if matches!(plan.work, Work::Echo(_)) { plan.window } else { 0 };
        Ok(Self {
            rig,
            clock: HostClock::new(),
            interrupt,
            made: vec![0; count],
            credits: vec![0; count],
            silences: vec![Patience::new(LOST_AFTER); count],
            targets,
            receives: plan.receives() as u64,
            done: 0,
            wrong: 0,
            began: vec![0; count * slots],
            next: (0..count).flat_map(|_| 0..slots as u64).collect(),
            is_asked: vec![false; count * slots],
            latency: histogram(),
            end_ns: 0,
            ends: false,
        })
    }

    pub fn addresses(&mut self) -> anyhow::Result<Vec<LinkAddress>> {
        self.rig.addresses()
    }

    pub fn connect(&mut self, addresses: &[LinkAddress]) -> anyhow::Result<()> {
        self.rig.connect(Side::Client, addresses)
    }

    /// Requests of each link so far.
    pub fn made(&self) -> &[u64] {
        &self.made
    }

    /// Measures for a time; with `one_at_a_time` each request, or echo, from its post to its end.
    pub fn slice(&mut self, duration: Duration, one_at_a_time: bool) -> anyhow::Result<Slice> {
        (self.done, self.wrong) = (0, 0);
        self.latency.reset();
        let end = Duration::as_nanos(&duration) as u64;
        let began_ns = self.clock.now_ns();
        match self.rig.plan.work {
            Work::Load(_) if self.rig.plan.fresh => self.read_fresh(began_ns + end)?,
            Work::Load(_) if one_at_a_time => self.singly(began_ns + end)?,
            Work::Load(_) => self.load(began_ns + end)?,
            Work::Echo(_) => self.echo(began_ns + end)?,
        }
        Ok(Slice {
            done: self.done,
            elapsed_ns: self.clock.now_ns() - began_ns,
            latency: self.latency.clone(),
            wrong: self.wrong,
        })
    }

    /// Keeps every link's window full.
    fn load(&mut self, end_ns: u64) -> anyhow::Result<()> {
        let (links, doorbell) = (self.rig.links.len(), self.rig.plan.doorbell as u64);
        let counts_credits = self.rig.plan.has_credits();
        let mut turns = 0u32;
        self.silences.fill(Patience::new(LOST_AFTER));
        let mut slept = false;
        loop {
            let mut pushed = false;
            for index in 0..links {
                if self.rig.links[index].flow.has_room() {
                    if counts_credits && self.made[index] + doorbell > self.credits[index] + self.receives {
                        // Whoever sleeps looks rarely.
                        let silence = &mut self.silences[index];
                        if silence.is_over() || (slept && silence.look()) {
                            // What was lost with the last messages is never credited.
                            self.credits[index] = self.made[index];
                            *silence = Patience::new(LOST_AFTER);
                        }
                        continue;
                    }
                    pushed = true;
                    if self.rig.posts_writes() {
                        self.rig.post_writes(index, self.made[index])?;
                        self.made[index] += doorbell;
                        continue;
                    }
                    for _ in 0..doorbell {
                        let signaled = self.rig.links[index].flow.is_signal_due();
                        self.push(index, signaled)?;
                    }
                    self.rig.links[index].qp.doorbell();
                }
            }
            slept = false;
            if self.collect()? == 0 && !pushed {
                slept = self.rig.pass(self.rig.plan.wait)?;
            }
            turns = turns.wrapping_add(1);
            if (slept || turns.is_multiple_of(TURNS_PER_LOOK)) && self.is_time_over(end_ns)? {
                return self.drain();
            }
        }
    }

    fn is_time_over(&self, end_ns: u64) -> anyhow::Result<bool> {
        ensure!(!self.interrupt.is_set(), "interrupted");
        Ok(self.clock.now_ns() >= end_ns)
    }

    /// Waits until all requests are over.
    fn drain(&mut self) -> anyhow::Result<()> {
        for index in 0..self.rig.links.len() {
            if self.rig.links[index].flow.has_silent_tail() {
                self.push(index, true)?;
                self.rig.links[index].qp.doorbell();
            }
        }
        let mut patience = Patience::new(PATIENCE);
        while self.rig.links.iter().any(|link| link.flow.in_flight > 0) {
            if self.collect()? == 0 {
                ensure!(!patience.is_over(), "{} requests do not end", self.rig.links[0].flow.in_flight);
                self.rig.pass(self.rig.plan.wait)?;
            } else {
                patience = Patience::new(PATIENCE);
            }
        }
        Ok(())
    }

    /// One request at a time on the first link.
    fn singly(&mut self, end_ns: u64) -> anyhow::Result<()> {
        let mut now_ns = self.clock.now_ns();
        while now_ns < end_ns {
            ensure!(!self.interrupt.is_set(), "interrupted");
            self.push(0, true)?;
            self.rig.links[0].qp.doorbell();
            let mut patience = Patience::new(PATIENCE);
            let before = self.done;
            while self.done == before {
                if self.collect()? == 0 {
                    self.pass(&mut patience)?;
                }
            }
            let done_ns = self.clock.now_ns();
            self.latency.saturating_record((done_ns - now_ns).max(1));
            now_ns = done_ns;
        }
        Ok(())
    }

    /// One READ at a time on the first link, of what the server has written since the last: from its post to its completion.
    fn read_fresh(&mut self, end_ns: u64) -> anyhow::Result<()> {
        let exchange = Exchange::of(self.rig.layout);
        let (mut word, mut now_ns) = (self.rig.arena.alloc(8, 8)?, 0);
        while now_ns < end_ns {
            ensure!(!self.interrupt.is_set(), "interrupted");
            let (nth, sequence) = (self.made[0], self.made[0] + 1);
            let remote = self.rig.links[0].remote.context("no memory to read")?;
            let part = |offset: usize| remote.at(offset as u64).context("too little memory to read");
            let source = Source::Inline(&sequence.to_ne_bytes());
            let operation = Operation::Write { source, remote: part(exchange.asked)?, immediate: None };
            self.post(Request::new(nth, operation).unsignaled())?;
            let mut patience = Patience::new(PATIENCE);
            loop {
                let operation =
                    Operation::Read { target: [word].into_iter().collect(), remote: part(exchange.written)? };
                self.post(Request::new(nth, operation))?;
                word = self.read()?;
                if word.first_chunk() == Some(&sequence.to_ne_bytes()) {
                    break;
                }
                ensure!(!patience.is_over(), "the server does not write what is asked for");
                self.rig.pass(Wait::Poll)?;
            }
            let mut target = self.targets.pop().context("no buffer for a result")?;
            spoil(&mut target);
            let request = Request::new(nth, Operation::Read { target: [target].into_iter().collect(), remote });
            // As in the limit: nothing is read ahead of the clock, nor the clock ahead of what it waits for.
            fence(Ordering::SeqCst);
            let began_ns = self.clock.now_ns();
            self.post(request)?;
            let mut patience = Patience::new(PATIENCE);
            while self.rig.poll()? == 0 {
                self.pass(&mut patience)?;
            }
            fence(Ordering::SeqCst);
            now_ns = self.clock.now_ns();
            self.latency.saturating_record((now_ns - began_ns).max(1));
            let target = self.read()?;
            self.wrong += u64::from(!self.is_right(&target, nth));
            self.targets.push(target);
            self.made[0] += 1;
            self.done += 1;
        }
        Ok(())
    }

    /// Posts a request of the first link.
    #[inline(always)]
    fn post(&mut self, request: Request<'_>) -> anyhow::Result<()> {
        self.rig.links[0].qp.post(request).map_err(|refused| anyhow!("posting a request: {refused}"))
    }

    /// Waits a little for the only request, unless that has taken too long already.
    fn pass(&mut self, patience: &mut Patience) -> anyhow::Result<()> {
        ensure!(!patience.is_over(), "a request does not end");
        ensure!(!self.interrupt.is_set(), "interrupted");
        self.rig.pass(self.rig.plan.wait).map(|_| ())
    }

    /// What the only READ has brought, once it is over.
    fn read(&mut self) -> anyhow::Result<MessageBuffer> {
        let mut patience = Patience::new(PATIENCE);
        while self.rig.completions.is_empty() && self.rig.poll()? == 0 {
            self.pass(&mut patience)?;
        }
        let buffer = self.rig.completions.pop().and_then(|mut completion| completion.buffers.pop());
        buffer.context("a READ came back without its buffer")
    }

    /// Pushes the next request of a link.
    #[inline]
    fn push(&mut self, index: usize, signaled: bool) -> anyhow::Result<()> {
        let Work::Load(op) = self.rig.plan.work else { bail!("an echo is no load") };
        let nth = self.made[index];
        let (slot, sequence) = self.rig.layout.place(nth);
        match op {
            Op::Send => {
                let immediate = self.rig.plan.is_numbered().then_some(nth as u32);
                self.rig.push_message(index, nth, nth + 1, Way::Send { immediate }, signaled)?;
            }
            Op::Write | Op::WriteImm => {
                let immediate = (op == Op::WriteImm).then_some(nth as u32);
                self.rig.push_message(index, nth, sequence, Way::Write { slot, immediate }, signaled)?;
            }
            Op::Read => {
                let target = self.targets.pop().context("no buffer for a result")?;
                self.push_read(index, nth, 0, target, signaled)?;
            }
            Op::FetchAdd | Op::CompareSwap => {
                let mut target = self.targets.pop().context("no buffer for a result")?;
                spoil(&mut target);
                let link = &mut self.rig.links[index];
                let remote = link.remote.context("no memory to count in")?;
                let operation = match op {
                    Op::FetchAdd => Operation::FetchAdd { target, remote, add: 1 },
                    _ => Operation::CompareSwap { target, remote, expected: nth, desired: nth + 1 },
                };
                let mut request = Request::new(id(index, nth), operation);
                request.signaled = signaled;
                if let Err(refused) = link.qp.push(request) {
                    bail!("posting request {nth}: {refused}");
                }
            }
        }
        self.made[index] += 1;
        self.rig.links[index].flow.pushed(signaled);
        Ok(())
    }

    /// Pushes one of the READs of an object: those before the last are of [`POINTER`] bytes.
    #[inline]
    fn push_read(
        &mut self,
        index: usize,
        nth: u64,
        step: usize,
        mut target: MessageBuffer,
        signaled: bool,
    ) -> anyhow::Result<()> {
        let Plan { reads, size, .. } = self.rig.plan;
        if reads > 1 {
            target.resize(if step + 1 < reads { POINTER } else { size })?;
        }
        spoil(&mut target);
        let (slot, _) = self.rig.layout.place(nth);
        let link = &mut self.rig.links[index];
        let remote = link.remote.and_then(|remote| remote.at(self.rig.layout.offset(slot) as u64));
        let target = [target].into_iter().collect::<Scatter>();
        let operation = Operation::Read { target, remote: remote.context("no memory to read")? };
        let mut request = Request::new(id(index, nth * READS_MAX as u64 + step as u64), operation);
        request.signaled = signaled;
        if let Err(refused) = link.qp.push(request) {
            bail!("posting READ {nth}: {refused}");
        }
        Ok(())
    }

    /// Takes what is over; how many completions there were.
    #[inline]
    fn collect(&mut self) -> anyhow::Result<usize> {
        let count = self.rig.poll()?;
        let mut completions = std::mem::take(&mut self.rig.completions);
        for completion in completions.drain(..) {
            let (index, nth) = link_of(completion.id);
            match completion.opcode {
                Opcode::Receive => self.take_credit(index, completion)?,
                Opcode::Read => self.take_read(index, nth, completion)?,
                _ => {
                    self.done += self.rig.links[index].flow.completed() as u64;
                    if let Some(buffer) = { completion.buffers }.pop() {
                        let is_right = buffer.first_chunk().is_some_and(|word| u64::from_ne_bytes(*word) == nth);
                        self.wrong += u64::from(!is_right);
                        self.targets.push(buffer);
                    }
                }
            }
        }
        self.rig.completions = completions;
        Ok(count)
    }

    fn take_credit(&mut self, index: usize, mut completion: Completion) -> anyhow::Result<()> {
        let (known, told) = (self.credits[index], completion.immediate.unwrap_or(0));
        let more = told.wrapping_sub(known as u32);
        // Whatever a peer says, no more is received than was made.
        if u64::from(more) <= self.made[index] - known {
            self.credits[index] += u64::from(more);
            self.silences[index] = Patience::new(LOST_AFTER);
        }
        match completion.buffers.pop() {
            Some(buffer) => self.rig.post_receive(index, buffer),
            None => Ok(()),
        }
    }

    /// A READ is over: the object's next goes, unless it was the last.
    #[inline]
    fn take_read(&mut self, index: usize, id: u64, mut completion: Completion) -> anyhow::Result<()> {
        let (nth, step) = (id / READS_MAX as u64, (id % READS_MAX as u64) as usize);
        let Some(buffer) = completion.buffers.pop() else { bail!("a READ came back without its buffer") };
        if step + 1 < self.rig.plan.reads {
            self.wrong += u64::from(!self.is_right_pointer(&buffer, nth));
            // It takes the place of the one before in its queue pair's flow.
            self.push_read(index, nth, step + 1, buffer, true)?;
            self.rig.links[index].qp.doorbell();
            return Ok(());
        }
        self.done += self.rig.links[index].flow.completed() as u64;
        self.wrong += u64::from(!self.is_right(&buffer, nth));
        self.targets.push(buffer);
        Ok(())
    }

    /// Whether what a READ before the last has brought is the beginning of the `nth` object, as far as that goes.
    fn is_right_pointer(&self, buffer: &[u8], nth: u64) -> bool {
        let (sequence, size) = (self.sequence_read(nth), self.rig.plan.size);
        buffer.len() == POINTER && (size < POINTER || buffer == message::first_word(sequence))
    }

    /// The number of the message that the `nth` READ finds.
    fn sequence_read(&self, nth: u64) -> u64 {
        if self.rig.plan.fresh { nth + 1 } else { nth % self.rig.layout.slots as u64 + 1 }
    }

    /// Whether the result of the `nth` READ is right.
    #[inline]
    fn is_right(&self, buffer: &[u8], nth: u64) -> bool {
        let sequence = self.sequence_read(nth);
        if nth.is_multiple_of(FULL_CHECK_EVERY) {
            message::is_all_good(buffer, sequence)
        } else {
            message::is_good(buffer, sequence)
        }
    }

    /// Keeps every slot of every link on its way to the server and back.
    fn echo(&mut self, end_ns: u64) -> anyhow::Result<()> {
        let (links, slots) = (self.rig.links.len(), self.rig.layout.slots);
        let polls_memory = self.rig.plan.work == Work::Echo(Form::Ww);
        for at in 0..links * slots {
            self.is_asked[at] = true;
            let now_ns = self.clock.now_ns();
            self.ask(at, Some(now_ns))?;
        }
        self.ends = false;
        self.end_ns = end_ns;
        let (mut left, mut turns) = (links * slots, 0u32);
        let mut patience = Patience::new(PATIENCE);
        while left > 0 {
            let mut came = 0;
            if polls_memory {
                for index in 0..links {
                    for slot in 0..slots {
                        let at = index * slots + slot;
                        if !self.is_asked[at] {
                            continue;
                        }
                        let (layout, link) = (self.rig.layout, &self.rig.links[index]);
                        let exposed = link.exposed.as_ref().context("nothing is exposed")?;
                        if layout.arrived(exposed, slot, layout.place(self.next[at]).1, &mut self.rig.seen) {
                            came += 1;
                            left -= usize::from(self.answered(at)?);
                        }
                    }
                }
            }
            if !polls_memory || self.rig.links.iter().any(|link| link.flow.is_awaited()) {
                self.rig.poll()?;
                let mut completions = std::mem::take(&mut self.rig.completions);
                for completion in completions.drain(..) {
                    let (index, _) = link_of(completion.id);
                    if is_arrival(completion.opcode) {
                        came += 1;
                        left -= usize::from(self.received(index, completion)?);
                    } else {
                        self.rig.links[index].flow.completed();
                    }
                }
                completions.append(&mut self.rig.completions);
                self.rig.completions = completions;
            }
            let mut slept = false;
            if came > 0 {
                patience = Patience::new(PATIENCE);
            } else {
                ensure!(!patience.is_over(), "{left} echoes were not answered in {} s", PATIENCE.as_secs());
                slept = self.rig.pass(if polls_memory { Wait::Poll } else { self.rig.plan.wait })?;
            }
            turns = turns.wrapping_add(1);
            let looks = slept || turns.is_multiple_of(TURNS_PER_LOOK);
            self.ends = self.ends || (looks && self.is_time_over(end_ns)?);
        }
        Ok(())
    }

    /// Sends the next echo of a slot, counted over all links, on its way; with the time if it is one whose time is taken.
    #[inline]
    fn ask(&mut self, at: usize, now_ns: Option<u64>) -> anyhow::Result<()> {
        let (index, nth) = (at / self.rig.layout.slots, self.next[at]);
        let (slot, sequence) = self.rig.layout.place(nth);
        let way = match self.rig.plan.work {
            Work::Echo(Form::Ss) => Way::Send { immediate: Some(nth as u32) },
            Work::Echo(Form::Imm) => Way::Write { slot, immediate: Some(nth as u32) },
            _ => Way::Write { slot, immediate: None },
        };
        let mut patience = Patience::new(PATIENCE);
        while !self.rig.links[index].flow.has_room() {
            ensure!(!patience.is_over(), "requests do not end");
            let had = self.rig.completions.len();
            self.rig.poll()?;
            // Answers are kept for the loop; ends of requests make room.
            let Rig { completions, links, .. } = &mut self.rig;
            let mut place = had;
            while place < completions.len() {
                if is_arrival(completions[place].opcode) {
                    place += 1;
                } else {
                    let over = completions.remove(place);
                    links[link_of(over.id).0].flow.completed();
                }
            }
        }
        self.began[at] = now_ns.unwrap_or(0);
        let signaled = self.rig.links[index].flow.is_signal_due();
        self.rig.push_message(index, nth, sequence, way, signaled)?;
        self.made[index] += 1;
        self.rig.links[index].flow.pushed(signaled);
        self.rig.ring(index, way);
        Ok(())
    }

    /// The echo of a slot is back: the next one goes, unless it ends. Returns whether it ends.
    #[inline]
    fn answered(&mut self, at: usize) -> anyhow::Result<bool> {
        let slots = self.rig.layout.slots as u64;
        self.done += 1;
        // One look at the clock ends one and begins the next.
        let is_sampled = slots == 1 || self.done.is_multiple_of(SAMPLE_EVERY);
        let now_ns = (is_sampled || self.began[at] > 0).then(|| self.clock.now_ns());
        if let Some(now_ns) = now_ns {
            if self.began[at] > 0 {
                self.latency.saturating_record((now_ns - self.began[at]).max(1));
            }
            self.ends = self.ends || now_ns >= self.end_ns;
        }
        self.next[at] += slots;
        if self.ends {
            self.is_asked[at] = false;
            return Ok(true);
        }
        self.ask(at, now_ns.filter(|_| is_sampled))?;
        Ok(false)
    }

    /// An echo came as a message.
    #[inline]
    fn received(&mut self, index: usize, mut completion: Completion) -> anyhow::Result<bool> {
        let Some(buffer) = completion.buffers.pop() else { return Ok(false) };
        let (len, slots, low) = (completion.len, self.rig.layout.slots, completion.immediate.unwrap_or(0));
        let first = index * slots;
        // Its slot, as long as the number has no high half.
        let guess = first + low as usize % slots;
        let is_it = |&at: &usize| self.is_asked[at] && self.next[at] as u32 == low;
        let found = std::iter::once(guess).chain(first..first + slots).find(is_it);
        let good = match found.map(|at| self.rig.layout.place(self.next[at])) {
            Some((slot, sequence)) if completion.opcode == Opcode::ReceiveWrite => {
                self.rig.holds(index, slot, sequence)?
            }
            Some((_, sequence)) => message::is_good(&buffer[..len], sequence),
            None => false,
        };
        self.wrong += u64::from(!(good && len == self.rig.plan.message_len()));
        self.rig.post_receive(index, buffer)?;
        // What came twice, or what nobody asked for, is wrong and nothing else.
        found.map_or(Ok(false), |at| self.answered(at))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;

    use sinew::shm::verbs::ShmDevice;

    use super::*;
    use crate::verbs::plan::Carrier;

    /// Receives what comes on two links, and gives credits on the first alone.
    fn serve(
        device: &ShmDevice,
        plan: &Plan,
        told: &mpsc::Sender<Vec<LinkAddress>>,
        hears: &mpsc::Receiver<Vec<LinkAddress>>,
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        let domain = device.protection_domain()?;
        let mut rig = Rig::new(device, &domain, plan, Side::Server, 2)?;
        told.send(rig.addresses()?)?;
        rig.connect(Side::Server, &hears.recv()?)?;
        told.send(Vec::new())?;
        let mut received = 0;
        while !stop.load(Ordering::Relaxed) {
            if rig.poll()? == 0 {
                rig.pass(Wait::Poll)?;
            }
            for mut completion in std::mem::take(&mut rig.completions) {
                let (index, _) = link_of(completion.id);
                if completion.opcode != Opcode::Receive {
                    rig.links[index].flow.completed();
                    continue;
                }
                rig.post_receive(index, completion.buffers.pop().context("no buffer")?)?;
                received += u64::from(index == 0);
                if index == 0 && received % 16 == 0 {
                    rig.push_credit(0, received as u32, true)?;
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_link_whose_last_messages_were_lost_goes_on_while_others_are_answered() {
        let plan =
            Plan { window: 16, doorbell: 4, signal: 8, qps: 2, ..Plan::new(Work::Load(Op::Send), Carrier::Ud, 32) };
        let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
        let (outgoing, theirs) = mpsc::channel();
        let (ours, incoming) = mpsc::channel();
        let stop = AtomicBool::new(false);
        let (device, plan, stop) = (&device, &plan, &stop);
        std::thread::scope(|threads| {
            let server = threads.spawn(move || serve(device, plan, &outgoing, &incoming, stop));
            let measured = || -> anyhow::Result<Vec<u64>> {
                let domain = device.protection_domain()?;
                let mut client = Client::new(device, &domain, plan, 2, Interrupt::install()?)?;
                ours.send(client.addresses()?)?;
                client.connect(&theirs.recv()?)?;
                theirs.recv()?;
                client.slice(10 * LOST_AFTER, false)?;
                Ok(client.made().to_vec())
            };
            let made = measured();
            stop.store(true, Ordering::Relaxed);
            server.join().unwrap().unwrap();
            let [answered, unanswered] = made.unwrap()[..] else { panic!("two links") };
            let receives = plan.receives() as u64;
            assert!(answered > receives && unanswered > receives, "{answered} {unanswered} {receives}");
        });
    }
}
