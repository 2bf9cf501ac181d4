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
//! A datagram between queue pairs that share one key, as nearly all do, has a header of two words. So a packet of one
//! line of the ring carries 40 bytes of message.
//!
//! ```text
//!  0      1      2        5           8
//!  | kind | magic | to    | from      | key             | immediate       |
//! ```
//!
//! Every packet may be hostile: no field is trusted before it is compared with what is known.

use sinew_fabric::verbs::QpNumber;

/// Bytes of the usual header. With up to 32 bytes of message behind it, a packet is one line of the ring.
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
        if let Some(datagram) = Datagram::read(packet) {
            return Some(datagram);
        }
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

/// The first bytes of a datagram's short header, without and with an immediate: kinds that no [`Kind`] has, and a magic
/// number.
const DATAGRAM: u64 = 0x5310;
const WITH_IMMEDIATE: u64 = 1;
const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;
/// The bits of the first word that are the same in all datagrams to one queue pair.
const TO_MASK: u64 = ((1 << (16 + NUMBER_BITS)) - 1) & !WITH_IMMEDIATE;

/// A datagram whose sender has the key of its receiver, in a short header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub to: QpNumber,
    pub from: QpNumber,
    /// The key of both.
    pub key: u32,
    pub immediate: Option<u32>,
}

impl Datagram {
    /// The header's words; `None` if one of the numbers has more than 24 bits, which none of a queue pair has.
    #[inline(always)]
    pub fn to_words(self) -> Option<[u64; 2]> {
        let Self { to, from, key, immediate } = self;
        let flag = if immediate.is_some() { WITH_IMMEDIATE } else { 0 };
        let first = Self::first_word_to(to) | u64::from(from.0) << (16 + NUMBER_BITS) | flag;
        let second = u64::from(key) | u64::from(immediate.unwrap_or(NO_IMMEDIATE)) << 32;
        ((to.0 | from.0) <= NUMBER_MASK).then_some([first, second])
    }

    /// The first word of a datagram to this queue pair, without its immediate flag and its sender.
    #[inline(always)]
    pub fn first_word_to(to: QpNumber) -> u64 {
        DATAGRAM | u64::from(to.0) << 16
    }

    /// The header in the first words of a packet, if it is one to the queue pair of this first word.
    #[inline(always)]
    pub fn from_words_to(first_word: u64, [first, second]: [u64; 2]) -> Option<Self> {
        let datagram = Self {
            to: QpNumber((first >> 16) as u32 & NUMBER_MASK),
            from: QpNumber((first >> (16 + NUMBER_BITS)) as u32),
            key: second as u32,
            immediate: (first & WITH_IMMEDIATE != 0).then_some((second >> 32) as u32),
        };
        (first & TO_MASK == first_word).then_some(datagram)
    }

    /// The header in the first words of a packet; `None` for any other packet.
    #[inline(always)]
    pub fn from_words(words: [u64; 2]) -> Option<Self> {
        Self::from_words_to(DATAGRAM | words[0] & TO_MASK & !0xFFFF, words)
    }

    /// The header at the start of a packet, in its general form, and what follows it.
    fn read(packet: &[u8]) -> Option<(Header, &[u8])> {
        let (first, rest) = packet.split_first_chunk::<8>()?;
        let (second, rest) = rest.split_first_chunk::<8>()?;
        let Self { to, from, key, immediate } =
            Self::from_words([u64::from_le_bytes(*first), u64::from_le_bytes(*second)])?;
        let header = Header { kind: Kind::Datagram, to, from, key, number: key, immediate, offset: 0, total: 0 };
        Some((header, rest))
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
    fn a_datagram_reads_as_it_was_written_in_both_forms_and_nothing_else_is_one() {
        for immediate in [None, Some(0x0F10_1112)] {
            let datagram = Datagram { to: QpNumber(0x01_0203), from: QpNumber(0xFF_0506), key: 0x0708_090A, immediate };
            let words = datagram.to_words().unwrap();
            assert_eq!(Datagram::from_words(words), Some(datagram));
            let packet = [&words[0].to_le_bytes()[..], &words[1].to_le_bytes(), b"message"].concat();
            let Datagram { to, from, key, .. } = datagram;
            let header = Header { kind: Kind::Datagram, to, from, key, number: key, immediate, offset: 0, total: 0 };
            assert_eq!(Header::read(&packet), Some((header, &b"message"[..])));
            assert!((0..16).all(|len| Header::read(&packet[..len]).is_none()));
            for (offset, byte) in [(0, 0x0F), (0, 0x12), (0, Kind::Datagram as u8), (1, 0), (1, 1)] {
                let mut bad = packet.clone();
                bad[offset] = byte;
                assert!(Header::read(&bad).is_none(), "{offset}: {byte}");
            }
        }
        for kind in Kind::ALL {
            let (bytes, _) = header(kind).to_bytes();
            assert!(Datagram::read(&bytes).is_none(), "{kind:?}");
        }
        let far = Datagram { to: QpNumber(1 << 24), from: QpNumber(1), key: 0, immediate: None };
        assert!(far.to_words().is_none());
    }

    #[test]
    fn the_layout_of_a_datagram_is_fixed() {
        let datagram =
            Datagram { to: QpNumber(0x01_0203), from: QpNumber(0x04_0506), key: 0x0708_090A, immediate: Some(0x0F) };
        let [first, second] = datagram.to_words().unwrap();
        assert_eq!(first.to_le_bytes(), [0x11, b'S', 3, 2, 1, 6, 5, 4]);
        assert_eq!(second.to_le_bytes(), [0x0A, 9, 8, 7, 0x0F, 0, 0, 0]);
        let [first, second] = Datagram { immediate: None, ..datagram }.to_words().unwrap();
        assert_eq!((first as u16, second >> 32), (0x5310, 0));
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
        for (offset, byte) in [(0, 7), (0, 255), (1, 2), (2, 0), (3, 0)] {
            let mut bad = good;
            bad[offset] = byte;
            assert!(Header::read(&bad).is_none(), "{offset}: {byte}");
        }
    }
}
