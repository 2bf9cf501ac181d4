//! The owner of a table that clients READ: it exposes the table and serves changes.

use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed as _, ProtectionDomain, QpConfig, QueuePair, ThreadDomain,
    Transport,
};
use sinew_herd::{AdmitError, ClientId, Layout, Request, Response, Server, ServerConfig, Service, WorkerSeed};
use sinew_mem::SharedMemory;
use sinew_store::remote::{Index, Table, TableError};

use super::client::Status;
use super::{Change, Cq, Exposed, Hello, KEY_LEN_MAX, Qp, Thread, Welcome};

/// Limits of an owner.
#[derive(Clone, Copy, Debug)]
pub struct OwnerConfig {
    /// Clients at the same time.
    pub clients: usize,
    /// Changes that a client may have in flight; a power of two.
    pub window: usize,
    /// Longest key and value of a PUT together, in bytes.
    pub item_len_max: usize,
    /// As [`ServerConfig::seed`].
    pub seed: u64,
}

impl OwnerConfig {
    /// The request region for changes.
    pub fn layout(&self) -> Layout {
        Layout {
            workers: 1,
            clients: self.clients,
            window: self.window,
            request_len_max: self.item_len_max,
            response_len_max: 8,
        }
    }
}

/// Exposes a table's memory and admits clients. It belongs to one thread, and takes no part in serving requests.
pub struct Owner<D: Device> {
    /// By client index: the queue pair over which the client READs.
    clients: Vec<Option<(ClientId, Qp<D>)>>,
    cq: Cq<D>,
    thread: Thread<D>,
    exposed: Exposed<D>,
    server: Server<D>,
    table: Vec<u8>,
    completions: Vec<Completion>,
}

impl<D: Device> Owner<D> {
    /// Returns an owner without clients, the seed of its one worker, and the memory for the table, all zero.
    ///
    /// # Errors
    ///
    /// [`AdmitError`].
    pub fn new<I: Index>(
        device: &D,
        config: &OwnerConfig,
        index: &I,
    ) -> Result<(Self, WorkerSeed<D>, SharedMemory), AdmitError> {
        Self::with_access(device, config, index, Access::READ)
    }

    /// As [`Self::new`], with memory on which clients may do more than READ.
    pub(crate) fn with_access<I: Index>(
        device: &D,
        config: &OwnerConfig,
        index: &I,
        access: Access,
    ) -> Result<(Self, WorkerSeed<D>, SharedMemory), AdmitError> {
        let layout = config.layout();
        let (server, seeds) = Server::new(device, &ServerConfig { layout, seed: config.seed })?;
        let domain = device.protection_domain()?;
        let thread = domain.thread()?;
        let exposed = domain.expose(index.memory_len(), access)?;
        let cq = thread.completion_queue(2 * config.clients)?;
        let memory = SharedMemory::clone(&exposed);
        let clients = (0..config.clients).map(|_| None).collect();
        let owner =
            Self { clients, cq, thread, exposed, server, table: index.describe(), completions: Vec::with_capacity(16) };
        let seed = seeds.into_iter().next().ok_or(AdmitError::Full(0))?;
        Ok((owner, seed, memory))
    }

    /// Reserves a place for a client and connects to it.
    ///
    /// # Errors
    ///
    /// [`AdmitError`].
    pub fn admit(&mut self, hello: &Hello) -> Result<(ClientId, Welcome), AdmitError> {
        if hello.reads.transport != Transport::Rc {
            return Err(AdmitError::Transport);
        }
        if self.clients.iter().all(Option::is_some) {
            return Err(AdmitError::Full(self.clients.len()));
        }
        let config = QpConfig { send_depth: 1, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
        let mut reads = self.thread.queue_pair(&config, &self.cq, &self.cq)?;
        reads.connect(Some(&hello.reads))?;
        let (id, calls) = self.server.admit(&hello.calls)?;
        let memory = self.exposed.remote();
        let welcome = Welcome { calls, reads: reads.address(), memory, table: self.table.clone() };
        self.clients[id.index as usize] = Some((id, reads));
        Ok((id, welcome))
    }

    /// Frees the place of a client that has left or died. Returns whether the client was here.
    pub fn dismiss(&mut self, id: ClientId) -> bool {
        let was_connected = self.server.dismiss(id);
        if was_connected {
            self.clients[id.index as usize] = None;
        }
        was_connected
    }

    /// Takes and discards the device's completions on the connections. Call it now and then.
    pub fn tend(&mut self) {
        self.server.tend();
        while self.cq.poll(&mut self.completions, 16) > 0 {
            self.completions.clear();
        }
    }
}

/// Executes the changes that clients ask for on a table.
pub struct ChangeService<T> {
    table: T,
}

impl<T: Table> ChangeService<T> {
    /// Serves changes of `table`.
    pub fn new(table: T) -> Self {
        Self { table }
    }

    /// The table.
    pub fn table(&mut self) -> &mut T {
        &mut self.table
    }

    #[inline]
    fn change(&mut self, request: &Request<'_>, located: &T::Located) -> Option<Status> {
        let (change, key, value) = Change::parse(request)?;
        Some(match change {
            Change::Delete if !value.is_empty() => return None,
            Change::Delete if self.table.delete_located(key, located) => Status::Deleted,
            Change::Delete => Status::Absent,
            Change::Put => match self.table.put_located(key, value, located) {
                Ok(_) => Status::Stored,
                Err(TableError::Full { .. } | TableError::NoMemory { .. }) => Status::Full,
                Err(TableError::Key { .. } | TableError::Value { .. }) => Status::TooLong,
                Err(_) => Status::Malformed,
            },
        })
    }
}

impl<T: Table> Service for ChangeService<T> {
    type Job = T::Located;

    #[inline]
    fn prefetch(&mut self, request: &Request<'_>) -> T::Located {
        let Some((_, key, _)) = Change::parse(request) else { return T::Located::default() };
        let located = self.table.locate(key);
        self.table.prefetch(&located);
        located
    }

    #[inline]
    fn advance(&mut self, _: &Request<'_>, located: &mut T::Located) {
        self.table.prefetch_item(located);
    }

    #[inline]
    fn execute(&mut self, request: &Request<'_>, located: T::Located, response: &mut Response<'_>) {
        response.kind = self.change(request, &located).unwrap_or(Status::Malformed) as u16;
    }
}

const _: () = assert!(KEY_LEN_MAX << 2 | 3 == u16::MAX as usize);

#[cfg(test)]
mod tests {
    use sinew_store::cuckoo::CuckooTable;

    use super::*;
    use crate::pilaf;

    /// Has changes executed in steps, together.
    fn ask<T: Table>(service: &mut ChangeService<T>, changes: &[(u16, &[u8])]) -> Vec<Option<Status>> {
        let requests: Vec<_> = changes.iter().map(|&(kind, body)| Request { client: 0, kind, body }).collect();
        let mut jobs: Vec<_> = requests.iter().map(|request| service.prefetch(request)).collect();
        requests.iter().zip(&mut jobs).for_each(|(request, job)| service.advance(request, job));
        let execute = |(request, job)| {
            let mut response = Response::new(&mut []);
            service.execute(request, job, &mut response);
            Status::of(response.kind)
        };
        requests.iter().zip(jobs).map(execute).collect()
    }

    #[test]
    fn changes_of_one_key_in_one_batch_are_executed_in_their_order() {
        let layout = pilaf::layout(8, 16, 1);
        let memory = SharedMemory::private(layout.memory_len()).unwrap();
        let mut service = ChangeService::new(CuckooTable::new(layout, memory).unwrap());
        let [put, delete] = [Change::Put, Change::Delete].map(|change| change.kind(3));
        let changes: [(_, &[u8]); 5] =
            [(delete, b"key"), (put, b"keyone"), (put, b"keytwo"), (delete, b"key"), (delete, b"key")];
        let expected = [Status::Absent, Status::Stored, Status::Stored, Status::Deleted, Status::Absent];
        assert_eq!(ask(&mut service, &changes), expected.map(Some));
    }

    #[test]
    fn nonsense_is_refused_as_malformed() {
        let layout = pilaf::layout(8, 16, 1);
        let memory = SharedMemory::private(layout.memory_len()).unwrap();
        let mut service = ChangeService::new(CuckooTable::new(layout, memory).unwrap());
        let changes: [(_, &[u8]); 4] =
            [(0, b"key"), (Change::Put.kind(4), b"key"), (Change::Delete.kind(2), b"key"), (u16::MAX, b"key")];
        assert_eq!(ask(&mut service, &changes), [Some(Status::Malformed); 4]);
        assert!(service.table().is_empty());
    }
}
