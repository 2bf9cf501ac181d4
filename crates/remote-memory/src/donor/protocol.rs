//! What a donor is asked for, and what it says.

use std::sync::Arc;

/// What a writer asks of a donor, beside reads and writes of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// What it knows of a volume, which it changes in nothing.
    Look {
        /// Which volume.
        volume: u64,
    },
    /// Its vote for a writer: it takes no record of an earlier one any more.
    Claim {
        /// Which volume.
        volume: u64,
        /// The writer's epoch: higher than any that it has voted for.
        epoch: u32,
    },
    /// A volume's record, to keep.
    Record {
        /// Which volume.
        volume: u64,
        /// The writer's.
        epoch: u32,
        /// Of the record: a writer's later ones have higher numbers.
        generation: u64,
        /// The record, which means nothing to a donor.
        record: Arc<[u8]>,
    },
    /// Takes access to the volume's slabs away from all who had it, and gives it to the caller: when it is answered, nothing that was sent before changes a slab any more. Clients that
    /// were [admitted](Self::Admit) under the same epoch keep theirs: a writer that fences again has lost its way, and not its clients. A slab in which somebody was stopped in the midst of
    /// a write is moved by the first fence of an epoch alone, since its writer and its clients go by where slabs were as it began; later ones are refused as [stopped](Refusal::Stopped).
    Fence {
        /// Which volume.
        volume: u64,
        /// The writer's.
        epoch: u32,
    },
    /// Gives the caller access to the volume's slabs beside the writer who fenced it, until it is [expelled](Self::Expel) or a later epoch fences the volume. Whoever asks again
    /// under the same number and lane has a new way, and loses the old one.
    Admit {
        /// Which volume.
        volume: u64,
        /// The writer's.
        epoch: u32,
        /// The caller's number, which the writer gave it and gives nobody else in this epoch; later clients have higher numbers.
        client: u64,
        /// Which of its ways, below [`LANES_MAX`](super::LANES_MAX): one for each thread that reads and writes.
        lane: u8,
    },
    /// Takes access away from a client: when it is answered, nothing that it sent before changes a slab any more, and its number is not admitted again in this epoch, whether it was
    /// before or not.
    Expel {
        /// Which volume.
        volume: u64,
        /// The writer's.
        epoch: u32,
        /// The client.
        client: u64,
    },
    /// Its writer lives. Answered as [`Self::Stat`] is.
    Beat {
        /// Which volume.
        volume: u64,
        /// The writer's.
        epoch: u32,
    },
    /// Its writer has ended, and whoever comes next need not wait for it.
    Leave {
        /// Which volume.
        volume: u64,
        /// The writer's.
        epoch: u32,
    },
    /// A slab for a volume, all zeros.
    Take {
        /// Which volume.
        volume: u64,
        /// The writer's.
        epoch: u32,
        /// Bytes.
        len: u64,
    },
    /// Gives a slab back.
    Free {
        /// Which volume.
        volume: u64,
        /// The writer's.
        epoch: u32,
        /// The slab.
        slab: u64,
    },
    /// How much memory there is.
    Stat,
}

impl Call {
    /// Whether its answer has a way to the memory with it, for which the caller sends its queue pairs.
    pub fn asks_for_way(&self) -> bool {
        matches!(self, Self::Fence { .. } | Self::Admit { .. })
    }
}

/// A slab that a volume has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Its number, which no other slab of this run of the donor has or had.
    pub slab: u64,
    /// First byte of it in the donor's memory.
    pub base: u64,
    /// Bytes.
    pub len: u64,
}

/// A record that a donor keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Whose.
    pub epoch: u32,
    /// Which of that writer's.
    pub generation: u64,
    /// The record.
    pub record: Arc<[u8]>,
}

/// What a donor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Call::Look`] and [`Call::Claim`].
    Known {
        /// Of this run of the donor: what an earlier run knew is gone.
        incarnation: u64,
        /// The highest epoch that it has voted for; 0 when there is none.
        promised: u32,
        /// The volume's record.
        stored: Option<Stored>,
        /// Signs of life of the writer who fenced the volume here last: as long as it lives, there are more of them at each look. 0: there has been no writer, or it [left](Call::Leave).
        beats: u64,
    },
    /// The record is kept.
    Recorded {
        /// As in [`Answer::Known`].
        incarnation: u64,
    },
    /// Nobody earlier has access any more.
    Fenced {
        /// As in [`Answer::Known`].
        incarnation: u64,
        /// What reads and writes go with from now on: those of earlier fences are refused, the same writer's as well.
        session: u64,
        /// The slabs that the volume has here.
        slabs: Vec<Lent>,
    },
    /// The client has access.
    Admitted {
        /// As in [`Answer::Known`].
        incarnation: u64,
        /// What its reads and writes go with.
        session: u64,
    },
    /// The client has none, and gets none.
    Expelled {
        /// As in [`Answer::Known`].
        incarnation: u64,
    },
    /// The slab.
    Taken {
        /// As in [`Answer::Known`].
        incarnation: u64,
        /// It.
        lent: Lent,
    },
    /// It is nobody's now.
    Freed,
    /// The writer has left.
    Left,
    /// Bytes. To [`Call::Beat`] as well.
    Stat {
        /// As in [`Answer::Known`].
        incarnation: u64,
        /// That are nobody's.
        free: u64,
        /// All.
        len: u64,
        /// It wants its memory back: volumes move what they have there elsewhere.
        wants_back: bool,
    },
}

/// Why a donor does not do what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A later writer has been here.
    #[error("a writer of epoch {held} has taken the volume over")]
    Older {
        /// Its epoch.
        held: u32,
    },
    /// It has a later record of the same writer.
    #[error("it has the record's generation {held}, which is later")]
    OldRecord {
        /// That one's generation.
        held: u64,
    },
    /// No room for a slab.
    #[error("it has no room for a slab of {asked} bytes: {free} bytes are free")]
    Full {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that are nobody's.
        free: u64,
    },
    /// There is no such slab.
    #[error("it has no slab {slab} of this volume")]
    NoSlab {
        /// The number.
        slab: u64,
    },
    /// The client was expelled, or is so old that nobody knows any more whether it was.
    #[error("it admits client {client} no more: join the volume again, under a new number")]
    Expelled {
        /// Its number.
        client: u64,
    },
    /// Its memory is not reached by the caller's queue pairs.
    #[error("its memory is not reached this way: use the fabric that it is served on")]
    OtherFabric,
    /// Somebody who has lost access may still write.
    #[error(
        "a program that lost its access was stopped in the midst of a write to this memory, and there is no other place for what lies there: \
         end that program, or let it go on"
    )]
    Stopped,
    /// The call makes no sense, or asks for more than anybody gets.
    #[error("{0}")]
    Never(&'static str),
}
