//! A slow handler runs in worker threads, so that short requests do not wait behind it.

use std::time::{Duration, Instant};

use sinew::prelude::*;

/// Answers at once.
const PING: RequestType = RequestType::new(1);
/// Sleeps for the milliseconds given in the request, then answers.
const SLEEP: RequestType = RequestType::new(2);

fn main() -> sinew::Result<()> {
    let nexus = Nexus::builder()
        .handle(PING, |call: Call| call.reply(b"pong"))
        .handle_worker(SLEEP, |call: DeferredCall| {
            let ms = call.request().first().copied().unwrap_or(0);
            std::thread::sleep(Duration::from_millis(ms.into()));
            call.reply(format!("slept {ms} ms").as_bytes());
        })
        .worker_threads(2)
        .build()?;
    let server = nexus.server().at("udp://127.0.0.1:0").start()?;

    let mut rpc = Rpc::open("udp://")?;
    let session = rpc.connect(&server.addresses()[0].to_string())?;
    // The long call is sent first, without waiting for its answer.
    let (mut request, response) = (rpc.alloc(1)?, rpc.alloc(64)?);
    request[0] = 100;
    rpc.enqueue_request(session, SLEEP, request, response, 0)?;
    let began = Instant::now();
    println!("{} after {:?}", rpc.call(session, PING, b"")?, began.elapsed());
    let mut slept = None;
    rpc.run_until(|rpc| {
        slept = rpc.poll_completion();
        slept.is_some()
    })?;
    if let Some(completion) = slept {
        completion.result?;
        println!("{} after {:?}", String::from_utf8_lossy(&completion.response), began.elapsed());
    }
    server.stop()?;
    Ok(())
}
