//! The facade: what `sinew` adds to the crates that it puts together.

mod common;

use std::sync::OnceLock;

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
fn an_address_of_another_fabric_says_which_endpoint_it_needs() {
    for (own, other) in [("shm", "udp://127.0.0.1:7000"), ("udp", "shm://name")] {
        let mut rpc = client(&format!("{own}://"));
        let needed = other.split_once("://").unwrap().0;
        let own_form = format!("this endpoint is on `{own}`: write {own}://");
        for error in [rpc.connect(other).unwrap_err(), rpc.begin_connect(other).unwrap_err()] {
            assert!(matches!(error, Error::Connect(_)), "{error}");
            for part in [other, &own_form, &format!("open an endpoint with {needed}:// for it")] {
                assert!(error.to_string().contains(part), "no `{part}` in {error}");
                assert!(!error.to_string().contains("sinew "), "a library knows no commands: {error}");
            }
        }
        // An address of no known fabric is not one for another endpoint.
        let error = rpc.connect("pigeon://home").unwrap_err();
        assert!(matches!(error, Error::UnknownFabric { .. }), "{error}");
        assert!(error.to_string().contains("known are shm, udp, ibverbs"), "{error}");
    }
}

/// An endpoint on a port of the program's own is not told of the fabrics of this build.
#[test]
fn a_port_of_the_programs_own_says_itself_where_it_can_connect() {
    let network = sinew_fabric::loopback::Network::new(sinew_fabric::ManualClock::new());
    let mut rpc = Rpc::over(&Nexus::client(), network.port("here").unwrap()).unwrap();
    for other in ["pigeon://home", "udp://127.0.0.1:7000"] {
        for error in [rpc.connect(other).unwrap_err(), rpc.begin_connect(other).unwrap_err()] {
            assert!(matches!(error, Error::Connect(_)), "{error}");
            let error = error.to_string();
            assert!(error.contains("this endpoint is on `loopback`: write loopback://"), "{error}");
            assert!(!error.contains("ibverbs"), "{error}");
        }
    }
    let error = rpc.connect("loopback://nobody").unwrap_err().to_string();
    assert!(error.contains("no server at loopback://nobody") && !error.contains("sinew "), "{error}");
}

#[test]
fn no_terminal_obeys_an_address_that_an_error_quotes() {
    for evil in ["shm://\u{1b}[31m", "\u{1b}[31m://x", "udp://\u{1b}[31m:7", "udp://:0?\u{1b}[31m=1", "\u{1b}[31m"] {
        let errors = [
            Rpc::open(evil).err().unwrap(),
            client("shm://").connect(evil).unwrap_err(),
            echo(config()).server().at(evil).start().err().unwrap(),
            echo(config()).server().at_on_cpu(evil, 100_000).start().err().unwrap(),
        ];
        for error in errors.map(|error| error.to_string()) {
            assert!(!error.contains(char::is_control) && error.contains(r"\u{1b}[31m"), "{error:?}");
        }
    }
}

#[test]
fn an_endpoint_says_whether_it_slept() {
    let mut rpc = client("shm://");
    while rpc.turn() {}
    assert!(rpc.wait(Some(1)).unwrap());
    let server = echo(config()).server().at(format!("shm://{}", unique("slept"))).start().unwrap();
    let session = rpc.connect(&server.addresses()[0].to_string()).unwrap();
    rpc.disconnect(session);
    assert!(!rpc.wait(None).unwrap(), "there is an event to take");
}

#[test]
fn a_call_without_a_handler_names_its_type() {
    let server = echo(config()).server().at(format!("shm://{}", unique("untyped"))).start().unwrap();
    let mut rpc = client("shm://");
    let session = rpc.connect(&server.addresses()[0].to_string()).unwrap();
    let error = rpc.call(session, RequestType::new(517), b"").unwrap_err();
    assert!(matches!(&error, Error::Call(error) if error.cause == Cause::NoHandler), "{error}");
    assert!(error.to_string().contains("no handler for request type 517"), "{error}");
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
    // The endpoint that had started is gone, and its name is free.
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

/// The handle exists before any request does, and the workers share a session that the first of them opens.
#[test]
fn a_worker_asks_another_server_before_it_answers() {
    const TWICE: RequestType = RequestType::new(60);
    let of_shm = || format!("shm://{}", unique("asks"));
    for (back, front) in [(of_shm(), of_shm()), ("udp://127.0.0.1:0".to_owned(), "udp://127.0.0.1:0".to_owned())] {
        let backend = echo(config()).server().at(back).start().unwrap();
        let address = backend.addresses()[0].to_string();
        let nexus = Nexus::builder().config(config()).worker_threads(3).handle_worker_with(TWICE, move |endpoint| {
            let (handle, session, address) = (endpoint.remote_handle(), OnceLock::new(), address.clone());
            move |call: DeferredCall| {
                let session = *session.get_or_init(|| {
                    let address = address.clone();
                    handle.run(move |rpc| rpc.connect(&address)).unwrap().wait().unwrap().unwrap()
                });
                let asked: Vec<_> = (0..2).map(|_| handle.call(session, ECHO, call.request(), 0).unwrap()).collect();
                let replies: Vec<_> = asked.into_iter().map(|pending| pending.wait().unwrap().to_vec()).collect();
                call.reply(&replies.concat());
            }
        });
        let server = nexus.build().unwrap().server().at(front).start().unwrap();
        let address = server.addresses()[0].to_string();
        let mut rpc = client(&address);
        let session = rpc.connect(&address).unwrap();
        for len in [0, 1, 3_000] {
            let request = vec![len as u8; len];
            assert_eq!(rpc.call(session, TWICE, &request).unwrap()[..], vec![len as u8; 2 * len]);
        }
        server.stop().unwrap();
        backend.stop().unwrap();
    }
}

/// Ways in which an endpoint of a server ends on request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum EndKind {
    Error,
    Panic,
    End,
}

/// Error of a program.
#[derive(Debug)]
struct OutOfPaper {
    endpoint: usize,
}

impl std::fmt::Display for OutOfPaper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "endpoint {} is out of paper", self.endpoint)
    }
}

impl std::error::Error for OutOfPaper {}

const END: RequestType = RequestType::new(70);

/// Starts a server with two endpoints. An endpoint that is asked to end keeps the request, and ends in this way.
fn ending_server(kind: EndKind) -> ServerHandle {
    let server = echo(config()).server().at("udp://127.0.0.1:0").at(format!("shm://{}", unique("ending")));
    let program = move |endpoint: &EndpointInfo, rpc: &mut Rpc| {
        rpc.handle_polled(END).unwrap();
        let (endpoint, mut kept) = (endpoint.index, Vec::new());
        Ok(move |rpc: &mut Rpc| {
            let busy = rpc.turn();
            kept.extend(rpc.poll_request());
            match kind {
                _ if kept.is_empty() => Ok(busy.into()),
                EndKind::Error => Err(OutOfPaper { endpoint }),
                EndKind::Panic => panic!("on purpose"),
                EndKind::End => Ok(Flow::End),
            }
        })
    };
    server.program(program).start().unwrap()
}

#[test]
fn a_program_that_ends_ends_the_server_and_its_clients_hear_of_it() {
    for kind in [EndKind::Error, EndKind::Panic, EndKind::End] {
        let well = echo(config()).server().at("udp://127.0.0.1:0").start().unwrap();
        let server = ending_server(kind);
        let [udp, shm] = [0, 1].map(|index| server.addresses()[index].to_string());
        let (mut over_udp, mut over_shm) = (client("udp://"), client("shm://"));
        let sessions = [over_udp.connect(&udp).unwrap(), over_shm.connect(&shm).unwrap()];
        let elsewhere = over_udp.connect(&well.addresses()[0].to_string()).unwrap();
        assert_eq!(over_shm.call(sessions[1], ECHO, b"before").unwrap().to_string(), "before");

        let error = over_udp.call(sessions[0], END, b"").unwrap_err();
        let Error::Call(error) = error else { panic!("{kind:?}: {error}") };
        assert_eq!(error.cause, Cause::PeerClosed, "{kind:?}: {error}");
        // The other endpoint is well, but ends too.
        let mut lost = None;
        over_shm
            .run_until(|rpc| {
                lost = rpc.poll_event();
                lost.is_some()
            })
            .unwrap();
        assert!(
            matches!(lost, Some(SessionEvent::Lost { session, .. }) if session == sessions[1]),
            "{kind:?}: {lost:?}"
        );
        // Sessions with other servers are not affected.
        assert_eq!(over_udp.call(elsewhere, ECHO, b"well").unwrap().to_string(), "well");

        let ended = server.run_until_interrupted(sinew::host::Interrupt::install().unwrap());
        match (kind, ended) {
            (EndKind::Error, Err(Error::Program { address, source })) => {
                assert_eq!(address, udp);
                assert_eq!(source.downcast_ref::<OutOfPaper>().unwrap().endpoint, 0);
            }
            (EndKind::Panic, Err(Error::Panicked { address, message })) => {
                assert!(address.starts_with("udp://") && message == "on purpose", "{address}: {message}");
            }
            (EndKind::End, Ok(reports)) => assert_eq!(reports[0].stats.requests_handled, 1),
            (_, other) => panic!("{kind:?}: {other:?}"),
        }
        // Nothing is left: both addresses are free.
        echo(config()).server().at(&udp).at(&shm).start().unwrap().stop().unwrap();
        well.stop().unwrap();
    }
}

#[test]
fn a_program_that_cannot_be_made_keeps_the_server_from_starting() {
    let (first, second) = (format!("shm://{}", unique("made")), format!("shm://{}", unique("unmade")));
    let server = echo(config()).server().at(&first).at(&second).program(|endpoint, rpc| {
        if endpoint.index == 1 {
            // The nexus already has a handler for this type.
            rpc.handle(ECHO, |_call| {})?;
        }
        Ok(|rpc: &mut Rpc| -> sinew::Result<Flow> { Ok(rpc.turn().into()) })
    });
    let error = server.start().err().unwrap();
    let Error::Program { address, source } = &error else { panic!("{error}") };
    assert_eq!(*address, second);
    assert!(matches!(source.downcast_ref(), Some(Error::Nexus(_))), "{error}");
    assert!(error.to_string().contains("request type 1 has two handlers"), "{error}");
    echo(config()).server().at(&first).at(&second).start().unwrap().stop().unwrap();
}

#[test]
fn each_endpoint_of_a_server_has_handlers_and_a_program_with_state_of_its_own() {
    const OF_HANDLER: RequestType = RequestType::new(71);
    const OF_PROGRAM: RequestType = RequestType::new(72);
    const OF_CLOSURE: RequestType = RequestType::new(73);
    let counting = |endpoint: &EndpointInfo| {
        let (index, mut count) = (endpoint.index, 0);
        move || {
            count += 1;
            format!("{count} at {index}")
        }
    };
    let nexus = Nexus::builder().config(config()).handle_with(OF_HANDLER, move |endpoint| {
        let mut next = counting(endpoint);
        move |call: Call| call.reply(next().as_bytes())
    });
    let server = nexus.build().unwrap().server();
    let server = server.at(format!("shm://{}", unique("state"))).at(format!("shm://{}", unique("state")));
    let server = server.program(move |endpoint, rpc| {
        let next = std::rc::Rc::new(std::cell::RefCell::new(counting(endpoint)));
        let in_handler = std::rc::Rc::clone(&next);
        rpc.handle(OF_PROGRAM, move |call| call.reply(in_handler.borrow_mut()().as_bytes()))?;
        let mut of_closure = counting(endpoint);
        Ok(move |rpc: &mut Rpc| -> sinew::Result<Flow> {
            Ok(rpc.turn_with(|call| call.reply(of_closure().as_bytes())).into())
        })
    });
    let server = server.start().unwrap();
    let mut rpc = client("shm://");
    for (index, address) in server.addresses().iter().enumerate() {
        let session = rpc.connect(&address.to_string()).unwrap();
        for request_type in [OF_HANDLER, OF_PROGRAM, OF_CLOSURE] {
            for count in 1..=3 {
                let expected = format!("{count} at {index}");
                assert_eq!(rpc.call(session, request_type, b"").unwrap().to_string(), expected);
            }
        }
    }
    server.stop().unwrap();
}

/// The wake-up for the stop may be consumed within the program's own turn; the thread must not go back to sleep.
#[test]
fn a_program_that_sleeps_by_itself_is_stopped() {
    let (asleep, is_asleep) = std::sync::mpsc::channel();
    let server = Nexus::builder()
        .config(Config { poller: sinew::fabric::PollPolicy::SLEEP, ..Config::default() })
        .build()
        .unwrap()
        .server()
        .at("udp://127.0.0.1:0")
        .program(move |_endpoint, _rpc| {
            let asleep = asleep.clone();
            Ok(move |rpc: &mut Rpc| -> sinew::Result<Flow> {
                rpc.turn();
                let _ = asleep.send(());
                rpc.wait(None)?;
                Ok(Flow::Idle)
            })
        })
        .start()
        .unwrap();
    is_asleep.recv().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_program_with_a_timer_does_not_oversleep() {
    let server = echo(Config { poller: sinew::fabric::PollPolicy::SLEEP, ..config() }).server();
    let server = server.at(format!("shm://{}", unique("timer"))).program(|_endpoint, _rpc| {
        let mut ticks = 0;
        Ok(move |rpc: &mut Rpc| -> sinew::Result<Flow> {
            ticks += 1;
            Ok(if rpc.turn() {
                Flow::Busy
            } else if ticks < 100 {
                Flow::IdleFor(1_000)
            } else {
                Flow::End
            })
        })
    });
    // The program ends by itself, without a packet that would wake it.
    server.start().unwrap().run_until_interrupted(sinew::host::Interrupt::install().unwrap()).unwrap();
}

#[test]
fn a_running_server_shows_what_it_counts() {
    let shm = format!("shm://{}", unique("live"));
    let server = echo(config()).server().at(&shm).at("udp://127.0.0.1:0").start().unwrap();
    let addresses: Vec<_> = server.stats().into_iter().map(|report| report.address).collect();
    assert_eq!(addresses, server.addresses());
    for (index, address) in server.addresses().iter().map(ToString::to_string).enumerate() {
        let mut rpc = client(&address);
        let session = rpc.connect(&address).unwrap();
        for number in 1..=100 {
            let received = server.stats()[index].port_stats.rx_packets;
            rpc.call(session, ECHO, b"hello").unwrap();
            // A client that has its answer finds the call counted.
            let report = &server.stats()[index];
            assert_eq!((report.stats.requests_handled, report.sessions), (number, 1));
            assert!(report.port_stats.rx_packets > received);
        }
        assert_eq!(server.stats()[1 - index].stats.requests_handled, 101 * index as u64);
        rpc.call(session, RequestType::new(99), b"").unwrap_err();
        drop(rpc);
    }
    while server.stats().iter().any(|report| report.sessions > 0) {
        std::thread::yield_now();
    }
    let last = server.stats();
    assert!(last.iter().all(|report| report.port_stats.tx_packets > 100));
    assert_eq!(server.stop().unwrap(), last);
}

#[test]
fn errors_say_what_happened_in_debug_too() {
    let name = format!("shm://{}", unique("missing"));
    let error = client("shm://").connect(&name).unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    for part in [name.as_str(), "looked in", "start it first"] {
        assert!(error.to_string().contains(part), "no `{part}` in {error}");
    }
}

#[test]
fn a_channel_takes_many_calls_and_reaches_a_server_that_was_started_again_with_one_call() {
    const CALLS: u64 = 64;
    // The service keeps calls back until as many as should be in flight have arrived.
    fn gathers() -> Nexus {
        Nexus::builder()
            .config(config())
            .handle_with(ECHO, |_endpoint| {
                let mut kept = Vec::new();
                move |call: Call| {
                    kept.extend(call.defer().ok());
                    if kept.len() == CALLS as usize {
                        kept.drain(..).for_each(DeferredCall::reply_in_place);
                    }
                }
            })
            .build()
            .unwrap()
    }
    fn ask(rpc: &mut Rpc, channel: &mut sinew::Channel) {
        for tag in 0..CALLS {
            let (mut request, response) = (rpc.alloc(8).unwrap(), rpc.alloc(8).unwrap());
            request.fill(&tag.to_le_bytes()).unwrap();
            channel.enqueue_request(rpc, ECHO, request, response, tag).unwrap();
        }
        let mut left = CALLS;
        rpc.run_until(|rpc| {
            while let Some(completion) = rpc.poll_completion() {
                completion.result.unwrap();
                assert_eq!(completion.response[..], completion.tag.to_le_bytes());
                left -= 1;
            }
            left == 0
        })
        .unwrap();
    }
    for address in [format!("shm://{}", unique("channel")), "udp://127.0.0.1:0".to_owned()] {
        let server = gathers().server().at(&address).start().unwrap();
        let address = server.addresses()[0].to_string();
        let mut rpc = client(&format!("{}://", server.addresses()[0].scheme()));
        let mut channel = sinew::Channel::open(&mut rpc, &address, CALLS as usize).unwrap();
        ask(&mut rpc, &mut channel);
        server.stop().unwrap();
        rpc.run_until(|rpc| channel.status(rpc).gone > 0).unwrap();
        let server = gathers().server().at(&address).start().unwrap();
        channel.reconnect(&mut rpc).unwrap();
        ask(&mut rpc, &mut channel);
        channel.close(&mut rpc);
        server.stop().unwrap();
    }
}

#[test]
fn programs_on_servers_threads_are_reached_by_handles_that_their_makers_leave() {
    let (leave, left) = std::sync::mpsc::channel();
    let leave = std::sync::Mutex::new(leave);
    let server = Nexus::builder().build().unwrap().server().at("udp://127.0.0.1:0").at("udp://127.0.0.1:0");
    let server = server
        .program(move |endpoint, rpc| -> sinew::Result<_> {
            leave.lock().unwrap().send((endpoint.index, rpc.remote_handle())).unwrap();
            Ok(|rpc: &mut Rpc| -> sinew::Result<Flow> { Ok(rpc.turn().into()) })
        })
        .start()
        .unwrap();
    let mut handles: Vec<_> = left.iter().take(2).collect();
    handles.sort_by_key(|(index, _)| *index);
    for (index, handle) in &handles {
        let info = handle.run(|endpoint| (endpoint.info().index, endpoint.address())).unwrap().wait().unwrap();
        assert_eq!(info, (*index, server.addresses()[*index].clone()));
    }
    server.stop().unwrap();
    assert!(matches!(handles[0].1.run(|_| ()), Err(sinew::rpc::HandleError::EndpointGone)));
}
