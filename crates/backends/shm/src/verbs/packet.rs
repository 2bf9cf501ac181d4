//! Format of the packets of verbs: a header, and the bytes of a message or a part of one.
//!
//! ```text
//!  0      1      2             4                    8
//!  | kind | flags | magic      | to                 |
//!  | from                      | key                |      key: of the receiving queue pair
//!  | number, or sender's key   | immediate          |
//!  | offset                    | total              |      Part and Written only
//! ```
//!
//! Every packet may be hostile: no field is trusted before it is compared with what is known.

use sinew_fabric::verbs::QpNumber;

/// Bytes of the short header. With up to 32 bytes of message behind it, a packet is one line of the ring.
pub(crate) const SHORT_LEN: usize = 24;
/// Bytes of the long header.
pub(crate) const LONG_LEN: usize = 32;

const MAGIC: u16 = u16::from_le_bytes(*b"sV");
const HAS_IMMEDIATE: u8 = 1;
const NO_IMMEDIATE: u32 = 0;

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// UD: a message.
    Datagram,
    /// A message of a connected queue pair.
    Whole,
    /// A part of a message of a connected queue pair.
    Part,
    /// The data of a WRITE with immediate has been written.
    Written,
    /// RC: all messages before `number` have arrived.
    Ack,
    /// RC: all messages before `number` have arrived, and that one did not fit.
    Misfit,
    /// The sender is no longer connected.
    Gone,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Datagram, Self::Whole, Self::Part, Self::Written, Self::Ack, Self::Misfit, Self::Gone];
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub to: QpNumber,
    pub from: QpNumber,
    pub key: u32,
    /// Number of the message within its connection; in a datagram, the sender's own key.
    pub number: u32,
    pub immediate: Option<u32>,
    /// Offset of the part in its message.
    pub offset: u32,
    /// Bytes of the whole message, or bytes written.
    pub total: u32,
}

impl Header {
    #[inline(always)]
    fn is_long(kind: Kind) -> bool {
        matches!(kind, Kind::Part | Kind::Written)
    }

    /// The header's bytes, and their number.
    #[inline(always)]
    pub fn to_bytes(self) -> ([u8; LONG_LEN], usize) {
        let flags = if self.immediate.is_some() { HAS_IMMEDIATE } else { 0 };
        let first = u32::from(self.kind as u8) | u32::from(flags) << 8 | u32::from(MAGIC) << 16;
        // These are whole words, as the ring's producer loads words next: a load that spans two stores waits for both.
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [
            pair(first, self.to.0),
            pair(self.from.0, self.key),
            pair(self.number, self.immediate.unwrap_or(NO_IMMEDIATE)),
            pair(self.offset, self.total),
        ];
        let mut bytes = [0; LONG_LEN];
        for (word, bytes) in words.into_iter().zip(bytes.as_chunks_mut::<8>().0) {
            *bytes = word.to_le_bytes();
        }
        (bytes, if Self::is_long(self.kind) { LONG_LEN } else { SHORT_LEN })
    }

    /// The header at the start of a packet, and what follows it.
    #[inline(always)]
    pub fn read(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (short, rest) = packet.split_first_chunk::<SHORT_LEN>()?;
        let word = |at: usize| u32::from_le_bytes([short[at], short[at + 1], short[at + 2], short[at + 3]]);
        let kind = *Kind::ALL.get(usize::from(short[0]))?;
        let (offset, total, rest) = if Self::is_long(kind) {
            let (long, rest) = rest.split_first_chunk::<{ LONG_LEN - SHORT_LEN }>()?;
            let word = |at: usize| u32::from_le_bytes([long[at], long[at + 1], long[at + 2], long[at + 3]]);
            (word(0), word(4), rest)
        } else {
            (0, 0, rest)
        };
        let good = u16::from_le_bytes([short[2], short[3]]) == MAGIC && short[1] <= HAS_IMMEDIATE;
        let header = Self {
            kind,
            to: QpNumber(word(4)),
            from: QpNumber(word(8)),
            key: word(12),
            number: word(16),
            immediate: (short[1] == HAS_IMMEDIATE).then_some(word(20)),
            offset,
            total,
        };
        good.then_some((header, rest))
    }
}

/// The header of a datagram, of which a busy receiver reads millions a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub to: QpNumber,
    pub from: QpNumber,
    pub key: u32,
    /// The sender's own key.
    pub from_key: u32,
    pub immediate: Option<u32>,
}

impl Datagram {
    /// The header at the start of a datagram, and what follows it; `None` for any other packet.
    #[inline(always)]
    pub fn read(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = packet.split_first_chunk::<SHORT_LEN>()?;
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (first, immediate) = (word(0), word(20));
        let plain = Kind::Datagram as u32 | (MAGIC as u32) << 16;
        let has_immediate = first == plain | (HAS_IMMEDIATE as u32) << 8;
        let datagram = Self {
            to: QpNumber(word(4)),
            from: QpNumber(word(8)),
            key: word(12),
            from_key: word(16),
            immediate: has_immediate.then_some(immediate),
        };
        (first == plain || has_immediate).then_some((datagram, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: Kind) -> Header {
        let long = Header::is_long(kind);
        Header {
            kind,
            to: QpNumber(0x01_0203),
            from: QpNumber(0x04_0506),
            key: 0x0708_090A,
            number: 0x0B0C_0D0E,
            immediate: Some(0x0F10_1112),
            offset: if long { 0x1314_1516 } else { 0 },
            total: if long { 0x1718_191A } else { 0 },
        }
    }

    #[test]
    fn headers_read_as_they_were_written_with_the_message_behind_them() {
        for kind in Kind::ALL {
            for header in [header(kind), Header { immediate: None, ..header(kind) }] {
                let (bytes, len) = header.to_bytes();
                let packet = [&bytes[..len], b"message"].concat();
                assert_eq!(Header::read(&packet), Some((header, &b"message"[..])));
                assert!((0..len).all(|len| Header::read(&packet[..len]).is_none()), "{kind:?}");
            }
        }
    }

    #[test]
    fn a_datagram_reads_as_its_header_does_and_nothing_else_is_one() {
        for kind in Kind::ALL {
            for header in [header(kind), Header { immediate: None, ..header(kind) }] {
                let (bytes, len) = header.to_bytes();
                let packet = [&bytes[..len], b"message"].concat();
                let Header { to, from, key, number: from_key, immediate, .. } = header;
                let datagram = Datagram { to, from, key, from_key, immediate };
                let expected = (kind == Kind::Datagram).then_some((datagram, &b"message"[..]));
                assert_eq!(Datagram::read(&packet), expected, "{kind:?}");
                assert!((0..SHORT_LEN).all(|len| Datagram::read(&packet[..len]).is_none()));
                for (at, byte) in [(1, 2), (2, 0), (3, 0)] {
                    let mut bad = packet.clone();
                    bad[at] = byte;
                    assert!(Datagram::read(&bad).is_none() && Header::read(&bad).is_none(), "{at}");
                }
            }
        }
    }

    #[test]
    fn the_layout_is_fixed() {
        let (bytes, len) = header(Kind::Part).to_bytes();
        let expected = [
            2, 1, b's', b'V', 3, 2, 1, 0, 6, 5, 4, 0, 0x0A, 9, 8, 7, 0x0E, 0x0D, 0x0C, 0x0B, 0x12, 0x11, 0x10, 0x0F,
            0x16, 0x15, 0x14, 0x13, 0x1A, 0x19, 0x18, 0x17,
        ];
        assert_eq!((bytes, len), (expected, LONG_LEN));
    }

    #[test]
    fn unknown_kinds_flags_and_other_magic_are_refused() {
        let (good, _) = header(Kind::Whole).to_bytes();
        for (at, byte) in [(0, 7), (0, 255), (1, 2), (2, 0), (3, 0)] {
            let mut bad = good;
            bad[at] = byte;
            assert!(Header::read(&bad).is_none(), "{at}: {byte}");
        }
    }
}
