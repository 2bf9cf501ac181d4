//! An endpoint's handlers, by the number of their request type, and the code that runs them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use arrayvec::ArrayVec;
use sinew_fabric::{MAX_BURST, WorkerPool};

use crate::answer::{ErrorCode, ReadyRequest, RequestData, RunningCall, ServerCallId, SlotLocation};
use crate::call::{BurstCalls, BurstEntry, Call, DeferredCall, keep};
use crate::core::Core;
use crate::names::RequestType;
use crate::polled::Backlog;

/// Takes the parts of a call, so that the [`Call`] is made where the handler is inlined.
type Dispatch = Box<dyn FnMut(&mut Core, ServerCallId, SlotLocation, &[u8])>;
type Burst = Box<dyn FnMut(&mut BurstCalls<'_, '_>)>;
type Worker = Arc<dyn Fn(DeferredCall) + Send + Sync>;

pub(crate) enum Handler {
    None,
    Dispatch(Dispatch),
    Burst(Burst),
    Worker(Worker),
    /// The program that turns the endpoint polls for requests.
    Polled,
}

impl Handler {
    pub fn dispatch(mut handler: impl FnMut(Call<'_>) + 'static) -> Self {
        Self::Dispatch(Box::new(move |core: &mut Core, call, location, request: &[u8]| {
            handler(Call::new(core, RunningCall { id: call, location }, request));
        }))
    }
}

/// One endpoint's handlers, by the number of their request type.
pub(crate) struct Handlers {
    table: Vec<Handler>,
    workers: Option<Arc<dyn WorkerPool>>,
    /// Whether a dispatch handler, or a closure in its place, is running: any panic meanwhile is its own.
    running: bool,
    pub backlog: Backlog,
}

impl Handlers {
    pub fn new(workers: Option<Arc<dyn WorkerPool>>) -> Self {
        Self { table: Vec::new(), workers, running: false, backlog: Backlog::default() }
    }

    pub fn set(&mut self, number: u16, handler: Handler) {
        let index = usize::from(number);
        if self.table.len() <= index {
            self.table.resize_with(index + 1, || Handler::None);
        }
        self.table[index] = handler;
    }

    pub fn has(&self, number: u16) -> bool {
        self.table.get(usize::from(number)).is_some_and(|handler| !matches!(handler, Handler::None))
    }

    /// Drops the payload of a handler's panic. Any other panic is a bug of ours, and is resumed.
    #[cold]
    pub fn contain_panic(&mut self, payload: Box<dyn Any + Send>) {
        if !std::mem::take(&mut self.running) {
            resume_unwind(payload);
        }
        run_contained(|| drop(payload));
    }

    /// Gives each burst handler the requests of its type. Not inlined, so that other bursts do not pay for its stack.
    #[inline(never)]
    pub fn run_bursts(&mut self, core: &mut Core, mut waiting: &mut [BurstEntry<'_>]) {
        while let Some(first) = waiting.first() {
            let request_type = first.call.location.request_type;
            let count = gather(waiting, request_type);
            let (now, later) = waiting.split_at_mut(count);
            if let Some(Handler::Burst(handler)) = self.table.get_mut(request_type.number() as usize) {
                run_contained(|| handler(&mut BurstCalls::new(core, now)));
            }
            waiting = later;
        }
        core.servers.end_burst();
    }
}

/// Moves the requests of a type to the front, and returns their number. The order of the requests of each type stays.
#[inline(always)]
fn gather(waiting: &mut [BurstEntry<'_>], request_type: RequestType) -> usize {
    let type_of = |entry: &BurstEntry<'_>| entry.call.location.request_type;
    // Nearly always there are no others, so all are compared without a branch for each.
    let difference = |all: u16, entry| all | (type_of(entry).number() ^ request_type.number());
    if waiting.iter().fold(0, difference) == 0 {
        return waiting.len();
    }
    let first = waiting.iter().position(|entry| type_of(entry) != request_type).unwrap_or(waiting.len());
    gather_behind(waiting, first, request_type)
}

/// As [`gather`], where the requests before `first` are of the type.
#[cold]
#[inline(never)]
fn gather_behind(waiting: &mut [BurstEntry<'_>], first: usize, request_type: RequestType) -> usize {
    let mut count = first;
    for index in first..waiting.len() {
        if waiting[index].call.location.request_type == request_type {
            waiting[count..=index].rotate_right(1);
            count += 1;
        }
    }
    count
}

/// Runs requests: an endpoint's handlers, and a fallback for types that have none.
pub(crate) trait Serve {
    fn handlers(&mut self) -> &mut Handlers;

    /// Handles a request that has no registered handler.
    fn handle_unregistered(&mut self, core: &mut Core, call: RunningCall, request: &[u8]);

    /// Runs a request that lies where it was received, or keeps it for [`Handlers::run_bursts`]. Panics of a handler
    /// pass through.
    #[inline(always)]
    fn run_lent<'a>(
        &mut self,
        core: &mut Core,
        call: RunningCall,
        request: &'a [u8],
        batched: &mut ArrayVec<BurstEntry<'a>, MAX_BURST>,
    ) {
        let handlers = self.handlers();
        match handlers.table.get_mut(usize::from(call.location.request_type.number())) {
            Some(Handler::Dispatch(handler)) => {
                handlers.running = true;
                handler(core, call.id, call.location, request);
                handlers.running = false;
            }
            Some(Handler::Burst(_)) if core.servers.deadline_ns(call.id).is_none() => {
                batched.push(BurstEntry { call, request: RequestData::Lent(request) });
            }
            _ => self.run_lent_later(core, call, request, batched),
        }
    }

    /// As [`Self::run_lent`], for other handlers. Not inlined, since more than two handlers there would cost the
    /// requests of dispatch handlers three instructions.
    #[inline(never)]
    fn run_lent_later<'a>(
        &mut self,
        core: &mut Core,
        call: RunningCall,
        request: &'a [u8],
        batched: &mut ArrayVec<BurstEntry<'a>, MAX_BURST>,
    ) {
        match self.handlers().table.get(usize::from(call.location.request_type.number())) {
            Some(Handler::None) | None => self.handle_unregistered(core, call, request),
            _ => self.run(core, ReadyRequest { call, request: RequestData::Lent(request) }, batched),
        }
    }

    /// As [`Self::run_lent`], wherever the request lies.
    #[inline(never)]
    fn run<'a>(
        &mut self,
        core: &mut Core,
        arrived: ReadyRequest<'a>,
        batched: &mut ArrayVec<BurstEntry<'a>, MAX_BURST>,
    ) {
        let ReadyRequest { call, request } = arrived;
        let handlers = self.handlers();
        match handlers.table.get_mut(usize::from(call.location.request_type.number())) {
            Some(Handler::Dispatch(handler)) => {
                handlers.running = true;
                handler(core, call.id, call.location, &request);
                handlers.running = false;
            }
            Some(Handler::Burst(_)) => {
                core.servers.note_burst_deadline(call.id);
                batched.push(BurstEntry { call, request });
            }
            Some(Handler::Worker(handler)) => {
                submit_to_worker(core, ReadyRequest { call, request }, handler, handlers.workers.as_deref());
            }
            Some(Handler::Polled) => handlers.backlog.add(core, ReadyRequest { call, request }),
            Some(Handler::None) | None => self.handle_unregistered(core, call, &request),
        }
    }
}

/// Without a handler the client is told so.
impl Serve for Handlers {
    #[inline(always)]
    fn handlers(&mut self) -> &mut Handlers {
        self
    }

    fn handle_unregistered(&mut self, core: &mut Core, call: RunningCall, _request: &[u8]) {
        core.servers.answer_error(&mut core.shared, call.id, ErrorCode::NoHandler);
    }
}

/// Handlers, with a closure of the caller's for the types that have none.
pub(crate) struct WithFallback<'a> {
    pub handlers: &'a mut Handlers,
    pub fallback: &'a mut dyn FnMut(Call<'_>),
}

impl Serve for WithFallback<'_> {
    #[inline(always)]
    fn handlers(&mut self) -> &mut Handlers {
        self.handlers
    }

    fn handle_unregistered(&mut self, core: &mut Core, call: RunningCall, request: &[u8]) {
        self.handlers.running = true;
        (self.fallback)(Call::new(core, call, request));
        self.handlers.running = false;
    }
}

/// Passes a request to a worker. Not inlined, so that other requests do not pay for its stack.
#[inline(never)]
fn submit_to_worker(core: &mut Core, arrived: ReadyRequest<'_>, handler: &Worker, workers: Option<&dyn WorkerPool>) {
    let ReadyRequest { call, request } = arrived;
    let Ok(deferred) = keep(core, call, core.servers.deadline_ns(call.id), request) else {
        return core.servers.answer_error(&mut core.shared, call.id, ErrorCode::Busy);
    };
    let Some(workers) = workers else { return deferred.refuse() };
    let handler = Arc::clone(handler);
    let slot = Arc::new(std::sync::Mutex::new(Some(deferred)));
    let job_slot = Arc::clone(&slot);
    let job = Box::new(move || {
        let deferred = job_slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        // A request that nobody waits for need not run.
        if let Some(deferred) = deferred.filter(|deferred| !deferred.is_abandoned()) {
            run_contained(|| handler(deferred));
        }
    });
    if workers.submit(job).is_err()
        && let Some(deferred) = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    {
        deferred.refuse();
    }
}

/// Runs code that may panic, and drops the panic's payload, which may panic again when dropped.
#[inline(always)]
pub(crate) fn run_contained(run: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run))
        && let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        // A second panic's payload is leaked, which ends the chain.
        std::mem::forget(second);
    }
}
