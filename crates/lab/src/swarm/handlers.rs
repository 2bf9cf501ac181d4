//! Handlers of members: they answer calls at once, have workers answer them, or keep them for the program to answer.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sinew_rpc::{BurstCalls, Call, ClientId, DeferredCall, Nexus};
use sinew_sim::{SimClock, SimWorkers};

use super::ledger::Shared;
use super::messages::{BURST, DEFERRED, DEFERRED_BURST, POLLED, ParsedRequest, WORK, WORKER};
use super::scenario::Scenario;
use crate::programs::Endpoint;

/// Times that a worker may spend on a call, in ns; and the number of calls of which it leaves one without an answer.
const WORKER_NS: [u64; 4] = [0, 2_000, 30_000, 300_000];
const WORKER_ANSWERS: u64 = 16;

/// Notes that a request is run, and returns what it asks for.
pub fn run(request: &[u8], client: ClientId, host: usize, ledger: &Shared) -> ParsedRequest {
    let request = ParsedRequest::read(request);
    let mut ledger = ledger.lock();
    ledger.run(request.call, host, client);
    if !request.is_intact {
        ledger.complain(|| format!("the request of call {} arrived changed", request.call));
    }
    request
}

/// Makes a member's handlers. Those that use workers are added if there are workers.
pub fn nexus(
    scenario: &Scenario,
    host: usize,
    ledger: &Shared,
    workers: Option<&SimWorkers>,
    clock: &SimClock,
) -> Nexus {
    let (one_by_one, in_bursts, by_workers) = (ledger.clone(), ledger.clone(), ledger.clone());
    let mut nexus = Nexus::builder()
        .config(scenario.config.clone())
        .handle(WORK, move |call: Call| {
            let asked = run(call.request(), call.client(), host, &one_by_one);
            call.reply(&asked.answer());
        })
        .handle_burst(BURST, move |calls| {
            for index in 0..calls.len() {
                let asked = run(calls.request(index), calls.client(index), host, &in_bursts);
                calls.reply(index, &asked.answer());
            }
        });
    if let Some(workers) = workers {
        let clock = clock.clone();
        nexus = nexus.workers(Arc::new(workers.clone())).handle_polled(POLLED).handle_worker(WORKER, move |call| {
            work(call, host, &by_workers, &clock);
        });
    }
    nexus.build().expect("scenarios are drawn with sense")
}

fn work(call: DeferredCall, host: usize, ledger: &Shared, clock: &SimClock) {
    let asked = run(call.request(), call.client(), host, ledger);
    ledger.lock().kept += 1;
    clock.spend_ns(WORKER_NS[(asked.call / WORKER_ANSWERS) as usize % WORKER_NS.len()]);
    if asked.call.is_multiple_of(WORKER_ANSWERS) {
        ledger.lock().drop_unanswered(asked.call);
        drop(call);
    } else {
        call.reply(&asked.answer());
    }
}

/// Calls that handlers keep for the program, each with what it asks for.
pub type Inbox = Rc<RefCell<Vec<(ParsedRequest, DeferredCall)>>>;

/// Registers the handlers that keep calls.
pub fn keep(rpc: &mut Endpoint, host: usize, ledger: &Shared) -> Inbox {
    let inbox = Inbox::default();
    let (to, of) = (Rc::clone(&inbox), ledger.clone());
    let one_by_one = rpc.handle(DEFERRED, move |call: Call<'_>| {
        let asked = run(call.request(), call.client(), host, &of);
        // If there is no memory to keep a call, its client is told.
        to.borrow_mut().extend(call.defer().ok().map(|kept| (asked, kept)));
    });
    let (to, of) = (Rc::clone(&inbox), ledger.clone());
    let in_bursts = rpc.handle_burst(DEFERRED_BURST, move |calls: &mut BurstCalls<'_, '_>| {
        for index in 0..calls.len() {
            let asked = run(calls.request(index), calls.client(index), host, &of);
            to.borrow_mut().extend(calls.defer(index).ok().map(|kept| (asked, kept)));
        }
    });
    one_by_one.and(in_bursts).expect("no other handler has these types");
    inbox
}
