//! A service that asks another one before it answers.
//!
//! The handler keeps its call ([`Call::defer`]), makes a call of its own, and returns; the answer is sent when the
//! other service has answered.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use sinew::prelude::*;

/// The back end: answers with the length of the request.
const LENGTH: RequestType = RequestType::new(1);
/// The front end: answers with the length in words.
const DESCRIBE: RequestType = RequestType::new(2);

/// State that the front end's handler and its loop share, on one thread.
struct Front {
    backend: SessionId,
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

    let server = Nexus::builder().build()?.server().at("udp://127.0.0.1:0");
    let server = server.program(move |_endpoint, rpc| describe(rpc, &backend_address)).start()?;

    let mut rpc = Rpc::open("udp://")?;
    let session = rpc.connect(&server.addresses()[0].to_string())?;
    println!("{}", rpc.call(session, DESCRIBE, b"a nested call")?);
    server.stop()?;
    backend.stop()?;
    Ok(())
}

/// Program of the front end: the handler calls the back end, and the loop passes its answers on.
fn describe(rpc: &mut Rpc, backend: &str) -> sinew::Result<impl FnMut(&mut Rpc) -> sinew::Result<Flow> + use<>> {
    let front = Front { backend: rpc.connect(backend)?, waiting: HashMap::new(), next_tag: 0 };
    let front = Rc::new(RefCell::new(front));
    let in_handler = Rc::clone(&front);
    rpc.handle(DESCRIBE, move |call: Call| ask_on(&mut in_handler.borrow_mut(), call))?;
    Ok(move |rpc: &mut Rpc| {
        let busy = rpc.turn();
        let waiting = &mut front.borrow_mut().waiting;
        while let Some(completion) = rpc.poll_completion() {
            let Some(call) = waiting.remove(&completion.tag) else { continue };
            match (&completion.result, completion.response.as_array::<8>()) {
                (Ok(()), Some(length)) => {
                    let length = u64::from_le_bytes(*length);
                    rpc.reply(call, format!("it has {length} bytes").as_bytes());
                }
                // Dropped: the client learns that there is no answer.
                _ => drop(call),
            }
        }
        Ok(busy.into())
    })
}

/// The handler. Any failure here drops the call, which tells the client so.
fn ask_on(front: &mut Front, mut call: Call<'_>) {
    let (Ok(mut request), Ok(response)) = (call.alloc(call.request().len()), call.alloc(8)) else { return };
    request.copy_from_slice(call.request());
    let tag = front.next_tag;
    if call.enqueue_request(front.backend, LENGTH, request, response, tag).is_ok()
        && let Ok(deferred) = call.defer()
    {
        front.next_tag += 1;
        front.waiting.insert(tag, deferred);
    }
}
