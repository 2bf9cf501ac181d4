//! The composed programs: a backend, a service that is its client, and the service's visitors. Each has endpoints of
//! any kind and never waits, so its owner can turn it by the real clock or in virtual time.

pub mod service;
mod visitor;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use sinew::fabric::Address;
use sinew::kv::cache::{REQUESTS, Service as Cache};
use sinew::prelude::*;
use sinew::sequencer::rpc::{NEXT, handler};
use sinew::sequencer::{Epoch, Sequence};
use sinew::store::cache::CacheConfig;

pub use service::Service;
pub use visitor::Visitor;

/// To the service: subscribe to values that others remember.
pub const SUBSCRIBE: RequestType = RequestType::new(20);
/// To the service: put a value into the cache under the sequencer's next number, and answer with that.
pub const REMEMBER: RequestType = RequestType::new(21);
/// To the service: get the value of a number.
pub const RECALL: RequestType = RequestType::new(22);
/// To the service: make a request that is never answered, with a deadline, and answer with its outcome.
pub const TIME_OUT: RequestType = RequestType::new(23);
/// To the service: make a request that is never answered, and cancel it.
pub const CANCEL: RequestType = RequestType::new(24);
/// To a visitor: a value was remembered.
pub const NEWS: RequestType = RequestType::new(25);
/// To the backend: call the sender back whenever numbers were given.
pub const WATCH: RequestType = RequestType::new(26);
/// To the service: this many numbers were given.
pub const GIVEN: RequestType = RequestType::new(27);

pub fn config() -> Config {
    Config { message_len_max: 4 << 20, ..Config::default() }
}

pub fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// A cache and a sequencer, which calls its watcher back; and, at an endpoint of its own, a sequencer that keeps every
/// request for ever.
pub struct Backend {
    pub rpc: Rpc,
    pub unanswering: Rpc,
    kept: Rc<RefCell<Vec<DeferredCall>>>,
    watcher: Rc<Cell<Option<ClientId>>>,
    given: Rc<Cell<u64>>,
    reported: u64,
}

impl Backend {
    pub fn new(mut rpc: Rpc, mut unanswering: Rpc) -> Self {
        let cache =
            Cache::new(1, &CacheConfig { items: 1024, memory_bytes: 4 << 20, ..CacheConfig::default() }).unwrap();
        rpc.handle_burst(REQUESTS, cache.handler(rpc.info())).unwrap();
        let numbers = handler(Arc::new(Sequence::new(1, Epoch(1), 100)));
        let given = Rc::<Cell<u64>>::default();
        let counts = Rc::clone(&given);
        let count = move |calls: &mut BurstCalls<'_, '_>| {
            counts.set(counts.get() + calls.len() as u64);
            numbers(calls);
        };
        rpc.handle_burst(NEXT, count).unwrap();
        let watcher = Rc::<Cell<Option<ClientId>>>::default();
        let watches = Rc::clone(&watcher);
        let watch = move |call: Call<'_>| {
            watches.set(Some(call.client()));
            call.reply(b"");
        };
        rpc.handle(WATCH, watch).unwrap();
        let kept = Rc::<RefCell<Vec<DeferredCall>>>::default();
        let keeps = Rc::clone(&kept);
        unanswering.handle(NEXT, move |call: Call<'_>| keeps.borrow_mut().push(call.defer().unwrap())).unwrap();
        Self { rpc, unanswering, kept, watcher, given, reported: 0 }
    }

    pub fn addresses(&self) -> [Address; 2] {
        [self.rpc.address(), self.unanswering.address()]
    }

    pub fn turn(&mut self) -> bool {
        let mut busy = self.rpc.turn() | self.unanswering.turn();
        let given = self.given.get();
        if given > self.reported
            && let Some(watcher) = self.watcher.get()
        {
            let session = self.rpc.session_to(watcher).unwrap();
            let (mut request, response) = (self.rpc.alloc(8).unwrap(), self.rpc.alloc(0).unwrap());
            request.fill(&given.to_le_bytes()).unwrap();
            self.rpc.enqueue_request(session, GIVEN, request, response, 0).unwrap();
            self.reported = given;
            busy = true;
        }
        while let Some(completion) = self.rpc.poll_completion() {
            completion.result.unwrap();
            busy = true;
        }
        busy
    }

    /// Number of calls kept, and of those among them for which nobody waits.
    pub fn kept(&self) -> (usize, usize) {
        let kept = self.kept.borrow();
        (kept.len(), kept.iter().filter(|call| call.is_abandoned()).count())
    }
}
