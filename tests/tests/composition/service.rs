//! The service: a server's program, with three endpoints and state of its own. It knows nothing of threads, clocks and
//! fabrics.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use sinew::fabric::Address;
use sinew::kv::cache::protocol::{PutOptions, Response};
use sinew::kv::cache::{ClientConfig, Connecting, Pipeline};
use sinew::prelude::*;
use sinew::sequencer::rpc::RpcClient;
use sinew::sequencer::{CallError, Client as _};
use sinew::{Endpoint, Program, SharedEndpoint};

use super::{CANCEL, GIVEN, NEWS, RECALL, REMEMBER, SUBSCRIBE, TIME_OUT, WATCH, number};

const WINDOW: usize = 8;
/// Longest wait in ns of the backend's clients, where a request sets no other.
const PATIENCE_NS: u64 = 20_000_000_000;
/// Time-out in ns of a request that is never answered.
const UNANSWERED_TIMEOUT_NS: u64 = 3_000_000;

type Share = SharedEndpoint<Rpc>;

/// Work that the handlers leave for the program's loop.
#[derive(Default)]
struct Inbox {
    subscribers: BTreeSet<(usize, ClientId)>,
    to_do: Vec<(usize, RequestType, DeferredCall)>,
}

/// A request that is never answered, and is to be cancelled: it leaves in one turn, and is cancelled after that.
struct PendingCancel {
    call: CallId,
    has_left: bool,
}

pub struct Service {
    /// Another endpoint that is served, beside the server's.
    pub side: Rpc,
    /// The endpoint of all clients of the backend, each of which has a share.
    pub out: Share,
    connecting: Option<Connecting<Share>>,
    cache: Option<Pipeline<Share>>,
    sequencer: RpcClient<Share>,
    /// Client of the sequencer that never answers.
    unanswering: RpcClient<Share>,
    watch: Share,
    given: Rc<Cell<u64>>,
    inbox: Rc<RefCell<Inbox>>,
    /// Calls that wait for the backend, and the endpoints at which they came, by tag.
    waiting_calls: BTreeMap<u64, (usize, DeferredCall)>,
    numbered: BTreeMap<u64, u64>,
    pending_cancels: Vec<PendingCancel>,
    next_tag: u64,
    values: u64,
    news_delivered: u64,
}

/// Work that a service has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub values: u64,
    pub news_delivered: u64,
    /// Numbers given, as the backend has reported.
    pub given: u64,
}

impl Service {
    /// Creates the program of the endpoint `rpc`, for a backend at these addresses.
    pub fn new(rpc: &mut Rpc, mut side: Rpc, out: Rpc, [backend, deaf]: &[Address; 2]) -> sinew::Result<Self> {
        let inbox = Rc::<RefCell<Inbox>>::default();
        for (front, rpc) in [rpc, &mut side].into_iter().enumerate() {
            let subscribes = Rc::clone(&inbox);
            rpc.handle(SUBSCRIBE, move |call: Call<'_>| {
                subscribes.borrow_mut().subscribers.insert((front, call.client()));
                call.reply(b"");
            })?;
            for kind in [REMEMBER, RECALL, TIME_OUT, CANCEL] {
                let keeps = Rc::clone(&inbox);
                rpc.handle(kind, move |call: Call<'_>| {
                    keeps.borrow_mut().to_do.push((front, kind, call.defer().unwrap()));
                })?;
            }
        }
        let mut out = SharedEndpoint::new(out);
        // The backend calls back over a session of its own, in the same endpoint and thread.
        let given = Rc::<Cell<u64>>::default();
        let hears = Rc::clone(&given);
        let on_numbers = move |call: Call<'_>| {
            hears.set(number(call.request()));
            call.reply(b"");
        };
        out.handle(GIVEN, Box::new(on_numbers))?;
        let mut watch = out.share();
        let session = watch.begin_connect_with(backend, ConnectOptions::new().call_back(4))?;
        let (request, response) = (watch.alloc(0)?, watch.alloc(0)?);
        watch.enqueue_request(session, WATCH, request, response, 0.into())?;
        let sequencer = |address| -> sinew::Result<_> {
            let mut share = out.share();
            let session = share.begin_connect(address)?;
            Ok(RpcClient::new(share, session, WINDOW, None)?.timeout_ns(PATIENCE_NS))
        };
        let (sequencer, unanswering) = (sequencer(backend)?, sequencer(deaf)?);
        let config = ClientConfig { window: WINDOW, timeout_ns: Some(PATIENCE_NS) };
        let connecting = Connecting::begin(out.share(), [backend.to_string()], config).unwrap();
        Ok(Self {
            side,
            out,
            connecting: Some(connecting),
            cache: None,
            sequencer,
            unanswering,
            watch,
            given,
            inbox,
            waiting_calls: BTreeMap::new(),
            numbered: BTreeMap::new(),
            pending_cancels: Vec::new(),
            next_tag: 0,
            values: 0,
            news_delivered: 0,
        })
    }

    pub fn done(&self) -> Done {
        Done { values: self.values, news_delivered: self.news_delivered, given: self.given.get() }
    }

    fn begin_all(&mut self) -> bool {
        let to_do = std::mem::take(&mut self.inbox.borrow_mut().to_do);
        let has_work = !to_do.is_empty();
        for (front, kind, call) in to_do {
            self.next_tag += 1;
            let tag = self.next_tag;
            match kind {
                REMEMBER => self.sequencer.request(tag, 1).unwrap(),
                RECALL => _ = self.cache.as_mut().unwrap().get(call.request(), tag).unwrap(),
                TIME_OUT => _ = self.unanswering.request_within(tag, 1, UNANSWERED_TIMEOUT_NS).unwrap(),
                _ => {
                    let call = self.unanswering.request_within(tag, 1, u64::MAX).unwrap();
                    self.pending_cancels.push(PendingCancel { call, has_left: false });
                }
            }
            self.waiting_calls.insert(tag, (front, call));
        }
        has_work
    }

    /// Cancels the requests that have left.
    fn cancel_pending(&mut self) -> bool {
        let (has_work, unanswering) = (!self.pending_cancels.is_empty(), &mut self.unanswering);
        self.pending_cancels.retain_mut(|doubt| {
            if std::mem::replace(&mut doubt.has_left, true) {
                assert!(unanswering.cancel(doubt.call));
                return false;
            }
            true
        });
        has_work
    }

    /// Takes numbers, and stores a value under each.
    fn process_numbers(&mut self) -> bool {
        let mut any = false;
        while let Some(answer) = self.sequencer.answer() {
            any = true;
            let (_, call) = &self.waiting_calls[&answer.tag];
            let number = answer.result.unwrap().first;
            self.numbered.insert(answer.tag, number);
            let cache = self.cache.as_mut().unwrap();
            cache.put(&number.to_le_bytes(), call.request(), PutOptions::default(), answer.tag).unwrap();
        }
        any
    }

    fn process_cache(&mut self, rpc: &mut Rpc) -> bool {
        let Some(mut cache) = self.cache.take() else { return false };
        let mut any = false;
        while let Some(answer) = cache.poll() {
            any = true;
            let (front, call) = self.waiting_calls.remove(&answer.tag).unwrap();
            match answer.response.unwrap() {
                Response::Value(value) => self.front(rpc, front).reply(call, value),
                Response::Stored { .. } => {
                    let number = self.numbered.remove(&answer.tag).unwrap();
                    self.values += 1;
                    self.notify_subscribers(rpc, call.request());
                    self.front(rpc, front).reply(call, &number.to_le_bytes());
                }
                other => panic!("{other:?}"),
            }
        }
        self.cache = Some(cache);
        any
    }

    /// Takes the outcomes of requests that are never answered.
    fn process_unanswered(&mut self, rpc: &mut Rpc) -> bool {
        let mut any = false;
        while let Some(answer) = self.unanswering.answer() {
            any = true;
            let Err(CallError::Rpc(error)) = answer.result else { panic!("{answer:?}") };
            let (front, call) = self.waiting_calls.remove(&answer.tag).unwrap();
            self.front(rpc, front).reply(call, format!("{:?}", error.cause).as_bytes());
        }
        any
    }

    fn front<'a>(&'a mut self, rpc: &'a mut Rpc, front: usize) -> &'a mut Rpc {
        if front == 0 { rpc } else { &mut self.side }
    }

    /// Calls all subscribers back, and forgets those that have gone.
    fn notify_subscribers(&mut self, rpc: &mut Rpc, value: &[u8]) {
        let side = &mut self.side;
        self.inbox.borrow_mut().subscribers.retain(|&(front, client)| {
            let rpc = if front == 0 { &mut *rpc } else { &mut *side };
            let Ok(session) = rpc.session_to(client) else { return false };
            let (mut news, response) = (rpc.alloc(value.len()).unwrap(), rpc.alloc(8).unwrap());
            news.fill(value).unwrap();
            rpc.enqueue_request(session, NEWS, news, response, 0).is_ok()
        });
    }
}

impl Program for Service {
    type Error = sinew::Error;

    fn turn(&mut self, rpc: &mut Rpc) -> sinew::Result<Flow> {
        let mut busy = self.out.turn() | self.side.turn() | rpc.turn();
        if let Some(mut connecting) = self.connecting.take() {
            match connecting.poll().unwrap() {
                true => self.cache = Some(connecting.finish().unwrap()),
                false => self.connecting = Some(connecting),
            }
        }
        while let Some(event) = self.watch.poll_event() {
            assert!(matches!(event, SessionEvent::Connected(_)), "{event:?}");
        }
        if let Some(watched) = self.watch.poll_completion() {
            watched.result?;
        }
        if self.cache.is_some() {
            busy |= self.begin_all();
        }
        busy |= self.cancel_pending() | self.process_numbers() | self.process_cache(rpc) | self.process_unanswered(rpc);
        for front in [rpc, &mut self.side] {
            // Visitors have heard the news.
            while let Some(completion) = front.poll_completion() {
                self.news_delivered += u64::from(completion.result.is_ok());
                busy = true;
            }
        }
        Ok(busy.into())
    }
}
