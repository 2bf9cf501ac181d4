//! The state of one thread.

use std::collections::HashMap;
use std::sync::Arc;

use sinew_remote_memory::pool::AccessMethod;
use sinew_remote_memory::volume::Event;
use sinew_rpc::{Endpoint, SessionId, SharedEndpoint};

use super::donor_connection::DonorConnection;
use super::shared::Client;

/// One thread's access to a client: its endpoint, its session with the service, and its connections to the donors. Each
/// method blocks until it is done.
pub struct Lane<E: Endpoint, A: AccessMethod> {
    pub(super) client: Arc<Client>,
    pub(super) number: u8,
    pub(super) rpc: SharedEndpoint<E>,
    /// Session with the service, once the service has admitted it.
    pub(super) session: Option<SessionId>,
    pub(super) access_method: sinew_mem::atomic::Arc<A>,
    /// Connections, by donor.
    pub(super) donors: HashMap<u64, DonorConnection<E, A>>,
    pub(super) events: Vec<Event>,
    pub(super) next_tag: u64,
}

impl<E: Endpoint, A: AccessMethod> std::fmt::Debug for Lane<E, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<E: Endpoint, A: AccessMethod> Lane<E, A> {
    /// Makes the calling thread's lane. `number` must be below [`LANES_MAX`](sinew_remote_memory::donor::LANES_MAX) and
    /// belong to no other lane of the client. The endpoint is for calls to the service and to the donors.
    /// `access_method` is shared by all lanes of the client, and has the client's arena.
    pub fn new(client: &Arc<Client>, number: u8, endpoint: E, access_method: &sinew_mem::atomic::Arc<A>) -> Self {
        Self {
            client: Arc::clone(client),
            number,
            rpc: SharedEndpoint::new(endpoint),
            session: None,
            access_method: sinew_mem::atomic::Arc::clone(access_method),
            donors: HashMap::new(),
            events: Vec::new(),
            next_tag: 0,
        }
    }

    /// The client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.rpc.now_ns()
    }

    /// Waits for `ns` nanoseconds while the endpoint keeps turning.
    pub(super) fn pause(&mut self, ns: u64) {
        let until = self.now_ns() + ns;
        loop {
            self.rpc.turn();
            while self.rpc.poll_event().is_some() || self.rpc.poll_completion().is_some() {}
            let now = self.now_ns();
            if now >= until || self.rpc.wait(Some(until - now)).is_err() {
                return;
            }
        }
    }
}
