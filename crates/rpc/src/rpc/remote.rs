//! Closures and calls that other threads hand over: they begin in a turn, and are reported at the end of one.

use std::collections::BTreeMap;

use sinew_fabric::{Clock, PacketPort};

use super::Rpc;
use crate::endpoint::RpcHandle;
use crate::endpoint::handle::{Closure, HandedCall, Promise, Task};
use crate::error::Error;
use crate::handlers::run_contained;
use crate::lanes::LaneId;
use crate::names::{CallId, Completion};
use crate::reply::Reply;

/// A call of another thread that is under way.
struct RemoteCall {
    id: CallId,
    promise: Promise<Reply, Error>,
}

/// The endpoint's side of its handles.
#[derive(Default)]
pub(super) struct Remote {
    /// Calls by number, which is also the tag of their completions.
    calls: BTreeMap<u64, RemoteCall>,
    /// Whether a closure is running. Further ones wait, even if it turns the endpoint.
    is_running: bool,
    /// Whether a turn that the closure made has left something in the inbox.
    left_in_inbox: bool,
    /// Completions that a closure's blocking call polled, but that belong to the blocking call in whose turns the
    /// closure runs.
    others_completions: Vec<Completion>,
}

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// Returns a handle through which other threads run closures on this endpoint and make calls. See
    /// [`EndpointInfo::remote_handle`](crate::EndpointInfo::remote_handle).
    pub fn remote_handle(&self) -> RpcHandle {
        self.info.remote_handle()
    }

    /// Begins what was handed over, and cancels calls that nobody waits for any more.
    #[cold]
    #[inline(never)]
    pub(super) fn take_remote_tasks(&mut self) {
        if !self.inbox.is_used() {
            return;
        }
        self.has_audience = true;
        let remote = self.remote.get_or_insert_default();
        if remote.is_running {
            remote.left_in_inbox = true;
            return;
        }
        let (tasks, cancelled) = self.inbox.take();
        for task in tasks {
            match task {
                Task::Run(closure) => self.run_remote_closure(closure),
                Task::Call(call) => self.begin_remote_call(call),
            }
        }
        for number in cancelled {
            // A call that is not found is over, or never began.
            if let Some(id) = self.remote.as_ref().and_then(|remote| remote.calls.get(&number)).map(|call| call.id) {
                self.cancel(id);
            }
        }
        if self.remote.as_mut().is_some_and(|remote| std::mem::take(&mut remote.left_in_inbox)) {
            self.core.servers.answer_queue.mark_filled();
        }
    }

    fn run_remote_closure(&mut self, closure: Closure) {
        self.mark_running(true);
        closure(self);
        self.mark_running(false);
        // The closure may have taken long, which no peer is to blame for, and it may have turned the loop or armed it.
        if self.sessions.begin_turn(&mut self.core, self.clock.now_ns()) {
            self.end_sleep();
        }
        self.was_idle = false;
        if let Some(remote) = &mut self.remote {
            for completion in remote.others_completions.drain(..) {
                self.core.clients.lanes.put_back(LaneId::BLOCKING, completion);
            }
        }
    }

    fn mark_running(&mut self, is_running: bool) {
        if let Some(remote) = &mut self.remote {
            remote.is_running = is_running;
        }
    }

    fn begin_remote_call(&mut self, call: HandedCall) {
        let HandedCall { number, session, request_type, request, response, options, promise } = call;
        if promise.is_abandoned() {
            return;
        }
        let mut options = options.lane(LaneId::REMOTE);
        options.tag = number;
        match self.enqueue_request(session, request_type, request, response, options) {
            Ok(id) => {
                if let Some(remote) = &mut self.remote {
                    remote.calls.insert(number, RemoteCall { id, promise });
                }
            }
            Err(rejected) => promise.complete(Err(rejected.error.into())),
        }
    }

    /// Reports finished calls to the threads that made them.
    #[inline(never)]
    pub(super) fn report_finished(&mut self) {
        let Some(remote) = &mut self.remote else { return };
        while let Some(completion) = self.core.clients.lanes.poll(LaneId::REMOTE) {
            let Completion { tag, result, response, .. } = completion;
            if let Some(call) = remote.calls.remove(&tag) {
                call.promise.complete(result.map(|()| Reply(response)).map_err(Error::Call));
            }
        }
    }

    /// Keeps a completion that a blocking call polled but that belongs to another call. If a closure made the blocking
    /// call, the other call is the one in whose turns the closure runs. Otherwise the other call was given up and its
    /// buffers came back late, so the completion is dropped.
    #[cold]
    pub(super) fn set_aside(&mut self, completion: Completion) {
        if let Some(remote) = self.remote.as_mut().filter(|remote| remote.is_running) {
            remote.others_completions.push(completion);
        }
    }

    /// Ends all handed-over work, as the endpoint is being dropped with all of its sessions, and tells the threads that
    /// wait.
    pub(super) fn end_remote_tasks(&mut self) {
        self.inbox.close();
        let (_, tx) = self.port.split();
        self.core.clients.reclaim(&mut self.core.shared.stats, tx);
        self.report_finished();
        run_contained(|| self.remote = None);
    }
}
