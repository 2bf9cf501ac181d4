//! Responses of a cache: values and their encoding.

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

/// An answer from a server.
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
        /// Version of the stored item.
        version: u64,
    },
    /// The item was removed.
    Deleted,
    /// The values of several keys.
    Values(Values<'a>),
    /// The partition and its limits: see [`Info`].
    Info(Info),
    /// The counters: see [`Stats`].
    Stats(Stats),
    /// The item has its new lifetime.
    Touched,
    /// The sum that an addition left.
    Number(u64),
    /// The partition has been emptied.
    Flushed,
    /// The request was refused.
    Refused(Refusal),
}

/// A value with its flags, lifetime and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Flags, a number of the client's own.
    pub flags: u32,
    /// Seconds until the item expires; 0 means never.
    pub lives_s: u32,
    /// Version, which changes with every change of the item; [`When::Version`](sinew_store::cache::When::Version)
    /// compares it.
    pub version: u64,
    /// The value.
    pub value: &'a [u8],
}

/// Which partition an endpoint has, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its number, from 0.
    pub partition: u16,
    /// Number of partitions of the cache.
    pub partitions: u16,
    /// Longest value, in bytes.
    pub value_len_max: u32,
    /// Longest response to a request for several values, in bytes. A value that does not fit is [`Lookup::Omitted`].
    pub response_len_max: u32,
}

/// Counters of a partition since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys asked for and found.
    pub hits: u64,
    /// Keys asked for and not found.
    pub misses: u64,
    /// Items in the table; evicted and expired ones count until a request comes across them.
    pub items: u64,
    /// Items stored.
    pub stored: u64,
    /// Items evicted to make room for others.
    pub evictions: u64,
    /// Bytes of items, including dead ones.
    pub used_bytes: u64,
    /// Bytes available for items.
    pub capacity_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Requests refused because they were malformed, too large, or for another partition.
    pub refused: u64,
    /// Times that an item was kept when its turn to be evicted came, because it had been read.
    pub spared: u64,
}

impl Stats {
    const COUNT: usize = 10;
    /// Counters that every version sends.
    const COUNT_MIN: usize = 9;

    fn to_array(self) -> [u64; Self::COUNT] {
        let Self { hits, misses, items, stored, evictions, used_bytes, capacity_bytes, index_bytes, refused, spared } =
            self;
        [hits, misses, items, stored, evictions, used_bytes, capacity_bytes, index_bytes, refused, spared]
    }

    fn from_array(array: [u64; Self::COUNT]) -> Self {
        let [hits, misses, items, stored, evictions, used_bytes, capacity_bytes, index_bytes, refused, spared] = array;
        Self { hits, misses, items, stored, evictions, used_bytes, capacity_bytes, index_bytes, refused, spared }
    }

    /// Returns each counter with its name.
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
            "spared",
        ];
        NAMES.into_iter().zip(self.to_array())
    }

    /// Returns the sums of two partitions' counters.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let (mut sums, others) = (self.to_array(), other.to_array());
        sums.iter_mut().zip(others).for_each(|(sum, other)| *sum = sum.wrapping_add(other));
        Self::from_array(sums)
    }
}

/// Reason why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request could not be read.
    #[error(
        "the server could not read the request: client and server are of different versions, or it was damaged on the way"
    )]
    Malformed,
    /// An item has the key, and none should.
    #[error("an item has this key already")]
    Present,
    /// No item has the key, and one should.
    #[error("no item has this key")]
    Absent,
    /// The item has another version than the condition names.
    #[error("the item was changed: it has version {version}")]
    Changed {
        /// Version of the item.
        version: u64,
    },
    /// The key is too long.
    #[error("a key of {len} bytes is longer than {KEY_LEN_MAX}")]
    KeyTooLong {
        /// Length of the key, in bytes.
        len: u64,
    },
    /// The value is too long.
    #[error("a value of {len} bytes is longer than the {max} that this cache takes")]
    ValueTooLong {
        /// Length of the value, in bytes.
        len: u64,
        /// Longest value that the cache accepts, in bytes.
        max: u64,
    },
    /// There is no memory for the value, and this store does not evict.
    #[error("the store is full: {used_bytes} of {capacity_bytes} bytes are in use, and nothing is evicted here")]
    Full {
        /// Bytes in use.
        used_bytes: u64,
        /// Bytes in all.
        capacity_bytes: u64,
    },
    /// The key belongs to a partition that this endpoint does not own.
    #[error(
        "the key does not belong to partition {partition}, which was asked: connect again to learn which endpoint owns it"
    )]
    WrongPartition {
        /// The partition that was asked.
        partition: u64,
    },
    /// The value to add to is not a number.
    #[error("the value is not a number of up to 20 decimal digits below 2^64")]
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

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl Refusal {
    /// Whether the request itself was at fault, or asked for more than there is. A condition that did not hold, or a
    /// value that is not a number, is no fault.
    pub fn is_fault(&self) -> bool {
        !matches!(self, Self::Present | Self::Absent | Self::Changed { .. } | Self::NotANumber)
    }

    /// Kind and two numbers; all refusals have the same length.
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

/// Result for one key of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// The value of the key.
    Hit(&'a [u8]),
    /// No item has the key.
    Miss,
    /// The value did not fit into the response: ask for it alone.
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

    /// Number of values, which is the number of keys asked for.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the result for each key, in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = Lookup<'a>> + use<'a> {
        let mut reader = Reader(self.bytes);
        // `read` has already checked that every value is whole.
        (0..self.count).map_while(move |_| Self::next(&mut reader).ok())
    }

    /// Writes the number of values and returns the rest of `target`, for [`Self::write_next`].
    ///
    /// # Panics
    ///
    /// When `target` is shorter than [`VALUES_AT`].
    #[inline(always)]
    pub fn write_count(count: u8, target: &mut [u8]) -> &mut [u8] {
        Self::try_write_count(count, target).expect("the target has room")
    }

    /// As [`Self::write_count`]; `None` when `target` is too short.
    #[inline(always)]
    pub fn try_write_count(count: u8, target: &mut [u8]) -> Option<&mut [u8]> {
        let (head, rest) = target.split_first_chunk_mut::<VALUES_AT>()?;
        *head = [VALUES, count];
        Some(rest)
    }

    /// Length of one result in the encoding, in bytes, with a value of `lookup` bytes if there is one.
    #[inline]
    pub fn len_of(lookup: Option<usize>) -> usize {
        4 + lookup.unwrap_or(0)
    }

    /// Writes the length of the next value; returns the place for the value, and the rest.
    ///
    /// # Panics
    ///
    /// When `target` is too short.
    #[inline(always)]
    pub fn write_next(lookup: Slot, target: &mut [u8]) -> (&mut [u8], &mut [u8]) {
        Self::try_write_next(lookup, target).expect("the target has room")
    }

    /// As [`Self::write_next`]; `None` when `target` is too short.
    #[inline(always)]
    pub fn try_write_next(lookup: Slot, target: &mut [u8]) -> Option<(&mut [u8], &mut [u8])> {
        let (word, len) = match lookup {
            Slot::Hit(len) => (len as u32, len),
            Slot::Miss => (LEN_OF_MISS, 0),
            Slot::Omitted => (LEN_OF_OMITTED, 0),
        };
        let (head, rest) = target.split_first_chunk_mut()?;
        *head = word.to_le_bytes();
        rest.split_at_mut_checked(len)
    }
}

/// Result for one key of several, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A value of this many bytes, fewer than 2^32 - 2.
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
                if count < Stats::COUNT_MIN {
                    return malformed("there are too few counters");
                }
                for counter in array.iter_mut().take(count) {
                    *counter = reader.u64()?;
                }
                // A later version may send further counters.
                reader.bytes(count.saturating_sub(Stats::COUNT) * 8)?;
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

    /// Length of the encoded response, in bytes.
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

    /// Always false: no response is empty.
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

/// Writes the head of a [`Response::Value`] and returns the place for the value.
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

/// Writes the head of a [`Response::Item`] and returns the place for the value.
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
