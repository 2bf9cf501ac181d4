//! Headers of packets between modelled NICs, and the lengths of the real packets that they stand for.
//!
//! The header is the model's own, and has the fields of InfiniBand's base and extended transport headers. On a link it
//! counts for as many bytes as a real packet of its kind needs.

use super::profile::Framing;

/// Kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    /// Part of the answer to a READ.
    ReadAnswer,
    /// The answer to an atomic.
    AtomicAnswer,
    /// Acknowledges all packets up to this one.
    Ack,
    /// This packet is the next expected one: a later packet came instead.
    NakSequence,
    /// The receiver has no buffer for this packet: retry later.
    NakNotReady,
    /// The access is not allowed.
    NakAccess,
    /// The request is invalid, or its message is too long.
    NakRequest,
}

const OPCODES: [Opcode; 12] = [
    Opcode::Send,
    Opcode::Write,
    Opcode::Read,
    Opcode::CompareSwap,
    Opcode::FetchAdd,
    Opcode::ReadAnswer,
    Opcode::AtomicAnswer,
    Opcode::Ack,
    Opcode::NakSequence,
    Opcode::NakNotReady,
    Opcode::NakAccess,
    Opcode::NakRequest,
];

impl Opcode {
    /// Whether it goes back to the requester.
    pub fn is_reply(self) -> bool {
        self as u8 >= Self::ReadAnswer as u8
    }
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub opcode: Opcode,
    /// Whether the message begins with this packet.
    pub is_first: bool,
    /// Whether the message ends with this packet.
    pub is_last: bool,
    pub is_solicited: bool,
    pub immediate: Option<u32>,
    /// Number of the queue pair that it is for.
    pub to: u32,
    /// The receiver's epoch, which tells its connections apart.
    pub epoch: u32,
    pub from: u32,
    /// The packet's number; in a reply, that of the request's packet.
    pub psn: u32,
    /// The key of the memory; for a datagram, that of the receiver.
    pub key: u32,
    /// The address in memory; in an atomic's answer, the word that was there.
    pub address: u64,
    /// For a READ, its length; in its answer, this part's offset; for an atomic, its first operand.
    pub operand: u64,
    /// The second operand of a compare-and-swap.
    pub swap: u64,
}

/// Bytes of the model's header.
pub(crate) const HEADER: usize = 56;

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.opcode as u8;
        bytes[1] = u8::from(self.is_first)
            | u8::from(self.is_last) << 1
            | u8::from(self.is_solicited) << 2
            | u8::from(self.immediate.is_some()) << 3;
        let words = [self.immediate.unwrap_or(0), self.to, self.epoch, self.from, self.psn, self.key];
        for (place, word) in bytes[4..28].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (place, word) in bytes[32..].chunks_exact_mut(8).zip([self.address, self.operand, self.swap]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The header of a packet; none if the packet is not from a modelled NIC.
    // When it is inlined, only the used fields are read.
    #[inline(always)]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("within the header"));
        let long = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("within the header"));
        let flag = |bit: u8| bytes[1] >> bit & 1 == 1;
        Some(Self {
            opcode: *OPCODES.get(usize::from(bytes[0]))?,
            is_first: flag(0),
            is_last: flag(1),
            is_solicited: flag(2),
            immediate: flag(3).then(|| word(4)),
            to: word(8),
            epoch: word(12),
            from: word(16),
            psn: word(20),
            key: word(24),
            address: long(32),
            operand: long(40),
            swap: long(48),
        })
    }
}

/// Bytes of a packet on a link, with all headers (InfiniBand specification, volume 1, chapters 7 to 9 and annexes A16,
/// A17).
pub(crate) fn wire_len(framing: Framing, header: &Header, payload: usize, is_datagram: bool) -> usize {
    // The base transport header and the invariant checksum are in all framings.
    let around = match framing {
        // Local route header, variant checksum.
        Framing::InfiniBand => 8 + 2,
        // Ethernet, global route header; checksum, preamble and gap.
        Framing::RoceV1 => 14 + 40 + 4 + 20,
        // Ethernet, IPv4, UDP; checksum, preamble and gap.
        Framing::RoceV2 => 14 + 20 + 8 + 4 + 20,
    };
    let extended = match header.opcode {
        Opcode::Send => 0,
        Opcode::Write => 16 * usize::from(header.is_first),
        Opcode::Read => 16,
        Opcode::CompareSwap | Opcode::FetchAdd => 28,
        Opcode::AtomicAnswer => 4 + 8,
        Opcode::ReadAnswer
        | Opcode::Ack
        | Opcode::NakSequence
        | Opcode::NakNotReady
        | Opcode::NakAccess
        | Opcode::NakRequest => 4,
    };
    let datagram = if is_datagram { 8 } else { 0 };
    let immediate = if header.immediate.is_some() { 4 } else { 0 };
    // The payload is padded to a multiple of 4.
    around + 12 + 4 + extended + datagram + immediate + payload.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(opcode: Opcode) -> Header {
        Header {
            opcode,
            is_first: true,
            is_last: false,
            is_solicited: true,
            immediate: Some(0),
            to: 1,
            epoch: 2,
            from: 3,
            psn: u32::MAX,
            key: 5,
            address: u64::MAX,
            operand: 7,
            swap: 8,
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for opcode in OPCODES {
            let header = header(opcode);
            assert_eq!(Header::read(&header.to_bytes()), Some(header));
            let other = Header { immediate: None, is_first: false, ..header };
            assert_eq!(Header::read(&other.to_bytes()), Some(other));
        }
        assert_eq!(Header::read(&[0; HEADER - 1]), None);
        assert_eq!(Header::read(&[12; HEADER]), None);
    }

    #[test]
    fn packets_are_as_long_as_real_ones() {
        let len =
            |opcode, payload, framing| wire_len(framing, &Header { immediate: None, ..header(opcode) }, payload, false);
        // An RC SEND, a WRITE and a READ's answer on InfiniBand: 26 bytes around the payload, and their extended
        // headers.
        assert_eq!(len(Opcode::Send, 32, Framing::InfiniBand), 58);
        assert_eq!(len(Opcode::Write, 32, Framing::InfiniBand), 74);
        assert_eq!(len(Opcode::ReadAnswer, 30, Framing::InfiniBand), 62);
        assert_eq!(len(Opcode::Ack, 0, Framing::RoceV2), 86);
    }
}
