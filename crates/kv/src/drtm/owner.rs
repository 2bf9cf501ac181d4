//! The owner's side.

use std::collections::HashMap;

use sinew_fabric::verbs::{Access, Device};
use sinew_herd::{AdmitError, ClientId, Request, Response, Service, WorkerSeed};
use sinew_mem::SharedMemory;
use sinew_store::locked::{Inspected, Layout, LockWord, LockedTable, Released};
use sinew_store::remote::TableError;

use super::{EXISTS, LOCK_LEN, NOT_HELD};
use crate::one_sided::{self, Change, Hello, Status, Welcome};

/// Records that are looked at each time.
const LOOKS: u32 = 128;

/// What an owner is made for.
#[derive(Clone, Copy, Debug)]
pub struct OwnerConfig {
    /// See [`super::calls`].
    pub calls: one_sided::OwnerConfig,
    /// Who holds a lock for so long is given up. Far longer than a PUT takes, and than a client may stand still.
    pub lease_ns: u64,
}

/// What happened at an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerStats {
    /// Clients that were dismissed for holding a lock too long.
    pub overdue: u64,
    /// Locks that were released, of clients that were dismissed.
    pub released: u64,
    /// Items that moved to another record with that.
    pub moved: u64,
    /// Records or buckets that were found spoiled.
    pub repaired: u64,
}

/// A client, and the number by which lock words name it.
type Holder = (ClientId, u16);

/// Exposes a table's memory, admits clients, and releases what those hold that are gone. It belongs to one thread, that of the table.
pub struct Owner<D: Device> {
    inner: one_sided::Owner<D>,
    /// By the client's index.
    holders: Vec<Option<Holder>>,
    last_holder: u16,
    /// Locks that were seen, and when first.
    held: HashMap<u32, (LockWord, u64)>,
    next_record: u32,
    records: u32,
    lease_ns: u64,
    stats: OwnerStats,
}

impl<D: Device> Owner<D> {
    /// An owner without clients, what its one worker is made of, and the memory for the table, all zero.
    ///
    /// # Errors
    ///
    /// [`AdmitError`].
    pub fn new(
        device: &D,
        config: &OwnerConfig,
        layout: &Layout,
    ) -> Result<(Self, WorkerSeed<D>, SharedMemory), AdmitError> {
        let (inner, seed, memory) = one_sided::Owner::with_access(device, &config.calls, layout, Access::ALL)?;
        let owner = Self {
            inner,
            holders: vec![None; config.calls.clients],
            last_holder: 0,
            held: HashMap::new(),
            next_record: 0,
            records: layout.records,
            lease_ns: config.lease_ns,
            stats: OwnerStats::default(),
        };
        Ok((owner, seed, memory))
    }

    /// What happened so far.
    pub fn stats(&self) -> &OwnerStats {
        &self.stats
    }

    /// Makes room for a client and connects to it.
    ///
    /// # Errors
    ///
    /// [`AdmitError`].
    pub fn admit(&mut self, hello: &Hello) -> Result<(ClientId, Welcome), AdmitError> {
        let (id, mut welcome) = self.inner.admit(hello)?;
        // Not one that was in use lately: an operation of a client that is gone may have been stopped on its way.
        let mut number = self.last_holder;
        loop {
            number = number.checked_add(1).filter(|number| *number != LockWord::OWNER).unwrap_or(1);
            if self.holders.iter().flatten().all(|(_, holder)| *holder != number) {
                break;
            }
        }
        self.last_holder = number;
        self.holders[id.index as usize] = Some((id, number));
        welcome.table.extend(number.to_le_bytes());
        Ok((id, welcome))
    }

    /// A client left, or is dead: its place is free, and what it held is released, for which all records are looked at. Whether it was here.
    pub fn dismiss(&mut self, table: &mut LockedTable, id: ClientId) -> bool {
        if !self.inner.dismiss(id) {
            return false;
        }
        let Some((_, holder)) = self.holders[id.index as usize].take() else { return true };
        for record in 0..self.records {
            if let Some(lock) = table.held(record).filter(|lock| lock.holder() == Some(holder)) {
                self.release(table, record, lock);
            }
        }
        true
    }

    fn release(&mut self, table: &mut LockedTable, record: u32, lock: LockWord) {
        self.held.remove(&record);
        if let Some(released) = table.release(record, lock) {
            self.stats.released += 1;
            self.stats.moved += u64::from(released == Released::Moved);
        }
    }

    /// To be called now and then: some of the records are looked at, and what the device has to tell of connections is taken.
    pub fn tend(&mut self, table: &mut LockedTable, now_ns: u64) {
        self.inner.tend();
        for _ in 0..LOOKS.min(self.records) {
            let record = self.next_record;
            self.next_record = (record + 1) % self.records;
            match table.inspect(record) {
                Inspected::Held(lock) => self.judge(table, record, lock, now_ns),
                seen => {
                    self.stats.repaired += u64::from(seen == Inspected::Repaired);
                    if !self.held.is_empty() {
                        self.held.remove(&record);
                    }
                }
            }
        }
    }

    /// A lock is held.
    #[cold]
    fn judge(&mut self, table: &mut LockedTable, record: u32, lock: LockWord, now_ns: u64) {
        let holder = self.holders.iter().flatten().find(|(_, holder)| lock.holder() == Some(*holder));
        let Some((id, _)) = holder.copied() else {
            // Nobody has this number.
            return self.release(table, record, lock);
        };
        let (seen, since_ns) = *self.held.entry(record).or_insert((lock, now_ns));
        if seen != lock {
            self.held.insert(record, (lock, now_ns));
        } else if now_ns.saturating_sub(since_ns) >= self.lease_ns {
            self.stats.overdue += 1;
            self.dismiss(table, id);
        }
    }
}

/// Inserts and removes what clients ask for.
pub struct ChangeService {
    table: LockedTable,
}

impl ChangeService {
    /// For this table.
    pub fn new(table: LockedTable) -> Self {
        Self { table }
    }

    /// The table.
    pub fn table(&mut self) -> &mut LockedTable {
        &mut self.table
    }

    fn change(&mut self, request: &Request<'_>) -> Option<u16> {
        let (change, key_len) = Change::of(request.kind)?;
        let (key, rest) = request.body.split_at_checked(key_len)?;
        Some(match change {
            Change::Delete => {
                let (record, lock) = rest.split_first_chunk::<4>()?;
                let lock = LockWord(u64::from_le_bytes(lock.try_into().ok()?));
                let removed = self.table.remove(u32::from_le_bytes(*record), lock, key);
                if removed { Status::Deleted as u16 } else { NOT_HELD }
            }
            Change::Put => match self.table.insert(key, rest) {
                Ok(true) => Status::Stored as u16,
                Ok(false) => EXISTS,
                Err(TableError::Full { .. } | TableError::NoMemory { .. }) => Status::Full as u16,
                Err(TableError::Key { .. } | TableError::Value { .. }) => Status::TooLong as u16,
                Err(_) => Status::Malformed as u16,
            },
        })
    }
}

impl Service for ChangeService {
    type Job = ();

    fn prefetch(&mut self, _: &Request<'_>) {}

    #[inline]
    fn execute(&mut self, request: &Request<'_>, (): (), response: &mut Response<'_>) {
        response.kind = self.change(request).unwrap_or(Status::Malformed as u16);
    }
}

const _: () = assert!(LOCK_LEN == size_of::<u32>() + size_of::<LockWord>());
