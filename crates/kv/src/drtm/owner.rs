//! The owner of DrTM-KV's store: it exposes the table, inserts, removes and repairs.

use std::collections::HashMap;

use sinew_fabric::verbs::{Access, Device};
use sinew_herd::{AdmitError, ClientId, Request, Response, Service, WorkerSeed};
use sinew_mem::SharedMemory;
use sinew_store::locked::{Inspected, Layout, Located, LockWord, LockedTable, Released};
use sinew_store::remote::TableError;

use super::{EXISTS, LOCK_LEN, NOT_HELD};
use crate::one_sided::{self, Change, Hello, Status, Welcome};

/// Records inspected by each call of [`Owner::tend`].
const RECORDS_PER_TEND: u32 = 128;

/// Limits of an owner.
#[derive(Clone, Copy, Debug)]
pub struct OwnerConfig {
    /// Configuration of the calls, made by [`super::calls`].
    pub calls: one_sided::OwnerConfig,
    /// Time for which a client may hold a lock before it is given up, in nanoseconds. It must be far longer than a PUT
    /// takes, and than a client may be stopped.
    pub lease_ns: u64,
}

/// Counters of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerStats {
    /// Clients dismissed for holding a lock too long.
    pub overdue: u64,
    /// Locks released because their holders had been dismissed.
    pub released: u64,
    /// Items that moved to another record on release.
    pub moved: u64,
    /// Records or buckets found damaged and repaired.
    pub repaired: u64,
}

/// A client, with its number in lock words.
type Holder = (ClientId, u16);

/// Exposes a table's memory, admits clients, and releases the locks of lost ones. It belongs to one thread, that of the
/// table.
pub struct Owner<D: Device> {
    inner: one_sided::Owner<D>,
    /// By client index.
    holders: Vec<Option<Holder>>,
    last_holder: u16,
    /// Held locks by record, each with the time at which it was first seen.
    held: HashMap<u32, (LockWord, u64)>,
    next_record: u32,
    records: u32,
    lease_ns: u64,
    stats: OwnerStats,
}

impl<D: Device> Owner<D> {
    /// Returns an owner without clients, the seed of its one worker, and the memory for the table, all zero.
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

    /// Counters so far.
    pub fn stats(&self) -> &OwnerStats {
        &self.stats
    }

    /// Reserves a place for a client and connects to it.
    ///
    /// # Errors
    ///
    /// [`AdmitError`].
    pub fn admit(&mut self, hello: &Hello) -> Result<(ClientId, Welcome), AdmitError> {
        let (id, mut welcome) = self.inner.admit(hello)?;
        // A number in recent use is avoided: an operation of a lost client may still be on its way.
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

    /// Frees the place of a client that has left or died, and releases its locks, for which it looks at all records.
    /// Returns whether the client was here.
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

    /// Inspects the next few records, and takes the device's completions on the connections. Call it now and then.
    pub fn tend(&mut self, table: &mut LockedTable, now_ns: u64) {
        self.inner.tend();
        for _ in 0..RECORDS_PER_TEND.min(self.records) {
            let record = self.next_record;
            self.next_record = (record + 1) % self.records;
            match table.inspect(record) {
                Inspected::Held(lock) => self.check_lease(table, record, lock, now_ns),
                seen => {
                    self.stats.repaired += u64::from(seen == Inspected::Repaired);
                    if !self.held.is_empty() {
                        self.held.remove(&record);
                    }
                }
            }
        }
    }

    /// Decides about a held lock: releases it if its holder is unknown, and dismisses the holder if it is overdue.
    #[cold]
    fn check_lease(&mut self, table: &mut LockedTable, record: u32, lock: LockWord, now_ns: u64) {
        let holder = self.holders.iter().flatten().find(|(_, holder)| lock.holder() == Some(*holder));
        let Some((id, _)) = holder.copied() else {
            // No client has this number.
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

/// Inserts and removes items for clients.
pub struct ChangeService {
    table: LockedTable,
}

impl ChangeService {
    /// Serves changes of `table`.
    pub fn new(table: LockedTable) -> Self {
        Self { table }
    }

    /// The table.
    pub fn table(&mut self) -> &mut LockedTable {
        &mut self.table
    }

    #[inline]
    fn change(&mut self, request: &Request<'_>, located: Located) -> Option<u16> {
        let (change, key, rest) = Change::parse(request)?;
        Some(match change {
            Change::Delete => {
                let (record, lock) = rest.split_first_chunk::<4>()?;
                let lock = LockWord(u64::from_le_bytes(lock.try_into().ok()?));
                let removed = self.table.remove_located(u32::from_le_bytes(*record), lock, key, located);
                if removed { Status::Deleted as u16 } else { NOT_HELD }
            }
            Change::Put => match self.table.insert_located(key, rest, located) {
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
    type Job = Located;

    #[inline]
    fn prefetch(&mut self, request: &Request<'_>) -> Located {
        let Some((_, key, _)) = Change::parse(request) else { return Located::default() };
        let located = self.table.locate(key);
        self.table.prefetch(&located);
        located
    }

    #[inline]
    fn advance(&mut self, _: &Request<'_>, located: &mut Located) {
        self.table.prefetch_item(located);
    }

    #[inline]
    fn execute(&mut self, request: &Request<'_>, located: Located, response: &mut Response<'_>) {
        response.kind = self.change(request, located).unwrap_or(Status::Malformed as u16);
    }
}

const _: () = assert!(LOCK_LEN == size_of::<u32>() + size_of::<LockWord>());
