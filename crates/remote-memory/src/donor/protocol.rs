//! Calls to a donor, and its answers.

use std::sync::Arc;

/// A call to a donor; reads and writes of its memory go another way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Asks what the donor knows of a volume. Changes nothing.
    Inspect {
        /// The volume.
        volume: u64,
    },
    /// Asks for the donor's vote. From then on it accepts no record of an earlier writer.
    Claim {
        /// The volume.
        volume: u64,
        /// Epoch of the writer, higher than any that the donor has voted for.
        epoch: u32,
    },
    /// Stores a volume's record.
    Record {
        /// The volume.
        volume: u64,
        /// Epoch of the writer.
        epoch: u32,
        /// Generation of the record; it grows with each record of the same writer.
        generation: u64,
        /// The record, which the donor does not interpret.
        record: Arc<[u8]>,
    },
    /// Takes access to the volume's slabs away from everyone who had it, and gives it to the caller. Once it is
    /// answered, nothing that was sent before changes a slab any more. Clients [admitted](Self::Admit) under the same
    /// epoch keep their access: a writer that fences again has lost its own access, but not its clients.
    ///
    /// If someone was stopped in the middle of a write to a slab, the slab is moved, but only by the first fence of an
    /// epoch, since the writer and its clients rely on the places that they learned as the epoch began. Later fences
    /// are refused as [stopped](Refusal::WriterStopped).
    Fence {
        /// The volume.
        volume: u64,
        /// Epoch of the writer.
        epoch: u32,
    },
    /// Gives the caller access to the volume's slabs, beside the writer that fenced it, until the client is
    /// [expelled](Self::Expel) or a later epoch fences the volume. Asking again with the same number and lane replaces
    /// the old access by a new one.
    Admit {
        /// The volume.
        volume: u64,
        /// Epoch of the writer.
        epoch: u32,
        /// Number of the client. The writer gave it out, and gives it to nobody else in this epoch; later clients have
        /// higher numbers.
        client: u64,
        /// Lane of the client, below [`LANES_MAX`](super::LANES_MAX): one for each thread that reads and writes.
        lane: u8,
    },
    /// Takes access away from a client. Once it is answered, nothing that the client sent before changes a slab any
    /// more, and its number is not admitted again in this epoch, even if it had never been admitted.
    Expel {
        /// The volume.
        volume: u64,
        /// Epoch of the writer.
        epoch: u32,
        /// Number of the client.
        client: u64,
    },
    /// Heartbeat of the writer. Answered as [`Self::Stat`] is, unless the donor has voted for a later writer.
    Heartbeat {
        /// The volume.
        volume: u64,
        /// Epoch of the writer.
        epoch: u32,
    },
    /// Ends the writer's work, so that the next one need not wait for it.
    Leave {
        /// The volume.
        volume: u64,
        /// Epoch of the writer.
        epoch: u32,
    },
    /// Takes a slab for a volume, all zeros. What was given back is lent again once it is zeroed, which the donor does
    /// between other calls; until then the call may be refused as [zeroing](Refusal::Zeroing).
    Take {
        /// The volume.
        volume: u64,
        /// Epoch of the writer.
        epoch: u32,
        /// Bytes of the slab.
        len: u64,
    },
    /// Gives a slab back.
    Free {
        /// The volume.
        volume: u64,
        /// Epoch of the writer.
        epoch: u32,
        /// Number of the slab.
        slab: u64,
    },
    /// Asks how much memory there is.
    Stat,
    /// Asks for the volumes that the donor knows, in the order of their numbers. Changes nothing.
    Volumes {
        /// Lowest number that is asked for.
        from: u64,
    },
    /// Gives back all slabs of a volume of which the donor has no record, and takes access away from everyone, the
    /// caller included. Such slabs were taken by a service that keeps its records elsewhere, or by a writer that never
    /// recorded them.
    Discard {
        /// The volume.
        volume: u64,
        /// Epoch that fenced the volume last.
        epoch: u32,
        /// Session of that [fence](Answer::Fenced): one that came later, by another caller, is not cut off.
        session: u64,
    },
}

impl Call {
    /// Whether the answer carries access to the memory, for which the caller sends its queue pairs.
    pub fn requests_access(&self) -> bool {
        matches!(self, Self::Fence { .. } | Self::Admit { .. })
    }
}

/// Facts about a volume that a donor knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSummary {
    /// The volume.
    pub volume: u64,
    /// Epoch that fenced it here last; 0 if none has.
    pub fence: u32,
    /// Bytes lent to it.
    pub bytes: u64,
    /// Heartbeats of the writer that fenced it last, as in [`Answer::Inspected`].
    pub beats: u64,
    /// Whether the donor keeps a record of it.
    pub has_record: bool,
}

/// A slab lent to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentSlab {
    /// Number of the slab, unique within this run of the donor and never used again.
    pub slab: u64,
    /// First byte of it in the donor's memory.
    pub base: u64,
    /// Bytes.
    pub len: u64,
}

/// A record that a donor keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Epoch of the writer that stored it.
    pub epoch: u32,
    /// Its place among that writer's records.
    pub generation: u64,
    /// The record.
    pub record: Arc<[u8]>,
}

/// A donor's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Answer to [`Call::Inspect`] and [`Call::Claim`].
    Inspected {
        /// Number of this run of the donor; what an earlier run knew is lost.
        incarnation: u64,
        /// Highest epoch that the donor has voted for; 0 if there is none. To [`Call::Inspect`] it is the epoch that
        /// fenced the volume here, if that is higher.
        promised: u32,
        /// The volume's record, if there is one.
        stored: Option<Stored>,
        /// Heartbeats of the writer that fenced the volume here last; the number grows for as long as it lives. 0 if
        /// there has been no writer, or if it has [left](Call::Leave).
        beats: u64,
    },
    /// The record is stored.
    Recorded {
        /// As in [`Answer::Inspected`].
        incarnation: u64,
    },
    /// Nobody who had access before has it any more, except for the clients of the same epoch.
    Fenced {
        /// As in [`Answer::Inspected`].
        incarnation: u64,
        /// Session of this fence. Those of earlier fences, of the same writer too, no longer give access.
        session: u64,
        /// The slabs that the volume has here.
        slabs: Vec<LentSlab>,
    },
    /// The client has access.
    Admitted {
        /// As in [`Answer::Inspected`].
        incarnation: u64,
        /// Session of the client's lane.
        session: u64,
    },
    /// The client has no access, and gets none again.
    Expelled {
        /// As in [`Answer::Inspected`].
        incarnation: u64,
    },
    /// The slab was lent.
    Taken {
        /// As in [`Answer::Inspected`].
        incarnation: u64,
        /// The slab.
        lent: LentSlab,
    },
    /// The slab is free again, or all of a volume's slabs are.
    Freed,
    /// The writer has left.
    Left,
    /// Memory of the donor, in bytes. Also the answer to [`Call::Heartbeat`].
    Stat {
        /// As in [`Answer::Inspected`].
        incarnation: u64,
        /// Bytes that can be lent now.
        free: u64,
        /// Bytes that can be lent once they are zeroed: they were given back.
        zeroing: u64,
        /// All bytes of the donor.
        len: u64,
        /// The donor wants its memory back: volumes move their data elsewhere.
        is_withdrawing: bool,
    },
    /// Volumes that the donor knows, from the number asked for on, in the order of their numbers. If there are as many
    /// as [`VOLUMES_PER_ANSWER`](super::VOLUMES_PER_ANSWER), there may be more.
    Volumes(Vec<VolumeSummary>),
}

/// Reason why a donor refuses a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A later writer has taken the volume over.
    #[error("a writer of epoch {held} has taken the volume over")]
    OlderEpoch {
        /// Epoch of that writer.
        held: u32,
    },
    /// No writer with this epoch has fenced the volume at this donor: it has been restarted since, or has never been
    /// fenced by that writer.
    #[error(
        "no writer with epoch {epoch} has fenced the volume there: the donor was restarted since, or that writer never \
         reached it"
    )]
    NotFenced {
        /// Epoch of the caller.
        epoch: u32,
    },
    /// The donor holds a later record of the same writer.
    #[error("it already holds generation {held} of the record, which is later")]
    OlderRecord {
        /// Generation of the record that it holds.
        held: u64,
    },
    /// There is no room for a slab.
    #[error("it has no room for a slab of {asked} bytes: {free} bytes are free")]
    Full {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that can be lent.
        free: u64,
    },
    /// There is no room for a slab until the donor has zeroed what was given back.
    #[error(
        "it has no room for a slab of {asked} bytes until it has zeroed {zeroing} bytes that were given back: ask again"
    )]
    Zeroing {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that were given back and are not zeroed yet.
        zeroing: u64,
    },
    /// The volume has no such slab.
    #[error("it has no slab {slab} of this volume")]
    NoSlab {
        /// Number of the slab.
        slab: u64,
    },
    /// The client was expelled, or others with lower and higher numbers were, and the donor no longer keeps apart which
    /// of those between them were.
    #[error("it no longer admits client {client}: join the volume again, under a new number")]
    Expelled {
        /// Number of the client.
        client: u64,
    },
    /// The caller's queue pairs cannot reach the memory.
    #[error("its memory is not reached this way: use the fabric that it is served on")]
    OtherFabric,
    /// Someone who has lost access may still write.
    #[error(
        "a program that lost its access was stopped in the midst of a write to this memory, and there is no other place for what lies there: \
         end that program, or let it go on"
    )]
    WriterStopped,
    /// The call is invalid, or asks for more than any caller may have.
    #[error("{0}")]
    Invalid(&'static str),
}
