//! A service that asks another one before it answers.
//!
//! The handler keeps its call ([`Call::defer`]), calls on, and returns; the answer goes out when the other service's does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sinew::prelude::*;

/// The back end: gives the length of what it gets.
const LENGTH: RequestType = RequestType::new(1);
/// The front end: says it in words.
const DESCRIBE: RequestType = RequestType::new(2);

/// What the front end's handler and its loop share. One thread uses it, so the lock is never contended.
#[derive(Default)]
struct Front {
    backend: Option<SessionId>,
    waiting: HashMap<u64, DeferredCall>,
    next_tag: u64,
}

fn main() -> sinew::Result<()> {
    let backend = Nexus::builder()
        .handle(LENGTH, |call: Call| {
            let length = call.request().len() as u64;
            call.reply(&length.to_le_bytes())
        })
        .build()?
        .server()
        .at("udp://127.0.0.1:0")
        .start()?;
    let backend_address = backend.addresses()[0].to_string();

    let front = Arc::new(Mutex::new(Front::default()));
    let in_handler = Arc::clone(&front);
    let nexus = Nexus::builder().handle(DESCRIBE, move |call: Call| ask_on(&in_handler, call)).build()?;
    let server =
        nexus.server().at("udp://127.0.0.1:0").on_turn(move |rpc| answer(&front, rpc, &backend_address)).start()?;

    let mut rpc = Rpc::open("udp://")?;
    let session = rpc.connect(&server.addresses()[0].to_string())?;
    println!("{}", rpc.call(session, DESCRIBE, b"a nested call")?);
    server.stop()?;
    backend.stop()?;
    Ok(())
}

/// The handler. Whatever fails here drops the call, which tells the client so.
fn ask_on(front: &Mutex<Front>, mut call: Call<'_>) {
    let mut front = front.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(session) = front.backend else { return };
    let (Ok(mut request), Ok(response)) = (call.alloc(call.request().len()), call.alloc(8)) else { return };
    request.copy_from_slice(call.request());
    let tag = front.next_tag;
    if call.enqueue_request(session, LENGTH, request, response, tag).is_ok()
        && let Ok(deferred) = call.defer()
    {
        front.next_tag += 1;
        front.waiting.insert(tag, deferred);
    }
}

/// Between turns: opens the session to the back end once, and answers what it has answered.
fn answer(front: &Mutex<Front>, rpc: &mut Rpc, backend: &str) {
    let mut front = front.lock().unwrap_or_else(PoisonError::into_inner);
    if front.backend.is_none() {
        front.backend = rpc.begin_connect(backend).ok();
    }
    while let Some(completion) = rpc.poll_completion() {
        let Some(call) = front.waiting.remove(&completion.tag) else { continue };
        match (&completion.result, completion.response.as_array::<8>()) {
            (Ok(()), Some(length)) => call.reply(format!("it has {} bytes", u64::from_le_bytes(*length)).as_bytes()),
            // Dropped: the client learns that there is no answer.
            _ => drop(call),
        }
    }
}
