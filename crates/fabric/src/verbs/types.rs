//! Names and capabilities: transports, verbs, states, configurations and addresses.

use arrayvec::ArrayVec;

/// Transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection: to one queue pair, in order, each operation acknowledged.
    Rc,
    /// Unreliable connection: to one queue pair, in order, nothing acknowledged or retransmitted.
    Uc,
    /// Unreliable datagram: to any queue pair, one packet for each message.
    Ud,
}

/// Kind of request, without its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Sends a message to a buffer that the receiver posted.
    Send,
    /// Writes the peer's exposed memory.
    Write,
    /// Writes the peer's exposed memory, and completes one of the peer's receives.
    WriteWithImmediate,
    /// Reads the peer's exposed memory.
    Read,
    /// Swaps a word of the peer's memory if it has the expected value.
    CompareSwap,
    /// Adds to a word of the peer's memory.
    FetchAdd,
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    /// Whether the transport can carry the verb (Table 1 of atc16).
    pub fn allows(self, verb: Verb) -> bool {
        match self {
            Self::Rc => true,
            Self::Uc => matches!(verb, Verb::Send | Verb::Write | Verb::WriteWithImmediate),
            Self::Ud => verb == Verb::Send,
        }
    }

    /// Whether a queue pair has one peer.
    pub fn is_connected(self) -> bool {
        self != Self::Ud
    }
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 6] =
        [Self::Send, Self::Write, Self::WriteWithImmediate, Self::Read, Self::CompareSwap, Self::FetchAdd];
}

/// State of a queue pair. Requests may be pushed only in [`QpState::ReadyToSend`], and receives posted from
/// [`QpState::Init`] on. In [`QpState::Error`] both are accepted, and complete as flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// New, or reset.
    Reset,
    /// Has a port, and takes receives.
    Init,
    /// Knows its peer, if it has one, and receives.
    ReadyToReceive,
    /// Sends and receives.
    ReadyToSend,
    /// Something failed; everything that is or will be posted is flushed. [`QpState::Reset`] starts over.
    Error,
}

impl QpState {
    /// Whether a queue pair can go from this state to `next`. It can go to error and to reset from any state.
    pub fn can_become(self, next: Self) -> bool {
        use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset};
        matches!(
            (self, next),
            (_, Error | Reset) | (Reset, Init) | (Init, ReadyToReceive) | (ReadyToReceive, ReadyToSend)
        )
    }
}

/// A queue pair's number: 24 bits, unique at its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpNumber(pub u32);

impl std::fmt::Display for QpNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Access of peers to exposed memory. Its owner can always read and write it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Whether WRITE is allowed.
    pub write: bool,
    /// Whether READ is allowed.
    pub read: bool,
    /// Whether compare-and-swap and fetch-and-add are allowed. They are atomic with respect to each other; with respect
    /// to the owner's own atomics, and to WRITEs, it depends on the device.
    pub atomic: bool,
}

impl Access {
    /// Everything.
    pub const ALL: Self = Self { write: true, read: true, atomic: true };
    /// READ alone.
    pub const READ: Self = Self { write: false, read: true, atomic: false };
    /// WRITE alone.
    pub const WRITE: Self = Self { write: true, read: false, atomic: false };

    /// Whether `verb` may touch the memory.
    pub fn allows(self, verb: Verb) -> bool {
        match verb {
            Verb::Send => false,
            Verb::Write | Verb::WriteWithImmediate => self.write,
            Verb::Read => self.read,
            Verb::CompareSwap | Verb::FetchAdd => self.atomic,
        }
    }
}

/// Capabilities of a device, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Name of the device and of what carries it.
    pub name: String,
    /// The most bytes of a UD message; also the unit into which connected transports cut messages.
    pub mtu: usize,
    /// The most bytes of any other message.
    pub message_len_max: usize,
    /// The most bytes of an inline source.
    pub inline_max: usize,
    /// The most pieces of a source or target; no more than [`super::GATHER_MAX`].
    pub gather_max: usize,
    /// The most requests, and the most receives, that a queue pair can hold.
    pub queue_depth_max: usize,
    /// READs and atomics that a queue pair can have in flight.
    pub reads_max: usize,
    /// Whether the device has compare-and-swap and fetch-and-add.
    pub atomics: bool,
    /// Link rate in bits per second, if the device knows it.
    pub line_rate_bps: Option<u64>,
}

/// Configuration of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Transport of the queue pair.
    pub transport: Transport,
    /// Requests that it holds. Each keeps its place until a completion has been polled that shows that it is over: its
    /// own, or that of a later one.
    pub send_depth: usize,
    /// Receives that it holds, each until its completion has been polled.
    pub receive_depth: usize,
    /// The most bytes of an inline source.
    pub inline_max: usize,
    /// The most pieces of a source or target.
    pub gather_max: usize,
    /// UD: the key that datagrams must carry to be received.
    pub qkey: u32,
    /// RC: times that a request is tried again when the receiver has posted no buffer; 7 means for ever.
    pub rnr_retries: u8,
}

impl QpConfig {
    /// A queue pair of 128 requests and 512 receives, as the field's tools have.
    pub fn new(transport: Transport) -> Self {
        Self {
            transport,
            send_depth: 128,
            receive_depth: 512,
            inline_max: 64,
            gather_max: 1,
            qkey: 0x1111_1111,
            rnr_retries: 7,
        }
    }
}

/// Address by which another queue pair reaches this one. The device's part is opaque: only devices of the same fabric
/// understand it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QpAddress {
    /// Number of the queue pair at its device.
    pub number: QpNumber,
    /// Its transport.
    pub transport: Transport,
    /// Number of the first packet that it will send.
    pub first_packet: u32,
    /// UD: its key.
    pub qkey: u32,
    /// The largest packet of its port, in bytes.
    pub mtu: u32,
    /// Location of its device, in its fabric's own format.
    pub port: ArrayVec<u8, { QpAddress::PORT_MAX }>,
}

impl QpAddress {
    /// The most bytes of the device's part.
    pub const PORT_MAX: usize = 96;
    const FIXED: usize = 18;
    /// The most bytes of an encoded address.
    pub const BYTES_MAX: usize = Self::FIXED + Self::PORT_MAX;

    /// The address as bytes, for a peer.
    pub fn to_bytes(&self) -> ArrayVec<u8, { Self::BYTES_MAX }> {
        let mut bytes = ArrayVec::new();
        bytes.push(1);
        bytes.push(self.transport as u8);
        for word in [self.number.0, self.first_packet, self.qkey, self.mtu] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.port.iter().copied());
        bytes
    }

    /// Reads an address that a peer sent; `None` when it is malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (fixed, port) = bytes.split_first_chunk::<{ Self::FIXED }>()?;
        let (&[version, transport], words) = fixed.split_first_chunk::<2>()?;
        let transport = *Transport::ALL.get(usize::from(transport))?;
        let word = |index: usize| Some(u32::from_le_bytes(*words.get(index * 4..)?.first_chunk()?));
        let number = QpNumber(word(0)?);
        let good = version == 1 && number.0 < 1 << 24;
        let port = ArrayVec::try_from(port).ok()?;
        good.then_some(Self { number, transport, first_packet: word(1)?, qkey: word(2)?, mtu: word(3)?, port })
    }
}

/// Kind of a completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A SEND of ours.
    Send,
    /// A WRITE of ours, with or without immediate.
    Write,
    /// A READ of ours.
    Read,
    /// A compare-and-swap of ours.
    CompareSwap,
    /// A fetch-and-add of ours.
    FetchAdd,
    /// A message arrived in a buffer that we posted.
    Receive,
    /// A WRITE with immediate of the peer's used up a buffer that we posted, without writing to it.
    ReceiveWrite,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_that_of_the_papers() {
        let allowed = |transport: Transport| Verb::ALL.into_iter().filter(move |&verb| transport.allows(verb)).count();
        assert_eq!(Transport::ALL.map(allowed), [6, 3, 1]);
        assert!(!Transport::Uc.allows(Verb::Read) && !Transport::Ud.allows(Verb::Write));
    }

    #[test]
    fn states_follow_one_another() {
        use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset};
        let order = [Reset, Init, ReadyToReceive, ReadyToSend];
        for (at, from) in order.into_iter().enumerate() {
            for (to, state) in order.into_iter().enumerate() {
                assert_eq!(from.can_become(state), to == at + 1 || state == Reset, "{from:?} {state:?}");
            }
            assert!(from.can_become(Error));
        }
        assert!(Error.can_become(Reset) && !Error.can_become(Init));
    }

    #[test]
    fn addresses_survive_the_way_and_bad_ones_do_not() {
        let address = QpAddress {
            number: QpNumber(0x12_3456),
            transport: Transport::Ud,
            first_packet: 7,
            qkey: 8,
            mtu: 4096,
            port: ArrayVec::try_from(&b"somewhere"[..]).unwrap(),
        };
        let bytes = address.to_bytes();
        assert_eq!(QpAddress::from_bytes(&bytes), Some(address));
        for len in 0..QpAddress::FIXED {
            assert_eq!(QpAddress::from_bytes(&bytes[..len]), None);
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            QpAddress::from_bytes(&bytes)
        };
        assert!(with(0, 2).is_none() && with(1, 3).is_none() && with(5, 1).is_none());
        assert!(QpAddress::from_bytes(&[1; QpAddress::BYTES_MAX + 1]).is_none());
    }
}
