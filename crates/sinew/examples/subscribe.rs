//! A service that calls its clients back: when one publishes something, all of them are told.
//!
//! A client that accepts calls says so when it connects ([`ConnectOptions::call_back`]), and answers them with
//! handlers, as a server does.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use sinew::prelude::*;

/// Sent by a client that has news.
const PUBLISH: RequestType = RequestType::new(1);
/// Sent by the service, which passes the news on.
const NEWS: RequestType = RequestType::new(2);

fn main() -> sinew::Result<()> {
    let config = Config { client_events: true, ..Config::default() };
    let server = Nexus::builder().config(config).build()?.server().at("udp://127.0.0.1:0");
    let server = server.program(|_endpoint, rpc| pass_on(rpc)).start()?;
    let address = server.addresses()[0].to_string();

    let mut clients = Vec::new();
    for name in ["Ada", "Grace", "Barbara"] {
        let mut rpc = Rpc::open("udp://")?;
        rpc.handle(NEWS, move |call: Call| {
            println!("{name} hears: {}", String::from_utf8_lossy(call.request()));
            call.reply(b"");
        })?;
        // Packets that the service may have in flight to this client.
        let session = rpc.connect_with(&address, ConnectOptions::new().call_back(4))?;
        clients.push((rpc, session));
    }
    let (publisher, session) = &mut clients[0];
    let receivers = publisher.call(*session, PUBLISH, b"it works")?;
    println!("{} clients will hear of it", receivers[0]);
    // The handlers run while their endpoints turn.
    for (rpc, _) in &mut clients {
        rpc.run_until(|rpc| rpc.stats().requests_handled > 0)?;
    }
    drop(clients);
    server.stop()?;
    Ok(())
}

/// Program of the service: it knows who is there, and calls them.
fn pass_on(rpc: &mut Rpc) -> sinew::Result<impl FnMut(&mut Rpc) -> sinew::Result<Flow> + use<>> {
    let clients = Rc::<RefCell<BTreeSet<ClientId>>>::default();
    let in_handler = Rc::clone(&clients);
    rpc.handle(PUBLISH, move |mut call: Call| {
        let informed = in_handler.borrow().iter().filter(|client| send_news(&mut call, **client).is_ok()).count();
        call.reply(&[informed as u8]);
    })?;
    Ok(move |rpc: &mut Rpc| {
        let busy = rpc.turn();
        while let Some(event) = rpc.poll_client_event() {
            match event {
                ClientEvent::Came(client) => clients.borrow_mut().insert(client),
                ClientEvent::Left { client, .. } => clients.borrow_mut().remove(&client),
            };
        }
        // Nobody waits for the clients' answers.
        while rpc.poll_completion().is_some() {}
        Ok(busy.into())
    })
}

/// Sends a client the news. Fails if the client accepts no calls, or is gone.
fn send_news(call: &mut Call<'_>, client: ClientId) -> sinew::Result<()> {
    let session = call.session_to(client)?;
    let (mut news, response) = (call.alloc(call.request().len())?, call.alloc(0)?);
    news.copy_from_slice(call.request());
    call.enqueue_request(session, NEWS, news, response, 0)?;
    Ok(())
}
