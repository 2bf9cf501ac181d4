//! Properties that must hold for any bytes given to a reader. The fuzz targets and the property tests share them.

use sinew_wire::management::{
    Accept, Challenge, Connect, Liveness, Management, Refusal, read_session_end, session_end,
};
use sinew_wire::{HEADER_LEN, Header, HeaderError, Kind, MAGIC, SessionKey, VERSION};

/// Asserts that a header is refused with the right reason, or means exactly the bytes that it was read from.
pub fn header(bytes: &[u8]) {
    match Header::read(bytes) {
        Ok(header) => assert_eq!(header.to_bytes(), bytes[..HEADER_LEN]),
        Err(HeaderError::Truncated) => assert!(bytes.len() < HEADER_LEN),
        Err(HeaderError::WrongMagic) => assert_ne!(bytes[0], MAGIC),
        Err(HeaderError::WrongVersion(version)) => assert!(version == bytes[1] >> 5 & 3 && version != VERSION),
        Err(HeaderError::UnknownKind(kind)) => assert_eq!(kind, bytes[1] & 0x1F),
    }
}

/// Asserts that a management body is malformed, or survives being written and read again.
pub fn management(bytes: &[u8]) {
    let key = SessionKey::new(7, 0x12_3456_789A);
    let body = |packet: Management| packet.as_bytes()[HEADER_LEN..].to_vec();
    if let Some(connect) = Connect::read(bytes) {
        assert_eq!(Connect::read(&body(connect.encode())), Some(connect));
        assert!(connect.offer.credits > 0 && connect.offer.slots > 0 && connect.offer.data_per_packet > 0);
    }
    if let Some(challenge) = Challenge::read(bytes) {
        assert_eq!(Challenge::read(&body(challenge.encode(key))), Some(challenge));
    }
    if let Some(accept) = Accept::read(bytes) {
        assert_eq!(Accept::read(&body(accept.encode(key))), Some(accept));
        assert!(accept.granted.credits > 0 && accept.granted.slots > 0 && accept.granted.data_per_packet > 0);
    }
    for code in 0..8 {
        if let Some(refusal) = Refusal::read(code, bytes) {
            let packet = refusal.encode(key);
            assert_eq!(Header::read(packet.as_bytes()), Ok(Header::management(Kind::Refuse, key, code)));
            // A reason need not use all the words that came with it.
            assert_eq!(Refusal::read(code, &body(packet)), Some(refusal));
        }
    }
    if let Some(sender) = read_session_end(bytes) {
        assert_eq!(body(session_end(Kind::Disconnect, key, sender)), bytes);
    }
    if let Some(life) = Liveness::read(bytes) {
        assert_eq!(body(life.encode(Kind::Ping)), bytes);
    }
}
