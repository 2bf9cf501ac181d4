//! A client that waits for each answer.

use sinew_rpc::Endpoint;

use super::connect::{ClientConfig, Connecting};
use super::error::Error;
use super::pipeline::Pipeline;
use super::protocol::{KEYS_MAX, Lookup, Malformed, PutOptions, Response, Stats};

/// A client of a cache whose methods wait for their answers. For many requests in flight see [`Pipeline`].
pub struct Client<E: Endpoint> {
    pipeline: Pipeline<E>,
    /// Of the method that was called last: what an earlier one did not wait for is not its answer.
    tag: u64,
}

/// A value, and what is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The value.
    pub value: Vec<u8>,
    /// The client's own number.
    pub flags: u32,
    /// Seconds until it ends; never when 0.
    pub lives_s: u32,
    /// Changes with every change of the item: what `When::Version` compares.
    pub version: u64,
}

/// What a server answers that keeps to the protocol is of the kind that was asked for: [`Pipeline`] has checked it.
const OTHER: Malformed = Malformed { what: "it is of another kind than what was asked" };

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

    /// How long requests from now on are waited for; `None`: as long as it takes. See [`ClientConfig::timeout_ns`]. What asks for many keys
    /// is several requests, each of which has so long.
    pub fn set_timeout_ns(&mut self, timeout_ns: Option<u64>) {
        self.pipeline.set_timeout_ns(timeout_ns);
    }

    /// The same client, to have many requests in flight.
    pub fn into_pipeline(self) -> Pipeline<E> {
        self.pipeline
    }

    /// How many partitions the cache has.
    pub fn partitions(&self) -> usize {
        self.pipeline.partitions().count()
    }

    fn next_tag(&mut self) -> u64 {
        self.tag += 1;
        self.tag
    }

    /// Waits for the answer to the request that was made last.
    fn wait<T>(&mut self, take: impl FnOnce(Response<'_>) -> Option<T>) -> Result<T, Error> {
        loop {
            let answer = self.pipeline.wait()?.ok_or(OTHER)?;
            if answer.tag == self.tag {
                return take(answer.response?).ok_or(OTHER.into());
            }
        }
    }

    /// The value of `key`, if there is one.
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

    /// The item of `key`, if there is one.
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

    /// Stores a value; returns its version.
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

    /// Forgets the item of `key`; returns whether there was one.
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

    /// Gives the item of `key` another lifetime, so many seconds from now on, or for ever when 0; returns whether there is one.
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

    /// Adds to the number that the value of `key` is ([`Request::Add`](super::protocol::Request::Add)); returns what it is then, if there is an
    /// item.
    ///
    /// # Errors
    ///
    /// [`Error`]; a value that is no number is an [`Error::Refused`].
    pub fn add(&mut self, key: &[u8], delta: i64) -> Result<Option<u64>, Error> {
        let tag = self.next_tag();
        self.pipeline.add(key, delta, tag)?;
        self.wait(|response| match response {
            Response::Number(number) => Some(Some(number)),
            Response::Miss => Some(None),
            _ => None,
        })
    }

    /// Forgets all items, one partition after the other.
    ///
    /// # Errors
    ///
    /// [`Error`]; the partitions before the one that failed are empty.
    pub fn flush(&mut self) -> Result<(), Error> {
        (0..self.partitions()).try_for_each(|partition| {
            let tag = self.next_tag();
            self.pipeline.flush(partition, tag)?;
            self.wait(|response| matches!(response, Response::Flushed).then_some(()))
        })
    }

    /// The values of any number of keys, in their order. As many as can be are asked for together.
    ///
    /// # Errors
    ///
    /// [`Error`], the first of several.
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
                            failure = Some(OTHER.into());
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

    /// The counters of each partition.
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
