//! Owners that wait for locks, and the search for one that waits for itself: it waits for a lock whose holder waits for
//! another, and so on, until the last one waits for a lock of the first.
//!
//! As in Linux, only locks by `fcntl` are searched, and a process counts as one owner: one of its threads is refused
//! even if another would release the lock that closes the circle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Locks, Owner, conflicts};
use crate::protocol::{Ino, LOCK_WAIT_NS, LOCK_WAITS_MAX, Lock, LockOwner};

/// Locks that a search looks at, held or waited for, before it gives up and finds no deadlock. An owner that is found
/// to be in the way counts as [`OWNER_LOOKS`] more. (The most work is some 40 us.) Nearby deadlocks are found first.
const LOOKS_MAX: usize = 8192;
/// Finding out what an owner waits for takes about as long as looks at so many locks.
const OWNER_LOOKS: usize = 16;

/// A lock that an owner waits for.
#[derive(Debug)]
struct Wait {
    lock: Lock,
    /// When the owner last asked. A client that is killed, or whose cancellation is lost, asks no more.
    asked_ns: u64,
}

impl Wait {
    fn is_over(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.asked_ns) > LOCK_WAIT_NS
    }
}

/// The locks that owners wait for.
#[derive(Debug, Default)]
pub(super) struct Waits(BTreeMap<Owner, Vec<Wait>>);

impl Waits {
    /// Records that a client's owner waits for a lock, by `fcntl`. Above [`LOCK_WAITS_MAX`] it is not recorded.
    pub fn add(&mut self, client: u64, lock: Lock, now_ns: u64) {
        if super::is_flock(lock.owner) {
            return;
        }
        let owner = (client, lock.owner);
        if let Some(wait) = self.0.get_mut(&owner).into_iter().flatten().find(|wait| wait.lock == lock) {
            wait.asked_ns = now_ns;
            return;
        }
        if self.count(client) >= LOCK_WAITS_MAX {
            self.retain(|(of, _), wait| of != client || !wait.is_over(now_ns));
            if self.count(client) >= LOCK_WAITS_MAX {
                return;
            }
        }
        self.0.entry(owner).or_default().push(Wait { lock, asked_ns: now_ns });
    }

    fn count(&self, client: u64) -> usize {
        let all_owners = (client, LockOwner::Posix(0))..=(client, LockOwner::Posix(u64::MAX));
        self.0.range(all_owners).map(|(_, waits)| waits.len()).sum()
    }

    fn retain(&mut self, keeps: impl Fn(Owner, &Wait) -> bool) {
        self.0.retain(|owner, waits| {
            waits.retain(|wait| keeps(*owner, wait));
            !waits.is_empty()
        });
    }

    /// Records that a client's owner does not wait for a lock.
    pub fn remove(&mut self, client: u64, lock: &Lock) {
        let owner = (client, lock.owner);
        let Some(waits) = self.0.get_mut(&owner) else { return };
        waits.retain(|wait| wait.lock != *lock);
        if waits.is_empty() {
            self.0.remove(&owner);
        }
    }

    /// Forgets a client.
    pub fn remove_client(&mut self, client: u64) {
        self.0.retain(|(of, _), _| *of != client);
    }

    /// Forgets an inode that is gone.
    pub fn remove_inode(&mut self, ino: Ino) {
        self.retain(|_, wait| wait.lock.ino != ino);
    }

    fn of(&self, owner: Owner, now_ns: u64) -> impl Iterator<Item = Lock> {
        let waits = self.0.get(&owner).into_iter().flatten();
        waits.filter(move |wait| !wait.is_over(now_ns)).map(|wait| wait.lock)
    }
}

impl Locks {
    /// Whether an owner that waited for a lock would wait for itself in the end, as far as [`LOOKS_MAX`] looks show.
    pub(super) fn waits_for_itself(&self, waiter: Owner, lock: Lock, now_ns: u64) -> bool {
        if super::is_flock(lock.owner) {
            return false;
        }
        let mut looks = 0;
        let mut seen = BTreeSet::new();
        let mut waits = VecDeque::from([(waiter, lock)]);
        while let Some((owner, wanted)) = waits.pop_front() {
            for held in self.by_inode.get(&wanted.ino).into_iter().flatten() {
                looks += 1;
                if looks > LOOKS_MAX {
                    return false;
                }
                if !conflicts(held, owner, &wanted) {
                    continue;
                }
                if held.owner == waiter {
                    return true;
                }
                if seen.insert(held.owner) {
                    let before = waits.len();
                    waits.extend(self.waits.of(held.owner, now_ns).map(|wanted| (held.owner, wanted)));
                    looks += OWNER_LOOKS + waits.len() - before;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::OwnedLock;
    use super::*;
    use crate::protocol::{Error, LockKind};

    fn lock(ino: u64, owner: LockOwner, first: u64, last: u64, kind: LockKind) -> Lock {
        Lock { ino: Ino(ino), owner, pid: 1, first, last, kind }
    }

    fn byte(ino: u64, owner: u64, byte: u64) -> Lock {
        lock(ino, LockOwner::Posix(owner), byte, byte, LockKind::Write)
    }

    #[test]
    fn of_owners_that_wait_for_each_other_the_last_is_refused_and_the_first_gets_its_lock() {
        let mut locks = Locks::default();
        // Three processes on two hosts, each with a byte that the next wants.
        let owners = [(1, 7), (2, 7), (2, 8)];
        for (at, (client, owner)) in (0..).zip(owners) {
            locks.lock(client, byte(at, owner, 5), true, 0).unwrap();
        }
        let wants = |(client, owner), at| (client, byte(at, owner, 5));
        let (first, second, third) = (wants(owners[0], 1), wants(owners[1], 2), wants(owners[2], 0));
        assert_eq!(locks.lock(first.0, first.1, true, 0), Err(Error::WouldBlock));
        assert_eq!(locks.lock(second.0, second.1, true, 0), Err(Error::WouldBlock));
        assert_eq!(
            locks.lock(third.0, third.1, false, 0),
            Err(Error::WouldBlock),
            "who does not wait is in no deadlock"
        );
        assert_eq!(locks.lock(third.0, third.1, true, 0), Err(Error::Deadlock));
        // The others wait on as before, and the one that was refused does not.
        assert_eq!(locks.lock(first.0, first.1, true, 0), Err(Error::WouldBlock));
        assert_eq!(locks.lock(second.0, second.1, true, 0), Err(Error::WouldBlock));
        locks.unlock(2, Ino(2), LockOwner::Posix(8), 0, u64::MAX);
        assert_eq!(locks.lock(second.0, second.1, true, 0), Ok(()));
    }

    #[test]
    fn who_has_given_up_or_is_gone_or_was_served_is_not_waiting() {
        let crosswise = || {
            let mut locks = Locks::default();
            locks.lock(1, byte(1, 1, 0), false, 0).unwrap();
            locks.lock(2, byte(2, 2, 0), false, 0).unwrap();
            assert_eq!(locks.lock(1, byte(2, 1, 0), true, 0), Err(Error::WouldBlock));
            locks
        };
        let other = |locks: &mut Locks| locks.lock(2, byte(1, 2, 0), true, 0);
        assert_eq!(other(&mut crosswise()), Err(Error::Deadlock));
        let mut locks = crosswise();
        assert_eq!(locks.lock(1, byte(2, 1, 0), false, 0), Err(Error::WouldBlock));
        assert_eq!(other(&mut locks), Err(Error::WouldBlock), "it has given up");
        let mut locks = crosswise();
        locks.release_client(1);
        locks.lock(1, byte(1, 1, 0), false, 0).unwrap();
        assert_eq!(other(&mut locks), Err(Error::WouldBlock), "it has joined again");
        let mut locks = crosswise();
        locks.unlock(2, Ino(2), LockOwner::Posix(2), 0, 0);
        locks.lock(1, byte(2, 1, 0), true, 0).unwrap();
        locks.unlock(1, Ino(2), LockOwner::Posix(1), 0, 0);
        locks.lock(2, byte(2, 2, 0), true, 0).unwrap();
        assert_eq!(other(&mut locks), Err(Error::WouldBlock), "it has had its lock");
    }

    #[test]
    fn who_has_not_asked_for_a_while_is_not_waiting() {
        let mut locks = Locks::default();
        locks.lock(1, byte(1, 1, 0), false, 0).unwrap();
        locks.lock(2, byte(2, 2, 0), false, 0).unwrap();
        assert_eq!(locks.lock(1, byte(2, 1, 0), true, 5), Err(Error::WouldBlock));
        let other = |locks: &mut Locks, now_ns| locks.lock(2, byte(1, 2, 0), true, now_ns);
        assert_eq!(other(&mut locks, 5 + LOCK_WAIT_NS), Err(Error::Deadlock));
        assert_eq!(other(&mut locks, 6 + LOCK_WAIT_NS), Err(Error::WouldBlock), "its cancellation was lost");
        // It was only slow, and is told as it asks again.
        assert_eq!(locks.lock(1, byte(2, 1, 0), true, 7 + LOCK_WAIT_NS), Err(Error::Deadlock));
        // Each time that it asks, it counts for as long again.
        let mut locks = Locks::default();
        locks.lock(1, byte(1, 1, 0), false, 0).unwrap();
        locks.lock(2, byte(2, 2, 0), false, 0).unwrap();
        for now_ns in [0, LOCK_WAIT_NS, 2 * LOCK_WAIT_NS] {
            assert_eq!(locks.lock(1, byte(2, 1, 0), true, now_ns), Err(Error::WouldBlock));
        }
        assert_eq!(other(&mut locks, 3 * LOCK_WAIT_NS), Err(Error::Deadlock));
    }

    #[test]
    fn nobody_waits_for_a_file_that_is_gone() {
        let mut locks = Locks::default();
        locks.lock(1, byte(1, 1, 0), false, 0).unwrap();
        assert_eq!(locks.lock(2, byte(1, 2, 0), true, 0), Err(Error::WouldBlock));
        locks.remove_inode(Ino(1));
        assert!(locks.waits.0.is_empty());
    }

    #[test]
    fn a_deadlock_by_flock_is_not_searched() {
        let mut locks = Locks::default();
        let whole = |ino, owner| lock(ino, LockOwner::Flock(owner), 0, u64::MAX, LockKind::Write);
        locks.lock(1, whole(1, 1), true, 0).unwrap();
        locks.lock(1, whole(2, 2), true, 0).unwrap();
        assert_eq!(locks.lock(1, whole(2, 1), true, 0), Err(Error::WouldBlock));
        assert_eq!(locks.lock(1, whole(1, 2), true, 0), Err(Error::WouldBlock));
    }

    #[test]
    fn a_search_ends_however_many_locks_there_are() {
        let mut locks = Locks::default();
        // Many clients' locks lie in the way in one file.
        let one_of_many = |at| OwnedLock { owner: (100 + at, LockOwner::Posix(1)), lock: byte(2, 1, 1000 + at) };
        locks.by_inode.insert(Ino(2), (0..LOOKS_MAX as u64).map(one_of_many).collect());
        let mut cross = |files: [u64; 2]| {
            for (owner, file) in [(1, files[0]), (2, files[1])] {
                locks.lock(owner, byte(file, owner, owner), false, 0).unwrap();
            }
            let first = locks.lock(1, byte(files[1], 1, 2), true, 0);
            let second = locks.lock(2, byte(files[0], 2, 1), true, 0);
            locks.release_client(1);
            locks.release_client(2);
            (first, second)
        };
        assert_eq!(cross([1, 3]), (Err(Error::WouldBlock), Err(Error::Deadlock)));
        assert_eq!(cross([1, 2]), (Err(Error::WouldBlock), Err(Error::WouldBlock)), "the search ends in the crowd");
        // Many have what is wanted.
        for (many, found) in
            [(LOOKS_MAX / OWNER_LOOKS / 2, Error::Deadlock), (LOOKS_MAX / OWNER_LOOKS, Error::WouldBlock)]
        {
            let mut locks = Locks::default();
            let owners =
                (100..).map(|client| (client, LockOwner::Posix(1))).take(many).chain([(2, LockOwner::Posix(2))]);
            for (client, owner) in owners {
                locks.lock(client, lock(2, owner, 0, 0, LockKind::Read), false, 0).unwrap();
            }
            locks.lock(1, byte(1, 1, 0), false, 0).unwrap();
            assert_eq!(locks.lock(2, byte(1, 2, 0), true, 0), Err(Error::WouldBlock));
            assert_eq!(locks.lock(1, byte(2, 1, 0), true, 0), Err(found), "{many} owners");
        }
    }

    #[test]
    fn a_client_waits_for_so_many_locks_and_no_more() {
        let mut locks = Locks::default();
        locks.lock(1, lock(1, LockOwner::Posix(1), 0, u64::MAX, LockKind::Write), false, 0).unwrap();
        for at in 0..2 * LOCK_WAITS_MAX as u64 {
            assert_eq!(locks.lock(2, byte(1, at % 3, at), true, 0), Err(Error::WouldBlock));
        }
        assert_eq!(locks.waits.0.values().map(Vec::len).sum::<usize>(), LOCK_WAITS_MAX);
        locks.lock(3, byte(3, 1, 0), false, 0).unwrap();
        assert_eq!(locks.lock(4, byte(3, 1, 0), true, 0), Err(Error::WouldBlock));
        assert!(locks.waits.of((4, LockOwner::Posix(1)), 0).count() == 1, "others wait as before");
        // What was not asked for again makes room.
        let later = LOCK_WAIT_NS + 1;
        assert_eq!(locks.lock(2, byte(1, 9, 9), true, later), Err(Error::WouldBlock));
        assert_eq!(locks.waits.of((2, LockOwner::Posix(9)), later).count(), 1);
        assert_eq!(locks.waits.0.keys().filter(|(client, _)| *client == 2).count(), 1);
    }

    /// Owners and what they hold and wait for, each as one of a few bytes, all of them exclusive.
    #[derive(Default)]
    struct Model {
        holder: BTreeMap<u64, u64>,
        waits: BTreeSet<(u64, u64)>,
    }

    impl Model {
        /// Whether `to` is reached from an owner by a walk of some length, from each owner to one that it waits for.
        fn reaches(&self, from: u64, to: u64) -> bool {
            let mut reached = BTreeSet::from([from]);
            for _ in 0..OWNERS {
                let next = |(owner, byte): &(u64, u64)| reached.contains(owner).then(|| self.holder.get(byte).copied());
                let more: Vec<u64> = self.waits.iter().filter_map(next).flatten().collect();
                reached.extend(more);
            }
            reached.contains(&to)
        }
    }

    const OWNERS: u64 = 5;

    proptest! {
        #[test]
        fn deadlocks_are_circles_of_waiting_owners(
            steps in prop::collection::vec((0..OWNERS, 0..6_u64, 0..4_u8), 1..120)
        ) {
            let (mut locks, mut model) = (Locks::default(), Model::default());
            for (owner, at, what) in steps {
                let lock = byte(at % 2, owner, at);
                let client = owner % 2;
                if what == 0 {
                    locks.unlock(client, lock.ino, lock.owner, at, at);
                    model.holder.retain(|byte, holder| (*byte, *holder) != (at, owner));
                    continue;
                }
                let waits = what > 1;
                let result = locks.lock(client, lock, waits, 0);
                let expected = match model.holder.get(&at) {
                    Some(&holder) if holder != owner && waits && model.reaches(holder, owner) => Err(Error::Deadlock),
                    Some(&holder) if holder != owner => Err(Error::WouldBlock),
                    _ => Ok(()),
                };
                prop_assert_eq!(result, expected);
                match result {
                    Err(Error::WouldBlock) if waits => drop(model.waits.insert((owner, at))),
                    _ => drop(model.waits.remove(&(owner, at))),
                }
                if result.is_ok() {
                    model.holder.insert(at, owner);
                }
            }
        }
    }
}
