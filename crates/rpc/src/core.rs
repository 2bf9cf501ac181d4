//! The protocol core: the roles of an endpoint, and what they share. No port, no clock, no thread.
//!
//! [`crate::client`] knows the calls that we make, [`crate::server`] those that we answer. Neither knows the other: what both need is in
//! [`Shared`], which they are handed.

use std::sync::Arc;

use sinew_fabric::{Generator, PacketTx, RxBurst};
use sinew_mem::Arena;
use sinew_wire::{Header, Kind};

use crate::answer::Returns;
use crate::client::Clients;
use crate::config::Config;
use crate::server::Servers;
use crate::shared::{Link, Shared};
use crate::transmit::TxKind;

/// From room for this many sessions on their state no longer stays in the nearest caches, and prefetching it pays.
const PREFETCH_FROM_SESSIONS: usize = 256;

pub(crate) struct Core {
    pub shared: Shared,
    pub clients: Clients,
    pub servers: Servers,
}

impl Core {
    pub fn new(
        config: Config,
        link: Link,
        arena: Arena,
        generator: Box<dyn Generator>,
        returns: Arc<Returns>,
        now_ns: u64,
    ) -> Self {
        let slots = config.slots;
        Self {
            shared: Shared::new(config, link, arena, generator, now_ns),
            clients: Clients::new(slots, now_ns),
            servers: Servers::new(slots, returns),
        }
    }

    /// Sessions in both roles.
    pub fn sessions(&self) -> usize {
        self.clients.table.len() + self.servers.table.len()
    }

    /// Whether the loop, or the endpoint's user, has something to do already.
    pub fn has_work(&self) -> bool {
        self.shared.has_output() || self.clients.has_work() || self.servers.returns.waiting()
    }

    /// Pushes everything that waits, as one burst. Its submission is the caller's.
    pub fn transmit(&mut self, tx: &mut impl PacketTx) {
        let Self { shared, clients, servers } = self;
        for &item in &shared.transmit {
            match item.kind {
                TxKind::Request => clients.send_requests(shared, item, tx),
                TxKind::Response => servers.send_responses(shared, item, tx),
                TxKind::RequestForResponse => clients.send_request_for_response(shared, item, tx),
                _ => servers.send_note(shared, item, tx),
            }
        }
        shared.transmit.clear();
        servers.note_sent();
        if !shared.outbox.is_empty() {
            shared.send_outbox(tx);
        }
    }

    /// Starts the memory reads that handling the burst will need, all at once (with 20,000 sessions they miss the caches).
    #[inline]
    pub fn prefetch(&self, burst: &RxBurst<'_>) {
        let places = self.clients.table.entries.len() + self.servers.table.entries.len();
        if places > PREFETCH_FROM_SESSIONS && self.shared.config.tuning.prefetch_sessions {
            self.prefetch_sessions(burst);
        }
    }

    #[inline(never)]
    fn prefetch_sessions(&self, burst: &RxBurst<'_>) {
        for packet in &burst.packets {
            let Ok(header) = Header::read(packet.head) else { continue };
            match header.kind {
                Kind::Request | Kind::RequestForResponse => {
                    self.servers.table.prefetch(header.session, header.request_number);
                }
                _ => self.clients.table.prefetch(header.session, header.request_number),
            }
        }
        // The slots lead on to the buffers that responses will be written to: their reads overlap in turn.
        for packet in &burst.packets {
            match Header::read(packet.head) {
                Ok(header) if header.kind == Kind::Request => self.servers.prefetch_response(header.call()),
                _ => {}
            }
        }
    }

    /// Slows sessions of ours whose packets met long queues, and tells clients of theirs.
    #[cold]
    pub fn note_marks(&mut self, burst: &RxBurst<'_>) {
        let Self { shared, clients, servers } = self;
        let marked = burst.packets.iter().enumerate().filter(|(at, _)| burst.marked & 1 << at != 0);
        for (_, packet) in marked {
            let Ok(header) = Header::read(packet.head) else { continue };
            match header.kind {
                Kind::Request | Kind::RequestForResponse => {
                    servers.queue_congestion_notice(shared, header.call(), packet);
                }
                Kind::Response | Kind::CreditReturn => {
                    if let Ok(index) = clients.table.checked(header.session, packet.from) {
                        clients.marked(shared, index);
                    }
                }
                _ => {}
            }
        }
    }
}
