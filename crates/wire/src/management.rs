//! Bodies of management packets, which follow the header.
//!
//! A body is a fixed number of 64-bit words. A [`Connect`] is padded to [`CONNECT_LEN`] bytes, the length of the
//! largest management packet, so that forging a sender's address cannot make a server send more bytes than it received.

use crate::header::{HEADER_LEN, Header, Kind, SessionKey};

/// Length in bytes of the largest management packet, and of every [`Connect`].
pub const CONNECT_LEN: usize = HEADER_LEN + 8 * CONNECT_WORDS;
const CONNECT_WORDS: usize = 9;

/// Bytes of a management packet, kept without an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Management {
    bytes: [u8; CONNECT_LEN],
    len: usize,
}

impl Management {
    /// A packet of `header` and `words`, of which there are at most nine.
    ///
    /// # Panics
    ///
    /// When there are more words.
    pub fn new(header: Header, words: &[u64]) -> Self {
        assert!(words.len() <= CONNECT_WORDS);
        let mut bytes = [0; CONNECT_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        for (place, word) in bytes[HEADER_LEN..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Self { bytes, len: HEADER_LEN + 8 * words.len() }
    }

    /// The same packet, of another version of the protocol.
    #[must_use]
    pub fn with_version(mut self, version: u8) -> Self {
        if let Some(header) = self.bytes.first_chunk_mut() {
            Header::set_version(header, version);
        }
        self
    }

    /// The bytes as they go on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The words of a body; `None` when it does not have exactly `N`.
fn words<const N: usize>(body: &[u8]) -> Option<[u64; N]> {
    if body.len() != 8 * N {
        return None;
    }
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(body.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
    }
    Some(words)
}

/// One side's offer for a session. For each limit, the smaller of both sides' offers holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Packets that may be in flight to one side.
    pub credits: u16,
    /// Requests that may be outstanding.
    pub slots: u16,
    /// Bytes of data in one packet.
    pub data_per_packet: u32,
    /// Length of the largest message, in bytes.
    pub message_len_max: u32,
}

impl Offer {
    fn pack(self) -> [u64; 2] {
        [
            u64::from(self.credits) | u64::from(self.slots) << 16 | u64::from(self.data_per_packet) << 32,
            u64::from(self.message_len_max),
        ]
    }

    fn unpack(words: [u64; 2]) -> Option<Self> {
        let offer = Self {
            credits: words[0] as u16,
            slots: (words[0] >> 16) as u16,
            data_per_packet: (words[0] >> 32) as u32,
            message_len_max: u32::try_from(words[1]).ok()?,
        };
        (offer.credits > 0 && offer.slots > 0 && offer.data_per_packet > 0).then_some(offer)
    }
}

/// The other direction of a session, in which its server calls its client. It ends with the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReverseOffer {
    /// Key of the direction at the sender of this. A client's packets name the direction by this key, and a server's by
    /// [the key derived from it](SessionKey::in_session) in the session.
    pub key: SessionKey,
    /// Packets that may be in flight to one side.
    pub credits: u16,
    /// Requests that may be outstanding.
    pub slots: u16,
}

impl ReverseOffer {
    fn pack(back: Option<Self>) -> [u64; 2] {
        back.map_or([0; 2], |back| [back.key.0, u64::from(back.credits) | u64::from(back.slots) << 16])
    }

    /// `Some(None)` for no call-backs; `None` when the words are malformed.
    fn unpack([key, limits]: [u64; 2]) -> Option<Option<Self>> {
        let back = Self { key: SessionKey(key), credits: limits as u16, slots: (limits >> 16) as u16 };
        match (back.credits > 0, back.slots > 0) {
            (true, true) => Some(Some(back)),
            (false, false) => Some(None),
            _ => None,
        }
    }
}

/// Features, besides plain calls, of the sender of a [`Connect`] or an [`Accept`]. Unknown features are ignored, so
/// newer and older peers of one protocol version make do with what both have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u8);

impl Features {
    /// Calls with [options](crate::options).
    pub const OPTIONS: Self = Self(1);
    /// [Cancellations](Kind::Cancel).
    pub const CANCEL: Self = Self(2);
    /// All features that this side has.
    pub const SUPPORTED: Self = Self(Self::OPTIONS.0 | Self::CANCEL.0);
    /// No features: plain calls alone.
    pub const NONE: Self = Self(0);

    /// Whether all of `features` are among these.
    #[inline(always)]
    pub fn has(self, features: Self) -> bool {
        self.0 & features.0 == features.0
    }

    fn pack(self) -> u64 {
        self.0.into()
    }

    fn unpack(word: u64) -> Self {
        Self(word as u8 & Self::SUPPORTED.0)
    }
}

/// Proof that the sender receives at the address that it sends from: a code over that address, and the time at which it
/// was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cookie {
    /// The code; 0 in a first connect.
    pub code: u64,
    /// The server's clock when it made the code, in nanoseconds.
    pub made_ns: u64,
}

/// Packet that asks for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Key by which the server's packets are to name the session.
    pub client_key: SessionKey,
    /// The client's incarnation token for this server.
    pub client_token: u64,
    /// The client's offer.
    pub offer: Offer,
    /// Echo of the server's challenge.
    pub cookie: Cookie,
    /// The client's offer for the server's calls, if it takes any.
    pub reverse_offer: Option<ReverseOffer>,
    /// Features of the client.
    pub features: Features,
}

impl Connect {
    /// The packet for this body.
    pub fn encode(&self) -> Management {
        let [first, second] = self.offer.pack();
        let [back, limits] = ReverseOffer::pack(self.reverse_offer);
        let Cookie { code, made_ns } = self.cookie;
        Management::new(
            Header::management(Kind::Connect, SessionKey::default(), 0),
            &[self.client_key.0, self.client_token, first, second, code, made_ns, back, limits, self.features.pack()],
        )
    }

    /// Reads the body; `None` when it is malformed.
    pub fn read(body: &[u8]) -> Option<Self> {
        let [key, client_token, first, second, code, made_ns, back, limits, features] = words::<CONNECT_WORDS>(body)?;
        Some(Self {
            client_key: SessionKey(key),
            client_token,
            offer: Offer::unpack([first, second])?,
            cookie: Cookie { code, made_ns },
            reverse_offer: ReverseOffer::unpack([back, limits])?,
            features: Features::unpack(features),
        })
    }
}

/// Packet that asks a client to repeat its [`Connect`] with this cookie; the header names the client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The cookie to echo.
    pub cookie: Cookie,
}

impl Challenge {
    /// The packet for this body.
    pub fn encode(&self, client_key: SessionKey) -> Management {
        Management::new(Header::management(Kind::Challenge, client_key, 0), &[self.cookie.code, self.cookie.made_ns])
    }

    /// Reads the body; `None` when it is malformed.
    pub fn read(body: &[u8]) -> Option<Self> {
        words(body).map(|[code, made_ns]| Self { cookie: Cookie { code, made_ns } })
    }
}

/// Packet that grants a session; the header names the client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Key by which the client's packets are to name the session.
    pub server_key: SessionKey,
    /// The server's incarnation token for this client.
    pub server_token: u64,
    /// The client's token that this answers.
    pub client_token: u64,
    /// The limits that hold, which are no more than was offered.
    pub granted: Offer,
    /// The limits that hold for the server's calls: no more than was offered, and present if any were offered.
    pub reverse_offer: Option<ReverseOffer>,
    /// Features of the server.
    pub features: Features,
}

impl Accept {
    /// The packet for this body.
    pub fn encode(&self, client_key: SessionKey) -> Management {
        let [first, second] = self.granted.pack();
        let [back, limits] = ReverseOffer::pack(self.reverse_offer);
        Management::new(
            Header::management(Kind::Accept, client_key, 0),
            &[
                self.server_key.0,
                self.server_token,
                self.client_token,
                first,
                second,
                back,
                limits,
                self.features.pack(),
            ],
        )
    }

    /// Reads the body; `None` when it is malformed.
    pub fn read(body: &[u8]) -> Option<Self> {
        let [key, server_token, client_token, first, second, back, limits, features] = words(body)?;
        Some(Self {
            server_key: SessionKey(key),
            server_token,
            client_token,
            granted: Offer::unpack([first, second])?,
            reverse_offer: ReverseOffer::unpack([back, limits])?,
            features: Features::unpack(features),
        })
    }
}

/// Reason for refusing a session, with the numbers that an error message needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server's receive capacity is committed.
    ReceiveCapacity {
        /// Packets that the server can hold.
        packets: u64,
        /// Packets committed to other sessions.
        committed: u64,
    },
    /// The server has reached its limit of sessions.
    Sessions {
        /// Its limit.
        limit: u64,
    },
    /// The server is shutting down.
    Closing,
    /// The client has reached the limit of sessions for one peer.
    PeerSessions {
        /// The server's limit for one peer.
        limit: u64,
    },
    /// The client has taken its share of the server's receive capacity.
    PeerReceiveCapacity {
        /// The server's limit for one peer, in packets.
        packets: u64,
        /// Packets committed to the client's other sessions.
        committed: u64,
    },
    /// The server speaks another version of the protocol. The packet itself is of the version that the client asked
    /// for.
    Version {
        /// The server's version.
        version: u8,
    },
}

impl Refusal {
    /// The packet for this refusal.
    pub fn encode(&self, client_key: SessionKey) -> Management {
        let (code, words) = match *self {
            Self::ReceiveCapacity { packets, committed } => (1, [packets, committed]),
            Self::Sessions { limit } => (2, [limit, 0]),
            Self::Closing => (3, [0, 0]),
            Self::PeerSessions { limit } => (4, [limit, 0]),
            Self::PeerReceiveCapacity { packets, committed } => (5, [packets, committed]),
            Self::Version { version } => (6, [version.into(), 0]),
        };
        Management::new(Header::management(Kind::Refuse, client_key, code), &words)
    }

    /// Reads the code and body; `None` when they are malformed.
    pub fn read(code: u32, body: &[u8]) -> Option<Self> {
        let [first, second] = words(body)?;
        Some(match code {
            1 => Self::ReceiveCapacity { packets: first, committed: second },
            2 => Self::Sessions { limit: first },
            3 => Self::Closing,
            4 => Self::PeerSessions { limit: first },
            5 => Self::PeerReceiveCapacity { packets: first, committed: second },
            6 => Self::Version { version: u8::try_from(first).ok()? },
            _ => return None,
        })
    }
}

/// A packet that ends a session or reports its end: the header names the receiver's session, the body the sender's.
pub fn session_end(kind: Kind, receiver: SessionKey, sender: SessionKey) -> Management {
    Management::new(Header::management(kind, receiver, 0), &[sender.0])
}

/// Reads the body of [`Kind::Disconnect`], [`Kind::Disconnected`], [`Kind::Reset`] and [`Kind::Confirm`]: the sender's
/// key.
pub fn read_session_end(body: &[u8]) -> Option<SessionKey> {
    words(body).map(|[key]| SessionKey(key))
}

/// Body of a packet that asks a peer for a sign of life, or gives one: both incarnation tokens as the sender knows them
/// (0: none).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// The sender's token for the receiver.
    pub sender_token: u64,
    /// The receiver's token for the sender.
    pub receiver_token: u64,
}

impl Liveness {
    /// The [`Kind::Ping`] or [`Kind::Pong`] with this body.
    pub fn encode(&self, kind: Kind) -> Management {
        Management::new(Header::management(kind, SessionKey::default(), 0), &[self.sender_token, self.receiver_token])
    }

    /// Reads the body; `None` when it is malformed.
    pub fn read(body: &[u8]) -> Option<Self> {
        words(body).map(|[sender_token, receiver_token]| Self { sender_token, receiver_token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer = Offer { credits: 32, slots: 8, data_per_packet: 1448, message_len_max: 8 << 20 };

    fn body(packet: &Management) -> &[u8] {
        &packet.as_bytes()[HEADER_LEN..]
    }

    #[test]
    fn bodies_survive_the_wire() {
        let key = SessionKey::new(5, 77);
        let back = ReverseOffer { key: SessionKey::new(3, 9), credits: 4, slots: 2 };
        for call_back in [None, Some(back)] {
            let cookie = Cookie { code: 3, made_ns: 4 };
            let features = Features::CANCEL;
            let connect =
                Connect { client_key: key, client_token: 9, offer: OFFER, cookie, reverse_offer: call_back, features };
            assert_eq!(Connect::read(body(&connect.encode())), Some(connect));
            let (server_token, client_token) = (1, 2);
            let accept = Accept {
                server_key: key,
                server_token,
                client_token,
                granted: OFFER,
                reverse_offer: call_back,
                features,
            };
            assert_eq!(Accept::read(body(&accept.encode(key))), Some(accept));
        }
        let challenge = Challenge { cookie: Cookie { code: 1, made_ns: 2 } };
        assert_eq!(Challenge::read(body(&challenge.encode(key))), Some(challenge));
        for refusal in [
            Refusal::ReceiveCapacity { packets: 10, committed: 9 },
            Refusal::Sessions { limit: 4 },
            Refusal::Closing,
            Refusal::PeerSessions { limit: 5 },
            Refusal::PeerReceiveCapacity { packets: 6, committed: 3 },
            Refusal::Version { version: 3 },
        ] {
            let packet = refusal.encode(key);
            let header = Header::read(packet.as_bytes()).unwrap();
            assert_eq!((header.kind, header.session), (Kind::Refuse, key));
            assert_eq!(Refusal::read(header.message_len, body(&packet)), Some(refusal));
        }
        let life = Liveness { sender_token: 6, receiver_token: 7 };
        assert_eq!(Liveness::read(body(&life.encode(Kind::Ping))), Some(life));
        assert_eq!(read_session_end(body(&session_end(Kind::Disconnect, key, SessionKey(8)))), Some(SessionKey(8)));
    }

    #[test]
    fn each_grant_of_a_direction_has_a_key_of_its_own_at_the_same_place() {
        let offered = SessionKey::new(3, 9);
        let (first, second) = (SessionKey::new(7, 0xFF_0000_0001), SessionKey::new(7, 0xFF_0000_0002));
        let keys = [offered.in_session(first), offered.in_session(second)];
        assert_eq!(keys.map(SessionKey::index), [3; 2]);
        assert_eq!(keys.map(SessionKey::token), [0xFF_0000_0008, 0xFF_0000_000B]);
    }

    #[test]
    fn features_that_are_not_known_are_ignored() {
        assert_eq!(Features::unpack(u64::MAX), Features::SUPPORTED);
        assert_eq!(Features::unpack(0), Features::NONE);
        assert!(Features::SUPPORTED.has(Features::OPTIONS) && !Features::CANCEL.has(Features::OPTIONS));
    }

    #[test]
    fn no_answer_to_a_stranger_is_longer_than_its_connect() {
        let key = SessionKey::default();
        let answers = [
            Challenge { cookie: Cookie::default() }.encode(key),
            Refusal::Closing.encode(key),
            Accept {
                server_key: key,
                server_token: 0,
                client_token: 0,
                granted: OFFER,
                reverse_offer: None,
                features: Features::SUPPORTED,
            }
            .encode(key),
        ];
        assert!(answers.iter().all(|answer| answer.as_bytes().len() <= CONNECT_LEN));
    }

    #[test]
    fn bodies_of_wrong_length_or_without_credits_are_refused() {
        let good = Connect {
            client_key: SessionKey(1),
            client_token: 9,
            offer: OFFER,
            cookie: Cookie::default(),
            reverse_offer: None,
            features: Features::SUPPORTED,
        };
        let connect = Connect { offer: Offer { credits: 0, ..OFFER }, ..good };
        assert_eq!(Connect::read(body(&connect.encode())), None);
        for (credits, slots) in [(0, 8), (8, 0)] {
            let connect = Connect { reverse_offer: Some(ReverseOffer { key: SessionKey(1), credits, slots }), ..good };
            assert_eq!(Connect::read(body(&connect.encode())), None);
        }
        for len in 0..100 {
            let bytes = vec![0xFF; len];
            let _ = (Connect::read(&bytes), Accept::read(&bytes), Challenge::read(&bytes), Liveness::read(&bytes));
            assert!(len == 8 * CONNECT_WORDS || Connect::read(&bytes).is_none());
        }
    }
}
