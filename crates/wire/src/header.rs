//! The header before every packet's data.
//!
//! ```text
//!  0      1       2          4            8                    16                   24
//!  +------+-------+----------+------------+--------------------+--------------------+
//!  | E2   |copy v | type or  | message    | session key:       | request number 48, |
//!  |      |kind   | residence| length 32  | token 40, index 24 | packet number 16   |
//!  +------+-------+----------+------------+--------------------+--------------------+
//! ```
//!
//! A header has 24 bytes, so that with 8 bytes of a ring's own a packet with 32 bytes of data is one cache line. To
//! fit, requests and answers share a field: a request names its type, and an answer (whose slot knows the type) tells
//! how long the server kept the request ([`crate::residence`]). The second byte is one bit (`copy`) that marks
//! retransmissions and answers to them, two bits of version, and five of kind.

/// Bytes of a header.
pub const HEADER_LEN: usize = 24;
/// First byte of every packet.
pub const MAGIC: u8 = 0xE2;
/// Version of the protocol, in two bits. An addition that does not break older peers is a
/// [feature](crate::management::Features). A breaking change after this version takes another [`MAGIC`].
pub const VERSION: u8 = 3;
/// Bit of the second byte that marks a retransmission, or an answer to one.
const COPY_BIT: u8 = 1 << 7;
/// Bits of the first word that all our packets share.
const MAGIC_AND_VERSION: u64 = MAGIC as u64 | (VERSION as u64) << 13;
const MAGIC_AND_VERSION_MASK: u64 = 0xFF | 3 << 13;
/// All bits of the kind except the lowest two, by which requests (0), responses (1) and requests with options (2)
/// differ.
const CALL_MASK: u64 = 0x1C << 8;
/// Type field of a credit return that stands for its own packet alone, and not for those before it.
pub const CREDIT_ALONE: u16 = 1;
/// The most packets of one message.
pub const PACKETS_MAX: usize = 1 << 16;
/// The largest request number.
pub const REQUEST_NUMBER_MAX: u64 = (1 << 48) - 1;

/// Purpose of a packet. Answers are the kinds that go from server to client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Data of a request.
    Request = 0,
    /// Data of a response.
    Response = 1,
    /// Data of a request that carries [options](crate::options): its message begins with them.
    RequestWithOptions = 2,
    /// The server has taken request packets up to this number, where 65535 stands for none (nsdi19 5.1). Bit `i` of the
    /// length field says that it has also taken the packet `i + 1` after this one, though some in between are missing.
    /// See [`CREDIT_ALONE`].
    CreditReturn = 4,
    /// The client asks for response packets from this number on; the length field gives the number of packets
    /// (nsdi19 5.1).
    RequestForResponse = 5,
    /// The request has arrived whole and its handler is still at work.
    InProgress = 6,
    /// The request will get no response; the length field gives the reason.
    CallError = 7,
    /// Asks for a session.
    Connect = 8,
    /// Asks the client to repeat its connect with a cookie.
    Challenge = 9,
    /// Grants a session.
    Accept = 10,
    /// Refuses a session; the length field gives the reason.
    Refuse = 11,
    /// The client confirms that it knows of an accepted session.
    Confirm = 12,
    /// Ends a session.
    Disconnect = 13,
    /// Confirms the end of a session.
    Disconnected = 14,
    /// The server ends a session of its own accord.
    Reset = 15,
    /// Asks for a sign of life.
    Ping = 16,
    /// Gives a sign of life.
    Pong = 17,
    /// Packets of the session met long queues on their way to the server (the CNP of DCQCN).
    CongestionNotice = 18,
    /// The client no longer waits for the request's response.
    Cancel = 19,
}

impl Kind {
    fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Request,
            1 => Self::Response,
            2 => Self::RequestWithOptions,
            4 => Self::CreditReturn,
            5 => Self::RequestForResponse,
            6 => Self::InProgress,
            7 => Self::CallError,
            8 => Self::Connect,
            9 => Self::Challenge,
            10 => Self::Accept,
            11 => Self::Refuse,
            12 => Self::Confirm,
            13 => Self::Disconnect,
            14 => Self::Disconnected,
            15 => Self::Reset,
            16 => Self::Ping,
            17 => Self::Pong,
            18 => Self::CongestionNotice,
            19 => Self::Cancel,
            _ => return None,
        })
    }
}

/// Name of a session at its receiver: the low 24 bits are an index and the high 40 a random token, so that one
/// comparison with the stored key checks both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SessionKey(pub u64);

impl SessionKey {
    /// Exclusive upper limit of indices.
    pub const INDEX_LIMIT: usize = 1 << 24;

    /// The key of session `index`, with the low 40 bits of `token`.
    pub const fn new(index: usize, token: u64) -> Self {
        debug_assert!(index < Self::INDEX_LIMIT);
        Self(token << 24 | (index & (Self::INDEX_LIMIT - 1)) as u64)
    }

    /// Index of the session.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize & (Self::INDEX_LIMIT - 1)
    }

    /// Token of the session, which only those who were told the key know.
    #[inline]
    pub fn token(self) -> u64 {
        self.0 >> 24
    }

    /// The key that a server's packets bear in the direction that a client offered by this key, within the session that
    /// the server calls `server_key`. A connect can be granted twice, since the server may have ended or forgotten the
    /// first session before the client heard of it. Late packets of the first session must not be taken for the
    /// second's, whose requests have the same numbers.
    #[must_use]
    pub fn in_session(self, server_key: Self) -> Self {
        Self::new(self.index(), self.token() ^ server_key.token())
    }
}

/// Reason why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Fewer than [`HEADER_LEN`] bytes.
    Truncated,
    /// The first byte is not [`MAGIC`].
    WrongMagic,
    /// The packet is of another version of the protocol.
    WrongVersion(u8),
    /// There is no such kind.
    UnknownKind(u8),
}

/// Fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Purpose of the packet.
    pub kind: Kind,
    /// Requests: the request type. Responses: the time for which the server kept the request ([`crate::residence`]).
    /// Credit returns: 0, or [`CREDIT_ALONE`].
    pub type_or_residence: u16,
    /// Length of the whole message in bytes; other kinds use the field as described at [`Kind`].
    pub message_len: u32,
    /// The session at the receiver.
    pub session: SessionKey,
    /// Number of the request on its session, at most [`REQUEST_NUMBER_MAX`]; its low bits name the slot.
    pub request_number: u64,
    /// Number of the packet in its message.
    pub packet_number: u16,
    /// Whether the packet is a client's retransmission, or a server's answer to one. It tells a client whether a packet
    /// was lost or only late, as the time stamps of RFC 3522 do.
    pub is_copy: bool,
}

impl Header {
    /// The header of a management packet, which has no message.
    pub fn management(kind: Kind, session: SessionKey, code: u32) -> Self {
        Self {
            kind,
            type_or_residence: 0,
            message_len: code,
            session,
            request_number: 0,
            packet_number: 0,
            is_copy: false,
        }
    }

    /// Reads the header at the start of `packet`.
    ///
    /// # Errors
    ///
    /// [`HeaderError`].
    #[inline]
    pub fn read(packet: &[u8]) -> Result<Self, HeaderError> {
        let words = Self::words(packet).ok_or(HeaderError::Truncated)?;
        let (first, second) = (words[0], (words[0] >> 8) as u8);
        // Magic and version in one comparison: they need telling apart only when one is wrong.
        if first & MAGIC_AND_VERSION_MASK != MAGIC_AND_VERSION {
            return Err(Self::header_error(first as u8, second));
        }
        let kind = Kind::from_bits(second & 0x1F).ok_or(HeaderError::UnknownKind(second & 0x1F))?;
        Ok(Self::of_words(words, kind))
    }

    /// As [`Self::read`], for the first packets of requests, with options or without, and of responses. Nearly all
    /// packets are of these kinds, and one comparison tells. `None` for any other packet, or for bytes that are not a
    /// packet.
    #[inline(always)]
    pub fn read_first(packet: &[u8]) -> Option<Self> {
        let words = Self::words(packet)?;
        if words[0] & (MAGIC_AND_VERSION_MASK | CALL_MASK) != MAGIC_AND_VERSION || words[2] as u16 != 0 {
            return None;
        }
        let has_kind = |bit: u64| words[0] & bit << 8 != 0;
        let kind = match (has_kind(1), has_kind(2)) {
            (true, _) => Kind::Response,
            (false, false) => Kind::Request,
            (false, true) => Kind::RequestWithOptions,
        };
        Some(Self::of_words(words, kind))
    }

    /// The header's words, in three loads rather than one for each field.
    #[inline(always)]
    fn words(packet: &[u8]) -> Option<[u64; 3]> {
        let bytes = packet.first_chunk::<HEADER_LEN>()?;
        let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("24 bytes"));
        Some([word(0), word(8), word(16)])
    }

    #[inline(always)]
    fn of_words([first, session, numbers]: [u64; 3], kind: Kind) -> Self {
        Self {
            kind,
            type_or_residence: (first >> 16) as u16,
            message_len: (first >> 32) as u32,
            session: SessionKey(session),
            request_number: numbers >> 16,
            packet_number: numbers as u16,
            is_copy: (first >> 8) as u8 & COPY_BIT != 0,
        }
    }

    /// Reads the header of a packet of another version; returns that version and the header. All versions share the
    /// header and the kinds of the packets that open sessions.
    #[cold]
    pub fn read_other_version(packet: &[u8]) -> Option<(u8, Self)> {
        let words = Self::words(packet)?;
        let (magic, second) = (words[0] as u8, (words[0] >> 8) as u8);
        let HeaderError::WrongVersion(version) = Self::header_error(magic, second) else { return None };
        let kind = Kind::from_bits(second & 0x1F)?;
        (version != VERSION).then(|| (version, Self::of_words(words, kind)))
    }

    /// Marks a header that is already written as one of another version.
    pub fn set_version(bytes: &mut [u8; HEADER_LEN], version: u8) {
        bytes[1] = bytes[1] & !(3 << 5) | (version & 3) << 5;
    }

    #[cold]
    fn header_error(magic: u8, second: u8) -> HeaderError {
        if magic == MAGIC { HeaderError::WrongVersion(second >> 5 & 3) } else { HeaderError::WrongMagic }
    }

    /// Bytes of the header, as they go on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        debug_assert!(self.request_number <= REQUEST_NUMBER_MAX);
        let first = u64::from(MAGIC)
            | u64::from(u8::from(self.is_copy) << 7 | VERSION << 5 | self.kind as u8) << 8
            | u64::from(self.type_or_residence) << 16
            | u64::from(self.message_len) << 32;
        let numbers = self.request_number << 16 | u64::from(self.packet_number);
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.session.0.to_le_bytes());
        bytes[16..].copy_from_slice(&numbers.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Header {
        Header {
            kind: Kind::Request,
            type_or_residence: 0xBEEF,
            message_len: 0x0123_4567,
            session: SessionKey::new(0x00AB_CDEF, 0x12_3456_789A),
            request_number: 0xFFFF_0000_1111,
            packet_number: 0x2222,
            is_copy: false,
        }
    }

    #[test]
    fn every_kind_and_field_survives_the_wire() {
        for bits in 0..32 {
            let Some(kind) = Kind::from_bits(bits) else { continue };
            assert_eq!(kind as u8, bits);
            let header = Header { kind, ..example() };
            assert_eq!(Header::read(&header.to_bytes()), Ok(header));
            assert_eq!(Header::read_first(&header.to_bytes()), None);
            let header = Header { packet_number: 0, ..header };
            let is_call = matches!(kind, Kind::Request | Kind::Response | Kind::RequestWithOptions);
            assert_eq!(Header::read_first(&header.to_bytes()), is_call.then_some(header));
            let copy = Header { is_copy: true, ..header };
            assert_eq!(Header::read(&copy.to_bytes()), Ok(copy));
        }
        assert_eq!(example().session.index(), 0x00AB_CDEF);
    }

    #[test]
    fn a_header_of_another_version_is_read_as_such() {
        let header = Header { kind: Kind::Connect, ..example() };
        let mut bytes = header.to_bytes();
        assert_eq!(Header::read_other_version(&bytes), None);
        Header::set_version(&mut bytes, 2);
        assert_eq!(Header::read(&bytes), Err(HeaderError::WrongVersion(2)));
        assert_eq!(Header::read_other_version(&bytes), Some((2, header)));
        assert_eq!(Header::read_other_version(&bytes[..HEADER_LEN - 1]), None);
        bytes[0] = 0;
        assert_eq!(Header::read_other_version(&bytes), None);
    }

    #[test]
    fn the_layout_is_fixed() {
        assert_eq!(
            example().to_bytes(),
            [
                0xE2, 0x60, 0xEF, 0xBE, 0x67, 0x45, 0x23, 0x01, 0xEF, 0xCD, 0xAB, 0x9A, 0x78, 0x56, 0x34, 0x12, 0x22,
                0x22, 0x11, 0x11, 0x00, 0x00, 0xFF, 0xFF
            ]
        );
    }

    #[test]
    fn what_is_no_header_is_refused_by_reason() {
        let good = example().to_bytes();
        for len in 0..HEADER_LEN {
            assert_eq!(Header::read(&good[..len]), Err(HeaderError::Truncated));
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Header::read(&bytes)
        };
        assert_eq!(with(0, 0xE3), Err(HeaderError::WrongMagic));
        assert_eq!(with(1, 0x40), Err(HeaderError::WrongVersion(2)));
        assert_eq!(with(1, 0x80), Err(HeaderError::WrongVersion(0)));
        assert_eq!(with(1, 0x63), Err(HeaderError::UnknownKind(3)));
        assert_eq!(with(1, 0x7F), Err(HeaderError::UnknownKind(31)));
    }
}
