//! How a client finds who has which partition.

use sinew_fabric::{Address, PortError};
use sinew_rpc::{Completion, ConnectError, Endpoint, SessionEvent, SessionId};

use super::REQUESTS;
use super::error::Error;
use super::pipeline::{Owner, Pipeline};
use super::protocol::{Info, Malformed, Request, Response};
use crate::Partitions;

/// How much a client asks for at once.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Requests in flight.
    pub window: usize,
    /// Sessions with each partition, among which requests take turns. When 0: as many as have slots for the window.
    pub sessions: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { window: 64, sessions: 0 }
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
    found: Vec<(Owner, Option<Info>)>,
    open: usize,
}

impl<E: Endpoint> Connecting<E> {
    /// Begins at the first of `addresses`; of the others as many are taken as there are further partitions. Each partition has one
    /// of its own, in any order.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] when the address leads nowhere or a limit of this endpoint is reached, [`Error::Addresses`] when there is none.
    pub fn begin<A>(rpc: E, addresses: A, config: ClientConfig) -> Result<Self, Error>
    where
        A: IntoIterator<Item = String>,
        A::IntoIter: 'static,
    {
        let mut connecting =
            Self { rpc, addresses: Box::new(addresses.into_iter()), config, found: Vec::new(), open: 0 };
        connecting.begin_next(1)?;
        Ok(connecting)
    }

    /// The endpoint, to turn its loop.
    pub fn rpc_mut(&mut self) -> &mut E {
        &mut self.rpc
    }

    fn sessions(&self) -> usize {
        match self.config.sessions {
            0 => self.config.window.max(1).div_ceil(usize::from(self.rpc.config().slots)),
            sessions => sessions,
        }
    }

    /// Begins with one more partition, of so many.
    fn begin_next(&mut self, partitions: usize) -> Result<(), Error> {
        let addresses = self.found.len();
        let address = self.addresses.next().ok_or(Error::Addresses { partitions, addresses })?;
        let address: Address = address.parse().map_err(|error| ConnectError::from(PortError::from(error)))?;
        let sessions = (0..self.sessions()).map(|_| self.rpc.begin_connect(&address));
        let sessions = sessions.collect::<Result<Vec<SessionId>, ConnectError>>()?;
        let mut request = self.rpc.alloc(Request::Info.len())?;
        Request::Info.write(&mut request);
        let response = self.rpc.alloc(64)?;
        self.rpc.enqueue_request(sessions[0], REQUESTS, request, response, (addresses as u64).into())?;
        self.found.push((Owner { address, sessions, next: 0 }, None));
        Ok(())
    }

    /// Takes in what has arrived. Returns whether all is there: then [`Self::finish`].
    ///
    /// # Errors
    ///
    /// What keeps the client from connecting.
    pub fn poll(&mut self) -> Result<bool, Error> {
        while let Some(event) = self.rpc.poll_event() {
            self.heard(event)?;
        }
        while let Some(completion) = self.rpc.poll_completion() {
            self.told(&completion)?;
        }
        Ok(self.is_ready())
    }

    fn is_ready(&self) -> bool {
        let partitions = self.found.first().and_then(|(_, info)| *info).map(|info| usize::from(info.partitions));
        let all_said = self.found.iter().all(|(_, info)| info.is_some());
        partitions == Some(self.found.len()) && all_said && self.open >= self.found.len() * self.sessions()
    }

    fn heard(&mut self, event: SessionEvent) -> Result<(), Error> {
        match event {
            SessionEvent::Connected(_) => self.open += 1,
            SessionEvent::ConnectFailed { error, .. } => return Err(error.into()),
            // Its call says so.
            _ => {}
        }
        Ok(())
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
        let Some((owner, said)) = self.found.get_mut(index) else { return Ok(()) };
        if !fits {
            return Err(Error::Partition { address: owner.address.to_string(), partition, partitions });
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
        let addresses = self.found.len();
        let mut owners: Vec<_> =
            self.found.into_iter().filter_map(|(owner, info)| info.map(|info| (info, owner))).collect();
        owners.sort_by_key(|(info, _)| info.partition);
        let Some(&(info, _)) = owners.first() else { return Err(Error::Addresses { partitions: 1, addresses }) };
        if owners.len() != usize::from(info.partitions) {
            return Err(Error::Addresses { partitions: info.partitions.into(), addresses });
        }
        Pipeline::new(self.rpc, owners.into_iter().map(|(_, owner)| owner).collect(), info, self.config.window.max(1))
    }

    /// Turns the loop until all is there.
    ///
    /// # Errors
    ///
    /// As [`Self::poll`] and [`Self::finish`].
    pub fn wait(mut self) -> Result<Pipeline<E>, Error> {
        while !self.poll()? {
            let (mut event, mut over) = (None, None);
            self.rpc.run_until(|rpc| {
                event = event.take().or_else(|| rpc.poll_event());
                over = over.take().or_else(|| rpc.poll_completion());
                event.is_some() || over.is_some()
            })?;
            event.map_or(Ok(()), |event| self.heard(event))?;
            over.map_or(Ok(()), |over| self.told(&over))?;
        }
        self.finish()
    }
}
