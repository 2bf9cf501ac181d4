//! The wire format of a donor's requests and responses.
//!
//! A request is a greeting, the proof that its sender has the key, or a [`Call`]. The sender's queue pairs follow a
//! [`Call::Fence`] or a [`Call::Admit`]. Numbers are little-endian.

use sinew_fabric::verbs::{QpAddress, RemoteMemory};
use sinew_rpc::RequestType;
use sinew_rpc::gate::PROOF_LEN;

use super::protocol::{Answer, Call, LentSlab, Refusal, Stored, VolumeSummary};

/// Request type of the calls that control a donor.
pub const CONTROL: RequestType = RequestType::new(48);

/// A request to a donor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for a nonce.
    Greet,
    /// Proves possession of the key, by the nonce.
    Prove([u8; PROOF_LEN]),
    /// A call. The sender's queue pairs follow those that [request access](Call::requests_access).
    Call(Call, Vec<QpAddress>),
}

/// How a volume's memory is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessPath {
    /// By verbs, for a caller that sent queue pairs.
    Verbs {
        /// The donor's queue pairs.
        queue_pairs: Vec<QpAddress>,
        /// The donor's memory.
        memory: RemoteMemory,
    },
    /// By calls of type [`ACCESS`](crate::engine::ACCESS), for a caller that sent no queue pairs.
    Calls {
        /// Token that each such call must carry.
        token: u64,
        /// Bytes of the donor's memory.
        len: u64,
    },
}

/// A donor's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// Nonce with which the caller is to prove that it has the key.
    Nonce([u8; PROOF_LEN]),
    /// The caller is admitted: its calls are answered.
    Welcome,
    /// The caller is not admitted: it must greet, and prove that it has the key, first.
    NotAdmitted,
    /// The call succeeded. If it [requests access](Call::requests_access), the path to the memory is included.
    Answer(Answer, Option<AccessPath>),
    /// The call was refused.
    Refused(Refusal),
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Self {
        Self(vec![kind])
    }

    fn word(mut self, word: u64) -> Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend((bytes.len() as u32).to_le_bytes());
        self.0.extend(bytes);
        self
    }

    fn addresses(self, addresses: &[QpAddress]) -> Self {
        let count = self.word(addresses.len() as u64);
        addresses.iter().fold(count, |writer, address| writer.bytes(&address.to_bytes()))
    }

    fn access_path(self, access_path: Option<&AccessPath>) -> Self {
        match access_path {
            None => self.word(0),
            Some(AccessPath::Verbs { queue_pairs, memory }) => {
                self.word(1).addresses(queue_pairs).bytes(&memory.to_bytes())
            }
            Some(AccessPath::Calls { token, len }) => self.word(2).word(*token).word(*len),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn flag(&mut self) -> Option<bool> {
        match self.word()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn half(&mut self) -> Option<u32> {
        u32::try_from(self.word()?).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk::<4>()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        self.0 = rest;
        Some(bytes)
    }

    fn proof(&mut self) -> Option<[u8; PROOF_LEN]> {
        self.bytes()?.try_into().ok()
    }

    /// Reads a list of items. Each takes at least one byte, so a hostile count cannot make us reserve more items than
    /// bytes were sent.
    fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.word()?).ok().filter(|count| *count <= self.0.len())?;
        (0..count).map(|_| read(self)).collect()
    }

    fn addresses(&mut self) -> Option<Vec<QpAddress>> {
        self.list(|reader| QpAddress::from_bytes(reader.bytes()?))
    }

    /// Reads an optional path to the memory.
    fn access_path(&mut self) -> Option<Option<AccessPath>> {
        match self.word()? {
            0 => Some(None),
            1 => {
                let queue_pairs = self.addresses()?;
                let memory = RemoteMemory::from_bytes(self.bytes()?.try_into().ok()?);
                Some(Some(AccessPath::Verbs { queue_pairs, memory }))
            }
            2 => Some(Some(AccessPath::Calls { token: self.word()?, len: self.word()? })),
            _ => None,
        }
    }

    fn finish<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

impl Request {
    /// The request as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (call, addresses) = match self {
            Self::Greet => return vec![0],
            Self::Prove(proof) => return Writer::new(1).bytes(proof).0,
            Self::Call(call, addresses) => (call, addresses),
        };
        let writer_for = |kind: u8, volume: u64, epoch: u32| Writer::new(kind).word(volume).word(epoch.into());
        match call {
            Call::Inspect { volume } => Writer::new(2).word(*volume).0,
            Call::Claim { volume, epoch } => writer_for(3, *volume, *epoch).0,
            Call::Record { volume, epoch, generation, record } => {
                writer_for(4, *volume, *epoch).word(*generation).bytes(record).0
            }
            Call::Fence { volume, epoch } => writer_for(5, *volume, *epoch).addresses(addresses).0,
            Call::Take { volume, epoch, len } => writer_for(6, *volume, *epoch).word(*len).0,
            Call::Free { volume, epoch, slab } => writer_for(7, *volume, *epoch).word(*slab).0,
            Call::Stat => vec![8],
            Call::Volumes { from } => Writer::new(13).word(*from).0,
            Call::Discard { volume, epoch, session } => writer_for(14, *volume, *epoch).word(*session).0,
            Call::Heartbeat { volume, epoch } => writer_for(11, *volume, *epoch).0,
            Call::Leave { volume, epoch } => writer_for(12, *volume, *epoch).0,
            Call::Admit { volume, epoch, client, lane } => {
                writer_for(9, *volume, *epoch).word(*client).word((*lane).into()).addresses(addresses).0
            }
            Call::Expel { volume, epoch, client } => writer_for(10, *volume, *epoch).word(*client).0,
        }
    }

    /// Parses a request; `None` if it is malformed.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let kind = reader.byte()?;
        let request = match kind {
            0 => Self::Greet,
            1 => Self::Prove(reader.proof()?),
            8 => Self::Call(Call::Stat, Vec::new()),
            2 => Self::Call(Call::Inspect { volume: reader.word()? }, Vec::new()),
            13 => Self::Call(Call::Volumes { from: reader.word()? }, Vec::new()),
            3..=7 | 9..=12 | 14 => {
                let (volume, epoch) = (reader.word()?, reader.half()?);
                let mut addresses = Vec::new();
                let call = match kind {
                    3 => Call::Claim { volume, epoch },
                    4 => Call::Record { volume, epoch, generation: reader.word()?, record: reader.bytes()?.into() },
                    5 => {
                        addresses = reader.addresses()?;
                        Call::Fence { volume, epoch }
                    }
                    6 => Call::Take { volume, epoch, len: reader.word()? },
                    7 => Call::Free { volume, epoch, slab: reader.word()? },
                    9 => {
                        let (client, lane) = (reader.word()?, u8::try_from(reader.word()?).ok()?);
                        addresses = reader.addresses()?;
                        Call::Admit { volume, epoch, client, lane }
                    }
                    11 => Call::Heartbeat { volume, epoch },
                    12 => Call::Leave { volume, epoch },
                    14 => Call::Discard { volume, epoch, session: reader.word()? },
                    _ => Call::Expel { volume, epoch, client: reader.word()? },
                };
                Self::Call(call, addresses)
            }
            _ => return None,
        };
        reader.finish(request)
    }
}

impl Response {
    /// The response as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Nonce(nonce) => Writer::new(0).bytes(nonce).0,
            Self::Welcome => vec![1],
            Self::NotAdmitted => vec![2],
            Self::Refused(refusal) => {
                let (kind, words, text) = match refusal {
                    Refusal::OlderEpoch { held } => (3, [u64::from(*held), 0], ""),
                    Refusal::OlderRecord { held } => (4, [*held, 0], ""),
                    Refusal::Full { asked, free } => (5, [*asked, *free], ""),
                    Refusal::NoSlab { slab } => (6, [*slab, 0], ""),
                    Refusal::Invalid(why) => (7, [0, 0], *why),
                    Refusal::Expelled { client } => (16, [*client, 0], ""),
                    Refusal::OtherFabric => (17, [0, 0], ""),
                    Refusal::WriterStopped => (18, [0, 0], ""),
                    Refusal::NotFenced { epoch } => (20, [u64::from(*epoch), 0], ""),
                    Refusal::Zeroing { asked, zeroing } => (22, [*asked, *zeroing], ""),
                };
                Writer::new(kind).word(words[0]).word(words[1]).bytes(text.as_bytes()).0
            }
            Self::Answer(answer, access_path) => match answer {
                Answer::Inspected { incarnation, promised, stored, beats } => {
                    let writer = Writer::new(8).word(*incarnation).word((*promised).into()).word(*beats);
                    match stored {
                        None => writer.word(0).0,
                        Some(Stored { epoch, generation, record }) => {
                            writer.word(1).word((*epoch).into()).word(*generation).bytes(record).0
                        }
                    }
                }
                Answer::Recorded { incarnation } => Writer::new(9).word(*incarnation).0,
                Answer::Fenced { incarnation, session, slabs } => {
                    let mut writer = Writer::new(10).word(*incarnation).word(*session).word(slabs.len() as u64);
                    for LentSlab { slab, base, len } in slabs {
                        writer = writer.word(*slab).word(*base).word(*len);
                    }
                    writer.access_path(access_path.as_ref()).0
                }
                Answer::Admitted { incarnation, session } => {
                    Writer::new(14).word(*incarnation).word(*session).access_path(access_path.as_ref()).0
                }
                Answer::Expelled { incarnation } => Writer::new(15).word(*incarnation).0,
                Answer::Taken { incarnation, lent: LentSlab { slab, base, len } } => {
                    Writer::new(11).word(*incarnation).word(*slab).word(*base).word(*len).0
                }
                Answer::Freed => vec![12],
                Answer::Left => vec![19],
                Answer::Stat { incarnation, free, zeroing, len, is_withdrawing: wants_back } => {
                    let writer = Writer::new(23).word(*incarnation).word(*free).word(*zeroing);
                    writer.word(*len).word((*wants_back).into()).0
                }
                Answer::Volumes(volumes) => {
                    let mut writer = Writer::new(21).word(volumes.len() as u64);
                    for VolumeSummary { volume, fence, bytes, beats, has_record } in volumes {
                        writer = writer.word(*volume).word((*fence).into()).word(*bytes).word(*beats);
                        writer = writer.word((*has_record).into());
                    }
                    writer.0
                }
            },
        }
    }

    /// Parses a response; `None` if it is malformed.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let lent = |reader: &mut Reader<'_>| {
            Some(LentSlab { slab: reader.word()?, base: reader.word()?, len: reader.word()? })
        };
        let kind = reader.byte()?;
        let response = match kind {
            0 => Self::Nonce(reader.proof()?),
            1 => Self::Welcome,
            2 => Self::NotAdmitted,
            3..=7 | 16..=18 | 20 | 22 => {
                let (first, second, _) = (reader.word()?, reader.word()?, reader.bytes()?);
                Self::Refused(match kind {
                    3 => Refusal::OlderEpoch { held: u32::try_from(first).ok()? },
                    4 => Refusal::OlderRecord { held: first },
                    5 => Refusal::Full { asked: first, free: second },
                    6 => Refusal::NoSlab { slab: first },
                    16 => Refusal::Expelled { client: first },
                    17 => Refusal::OtherFabric,
                    18 => Refusal::WriterStopped,
                    20 => Refusal::NotFenced { epoch: u32::try_from(first).ok()? },
                    22 => Refusal::Zeroing { asked: first, zeroing: second },
                    // The donor's own text is not taken over from the wire.
                    _ => Refusal::Invalid(
                        "the donor says that the call is invalid, or asks for more than any caller may have",
                    ),
                })
            }
            8 => {
                let (incarnation, promised, beats) = (reader.word()?, reader.half()?, reader.word()?);
                let stored = match reader.word()? {
                    0 => None,
                    1 => Some(Stored {
                        epoch: reader.half()?,
                        generation: reader.word()?,
                        record: reader.bytes()?.into(),
                    }),
                    _ => return None,
                };
                Self::Answer(Answer::Inspected { incarnation, promised, stored, beats }, None)
            }
            9 => Self::Answer(Answer::Recorded { incarnation: reader.word()? }, None),
            10 => {
                let (incarnation, session, slabs) = (reader.word()?, reader.word()?, reader.list(lent)?);
                let access_path = reader.access_path()?;
                Self::Answer(Answer::Fenced { incarnation, session, slabs }, access_path)
            }
            11 => Self::Answer(Answer::Taken { incarnation: reader.word()?, lent: lent(&mut reader)? }, None),
            12 => Self::Answer(Answer::Freed, None),
            19 => Self::Answer(Answer::Left, None),
            23 => {
                let (incarnation, free, zeroing) = (reader.word()?, reader.word()?, reader.word()?);
                let (len, is_withdrawing) = (reader.word()?, reader.flag()?);
                Self::Answer(Answer::Stat { incarnation, free, zeroing, len, is_withdrawing }, None)
            }
            14 => {
                let (incarnation, session) = (reader.word()?, reader.word()?);
                Self::Answer(Answer::Admitted { incarnation, session }, reader.access_path()?)
            }
            21 => {
                let summary = |reader: &mut Reader<'_>| {
                    let (volume, fence, bytes) = (reader.word()?, reader.half()?, reader.word()?);
                    Some(VolumeSummary { volume, fence, bytes, beats: reader.word()?, has_record: reader.flag()? })
                };
                Self::Answer(Answer::Volumes(reader.list(summary)?), None)
            }
            15 => Self::Answer(Answer::Expelled { incarnation: reader.word()? }, None),
            _ => return None,
        };
        reader.finish(response)
    }
}

#[cfg(test)]
mod tests {
    use sinew_fabric::verbs::{QpNumber, Transport};

    use super::*;

    fn address() -> QpAddress {
        let port = [1, 2, 3].into_iter().collect();
        QpAddress { number: QpNumber(5), transport: Transport::Rc, first_packet: 6, qkey: 7, mtu: 4096, port }
    }

    #[test]
    fn requests_come_back_as_they_were_and_parts_of_them_do_not() {
        let calls = [
            Call::Inspect { volume: 1 },
            Call::Claim { volume: 1, epoch: 2 },
            Call::Record { volume: 1, epoch: 2, generation: 3, record: vec![4, 5].into() },
            Call::Fence { volume: 1, epoch: 2 },
            Call::Take { volume: 1, epoch: 2, len: 3 },
            Call::Free { volume: 1, epoch: 2, slab: 3 },
            Call::Admit { volume: 1, epoch: 2, client: 3, lane: 4 },
            Call::Expel { volume: 1, epoch: 2, client: 3 },
            Call::Heartbeat { volume: 1, epoch: 2 },
            Call::Leave { volume: 1, epoch: 2 },
            Call::Stat,
            Call::Volumes { from: u64::MAX },
            Call::Discard { volume: 1, epoch: 2, session: 3 },
        ];
        let call = |call: Call| {
            let addresses = if call.requests_access() { vec![address(), address()] } else { Vec::new() };
            Request::Call(call, addresses)
        };
        let requests = calls.into_iter().map(call).chain([Request::Greet, Request::Prove([9; PROOF_LEN])]);
        for request in requests {
            let bytes = request.to_bytes();
            assert_eq!(Request::read(&bytes).as_ref(), Some(&request));
            for len in 0..bytes.len() {
                assert_eq!(Request::read(&bytes[..len]), None, "{request:?}, {len} bytes");
            }
            assert_eq!(Request::read(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn responses_come_back_as_they_were_and_parts_of_them_do_not() {
        let lent = LentSlab { slab: 1, base: 2, len: 3 };
        let stored = Stored { epoch: 1, generation: 2, record: vec![3].into() };
        let summary = |volume, has_record| VolumeSummary { volume, fence: 3, bytes: 4, beats: 5, has_record };
        let access_path =
            AccessPath::Verbs { queue_pairs: vec![address()], memory: RemoteMemory { address: 1, rkey: 2, len: 3 } };
        let answers = [
            (Answer::Inspected { incarnation: 1, promised: 2, stored: None, beats: 3 }, None),
            (Answer::Inspected { incarnation: 1, promised: 2, stored: Some(stored), beats: 0 }, None),
            (Answer::Recorded { incarnation: 1 }, None),
            (Answer::Fenced { incarnation: 1, session: 2, slabs: vec![lent, lent] }, Some(access_path.clone())),
            (Answer::Admitted { incarnation: 1, session: 2 }, Some(access_path)),
            (Answer::Admitted { incarnation: 1, session: 2 }, Some(AccessPath::Calls { token: 3, len: 4 })),
            (Answer::Admitted { incarnation: 1, session: 2 }, None),
            (Answer::Expelled { incarnation: 1 }, None),
            (Answer::Fenced { incarnation: 1, session: 2, slabs: Vec::new() }, None),
            (Answer::Taken { incarnation: 1, lent }, None),
            (Answer::Freed, None),
            (Answer::Left, None),
            (Answer::Stat { incarnation: 1, free: 2, zeroing: 4, len: 3, is_withdrawing: false }, None),
            (Answer::Stat { incarnation: 1, free: 0, zeroing: 0, len: 3, is_withdrawing: true }, None),
            (Answer::Volumes(Vec::new()), None),
            (Answer::Volumes(vec![summary(1, true), summary(2, false)]), None),
        ];
        let refusals = [
            Refusal::OlderEpoch { held: 1 },
            Refusal::OlderRecord { held: 2 },
            Refusal::Full { asked: 1, free: 2 },
            Refusal::NoSlab { slab: 1 },
            Refusal::Expelled { client: 1 },
            Refusal::OtherFabric,
            Refusal::WriterStopped,
            Refusal::NotFenced { epoch: 1 },
            Refusal::Zeroing { asked: 1, zeroing: 2 },
        ];
        let responses = answers
            .into_iter()
            .map(|(answer, access_path)| Response::Answer(answer, access_path))
            .chain(refusals.map(Response::Refused))
            .chain([Response::Welcome, Response::NotAdmitted, Response::Nonce([1; PROOF_LEN])]);
        for response in responses {
            let bytes = response.to_bytes();
            assert_eq!(Response::read(&bytes).as_ref(), Some(&response));
            for len in 0..bytes.len() {
                assert_eq!(Response::read(&bytes[..len]), None, "{response:?}, {len} bytes");
            }
        }
    }

    #[test]
    fn counts_that_nobody_sent_the_items_of_are_no_reason_to_make_room() {
        let bytes = Writer::new(5).word(1).word(1).word(u64::MAX).0;
        assert_eq!(Request::read(&bytes), None);
    }
}
