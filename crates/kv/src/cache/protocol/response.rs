//! Responses.

use sinew_store::cache::{KEY_LEN_MAX, PutError};

use super::{Malformed, Reader, VERSION, Writer, malformed};

const MISS: u8 = 0;
const VALUE: u8 = 1;
const ITEM: u8 = 2;
const STORED: u8 = 3;
const DELETED: u8 = 4;
const VALUES: u8 = 5;
const INFO: u8 = 6;
const STATS: u8 = 7;
const TOUCHED: u8 = 8;
const NUMBER: u8 = 9;
const FLUSHED: u8 = 10;

const LEN_OF_MISS: u32 = u32::MAX;
const LEN_OF_OMITTED: u32 = u32::MAX - 1;

/// Bytes before the value of a [`Response::Value`].
pub const VALUE_AT: usize = 1;
/// Bytes before the value of a [`Response::Item`].
pub const ITEM_VALUE_AT: usize = 17;
/// Bytes before the first value of a [`Response::Values`].
pub const VALUES_AT: usize = 2;

/// What a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// No item has the key.
    Miss,
    /// The value of the key.
    Value(&'a [u8]),
    /// The item of the key.
    Item(Item<'a>),
    /// The value was stored.
    Stored {
        /// Its version.
        version: u64,
    },
    /// The item is forgotten.
    Deleted,
    /// The values of several keys.
    Values(Values<'a>),
    /// See [`Info`].
    Info(Info),
    /// See [`Stats`].
    Stats(Stats),
    /// The item has its new lifetime.
    Touched,
    /// What was added to is this now.
    Number(u64),
    /// The partition has no items any more.
    Flushed,
    /// It was not done.
    Refused(Refusal),
}

/// A value, and what is known about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The client's own number.
    pub flags: u32,
    /// Seconds until it ends; never when 0.
    pub lives_s: u32,
    /// Changes with every change of the item: what [`When::Version`](sinew_store::cache::When::Version) compares.
    pub version: u64,
    /// The value.
    pub value: &'a [u8],
}

/// Which partition an endpoint has, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its number, from 0.
    pub partition: u16,
    /// How many partitions the cache has.
    pub partitions: u16,
    /// Longest value, in bytes.
    pub value_len_max: u32,
    /// Longest response to a request for several values, in bytes. What does not fit is [`Lookup::Omitted`].
    pub response_len_max: u32,
}

/// What a partition counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys that were asked for and found.
    pub hits: u64,
    /// Keys that were asked for and not found.
    pub misses: u64,
    /// Items there are; those that were evicted or expired count until somebody comes across them.
    pub items: u64,
    /// Items that were stored.
    pub stored: u64,
    /// Items that gave their place to others.
    pub evictions: u64,
    /// Bytes of items, the dead ones too.
    pub used_bytes: u64,
    /// Bytes for items.
    pub capacity_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Requests that were malformed, too large, or for another partition.
    pub refused: u64,
}

impl Stats {
    const COUNT: usize = 9;

    fn to_array(self) -> [u64; Self::COUNT] {
        let Self { hits, misses, items, stored, evictions, used_bytes, capacity_bytes, index_bytes, refused } = self;
        [hits, misses, items, stored, evictions, used_bytes, capacity_bytes, index_bytes, refused]
    }

    fn from_array(array: [u64; Self::COUNT]) -> Self {
        let [hits, misses, items, stored, evictions, used_bytes, capacity_bytes, index_bytes, refused] = array;
        Self { hits, misses, items, stored, evictions, used_bytes, capacity_bytes, index_bytes, refused }
    }

    /// Each counter with its name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        const NAMES: [&str; Stats::COUNT] = [
            "hits",
            "misses",
            "items",
            "stored",
            "evictions",
            "used_bytes",
            "capacity_bytes",
            "index_bytes",
            "refused",
        ];
        NAMES.into_iter().zip(self.to_array())
    }

    /// The sums of two partitions' counters.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let (mut sums, others) = (self.to_array(), other.to_array());
        sums.iter_mut().zip(others).for_each(|(sum, other)| *sum = sum.wrapping_add(other));
        Self::from_array(sums)
    }
}

/// Why a request was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is no request.
    #[error(
        "the server could not read the request: client and server are of different versions, or something was changed on the way"
    )]
    Malformed,
    /// An item has the key, and none should.
    #[error("an item has this key already")]
    Present,
    /// No item has the key, and one should.
    #[error("no item has this key")]
    Absent,
    /// The item is of another version.
    #[error("the item was changed: it has version {version}")]
    Changed {
        /// The version that it has.
        version: u64,
    },
    /// The key is too long.
    #[error("a key of {len} bytes is longer than {KEY_LEN_MAX}")]
    KeyTooLong {
        /// Its length.
        len: u64,
    },
    /// The value is too long.
    #[error("a value of {len} bytes is longer than the {max} that this cache takes")]
    ValueTooLong {
        /// Its length.
        len: u64,
        /// The longest.
        max: u64,
    },
    /// There is no memory for it, and nothing is evicted.
    #[error("the store is full: {used_bytes} of {capacity_bytes} bytes are in use, and nothing is evicted here")]
    Full {
        /// Bytes in use.
        used_bytes: u64,
        /// Bytes there are.
        capacity_bytes: u64,
    },
    /// The key belongs to another partition than this endpoint's.
    #[error(
        "the key belongs to another partition than {partition}, which was asked: connect anew to learn who has which"
    )]
    WrongPartition {
        /// The one that was asked.
        partition: u64,
    },
    /// What was to be added to is no number.
    #[error("the value is no number of up to 20 decimal digits below 2^64")]
    NotANumber,
    /// The endpoint owns no partition.
    #[error("this endpoint owns no partition: the server has more endpoints than partitions")]
    NoPartition,
}

impl From<PutError> for Refusal {
    fn from(error: PutError) -> Self {
        match error {
            PutError::KeyTooLong { len } => Self::KeyTooLong { len: len as u64 },
            PutError::ValueTooLong { len, max } => Self::ValueTooLong { len: len as u64, max: max as u64 },
            PutError::Full { used_bytes, capacity_bytes } => {
                Self::Full { used_bytes: used_bytes as u64, capacity_bytes: capacity_bytes as u64 }
            }
            PutError::Present => Self::Present,
            PutError::Absent => Self::Absent,
            PutError::Changed { version } => Self::Changed { version },
        }
    }
}

impl Refusal {
    /// Whether the client asked for what nobody should ask for, or for more than there is: not so for conditions, which may hold
    /// or not.
    pub fn is_fault(&self) -> bool {
        !matches!(self, Self::Present | Self::Absent | Self::Changed { .. } | Self::NotANumber)
    }

    /// Kind, and what goes with it; every refusal is as long.
    fn to_parts(self) -> (u8, [u64; 2]) {
        match self {
            Self::Malformed => (128, [0, 0]),
            Self::Present => (129, [0, 0]),
            Self::Absent => (130, [0, 0]),
            Self::Changed { version } => (131, [version, 0]),
            Self::KeyTooLong { len } => (132, [len, 0]),
            Self::ValueTooLong { len, max } => (133, [len, max]),
            Self::Full { used_bytes, capacity_bytes } => (134, [used_bytes, capacity_bytes]),
            Self::WrongPartition { partition } => (135, [partition, 0]),
            Self::NoPartition => (136, [0, 0]),
            Self::NotANumber => (137, [0, 0]),
        }
    }

    fn from_parts(kind: u8, [first, second]: [u64; 2]) -> Option<Self> {
        Some(match kind {
            128 => Self::Malformed,
            129 => Self::Present,
            130 => Self::Absent,
            131 => Self::Changed { version: first },
            132 => Self::KeyTooLong { len: first },
            133 => Self::ValueTooLong { len: first, max: second },
            134 => Self::Full { used_bytes: first, capacity_bytes: second },
            135 => Self::WrongPartition { partition: first },
            136 => Self::NoPartition,
            137 => Self::NotANumber,
            _ => return None,
        })
    }
}

/// What came of one key of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// Its value.
    Hit(&'a [u8]),
    /// No item has the key.
    Miss,
    /// There is an item, and the response had no more room for it: ask for it alone.
    Omitted,
}

/// The values of a [`Response::Values`], in its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values<'a> {
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Values<'a> {
    #[inline]
    fn read(mut reader: Reader<'a>) -> Result<Self, Malformed> {
        let count = usize::from(reader.u8()?);
        let values = Self { count, bytes: reader.0 };
        for _ in 0..count {
            Self::next(&mut reader)?;
        }
        reader.end().map(|()| values)
    }

    #[inline]
    fn next(reader: &mut Reader<'a>) -> Result<Lookup<'a>, Malformed> {
        match reader.u32()? {
            LEN_OF_MISS => Ok(Lookup::Miss),
            LEN_OF_OMITTED => Ok(Lookup::Omitted),
            len => reader.bytes(len as usize).map(Lookup::Hit),
        }
    }

    /// How many there are: as many as keys were asked for.
    pub fn count(&self) -> usize {
        self.count
    }

    /// What came of each key, in the order in which they were asked for.
    pub fn iter(&self) -> impl Iterator<Item = Lookup<'a>> + use<'a> {
        let mut reader = Reader(self.bytes);
        // They were walked over when they were read.
        (0..self.count).map_while(move |_| Self::next(&mut reader).ok())
    }

    /// Writes how many there are, and gives back the rest of `target`, for [`Self::write_next`].
    ///
    /// # Panics
    ///
    /// When `target` is shorter than [`VALUES_AT`].
    pub fn write_count(count: u8, target: &mut [u8]) -> &mut [u8] {
        let (head, rest) = target.split_at_mut(VALUES_AT);
        head.copy_from_slice(&[VALUES, count]);
        rest
    }

    /// Bytes of one value of several.
    #[inline]
    pub fn len_of(lookup: Option<usize>) -> usize {
        4 + lookup.unwrap_or(0)
    }

    /// Writes the length of the next value and gives back where the value goes, and the rest.
    ///
    /// # Panics
    ///
    /// When `target` is too short.
    #[inline]
    pub fn write_next(lookup: Slot, target: &mut [u8]) -> (&mut [u8], &mut [u8]) {
        let (word, len) = match lookup {
            Slot::Hit(len) => (len as u32, len),
            Slot::Miss => (LEN_OF_MISS, 0),
            Slot::Omitted => (LEN_OF_OMITTED, 0),
        };
        let (head, rest) = target.split_at_mut(4);
        head.copy_from_slice(&word.to_le_bytes());
        rest.split_at_mut(len)
    }
}

/// What stands in place of one key of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A value of so many bytes, fewer than 2^32 - 2.
    Hit(usize),
    /// See [`Lookup::Miss`].
    Miss,
    /// See [`Lookup::Omitted`].
    Omitted,
}

impl<'a> Response<'a> {
    /// Reads a response.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        match reader.u8()? {
            MISS => reader.end().map(|()| Self::Miss),
            VALUE => Ok(Self::Value(reader.rest())),
            ITEM => {
                let (flags, lives_s, version) = (reader.u32()?, reader.u32()?, reader.u64()?);
                Ok(Self::Item(Item { flags, lives_s, version, value: reader.rest() }))
            }
            STORED => {
                let version = reader.u64()?;
                reader.end().map(|()| Self::Stored { version })
            }
            DELETED => reader.end().map(|()| Self::Deleted),
            VALUES => Values::read(reader).map(Self::Values),
            INFO => Info::read(reader).map(Self::Info),
            STATS => {
                let count = usize::from(reader.u8()?);
                let mut array = [0; Stats::COUNT];
                if count < array.len() {
                    return malformed("there are too few counters");
                }
                for counter in &mut array {
                    *counter = reader.u64()?;
                }
                // A later version may count more.
                reader.bytes((count - array.len()) * 8)?;
                reader.end().map(|()| Self::Stats(Stats::from_array(array)))
            }
            TOUCHED => reader.end().map(|()| Self::Touched),
            NUMBER => {
                let number = reader.u64()?;
                reader.end().map(|()| Self::Number(number))
            }
            FLUSHED => reader.end().map(|()| Self::Flushed),
            kind => {
                let refusal = Refusal::from_parts(kind, [reader.u64()?, reader.u64()?]);
                let Some(refusal) = refusal else { return malformed("there is no such response") };
                reader.end().map(|()| Self::Refused(refusal))
            }
        }
    }

    /// Its length.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Miss | Self::Deleted | Self::Touched | Self::Flushed => 1,
            Self::Value(value) => VALUE_AT + value.len(),
            Self::Item(item) => ITEM_VALUE_AT + item.value.len(),
            Self::Stored { .. } | Self::Number(_) => 9,
            Self::Values(values) => VALUES_AT + values.bytes.len(),
            Self::Info(_) => Info::LEN,
            Self::Stats(_) => 2 + 8 * Stats::COUNT,
            Self::Refused(_) => 17,
        }
    }

    /// Whether it is empty: no response is.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes it to `target`.
    ///
    /// # Panics
    ///
    /// When `target` is not [`Self::len`] long.
    #[inline]
    pub fn write(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len(), "a response is written whole");
        let mut writer = Writer(target);
        match *self {
            Self::Miss => writer.put(&[MISS]),
            Self::Deleted => writer.put(&[DELETED]),
            Self::Touched => writer.put(&[TOUCHED]),
            Self::Flushed => writer.put(&[FLUSHED]),
            Self::Number(number) => writer.put(&[NUMBER]).put(&number.to_le_bytes()),
            Self::Value(value) => writer.put(&[VALUE]).put(value),
            Self::Item(Item { flags, lives_s, version, value }) => {
                write_item_head(flags, lives_s, version, std::mem::take(&mut writer.0)).copy_from_slice(value);
                &mut writer
            }
            Self::Stored { version } => writer.put(&[STORED]).put(&version.to_le_bytes()),
            Self::Values(values) => writer.put(&[VALUES, values.count as u8]).put(values.bytes),
            Self::Info(info) => info.write(&mut writer),
            Self::Stats(stats) => {
                let writer = writer.put(&[STATS, Stats::COUNT as u8]);
                stats.to_array().iter().fold(writer, |writer, counter| writer.put(&counter.to_le_bytes()))
            }
            Self::Refused(refusal) => {
                let (kind, [first, second]) = refusal.to_parts();
                writer.put(&[kind]).put(&first.to_le_bytes()).put(&second.to_le_bytes())
            }
        };
    }
}

/// Writes what stands before a value, and gives back where the value goes.
///
/// # Panics
///
/// When `target` is empty.
#[inline(always)]
pub fn write_value_head(target: &mut [u8]) -> &mut [u8] {
    let (head, value) = target.split_at_mut(VALUE_AT);
    head[0] = VALUE;
    value
}

/// Writes what stands before the value of an item, and gives back where the value goes.
///
/// # Panics
///
/// When `target` is shorter than [`ITEM_VALUE_AT`].
pub fn write_item_head(flags: u32, lives_s: u32, version: u64, target: &mut [u8]) -> &mut [u8] {
    let (head, value) = target.split_at_mut(ITEM_VALUE_AT);
    Writer(head).put(&[ITEM]).put(&flags.to_le_bytes()).put(&lives_s.to_le_bytes()).put(&version.to_le_bytes());
    value
}

impl Info {
    const LEN: usize = 2 + 2 + 2 + 4 + 4;

    fn read(mut reader: Reader<'_>) -> Result<Self, Malformed> {
        if reader.u8()? != VERSION {
            return malformed("the server speaks another version of the protocol");
        }
        let (partition, partitions) = (reader.u16()?, reader.u16()?);
        let (value_len_max, response_len_max) = (reader.u32()?, reader.u32()?);
        reader.end().map(|()| Self { partition, partitions, value_len_max, response_len_max })
    }

    fn write<'w, 't>(&self, writer: &'w mut Writer<'t>) -> &'w mut Writer<'t> {
        writer
            .put(&[INFO, VERSION])
            .put(&self.partition.to_le_bytes())
            .put(&self.partitions.to_le_bytes())
            .put(&self.value_len_max.to_le_bytes())
            .put(&self.response_len_max.to_le_bytes())
    }
}
