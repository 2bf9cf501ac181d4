//! The protocol core: the two roles of an endpoint, and the state that they share. It has no port, clock or thread.
//!
//! [`crate::client`] handles the calls that we make, [`crate::server`] those that we answer. Neither knows the other:
//! what both need is in [`Shared`], which is passed to them.
//!
//! # Files
//!
//! The core does no I/O. It consists of a few roles, each a type of its own, whose methods are passed the state that
//! the roles share:
//!
//! ```text
//! rpc.rs       Rpc: the port, the clock, the loop        sessions.rs  opening and ending sessions, watching peers
//! receive.rs   each packet to its role, each request     client.rs    calls that we make
//!              to its handler                            server.rs    calls that we answer
//! nexus.rs     handlers of a process                     live.rs      counters that others read
//! handlers.rs  handlers of one endpoint                  channel.rs   sessions kept together
//! call.rs      requests as handlers see them             lanes.rs     who hears of which completion
//! endpoint.rs  the trait for libraries, and handles      shared.rs    limits, memory, peers, time, packets to send
//!              for other threads
//! ```
//!
//! A file uses those below it, and its own modules; `cargo xtask tidy` checks that there are no other cycles. Clients
//! and servers do not know each other. Sessions are above both, since a session that ends takes its calls along. The
//! meaning of a packet's fields is an enum (`sinew_wire::Meaning`), so no field is a length here and a bit map there.
//!
//! # What a small call touches
//!
//! The rate of small calls is limited by instructions, not by the distance between the cores. `cargo xtask cost` counts
//! these instructions, and `costs.toml` is their ledger. So each packet is first tried as the common case, with its
//! session and slot looked up once. Any other packet is handled from the start by a slow path, out of line:
//! `take_short`, in either role, changes nothing before it knows that it can finish.
//!
//! The slots of client and server say what a short call is (`client::state`, `server::state`). State of thousands of
//! sessions lies in memory and not in the caches, so tables grow into memory that is advised for huge pages, and
//! sessions, slots and response buffers are prefetched over a burst (`Rpc::prefetch_session` does it for calls to
//! come).
//!
//! Changes that were tried, and the instructions of a call in batches of 8 after each (callgrind):
//!
//! | | client | server |
//! | --- | --- | --- |
//! | at first | 1,268 | 816 |
//! | roles; hot and cold state apart | 972 | 735 |
//! | common packets first; one lookup of session and slot; completions in a ring; fewer round trips timed | 776 | 616 |
//! | a packet that fills a line goes into the ring as one line, and comes out of it as one | 622 | 449 |
//! | one comparison for all timers; a leaner announcement; short copies inline; replies that call nothing | 586 | 439 |
//! | limits settled early; one comparison for first packets; a link polled without a loop; one iterator | 568 | 393 |
//! | a burst is accounted for once | 557 | 392 |
//!
//! A call of a burst handler costs the server 90 more than that of a dispatch handler which only echoes (measured with
//! a sequencer, whose answers are 16 bytes): 31 because its packet does not fill a line, and 59 to put it into its
//! burst, to look at the types in the burst, to catch panics once a burst, and to read and answer it. Among these, 8
//! check that other packets of the burst have not ended the call meanwhile, and 6 that it is answered once. A second
//! branch beside that of dispatch handlers saved 7 of these 14, and cost each call of a dispatch handler 8.
//!
//! A response with a tail, such as one too long for the ring of shared memory, is tried as the common case too, by a
//! function of its own: this saves its client some 390 instructions, and costs a request's packet with a tail 19.
//!
//! Not worth it: receiving the burst inline (the calls saved cost less than the registers spilt), handing the header on
//! to the slow path instead of reading it again (21 instructions more for each small call), transmitting inline, and a
//! queue of finished slots in place of completions (slots would wait for their user to poll).

use std::num::NonZeroU64;
use std::sync::Arc;

use sinew_fabric::{Generator, PacketTx, RxBurst};
use sinew_mem::{Arena, MessageBuffer};
use sinew_wire::{Header, Kind};

use crate::answer::AnswerQueue;
use crate::client::{Clients, NewCall};
use crate::config::Config;
use crate::error::Rejected;
use crate::lanes::LaneId;
use crate::names::{CallId, RequestType, SessionId};
use crate::options::CallOptions;
use crate::server::Servers;
use crate::shared::{Link, Shared};
use crate::transmit::TxKind;

/// Number of session places above which their state no longer stays in the nearest caches, so that prefetching it pays.
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
        answer_queue: Arc<AnswerQueue>,
        now_ns: u64,
    ) -> Self {
        let (slots, lane_backlog_max) = (config.slots, config.lane_backlog_max);
        Self {
            shared: Shared::new(config, link, arena, generator, now_ns),
            clients: Clients::new(slots, lane_backlog_max, now_ns),
            servers: Servers::new(slots, answer_queue),
        }
    }

    /// Number of sessions, in both roles together.
    pub fn sessions(&self) -> usize {
        self.clients.table.len() + self.servers.table.len()
    }

    /// Accepts a call; `shared.now_ns` must be up to date. See [`crate::Rpc::enqueue_request`]. It is inlined because
    /// the compiler mostly knows the options.
    #[inline(always)]
    pub fn enqueue(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        options: CallOptions,
    ) -> Result<CallId, Rejected> {
        let Self { shared, clients, .. } = self;
        // The deadline must not be zero. One at the clock's origin has passed, and so has one a nanosecond later.
        let deadline_ns = options.ends_ns(shared.now_ns).and_then(|ends_ns| NonZeroU64::new(ends_ns.max(1)));
        let (request_type, lane, tag) = (request_type.number(), options.lane.index(), options.tag);
        let call = NewCall { request_type, lane, tag, deadline_ns };
        if options.lane != LaneId::MAIN {
            return Self::enqueue_in_lane(shared, clients, session, (call, options.lane), request, response);
        }
        match deadline_ns {
            None => clients.enqueue::<false>(shared, session, call, request, response),
            Some(_) => clients.enqueue::<true>(shared, session, call, request, response),
        }
    }

    /// Accepts a call of a lane other than the main one.
    #[inline(never)]
    fn enqueue_in_lane(
        shared: &mut Shared,
        clients: &mut Clients,
        session: SessionId,
        (call, lane): (NewCall, LaneId),
        request: MessageBuffer,
        response: MessageBuffer,
    ) -> Result<CallId, Rejected> {
        if let Err(error) = clients.lanes.check(lane) {
            return Err(Rejected { error, request, response });
        }
        let taken = match call.deadline_ns {
            None => clients.enqueue::<false>(shared, session, call, request, response),
            Some(_) => clients.enqueue::<true>(shared, session, call, request, response),
        };
        if taken.is_ok() {
            clients.lanes.begin(lane);
        }
        taken
    }

    /// Ends calls whose deadlines have passed, in both roles.
    #[inline(never)]
    pub fn end_expired(&mut self) {
        let Self { shared, clients, servers } = self;
        if shared.now_ns >= shared.deadlines_due_ns {
            let (ours, theirs) = (clients.end_expired(shared), servers.end_expired(shared));
            let calls = clients.expiring() + servers.expiring();
            shared.note_deadlines_checked(calls, ours.into_iter().chain(theirs).min());
        }
    }

    /// Whether the loop, or the endpoint's user, already has something to do.
    pub fn has_work(&self) -> bool {
        self.shared.has_output() || self.clients.has_work() || self.servers.answer_queue.is_filled()
    }

    /// Pushes everything that waits, as one burst. The caller submits it.
    pub fn transmit(&mut self, tx: &mut impl PacketTx) {
        let Self { shared, clients, servers } = self;
        for &item in &shared.transmit {
            match item.kind {
                TxKind::Request => clients.send_requests(shared, item, tx),
                TxKind::Response => servers.send_responses(shared, item, tx),
                TxKind::RequestForResponse => clients.send_request_for_response(shared, item, tx),
                _ => servers.send_control(shared, item, tx),
            }
        }
        shared.transmit.clear();
        servers.note_sent();
        if !shared.outbox.is_empty() {
            shared.send_outbox(tx);
        }
    }

    /// Starts all memory reads that handling the burst will need, at once (with 20,000 sessions they miss the caches).
    #[inline]
    pub fn prefetch(&self, burst: &RxBurst<'_>) {
        let places = self.clients.table.entries.len() + self.servers.table.entries.len();
        if places > PREFETCH_FROM_SESSIONS && self.shared.config.tuning.prefetch_sessions {
            self.prefetch_sessions(burst);
        }
    }

    #[inline(never)]
    fn prefetch_sessions(&self, burst: &RxBurst<'_>) {
        burst.packets.iter().for_each(|packet| self.prefetch_session_of(packet.head));
        // These reads overlap too.
        burst.packets.iter().for_each(|packet| self.prefetch_buffers_of(packet.head));
    }

    /// Prefetches the session and the slot of a packet that is about to be handled.
    #[inline]
    pub fn prefetch_session_of(&self, packet: &[u8]) {
        let Ok(header) = Header::read(packet) else { return };
        match header.kind {
            Kind::Request | Kind::RequestWithOptions | Kind::RequestForResponse => {
                self.servers.table.prefetch(header.session, header.request_number);
            }
            _ => self.clients.prefetch(&self.shared, header.session, header.request_number),
        }
    }

    /// Prefetches what the session and the slot of a packet point to, once these have been prefetched.
    #[inline]
    pub fn prefetch_buffers_of(&self, packet: &[u8]) {
        let Ok(header) = Header::read(packet) else { return };
        match header.kind {
            Kind::Request | Kind::RequestWithOptions => self.servers.prefetch_response(&self.shared, header.call()),
            Kind::Response => self.clients.prefetch_buffers(&self.shared, header.call()),
            _ => {}
        }
    }

    /// Slows down our sessions whose packets met long queues, and tells clients whose packets did.
    #[cold]
    pub fn note_marks(&mut self, burst: &RxBurst<'_>) {
        let Self { shared, clients, servers } = self;
        let marked = burst.packets.iter().enumerate().filter(|(at, _)| burst.marked & 1 << at != 0);
        for (_, packet) in marked {
            let Ok(header) = Header::read(packet.head) else { continue };
            match header.kind {
                Kind::Request | Kind::RequestWithOptions | Kind::RequestForResponse => {
                    servers.queue_congestion_notice(shared, header.call(), packet);
                }
                Kind::Response | Kind::CreditReturn => {
                    if let Ok(index) = clients.table.find_from(header.session, packet.from) {
                        clients.on_mark(shared, index);
                    }
                }
                _ => {}
            }
        }
    }
}
