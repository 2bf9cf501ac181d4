//! Requests to a cache: values and their encoding.

use sinew_store::cache::{KEY_LEN_MAX, When};

use super::{KEYS_MAX, Malformed, Reader, Writer, a_key, malformed};

const GET: u8 = 1;
const INSPECT: u8 = 2;
const PUT: u8 = 3;
const DELETE: u8 = 4;
const GET_MANY: u8 = 5;
const INFO: u8 = 6;
const STATS: u8 = 7;
const TOUCH: u8 = 8;
const ADD: u8 = 9;
const FLUSH: u8 = 10;

/// Bytes before the first key of a request for several.
pub(in crate::cache) const KEYS_AT: usize = 2;

const WHEN_BITS: u8 = 0b11;
const HAS_EXTRAS: u8 = 0b100;

/// A request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Asks for the value of a key.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Asks for the value of a key, with its flags, lifetime and version.
    Inspect {
        /// The key.
        key: &'a [u8],
    },
    /// Stores a value.
    Put(Put<'a>),
    /// Removes an item.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Asks for the values of several keys of the same partition.
    GetMany(Keys<'a>),
    /// Asks which partition this is, and for its limits.
    Info,
    /// Asks for the counters.
    Stats,
    /// Sets the lifetime of an item.
    Touch {
        /// The key.
        key: &'a [u8],
        /// Seconds from now until the item expires; 0 means never.
        lives_s: u32,
    },
    /// Adds to the number that a value holds in decimal digits, and asks for the sum.
    ///
    /// As with memcached, numbers are unsigned and of 64 bits: they wrap around at the upper end, and stop at 0 at the
    /// lower one. Flags and lifetime stay as they are.
    Add {
        /// The key.
        key: &'a [u8],
        /// Amount to add; a negative one is subtracted.
        delta: i64,
    },
    /// Removes all items of this partition.
    Flush,
}

/// A value to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Condition, flags and lifetime.
    pub options: PutOptions,
}

/// Condition, flags and lifetime of a value to store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Condition under which the value is stored.
    pub when: When,
    /// A number of the client's own, returned with the item.
    pub flags: u32,
    /// Seconds until the item expires; 0 means never.
    pub lives_s: u32,
}

impl PutOptions {
    fn has_extras(&self) -> bool {
        self.flags != 0 || self.lives_s != 0
    }

    /// Length of a request to store a value with these options, in bytes.
    #[inline]
    pub fn request_len(&self, key_len: usize, value_len: usize) -> usize {
        let version = if matches!(self.when, When::Version(_)) { 8 } else { 0 };
        4 + if self.has_extras() { 8 } else { 0 } + version + key_len + value_len
    }
}

impl<'a> Request<'a> {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::read_with(bytes, |_| Ok(()))
    }

    /// Returns the key of a [`Request::Get`]; `None` for any other request, and one that is malformed.
    #[inline(always)]
    pub fn read_get(bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (&kind, key) = bytes.split_first()?;
        (kind == GET && key.len() <= KEY_LEN_MAX).then_some(key)
    }

    /// Reads a [`Request::GetMany`], passes on each of its keys, and returns their number; `None` for any other
    /// request. Apart from [`Self::read_with`], so that `on_key` is compiled into the loop.
    ///
    /// # Errors
    ///
    /// As for [`Self::read_with`].
    #[inline(always)]
    pub fn read_many<E: From<Malformed>>(
        bytes: &'a [u8],
        on_key: impl FnMut(&'a [u8]) -> Result<(), E>,
    ) -> Option<Result<usize, E>> {
        let (&kind, rest) = bytes.split_first()?;
        (kind == GET_MANY).then(|| Keys::read(Reader(rest), on_key).map(|keys| keys.count()))
    }

    /// As [`Self::read`], and passes on each key as soon as it is read, so that a server reads its requests once.
    ///
    /// # Errors
    ///
    /// [`Malformed`], or the error of `on_key`. Some keys of a request for several may have been passed on by then.
    #[inline(always)]
    pub fn read_with<E: From<Malformed>>(
        bytes: &'a [u8],
        mut on_key: impl FnMut(&'a [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut reader = Reader(bytes);
        let (key, request) = match reader.u8()? {
            GET_MANY => return Keys::read(reader, on_key).map(Self::GetMany),
            GET => {
                let key = a_key(reader.rest())?;
                (key, Self::Get { key })
            }
            INSPECT => {
                let key = a_key(reader.rest())?;
                (key, Self::Inspect { key })
            }
            PUT => {
                let put = Put::read(reader)?;
                (put.key, Self::Put(put))
            }
            DELETE => {
                let key = a_key(reader.rest())?;
                (key, Self::Delete { key })
            }
            TOUCH => {
                let lives_s = reader.u32()?;
                let key = a_key(reader.rest())?;
                (key, Self::Touch { key, lives_s })
            }
            ADD => {
                let delta = i64::from_le_bytes(reader.array()?);
                let key = a_key(reader.rest())?;
                (key, Self::Add { key, delta })
            }
            kind => return Ok(Self::read_keyless(kind, &reader)?),
        };
        on_key(key)?;
        Ok(request)
    }

    #[cold]
    fn read_keyless(kind: u8, rest: &Reader<'_>) -> Result<Self, Malformed> {
        let request = match kind {
            INFO => Self::Info,
            STATS => Self::Stats,
            FLUSH => Self::Flush,
            _ => return malformed("there is no such request"),
        };
        rest.end().map(|()| request)
    }

    /// Number of the request's keys.
    #[inline(always)]
    pub fn key_count(&self) -> usize {
        match self {
            Self::GetMany(keys) => keys.count(),
            Self::Info | Self::Stats | Self::Flush => 0,
            Self::Get { .. } | Self::Inspect { .. } | Self::Put(_) | Self::Delete { .. } => 1,
            Self::Touch { .. } | Self::Add { .. } => 1,
        }
    }

    /// Length of the encoded request, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Get { key } | Self::Inspect { key } | Self::Delete { key } => 1 + key.len(),
            Self::Put(put) => put.options.request_len(put.key.len(), put.value.len()),
            Self::GetMany(keys) => KEYS_AT + keys.bytes.len(),
            Self::Info | Self::Stats | Self::Flush => 1,
            Self::Touch { key, .. } => 5 + key.len(),
            Self::Add { key, .. } => 9 + key.len(),
        }
    }

    /// Always false: no request is empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes it to `target`.
    ///
    /// # Panics
    ///
    /// When `target` is not [`Self::len`] long, or a key is longer than
    /// [`KEY_LEN_MAX`](sinew_store::cache::KEY_LEN_MAX).
    #[inline]
    pub fn write(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len(), "a request is written whole");
        let mut writer = Writer(target);
        match *self {
            Self::Get { key } => writer.put(&[GET]).put(key),
            Self::Inspect { key } => writer.put(&[INSPECT]).put(key),
            Self::Delete { key } => writer.put(&[DELETE]).put(key),
            Self::Put(put) => put.write(&mut writer),
            Self::GetMany(keys) => writer.put(&[GET_MANY, keys.count as u8]).put(keys.bytes),
            Self::Info => writer.put(&[INFO]),
            Self::Stats => writer.put(&[STATS]),
            Self::Touch { key, lives_s } => writer.put(&[TOUCH]).put(&lives_s.to_le_bytes()).put(key),
            Self::Add { key, delta } => writer.put(&[ADD]).put(&delta.to_le_bytes()).put(key),
            Self::Flush => writer.put(&[FLUSH]),
        };
    }
}

impl<'a> Put<'a> {
    #[inline]
    fn read(mut reader: Reader<'a>) -> Result<Self, Malformed> {
        let options = reader.u8()?;
        let key_len = usize::from(reader.u16()?);
        let (flags, lives_s) = if options & HAS_EXTRAS == 0 { (0, 0) } else { (reader.u32()?, reader.u32()?) };
        if options > WHEN_BITS | HAS_EXTRAS {
            return malformed("there are no such options");
        }
        let when = match options & WHEN_BITS {
            0 => When::Always,
            1 => When::Absent,
            2 => When::Present,
            _ => When::Version(reader.u64()?),
        };
        let key = reader.bytes(key_len)?;
        Ok(Self { key, value: reader.rest(), options: PutOptions { when, flags, lives_s } })
    }

    #[inline]
    fn write<'w, 't>(&self, writer: &'w mut Writer<'t>) -> &'w mut Writer<'t> {
        let PutOptions { when, flags, lives_s } = self.options;
        let has_extras = self.options.has_extras();
        let condition = match when {
            When::Always => 0,
            When::Absent => 1,
            When::Present => 2,
            When::Version(_) => 3,
        };
        let key_len = u16::try_from(self.key.len()).expect("a key is no longer than KEY_LEN_MAX");
        let options = condition | if has_extras { HAS_EXTRAS } else { 0 };
        let [low, high] = key_len.to_le_bytes();
        writer.put(&[PUT, options, low, high]);
        if has_extras {
            writer.put(&flags.to_le_bytes()).put(&lives_s.to_le_bytes());
        }
        if let When::Version(version) = when {
            writer.put(&version.to_le_bytes());
        }
        writer.put(self.key).put(self.value)
    }
}

/// The keys of a [`Request::GetMany`], in its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys<'a> {
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Keys<'a> {
    #[inline(always)]
    fn read<E: From<Malformed>>(
        mut reader: Reader<'a>,
        mut on_key: impl FnMut(&'a [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let count = usize::from(reader.u8()?);
        if count == 0 || count > KEYS_MAX {
            return Err(Malformed { what: "it asks for no key, or for more than 64" }.into());
        }
        let keys = Self { count, bytes: reader.0 };
        for _ in 0..count {
            let len = usize::from(reader.u16()?);
            on_key(reader.bytes(len)?)?;
        }
        reader.end()?;
        Ok(keys)
    }

    /// Number of keys, from 1 to [`KEYS_MAX`].
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The keys.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut reader = Reader(self.bytes);
        // `read` has already checked that every key is whole.
        (0..self.count).map_while(move |_| {
            let len = usize::from(reader.u16().ok()?);
            reader.bytes(len).ok()
        })
    }

    /// Length of a request for `keys`, in bytes.
    pub fn request_len<'k>(keys: impl Iterator<Item = &'k [u8]>) -> usize {
        keys.fold(KEYS_AT, |len, key| len + Self::key_len(key))
    }

    /// Bytes of such a request for one key.
    #[inline(always)]
    pub(in crate::cache) fn key_len(key: &[u8]) -> usize {
        2 + key.len()
    }

    /// Writes a request for `keys`.
    ///
    /// # Panics
    ///
    /// When `target` is not [`Self::request_len`] long, there is no key or there are more than [`KEYS_MAX`], or one is
    /// longer than [`KEY_LEN_MAX`](sinew_store::cache::KEY_LEN_MAX).
    #[inline(always)]
    pub fn write_request<'k>(keys: impl Iterator<Item = &'k [u8]>, target: &mut [u8]) {
        let (head, target) = target.split_at_mut(KEYS_AT);
        let mut writer = Writer(target);
        let mut count = 0u8;
        for key in keys {
            let len = u16::try_from(key.len()).expect("a key is no longer than KEY_LEN_MAX");
            writer.put(&len.to_le_bytes()).put(key);
            count += 1;
        }
        assert!((1..=KEYS_MAX).contains(&usize::from(count)) && writer.0.is_empty(), "a request is written whole");
        head.copy_from_slice(&[GET_MANY, count]);
    }
}
