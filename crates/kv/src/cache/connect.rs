//! Connecting: a client finds out which endpoint owns which partition.

use sinew_fabric::{Address, PortError};
use sinew_rpc::{CallOptions, Channel, Completion, ConnectError, ConnectOptions, Endpoint};

use super::REQUESTS;
use super::error::Error;
use super::pipeline::{Owner, Pipeline};
use super::protocol::{Info, Malformed, Request, Response};
use crate::Partitions;

/// A client's window and time-out.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Requests in flight. Each partition gets as many sessions as it takes to have that many slots, and requests use
    /// them in turn.
    pub window: usize,
    /// Time-out of a request, in nanoseconds, unless the request has one of its own
    /// ([`RequestOptions`](super::RequestOptions)). The remaining time travels with the request, which ends with
    /// [`Cause::DeadlinePassed`](sinew_rpc::Cause::DeadlinePassed) on both sides when it has passed. `None`, the
    /// default, waits until the request is answered or the server is given up.
    pub timeout_ns: Option<u64>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { window: 64, timeout_ns: None }
    }
}

/// A client that is finding out which endpoint owns which partition. The first endpoint says how many partitions there
/// are; then the others are asked.
///
/// [`Self::wait`] turns the loop until all partitions are found. A caller that turns the loop itself calls
/// [`Self::poll`] in between.
pub struct Connecting<E: Endpoint> {
    rpc: E,
    addresses: Box<dyn Iterator<Item = String>>,
    config: ClientConfig,
    /// In the order of their addresses, each with the endpoint's answer once it is there.
    servers: Vec<(Channel, Option<Info>)>,
}

impl<E: Endpoint> Connecting<E> {
    /// Begins with the first of `addresses`, and then uses as many of the others as there are further partitions. Each
    /// partition has an address of its own, in any order.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] when the address leads nowhere, [`Error::Channel`] when the window needs more sessions than
    /// this endpoint may have, [`Error::Addresses`] when there is no address.
    pub fn begin<A>(rpc: E, addresses: A, config: ClientConfig) -> Result<Self, Error>
    where
        A: IntoIterator<Item = String>,
        A::IntoIter: 'static,
    {
        let mut connecting = Self { rpc, addresses: Box::new(addresses.into_iter()), config, servers: Vec::new() };
        connecting.begin_next(1)?;
        Ok(connecting)
    }

    /// The endpoint, to turn its loop.
    pub fn rpc_mut(&mut self) -> &mut E {
        &mut self.rpc
    }

    /// Begins to connect to the next address; `partitions` is the number of partitions, for the error message.
    fn begin_next(&mut self, partitions: usize) -> Result<(), Error> {
        let addresses = self.servers.len();
        let address = self.addresses.next().ok_or(Error::Addresses { partitions, addresses })?;
        let address: Address = address.parse().map_err(|error| ConnectError::from(PortError::from(error)))?;
        let window = self.config.window.max(1);
        let mut channel = Channel::begin_open(&mut self.rpc, &address, window, ConnectOptions::new())?;
        let mut request = self.rpc.alloc(Request::Info.len())?;
        Request::Info.write(&mut request);
        let response = self.rpc.alloc(64)?;
        // The request also waits for its session to open.
        let timeout_ns = self.config.timeout_ns.map(|ns| ns.saturating_add(self.rpc.config().connect_timeout_ns));
        let options = CallOptions::tag(addresses as u64).timeout_ns(timeout_ns.unwrap_or(u64::MAX));
        channel.enqueue_request(&mut self.rpc, REQUESTS, request, response, options)?;
        self.servers.push((channel, None));
        Ok(())
    }

    /// Processes what has arrived. Returns true once all partitions are found; then call [`Self::finish`].
    ///
    /// # Errors
    ///
    /// The reason why the client cannot connect.
    pub fn poll(&mut self) -> Result<bool, Error> {
        let mut all_open = true;
        for (channel, _) in &mut self.servers {
            all_open &= channel.poll(&mut self.rpc)?;
        }
        while let Some(completion) = self.rpc.poll_completion() {
            self.on_info(&completion)?;
        }
        // Channels that `on_info` has just begun are not open yet.
        Ok(all_open && self.is_complete())
    }

    /// Whether every partition was found.
    fn is_complete(&self) -> bool {
        let partitions = self.servers.first().and_then(|(_, info)| *info).map(|info| usize::from(info.partitions));
        partitions == Some(self.servers.len()) && self.servers.iter().all(|(_, info)| info.is_some())
    }

    fn on_info(&mut self, completion: &Completion) -> Result<(), Error> {
        completion.result.clone()?;
        match Response::read(&completion.response)? {
            Response::Info(info) => self.record_info(completion.tag as usize, info),
            Response::Refused(refusal) => Err(refusal.into()),
            _ => Err(Malformed { what: "it does not say which partition it is" }.into()),
        }
    }

    fn record_info(&mut self, index: usize, info: Info) -> Result<(), Error> {
        let (partition, partitions) = (usize::from(info.partition), usize::from(info.partitions));
        let others = self.servers.iter().filter_map(|(_, info)| *info);
        let fits = partitions == Partitions::new(partitions).count()
            && partition < partitions
            && others.clone().all(|other| other.partition != info.partition && other.partitions == info.partitions);
        let Some((channel, known)) = self.servers.get_mut(index) else { return Ok(()) };
        if !fits {
            return Err(Error::Partition { address: channel.address().to_string(), partition, partitions });
        }
        *known = Some(info);
        if index == 0 {
            (1..partitions).try_for_each(|_| self.begin_next(partitions))?;
        }
        Ok(())
    }

    /// Returns the client, once [`Self::poll`] has returned true.
    ///
    /// # Errors
    ///
    /// [`Error::Alloc`]; [`Error::Addresses`] when a partition is missing.
    pub fn finish(self) -> Result<Pipeline<E>, Error> {
        let (addresses, ClientConfig { window, timeout_ns }) = (self.servers.len(), self.config);
        let mut owners: Vec<_> =
            self.servers.into_iter().filter_map(|(channel, info)| info.map(|info| (info, channel))).collect();
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

    /// Turns the loop until all partitions are found.
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
