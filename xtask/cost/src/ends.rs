//! A server's and a client's endpoint over shared memory, on a clock that is moved by hand.

use anyhow::ensure;
use sinew_fabric::{ManualClock, SeededGenerator};
use sinew_rpc::{Nexus, Rpc, SessionEvent, SessionId};
use sinew_shm::{Hub, ShmPort};

/// Time in ns that passes with each call, on the clock that is moved by hand. Whatever looks at the clock (sockets,
/// timers) then does so as often as at ten million calls a second.
pub const CALL_NS: u64 = 100;

/// Memory of the links.
#[derive(Clone, Copy, Debug)]
pub enum Rings {
    /// Private memory, between threads: packets are read in place.
    Private,
    /// Memory that another process could write: packets are copied out.
    Shared,
}

/// A server's and a client's endpoint, both of this thread.
pub struct Ends {
    /// Clock of both.
    pub clock: ManualClock,
    /// The endpoint that serves.
    pub server: Rpc<ShmPort, ManualClock>,
    /// The endpoint that calls.
    pub client: Rpc<ShmPort, ManualClock>,
}

impl Ends {
    /// Opens both, with the handlers and limits of these nexuses.
    ///
    /// # Errors
    ///
    /// A port cannot be opened.
    pub fn new(rings: Rings, server: &Nexus, client: &Nexus) -> anyhow::Result<Self> {
        const ARENA: &str = "arena=67108864";
        let hub = Hub::new();
        let name = format!("cost{}", std::process::id());
        let (at_server, at_client) = match rings {
            Rings::Private => (hub.port(&format!("{name}?{ARENA}"))?, hub.port(&format!("?{ARENA}"))?),
            Rings::Shared => (
                ShmPort::open(&format!("shm://{name}?{ARENA}").parse()?)?,
                ShmPort::open(&format!("shm://?{ARENA}").parse()?)?,
            ),
        };
        let clock = ManualClock::new();
        clock.advance(1_000_000);
        let endpoint = |nexus, port, seed| Rpc::new(nexus, port, clock.clone(), Box::new(SeededGenerator::new(seed)));
        Ok(Self { server: endpoint(server, at_server, 1), client: endpoint(client, at_client, 2), clock })
    }

    /// Turns both endpoints, and advances the clock, until timed work has been done as well.
    pub fn settle(&mut self) {
        for _ in 0..100 {
            self.client.turn();
            self.server.turn();
            self.clock.advance(100_000);
        }
    }

    /// Opens a session.
    ///
    /// # Errors
    ///
    /// The session does not open.
    pub fn connect(&mut self) -> anyhow::Result<SessionId> {
        let session = self.client.begin_connect(&self.server.address())?;
        self.settle();
        ensure!(matches!(self.client.poll_event(), Some(SessionEvent::Connected(open)) if open == session));
        Ok(session)
    }
}
