//! A donor as a service: it answers calls, and its memory is reached by verbs or by calls.

use std::ops::Range;

use sinew_fabric::Generator;
use sinew_fabric::verbs::{QpAddress, VerbsError};
use sinew_mem::SharedMemory;
use sinew_rpc::gate::{Gate, Key};
use sinew_rpc::{Call as Incoming, ClientEvent, ClientId};

use super::access_grants::{AccessGrants, Holder};
use super::memory_provider::MemoryProvider;
use super::protocol::{Answer, Call, Refusal};
use super::state::{Donor, DonorLimits};
use super::stragglers::SetAside;
use super::wire::{AccessPath, CONTROL, Request, Response};
use crate::engine::{ACCESS, Parsed, Refusal as AccessRefusal, answer};

/// Configuration of a donor.
pub struct ServiceConfig {
    /// Bytes that it lends.
    pub len: usize,
    /// Limits on what callers can make it keep.
    pub limits: DonorLimits,
    /// Key that callers must have; `None` admits anyone.
    pub key: Option<Key>,
    /// Callers at a time that have greeted but not yet proved that they have the key.
    pub strangers_max: usize,
    /// Queue pairs of one writer or one client, at most.
    pub queue_pairs_max: usize,
    /// Whether all of the memory is taken from the system at the start, rather than as it is used: a donor of a host
    /// that is short of memory could have to wait for it then.
    pub is_backed: bool,
}

impl ServiceConfig {
    /// Defaults for a donor of `len` bytes.
    pub fn new(len: usize, key: Option<Key>) -> Self {
        Self { len, limits: DonorLimits::default(), key, strangers_max: 256, queue_pairs_max: 16, is_backed: false }
    }
}

/// Counters of a donor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceStats {
    /// Calls answered.
    pub answered: u64,
    /// Calls refused.
    pub refused: u64,
    /// Calls of callers without the key, and proofs that failed.
    pub not_admitted: u64,
    /// Requests that could not be parsed.
    pub malformed: u64,
    /// Calls that read or wrote memory.
    pub accesses: u64,
    /// Calls among these that were refused, for example because their writer has been fenced off.
    pub accesses_refused: u64,
}

/// A donor as a service. It belongs to one thread, which turns its endpoint. Reads and writes by verbs bypass it;
/// callers that have no queue pairs read and write by calls, which it answers.
pub struct Service<L: MemoryProvider> {
    provider: L,
    memory: L::Memory,
    donor: Donor,
    /// Ended when a volume is fenced or a client is expelled.
    grants: AccessGrants<L::Grant>,
    set_aside: SetAside,
    gate: Gate<ClientId>,
    queue_pairs_max: usize,
    stats: ServiceStats,
}

impl<L: MemoryProvider + Clone> Service<L> {
    /// Makes a donor with fresh memory, of a device or [of this process](super::CallsOnly).
    ///
    /// # Errors
    ///
    /// The error of the device or the system.
    pub fn new(lends: &L, config: ServiceConfig, mut random: Box<dyn Generator>) -> Result<Self, VerbsError> {
        let memory = lends.allocate(config.len)?;
        if config.is_backed {
            memory.back();
        }
        Ok(Self {
            provider: lends.clone(),
            memory,
            donor: Donor::new(random.next_u64(), config.len as u64, config.limits),
            grants: AccessGrants::new(),
            set_aside: SetAside::default(),
            gate: Gate::new(config.key, config.strangers_max, random),
            queue_pairs_max: config.queue_pairs_max,
            stats: ServiceStats::default(),
        })
    }
}

impl<L: MemoryProvider> Service<L> {
    /// State of the donor.
    pub fn donor(&self) -> &Donor {
        &self.donor
    }

    /// Makes the donor [want its memory back](Donor::begin_withdrawal) from now on.
    pub fn begin_withdrawal(&mut self) {
        self.donor.begin_withdrawal();
    }

    /// Memory of the donor.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Counters of the donor.
    pub fn stats(&self) -> ServiceStats {
        self.stats
    }

    /// Answers a request that an endpoint received, for [`sinew_rpc::Rpc::turn_with`].
    pub fn handle_call(&mut self, call: Incoming<'_>) {
        match call.request_type() {
            CONTROL => {
                let answer = self.answer(call.client(), call.request());
                call.reply(&answer);
            }
            ACCESS => {
                let refusal = answer(call, |request| self.check_access(request));
                self.stats.accesses += u64::from(refusal.is_none());
                self.stats.accesses_refused += u64::from(refusal.is_some());
            }
            _ => call.refuse_type(),
        }
    }

    /// Parses a call that reads or writes, and checks that its token is valid now and gives access to these slabs.
    fn check_access<'a>(&self, request: &'a [u8]) -> Result<(SharedMemory, Parsed<'a>), AccessRefusal> {
        let (token, parsed) = Parsed::read(request).ok_or(AccessRefusal::Malformed)?;
        let volume = self.grants.volume_of(token).ok_or(AccessRefusal::NoRange)?;
        parsed.check(|range| self.donor.is_in_slab(volume, range))?;
        Ok((self.memory().clone(), parsed))
    }

    /// Handles the arrival or departure of a client.
    pub fn handle_event(&mut self, event: ClientEvent) {
        if let ClientEvent::Left { client, .. } = event {
            self.gate.forget(client);
        }
    }

    /// Returns the answer to these bytes of a client.
    pub fn answer(&mut self, client: ClientId, request: &[u8]) -> Vec<u8> {
        let response = match Request::read(request) {
            None => {
                self.stats.malformed += 1;
                Response::Refused(Refusal::Invalid("the request is malformed"))
            }
            Some(Request::Greet) => self.gate.issue_nonce(client).map_or(Response::Welcome, Response::Nonce),
            Some(Request::Prove(proof)) => {
                if self.gate.check_proof(client, &proof) {
                    Response::Welcome
                } else {
                    self.stats.not_admitted += 1;
                    Response::NotAdmitted
                }
            }
            Some(Request::Call(..)) if !self.gate.is_proven(client) => {
                self.stats.not_admitted += 1;
                Response::NotAdmitted
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
        let memory = &*self.memory;
        let mut zero = |range: Range<u64>| {
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

    /// Handles a call. When this returns, those who have lost access cannot reach the memory any more, and nothing sent
    /// over one changes a slab of the volume any more.
    pub(super) fn call(
        &mut self,
        call: &Call,
        addresses: &[QpAddress],
    ) -> Result<(Answer, Option<AccessPath>), Refusal> {
        if addresses.len() > self.queue_pairs_max {
            return Err(Refusal::Invalid("the caller sends too many queue pairs"));
        }
        if matches!(call, Call::Take { .. } | Call::Stat | Call::Heartbeat { .. }) {
            self.set_aside.release(&self.provider, &self.memory, &mut self.donor);
        }
        // Within an epoch, the writer and its clients rely on the places that they were told before.
        let begins_epoch = matches!(*call, Call::Fence { volume, epoch } if epoch > self.donor.fence_of(volume));
        let mut answer = self.handle(call)?;
        let access_path = match *call {
            Call::Fence { volume, .. } => {
                let donor = &self.donor;
                self.grants.retain(|(of, client)| {
                    of != volume || client.is_some_and(|(client, _)| donor.is_admitted(volume, client))
                });
                self.set_aside.evade(&self.provider, &self.memory, &mut self.donor, volume, begins_epoch)?;
                if let Answer::Fenced { slabs, .. } = &mut answer {
                    // Some slabs may have moved.
                    *slabs = self.donor.slabs_of(volume).collect();
                }
                Some(self.lend((volume, None), addresses)?)
            }
            Call::Admit { volume, client, lane, .. } => Some(self.lend((volume, Some((client, lane))), addresses)?),
            Call::Expel { volume, client, .. } => {
                self.grants.retain(|(of, way)| of != volume || way.is_none_or(|(of, _)| of != client));
                self.set_aside.evade(&self.provider, &self.memory, &mut self.donor, volume, false)?;
                None
            }
            _ => None,
        };
        Ok((answer, access_path))
    }

    /// Gives access to these queue pairs, or by calls if there are none, in place of what the holder had before.
    fn lend(&mut self, to: Holder, addresses: &[QpAddress]) -> Result<AccessPath, Refusal> {
        self.grants.revoke(to);
        if addresses.is_empty() {
            let token = self.grants.grant_token(to, self.gate.random());
            return Ok(AccessPath::Calls { token, len: self.memory().len() as u64 });
        }
        let (grant, access_path) = self.provider.lend(&self.memory, addresses)?;
        self.grants.grant(to, grant);
        Ok(access_path)
    }
}
