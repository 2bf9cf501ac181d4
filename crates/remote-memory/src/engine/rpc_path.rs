//! The path by calls, for a fabric without one-sided verbs: the donor answers, and a chain of operations is one call.

use std::io;

use sinew_fabric::verbs::{Scatter, Slice};
use sinew_fabric::{Armed, Descriptor, Readiness, Waker};
use sinew_mem::{AllocError, MessageBuffer};
use sinew_rpc::{CallError, CallOptions, Cause, Completion, Endpoint, SessionEvent, SessionId};

use super::donating::{ACCESS, ANSWER_HEAD_LEN, HEAD_LEN, OP_LEN, Refusal};
use super::error::FailureCause;
use super::path::{Done, Limits, PIECES_MAX, Path, PathJob};

/// Limits of a path by calls.
#[derive(Clone, Copy, Debug)]
pub struct RpcPathConfig {
    /// Operations in flight, at most.
    pub depth: usize,
    /// Bytes of an operation, at most; also of all operations of one call together.
    pub call_len_max: usize,
    /// Times that a call is repeated when the donor has no memory for it at the moment.
    pub busy_tries: u32,
}

impl Default for RpcPathConfig {
    fn default() -> Self {
        Self { depth: 256, call_len_max: 256 << 10, busy_tries: 1000 }
    }
}

/// An operation within a call.
struct Part {
    id: u32,
    len: usize,
    targets: Scatter,
}

/// A call in flight, or a free place for one.
#[derive(Default)]
struct CallInFlight {
    parts: Vec<Part>,
    tries: u32,
}

/// A thread's path to a donor that answers calls of type [`ACCESS`], over a session of any endpoint: one of its own, or
/// a [share](sinew_rpc::SharedEndpoint). The engine's turns turn the endpoint.
pub struct RpcPath<E: Endpoint> {
    rpc: E,
    session: SessionId,
    key: u64,
    /// Whether the session is connected.
    is_open: bool,
    limits: Limits,
    busy_tries: u32,
    room: usize,
    /// Operations pushed, but not rung yet.
    chain: Vec<(u32, PathJob)>,
    request_len: usize,
    answer_len: usize,
    /// Whether the chain was rung, but found no memory for its call: it goes out when some is free.
    awaits_memory: bool,
    /// An operation that was pushed, but did not fit into the chain that is held.
    next_job: Option<(u32, PathJob)>,
    calls: Vec<CallInFlight>,
    free: Vec<u32>,
    /// Buffers of finished calls.
    idle: Vec<(MessageBuffer, MessageBuffer)>,
    /// Calls to be repeated.
    to_repeat: Vec<(u64, MessageBuffer, MessageBuffer)>,
    /// Operations that have finished, but are not reported yet.
    completed: Vec<Done>,
    error: Option<FailureCause>,
}

impl<E: Endpoint> RpcPath<E> {
    /// Makes a path over this session, to the donor's range with this [key](super::Ranges::offer).
    pub fn new(rpc: E, session: SessionId, key: u64, config: &RpcPathConfig) -> Self {
        Self { is_open: true, ..Self::connecting(rpc, session, key, config) }
    }

    /// The same for a session that is still being connected, whose event comes to `rpc`. There is no room until it has
    /// come.
    pub fn connecting(rpc: E, session: SessionId, key: u64, config: &RpcPathConfig) -> Self {
        let message_len_max = rpc.config().message_len_max as usize;
        let op_len_max = config.call_len_max.min(message_len_max.saturating_sub(HEAD_LEN + OP_LEN)).max(1);
        let depth = config.depth.max(1);
        Self {
            rpc,
            session,
            key,
            is_open: false,
            limits: Limits { op_len_max, pieces_max: PIECES_MAX, depth },
            busy_tries: config.busy_tries,
            room: depth,
            chain: Vec::with_capacity(depth),
            request_len: HEAD_LEN,
            answer_len: ANSWER_HEAD_LEN,
            awaits_memory: false,
            next_job: None,
            calls: Vec::new(),
            free: Vec::new(),
            idle: Vec::new(),
            to_repeat: Vec::new(),
            completed: Vec::with_capacity(depth),
            error: None,
        }
    }

    /// The endpoint. A caller may make calls of its own there and must poll for their completions itself; those that
    /// the engine polls first are dropped.
    pub fn rpc(&mut self) -> &mut E {
        &mut self.rpc
    }

    fn buffers(&mut self) -> Result<(MessageBuffer, MessageBuffer), AllocError> {
        let (request_len, answer_len) = (self.request_len, self.answer_len);
        if let Some((mut request, mut answer)) = self.idle.pop()
            && request.resize(request_len).is_ok()
            && answer.resize(answer_len).is_ok()
        {
            return Ok((request, answer));
        }
        Ok((self.rpc.alloc(request_len)?, self.rpc.alloc(answer_len)?))
    }

    /// Makes one call of the chain.
    fn make_call(&mut self) {
        if self.chain.is_empty() {
            return;
        }
        let mut buffers = self.buffers();
        if buffers.is_err() {
            // The idle buffers may have the wrong size.
            self.idle.clear();
            buffers = self.buffers();
        }
        let in_flight = self.calls.len() - self.free.len();
        self.awaits_memory = buffers.is_err() && in_flight > 0 && self.error.is_none();
        if self.awaits_memory {
            return;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.calls.push(CallInFlight::default());
            self.calls.len() as u32 - 1
        });
        let calling = &mut self.calls[place as usize];
        calling.tries = 0;
        let buffers = match buffers {
            Ok((mut request, answer)) => {
                write_request(&mut request, self.key, &mut self.chain, &mut calling.parts);
                Ok((request, answer))
            }
            Err(error) => {
                calling.parts.extend(self.chain.drain(..).map(|(id, job)| part_of(id, job)));
                Err(FailureCause::from(error))
            }
        };
        (self.request_len, self.answer_len) = (HEAD_LEN, ANSWER_HEAD_LEN);
        match buffers {
            Ok((request, answer)) => self.enqueue(u64::from(place), request, answer),
            Err(why) => self.refuse(place, &why),
        }
    }

    fn enqueue(&mut self, place: u64, request: MessageBuffer, answer: MessageBuffer) {
        let options = CallOptions::tag(place);
        if let Err(rejected) = self.rpc.enqueue_request(self.session, ACCESS, request, answer, options) {
            let why = FailureCause::Call(rejected.error.to_string());
            self.idle.push((rejected.request, rejected.response));
            self.refuse(place as u32, &why);
        }
    }

    /// Reports the operations of a call that could not be made as failed.
    fn refuse(&mut self, place: u32, why: &FailureCause) {
        for Part { id, targets, .. } in self.calls[place as usize].parts.drain(..) {
            self.completed.push(Done { id, error: Some(Box::new(why.clone())), targets });
        }
        self.free.push(place);
        self.fail(why.clone());
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { tag, result, request, response, .. } = completion;
        let Some(calling) = self.calls.get_mut(tag as usize).filter(|calling| !calling.parts.is_empty()) else {
            return;
        };
        let is_busy = matches!(&result, Err(CallError { cause: Cause::ServerBusy, .. }));
        if is_busy && calling.tries < self.busy_tries && self.error.is_none() {
            calling.tries += 1;
            return self.to_repeat.push((tag, request, response));
        }
        let why = match result {
            Err(error) => Some(FailureCause::Call(error.to_string())),
            Ok(()) => check_answer(&response, &calling.parts),
        };
        let mut bytes = response.get(ANSWER_HEAD_LEN..).unwrap_or(&[]);
        for Part { id, len, mut targets } in calling.parts.drain(..) {
            if why.is_none() && !targets.is_empty() {
                let (head, rest) = bytes.split_at(len);
                bytes = rest;
                scatter(head, &mut targets);
            }
            self.completed.push(Done { id, error: why.clone().map(Box::new), targets });
        }
        self.free.push(tag as u32);
        self.idle.push((request, response));
        if let Some(why) = why {
            self.fail(why);
        }
    }

    /// Makes the call that found no memory before. Returns false if there is still none.
    #[inline(never)]
    fn continue_calls(&mut self) -> bool {
        self.make_call();
        if self.awaits_memory {
            return false;
        }
        if let Some((id, job)) = self.next_job.take() {
            self.room += 1;
            self.push(id, job);
            self.make_call();
        }
        true
    }

    /// Handles an event of the session. Once it is connected, its failure also shows in its calls.
    fn handle_event(&mut self, event: &SessionEvent) {
        if event.session() != self.session {
            return;
        }
        match event {
            SessionEvent::Connected(_) => self.is_open = true,
            SessionEvent::ConnectFailed { error, .. } => self.fail(FailureCause::Call(error.to_string())),
            SessionEvent::Lost { cause, .. } => self.fail(FailureCause::Call(cause.to_string())),
            SessionEvent::Disconnected(_) => self.fail(FailureCause::Call("its session has ended".into())),
        }
    }

    /// Breaks the path. Giving up the session completes what is in flight.
    #[inline(never)]
    fn fail(&mut self, why: FailureCause) {
        if self.error.is_none() {
            self.error = Some(why);
            self.rpc.disconnect(self.session);
        }
    }
}

fn part_of(id: u32, job: PathJob) -> Part {
    match job {
        PathJob::Read { targets, .. } => Part { id, len: targets.iter().map(|target| target.len()).sum(), targets },
        PathJob::Write { sources, .. } => {
            Part { id, len: sources.iter().map(|source| source.len).sum(), targets: Scatter::new() }
        }
    }
}

fn write_request(request: &mut [u8], key: u64, chain: &mut Vec<(u32, PathJob)>, parts: &mut Vec<Part>) {
    let (head, rest) = request.split_at_mut(HEAD_LEN);
    head[..8].copy_from_slice(&key.to_le_bytes());
    head[8..].copy_from_slice(&(chain.len() as u32).to_le_bytes());
    let (operations, mut written) = rest.split_at_mut(chain.len() * OP_LEN);
    for ((id, job), operation) in chain.drain(..).zip(operations.chunks_exact_mut(OP_LEN)) {
        let (at, is_write) = match &job {
            PathJob::Read { at, .. } => (*at, false),
            PathJob::Write { at, sources } => {
                for source in sources {
                    let (mine, rest) = std::mem::take(&mut written).split_at_mut(source.len);
                    mine.copy_from_slice(source.bytes());
                    written = rest;
                }
                (*at, true)
            }
        };
        let part = part_of(id, job);
        operation[..8].copy_from_slice(&at.to_le_bytes());
        operation[8..12].copy_from_slice(&(part.len as u32).to_le_bytes());
        operation[12..].copy_from_slice(&u32::from(is_write).to_le_bytes());
        parts.push(part);
    }
}

/// Returns what is wrong with an answer, if anything.
fn check_answer(answer: &[u8], parts: &[Part]) -> Option<FailureCause> {
    let Some((code, bytes)) = answer.split_first_chunk::<ANSWER_HEAD_LEN>() else {
        return Some(FailureCause::Call(format!("it gave a malformed answer of {} bytes", answer.len())));
    };
    let code = u32::from_le_bytes(*code);
    if let Some(refusal) = Refusal::from_code(code) {
        return Some(FailureCause::Call(refusal.to_string()));
    }
    let asked: usize = parts.iter().filter(|part| !part.targets.is_empty()).map(|part| part.len).sum();
    let is_good = code == 0 && bytes.len() == asked;
    (!is_good).then(|| FailureCause::Call(format!("it answered {code} and {} bytes for {asked}", bytes.len())))
}

fn scatter(mut bytes: &[u8], targets: &mut Scatter) {
    for target in targets {
        let (mine, rest) = bytes.split_at(target.len());
        target.copy_from_slice(mine);
        bytes = rest;
    }
}

impl<E: Endpoint> Readiness for RpcPath<E> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.rpc.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        if !self.completed.is_empty() || !self.to_repeat.is_empty() {
            return Ok(Armed::Ready);
        }
        let armed = self.rpc.arm()?;
        Ok(armed.on_clock(self.rpc.now_ns(), now_ns))
    }

    fn disarm(&mut self) -> bool {
        self.rpc.disarm()
    }
}

impl<E: Endpoint> Path for RpcPath<E> {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn takes_target(&self, _: &MessageBuffer) -> bool {
        true
    }

    fn takes_source(&self, _: &Slice) -> bool {
        true
    }

    fn stage(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.rpc.alloc(len)
    }

    fn room(&self) -> usize {
        if self.is_open && !self.awaits_memory { self.room } else { 0 }
    }

    fn push(&mut self, id: u32, job: PathJob) {
        let (request, answer) = match &job {
            PathJob::Read { targets, .. } => (0, targets.iter().map(|target| target.len()).sum()),
            PathJob::Write { sources, .. } => (sources.iter().map(|source| source.len).sum::<usize>(), 0),
        };
        let call_len_max = HEAD_LEN + OP_LEN + self.limits.op_len_max;
        if self.request_len + OP_LEN + request > call_len_max || self.answer_len + answer > call_len_max {
            self.make_call();
        }
        self.room -= 1;
        if self.awaits_memory {
            self.next_job = Some((id, job));
            return;
        }
        self.request_len += OP_LEN + request;
        self.answer_len += answer;
        self.chain.push((id, job));
    }

    fn ring(&mut self) {
        self.make_call();
    }

    fn poll(&mut self, over: &mut impl FnMut(Done)) -> bool {
        let mut busy = self.rpc.turn();
        while let Some(completion) = self.rpc.poll_completion() {
            self.complete(completion);
        }
        while let Some(event) = self.rpc.poll_event() {
            busy = true;
            self.handle_event(&event);
        }
        if self.awaits_memory {
            busy |= self.continue_calls();
        }
        busy |= !self.to_repeat.is_empty() || !self.completed.is_empty();
        for (place, request, answer) in std::mem::take(&mut self.to_repeat) {
            self.enqueue(place, request, answer);
        }
        self.room += self.completed.len();
        self.completed.drain(..).for_each(over);
        busy
    }

    fn error(&self) -> Option<&FailureCause> {
        self.error.as_ref()
    }

    fn close(&mut self) {
        self.fail(FailureCause::Dropped);
    }

    fn waker(&self) -> Waker {
        self.rpc.waker()
    }
}
