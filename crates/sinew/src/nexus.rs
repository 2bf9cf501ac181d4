//! Handlers and limits of a process, with this machine's threads to run worker handlers.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use sinew_fabric::{PollPolicy, WorkerPool};
use sinew_host::{ThreadPool, available_cpus};
use sinew_rpc::{BurstCalls, Call, Config, DeferredCall, EndpointInfo, RequestType};

use crate::error::{Error, Result};

/// Jobs that may wait for a worker before further requests are answered `busy`.
const WORKER_QUEUE: usize = 16 << 10;

/// The handlers of a process and the limits of its endpoints: [`sinew_rpc::Nexus`] with this machine's threads. Cheap
/// to clone, `Send`.
#[derive(Clone)]
pub struct Nexus(sinew_rpc::Nexus);

impl Nexus {
    /// Begins a set of handlers.
    pub fn builder() -> NexusBuilder {
        NexusBuilder { inner: sinew_rpc::Nexus::builder().config(default_config()), worker_threads: None }
    }

    /// A nexus without handlers, for endpoints that only call.
    pub fn client() -> Self {
        let built = sinew_rpc::Nexus::builder().config(default_config()).build();
        // The default configuration always builds.
        Self(built.unwrap_or_else(|_| sinew_rpc::Nexus::client()))
    }
}

impl Deref for Nexus {
    type Target = sinew_rpc::Nexus;

    fn deref(&self) -> &sinew_rpc::Nexus {
        &self.0
    }
}

impl From<sinew_rpc::Nexus> for Nexus {
    fn from(nexus: sinew_rpc::Nexus) -> Self {
        Self(nexus)
    }
}

/// The default configuration for this machine: with a single processor no thread spins, since that would only keep a
/// peer on this machine from answering.
pub(crate) fn default_config() -> Config {
    static ONE_CPU: OnceLock<bool> = OnceLock::new();
    let mut config = Config::default();
    // All processors of the machine count, not only those that this thread may use: a pinned thread has peers on
    // others.
    let one = ONE_CPU.get_or_init(|| {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
        online.is_ok_and(|list| !list.contains(['-', ',']))
    });
    if *one {
        config.poller = PollPolicy::SLEEP;
    }
    config
}

/// Collects handlers and limits for a [`Nexus`].
pub struct NexusBuilder {
    inner: sinew_rpc::NexusBuilder,
    worker_threads: Option<usize>,
}

impl NexusBuilder {
    /// Handles requests of a type in the endpoint's own thread, one at a time: for handlers of up to a few hundred
    /// nanoseconds.
    ///
    /// A request is lent while its handler runs, where it lies in the receive burst. Copy what is to be kept:
    ///
    /// ```
    /// # use sinew::prelude::*;
    /// let (keep, kept) = std::sync::mpsc::channel::<Vec<u8>>();
    /// let nexus = Nexus::builder().handle(RequestType::new(1), move |call: Call| {
    ///     keep.send(call.request().to_vec()).unwrap();
    ///     call.reply(b"kept");
    /// });
    /// ```
    ///
    /// A request that outlives its burst does not compile:
    ///
    /// ```compile_fail,E0521
    /// # use sinew::prelude::*;
    /// let (keep, kept) = std::sync::mpsc::channel::<&[u8]>();
    /// let nexus = Nexus::builder().handle(RequestType::new(1), move |call: Call| {
    ///     keep.send(call.request()).unwrap();
    ///     call.reply(b"kept");
    /// });
    /// ```
    #[must_use]
    pub fn handle(mut self, request_type: RequestType, handler: impl Fn(Call<'_>) + Send + Sync + 'static) -> Self {
        self.inner = self.inner.handle(request_type, handler);
        self
    }

    /// As [`Self::handle`], with a handler that `make` makes for each endpoint, on its thread, from information about
    /// that endpoint. The handler belongs to the endpoint: it owns what it changes, without locks, and need not be
    /// `Send`.
    ///
    /// ```
    /// # use sinew::prelude::*;
    /// const COUNT: RequestType = RequestType::new(1);
    /// let nexus = Nexus::builder().handle_with(COUNT, |endpoint| {
    ///     let (index, mut calls) = (endpoint.index, 0);
    ///     move |call: Call| {
    ///         calls += 1;
    ///         call.reply(format!("call {calls} of endpoint {index}").as_bytes())
    ///     }
    /// });
    /// ```
    ///
    /// For handlers that share their state with the program that turns the endpoint, see
    /// [`Server::program`](crate::Server::program).
    #[must_use]
    pub fn handle_with<H>(
        mut self,
        request_type: RequestType,
        make: impl Fn(&EndpointInfo) -> H + Send + Sync + 'static,
    ) -> Self
    where
        H: FnMut(Call<'_>) + 'static,
    {
        self.inner = self.inner.handle_with(request_type, make);
        self
    }

    /// Handles all requests of a type in a received burst at once, in the endpoint's own thread.
    #[must_use]
    pub fn handle_burst(
        mut self,
        request_type: RequestType,
        handler: impl Fn(&mut BurstCalls<'_, '_>) + Send + Sync + 'static,
    ) -> Self {
        self.inner = self.inner.handle_burst(request_type, handler);
        self
    }

    /// As [`Self::handle_burst`], with a handler of its own for each endpoint: see [`Self::handle_with`].
    #[must_use]
    pub fn handle_burst_with<H>(
        mut self,
        request_type: RequestType,
        make: impl Fn(&EndpointInfo) -> H + Send + Sync + 'static,
    ) -> Self
    where
        H: FnMut(&mut BurstCalls<'_, '_>) + 'static,
    {
        self.inner = self.inner.handle_burst_with(request_type, make);
        self
    }

    /// Handles requests of a type in worker threads: for handlers that take longer or block.
    ///
    /// Without [`Self::workers`] or [`Self::worker_threads`] there is a thread for each processor.
    #[must_use]
    pub fn handle_worker(
        mut self,
        request_type: RequestType,
        handler: impl Fn(DeferredCall) + Send + Sync + 'static,
    ) -> Self {
        self.inner = self.inner.handle_worker(request_type, handler);
        self
    }

    /// As [`Self::handle_worker`], with a handler of its own for each endpoint. `make` runs on the endpoint's thread;
    /// the handler runs on the pool's threads, several at a time.
    #[must_use]
    pub fn handle_worker_with<H>(
        mut self,
        request_type: RequestType,
        make: impl Fn(&EndpointInfo) -> H + Send + Sync + 'static,
    ) -> Self
    where
        H: Fn(DeferredCall) + Send + Sync + 'static,
    {
        self.inner = self.inner.handle_worker_with(request_type, make);
        self
    }

    /// Copies requests of a type and queues them for [`Rpc::poll_request`](crate::Rpc::poll_request), by which the
    /// program that turns the endpoint takes them when it likes. In a [`Server`](crate::Server), the program set by
    /// [`Server::program`](crate::Server::program) takes them; without a program nobody does.
    #[must_use]
    pub fn handle_polled(mut self, request_type: RequestType) -> Self {
        self.inner = self.inner.handle_polled(request_type);
        self
    }

    /// Sets the pool that runs worker handlers.
    #[must_use]
    pub fn workers(mut self, pool: Arc<dyn WorkerPool>) -> Self {
        self.inner = self.inner.workers(pool);
        self
    }

    /// Sets the number of threads that run worker handlers, in a pool of the nexus's own.
    #[must_use]
    pub fn worker_threads(mut self, threads: usize) -> Self {
        self.worker_threads = Some(threads);
        self
    }

    /// Sets limits and times of the endpoints.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.inner = self.inner.config(config);
        self
    }

    /// Checks and finishes the set. Starts worker threads if there are worker handlers and no pool was given.
    ///
    /// # Errors
    ///
    /// [`Error::Nexus`] for two handlers of one type, or a configuration that cannot work; [`Error::System`] when
    /// threads cannot be started.
    pub fn build(self) -> Result<Nexus> {
        let Self { mut inner, worker_threads } = self;
        if inner.wants_workers() {
            let threads = worker_threads.unwrap_or_else(|| available_cpus().len());
            let pool = ThreadPool::new("sinew-worker", threads, WORKER_QUEUE)
                .map_err(|source| Error::System { doing: format!("starting {threads} worker threads"), source })?;
            inner = inner.workers(Arc::new(pool));
        }
        Ok(Nexus(inner.build()?))
    }
}
