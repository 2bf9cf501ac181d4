//! What a process serves: handlers by request type, shared by all endpoints of the process.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use arrayvec::ArrayVec;
use sinew_fabric::{MAX_BURST, WorkerPool};

use crate::answer::{Arrived, ErrorCode, Found, RequestData, RunningCall, ServerCall};
use crate::call::{BurstCalls, BurstEntry, Call, DeferredCall, keep};
use crate::config::Config;
use crate::core::Core;
use crate::error::ConfigError;
use crate::names::RequestType;

/// With the call's parts, so that the [`Call`] is made where the handler is inlined.
type Dispatch = Box<dyn FnMut(&mut Core, ServerCall, Found, &[u8])>;
type Burst = Box<dyn FnMut(&mut BurstCalls<'_, '_>)>;
type Worker = Arc<dyn Fn(DeferredCall) + Send + Sync>;

/// How requests of a type are handled, from which each endpoint makes its own handler.
enum Registration {
    Dispatch(Box<dyn Fn() -> Dispatch + Send + Sync>),
    Burst(Box<dyn Fn() -> Burst + Send + Sync>),
    Worker(Worker),
}

/// Why a set of handlers cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NexusError {
    /// Two handlers for one type.
    #[error("request type {0} has two handlers; give each its own number")]
    DuplicateType(u16),
    /// Worker handlers and nobody to run them.
    #[error("request type {0} runs on workers, but no worker pool was given: call NexusBuilder::workers")]
    NoWorkers(u16),
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The handlers of a process and the limits of its endpoints (nsdi19 3.1). Cheap to clone; `Send`, unlike the endpoints made
/// with it.
#[derive(Clone)]
pub struct Nexus {
    inner: Arc<Inner>,
}

struct Inner {
    registrations: BTreeMap<u16, Registration>,
    workers: Option<Arc<dyn WorkerPool>>,
    config: Config,
}

impl Nexus {
    /// Starts to collect handlers.
    pub fn builder() -> NexusBuilder {
        NexusBuilder { registrations: Vec::new(), workers: None, config: Config::default() }
    }

    /// A nexus without handlers, for endpoints that only call.
    pub fn client() -> Self {
        Self { inner: Arc::new(Inner { registrations: BTreeMap::new(), workers: None, config: Config::default() }) }
    }

    /// The limits of its endpoints.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    pub(crate) fn handlers(&self) -> Handlers {
        let mut table = Vec::new();
        for (&number, registration) in &self.inner.registrations {
            let at = number as usize;
            if table.len() <= at {
                table.resize_with(at + 1, || Handler::None);
            }
            table[at] = match registration {
                Registration::Dispatch(make) => Handler::Dispatch(make()),
                Registration::Burst(make) => Handler::Burst(make()),
                Registration::Worker(handler) => Handler::Worker(Arc::clone(handler)),
            };
        }
        Handlers { table, workers: self.inner.workers.clone(), running: false }
    }
}

/// Collects handlers and limits for a [`Nexus`].
pub struct NexusBuilder {
    registrations: Vec<(RequestType, Registration)>,
    workers: Option<Arc<dyn WorkerPool>>,
    config: Config,
}

impl NexusBuilder {
    /// Handles requests of a type in the endpoint's own thread, one by one: for handlers of up to a few hundred nanoseconds
    /// (nsdi19 3.2).
    #[must_use]
    pub fn handle(self, request_type: RequestType, handler: impl Fn(Call<'_>) + Send + Sync + 'static) -> Self {
        let handler = Arc::new(handler);
        self.handle_with(request_type, move || {
            let handler = Arc::clone(&handler);
            move |call: Call<'_>| handler(call)
        })
    }

    /// As [`Self::handle`], with a handler that `make` makes for each endpoint, on its thread: each can own its part of the
    /// data.
    #[must_use]
    pub fn handle_with<H>(mut self, request_type: RequestType, make: impl Fn() -> H + Send + Sync + 'static) -> Self
    where
        H: FnMut(Call<'_>) + 'static,
    {
        let make = Box::new(move || {
            let mut handler = make();
            Box::new(move |core: &mut Core, call, found, request: &[u8]| {
                handler(Call::new(core, RunningCall { call, found }, request));
            }) as Dispatch
        });
        self.registrations.push((request_type, Registration::Dispatch(make)));
        self
    }

    /// Handles all requests of a type in a received burst at once, in the endpoint's own thread.
    #[must_use]
    pub fn handle_burst(
        self,
        request_type: RequestType,
        handler: impl Fn(&mut BurstCalls<'_, '_>) + Send + Sync + 'static,
    ) -> Self {
        let handler = Arc::new(handler);
        self.handle_burst_with(request_type, move || {
            let handler = Arc::clone(&handler);
            move |calls: &mut BurstCalls<'_, '_>| handler(calls)
        })
    }

    /// As [`Self::handle_burst`], with a handler of its own for each endpoint.
    #[must_use]
    pub fn handle_burst_with<H>(
        mut self,
        request_type: RequestType,
        make: impl Fn() -> H + Send + Sync + 'static,
    ) -> Self
    where
        H: FnMut(&mut BurstCalls<'_, '_>) + 'static,
    {
        let make = Box::new(move || Box::new(make()) as Burst);
        self.registrations.push((request_type, Registration::Burst(make)));
        self
    }

    /// Handles requests of a type in the worker pool: for handlers that take longer (nsdi19 3.2).
    #[must_use]
    pub fn handle_worker(
        mut self,
        request_type: RequestType,
        handler: impl Fn(DeferredCall) + Send + Sync + 'static,
    ) -> Self {
        self.registrations.push((request_type, Registration::Worker(Arc::new(handler))));
        self
    }

    /// The pool that runs worker handlers.
    #[must_use]
    pub fn workers(mut self, pool: Arc<dyn WorkerPool>) -> Self {
        self.workers = Some(pool);
        self
    }

    /// Whether a worker handler was registered and no pool was given yet.
    pub fn wants_workers(&self) -> bool {
        self.workers.is_none() && self.registrations.iter().any(|(_, kind)| matches!(kind, Registration::Worker(_)))
    }

    /// Limits and times of the endpoints.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Checks and finishes.
    ///
    /// # Errors
    ///
    /// [`NexusError`]: two handlers for one type, workers without a pool, a configuration that cannot work.
    pub fn build(self) -> Result<Nexus, NexusError> {
        self.config.check()?;
        let mut registrations = BTreeMap::new();
        for (request_type, registration) in self.registrations {
            let number = request_type.number();
            if matches!(registration, Registration::Worker(_)) && self.workers.is_none() {
                return Err(NexusError::NoWorkers(number));
            }
            if registrations.insert(number, registration).is_some() {
                return Err(NexusError::DuplicateType(number));
            }
        }
        Ok(Nexus { inner: Arc::new(Inner { registrations, workers: self.workers, config: self.config }) })
    }
}

enum Handler {
    None,
    Dispatch(Dispatch),
    Burst(Burst),
    Worker(Worker),
}

/// One endpoint's handlers, by the number of their type.
pub(crate) struct Handlers {
    table: Vec<Handler>,
    workers: Option<Arc<dyn WorkerPool>>,
    /// Whether a dispatch handler is at work: what panics meanwhile is the handler's.
    running: bool,
}

impl Handlers {
    /// Lets go of what a handler panicked with. Any other panic is a mistake of ours, and goes on.
    #[cold]
    pub fn bear(&mut self, payload: Box<dyn Any + Send>) {
        if !std::mem::take(&mut self.running) {
            resume_unwind(payload);
        }
        contained(|| drop(payload));
    }

    /// Runs a request that lies where it was received, or keeps it for [`Self::run_bursts`]. What a handler panics with goes through.
    #[inline(always)]
    pub fn run_lent<'a>(
        &mut self,
        core: &mut Core,
        call: RunningCall,
        request: &'a [u8],
        batched: &mut ArrayVec<BurstEntry<'a>, MAX_BURST>,
    ) {
        if let Some(Handler::Dispatch(handler)) = self.table.get_mut(usize::from(call.found.request_type.number())) {
            self.running = true;
            handler(core, call.call, call.found, request);
            self.running = false;
            return;
        }
        self.run(core, Arrived { call, request: RequestData::Lent(request) }, batched);
    }

    /// As [`Self::run_lent`], wherever the request lies.
    #[inline(never)]
    pub fn run<'a>(
        &mut self,
        core: &mut Core,
        arrived: Arrived<'a>,
        batched: &mut ArrayVec<BurstEntry<'a>, MAX_BURST>,
    ) {
        let Arrived { call, request } = arrived;
        match self.table.get_mut(usize::from(call.found.request_type.number())) {
            Some(Handler::Dispatch(handler)) => {
                self.running = true;
                handler(core, call.call, call.found, &request);
                self.running = false;
            }
            Some(Handler::Burst(_)) => {
                batched.push(BurstEntry { call, request, answered: Cell::new(false) });
            }
            Some(Handler::Worker(handler)) => {
                give_to_worker(core, Arrived { call, request }, handler, self.workers.as_deref());
            }
            Some(Handler::None) | None => {
                core.servers.answer_error(&mut core.shared, call.call, ErrorCode::NoHandler);
            }
        }
    }

    /// Gives each burst handler the requests of its type.
    pub fn run_bursts(&mut self, core: &mut Core, mut waiting: ArrayVec<BurstEntry<'_>, MAX_BURST>) {
        while let Some(first) = waiting.first() {
            let request_type = first.call.found.request_type;
            let (mut now, mut later) = (ArrayVec::<_, MAX_BURST>::new(), ArrayVec::<_, MAX_BURST>::new());
            for entry in waiting {
                if entry.call.found.request_type == request_type { now.push(entry) } else { later.push(entry) }
            }
            if let Some(Handler::Burst(handler)) = self.table.get_mut(request_type.number() as usize) {
                contained(|| handler(&mut BurstCalls::new(core, &now)));
            }
            waiting = later;
        }
    }
}

/// Has a worker run a request. Apart, so that other requests do not pay for its stack.
#[inline(never)]
fn give_to_worker(core: &mut Core, arrived: Arrived<'_>, handler: &Worker, workers: Option<&dyn WorkerPool>) {
    let Arrived { call, request } = arrived;
    let Ok(deferred) = keep(core, call, request) else {
        return core.servers.answer_error(&mut core.shared, call.call, ErrorCode::Busy);
    };
    let Some(workers) = workers else { return deferred.refuse() };
    let handler = Arc::clone(handler);
    let slot = Arc::new(std::sync::Mutex::new(Some(deferred)));
    let in_job = Arc::clone(&slot);
    let job = Box::new(move || {
        let deferred = in_job.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(deferred) = deferred {
            contained(|| handler(deferred));
        }
    });
    if workers.submit(job).is_err()
        && let Some(deferred) = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    {
        deferred.refuse();
    }
}

/// Runs what may panic, and lets go of what it panicked with, whose own drop may panic too.
#[inline(always)]
pub(crate) fn contained(run: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run))
        && let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        // Twice is enough: leaking this one ends it.
        std::mem::forget(second);
    }
}
