//! Peers made by hand, packet by packet: they send what a well-behaved endpoint would never send, or not at that time.

use sinew_fabric::loopback::{LoopbackConfig, LoopbackPort, Network};
use sinew_fabric::{PacketPort, Peer};
use sinew_rpc::{ConnectOptions, RequestType, SessionEvent, SessionId};
use sinew_wire::management::{Accept, Challenge, Connect, Cookie, Features, Liveness, Management, Offer, ReverseOffer};
use sinew_wire::{HEADER_LEN, Header, Kind, SessionKey};

use super::{Endpoint, World};

/// A packet as its receiver reads it.
pub type Packet = (Header, Vec<u8>);

/// Offer of a peer made by hand, unless a test gives another.
pub const OFFER: Offer = Offer { credits: 32, slots: 8, data_per_packet: 1448, message_len_max: 16 << 20 };
/// 100 bytes of data per packet, so that a few hundred bytes are a long message.
pub const SMALL: Offer = Offer { data_per_packet: 100, ..OFFER };

/// Header and body of bytes on the wire.
pub fn parse(bytes: &[u8]) -> Packet {
    (Header::read(bytes).unwrap(), bytes[HEADER_LEN..].to_vec())
}

/// A header and data, as bytes on the wire.
pub fn bytes_of(header: Header, data: &[u8]) -> Vec<u8> {
    [&header.to_bytes()[..], data].concat()
}

/// Kinds and packet numbers, for short comparisons.
pub fn outline(packets: &[Packet]) -> Vec<(Kind, u16)> {
    packets.iter().map(|(header, _)| (header.kind, header.packet_number)).collect()
}

/// Turns an endpoint once, and returns what it then sent to `to`.
pub fn turn_and_tap<P: PacketPort>(network: &Network, endpoint: &mut Endpoint<P>, to: Peer) -> Vec<Packet> {
    network.start_tap();
    network.take_tapped();
    endpoint.turn();
    sent_to(network, to)
}

fn sent_to(network: &Network, to: Peer) -> Vec<Packet> {
    let tapped = network.take_tapped();
    // A repeated connect is also sent in the previous version of the protocol.
    let ours = tapped.iter().filter(|sent| sent.to == to && Header::read_other_version(&sent.bytes).is_none());
    ours.map(|sent| parse(&sent.bytes)).collect()
}

/// A client made by hand.
pub struct HandClient {
    pub network: Network,
    pub peer: Peer,
    pub key: SessionKey,
    pub token: u64,
    pub server_key: SessionKey,
    pub server_token: u64,
    pub granted: Offer,
    pub request_type: RequestType,
    /// The terms that it offers for the server's calls.
    pub call_back: Option<ReverseOffer>,
    pub granted_back: Option<ReverseOffer>,
}

impl HandClient {
    /// A client without a session; clients with different numbers are different peers.
    pub fn new(world: &World, number: u32) -> Self {
        Self {
            network: world.network.clone(),
            peer: Network::stranger(number),
            key: SessionKey::new(3, 0x1234 + u64::from(number)),
            token: 0x5555_0000 + u64::from(number),
            server_key: SessionKey(0),
            server_token: 0,
            granted: OFFER,
            request_type: super::ECHO,
            call_back: None,
            granted_back: None,
        }
    }

    /// Another session of the same peer, not open yet; `index` distinguishes it from its siblings.
    pub fn sibling(&self, world: &World, index: u64) -> Self {
        let key = SessionKey::new(100 + index as usize, 0x9876_0000 + index);
        Self { network: world.network.clone(), key, server_key: SessionKey(0), ..*self }
    }

    /// Opens the session.
    ///
    /// # Errors
    ///
    /// The server's refusal.
    pub fn open<P: PacketPort>(&mut self, server: &mut Endpoint<P>, offer: Offer) -> Result<(), Packet> {
        let cookie = self.challenged(server, offer);
        self.send_management(&self.connect_packet(offer, cookie));
        let mut answers = self.turn(server);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let answer = answers.remove(0);
        if answer.0.kind == Kind::Refuse {
            return Err(answer);
        }
        self.accepted(&answer.0, &answer.1);
        Ok(())
    }

    /// Opens sessions of this peer until the server refuses one, or `most` are open.
    pub fn open_many<P: PacketPort>(
        world: &World,
        server: &mut Endpoint<P>,
        number: u32,
        offer: Offer,
        most: u64,
    ) -> Vec<Self> {
        let first = Self::new(world, number);
        let mut open = Vec::new();
        for index in 0..most {
            let mut session = first.sibling(world, index);
            if session.open(server, offer).is_err() {
                break;
            }
            open.push(session);
        }
        open
    }

    /// Sends a ping, as a sign of life.
    pub fn ping(&self) {
        let life = Liveness { sender_token: self.token, receiver_token: self.server_token };
        self.send_management(&life.encode(Kind::Ping));
    }

    /// A client with a session.
    pub fn connected<P: PacketPort>(world: &World, server: &mut Endpoint<P>, number: u32, offer: Offer) -> Self {
        let mut client = Self::new(world, number);
        let cookie = client.challenged(server, offer);
        client.send_management(&client.connect_packet(offer, cookie));
        let answers = client.turn(server);
        let [(header, body)] = &answers[..] else { panic!("{answers:?}") };
        client.accepted(header, body);
        client
    }

    /// Asks for a session, and returns the cookie of the challenge.
    pub fn challenged<P: PacketPort>(&self, server: &mut Endpoint<P>, offer: Offer) -> Cookie {
        self.send_management(&self.connect_packet(offer, Cookie::default()));
        let answers = self.turn(server);
        let [(header, body)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((header.kind, header.session), (Kind::Challenge, self.key));
        Challenge::read(body).unwrap().cookie
    }

    pub fn connect_packet(&self, offer: Offer, cookie: Cookie) -> Management {
        let (client_key, client_token, call_back) = (self.key, self.token, self.call_back);
        Connect { client_key, client_token, offer, cookie, reverse_offer: call_back, features: Features::SUPPORTED }
            .encode()
    }

    /// Handles an accept.
    pub fn accepted(&mut self, header: &Header, body: &[u8]) {
        assert_eq!((header.kind, header.session), (Kind::Accept, self.key));
        let accept = Accept::read(body).unwrap();
        assert_eq!(accept.client_token, self.token);
        (self.server_key, self.server_token, self.granted) = (accept.server_key, accept.server_token, accept.granted);
        self.granted_back = accept.reverse_offer;
    }

    pub fn send_management(&self, packet: &Management) {
        assert!(self.network.inject("server", self.peer, packet.as_bytes()));
    }

    pub fn send(&self, header: Header, data: &[u8]) {
        assert!(self.network.inject("server", self.peer, &bytes_of(header, data)));
    }

    /// A header of a request's packet.
    pub fn header(&self, request_number: u64, packet_number: u16, message_len: usize) -> Header {
        Header {
            kind: Kind::Request,
            type_or_residence: self.request_type.number(),
            message_len: message_len as u32,
            session: self.server_key,
            request_number,
            packet_number,
            is_copy: false,
        }
    }

    /// Sends packet `packet_number` of a request.
    pub fn request(&self, request_number: u64, packet_number: u16, message: &[u8]) {
        let step = self.granted.data_per_packet as usize;
        let start = usize::from(packet_number) * step;
        let data = &message[start.min(message.len())..(start + step).min(message.len())];
        self.send(self.header(request_number, packet_number, message.len()), data);
    }

    /// Asks for `count` response packets, from `first` on.
    pub fn request_for_response(&self, request_number: u64, first: u16, count: u32) {
        let header = Header { kind: Kind::RequestForResponse, ..self.header(request_number, first, count as usize) };
        self.send(header, &[]);
    }

    /// Turns the server once and returns its answers to this client.
    pub fn turn<P: PacketPort>(&self, server: &mut Endpoint<P>) -> Vec<Packet> {
        turn_and_tap(&self.network, server, self.peer)
    }
}

/// A server made by hand. Its port only provides an address.
pub struct HandServer {
    pub network: Network,
    pub port: LoopbackPort,
    pub peer: Peer,
    pub key: SessionKey,
    pub token: u64,
    pub client_key: SessionKey,
    pub client_token: u64,
    pub data_per_packet: usize,
    pub session: SessionId,
    /// The terms that the client offers for this server's calls.
    pub offered: Option<ReverseOffer>,
    /// Features that it announces.
    pub features: Features,
}

impl HandServer {
    /// A server at `loopback://server`, with a session that the client named `client` has opened.
    pub fn connected(world: &World, client: &mut Endpoint, granted: Offer) -> Self {
        let mut server = Self::asked(world, client);
        server.accept(granted);
        server.turn(client);
        assert!(matches!(client.poll_event(), Some(SessionEvent::Connected(id)) if id == server.session));
        server
    }

    /// A server to which the client has sent a connect.
    pub fn asked(world: &World, client: &mut Endpoint) -> Self {
        Self::asked_with(world, client, ConnectOptions::new())
    }

    /// As [`Self::asked`], with connect options of the client.
    pub fn asked_with(world: &World, client: &mut Endpoint, options: ConnectOptions) -> Self {
        let lends = LoopbackConfig { holds_shares: true, lends_tails: true, ..LoopbackConfig::default() };
        let port = world.network.port_with("server", lends).unwrap();
        let session = client.begin_connect_with(&port.address(), options).unwrap();
        let mut server = Self {
            network: world.network.clone(),
            peer: port.peer(),
            port,
            key: SessionKey::new(0, 0xABCD),
            token: 0x7777,
            client_key: SessionKey(0),
            client_token: 0,
            data_per_packet: 0,
            session,
            offered: None,
            features: Features::SUPPORTED,
        };
        let sent = server.turn(client);
        let [(header, body)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(header.kind, Kind::Connect);
        let connect = Connect::read(body).unwrap();
        (server.client_key, server.client_token) = (connect.client_key, connect.client_token);
        (server.data_per_packet, server.offered) = (connect.offer.data_per_packet as usize, connect.reverse_offer);
        server
    }

    /// Grants the session.
    pub fn accept(&mut self, granted: Offer) {
        self.accept_with(granted, None);
    }

    /// As [`Self::accept`], with the terms that it grants for calls back.
    pub fn accept_with(&mut self, granted: Offer, call_back: Option<ReverseOffer>) {
        self.data_per_packet = granted.data_per_packet as usize;
        let accept = Accept {
            server_key: self.key,
            server_token: self.token,
            client_token: self.client_token,
            granted,
            reverse_offer: call_back,
            features: self.features,
        };
        self.send_management(&accept.encode(self.client_key));
    }

    pub fn send_management(&self, packet: &Management) {
        assert!(self.network.inject("client", self.peer, packet.as_bytes()));
    }

    pub fn send(&self, header: Header, data: &[u8]) {
        assert!(self.network.inject("client", self.peer, &bytes_of(header, data)));
    }

    /// A header of an answer.
    pub fn header(&self, kind: Kind, request_number: u64, packet_number: u16, message_len: usize) -> Header {
        Header {
            kind,
            type_or_residence: 0,
            message_len: message_len as u32,
            session: self.client_key,
            request_number,
            packet_number,
            is_copy: false,
        }
    }

    /// Returns the credits of request packets up to `packet_number`.
    pub fn credit_return(&self, request_number: u64, packet_number: u16) {
        self.send(self.header(Kind::CreditReturn, request_number, packet_number, 0), &[]);
    }

    /// Sends packet `packet_number` of a response.
    pub fn response(&self, request_number: u64, packet_number: u16, message: &[u8]) {
        let start = usize::from(packet_number) * self.data_per_packet;
        let data = &message[start.min(message.len())..(start + self.data_per_packet).min(message.len())];
        self.send(self.header(Kind::Response, request_number, packet_number, message.len()), data);
    }

    /// Turns the client once and returns what it sent to this server.
    pub fn turn(&self, client: &mut Endpoint) -> Vec<Packet> {
        turn_and_tap(&self.network, client, self.peer)
    }
}

/// A server in a world of its own, with a client made by hand that has a session with [`SMALL`] packets.
pub fn hand_client(config: sinew_rpc::Config) -> (World, Endpoint, HandClient) {
    let world = World::new();
    let mut server = world.server(config, LoopbackConfig::default());
    let client = HandClient::connected(&world, &mut server, 1, SMALL);
    (world, server, client)
}

/// A client in a world of its own, with a server made by hand that granted it a session.
pub fn hand_server(config: sinew_rpc::Config, granted: Offer) -> (World, Endpoint, HandServer) {
    let world = World::new();
    let mut client = world.client(config, LoopbackConfig::default());
    let server = HandServer::connected(&world, &mut client, granted);
    (world, client, server)
}
