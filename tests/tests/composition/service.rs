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

use super::{CHANGE_ONES_MIND, GIVEN, NEWS, RECALL, REMEMBER, SUBSCRIBE, WAIT_IN_VAIN, WATCH, number};

const WINDOW: usize = 8;
/// Longest wait in ns of the backend's clients, where a request sets no other.
const PATIENCE_NS: u64 = 20_000_000_000;
/// Time-out in ns of a request that is never answered.
const IN_VAIN_NS: u64 = 3_000_000;

type Share = SharedEndpoint<Rpc>;

/// Work that the handlers leave for the program's loop.
#[derive(Default)]
struct Desk {
    subscribers: BTreeSet<(usize, ClientId)>,
    to_do: Vec<(usize, RequestType, DeferredCall)>,
}

/// A request that is never answered, and is to be cancelled: it leaves in one turn, and is cancelled after that.
struct Doubt {
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
    deaf: RpcClient<Share>,
    watch: Share,
    given: Rc<Cell<u64>>,
    desk: Rc<RefCell<Desk>>,
    /// Calls that wait for the backend, and the endpoints at which they came, by tag.
    asked: BTreeMap<u64, (usize, DeferredCall)>,
    numbered: BTreeMap<u64, u64>,
    doubts: Vec<Doubt>,
    next_tag: u64,
    values: u64,
    news_heard: u64,
}

/// Work that a service has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub values: u64,
    pub news_heard: u64,
    /// Numbers given, as the backend has reported.
    pub given: u64,
}

impl Service {
    /// Creates the program of the endpoint `rpc`, for a backend at these addresses.
    pub fn new(rpc: &mut Rpc, mut side: Rpc, out: Rpc, [backend, deaf]: &[Address; 2]) -> sinew::Result<Self> {
        let desk = Rc::<RefCell<Desk>>::default();
        for (front, rpc) in [rpc, &mut side].into_iter().enumerate() {
            let subscribes = Rc::clone(&desk);
            rpc.handle(SUBSCRIBE, move |call: Call<'_>| {
                subscribes.borrow_mut().subscribers.insert((front, call.client()));
                call.reply(b"");
            })?;
            for kind in [REMEMBER, RECALL, WAIT_IN_VAIN, CHANGE_ONES_MIND] {
                let keeps = Rc::clone(&desk);
                rpc.handle(kind, move |call: Call<'_>| {
                    keeps.borrow_mut().to_do.push((front, kind, call.defer().unwrap()));
                })?;
            }
        }
        let mut out = SharedEndpoint::new(out);
        // The backend calls back over a session of its own, in the same endpoint and thread.
        let given = Rc::<Cell<u64>>::default();
        let hears = Rc::clone(&given);
        let hear = move |call: Call<'_>| {
            hears.set(number(call.request()));
            call.reply(b"");
        };
        out.handle(GIVEN, Box::new(hear))?;
        let mut watch = out.share();
        let session = watch.begin_connect_with(backend, ConnectOptions::new().call_back(4))?;
        let (request, response) = (watch.alloc(0)?, watch.alloc(0)?);
        watch.enqueue_request(session, WATCH, request, response, 0.into())?;
        let sequencer = |address| -> sinew::Result<_> {
            let mut share = out.share();
            let session = share.begin_connect(address)?;
            Ok(RpcClient::new(share, session, WINDOW, None)?.timeout_ns(PATIENCE_NS))
        };
        let (sequencer, deaf) = (sequencer(backend)?, sequencer(deaf)?);
        let config = ClientConfig { window: WINDOW, timeout_ns: Some(PATIENCE_NS) };
        let connecting = Connecting::begin(out.share(), [backend.to_string()], config).unwrap();
        Ok(Self {
            side,
            out,
            connecting: Some(connecting),
            cache: None,
            sequencer,
            deaf,
            watch,
            given,
            desk,
            asked: BTreeMap::new(),
            numbered: BTreeMap::new(),
            doubts: Vec::new(),
            next_tag: 0,
            values: 0,
            news_heard: 0,
        })
    }

    pub fn done(&self) -> Done {
        Done { values: self.values, news_heard: self.news_heard, given: self.given.get() }
    }

    fn begin_all(&mut self) -> bool {
        let to_do = std::mem::take(&mut self.desk.borrow_mut().to_do);
        let any = !to_do.is_empty();
        for (front, kind, call) in to_do {
            self.next_tag += 1;
            let tag = self.next_tag;
            match kind {
                REMEMBER => self.sequencer.request(tag, 1).unwrap(),
                RECALL => _ = self.cache.as_mut().unwrap().get(call.request(), tag).unwrap(),
                WAIT_IN_VAIN => _ = self.deaf.request_within(tag, 1, IN_VAIN_NS).unwrap(),
                _ => {
                    let call = self.deaf.request_within(tag, 1, u64::MAX).unwrap();
                    self.doubts.push(Doubt { call, has_left: false });
                }
            }
            self.asked.insert(tag, (front, call));
        }
        any
    }

    /// Cancels the requests that have left.
    fn change_mind(&mut self) -> bool {
        let (any, deaf) = (!self.doubts.is_empty(), &mut self.deaf);
        self.doubts.retain_mut(|doubt| {
            if std::mem::replace(&mut doubt.has_left, true) {
                assert!(deaf.cancel(doubt.call));
                return false;
            }
            true
        });
        any
    }

    /// Takes numbers, and stores a value under each.
    fn hear_numbers(&mut self) -> bool {
        let mut any = false;
        while let Some(answer) = self.sequencer.answer() {
            any = true;
            let (_, call) = &self.asked[&answer.tag];
            let number = answer.result.unwrap().first;
            self.numbered.insert(answer.tag, number);
            let cache = self.cache.as_mut().unwrap();
            cache.put(&number.to_le_bytes(), call.request(), PutOptions::default(), answer.tag).unwrap();
        }
        any
    }

    fn hear_cache(&mut self, rpc: &mut Rpc) -> bool {
        let Some(mut cache) = self.cache.take() else { return false };
        let mut any = false;
        while let Some(answer) = cache.poll() {
            any = true;
            let (front, call) = self.asked.remove(&answer.tag).unwrap();
            match answer.response.unwrap() {
                Response::Value(value) => self.front(rpc, front).reply(call, value),
                Response::Stored { .. } => {
                    let number = self.numbered.remove(&answer.tag).unwrap();
                    self.values += 1;
                    self.tell(rpc, call.request());
                    self.front(rpc, front).reply(call, &number.to_le_bytes());
                }
                other => panic!("{other:?}"),
            }
        }
        self.cache = Some(cache);
        any
    }

    /// Takes the outcomes of requests that are never answered.
    fn hear_deaf(&mut self, rpc: &mut Rpc) -> bool {
        let mut any = false;
        while let Some(answer) = self.deaf.answer() {
            any = true;
            let Err(CallError::Rpc(error)) = answer.result else { panic!("{answer:?}") };
            let (front, call) = self.asked.remove(&answer.tag).unwrap();
            self.front(rpc, front).reply(call, format!("{:?}", error.cause).as_bytes());
        }
        any
    }

    fn front<'a>(&'a mut self, rpc: &'a mut Rpc, front: usize) -> &'a mut Rpc {
        if front == 0 { rpc } else { &mut self.side }
    }

    /// Calls all subscribers back, and forgets those that have gone.
    fn tell(&mut self, rpc: &mut Rpc, value: &[u8]) {
        let side = &mut self.side;
        self.desk.borrow_mut().subscribers.retain(|&(front, client)| {
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
        busy |= self.change_mind() | self.hear_numbers() | self.hear_cache(rpc) | self.hear_deaf(rpc);
        for front in [rpc, &mut self.side] {
            // Visitors have heard the news.
            while let Some(over) = front.poll_completion() {
                self.news_heard += u64::from(over.result.is_ok());
                busy = true;
            }
        }
        Ok(busy.into())
    }
}
