//! A donor that others call, with memory that they reach by verbs.

use std::collections::HashMap;

use sinew_fabric::Generator;
use sinew_fabric::verbs::{Access, Device, Exposed, ProtectionDomain, VerbsError};
use sinew_rpc::{Call as Incoming, ClientEvent, ClientId};

use super::gate::{Gate, Key};
use super::protocol::{Answer, Call, Refusal};
use super::state::{Donor, DonorLimits};
use super::wire::{CONTROL, Request, Response, Way};
use crate::engine::Lending;

type ExposedOf<D> = <<D as Device>::Domain as ProtectionDomain>::Exposed;

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
    /// Queue pairs that one writer has at most.
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
    /// By volume: the queue pairs of its writer. Whoever fences the volume takes these away.
    lendings: HashMap<u64, Lending<D>>,
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
            Some(Request::Call(Call::Fence { volume, epoch }, addresses)) => self.fence(volume, epoch, &addresses),
            Some(Request::Call(call, _)) => {
                self.handle(&call).map_or_else(Response::Refused, |answer| Response::Answer(answer, None))
            }
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

    /// The queue pairs of whoever wrote before are gone before the new writer has its own.
    fn fence(&mut self, volume: u64, epoch: u32, addresses: &[sinew_fabric::verbs::QpAddress]) -> Response {
        if addresses.is_empty() || addresses.len() > self.queue_pairs_max {
            return Response::Refused(Refusal::Never("a writer has some queue pairs, and not too many"));
        }
        let answer = match self.handle(&Call::Fence { volume, epoch }) {
            Ok(answer) => answer,
            Err(refusal) => return Response::Refused(refusal),
        };
        self.lendings.remove(&volume);
        match Lending::new(&self.device, &self.domain, addresses) {
            Ok(lending) => {
                let way = Way { queue_pairs: lending.addresses(), memory: self.memory.remote() };
                self.lendings.insert(volume, lending);
                Response::Answer(answer, Some(way))
            }
            Err(_) => Response::Refused(Refusal::Never("its device has no queue pairs for this writer")),
        }
    }
}
