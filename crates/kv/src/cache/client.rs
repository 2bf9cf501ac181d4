//! A client that blocks until each answer arrives.

use sinew_rpc::Endpoint;

use super::connect::{ClientConfig, Connecting};
use super::error::Error;
use super::pipeline::Pipeline;
use super::protocol::{KEYS_MAX, Lookup, Malformed, PutOptions, Response, Stats};

/// A client of a cache whose methods block until the answer arrives. To have many requests in flight, see [`Pipeline`].
pub struct Client<E: Endpoint> {
    pipeline: Pipeline<E>,
    /// Tag of the latest request; answers with older tags, which an earlier call left behind, are skipped.
    tag: u64,
}

/// A value with its flags, lifetime and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The value.
    pub value: Vec<u8>,
    /// Flags, a number of the client's own.
    pub flags: u32,
    /// Seconds until the item expires; 0 means never.
    pub lives_s: u32,
    /// Version, which changes with every change of the item; [`When::Version`](sinew_store::cache::When::Version)
    /// compares it.
    pub version: u64,
}

/// Error for an answer of the wrong kind, which [`Pipeline`] has already ruled out.
const WRONG_KIND: Malformed = Malformed { what: "it is of another kind than the request" };

impl<E: Endpoint> Client<E> {
    /// Connects to all partitions of a cache: see [`Connecting::begin`].
    ///
    /// # Errors
    ///
    /// As [`Connecting::wait`].
    pub fn connect<A>(rpc: E, addresses: A) -> Result<Self, Error>
    where
        A: IntoIterator<Item = String>,
        A::IntoIter: 'static,
    {
        Self::connect_with(rpc, addresses, ClientConfig::default())
    }

    /// As [`Self::connect`], with a window, and a time-out for each request.
    ///
    /// # Errors
    ///
    /// As [`Connecting::wait`].
    pub fn connect_with<A>(rpc: E, addresses: A, config: ClientConfig) -> Result<Self, Error>
    where
        A: IntoIterator<Item = String>,
        A::IntoIter: 'static,
    {
        Ok(Self { pipeline: Connecting::begin(rpc, addresses, config)?.wait()?, tag: 0 })
    }

    /// Sets the time-out of later requests; `None` waits as long as it takes. See [`ClientConfig::timeout_ns`]. A
    /// method that takes many keys makes several requests, and the time-out applies to each.
    pub fn set_timeout_ns(&mut self, timeout_ns: Option<u64>) {
        self.pipeline.set_timeout_ns(timeout_ns);
    }

    /// Turns into the same client, able to have many requests in flight.
    pub fn into_pipeline(self) -> Pipeline<E> {
        self.pipeline
    }

    /// Number of partitions of the cache.
    pub fn partitions(&self) -> usize {
        self.pipeline.partitions().count()
    }

    fn next_tag(&mut self) -> u64 {
        self.tag += 1;
        self.tag
    }

    /// Waits for the answer to the latest request.
    fn wait<T>(&mut self, take: impl FnOnce(Response<'_>) -> Option<T>) -> Result<T, Error> {
        loop {
            let answer = self.pipeline.wait()?.ok_or(WRONG_KIND)?;
            if answer.tag == self.tag {
                return take(answer.response?).ok_or(WRONG_KIND.into());
            }
        }
    }

    /// Returns the value of `key`, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let tag = self.next_tag();
        self.pipeline.get(key, tag)?;
        self.wait(|response| match response {
            Response::Value(value) => Some(Some(value.to_vec())),
            Response::Miss => Some(None),
            _ => None,
        })
    }

    /// Returns the item of `key`, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn inspect(&mut self, key: &[u8]) -> Result<Option<Item>, Error> {
        let tag = self.next_tag();
        self.pipeline.inspect(key, tag)?;
        self.wait(|response| match response {
            Response::Item(item) => Some(Some(Item {
                value: item.value.to_vec(),
                flags: item.flags,
                lives_s: item.lives_s,
                version: item.version,
            })),
            Response::Miss => Some(None),
            _ => None,
        })
    }

    /// Stores a value and returns its version.
    ///
    /// # Errors
    ///
    /// [`Error`]; a condition that did not hold is an [`Error::Refused`].
    pub fn put(&mut self, key: &[u8], value: &[u8], options: PutOptions) -> Result<u64, Error> {
        let tag = self.next_tag();
        self.pipeline.put(key, value, options, tag)?;
        self.wait(|response| match response {
            Response::Stored { version } => Some(version),
            _ => None,
        })
    }

    /// Removes the item of `key`; returns whether there was one.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let tag = self.next_tag();
        self.pipeline.delete(key, tag)?;
        self.wait(|response| match response {
            Response::Deleted => Some(true),
            Response::Miss => Some(false),
            _ => None,
        })
    }

    /// Sets the lifetime of the item of `key` to `lives_s` seconds from now, or to for ever when 0; returns whether
    /// there is one.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn touch(&mut self, key: &[u8], lives_s: u32) -> Result<bool, Error> {
        let tag = self.next_tag();
        self.pipeline.touch(key, lives_s, tag)?;
        self.wait(|response| match response {
            Response::Touched => Some(true),
            Response::Miss => Some(false),
            _ => None,
        })
    }

    /// Adds to the number stored as the value of `key` ([`Request::Add`](super::protocol::Request::Add)); returns the
    /// sum, or `None` if there is no item.
    ///
    /// # Errors
    ///
    /// [`Error`]; a value that is not a number is an [`Error::Refused`].
    pub fn add(&mut self, key: &[u8], delta: i64) -> Result<Option<u64>, Error> {
        let tag = self.next_tag();
        self.pipeline.add(key, delta, tag)?;
        self.wait(|response| match response {
            Response::Number(number) => Some(Some(number)),
            Response::Miss => Some(None),
            _ => None,
        })
    }

    /// Removes all items, one partition after the other.
    ///
    /// # Errors
    ///
    /// [`Error`]; the partitions before the one that failed are already empty.
    pub fn flush(&mut self) -> Result<(), Error> {
        (0..self.partitions()).try_for_each(|partition| {
            let tag = self.next_tag();
            self.pipeline.flush(partition, tag)?;
            self.wait(|response| matches!(response, Response::Flushed).then_some(()))
        })
    }

    /// Returns the values of any number of keys, in their order. Asks for as many at once as the protocol and the
    /// window allow.
    ///
    /// # Errors
    ///
    /// [`Error`]; where several requests fail, that of one of them.
    pub fn get_many(&mut self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut values = vec![None; keys.len()];
        let mut omitted = Vec::new();
        for (part, some) in keys.chunks(KEYS_MAX).enumerate() {
            // Each partition's request needs a place in the window.
            for (at, some) in some.chunks(self.pipeline.window()).enumerate() {
                let first = part * KEYS_MAX + at * self.pipeline.window();
                let tag = self.next_tag();
                self.pipeline.get_many(some, tag)?;
                let mut failure = None;
                while let Some(answer) = self.pipeline.wait()? {
                    let found = match answer.response {
                        _ if answer.tag != tag => continue,
                        Ok(Response::Values(found)) => found,
                        Ok(_) => {
                            failure = Some(WRONG_KIND.into());
                            continue;
                        }
                        Err(error) => {
                            failure = Some(error);
                            continue;
                        }
                    };
                    for (index, lookup) in answer.keys.iter().zip(found.iter()) {
                        let index = first + usize::from(*index);
                        match lookup {
                            Lookup::Hit(value) => values[index] = Some(value.to_vec()),
                            Lookup::Miss => {}
                            Lookup::Omitted => omitted.push(index),
                        }
                    }
                }
                failure.map_or(Ok(()), Err)?;
            }
        }
        for index in omitted {
            values[index] = self.get(keys[index])?;
        }
        Ok(values)
    }

    /// Returns the counters of each partition.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn stats(&mut self) -> Result<Vec<Stats>, Error> {
        (0..self.partitions())
            .map(|partition| {
                let tag = self.next_tag();
                self.pipeline.stats(partition, tag)?;
                self.wait(|response| match response {
                    Response::Stats(stats) => Some(stats),
                    _ => None,
                })
            })
            .collect()
    }
}
