//! The server's memory and connections, and the admission of clients.

use std::sync::Arc;
use std::sync::mpsc;

use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed as _, ProtectionDomain, QpAddress, QpConfig, QueuePair,
    ThreadDomain, Transport, VerbsError,
};

use crate::hello::{Hello, Welcome};
use crate::layout::{ANSWER_HEAD_LEN, Layout, LayoutError};
use crate::{Cq, Domain, Exposed, Qp, Thread};

/// Configuration of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerConfig {
    /// Layout of the request region.
    pub layout: Layout,
    /// Seed of the clients' tokens. A restarted server must have another seed, so that clients of the earlier one can
    /// be told from its own.
    pub seed: u64,
}

/// Reason why a server could not be made, or a client was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The layout is impossible.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// All places for clients are taken; there are this many.
    #[error("{0} clients are here already, and there are no more places: try again later")]
    Full(usize),
    /// The client's queue pairs have the wrong transports.
    #[error("the client's queue pairs have the wrong transports: UC is for requests, UD for answers, RC for READs")]
    Transport,
    /// An error of the device.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// Identifies a client of a server while it is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId {
    /// Index of its chunks of the region.
    pub index: u32,
    /// Token that its requests carry.
    pub token: u32,
}

/// News for a worker.
#[derive(Debug)]
pub(crate) enum Change {
    Join { id: ClientId, answers: QpAddress },
    Leave(ClientId),
}

/// A client's place.
struct AdmittedClient<D: Device> {
    id: ClientId,
    /// The connection over which the client writes.
    _requests: Qp<D>,
}

/// The initializer of sigcomm14 4.2: it owns the request region and a UC queue pair for each client, and takes no part
/// in serving requests. It belongs to one thread.
pub struct Server<D: Device> {
    clients: Vec<Option<AdmittedClient<D>>>,
    cq: Cq<D>,
    thread: Thread<D>,
    exposed: Arc<Exposed<D>>,
    layout: Layout,
    workers: Vec<mpsc::Sender<Change>>,
    random: u64,
    completions: Vec<Completion>,
}

/// The parts from which a worker's thread makes its [`crate::Worker`].
pub struct WorkerSeed<D: Device> {
    pub(crate) device: D,
    pub(crate) domain: Domain<D>,
    pub(crate) exposed: Arc<Exposed<D>>,
    pub(crate) layout: Layout,
    pub(crate) index: usize,
    pub(crate) changes: mpsc::Receiver<Change>,
}

impl<D: Device> WorkerSeed<D> {
    /// Index of the worker, from 0.
    pub fn index(&self) -> usize {
        self.index
    }
}

/// Checks a layout against a device.
pub(crate) fn check_answers<D: Device>(device: &D, layout: &Layout) -> Result<(), VerbsError> {
    let (asked, limit) = (layout.response_len_max + ANSWER_HEAD_LEN, device.attributes().mtu);
    if asked > limit {
        return Err(VerbsError::Limit { what: "bytes of an answer, which is one datagram", asked, limit });
    }
    Ok(())
}

impl<D: Device> Server<D> {
    /// Makes a server without clients, and the seeds of its workers.
    ///
    /// # Errors
    ///
    /// [`AdmitError::Layout`], [`AdmitError::Verbs`].
    pub fn new(device: &D, config: &ServerConfig) -> Result<(Self, Vec<WorkerSeed<D>>), AdmitError> {
        let layout = config.layout;
        layout.check()?;
        check_answers(device, &layout)?;
        let domain = device.protection_domain()?;
        let thread = domain.thread()?;
        let cq = thread.completion_queue(2 * layout.clients)?;
        let exposed = Arc::new(domain.expose(layout.region_len(), Access::WRITE)?);
        let (mut workers, mut seeds) = (Vec::new(), Vec::new());
        for index in 0..layout.workers {
            let (sender, changes) = mpsc::channel();
            workers.push(sender);
            let (device, domain, exposed) = (device.clone(), domain.clone(), Arc::clone(&exposed));
            seeds.push(WorkerSeed { device, domain, exposed, layout, index, changes });
        }
        let clients = (0..layout.clients).map(|_| None).collect();
        let completions = Vec::with_capacity(16);
        let server = Self { clients, cq, thread, exposed, layout, workers, random: config.seed, completions };
        Ok((server, seeds))
    }

    /// Number of clients.
    pub fn clients(&self) -> usize {
        self.clients.iter().flatten().count()
    }

    /// Reserves a place for a client and connects to it.
    ///
    /// # Errors
    ///
    /// [`AdmitError`].
    pub fn admit(&mut self, hello: &Hello) -> Result<(ClientId, Welcome), AdmitError> {
        if hello.requests.transport != Transport::Uc || hello.answers.transport != Transport::Ud {
            return Err(AdmitError::Transport);
        }
        let index = self.clients.iter().position(Option::is_none).ok_or(AdmitError::Full(self.clients.len()))?;
        let config = QpConfig { send_depth: 1, receive_depth: 1, ..QpConfig::new(Transport::Uc) };
        let mut requests = self.thread.queue_pair(&config, &self.cq, &self.cq)?;
        requests.connect(Some(&hello.requests))?;
        let id = ClientId { index: index as u32, token: self.token() };
        let welcome = Welcome {
            client: id.index,
            token: id.token,
            requests: requests.address(),
            memory: self.exposed.remote(),
            layout: self.layout,
        };
        self.clients[index] = Some(AdmittedClient { id, _requests: requests });
        for worker in &self.workers {
            // A worker that has ended serves nobody.
            let _ = worker.send(Change::Join { id, answers: hello.answers.clone() });
        }
        Ok((id, welcome))
    }

    /// Frees the place of a client that has left or died. Its requests that no worker has executed are dropped. Returns
    /// whether the client was here.
    pub fn dismiss(&mut self, id: ClientId) -> bool {
        let Some(place) = self.clients.get_mut(id.index as usize) else { return false };
        if place.as_ref().is_none_or(|place| place.id != id) {
            return false;
        }
        // Each worker receives the leave before the join of the place's next client.
        for worker in &self.workers {
            let _ = worker.send(Change::Leave(id));
        }
        *place = None;
        true
    }

    /// Takes and discards the device's completions on the connections. Call it now and then.
    pub fn tend(&mut self) {
        while self.cq.poll(&mut self.completions, 16) > 0 {
            self.completions.clear();
        }
    }

    /// Draws a token that is not 0 and that no recent client has had.
    fn token(&mut self) -> u32 {
        loop {
            // splitmix64
            self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut mixed = self.random;
            mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            let token = (mixed ^ mixed >> 31) as u32;
            if token != 0 {
                return token;
            }
        }
    }
}
