//! The durable state of the service, and the operations on it.
//!
//! [`DurableState`] changes only by [`Op`]s, and is deterministic: the same operations in the same order give the same
//! state. A snapshot is that state as bytes, and the [journal](crate::journal)'s records are its operations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sinew_remote_memory::volume::DonorId;

use crate::protocol::{
    Answer, Caller, Error, IN_FLIGHT_MAX, Ino, Pages, Placement, Request, SECRET_LEN, SegmentCopy, Time,
};
use crate::tree::{Context, Tree};

/// A copy of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The donor that has it: a [`DonorId`].
    pub donor: u64,
    /// The run of the donor that has it.
    pub incarnation: u64,
    /// The slab that holds it.
    pub slab: u64,
    /// Offset of the slab's first byte in the donor's memory.
    pub base: u64,
    /// Whether the copy has all pages.
    pub is_whole: bool,
}

/// A run of pages that several donors have copies of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Number of pages.
    pub pages: u32,
    /// Incremented whenever copies come, go or move.
    pub generation: u32,
    /// Its copies. If there are none, the data is lost.
    pub members: Vec<Member>,
}

impl Segment {
    /// The place of the segment, as clients are told.
    pub fn placement(&self, number: u32) -> Placement {
        let replica = |member: &Member| SegmentCopy {
            donor: DonorId(member.donor),
            incarnation: member.incarnation,
            base: member.base,
            is_whole: member.is_whole,
        };
        let copies = self.members.iter().map(replica).collect();
        Placement { segment: number, generation: self.generation, pages: self.pages, copies }
    }

    /// Whether there is a copy with all pages.
    pub fn has_complete(&self) -> bool {
        self.members.iter().any(|member| member.is_whole)
    }
}

/// A client, until it leaves or is declared dead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    /// Secret that proves a request to be the client's.
    pub secret: [u8; SECRET_LEN],
    /// All requests with lower numbers have been answered.
    pub settled: u64,
    /// Answers to the requests performed since, by number.
    pub answers: BTreeMap<u64, Answer>,
}

/// An operation on the durable state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// A service starts.
    Start {
        /// Epoch of the service, higher than any before.
        epoch: u32,
    },
    /// A client joins.
    Join {
        /// Number of the client: the next one.
        client: u64,
        /// Secret of the client.
        secret: [u8; SECRET_LEN],
    },
    /// A client left or was declared dead.
    Leave {
        /// Number of the client.
        client: u64,
    },
    /// A client's request is performed.
    Change {
        /// Number of the client.
        client: u64,
        /// Sequence number of the request.
        sequence: u64,
        /// The client's [`settled`](crate::protocol::Envelope::settled) at the time of the request.
        settled: u64,
        /// Caller on whose behalf it is performed.
        caller: Caller,
        /// Time of day.
        now: Time,
        /// Inode of the request's handle, if that is open for writing.
        opened: Option<Ino>,
        /// The request.
        request: Request,
    },
    /// An inode without a name is dropped.
    Drop {
        /// Number of the inode.
        ino: Ino,
    },
    /// A segment is added.
    Segment {
        /// Number of the segment: the next one.
        segment: u32,
        /// Pages of the segment.
        pages: u32,
        /// Its copies.
        members: Vec<Member>,
    },
    /// The copies of a segment change.
    Members {
        /// Number of the segment.
        segment: u32,
        /// Its copies from now on.
        members: Vec<Member>,
    },
    /// A segment is removed, of which no file has a page.
    Remove {
        /// Number of the segment.
        segment: u32,
    },
    /// The wanted number of copies of each page changes.
    Copies {
        /// Number of copies.
        copies: u8,
    },
}

/// The whole durable state; see [the module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurableState {
    format: u32,
    /// Volume by which donors know the file system.
    pub volume: u64,
    /// Epoch of the last service.
    pub epoch: u32,
    /// The names and inodes.
    pub tree: Tree,
    /// The clients, by number.
    pub clients: BTreeMap<u64, ClientRecord>,
    /// Highest number that a client ever had.
    pub last_client: u64,
    /// The segments, by number.
    pub segments: BTreeMap<u32, Segment>,
    /// Highest number that a segment ever had.
    pub last_segment: u32,
    /// Copies of each page that the last service wanted; 0 if the state was written by a version that did not record
    /// this.
    pub copies: u8,
}

const FORMAT: u32 = 2;
/// Format without [`DurableState::copies`], which comes last.
const FORMAT_WITHOUT_COPIES: u32 = 1;

impl DurableState {
    /// An empty file system. `volume` should be a random number.
    pub fn new(volume: u64, now: Time) -> Self {
        Self {
            format: FORMAT,
            volume,
            epoch: 0,
            tree: Tree::new(now),
            clients: BTreeMap::new(),
            last_client: 0,
            segments: BTreeMap::new(),
            last_segment: 0,
            copies: 0,
        }
    }

    /// The state as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Reads the state from bytes; `None` if they are not of a known format.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        // The format comes first, since the meaning of the rest may depend on it.
        let (format, _) = postcard::take_from_bytes::<u32>(bytes).ok()?;
        let mut state: Self = match format {
            FORMAT => postcard::from_bytes(bytes).ok()?,
            FORMAT_WITHOUT_COPIES => postcard::from_bytes(&[bytes, &[0]].concat()).ok()?,
            _ => return None,
        };
        state.format = FORMAT;
        state.tree.recount();
        Some(state)
    }

    /// Performs an operation, completely or not at all. Pages that no longer belong to a file are added to `freed`.
    ///
    /// # Errors
    ///
    /// The reason why the operation was not performed.
    pub fn apply(&mut self, op: &Op, freed: &mut Vec<Pages>) -> Result<Answer, Error> {
        match op {
            Op::Start { epoch } => {
                check(*epoch > self.epoch)?;
                self.epoch = *epoch;
            }
            Op::Join { client, secret } => {
                check(*client > self.last_client)?;
                self.last_client = *client;
                self.clients.insert(*client, ClientRecord { secret: *secret, settled: 1, ..ClientRecord::default() });
            }
            Op::Leave { client } => {
                self.clients.remove(client).ok_or(Error::Rejoin)?;
            }
            Op::Change { client, sequence, settled, caller, now, opened, request } => {
                let known = self.clients.get_mut(client).ok_or(Error::Rejoin)?;
                let floor = known.settled.max(*settled);
                let waiting = known.answers.range(floor..).count();
                if *sequence < floor || known.answers.contains_key(sequence) {
                    return Err(Error::AlreadyAnswered);
                }
                if waiting >= IN_FLIGHT_MAX {
                    return Err(Error::TooMany);
                }
                let context = Context { caller, now: *now, opened: *opened };
                let answer = self.tree.change(context, request, freed)?;
                known.settled = floor;
                known.answers = known.answers.split_off(&floor);
                known.answers.insert(*sequence, answer.clone());
                return Ok(answer);
            }
            Op::Drop { ino } => check(self.tree.drop_orphan(*ino, freed))?,
            Op::Segment { segment, pages, members } => {
                check(*segment > self.last_segment)?;
                self.last_segment = *segment;
                self.segments.insert(*segment, Segment { pages: *pages, generation: 1, members: members.clone() });
            }
            Op::Members { segment, members } => {
                let segment = self.segments.get_mut(segment).ok_or(Error::Invalid)?;
                let places = |members: &[Member]| -> Vec<_> {
                    let place = |member: &Member| (member.donor, member.incarnation, member.slab, member.base);
                    members.iter().map(place).collect()
                };
                // A move invalidates what clients write to the old place, so they must write again. A copy's becoming
                // whole does not.
                segment.generation += u32::from(places(members) != places(&segment.members));
                segment.members.clone_from(members);
            }
            Op::Remove { segment } => {
                self.segments.remove(segment).ok_or(Error::Invalid)?;
            }
            Op::Copies { copies } => self.copies = *copies,
        }
        Ok(Answer::Done)
    }

    /// Performs the operation of a record, as it was performed before.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when the bytes are not a record, or the reason why the operation cannot have been performed
    /// in this state.
    pub fn replay(&mut self, record: &[u8]) -> Result<(), Error> {
        let mut op: Op = postcard::from_bytes(record).map_err(|_| Error::Invalid)?;
        if let Op::Change { request: Request::Commit { extents, .. }, .. } = &mut op {
            // The pages were found to replace what they were derived from. Versions name that differently.
            extents.iter_mut().for_each(|extent| extent.replaces = None);
        }
        self.apply(&op, &mut Vec::new()).map(|_| ())
    }
}

impl Op {
    /// The operation as a journal record.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }
}

fn check(makes_sense: bool) -> Result<(), Error> {
    if makes_sense { Ok(()) } else { Err(Error::Invalid) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Kind;

    fn make_directory(client: u64, sequence: u64, settled: u64, name: &str) -> Op {
        let request = Request::MakeDirectory { parent: Ino::ROOT, name: name.into(), mode: 0o755 };
        let (caller, now) = (Caller::default(), Time { s: sequence as i64, ns: 0 });
        Op::Change { client, sequence, settled, caller, now, opened: None, request }
    }

    fn new_state() -> DurableState {
        let mut kept = DurableState::new(7, Time::default());
        for op in [Op::Start { epoch: 1 }, Op::Join { client: 1, secret: [1; 16] }] {
            kept.apply(&op, &mut Vec::new()).unwrap();
        }
        kept
    }

    #[test]
    fn a_request_is_performed_once_and_its_answer_is_kept_until_it_is_settled() {
        let mut kept = new_state();
        let mut apply = |op: Op| kept.apply(&op, &mut Vec::new());
        let answer = apply(make_directory(1, 5, 1, "a")).unwrap();
        assert_eq!(apply(make_directory(1, 5, 1, "b")), Err(Error::AlreadyAnswered));
        assert!(apply(make_directory(1, 3, 1, "c")).is_ok(), "requests come in any order");
        assert!(apply(make_directory(1, 6, 4, "d")).is_ok());
        assert_eq!(apply(make_directory(1, 2, 1, "e")), Err(Error::AlreadyAnswered));
        assert_eq!(apply(make_directory(2, 1, 1, "e")), Err(Error::Rejoin));
        let client = &kept.clients[&1];
        assert_eq!((client.settled, client.answers.len(), &client.answers[&5]), (4, 2, &answer));
        assert_eq!(kept.tree.len(), 4);
    }

    #[test]
    fn a_client_has_so_many_answers_kept_and_no_more() {
        let mut kept = new_state();
        let mut apply = |op: Op| kept.apply(&op, &mut Vec::new());
        for sequence in 1..=IN_FLIGHT_MAX as u64 {
            assert!(apply(make_directory(1, sequence, 1, &sequence.to_string())).is_ok());
        }
        assert_eq!(apply(make_directory(1, 100, 1, "more")), Err(Error::TooMany));
        assert!(apply(make_directory(1, 100, 2, "more")).is_ok());
    }

    #[test]
    fn records_and_snapshots_make_the_same_of_it() {
        let member = |slab| Member { donor: 1, incarnation: 2, slab, base: 3, is_whole: true };
        let ops = [
            make_directory(1, 1, 1, "a"),
            make_directory(1, 2, 1, "b"),
            Op::Segment { segment: 1, pages: 10, members: vec![member(4)] },
            Op::Members { segment: 1, members: vec![member(4), Member { is_whole: false, ..member(5) }] },
            Op::Members { segment: 1, members: vec![member(4), member(5)] },
            Op::Members { segment: 1, members: vec![member(4), Member { base: 9, ..member(5) }] },
            Op::Join { client: 2, secret: [2; 16] },
            Op::Leave { client: 1 },
            Op::Start { epoch: 5 },
            Op::Copies { copies: 3 },
        ];
        let (mut kept, mut again) = (new_state(), new_state());
        for op in &ops {
            kept.apply(op, &mut Vec::new()).unwrap();
            again = DurableState::read(&again.to_bytes()).unwrap();
            again.replay(&op.to_bytes()).unwrap();
            assert_eq!(again, kept);
        }
        assert_eq!(kept.segments[&1].generation, 3, "a copy came, then it was whole, and then elsewhere");
        assert_eq!(kept.tree.lookup(&Caller::default(), Ino::ROOT, b"b").unwrap().kind, Kind::Directory);
    }

    #[test]
    fn what_was_kept_before_copies_were_is_read_and_says_of_none() {
        let mut kept = new_state();
        kept.apply(&Op::Copies { copies: 3 }, &mut Vec::new()).unwrap();
        let mut bytes = kept.to_bytes();
        assert_eq!((bytes[0], bytes.pop()), (FORMAT as u8, Some(3)));
        bytes[0] = FORMAT_WITHOUT_COPIES as u8;
        assert_eq!(DurableState::read(&bytes), Some(DurableState { copies: 0, ..kept }));
    }

    #[test]
    fn what_is_no_record_or_cannot_have_happened_is_refused() {
        let mut kept = new_state();
        let before = kept.clone();
        for op in [
            Op::Start { epoch: 1 },
            Op::Join { client: 1, secret: [1; 16] },
            Op::Leave { client: 9 },
            Op::Drop { ino: Ino(9) },
            Op::Segment { segment: 0, pages: 1, members: vec![] },
            Op::Members { segment: 1, members: vec![] },
            Op::Remove { segment: 1 },
        ] {
            assert!(kept.replay(&op.to_bytes()).is_err(), "{op:?}");
        }
        assert_eq!(kept.replay(&[99]), Err(Error::Invalid));
        assert_eq!(kept, before);
        let mut other = kept.to_bytes();
        other[0] += 1;
        assert!(DurableState::read(&other).is_none() && DurableState::read(&[]).is_none());
    }
}
