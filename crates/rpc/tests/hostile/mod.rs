//! Properties of an endpoint that hold whatever arrives; the fuzz target and the property tests share them.
//!
//! Bytes are read as a list of steps, so that every byte string is a history, and small changes of the bytes are small
//! changes of the history. The steps are raw packets, packets with a valid session key and otherwise arbitrary
//! contents, management packets, and time that passes.

use sinew_fabric::Peer;
use sinew_fabric::loopback::{LoopbackConfig, Network};
use sinew_rpc::{ClientEvent, Config, ConnectOptions, Nexus, SessionEvent, SessionId};
use sinew_wire::management::ReverseOffer;
use sinew_wire::{Header, Kind, SessionKey};

use super::common::handmade::{HandClient, HandServer, OFFER, bytes_of};
use super::common::{BURST, DEFER, ECHO, Endpoint, World, connect, pass_time, run, send, take_kept};

const MS: u64 = 1_000_000;
const CALLS: u64 = 10;
/// The hostile side's terms for the other direction.
const BACK: ReverseOffer = ReverseOffer { key: SessionKey::new(5, 0xBAC4), credits: 8, slots: 4 };

/// Offer with 100 bytes of data per packet, so that messages of some hundred bytes are long.
const OFFERED: sinew_wire::management::Offer = sinew_wire::management::Offer { data_per_packet: 100, ..OFFER };

/// Runs a history, which a server or a client must survive.
pub fn endpoint(bytes: &[u8]) {
    match bytes.split_first() {
        Some((role, steps)) if role % 2 == 0 => server(steps, role % 4 == 2),
        Some((role, steps)) => client(steps, role % 4 == 3),
        None => {}
    }
    // Calls that a handler kept must not be seen by the next history in this thread.
    take_kept();
}

/// A server hears strangers, and a peer with a session that says anything. Afterwards another client, which had a
/// session all the time, is served as if nothing had happened. With `calls_back` the server also calls the peer, and
/// each of these calls completes once.
fn server(steps: &[u8], calls_back: bool) {
    let world = World::new();
    let nexus = Nexus::builder()
        .handle(ECHO, |call| {
            let request = call.request();
            call.reply(request);
        })
        .handle_burst(BURST, |calls| {
            for index in 0..calls.len() {
                let reply = calls.request(index).to_vec();
                calls.reply(index, &reply);
            }
        })
        .handle(DEFER, |call| {
            let _ = call.defer();
        });
    let nexus = nexus.config(Config { client_events: true, ..Config::default() });
    let mut server = world.endpoint("server", &nexus.build().unwrap(), 1);
    let mut good = world.client(Config::default(), LoopbackConfig::default());
    let session = connect(&world, &mut good, &mut server);
    let mut bad = HandClient::new(&world, 9);
    bad.call_back = calls_back.then_some(BACK);
    bad.open(&mut server, OFFERED).unwrap();
    if let Some(ClientEvent::Came(client)) = std::iter::from_fn(|| server.poll_client_event()).last()
        && let Ok(back) = server.session_to(client)
    {
        (0..CALLS).for_each(|tag| _ = send(&mut server, back, ECHO, &vec![tag as u8; tag as usize * 60], tag));
    }
    let target = Target {
        network: &world.network,
        name: "server",
        from: bad.peer,
        to: bad.server_key,
        from_key: bad.key,
        to_back: bad.granted_back.map_or(bad.server_key, |back| back.key),
    };
    let mut steps = Steps(steps);
    while let Some(step) = steps.byte() {
        target.play(step, &mut steps, &world);
        server.turn();
    }
    assert_served(&world, &mut good, &mut server, session);
    if calls_back {
        assert_each_completes_once(&world, &mut server, Vec::new());
    }
}

/// After twice the longest silence that is allowed, asserts that each of the calls has completed exactly once.
fn assert_each_completes_once(world: &World, endpoint: &mut Endpoint, mut over: Vec<u64>) {
    let silence_ns = 2 * (endpoint.config().peer_timeout_ns + endpoint.config().probe_interval_ns);
    for _ in 0..100 {
        world.clock.advance(silence_ns / 100);
        endpoint.turn();
        over.extend(std::iter::from_fn(|| endpoint.poll_completion()).map(|completion| completion.tag));
    }
    over.sort_unstable();
    assert_eq!(over, (0..CALLS).collect::<Vec<_>>());
}

fn assert_served(world: &World, good: &mut Endpoint, server: &mut Endpoint, session: SessionId) {
    // First lets the endpoint empty what the history left in its receive ring.
    pass_time(world, good, server, 2 * MS);
    send(good, session, ECHO, b"still there", 77);
    let over = run(world, good, server, 1);
    assert_eq!(over[0].tag, 77);
    assert!(over[0].result.is_ok(), "{:?}", over[0].result);
    assert_eq!(&over[0].response[..], b"still there");
}

/// A client makes calls to a server that answers anything, and then nothing: each call completes exactly once. With
/// `is_called` the server may also call the client.
fn client(steps: &[u8], is_called: bool) {
    let world = World::new();
    let nexus = Nexus::builder().handle(ECHO, |call| {
        let request = call.request();
        call.reply(request);
    });
    let mut client = world.endpoint("client", &nexus.build().unwrap(), 2);
    let options = ConnectOptions::new().call_back(if is_called { BACK.credits } else { 0 });
    let mut bad = HandServer::asked_with(&world, &mut client, options);
    bad.accept_with(OFFERED, is_called.then_some(BACK));
    bad.turn(&mut client);
    assert!(matches!(client.poll_event(), Some(SessionEvent::Connected(_))));
    for tag in 0..CALLS {
        send(&mut client, bad.session, ECHO, &vec![tag as u8; tag as usize * 60], tag);
    }
    let target = Target {
        network: &world.network,
        name: "client",
        from: bad.peer,
        to: bad.client_key,
        from_key: bad.key,
        to_back: bad.offered.map_or(bad.client_key, |back| back.key.in_session(bad.key)),
    };
    let mut steps = Steps(steps);
    let mut over = Vec::new();
    while let Some(step) = steps.byte() {
        target.play(step, &mut steps, &world);
        client.turn();
        over.extend(std::iter::from_fn(|| client.poll_completion()).map(|completion| completion.tag));
    }
    assert_each_completes_once(&world, &mut client, over);
}

/// The receiver of the packets, and their apparent sender.
struct Target<'a> {
    network: &'a Network,
    name: &'static str,
    from: Peer,
    /// The receiver's key of the session.
    to: SessionKey,
    /// The sender's key of the session.
    from_key: SessionKey,
    /// The receiver's key of the other direction, if there is one.
    to_back: SessionKey,
}

impl Target<'_> {
    fn play(&self, step: u8, steps: &mut Steps, world: &World) {
        match step % 8 {
            0 => world.clock.advance(u64::from(steps.word()) * 200),
            1 => self.inject(self.from, steps.bytes()),
            2 => self.inject(Network::stranger(u32::from(step)), steps.bytes()),
            3 => {
                let header = Header { session: self.to, ..steps.header() };
                self.inject(Network::stranger(u32::from(step)), &bytes_of(header, steps.bytes()));
            }
            4 => {
                let header = Header { session: steps.key(self), ..steps.header() };
                self.inject(self.from, &bytes_of(header, steps.words().as_slice()));
            }
            _ => {
                let session = if step % 8 == 7 { self.to_back } else { self.to };
                let header = Header { session, ..steps.header() };
                self.inject(self.from, &bytes_of(header, steps.bytes()));
            }
        }
    }

    /// Injects a packet; a full ring loses it, as a network may.
    fn inject(&self, from: Peer, packet: &[u8]) {
        self.network.inject(self.name, from, packet);
    }
}

/// The rest of a history's bytes.
struct Steps<'a>(&'a [u8]);

impl<'a> Steps<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)])
    }

    /// Up to 255 bytes, as many as the next byte says.
    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    /// The session's key, the other direction's, the sender's, the default key, or one with another token.
    fn key(&mut self, target: &Target<'_>) -> SessionKey {
        match self.byte().unwrap_or(0) % 5 {
            0 => target.to,
            4 => target.to_back,
            1 => target.from_key,
            2 => SessionKey::default(),
            _ => SessionKey(target.to.0 ^ 1 << 40),
        }
    }

    /// A body of a few words, most of them small.
    fn words(&mut self) -> Vec<u8> {
        let count = self.byte().unwrap_or(0) % 12;
        (0..count).flat_map(|_| u64::from(self.word()).to_le_bytes()).collect()
    }

    /// A header whose numbers are mostly close to those of good packets.
    fn header(&mut self) -> Header {
        const KINDS: [Kind; 19] = [
            Kind::RequestWithOptions,
            Kind::Cancel,
            Kind::CongestionNotice,
            Kind::Request,
            Kind::Response,
            Kind::CreditReturn,
            Kind::RequestForResponse,
            Kind::InProgress,
            Kind::CallError,
            Kind::Connect,
            Kind::Challenge,
            Kind::Accept,
            Kind::Refuse,
            Kind::Confirm,
            Kind::Disconnect,
            Kind::Disconnected,
            Kind::Reset,
            Kind::Ping,
            Kind::Pong,
        ];
        let (kind, form) = (self.byte().unwrap_or(0), self.byte().unwrap_or(0));
        let wide = |bit: u8, word: u16, shift: u32| {
            if form & bit == 0 { u64::from(word % 1024) } else { u64::from(word) << shift }
        };
        let (type_word, len, request, packet) = (self.word(), self.word(), self.word(), self.word());
        Header {
            kind: KINDS[usize::from(kind) % KINDS.len()],
            type_or_residence: if form & 1 == 0 { type_word % 8 } else { type_word },
            message_len: wide(2, len, 16) as u32,
            session: SessionKey::default(),
            request_number: if form & 4 == 0 { u64::from(request % 32) } else { u64::from(request) << 32 },
            packet_number: if form & 8 == 0 { packet % 16 } else { packet },
            is_copy: form & 16 != 0,
        }
    }
}
