//! The fast path: many calls in flight, buffers allocated once and moved in and out, one burst for each turn of the
//! loop.
//!
//! The fabric is fixed when the program is compiled: `sinew::rpc::Rpc` over shared memory between two threads.

use std::time::{Duration, Instant};

use sinew::Channel;
use sinew::fabric::{PacketPort, PollPolicy};
use sinew::prelude::*;
use sinew::shm::Hub;

const ECHO: RequestType = RequestType::new(1);
/// Calls in flight.
const WINDOW: usize = 60;
/// Calls enqueued between two turns of the loop, so that they leave as one burst.
const BATCH: usize = 6;

fn main() -> sinew::Result<()> {
    let run_for = std::env::args().nth(1).and_then(|ms| ms.parse().ok()).map_or(1000, |ms: u64| ms);
    let hub = Hub::new();
    let nexus = Nexus::builder()
        .handle(ECHO, |call: Call| {
            let request = call.request();
            call.reply(request)
        })
        .build()?;
    let server = hub.port("echo")?;
    let address = server.address().to_string();
    let done = std::sync::atomic::AtomicBool::new(false);
    let done = &done;
    // The server may be asleep when it is told to end.
    let wake_server = server.waker();
    std::thread::scope(|threads| {
        // A port may move to the thread that serves it; an endpoint made from it stays there.
        let serving = threads.spawn(move || -> sinew::Result<()> {
            let mut rpc = sinew::endpoint(&nexus, server)?;
            rpc.run_until(|_| done.load(std::sync::atomic::Ordering::Relaxed))?;
            Ok(())
        });
        let calls = drive(&hub, &address, Duration::from_millis(run_for));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        wake_server.wake();
        serving.join().expect("the server's thread does not panic")?;
        let calls = calls?;
        println!("{calls} calls in {run_for} ms: {:.2} M/s", calls as f64 / run_for as f64 / 1e3);
        Ok(())
    })
}

fn drive(hub: &Hub, address: &str, run_for: Duration) -> sinew::Result<u64> {
    let cpus = sinew::host::available_cpus().len();
    let poller = if cpus > 1 { PollPolicy::ADAPTIVE } else { PollPolicy::SLEEP };
    let client = Nexus::builder().config(Config { poller, ..Config::default() }).build()?;
    let mut rpc = sinew::endpoint(&client, hub.port("")?)?;
    // As many sessions as the window needs. `Channel::enqueue_request` would find one that has room; these calls are
    // all alike, so they use the sessions in turn, which is cheaper.
    let channel = Channel::open(&mut rpc, address, WINDOW)?;
    let mut sessions = channel.sessions().iter().cycle();
    // The buffers of calls that are not in flight.
    let mut idle = Vec::new();
    for _ in 0..WINDOW {
        idle.push((rpc.alloc(32)?, rpc.alloc(32)?));
    }
    let began = Instant::now();
    let (mut started, mut completed) = (0u64, 0u64);
    rpc.try_run_until(|rpc| -> sinew::Result<bool> {
        while let Some(completion) = rpc.poll_completion() {
            completion.result?;
            assert_eq!(completion.response[..8], completion.tag.to_le_bytes(), "an echo returns what it was sent");
            completed += 1;
            idle.push((completion.request, completion.response));
        }
        if idle.len() >= BATCH && began.elapsed() < run_for {
            let batch = idle.drain(idle.len() - BATCH..);
            for ((mut request, response), session) in batch.zip(&mut sessions) {
                request[..8].copy_from_slice(&started.to_le_bytes());
                rpc.enqueue_request(*session, ECHO, request, response, started)?;
                started += 1;
            }
        }
        Ok(began.elapsed() >= run_for && completed == started)
    })?;
    Ok(completed)
}
