//! The handlers of a process, by request type: each endpoint of the process gets its own.
//!
//! An endpoint's own handlers, and the program that turns the endpoint, live on its thread and share state by `Rc`. So
//! makers of handlers and of programs run on that thread, and are told which endpoint it is (`EndpointInfo`).

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

/// Registration of a request type, from which each endpoint makes its own handler.
struct Registration {
    make: Box<Make>,
    needs_workers: bool,
}

/// The endpoint that a handler is made for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndpointInfo {
    /// Number of the endpoint among those of its server, from 0. At the facade's server it is the endpoint's place in
    /// the order of the addresses; elsewhere it is what [`crate::Rpc::numbered`] was given, or 0.
    pub index: usize,
    /// Address at which others reach the endpoint.
    pub address: Address,
    pub(crate) arena: Arena,
    pub(crate) data_per_packet: usize,
    /// The endpoint's `endpoint::handle::Inbox`. It is untyped here because it takes closures over whole endpoints, a
    /// type unknown to this module.
    pub(crate) inbox: Arc<dyn Any + Send + Sync>,
}

impl EndpointInfo {
    /// Allocates a message buffer of `len` bytes from the endpoint's arena, for answers that a handler keeps ready. Its
    /// contents are unspecified.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.arena.alloc(len, self.data_per_packet)
    }
}

/// Reason why a nexus cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NexusError {
    /// A type has two handlers.
    #[error("request type {0} has two handlers; give each its own number")]
    DuplicateType(u16),
    /// There are worker handlers, but no pool to run them.
    #[error("request type {0} runs on workers, but no worker pool was given: call NexusBuilder::workers")]
    NoWorkers(u16),
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The handlers of a process and the limits of its endpoints (nsdi19 3.1). It is cheap to clone, and `Send`, unlike the
/// endpoints made with it.
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
    /// Returns a builder that collects handlers.
    pub fn builder() -> NexusBuilder {
        NexusBuilder { registrations: Vec::new(), workers: None, config: Config::default() }
    }

    /// Makes a nexus without handlers, for endpoints that only make calls.
    pub fn client() -> Self {
        Self { inner: Arc::new(Inner { registrations: BTreeMap::new(), workers: None, config: Config::default() }) }
    }

    /// Limits and times of its endpoints.
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
    /// Handles requests of a type on the endpoint's own thread, one at a time: for handlers that take at most a few
    /// hundred nanoseconds (nsdi19 3.2).
    #[must_use]
    pub fn handle(self, request_type: RequestType, handler: impl Fn(Call<'_>) + Send + Sync + 'static) -> Self {
        let handler = Arc::new(handler);
        self.handle_with(request_type, move |_endpoint| {
            let handler = Arc::clone(&handler);
            move |call: Call<'_>| handler(call)
        })
    }

    /// As [`Self::handle`], with a handler that `make` makes for each endpoint, on that endpoint's thread. `make` is
    /// told which endpoint that is. The handler belongs to the endpoint: it can own the state that it changes, and need
    /// not be `Send`. For handlers that share their state with the program that turns the endpoint, see
    /// [`crate::Rpc::handle`].
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

    /// Handles all requests of a type in a received burst together, on the endpoint's own thread.
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

    /// As [`Self::handle_worker`], with a handler of its own for each endpoint. `make` runs on the endpoint's thread;
    /// the handler runs on the pool's threads, several at a time. It may make calls through the endpoint's handle and
    /// wait for them ([`EndpointInfo::remote_handle`]). Workers in virtual time are the exception: each of their jobs
    /// runs to its end at once, so waiting is an error ([`HandleError::VirtualTime`](crate::HandleError::VirtualTime)).
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

    /// Copies requests of a type and queues them for [`crate::Rpc::poll_request`], where the program that turns the
    /// endpoint takes them when it likes.
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

    /// Sets the pool that runs worker handlers.
    #[must_use]
    pub fn workers(mut self, pool: Arc<dyn WorkerPool>) -> Self {
        self.workers = Some(pool);
        self
    }

    /// Whether a worker handler was registered and no pool was given yet.
    pub fn wants_workers(&self) -> bool {
        self.workers.is_none() && self.registrations.iter().any(|(_, registration)| registration.needs_workers)
    }

    /// Sets the limits and times of the endpoints.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Checks the settings and makes the nexus.
    ///
    /// # Errors
    ///
    /// [`NexusError`]: two handlers for one type, worker handlers without a pool, or a configuration that cannot work.
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
