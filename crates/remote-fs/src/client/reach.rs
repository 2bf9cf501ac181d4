//! Reads and writes of donors' memory, by the calling thread.

use sinew_mem::MessageBuffer;
use sinew_remote_memory::donor::{Answer, Call, Refusal};
use sinew_remote_memory::engine::Op;
use sinew_remote_memory::pool::{AccessMethod, DonorHandle, PoolConfig};
use sinew_remote_memory::volume::{CallFailed, Event};
use sinew_rpc::Endpoint;

use super::donor_connection::{DonorConnection, NotAdmitted};
use super::lane::Lane;
use crate::protocol::SegmentCopy;

/// Time for which a donor that could not be reached is left alone, in ns.
const RETRY_PAUSE_NS: u64 = 500_000_000;
/// Idle turns after which the processor is yielded.
const SPINS: u32 = 200;

/// An operation for a donor, and its outcome.
pub(super) struct CopyTransfer {
    pub copy: SegmentCopy,
    pub op: Option<Op>,
    /// Data of a read that succeeded.
    pub target: Option<MessageBuffer>,
    pub error: Option<String>,
    /// Whether it failed because the donor did not answer within [`donor_timeout_ns`](super::ClientConfig).
    pub is_late: bool,
    /// Whether it failed because the donor refuses this client's number. That says nothing about the copy.
    pub is_expelled: bool,
    is_completed: bool,
}

impl CopyTransfer {
    pub fn new(copy: SegmentCopy, op: Op) -> Self {
        Self { copy, op: Some(op), target: None, error: None, is_late: false, is_expelled: false, is_completed: false }
    }

    fn fail(&mut self, NotAdmitted { why, is_expelled }: NotAdmitted) {
        (self.error, self.is_expelled, self.is_completed, self.op) = (Some(why), is_expelled, true, None);
    }
}

/// Time since anything happened.
#[derive(Default)]
struct IdleWait {
    turns: u32,
    until_ns: Option<u64>,
}

impl<E: Endpoint, A: AccessMethod> Lane<E, A> {
    /// Carries out all transfers, and waits for their end. Writes go to pages that were reserved under a client number
    /// and an epoch, `reserved_as`: they fail if the client has another number by now, or the epoch is over.
    pub(super) fn transfer(&mut self, transfers: &mut [CopyTransfer], reserved_as: Option<(u64, u32)>) {
        // Admission to all donors comes first: while it is asked for, other events are dropped.
        for transfer in transfers.iter_mut() {
            if let Err(why) = self.ensure_admitted(&transfer.copy, reserved_as) {
                transfer.fail(why);
            }
        }
        let first_tag = self.next_tag;
        let mut open = 0;
        let mut idle = IdleWait::default();
        for index in 0..transfers.len() {
            let (donor, tag) = (transfers[index].copy.donor.0, first_tag + index as u64);
            while let Some(op) = transfers[index].op.take() {
                let Some(connection) = self.donors.get_mut(&donor) else { break };
                match connection.handle.submit(tag, op) {
                    Ok(()) => open += 1,
                    // There is room once an operation has ended.
                    Err(op) => {
                        transfers[index].op = Some(op);
                        let busy = self.turn_donors();
                        let completed = self.collect_results(first_tag, transfers);
                        open -= completed;
                        if self.has_timed_out(&mut idle, busy || completed > 0) {
                            self.next_tag += transfers.len() as u64;
                            self.give_up(transfers);
                            return;
                        }
                    }
                }
            }
        }
        self.next_tag += transfers.len() as u64;
        while open > 0 {
            let busy = self.turn_donors();
            let completed = self.collect_results(first_tag, transfers);
            open -= completed;
            if self.has_timed_out(&mut idle, busy || completed > 0) {
                self.give_up(transfers);
                return;
            }
        }
        for transfer in transfers.iter().filter(|transfer| transfer.error.is_some()) {
            self.readmit_if_broken(transfer);
        }
    }

    /// Whether nothing has happened for as long as donors may take. Yields the processor meanwhile.
    fn has_timed_out(&self, idle: &mut IdleWait, has_happened: bool) -> bool {
        if has_happened {
            *idle = IdleWait::default();
            return false;
        }
        idle.turns += 1;
        if idle.turns <= SPINS {
            return false;
        }
        std::thread::yield_now();
        let now_ns = self.now_ns();
        now_ns > *idle.until_ns.get_or_insert(now_ns + self.client.config.donor_timeout_ns)
    }

    fn turn_donors(&mut self) -> bool {
        let mut busy = false;
        for connection in self.donors.values_mut() {
            busy |= connection.handle.turn();
            connection.handle.poll(&mut self.events);
        }
        busy
    }

    /// Takes the results of transfers that have ended. Returns their number.
    fn collect_results(&mut self, first_tag: u64, transfers: &mut [CopyTransfer]) -> usize {
        let mut completed = 0;
        for event in self.events.drain(..) {
            if let Event::OpFinished { tag, error, target } = event
                && let Some(transfer) = tag.checked_sub(first_tag).and_then(|index| transfers.get_mut(index as usize))
            {
                completed += 1;
                (transfer.error, transfer.target, transfer.is_completed) = (error, target, true);
            }
        }
        completed
    }

    /// Gives up transfers that have not ended. Their donors are lost to this lane, with the buffers that they hold.
    fn give_up(&mut self, transfers: &mut [CopyTransfer]) {
        for transfer in transfers.iter_mut().filter(|transfer| !transfer.is_completed) {
            transfer.fail("it has not answered in time".into());
            transfer.is_late = true;
            self.donors.remove(&transfer.copy.donor.0);
        }
    }

    /// Asks the donor for admission again if the path has failed. The donor is left alone only if that fails, too.
    fn readmit_if_broken(&mut self, transfer: &CopyTransfer) {
        if let Some(connection) = self.donors.get_mut(&transfer.copy.donor.0)
            && !connection.handle.is_connected()
        {
            connection.admitted = None;
        }
    }

    /// Whether a copy can be reached, as far as is known without asking.
    pub(super) fn is_connected(&self, copy: &SegmentCopy) -> bool {
        self.donors
            .get(&copy.donor.0)
            .is_some_and(|connection| connection.admitted.is_some() && connection.handle.is_connected())
    }

    /// Has the donor admit this lane, unless it has done so.
    fn ensure_admitted(&mut self, copy: &SegmentCopy, reserved_as: Option<(u64, u32)>) -> Result<(), NotAdmitted> {
        let identity = self.client.identity();
        let admitted_as = (identity.client, identity.epoch);
        if reserved_as.is_some_and(|reserved_as| reserved_as != admitted_as) {
            return Err("the service has forgotten the reservation of the pages".into());
        }
        let key = copy.donor.0;
        if !self.donors.contains_key(&key) {
            let donors = self.client.donors();
            let known = donors.iter().find(|known| known.donor == copy.donor);
            let known = known.ok_or("the service has not said where the donor is")?;
            let unknown = |error| NotAdmitted::from(format!("{}: {error}", known.address));
            let address = known.address.parse().map_err(unknown)?;
            let config = PoolConfig { key: self.client.config.key.clone(), ..self.client.config.pool.clone() };
            let handle = DonorHandle::new(address, self.rpc.share(), &self.access_method, &config);
            let connection = DonorConnection {
                handle,
                admitted: None,
                incarnation: 0,
                gone_incarnation: None,
                retry_at_ns: 0,
                last_error: NotAdmitted::default(),
                expelled_as: None,
            };
            self.donors.insert(key, connection);
        }
        let now_ns = self.now_ns();
        let Some(connection) = self.donors.get_mut(&key) else { return Err("it is not there".into()) };
        // The path may lead to an earlier run of the donor, which is gone without our having noticed, while the copy is
        // of a later run.
        if connection.admitted == Some(admitted_as)
            && connection.handle.is_connected()
            && connection.check_incarnation(copy.incarnation).is_ok()
        {
            return Ok(());
        }
        // An extent whose place was read before the donor restarted names the earlier run at each read.
        if connection.gone_incarnation.is_some_and(|(run, until_ns)| run == copy.incarnation && now_ns < until_ns) {
            return connection.check_incarnation(copy.incarnation);
        }
        // Under another number it may be admitted at once.
        let has_other_number = connection.expelled_as.is_some_and(|expelled_as| expelled_as != admitted_as);
        if now_ns < connection.retry_at_ns && !has_other_number {
            return Err(connection.last_error.clone());
        }
        // If it refuses a second number, too, the donor is at fault, and stays so for that number.
        let is_at_fault = connection.expelled_as.is_some_and(|refused| {
            refused.0 != admitted_as.0 || refused == admitted_as && !connection.last_error.is_expelled
        });
        let (volume, epoch, client, lane) = (identity.volume, identity.epoch, identity.client, self.number);
        match self.admit(key, Call::Admit { volume, epoch, client, lane }) {
            Ok(Answer::Admitted { incarnation, .. }) => {
                let Some(connection) = self.donors.get_mut(&key) else { return Err("it is not there".into()) };
                (connection.admitted, connection.incarnation) = (Some(admitted_as), incarnation);
                (connection.expelled_as, connection.retry_at_ns) = (None, 0);
                connection.check_incarnation(copy.incarnation).inspect_err(|_| {
                    connection.gone_incarnation = Some((copy.incarnation, now_ns + RETRY_PAUSE_NS));
                })
            }
            other => {
                let was_refused = matches!(other, Err(CallFailed::Refused(Refusal::Expelled { .. })));
                let is_expelled = was_refused && !is_at_fault;
                let why = match other {
                    Ok(_) => "its answer is unexpected".into(),
                    Err(error) => error.to_string(),
                };
                let not_admitted = NotAdmitted { why, is_expelled };
                let now_ns = self.now_ns();
                if let Some(connection) = self.donors.get_mut(&key) {
                    connection.admitted = None;
                    connection.retry_at_ns = now_ns + RETRY_PAUSE_NS;
                    connection.last_error.clone_from(&not_admitted);
                    connection.expelled_as = was_refused.then_some(admitted_as);
                }
                Err(not_admitted)
            }
        }
    }

    /// Asks a donor to admit us, once more over a new session if it turns out to have given up the old one. It does so
    /// when this process has been stopped for a while: no reason to count its copies as lost.
    fn admit(&mut self, donor: u64, call: Call) -> Result<Answer, CallFailed> {
        let has_session =
            |lane: &Self| lane.donors.get(&donor).is_some_and(|connection| connection.handle.has_session());
        let had_session = has_session(self);
        match self.call(donor, call.clone()) {
            Err(CallFailed::Unreachable(_)) if had_session && !has_session(self) => self.call(donor, call),
            result => result,
        }
    }

    fn call(&mut self, donor: u64, call: Call) -> Result<Answer, CallFailed> {
        let tag = self.next_tag;
        self.next_tag += 1;
        if let Some(connection) = self.donors.get_mut(&donor) {
            connection.handle.call(tag, call);
        }
        loop {
            let busy = self.turn_donors();
            let answer = self.events.drain(..).find_map(|event| match event {
                Event::CallAnswered { tag: answered_tag, result } if answered_tag == tag => Some(result),
                _ => None,
            });
            if let Some(answer) = answer {
                return answer;
            }
            if !busy {
                std::thread::yield_now();
            }
        }
    }
}
