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

/// Bytes zeroed between two turns of the endpoint.
const ZEROED_PER_TURN: u64 = 2 << 20;

/// Fills these bytes of a donor's memory with zeros. Pages that are zero are not written: in private memory, those
/// that were lent but never used have taken nothing from the system. (In shared memory, reading takes them.)
fn zero(memory: &SharedMemory, range: Range<u64>) {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut page = ZEROS;
    let mut at = range.start;
    while at < range.end {
        let page = &mut page[..(range.end - at).min(4096) as usize];
        // A donor's slabs lie in its memory.
        let is_zero = memory.read(at as usize, page).is_ok() && *page == ZEROS[..page.len()];
        if !is_zero {
            let written = memory.write(at as usize, &ZEROS[..page.len()]);
            debug_assert!(written.is_ok());
        }
        at += page.len() as u64;
    }
}

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

    /// Zeroes a part of what was given back, at most 2 MB, and returns whether there was any. The thread that turns the
    /// endpoint calls this in each turn: memory is lent again only once it is zeroed.
    pub fn turn(&mut self) -> bool {
        let Some(range) = self.donor.next_to_zero(ZEROED_PER_TURN) else { return false };
        zero(&self.memory, range);
        true
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
        if let Call::Discard { volume, epoch, session } = *call {
            self.donor.check_discard(volume, epoch, session)?;
            self.grants.retain(|(of, _)| of != volume);
            self.set_aside.evade(&self.provider, &self.memory, &mut self.donor, volume, true)?;
        }
        let mut answer = self.donor.handle(call)?;
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

#[cfg(test)]
mod tests {
    use sinew_fabric::SeededGenerator;

    use super::super::memory_provider::CallsOnly;
    use super::*;

    const LEN: u64 = 8 << 20;

    #[test]
    fn no_byte_of_one_volume_is_lent_to_another_and_the_donor_answers_while_it_zeroes() {
        let config = ServiceConfig::new(2 * LEN as usize, None);
        let mut service = Service::new(&CallsOnly, config, Box::new(SeededGenerator::new(1))).unwrap();
        let ask = |service: &mut Service<CallsOnly>, call: Call| service.call(&call, &[]).map(|(answer, _)| answer);
        (1..3).for_each(|volume| _ = ask(&mut service, Call::Fence { volume, epoch: 1 }).unwrap());
        let take = |service: &mut Service<CallsOnly>, volume, len| ask(service, Call::Take { volume, epoch: 1, len });
        let slabs: Vec<_> = (0..2).map(|_| take(&mut service, 1, LEN).unwrap()).collect();
        service.memory().write(0, &vec![0xEE; 2 * LEN as usize]).unwrap();
        for taken in slabs {
            let Answer::Taken { lent, .. } = taken else { panic!("{taken:?}") };
            ask(&mut service, Call::Free { volume: 1, epoch: 1, slab: lent.slab }).unwrap();
        }
        let mut turns = 0;
        while let Err(refusal) = take(&mut service, 2, 2 * LEN) {
            let zeroing = 2 * LEN - turns * ZEROED_PER_TURN;
            assert_eq!(refusal, Refusal::Zeroing { asked: 2 * LEN, zeroing });
            assert!(ask(&mut service, Call::Heartbeat { volume: 2, epoch: 1 }).is_ok());
            assert!(service.turn());
            turns += 1;
        }
        assert_eq!((turns, service.turn()), (2 * LEN / ZEROED_PER_TURN, false));
        let mut bytes = vec![1; 2 * LEN as usize];
        service.memory().read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn whoever_has_access_to_what_is_discarded_loses_it_the_caller_included() {
        let config = ServiceConfig::new(LEN as usize, None);
        let mut service = Service::new(&CallsOnly, config, Box::new(SeededGenerator::new(1))).unwrap();
        let (mut tokens, mut session) = (Vec::new(), 0);
        let fence = Call::Fence { volume: 1, epoch: 1 };
        for call in [fence, Call::Admit { volume: 1, epoch: 1, client: 1, lane: 0 }] {
            let (answer, path) = service.call(&call, &[]).unwrap();
            if let Answer::Fenced { session: fenced, .. } = answer {
                session = fenced;
            }
            let Some(AccessPath::Calls { token, .. }) = path else { panic!("{path:?}") };
            tokens.push(token);
        }
        assert!(tokens.iter().all(|token| service.grants.volume_of(*token) == Some(1)));
        assert!(service.call(&Call::Discard { volume: 1, epoch: 2, session }, &[]).is_err());
        assert!(tokens.iter().all(|token| service.grants.volume_of(*token) == Some(1)));
        service.call(&Call::Discard { volume: 1, epoch: 1, session }, &[]).unwrap();
        assert!(tokens.iter().all(|token| service.grants.volume_of(*token).is_none()));
    }
}
