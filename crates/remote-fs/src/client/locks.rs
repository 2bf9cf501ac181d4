//! Locks that this client holds, to be reported when it joins again.

use crate::protocol::{Ino, Lock, LockOwner};

/// Locks that were granted.
#[derive(Debug, Default)]
pub(super) struct HeldLocks(Vec<Lock>);

impl HeldLocks {
    /// Adds a granted lock, which replaces its owner's locks in the range.
    pub fn add(&mut self, lock: Lock) {
        self.remove(lock.ino, lock.owner, lock.first, lock.last);
        self.0.push(lock);
    }

    /// Removes an owner's locks from the range.
    pub fn remove(&mut self, ino: Ino, owner: LockOwner, first: u64, last: u64) {
        let (hit, mut kept): (Vec<_>, Vec<_>) = self
            .0
            .drain(..)
            .partition(|lock| lock.ino == ino && lock.owner == owner && lock.first <= last && first <= lock.last);
        for lock in hit {
            if lock.first < first {
                kept.push(Lock { last: first - 1, ..lock });
            }
            if lock.last > last {
                kept.push(Lock { first: last + 1, ..lock });
            }
        }
        self.0 = kept;
    }

    /// Whether an owner has a lock on a file.
    pub fn has(&self, ino: Ino, owner: LockOwner) -> bool {
        self.0.iter().any(|lock| lock.ino == ino && lock.owner == owner)
    }

    pub fn all(&self) -> Vec<Lock> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::LockKind;

    #[test]
    fn a_release_in_the_middle_leaves_both_ends() {
        let lock =
            |first, last| Lock { ino: Ino(2), owner: LockOwner::Posix(7), pid: 1, first, last, kind: LockKind::Write };
        let mut locks = HeldLocks::default();
        locks.add(lock(0, u64::MAX));
        locks.remove(Ino(2), LockOwner::Posix(8), 0, u64::MAX);
        locks.remove(Ino(2), LockOwner::Posix(7), 10, 19);
        assert_eq!(locks.all(), [lock(0, 9), lock(20, u64::MAX)]);
        locks.add(lock(5, 25));
        assert!(locks.has(Ino(2), LockOwner::Posix(7)) && !locks.has(Ino(3), LockOwner::Posix(7)));
        locks.remove(Ino(2), LockOwner::Posix(7), 0, u64::MAX);
        assert!(locks.all().is_empty());
    }
}
