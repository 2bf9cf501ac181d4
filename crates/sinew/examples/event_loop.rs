//! A foreign event loop, mio, drives endpoints beside a TCP listener, on one thread that sleeps on all of them.
//!
//! The thread serves the same service over shared memory and UDP. A third endpoint has two users, each with a lane, who
//! call over UDP: one call ends at its deadline without an answer, the other is cancelled.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use sinew::fabric::{Poller, Step};
use sinew::prelude::*;

/// Answers at once.
const PING: RequestType = RequestType::new(1);
/// Never answers.
const SLOW: RequestType = RequestType::new(2);

fn main() -> sinew::Result<()> {
    let nexus = Nexus::builder()
        .handle(PING, |call: Call| call.reply(b"pong"))
        .handle_with(SLOW, |_endpoint| {
            let mut kept = Vec::new();
            move |call: Call| kept.extend(call.defer())
        })
        .build()?;
    let mut near = Rpc::open_with(&nexus, &format!("shm://event-loop-{}", std::process::id()))?;
    let mut far = Rpc::open_with(&nexus, "udp://127.0.0.1:0")?;
    let mut out = Rpc::open("udp://")?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;

    let mut poll = Poll::new()?;
    let descriptors = [near.descriptor(), far.descriptor(), out.descriptor()].into_iter().flatten();
    for fd in descriptors.map(|descriptor| descriptor.as_raw_fd()).chain([listener.as_raw_fd()]) {
        // Every round looks at everything, so nothing needs a token of its own.
        poll.registry().register(&mut SourceFd(&fd), Token(0), Interest::READABLE)?;
    }

    // Visitors, who know nothing of the loop.
    let (shm, door) = (near.address().to_string(), listener.local_addr()?);
    let visitors = std::thread::spawn(move || -> sinew::Result<String> {
        let mut rpc = Rpc::open("shm://")?;
        let session = rpc.connect(&shm)?;
        let answer = rpc.call(session, PING, b"")?.to_string();
        std::io::read_to_string(TcpStream::connect(door)?)
            .map(|greeting| format!("{answer}, {greeting}"))
            .map_err(Into::into)
    });

    let session = out.begin_connect(&far.address().to_string())?;
    let lanes = [out.open_lane(), out.open_lane()];
    begin(&mut out, session, SLOW, CallOptions::tag(1).lane(lanes[0]).timeout_ns(300_000_000))?;
    begin(&mut out, session, PING, CallOptions::tag(2).lane(lanes[0]))?;
    let regretted = begin(&mut out, session, SLOW, CallOptions::tag(3).lane(lanes[1]))?;

    // One poller for the thread decides when to sleep, since arming takes system calls.
    let mut poller = Poller::new(out.config().poller);
    let mut events = Events::with_capacity(8);
    let (mut over, mut greeted, mut round) = (0, false, 0u64);
    while over < 3 || !(greeted || visitors.is_finished()) {
        round += 1;
        let busy = near.turn() | far.turn() | out.turn();
        while out.poll_event().is_some() {}
        while let Some(lane) = out.poll_ready_lane() {
            while let Some(Completion { tag, result, response, .. }) = out.poll_lane(lane) {
                match result {
                    Ok(()) => println!("call {tag}: {}", String::from_utf8_lossy(&response)),
                    Err(error) => println!("call {tag}: {error}"),
                }
                if tag == 2 {
                    out.cancel(regretted);
                }
                over += 1;
            }
        }
        let mut timeout_ns = Some(0);
        if poller.step(out.now_ns(), busy) == Step::Block {
            timeout_ns = None;
            for rpc in [&mut near, &mut far, &mut out] {
                let armed = rpc.arm()?;
                timeout_ns = timeout_ns.into_iter().chain(armed.timeout_ns(rpc.now_ns())).min();
            }
        } else if !round.is_multiple_of(64) {
            // While there is much to do, the socket is polled only now and then.
            continue;
        }
        poll.poll(&mut events, timeout_ns.map(Duration::from_nanos))?;
        while let Ok((mut visitor, _)) = listener.accept() {
            visitor.write_all(b"welcome")?;
            greeted = true;
        }
    }
    println!("visitors heard: {}", visitors.join().expect("they do not panic")?);
    Ok(())
}

fn begin(rpc: &mut Rpc, session: SessionId, kind: RequestType, options: CallOptions) -> sinew::Result<CallId> {
    let (request, response) = (rpc.alloc(0)?, rpc.alloc(8)?);
    Ok(rpc.enqueue_request(session, kind, request, response, options)?)
}
