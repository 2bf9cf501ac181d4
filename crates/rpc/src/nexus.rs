//! What a process serves: handlers by request type, of which each endpoint of the process gets its own.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use sinew_fabric::{Address, WorkerPool};
use sinew_mem::{AllocError, Arena, MessageBuffer};

use crate::call::{BurstCalls, Call, DeferredCall};
use crate::config::Config;
use crate::error::ConfigError;
use crate::handlers::{Handler, Handlers};
use crate::names::RequestType;

/// Makes the handler of one endpoint.
type Make = dyn Fn(&EndpointInfo) -> Handler + Send + Sync;

/// How requests of a type are handled, from which each endpoint makes its own handler.
struct Registration {
    make: Box<Make>,
    needs_workers: bool,
}

/// The endpoint that a handler is made for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndpointInfo {
    /// Its number among the endpoints of its server, from 0: at the facade's server its place in the order of the addresses, elsewhere what
    /// [`crate::Rpc::numbered`] was given, or 0.
    pub index: usize,
    /// Where others reach it.
    pub address: Address,
    pub(crate) arena: Arena,
    pub(crate) data_per_packet: usize,
    /// Its `endpoint::handle::Inbox`. That takes closures over whole endpoints, of which nothing is known down here.
    pub(crate) inbox: Arc<dyn Any + Send + Sync>,
}

impl EndpointInfo {
    /// Makes a message buffer of the endpoint's, of `len` bytes, whose contents are unspecified: for answers that a handler keeps ready.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.arena.alloc(len, self.data_per_packet)
    }
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

    /// Makes the handlers of one endpoint, on its thread.
    pub(crate) fn handlers(&self, endpoint: &EndpointInfo) -> Handlers {
        let mut handlers = Handlers::new(self.inner.workers.clone());
        for (&number, registration) in &self.inner.registrations {
            handlers.set(number, (registration.make)(endpoint));
        }
        handlers
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
        self.handle_with(request_type, move |_endpoint| {
            let handler = Arc::clone(&handler);
            move |call: Call<'_>| handler(call)
        })
    }

    /// As [`Self::handle`], with a handler that `make` makes for each endpoint, on its thread. `make` is told which endpoint that is. The
    /// handler belongs to the endpoint: it can own what it changes, and need not be `Send`. For handlers that share their state with the
    /// program that turns the endpoint, see [`crate::Rpc::handle`].
    #[must_use]
    pub fn handle_with<H>(
        self,
        request_type: RequestType,
        make: impl Fn(&EndpointInfo) -> H + Send + Sync + 'static,
    ) -> Self
    where
        H: FnMut(Call<'_>) + 'static,
    {
        self.register(request_type, move |endpoint| Handler::dispatch(make(endpoint)))
    }

    /// Handles all requests of a type in a received burst at once, in the endpoint's own thread.
    #[must_use]
    pub fn handle_burst(
        self,
        request_type: RequestType,
        handler: impl Fn(&mut BurstCalls<'_, '_>) + Send + Sync + 'static,
    ) -> Self {
        let handler = Arc::new(handler);
        self.handle_burst_with(request_type, move |_endpoint| {
            let handler = Arc::clone(&handler);
            move |calls: &mut BurstCalls<'_, '_>| handler(calls)
        })
    }

    /// As [`Self::handle_burst`], with a handler of its own for each endpoint: see [`Self::handle_with`].
    #[must_use]
    pub fn handle_burst_with<H>(
        self,
        request_type: RequestType,
        make: impl Fn(&EndpointInfo) -> H + Send + Sync + 'static,
    ) -> Self
    where
        H: FnMut(&mut BurstCalls<'_, '_>) + 'static,
    {
        self.register(request_type, move |endpoint| Handler::Burst(Box::new(make(endpoint))))
    }

    /// Handles requests of a type in the worker pool: for handlers that take longer (nsdi19 3.2).
    #[must_use]
    pub fn handle_worker(
        self,
        request_type: RequestType,
        handler: impl Fn(DeferredCall) + Send + Sync + 'static,
    ) -> Self {
        let handler = Arc::new(handler);
        self.handle_worker_with(request_type, move |_endpoint| {
            let handler = Arc::clone(&handler);
            move |call: DeferredCall| handler(call)
        })
    }

    /// As [`Self::handle_worker`], with a handler of its own for each endpoint. `make` runs on the endpoint's thread; the handler runs on
    /// those of the pool, on several at once. It may make calls by the endpoint's handle and wait for them
    /// ([`EndpointInfo::remote_handle`]), but for workers in virtual time: their jobs run to their ends at once, so waiting is an error
    /// ([`HandleError::VirtualTime`](crate::HandleError::VirtualTime)).
    #[must_use]
    pub fn handle_worker_with<H>(
        mut self,
        request_type: RequestType,
        make: impl Fn(&EndpointInfo) -> H + Send + Sync + 'static,
    ) -> Self
    where
        H: Fn(DeferredCall) + Send + Sync + 'static,
    {
        let make = Box::new(move |endpoint: &EndpointInfo| Handler::Worker(Arc::new(make(endpoint))));
        self.registrations.push((request_type, Registration { make, needs_workers: true }));
        self
    }

    /// Copies requests of a type and queues them for [`crate::Rpc::poll_request`], where the program that turns the endpoint takes them when it
    /// likes.
    #[must_use]
    pub fn handle_polled(self, request_type: RequestType) -> Self {
        self.register(request_type, |_endpoint| Handler::Polled)
    }

    fn register(
        mut self,
        request_type: RequestType,
        make: impl Fn(&EndpointInfo) -> Handler + Send + Sync + 'static,
    ) -> Self {
        self.registrations.push((request_type, Registration { make: Box::new(make), needs_workers: false }));
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
        self.workers.is_none() && self.registrations.iter().any(|(_, registration)| registration.needs_workers)
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
            if registration.needs_workers && self.workers.is_none() {
                return Err(NexusError::NoWorkers(number));
            }
            if registrations.insert(number, registration).is_some() {
                return Err(NexusError::DuplicateType(number));
            }
        }
        Ok(Nexus { inner: Arc::new(Inner { registrations, workers: self.workers, config: self.config }) })
    }
}
