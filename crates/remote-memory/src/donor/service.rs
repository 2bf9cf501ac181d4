//! A donor that others call, with memory that they reach by verbs.

use std::collections::HashMap;

use sinew_fabric::Generator;
use sinew_fabric::verbs::{Access, Device, Exposed, ProtectionDomain, QpAddress, VerbsError};
use sinew_rpc::{Call as Incoming, ClientEvent, ClientId};

use super::gate::{Gate, Key};
use super::protocol::{Answer, Call, Refusal};
use super::state::{Donor, DonorLimits};
use super::wire::{CONTROL, Request, Response, Way};
use crate::engine::Lending;

type ExposedOf<D> = <<D as Device>::Domain as ProtectionDomain>::Exposed;

/// Who has queue pairs: a client's lane, or the volume's writer.
type Borrower = Option<(u64, u8)>;

/// What a donor is made of.
pub struct ServiceConfig {
    /// Bytes that it gives.
    pub len: usize,
    /// What callers may make it keep.
    pub limits: DonorLimits,
    /// Who may call; `None`: anybody.
    pub key: Option<Key>,
    /// Callers at a time that have greeted and not yet proved that they have the key.
    pub strangers_max: usize,
    /// Queue pairs that one writer, or one client, has at most.
    pub queue_pairs_max: usize,
}

impl ServiceConfig {
    /// For so many bytes.
    pub fn new(len: usize, key: Option<Key>) -> Self {
        Self { len, limits: DonorLimits::default(), key, strangers_max: 256, queue_pairs_max: 16 }
    }
}

/// What a donor counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceStats {
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that were refused.
    pub refused: u64,
    /// Calls of strangers.
    pub strangers: u64,
    /// Requests that made no sense.
    pub nonsense: u64,
}

/// A donor that others call. It belongs to one thread, which turns its endpoint; reads and writes of its memory go past it.
pub struct Service<D: Device> {
    device: D,
    domain: D::Domain,
    memory: ExposedOf<D>,
    donor: Donor,
    /// Queue pairs, by the volume, and by the client and the lane that have them; none for the writer.
    lendings: HashMap<(u64, Borrower), Lending<D>>,
    gate: Gate<ClientId>,
    queue_pairs_max: usize,
    stats: ServiceStats,
}

impl<D: Device> Service<D> {
    /// A donor with fresh memory of a device's.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub fn new(device: &D, config: ServiceConfig, mut random: Box<dyn Generator>) -> Result<Self, VerbsError> {
        let domain = device.protection_domain()?;
        let memory = domain.expose(config.len, Access::ALL)?;
        Ok(Self {
            device: device.clone(),
            domain,
            memory,
            donor: Donor::new(random.next_u64(), config.len as u64, config.limits),
            lendings: HashMap::new(),
            gate: Gate::new(config.key, config.strangers_max, random),
            queue_pairs_max: config.queue_pairs_max,
            stats: ServiceStats::default(),
        })
    }

    /// Its state.
    pub fn donor(&self) -> &Donor {
        &self.donor
    }

    /// Its memory.
    pub fn memory(&self) -> &ExposedOf<D> {
        &self.memory
    }

    /// What it counted.
    pub fn stats(&self) -> ServiceStats {
        self.stats
    }

    /// Answers a request of an endpoint's, for [`sinew_rpc::Rpc::turn_with`].
    pub fn take(&mut self, call: Incoming<'_>) {
        if call.request_type() != CONTROL {
            return call.refuse_type();
        }
        let answer = self.answer(call.client(), call.request());
        call.reply(&answer);
    }

    /// A client came or went.
    pub fn hear(&mut self, event: ClientEvent) {
        if let ClientEvent::Left { client, .. } = event {
            self.gate.forget(client);
        }
    }

    /// What a client gets for these bytes.
    pub fn answer(&mut self, client: ClientId, request: &[u8]) -> Vec<u8> {
        let response = match Request::read(request) {
            None => {
                self.stats.nonsense += 1;
                Response::Refused(Refusal::Never("the request makes no sense"))
            }
            Some(Request::Greet) => self.gate.greet(client).map_or(Response::Welcome, Response::Nonce),
            Some(Request::Prove(proof)) => {
                if self.gate.prove(client, &proof) {
                    Response::Welcome
                } else {
                    self.stats.strangers += 1;
                    Response::Stranger
                }
            }
            Some(Request::Call(..)) if !self.gate.knows(client) => {
                self.stats.strangers += 1;
                Response::Stranger
            }
            Some(Request::Call(call, addresses)) => match self.call(&call, &addresses) {
                Ok((answer, way)) => Response::Answer(answer, way),
                Err(refusal) => Response::Refused(refusal),
            },
        };
        match response {
            Response::Refused(_) => self.stats.refused += 1,
            Response::Answer(..) => self.stats.answered += 1,
            _ => {}
        }
        response.to_bytes()
    }

    fn handle(&mut self, call: &Call) -> Result<Answer, Refusal> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let memory = &self.memory;
        let mut zero = |range: std::ops::Range<u64>| {
            let mut at = range.start;
            while at < range.end {
                let len = (range.end - at).min(ZEROS.len() as u64);
                // The donor's slabs lie in its memory.
                let _ = memory.write(at as usize, &ZEROS[..len as usize]);
                at += len;
            }
        };
        self.donor.handle(call, &mut zero)
    }

    /// Whoever loses access has no queue pairs any more when this returns.
    fn call(&mut self, call: &Call, addresses: &[QpAddress]) -> Result<(Answer, Option<Way>), Refusal> {
        if call.asks_for_way() && (addresses.is_empty() || addresses.len() > self.queue_pairs_max) {
            return Err(Refusal::Never("whoever reads and writes has some queue pairs, and not too many"));
        }
        let answer = self.handle(call)?;
        let way = match *call {
            Call::Fence { volume, .. } => {
                let donor = &self.donor;
                let keeps = |of: u64, client: Borrower| {
                    of != volume || client.is_some_and(|(client, _)| donor.is_admitted(volume, client))
                };
                self.lendings.retain(|(of, client), _| keeps(*of, *client));
                Some(self.lend((volume, None), addresses)?)
            }
            Call::Admit { volume, client, lane, .. } => Some(self.lend((volume, Some((client, lane))), addresses)?),
            Call::Expel { volume, client, .. } => {
                self.lendings.retain(|(of, way), _| *of != volume || way.is_none_or(|(of, _)| of != client));
                None
            }
            _ => None,
        };
        Ok((answer, way))
    }

    /// Queue pairs for these, in place of those that were lent before.
    fn lend(&mut self, to: (u64, Borrower), addresses: &[QpAddress]) -> Result<Way, Refusal> {
        self.lendings.remove(&to);
        let lending = Lending::new(&self.device, &self.domain, addresses)
            .map_err(|_| Refusal::Never("its device has no queue pairs for this caller"))?;
        let way = Way { queue_pairs: lending.addresses(), memory: self.memory.remote() };
        self.lendings.insert(to, lending);
        Ok(way)
    }
}
