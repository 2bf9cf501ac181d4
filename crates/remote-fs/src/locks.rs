//! Locks of clients on ranges of files: by `fcntl`, a process locks ranges of bytes; by `flock`, an open file locks the
//! whole file.
//!
//! An owner whose lock conflicts asks again until it has it. That it waits is remembered meanwhile, so that owners who
//! wait for each other are found: one of them is refused.

mod waits;

use std::collections::BTreeMap;

use waits::Waits;

use crate::protocol::{Error, Ino, LOCKS_MAX, Lock, LockKind, LockOwner};

/// Owner of a lock: a client, and an owner within it.
type Owner = (u64, LockOwner);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwnedLock {
    owner: Owner,
    lock: Lock,
}

/// The table of locks.
#[derive(Debug, Default)]
pub struct Locks {
    by_inode: BTreeMap<Ino, Vec<OwnedLock>>,
    /// Number of ranges that each client has locked.
    counts: BTreeMap<u64, usize>,
    waits: Waits,
}

fn is_flock(owner: LockOwner) -> bool {
    matches!(owner, LockOwner::Flock(_))
}

fn conflicts(held: &OwnedLock, owner: Owner, lock: &Lock) -> bool {
    held.owner != owner
        && is_flock(held.lock.owner) == is_flock(lock.owner)
        && held.lock.first <= lock.last
        && lock.first <= held.lock.last
        && (held.lock.kind == LockKind::Write || lock.kind == LockKind::Write)
}

impl Locks {
    /// Returns a lock that conflicts with this one, if there is one.
    pub fn find_conflict(&self, client: u64, lock: &Lock) -> Option<Lock> {
        let all = self.by_inode.get(&lock.ino)?;
        all.iter().find(|one| conflicts(one, (client, lock.owner), lock)).map(|one| one.lock)
    }

    /// Locks a range, replacing the owner's locks in it. If the owner `waits`, it counts as waiting for the lock from
    /// an answer [`Error::WouldBlock`] on, until it is answered otherwise, asks again without waiting, or has not asked
    /// for [`LOCK_WAIT_NS`](crate::protocol::LOCK_WAIT_NS).
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`] when another lock conflicts, [`Error::Deadlock`] when an owner that `waits` would wait for
    /// itself in the end, [`Error::Invalid`] for an empty range, [`Error::TooMany`] when two more ranges would exceed
    /// [`LOCKS_MAX`].
    pub fn lock(&mut self, client: u64, lock: Lock, waits: bool, now_ns: u64) -> Result<(), Error> {
        let result = match self.lock_at_once(client, lock) {
            Err(Error::WouldBlock) if waits && self.waits_for_itself((client, lock.owner), lock, now_ns) => {
                Err(Error::Deadlock)
            }
            result => result,
        };
        if waits && result == Err(Error::WouldBlock) {
            self.waits.add(client, lock, now_ns);
        } else {
            self.waits.remove(client, &lock);
        }
        result
    }

    fn lock_at_once(&mut self, client: u64, lock: Lock) -> Result<(), Error> {
        if lock.first > lock.last {
            return Err(Error::Invalid);
        }
        // Replacing the middle of a locked range leaves two ranges.
        if self.count(client) + 2 > LOCKS_MAX {
            return Err(Error::TooMany);
        }
        if self.find_conflict(client, &lock).is_some() {
            return Err(Error::WouldBlock);
        }
        let owner = (client, lock.owner);
        let (mut first, mut last) = (lock.first, lock.last);
        self.unlock(client, lock.ino, lock.owner, first, last);
        let all = self.by_inode.entry(lock.ino).or_default();
        let before = all.len();
        // Adjacent ranges of the same owner and kind are merged.
        all.retain(|one| {
            let is_like = one.owner == owner && one.lock.kind == lock.kind;
            let touches = one.lock.last.checked_add(1) == Some(first) || last.checked_add(1) == Some(one.lock.first);
            if is_like && touches {
                (first, last) = (first.min(one.lock.first), last.max(one.lock.last));
            }
            !(is_like && touches)
        });
        let merged = before - all.len();
        all.push(OwnedLock { owner, lock: Lock { first, last, ..lock } });
        *self.counts.entry(client).or_default() += 1;
        self.subtract(client, merged);
        Ok(())
    }

    /// Releases an owner's locks in a range.
    pub fn unlock(&mut self, client: u64, ino: Ino, owner: LockOwner, first: u64, last: u64) {
        let Some(all) = self.by_inode.get_mut(&ino) else { return };
        let (mut remainders, before) = (Vec::new(), all.len());
        all.retain(|one| {
            let is_hit = one.owner == (client, owner) && one.lock.first <= last && first <= one.lock.last;
            if is_hit && one.lock.first < first {
                remainders.push(OwnedLock { lock: Lock { last: first - 1, ..one.lock }, ..*one });
            }
            if is_hit && one.lock.last > last {
                remainders.push(OwnedLock { lock: Lock { first: last + 1, ..one.lock }, ..*one });
            }
            !is_hit
        });
        let removed = before - all.len();
        *self.counts.entry(client).or_default() += remainders.len();
        all.extend(remainders);
        if all.is_empty() {
            self.by_inode.remove(&ino);
        }
        self.subtract(client, removed);
    }

    /// Releases all locks of a client, which waits for none any more.
    pub fn release_client(&mut self, client: u64) {
        self.waits.remove_client(client);
        for all in self.by_inode.values_mut() {
            all.retain(|one| one.owner.0 != client);
        }
        self.by_inode.retain(|_, all| !all.is_empty());
        self.counts.remove(&client);
    }

    /// Forgets the locks of an inode that is gone.
    pub fn remove_inode(&mut self, ino: Ino) {
        self.waits.remove_inode(ino);
        for one in self.by_inode.remove(&ino).unwrap_or_default() {
            self.subtract(one.owner.0, 1);
        }
    }

    /// Number of ranges that a client has locked.
    pub fn count(&self, client: u64) -> usize {
        self.counts.get(&client).copied().unwrap_or_default()
    }

    fn subtract(&mut self, client: u64, removed: usize) {
        if let Some(count) = self.counts.get_mut(&client) {
            *count = count.saturating_sub(removed);
            if *count == 0 {
                self.counts.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: u64 = 12;

    /// Kind of lock by client, owner and byte.
    type Model = BTreeMap<(u64, LockOwner, u64), LockKind>;

    fn lock(client: u64, owner: LockOwner, first: u64, last: u64, kind: LockKind) -> Lock {
        Lock { ino: Ino(1), owner, pid: client as u32, first, last, kind }
    }

    fn owner() -> impl Strategy<Value = LockOwner> {
        prop_oneof![(0_u64..3).prop_map(LockOwner::Posix), (0_u64..2).prop_map(LockOwner::Flock)]
    }

    proptest! {
        #[test]
        fn locks_are_as_in_a_table_of_bytes(
            steps in prop::collection::vec((1_u64..4, owner(), 0..BYTES, 0..BYTES, 0..4_u8), 1..80)
        ) {
            let (mut locks, mut model) = (Locks::default(), Model::new());
            for (client, owner, first, len, what) in steps {
                let last = (first + len).min(BYTES - 1);
                let bytes = first..=last;
                let kind = if what == 0 { LockKind::Read } else { LockKind::Write };
                match what {
                    0 | 1 => {
                        let is_excluded = model.iter().any(|((of, by, byte), other)| {
                            (*of, *by) != (client, owner) && is_flock(*by) == is_flock(owner) && bytes.contains(byte)
                                && (kind == LockKind::Write || *other == LockKind::Write)
                        });
                        let lock = lock(client, owner, first, last, kind);
                        prop_assert_eq!(locks.find_conflict(client, &lock).is_some(), is_excluded);
                        let expected = if is_excluded { Err(Error::WouldBlock) } else { Ok(()) };
                        prop_assert_eq!(locks.lock(client, lock, false, 0), expected);
                        if !is_excluded {
                            model.extend(bytes.map(|byte| ((client, owner, byte), kind)));
                        }
                    }
                    2 => {
                        locks.unlock(client, Ino(1), owner, first, last);
                        model.retain(|(of, by, byte), _| (*of, *by) != (client, owner) || !bytes.contains(byte));
                    }
                    _ => {
                        locks.release_client(client);
                        model.retain(|(of, ..), _| *of != client);
                    }
                }
                let mut reported = Model::new();
                for one in locks.by_inode.values().flatten() {
                    let bytes = one.lock.first..=one.lock.last;
                    reported.extend(bytes.map(|byte| ((one.owner.0, one.owner.1, byte), one.lock.kind)));
                }
                prop_assert_eq!(&reported, &model);
                for client in 1..4 {
                    let count = locks.by_inode.values().flatten().filter(|one| one.owner.0 == client).count();
                    prop_assert_eq!(locks.count(client), count);
                }
            }
        }
    }

    #[test]
    fn a_client_locks_so_many_ranges_and_no_more() {
        let mut locks = Locks::default();
        let at = |byte| lock(1, LockOwner::Posix(1), byte, byte, LockKind::Read);
        let taken = (0..).map(|index| locks.lock(1, at(2 * index), false, 0)).take_while(Result::is_ok).count();
        assert_eq!(taken, LOCKS_MAX - 1);
        assert!(locks.lock(2, at(0), false, 0).is_ok());
        locks.remove_inode(Ino(1));
        assert_eq!((locks.count(1), locks.count(2)), (0, 0));
        assert!(locks.lock(1, at(0), false, 0).is_ok());
        assert_eq!(locks.lock(2, lock(2, LockOwner::Posix(1), 5, 4, LockKind::Read), false, 0), Err(Error::Invalid));
        let to_end = lock(2, LockOwner::Posix(1), 7, u64::MAX, LockKind::Write);
        assert!(locks.lock(2, to_end, false, 0).is_ok());
        assert_eq!(locks.find_conflict(1, &at(u64::MAX)), Some(to_end));
    }
}
