//! What `sinew` adds to the crates that it puts together.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{ECHO, client, config, echo, unique};
use sinew::prelude::*;
use sinew::rpc::EnqueueError;

#[test]
fn an_address_chooses_its_fabric_and_an_unknown_one_is_named() {
    assert_eq!(Rpc::open("udp://127.0.0.1:0").unwrap().address().scheme(), "udp");
    assert_eq!(Rpc::open("shm://").unwrap().address().scheme(), "shm");
    let error = Rpc::open("pigeon://home").err().unwrap();
    assert!(matches!(error, Error::UnknownFabric { .. }));
    assert!(error.to_string().contains("known are shm, udp, ibverbs"), "{error}");
    let error = Rpc::open("shout").err().unwrap().to_string();
    assert!(error.contains("shm://name"), "{error}");
}

#[test]
fn a_call_that_is_not_taken_is_an_error_of_the_program() {
    fn program() -> sinew::Result<()> {
        let server = echo(config()).server().at(format!("shm://{}", unique("untaken"))).start()?;
        let mut rpc = client("shm://");
        let session = rpc.connect(&server.addresses()[0].to_string())?;
        let (request, response) = (rpc.alloc(8)?, rpc.alloc(8)?);
        rpc.disconnect(session);
        rpc.enqueue_request(session, ECHO, request, response, 0)?;
        Ok(())
    }
    assert!(matches!(program(), Err(Error::Enqueue(EnqueueError::NoSuchSession))));
}

#[test]
fn one_service_answers_on_several_fabrics_at_once() {
    let shm = format!("shm://{}", unique("facade"));
    let server = echo(config()).server().at(&shm).at("udp://127.0.0.1:0").start().unwrap();
    let addresses: Vec<String> = server.addresses().iter().map(ToString::to_string).collect();
    assert_eq!(addresses[0], shm);
    for address in &addresses {
        let mut rpc = client(address);
        let session = rpc.connect(address).unwrap();
        let reply = rpc.call(session, ECHO, "caf\u{e9}").unwrap();
        assert_eq!(reply.to_string(), "caf\u{e9}");
    }
    let reports = server.stop().unwrap();
    assert_eq!(reports.iter().map(|report| report.stats.requests_handled).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn messages_of_every_size_class_pass_whole() {
    let server =
        echo(config()).server().at(format!("shm://{}", unique("sizes"))).at("udp://127.0.0.1:0").start().unwrap();
    for address in server.addresses().iter().map(ToString::to_string) {
        let mut rpc = client(&address);
        let session = rpc.connect(&address).unwrap();
        for len in [0, 1, 56, 57, 1448, 1449, 8_000, 100_000, 3 << 20] {
            let message: Vec<u8> = (0..len).map(|at| (at * 31 % 251) as u8).collect();
            assert_eq!(*rpc.call(session, ECHO, &message).unwrap(), message[..], "{len} bytes over {address}");
        }
    }
}

#[test]
fn a_server_that_cannot_have_one_of_its_addresses_does_not_start() {
    let (free, taken) = (format!("shm://{}", unique("free")), format!("shm://{}", unique("taken")));
    let holder = echo(config()).server().at(&taken).start().unwrap();
    let error = echo(config()).server().at(&free).at(&taken).start().err().unwrap();
    assert!(error.to_string().contains(&taken), "{error}");
    // What had started is gone: its name is free.
    echo(config()).server().at(&free).start().unwrap().stop().unwrap();
    holder.stop().unwrap();
    assert!(matches!(echo(config()).server().start(), Err(Error::Nowhere)));
}

#[test]
fn worker_handlers_get_threads_without_being_asked_for() {
    let nexus = Nexus::builder()
        .config(config())
        .handle_worker(ECHO, |call: DeferredCall| {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            call.reply(name.as_bytes());
        })
        .build()
        .unwrap();
    let server = nexus.server().at("udp://127.0.0.1:0").start().unwrap();
    let address = server.addresses()[0].to_string();
    let mut rpc = client(&address);
    let session = rpc.connect(&address).unwrap();
    let name = rpc.call(session, ECHO, b"").unwrap().to_string();
    assert!(name.starts_with("sinew-worker"), "{name}");
    server.stop().unwrap();
}

#[test]
fn a_panic_between_turns_ends_the_server_and_says_where() {
    let panics = Arc::new(AtomicBool::new(false));
    let when = Arc::clone(&panics);
    let server = echo(config())
        .server()
        .at("udp://127.0.0.1:0")
        .at(format!("shm://{}", unique("panics")))
        .on_turn(move |rpc| assert!(!(when.load(Ordering::Relaxed) && rpc.address().scheme() == "udp"), "on purpose"))
        .start()
        .unwrap();
    panics.store(true, Ordering::Relaxed);
    // A packet wakes the endpoint that sleeps.
    let address = server.addresses()[0].to_string();
    let mut rpc = client(&address);
    let _ = rpc.begin_connect(&address).unwrap();
    rpc.turn();
    let interrupt = sinew::host::Interrupt::install().unwrap();
    // The other endpoint is well, but ends too.
    let error = server.run_until_interrupted(interrupt).unwrap_err();
    assert!(matches!(&error, Error::Panicked { message, .. } if message == "on purpose"), "{error}");
}

#[test]
fn errors_say_what_happened_in_debug_too() {
    let name = format!("shm://{}", unique("missing"));
    let error = client("shm://").connect(&name).unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    for part in [name.as_str(), "looked in", "start one with"] {
        assert!(error.to_string().contains(part), "no `{part}` in {error}");
    }
}
