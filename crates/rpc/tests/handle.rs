//! Handles: closures and calls that other threads hand over to endpoints.
#![cfg(test)]

mod common;

use std::cell::OnceCell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{
    Address, Armed, Caps, Descriptor, ManualClock, PacketPort, Peer, PollPolicy, PortError, PortEvent, PortStats,
    Readiness, SeededGenerator, WakeTarget,
};
use sinew_mem::Arena;
use sinew_rpc::{
    CallOptions, Cause, Config, ConnectError, ConnectOptions, Endpoint as _, EnqueueError, Error, Execution,
    HandleError, Nexus, Pending, Reply, Rpc, RpcHandle, SessionId,
};

struct Pair {
    world: World,
    client: Endpoint,
    server: Endpoint,
    session: SessionId,
    handle: RpcHandle,
}

impl Pair {
    fn with(config: Config) -> Self {
        let world = World::new();
        let (client, server, session) =
            world.pair_of((config, LoopbackConfig::default()), (Config::default(), LoopbackConfig::default()));
        let handle = client.remote_handle();
        Self { world, client, server, session, handle }
    }

    fn new() -> Self {
        Self::with(Config::default())
    }

    fn settle(&mut self) {
        settle(&mut self.client, &mut self.server);
    }

    fn ask(&self, data: &[u8]) -> Pending<Reply, Error> {
        self.handle.call(self.session, ECHO, data, 0).unwrap()
    }

    /// Asserts that every slot is free, and that nobody has anything to take.
    fn assert_idle(&mut self) {
        assert!(self.client.poll_completion().is_none() && self.client.poll_event().is_none());
        assert!(self.client.poll_ready_lane().is_none());
        assert_eq!(self.client.session_credits(self.session).map(|it| it.left == it.all), Some(true));
    }
}

/// Counts how often a task was woken.
#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl WakeCount {
    fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn poll<F: Future + Unpin>(future: &mut F, wake_count: &Arc<WakeCount>) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(wake_count))))
}

fn cause(result: Option<Result<Reply, Error>>) -> (Cause, Execution) {
    match result {
        Some(Err(Error::Call(error))) => (error.cause, error.execution),
        other => panic!("{other:?}"),
    }
}

fn of_handle<T: std::fmt::Debug>(result: Option<Result<T, Error>>) -> HandleError {
    match result {
        Some(Err(Error::Handle(error))) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_handle_and_what_it_gives_go_to_other_threads() {
    fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<RpcHandle>();
    is_shared::<Pending<Vec<u8>>>();
    is_shared::<Pending<Reply, Error>>();
}

#[test]
fn closures_and_calls_of_many_threads_end_where_they_began() {
    const THREADS: usize = if cfg!(miri) { 2 } else { 4 };
    const CALLS: usize = if cfg!(miri) { 3 } else { 200 };
    let mut pair = Pair::new();
    let (left, session) = (Arc::new(AtomicUsize::new(THREADS)), pair.session);
    std::thread::scope(|threads| {
        for thread in 0..THREADS {
            let (handle, left) = (pair.handle.clone(), Arc::clone(&left));
            threads.spawn(move || {
                for number in 0..CALLS {
                    let text = format!("{thread}: {number}");
                    let call = handle.call(session, ECHO, &text, 0).unwrap();
                    let address = handle.run(|endpoint| endpoint.address()).unwrap();
                    assert_eq!(call.wait().unwrap().to_string(), text);
                    assert_eq!(&address.wait().unwrap(), handle.address());
                }
                left.fetch_sub(1, Ordering::Release);
            });
        }
        while left.load(Ordering::Acquire) > 0 {
            pair.client.turn();
            pair.server.turn();
        }
    });
    pair.settle();
    pair.assert_idle();
    assert_eq!(pair.client.stats().calls_completed as usize, THREADS * CALLS);
}

#[test]
fn a_closure_opens_sessions_and_calls_with_the_endpoint() {
    let mut pair = Pair::new();
    let address = pair.server.address();
    let mut opened = pair.handle.run(move |endpoint| endpoint.begin_connect(&address).unwrap()).unwrap();
    pair.settle();
    let session = opened.try_take().unwrap().unwrap();
    assert_ne!(session, pair.session);
    let mut call = pair.handle.call(session, ECHO, b"over it", 0).unwrap();
    pair.settle();
    assert_eq!(&*call.try_take().unwrap().unwrap(), b"over it");
    assert_eq!(events(&mut pair.client).len(), 1, "its owner hears of the session");
}

#[test]
fn what_one_thread_hands_over_begins_in_its_order() {
    let mut pair = Pair::new();
    let (sum, ten) = (Arc::new(AtomicUsize::new(0)), 10);
    for number in 0..ten {
        let sum = Arc::clone(&sum);
        // Nobody waits for it, but it runs.
        drop(pair.handle.run(move |_| assert_eq!(sum.fetch_add(1, Ordering::Relaxed), number)).unwrap());
    }
    assert_eq!(sum.load(Ordering::Relaxed), 0, "not before a turn");
    assert!(pair.client.turn());
    assert_eq!(sum.load(Ordering::Relaxed), ten);
    assert!(!pair.client.turn());
}

#[test]
fn calls_of_a_handle_never_mix_with_those_of_the_owner() {
    let mut pair = Pair::new();
    let lane = pair.client.open_lane();
    let session = pair.session;
    // The same tag everywhere, and a lane that the handle ignores.
    let options = CallOptions::tag(1).lane(lane);
    let mut theirs: Vec<_> = (0..20).map(|_| pair.handle.call(session, ECHO, b"theirs", options).unwrap()).collect();
    for _ in 0..20 {
        send(&mut pair.client, session, ECHO, b"ours", 1);
    }
    send(&mut pair.client, session, ECHO, b"the lane's", options);
    pair.settle();
    let ours = completions(&mut pair.client);
    assert!(ours.len() == 20 && ours.iter().all(|over| &over.response[..] == b"ours" && over.tag == 1));
    assert_eq!((pair.client.poll_ready_lane(), pair.client.poll_ready_lane()), (Some(lane), None));
    assert_eq!(&pair.client.poll_lane(lane).unwrap().response[..], b"the lane's");
    assert!(pair.client.poll_lane(lane).is_none());
    assert!(theirs.iter_mut().all(|call| &*call.try_take().unwrap().unwrap() == b"theirs"));
}

#[test]
fn the_errors_of_a_call_are_those_of_the_endpoints_own() {
    let mut pair = Pair::new();
    let calls =
        [(NO_HANDLER, Cause::NoHandler, Execution::NotRun), (DROP, Cause::HandlerDropped, Execution::MayHaveRun)];
    for (request_type, why, execution) in calls {
        let mut call = pair.handle.call(pair.session, request_type, b"", 0).unwrap();
        pair.settle();
        assert_eq!(cause(call.try_take()), (why, execution));
    }
    let mut late = pair.handle.call(pair.session, DEFER, b"", CallOptions::tag(0).timeout_ns(1_000_000)).unwrap();
    pair.settle();
    pair.world.clock.advance(2_000_000);
    pair.settle();
    assert_eq!(cause(late.try_take()).0, Cause::DeadlinePassed);
    take_kept();
    let mut cut = pair.handle.call(pair.session, DEFER, b"", 0).unwrap();
    pair.settle();
    pair.client.disconnect(pair.session);
    assert!(pair.client.poll_ready_lane().is_none(), "nobody else is told");
    pair.settle();
    assert_eq!(cause(cut.try_take()), (Cause::Disconnected, Execution::MayHaveRun));
    let mut gone = pair.ask(b"x");
    pair.settle();
    assert!(matches!(gone.try_take(), Some(Err(Error::Enqueue(EnqueueError::NoSuchSession)))));
}

const NO_HANDLER: sinew_rpc::RequestType = sinew_rpc::RequestType::new(99);

#[test]
fn a_reply_is_as_long_as_it_is() {
    let mut pair = Pair::new();
    for len in [0u32, 1, 1024, 1025, 5000] {
        let mut call = pair.handle.call(pair.session, LONG, len.to_le_bytes(), 0).unwrap();
        pair.settle();
        assert_eq!(&*call.try_take().unwrap().unwrap(), pattern(len as usize, len as u8));
    }
}

#[test]
fn a_task_is_told_once_and_takes_the_result() {
    let mut pair = Pair::new();
    let wake_count = Arc::new(WakeCount::default());
    let mut call = pair.ask(b"awaited");
    let mut closure = pair.handle.run(|endpoint| endpoint.sessions()).unwrap();
    for _ in 0..2 {
        assert!(poll(&mut call, &wake_count).is_pending() && poll(&mut closure, &wake_count).is_pending());
    }
    // The waker that polled last is woken.
    let other = Arc::new(WakeCount::default());
    assert!(poll(&mut closure, &other).is_pending());
    pair.settle();
    assert_eq!((wake_count.times(), other.times()), (1, 1));
    assert!(matches!(poll(&mut call, &wake_count), Poll::Ready(Ok(reply)) if &*reply == b"awaited"));
    assert!(matches!(poll(&mut closure, &wake_count), Poll::Ready(Ok(1))));
    assert_eq!((wake_count.times(), other.times()), (1, 1));
}

#[test]
fn a_result_is_had_once() {
    let mut pair = Pair::new();
    let mut closure = pair.handle.run(|_| 7).unwrap();
    assert!(closure.try_take().is_none());
    assert!(closure.wait_timeout(Duration::ZERO).is_none() && closure.wait_timeout(Duration::from_millis(1)).is_none());
    pair.client.turn();
    assert_eq!(closure.wait_timeout(Duration::ZERO), Some(Ok(7)));
    assert_eq!(closure.try_take(), Some(Err(HandleError::Taken)));
    assert_eq!(poll(&mut closure, &Arc::default()), Poll::Ready(Err(HandleError::Taken)));
    assert_eq!(closure.wait(), Err(HandleError::Taken));
}

#[test]
fn the_endpoints_own_thread_does_not_wait_for_itself() {
    let mut pair = Pair::new();
    assert_eq!(pair.handle.run(|_| ()).unwrap().wait(), Err(HandleError::OwnThread));
    let call = pair.ask(b"x");
    assert_eq!(of_handle(Some(call.wait())), HandleError::OwnThread);
    // A result that is already there can be taken.
    let closure = pair.handle.run(|_| 1).unwrap();
    pair.settle();
    assert_eq!(closure.wait(), Ok(1));
    assert_eq!(pair.client.stats().calls_completed, 0, "the call was dropped, and never left");
}

#[test]
fn a_closure_that_panics_takes_nobody_along() {
    let mut pair = Pair::new();
    let mut texts = [
        pair.handle.run(|_| panic!("on purpose")).unwrap(),
        pair.handle.run(|_| panic!("with {}", 42)).unwrap(),
        pair.handle.run(|_| std::panic::panic_any(42)).unwrap(),
        pair.handle.run(|_| std::panic::panic_any(Unruly)).unwrap(),
    ];
    let mut after = pair.ask(b"after");
    pair.settle();
    let messages = ["on purpose", "with 42", "no message", "no message"];
    for (closure, message) in texts.iter_mut().zip(messages) {
        assert_eq!(closure.try_take(), Some(Err::<(), _>(HandleError::Panicked { message: message.to_owned() })));
    }
    assert_eq!(&*after.try_take().unwrap().unwrap(), b"after");
}

/// A value that panics when it is dropped.
struct Unruly;

impl Drop for Unruly {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped on purpose");
        }
    }
}

#[test]
fn captures_and_results_that_panic_when_they_are_dropped_take_nobody_along() {
    let mut pair = Pair::new();
    let mut captured = pair.handle.run({
        let unruly = Unruly;
        move |_| _ = &unruly
    });
    drop(pair.handle.run(|_| Unruly).unwrap());
    pair.settle();
    let result = captured.as_mut().unwrap().try_take();
    assert_eq!(result, Some(Err(HandleError::Panicked { message: "dropped on purpose".to_owned() })));
    let mut waiting = pair.handle.run({
        let unruly = Unruly;
        move |_| _ = &unruly
    });
    drop(pair.client);
    assert_eq!(waiting.as_mut().unwrap().try_take(), Some(Err(HandleError::EndpointGone)));
}

#[test]
fn a_waker_that_panics_takes_nobody_along() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("woken on purpose");
        }
    }
    let mut pair = Pair::new();
    let mut call = pair.ask(b"x");
    assert!(pin!(&mut call).poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
    pair.settle();
    assert_eq!(&*call.try_take().unwrap().unwrap(), b"x");
}

#[test]
fn a_full_queue_refuses_and_takes_again_after_a_turn() {
    const LIMIT: usize = 3;
    let mut pair = Pair::with(Config { handle_queue_max: LIMIT, ..Config::default() });
    for round in 0..3 {
        let mut calls: Vec<_> = (1..LIMIT).map(|_| pair.ask(b"fits")).collect();
        let mut closure = pair.handle.run(|_| ()).unwrap();
        let full = HandleError::QueueFull { limit: LIMIT };
        assert_eq!(pair.handle.run(|_| ()).unwrap_err(), full, "round {round}");
        assert_eq!(of_handle(Some(pair.handle.call(pair.session, ECHO, b"x", 0))), full);
        pair.client.turn();
        // The calls are under way now, and no longer in the queue.
        drop((0..LIMIT).map(|_| pair.handle.run(|_| ()).unwrap()).collect::<Vec<_>>());
        assert!(pair.handle.run(|_| ()).is_err());
        pair.settle();
        assert!(calls.iter_mut().all(|call| call.try_take().unwrap().is_ok()));
        assert_eq!(closure.try_take(), Some(Ok(())));
    }
}

#[test]
fn calls_under_way_are_as_many_as_a_lane_takes() {
    const LIMIT: usize = 3;
    let mut pair = Pair::with(Config { lane_backlog_max: LIMIT, ..Config::default() });
    let mut calls: Vec<_> = (0..=LIMIT).map(|_| pair.handle.call(pair.session, DEFER, b"kept", 0).unwrap()).collect();
    pair.settle();
    let refused = calls.pop().unwrap().try_take();
    assert!(matches!(refused, Some(Err(Error::Enqueue(EnqueueError::LaneFull { limit: LIMIT })))), "{refused:?}");
    assert_eq!(answer_kept(), LIMIT);
    pair.settle();
    assert!(calls.iter_mut().all(|call| call.try_take().unwrap().is_ok()));
    let mut next = pair.ask(b"next");
    pair.settle();
    assert!(next.try_take().unwrap().is_ok());
}

#[test]
fn a_call_that_nobody_waits_for_is_cancelled_and_its_buffers_come_back() {
    let mut pair = Pair::new();
    // Cancel calls that have not begun, are in flight to the server, are kept there, and wait in the session's queue.
    drop(pair.handle.call(pair.session, DEFER, b"never begun", 0).unwrap());
    pair.settle();
    assert!(take_kept().is_empty());
    let slots = usize::from(pair.client.config().slots);
    let mut calls: Vec<_> =
        (0..slots + 2).map(|_| pair.handle.call(pair.session, DEFER, pattern(3000, 1), 0).unwrap()).collect();
    pair.settle();
    let kept = take_kept();
    assert_eq!(kept.len(), slots);
    calls.truncate(1);
    pair.settle();
    assert_eq!(kept.iter().filter(|call| call.is_abandoned()).count(), slots - 1);
    assert_eq!(pair.client.stats().calls_failed as usize, slots + 1, "each is over here, too");
    for call in kept {
        call.reply(b"late");
    }
    pair.settle();
    assert_eq!(&*calls[0].try_take().unwrap().unwrap(), b"late");
    calls.clear();
    pair.assert_idle();
}

#[test]
fn calls_that_are_dropped_again_and_again_leave_no_memory_behind() {
    const ROUNDS: usize = if cfg!(miri) { 5 } else { 300 };
    let world = World::new();
    let small = LoopbackConfig { arena_bytes: 8 << 20, ..LoopbackConfig::default() };
    let (mut client, mut server, session) = world.pair_of((Config::default(), small), (Config::default(), small));
    let handle = client.remote_handle();
    for round in 0..ROUNDS {
        let call = handle.call(session, DEFER, pattern(1 << 20, 1), 0).unwrap();
        if round % 3 > 0 {
            client.turn();
        }
        if round % 3 > 1 {
            settle(&mut client, &mut server);
        }
        drop(call);
        settle(&mut client, &mut server);
        take_kept();
        settle(&mut client, &mut server);
    }
    assert_eq!(client.sessions(), 1);
}

#[test]
fn who_hands_over_to_an_endpoint_that_is_gone_hears_so() {
    let pair = Pair::new();
    drop(pair.client);
    assert_eq!(pair.handle.run(|_| ()).unwrap_err(), HandleError::EndpointGone);
    assert_eq!(of_handle(Some(pair.handle.call(pair.session, ECHO, b"x", 0))), HandleError::EndpointGone);
}

#[test]
fn what_waits_for_an_endpoint_that_goes_never_runs() {
    let pair = Pair::new();
    let has_run = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&has_run);
    let mut closure = pair.handle.run(move |_| flag.store(true, Ordering::Relaxed)).unwrap();
    let mut call = pair.ask(b"never begun");
    let wake_count = Arc::new(WakeCount::default());
    assert!(poll(&mut call, &wake_count).is_pending());
    drop(pair.client);
    assert_eq!(closure.try_take(), Some(Err(HandleError::EndpointGone)));
    assert_eq!(of_handle(call.try_take()), HandleError::EndpointGone);
    assert_eq!((has_run.load(Ordering::Relaxed), wake_count.times()), (false, 1));
}

#[test]
fn calls_that_an_endpoint_takes_along_say_whether_they_may_have_run() {
    let mut pair = Pair::new();
    let slots = usize::from(pair.client.config().slots);
    let mut calls: Vec<_> = (0..=slots).map(|_| pair.handle.call(pair.session, DEFER, b"kept", 0).unwrap()).collect();
    let mut large = Vec::new();
    pair.settle();
    assert_eq!(take_kept().len(), slots);
    let mut over = pair.ask(b"cancelled, which nobody was told");
    pair.client.turn();
    large.push(pair.handle.call(pair.session, DEFER, pattern(6_000, 1), 0).unwrap());
    pair.client.turn();
    drop(pair.client);
    for call in &mut calls[..slots] {
        assert_eq!(cause(call.try_take()), (Cause::Disconnected, Execution::MayHaveRun));
    }
    for call in [&mut calls[slots], &mut over, &mut large[0]] {
        assert_eq!(cause(call.try_take()), (Cause::Disconnected, Execution::NeverSent));
    }
}

#[test]
fn a_long_request_that_is_on_its_way_when_the_endpoint_goes_ends_too() {
    let mut pair = Pair::with(Config { credits: 2, ..Config::default() });
    let mut call = pair.handle.call(pair.session, DEFER, pattern(6_000, 1), 0).unwrap();
    pair.client.turn();
    drop(pair.client);
    assert_eq!(cause(call.try_take()), (Cause::Disconnected, Execution::NeverSent));
}

#[test]
fn a_thread_that_waits_hears_that_the_endpoint_is_gone() {
    let pair = Pair::new();
    let (call, closure) = (pair.ask(b"x"), pair.handle.run(|_| ()).unwrap());
    std::thread::scope(|threads| {
        let waits = threads.spawn(move || (call.wait(), closure.wait()));
        drop(pair.client);
        let (call, closure) = waits.join().unwrap();
        assert_eq!((of_handle(Some(call)), closure), (HandleError::EndpointGone, Err(HandleError::EndpointGone)));
    });
}

#[test]
fn a_handle_outlives_its_endpoint_with_its_replies() {
    let mut pair = Pair::new();
    let mut call = pair.ask(b"kept for long");
    pair.settle();
    drop(pair.client);
    let reply = call.try_take().unwrap().unwrap();
    assert_eq!(&*reply, b"kept for long");
    drop(pair.handle);
    assert_eq!(&*reply, b"kept for long");
}

#[test]
fn all_handles_of_an_endpoint_are_one() {
    let mut pair = Pair::with(Config { handle_queue_max: 2, ..Config::default() });
    let handles = [pair.handle.clone(), pair.client.remote_handle()];
    let mut closures = handles.each_ref().map(|handle| handle.run(|_| ()).unwrap());
    assert!(pair.handle.run(|_| ()).is_err(), "they share a queue");
    pair.client.turn();
    assert!(closures.iter_mut().all(|closure| closure.try_take() == Some(Ok(()))));
}

#[test]
fn a_closure_that_turns_the_endpoint_lets_calls_end_and_no_closure_begin() {
    let mut pair = Pair::new();
    let mut early = pair.ask(b"early");
    // The call is under way, and its answer waits to be received.
    pair.client.turn();
    pair.server.turn();
    let (handle, session) = (pair.handle.clone(), pair.session);
    let mut outer = pair
        .handle
        .run(move |endpoint| {
            let mut inner = handle.run(|_| "inner").unwrap();
            let mut call = handle.call(session, ECHO, b"later", 0).unwrap();
            for _ in 0..3 {
                endpoint.turn();
            }
            let begun = (inner.try_take(), call.try_take().is_some());
            (begun, inner, call)
        })
        .unwrap();
    pair.client.turn();
    let (begun, mut inner, mut call) = outer.try_take().unwrap().unwrap();
    assert_eq!(begun, (None, false));
    assert_eq!(&*early.try_take().unwrap().unwrap(), b"early");
    pair.settle();
    assert_eq!(inner.try_take(), Some(Ok("inner")), "nothing had to wake the endpoint for it");
    assert_eq!(&*call.try_take().unwrap().unwrap(), b"later");
}

#[test]
fn a_closure_that_takes_long_loses_no_session() {
    let mut pair = Pair::new();
    thread_local!(static CLOCK: OnceCell<ManualClock> = const { OnceCell::new() });
    CLOCK.with(|clock| clock.set(pair.world.clock.clone()).unwrap());
    let long_ns = 2 * pair.client.config().peer_timeout_ns;
    // The closure runs on this thread.
    pair.handle.run(move |_| CLOCK.with(|clock| clock.get().unwrap().advance(long_ns))).unwrap();
    pair.settle();
    let retransmissions = pair.client.stats().retransmissions;
    let mut call = pair.ask(b"still there");
    pair.settle();
    assert_eq!(&*call.try_take().unwrap().unwrap(), b"still there");
    assert_eq!((pair.client.stats().peers_lost, pair.client.stats().retransmissions), (0, retransmissions));
    pair.assert_idle();
}

#[test]
fn a_blocking_call_in_a_closure_leaves_the_owners_its_answer() {
    let mut pair = Pair::with(Config { poller: PollPolicy::SLEEP, ..Config::default() });
    let session = pair.session;
    let mut closure = pair
        .handle
        .run(move |endpoint| {
            // Nobody turns the server: the call ends by its deadline, and meets the other call's completion meanwhile.
            endpoint.call_within(session, ECHO, b"the closure's", 1_000).map(|reply| reply.to_string())
        })
        .unwrap();
    // This call begins with the first turn, in which the closure runs and both deadlines pass.
    let owners = pair.client.call_within(session, ECHO, b"the owner's", 500);
    let Err(Error::Call(error)) = owners else { panic!("{owners:?}") };
    assert_eq!(error.cause, Cause::DeadlinePassed);
    let closures = closure.try_take().unwrap().unwrap();
    assert!(matches!(&closures, Err(Error::Call(error)) if error.cause == Cause::DeadlinePassed), "{closures:?}");
    pair.settle();
    pair.assert_idle();
    assert_eq!(pair.client.stats().calls_failed, 2);
}

/// A port in virtual time, whose wake-ups happen when the test says so.
struct Late {
    port: TestPort,
    later: Arc<Later>,
}

#[derive(Default)]
struct Later(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

impl Later {
    fn come(&self) -> usize {
        let effects = std::mem::take(&mut *self.0.lock().unwrap());
        effects.into_iter().map(|effect| effect()).count()
    }
}

impl WakeTarget for Later {
    fn wake(&self) {}

    fn is_in_virtual_time(&self) -> bool {
        true
    }

    fn wake_with(&self, effect: Box<dyn FnOnce() + Send>) {
        self.0.lock().unwrap().push(effect);
    }
}

impl Readiness for Late {
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }

    fn arm(&mut self, _now_ns: u64) -> std::io::Result<Armed> {
        Ok(Armed::Ready)
    }

    fn disarm(&mut self) -> bool {
        false
    }
}

impl PacketPort for Late {
    type Rx = <TestPort as PacketPort>::Rx;
    type Tx = <TestPort as PacketPort>::Tx;

    fn caps(&self) -> Caps {
        self.port.caps()
    }

    fn address(&self) -> Address {
        self.port.address()
    }

    fn arena(&self) -> &Arena {
        self.port.arena()
    }

    fn resolve(&mut self, address: &Address) -> Result<Peer, PortError> {
        self.port.resolve(address)
    }

    fn describe(&self, peer: Peer) -> String {
        self.port.describe(peer)
    }

    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx) {
        self.port.split()
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        self.port.poll_event()
    }

    fn waker(&self) -> sinew_fabric::Waker {
        sinew_fabric::Waker::new(Arc::clone(&self.later) as Arc<dyn WakeTarget>)
    }

    fn stats(&self) -> PortStats {
        self.port.stats()
    }
}

#[test]
fn a_connect_ends_when_its_lane_is_closed_meanwhile() {
    let mut pair = Pair::with(Config { poller: PollPolicy::SLEEP, ..Config::default() });
    let lane = pair.client.open_lane();
    let closing = pair.handle.run(move |endpoint| endpoint.close_lane(lane)).unwrap();
    let options = ConnectOptions::new().lane(lane);
    let error = pair.client.connect_with("loopback://server", options).unwrap_err();
    assert!(matches!(error, ConnectError::Lane(EnqueueError::NoSuchLane)), "{error}");
    assert!(closing.wait().unwrap());
    pair.settle();
    assert_eq!((pair.client.sessions(), pair.server.sessions()), (1, 1));
}

#[test]
fn in_virtual_time_what_is_handed_over_arrives_with_the_wake_and_has_its_place_before() {
    const LIMIT: usize = 2;
    let (world, later) = (World::new(), Arc::new(Later::default()));
    let nexus = Nexus::builder().config(Config { handle_queue_max: LIMIT, ..Config::default() }).build().unwrap();
    let port = Late { port: world.port("client", LoopbackConfig::default()), later: Arc::clone(&later) };
    let mut client = Rpc::new(&nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(2)));
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let session = connect(&world, &mut client, &mut server);
    let handle = client.remote_handle();
    let mut closure = handle.run(|_| ()).unwrap();
    let call = handle.call(session, DEFER, b"kept", 0).unwrap();
    assert_eq!(handle.run(|_| ()).unwrap_err(), HandleError::QueueFull { limit: LIMIT });
    settle(&mut client, &mut server);
    assert!(closure.try_take().is_none(), "it is on its way");
    assert_eq!(later.come(), LIMIT);
    settle(&mut client, &mut server);
    assert_eq!(closure.try_take(), Some(Ok(())));
    drop(call);
    settle(&mut client, &mut server);
    let kept = take_kept();
    assert!(!kept[0].is_abandoned());
    assert_eq!(later.come(), 1);
    settle(&mut client, &mut server);
    assert!(kept[0].is_abandoned());
    // What is in flight when the endpoint is dropped, or never arrives, never began.
    let mut closures = [handle.run(|_| ()).unwrap(), handle.run(|_| ()).unwrap()];
    let lost = later.0.lock().unwrap().pop();
    drop(client);
    assert_eq!(later.come(), 1);
    drop(lost);
    assert!(closures.iter_mut().all(|closure| closure.try_take() == Some(Err(HandleError::EndpointGone))));
}
