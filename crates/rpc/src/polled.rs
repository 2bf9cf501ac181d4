//! Requests that wait until the program that turns the endpoint polls them.
//!
//! They are copies, and count towards their client's share of the arena. Their number is bounded, both for each client
//! and in total.

use crate::answer::{ErrorCode, ReadyRequest};
use crate::call::{DeferredCall, keep};
use crate::core::Core;
use crate::fifo::Fifo;

/// Copies of requests, oldest first. Their buffers come from the arena, and count towards their clients' shares of it.
pub(crate) struct Backlog {
    waiting: Fifo<DeferredCall>,
    /// Whether a request was added or taken since `take_news` last returned.
    is_news: bool,
}

impl Default for Backlog {
    fn default() -> Self {
        Self { waiting: Fifo::with_capacity(1), is_news: false }
    }
}

impl Backlog {
    /// Whether the program should look at waiting requests before it sleeps: some wait, and the backlog has changed
    /// since the last call. So requests that the program leaves waiting do not keep its thread awake.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news) && !self.waiting.is_empty()
    }

    /// Puts a request behind the others; beyond the limits, answers its client with [`ErrorCode::Busy`].
    #[inline(never)]
    pub fn add(&mut self, core: &mut Core, arrived: ReadyRequest<'_>) {
        let ReadyRequest { call, request } = arrived;
        let max = core.shared.config.polled_requests_max;
        let peer_waiting = core.servers.requests_waiting(&core.shared, call.id);
        let has_room =
            self.waiting.len() < max && peer_waiting.is_some_and(|waiting| waiting < core.shared.share_of(max as u64));
        match has_room.then(|| keep(core, call, core.servers.deadline_ns(call.id), request)) {
            Some(Ok(mut kept)) => {
                kept.begin_waiting();
                self.waiting.push(kept);
                self.is_news = true;
            }
            // Too many requests wait, or there is no memory for one more.
            None | Some(Err(_)) => core.servers.answer_error(&mut core.shared, call.id, ErrorCode::Busy),
        }
    }

    /// Returns the next request whose client still waits for the answer.
    pub fn next(&mut self, core: &Core) -> Option<DeferredCall> {
        loop {
            let mut call = self.waiting.pop()?;
            self.is_news = true;
            call.end_waiting();
            if core.servers.is_unanswered(call.name()) {
                return Some(call);
            }
            call.forget();
        }
    }
}
