//! How a client finds who has which partition.

use sinew_fabric::{Address, PortError};
use sinew_rpc::{CallOptions, Channel, Completion, ConnectError, ConnectOptions, Endpoint};

use super::REQUESTS;
use super::error::Error;
use super::pipeline::{Owner, Pipeline};
use super::protocol::{Info, Malformed, Request, Response};
use crate::Partitions;

/// How much a client asks for at once, and how long it waits.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Requests in flight. With each partition there are as many sessions as have slots for them, among which requests take turns.
    pub window: usize,
    /// How long a request is waited for, in nanoseconds, unless it says otherwise ([`RequestOptions`](super::RequestOptions)). The remaining time
    /// travels with the request, which ends with [`Cause::DeadlinePassed`](sinew_rpc::Cause::DeadlinePassed) at both sides when it has passed.
    /// `None`, the default: until it is answered or the server is given up.
    pub timeout_ns: Option<u64>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { window: 64, timeout_ns: None }
    }
}

/// A client that is finding out who has which partition. The first address tells how many there are; the others are then
/// asked for.
///
/// [`Self::wait`] turns the loop until all are there. Who turns it himself asks [`Self::poll`] in between.
pub struct Connecting<E: Endpoint> {
    rpc: E,
    addresses: Box<dyn Iterator<Item = String>>,
    config: ClientConfig,
    /// In the order of their addresses, with what each said.
    found: Vec<(Channel, Option<Info>)>,
}

impl<E: Endpoint> Connecting<E> {
    /// Begins at the first of `addresses`; of the others as many are taken as there are further partitions. Each partition has one
    /// of its own, in any order.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] when the address leads nowhere, [`Error::Channel`] when the window needs more sessions than this endpoint may have,
    /// [`Error::Addresses`] when there is no address.
    pub fn begin<A>(rpc: E, addresses: A, config: ClientConfig) -> Result<Self, Error>
    where
        A: IntoIterator<Item = String>,
        A::IntoIter: 'static,
    {
        let mut connecting = Self { rpc, addresses: Box::new(addresses.into_iter()), config, found: Vec::new() };
        connecting.begin_next(1)?;
        Ok(connecting)
    }

    /// The endpoint, to turn its loop.
    pub fn rpc_mut(&mut self) -> &mut E {
        &mut self.rpc
    }

    /// Begins with one more partition, of so many.
    fn begin_next(&mut self, partitions: usize) -> Result<(), Error> {
        let addresses = self.found.len();
        let address = self.addresses.next().ok_or(Error::Addresses { partitions, addresses })?;
        let address: Address = address.parse().map_err(|error| ConnectError::from(PortError::from(error)))?;
        let window = self.config.window.max(1);
        let mut channel = Channel::begin_open(&mut self.rpc, &address, window, ConnectOptions::new())?;
        let mut request = self.rpc.alloc(Request::Info.len())?;
        Request::Info.write(&mut request);
        let response = self.rpc.alloc(64)?;
        // It waits until its session is open, too.
        let timeout_ns = self.config.timeout_ns.map(|ns| ns.saturating_add(self.rpc.config().connect_timeout_ns));
        let options = CallOptions::tag(addresses as u64).timeout_ns(timeout_ns.unwrap_or(u64::MAX));
        channel.enqueue_request(&mut self.rpc, REQUESTS, request, response, options)?;
        self.found.push((channel, None));
        Ok(())
    }

    /// Takes in what has arrived. Returns whether all is there: then [`Self::finish`].
    ///
    /// # Errors
    ///
    /// What keeps the client from connecting.
    pub fn poll(&mut self) -> Result<bool, Error> {
        let mut all_open = true;
        for (channel, _) in &mut self.found {
            all_open &= channel.poll(&mut self.rpc)?;
        }
        while let Some(completion) = self.rpc.poll_completion() {
            self.told(&completion)?;
        }
        // Those that were told of just now are not open yet.
        Ok(all_open && self.is_complete())
    }

    /// Whether each partition was found.
    fn is_complete(&self) -> bool {
        let partitions = self.found.first().and_then(|(_, info)| *info).map(|info| usize::from(info.partitions));
        partitions == Some(self.found.len()) && self.found.iter().all(|(_, info)| info.is_some())
    }

    fn told(&mut self, completion: &Completion) -> Result<(), Error> {
        completion.result.clone()?;
        match Response::read(&completion.response)? {
            Response::Info(info) => self.take_in(completion.tag as usize, info),
            Response::Refused(refusal) => Err(refusal.into()),
            _ => Err(Malformed { what: "it does not say which partition it is" }.into()),
        }
    }

    fn take_in(&mut self, index: usize, info: Info) -> Result<(), Error> {
        let (partition, partitions) = (usize::from(info.partition), usize::from(info.partitions));
        let others = self.found.iter().filter_map(|(_, info)| *info);
        let fits = partitions == Partitions::new(partitions).count()
            && partition < partitions
            && others.clone().all(|other| other.partition != info.partition && other.partitions == info.partitions);
        let Some((channel, said)) = self.found.get_mut(index) else { return Ok(()) };
        if !fits {
            return Err(Error::Partition { address: channel.address().to_string(), partition, partitions });
        }
        *said = Some(info);
        if index == 0 {
            (1..partitions).try_for_each(|_| self.begin_next(partitions))?;
        }
        Ok(())
    }

    /// The client, once [`Self::poll`] says that all is there.
    ///
    /// # Errors
    ///
    /// [`Error::Alloc`]; [`Error::Addresses`] when not all is there.
    pub fn finish(self) -> Result<Pipeline<E>, Error> {
        let (addresses, ClientConfig { window, timeout_ns }) = (self.found.len(), self.config);
        let mut owners: Vec<_> =
            self.found.into_iter().filter_map(|(channel, info)| info.map(|info| (info, channel))).collect();
        owners.sort_by_key(|(info, _)| info.partition);
        let Some(&(info, _)) = owners.first() else { return Err(Error::Addresses { partitions: 1, addresses }) };
        if owners.len() != usize::from(info.partitions) {
            return Err(Error::Addresses { partitions: info.partitions.into(), addresses });
        }
        let owners = owners.into_iter().map(|(_, channel)| Owner {
            address: channel.address().clone(),
            sessions: channel.sessions().to_vec(),
            next: 0,
        });
        Pipeline::new(self.rpc, owners.collect(), info, window.max(1), timeout_ns)
    }

    /// Turns the loop until all is there.
    ///
    /// # Errors
    ///
    /// As [`Self::poll`] and [`Self::finish`].
    pub fn wait(mut self) -> Result<Pipeline<E>, Error> {
        let result = self.turn_until_ready();
        self.rpc.end_waiting();
        result?;
        self.finish()
    }

    fn turn_until_ready(&mut self) -> Result<(), Error> {
        while !self.poll()? {
            self.rpc.turn_or_wait()?;
        }
        Ok(())
    }
}
