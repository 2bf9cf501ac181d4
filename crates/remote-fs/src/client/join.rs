//! Joining the service, and staying joined.

use std::collections::{BTreeSet, HashSet};
use std::sync::PoisonError;

use sinew_remote_memory::pool::AccessMethod;
use sinew_rpc::Endpoint;

use super::ask::Attempt;
use super::error::ClientError;
use super::lane::Lane;
use super::shared::{Client, Handle, Identity};
use crate::protocol::{
    Access, Caller, EXTENTS_MAX, Envelope, Error, Ino, Join, Joined, Lock, LockOwner, Message, OpenFile,
    RESERVE_PAGES_MAX, Reply, Request, SegmentCopy,
};
use crate::space::Purpose;

const MS: u64 = 1_000_000;
const PAUSE: u64 = 50 * MS;

/// Changes since the join request, or the whole state if the service gave the client a new identity. The service must
/// be told of them.
struct Unsynced {
    opens: Vec<OpenFile>,
    closes: Vec<u64>,
    /// Owners of locks, per file, for which the service's view differs from the client's.
    owners: BTreeSet<(Ino, LockOwner)>,
}

/// Reason why the service was not told everything.
enum Interrupted {
    /// The client must join again.
    Again(String),
    Failed(ClientError),
}

impl From<ClientError> for Interrupted {
    fn from(failed: ClientError) -> Self {
        Self::Failed(failed)
    }
}

impl Client {
    /// Handles that are open.
    fn held(&self) -> Vec<OpenFile> {
        let open_of = |(handle, open): (&u64, &Handle)| {
            let (ino, access) = match open {
                Handle::File { file, access } => (file.ino, *access),
                Handle::Directory { ino, .. } => (*ino, Access { read: true, ..Access::default() }),
            };
            OpenFile { handle: *handle, ino, access }
        };
        self.handles().iter().map(open_of).collect()
    }

    /// The request to join: open handles and locks.
    fn join_message(&self) -> Join {
        let identity = self.identity();
        Join {
            before: (identity.joined > 0).then_some((identity.client, identity.secret)),
            opens: self.held(),
            locks: self.locks().all(),
        }
    }

    /// Takes over the service's answer to a join request. Returns the new identity, and what the service has yet to be
    /// told.
    fn apply_joined(&self, sent_join: &Join, joined: Joined) -> (Identity, Unsynced) {
        let before = self.identity();
        let Joined { client, secret, is_known, epoch, volume, lease_ns, opens, locks, donors, .. } = joined;
        // Reservations are gone in any case.
        self.reserve().clear(before.joined + 1);
        self.doubtful().clear();
        self.set_donors(donors);
        if before.epoch != epoch {
            self.forget_places();
        }
        if before.joined > 0 {
            let what = if is_known { "goes on with this client" } else { "had taken this client for dead" };
            self.log(&format!("the service at {} {what} (epoch {epoch})", self.service));
        }
        let identity = Identity { joined: before.joined + 1, client, secret, epoch, volume, lease_ns };
        if !is_known {
            let owners = self.locks().all().iter().map(|lock| (lock.ino, lock.owner)).collect();
            return (identity, Unsynced { opens: self.held(), closes: Vec::new(), owners });
        }
        let granted: HashSet<u64> = opens.into_iter().collect();
        let refused: HashSet<u64> =
            sent_join.opens.iter().map(|held| held.handle).filter(|of| !granted.contains(of)).collect();
        self.drop_handles(&refused);
        let held = self.held();
        let open: HashSet<u64> = held.iter().map(|held| held.handle).collect();
        let mut own_locks = self.locks();
        for lock in sent_join.locks.iter().filter(|lock| !locks.contains(lock)) {
            own_locks.remove(lock.ino, lock.owner, lock.first, lock.last);
        }
        let current_locks = own_locks.all();
        let differs = |lock: &&Lock| current_locks.contains(lock) != locks.contains(lock);
        let owners = current_locks.iter().chain(&locks).filter(differs).map(|lock| (lock.ino, lock.owner)).collect();
        let opens = held.into_iter().filter(|held| !granted.contains(&held.handle)).collect();
        let closes = granted.into_iter().filter(|handle| !open.contains(handle)).collect();
        (identity, Unsynced { opens, closes, owners })
    }

    /// Drops handles that are no longer open at the service.
    fn drop_handles(&self, lost: &HashSet<u64>) {
        for handle in lost {
            let open = self.handles().remove(handle);
            if let Some(Handle::File { file, .. }) = open {
                file.lock().handles.retain(|open| open.handle != *handle);
            }
        }
        if !lost.is_empty() {
            self.log(&format!("{} open files are lost", lost.len()));
        }
    }
}

impl<E: Endpoint, A: AccessMethod> Lane<E, A> {
    /// Joins, unless another lane has joined since `seen`.
    pub(super) fn join(&mut self, seen: u64, until: u64) -> Result<(), ClientError> {
        let client = std::sync::Arc::clone(&self.client);
        let _held = client.joining.lock().unwrap_or_else(PoisonError::into_inner);
        if client.identity().joined != seen {
            return Ok(());
        }
        loop {
            let sent_join = client.join_message();
            let message = Message::Join(sent_join.clone());
            let why = match self.attempt(&message, until)? {
                Attempt::Answered(Reply::Joined(joined)) => {
                    let (identity, unsynced) = client.apply_joined(&sent_join, joined);
                    match self.sync_state(&identity, &unsynced, until) {
                        Ok(()) => {
                            // From now on other lanes send requests under the new identity, which has everything they
                            // have open.
                            client.set_identity(identity);
                            return Ok(());
                        }
                        Err(Interrupted::Again(why)) => why,
                        Err(Interrupted::Failed(failed)) => return Err(failed),
                    }
                }
                Attempt::Answered(Reply::Refused(Error::Grace | Error::Rejoin)) => "it is starting".to_owned(),
                Attempt::Answered(Reply::Refused(error)) => return Err(error.into()),
                Attempt::Answered(Reply::NotAdmitted) => "it does not know the session any more".to_owned(),
                Attempt::Answered(_) => return Err(ClientError::UnexpectedAnswer),
                Attempt::Lost(why) => why,
            };
            if self.now_ns() + PAUSE > until {
                return Err(self.unreachable(why));
            }
            self.pause(PAUSE);
        }
    }

    /// Joins under a new number if a donor that refuses the client's number has one of these copies, as far as is known
    /// now. The number is that of the identity `seen`. The copies are none the worse for it.
    pub(super) fn join_anew_if_expelled(
        &mut self,
        seen: u64,
        expelled: &[(u32, SegmentCopy)],
    ) -> Result<(), ClientError> {
        // A donor that wants its memory back has cut off everyone, but it has no copies any more.
        let is_copy = |(segment, copy): &(u32, SegmentCopy)| {
            let place = self.client.place(*segment);
            let is_it = |now: &SegmentCopy| (now.donor, now.incarnation) == (copy.donor, copy.incarnation);
            place.is_some_and(|place| place.copies.iter().any(is_it))
        };
        if !expelled.iter().any(is_copy) {
            return Ok(());
        }
        let until = self.now_ns() + self.client.config.service_timeout_ns;
        {
            let client = std::sync::Arc::clone(&self.client);
            let _held = client.joining.lock().unwrap_or_else(PoisonError::into_inner);
            let identity = client.identity();
            if identity.joined != seen {
                return Ok(());
            }
            client.log(&format!("a donor no longer admits client {}, which joins again", identity.client));
            match self.send_as(&identity, Request::Leave, until) {
                // If the service has not heard of it, it gives the same number again, and this is repeated.
                Ok(_) | Err(Interrupted::Again(_)) => {}
                Err(Interrupted::Failed(failed)) => return Err(failed),
            }
        }
        self.join(seen, until)
    }

    /// Tells the service what it has missed. What it refuses is lost.
    fn sync_state(&mut self, identity: &Identity, unsynced: &Unsynced, until: u64) -> Result<(), Interrupted> {
        let client = std::sync::Arc::clone(&self.client);
        // If a lock was lost, another client may have changed the file meanwhile, so the program must not go on using
        // it.
        let mut changed = HashSet::new();
        for &(ino, owner) in &unsynced.owners {
            self.send_as(identity, Request::Unlock { ino, owner, first: 0, last: u64::MAX }, until)?;
            for lock in client.locks().all().into_iter().filter(|lock| (lock.ino, lock.owner) == (ino, owner)) {
                if !self.send_as(identity, Request::Lock { lock, waits: false }, until)? {
                    client.locks().remove(ino, owner, lock.first, lock.last);
                    client.log(&format!("a lock of file {} is lost", ino.0));
                    changed.insert(ino);
                }
            }
        }
        let mut lost = HashSet::new();
        for &OpenFile { handle, ino, access } in &unsynced.opens {
            let is_open =
                !changed.contains(&ino) && self.send_as(identity, Request::Open { handle, ino, access }, until)?;
            if !is_open {
                lost.insert(handle);
            }
        }
        client.drop_handles(&lost);
        for &handle in &unsynced.closes {
            self.send_as(identity, Request::Close { handle }, until)?;
        }
        Ok(())
    }

    /// Sends a request under the new identity. Returns whether the service granted it.
    fn send_as(&mut self, identity: &Identity, request: Request, until: u64) -> Result<bool, Interrupted> {
        let Identity { client, secret, epoch, .. } = *identity;
        let settled = self.client.sequences().settled();
        let message = Message::Request(Envelope {
            client,
            secret,
            sequence: 0,
            settled,
            epoch,
            caller: Caller::default(),
            request,
        });
        loop {
            let why = match self.attempt(&message, until)? {
                Attempt::Answered(Reply::Answer(_)) => return Ok(true),
                Attempt::Answered(Reply::Refused(Error::Grace)) if self.now_ns() + PAUSE < until => {
                    self.pause(PAUSE);
                    continue;
                }
                Attempt::Answered(Reply::Refused(Error::Rejoin)) => "it has restarted".into(),
                Attempt::Answered(Reply::Refused(_)) => return Ok(false),
                Attempt::Answered(Reply::NotAdmitted) => "it does not know the session any more".into(),
                Attempt::Answered(_) => return Err(ClientError::UnexpectedAnswer.into()),
                Attempt::Lost(why) => why,
            };
            return Err(Interrupted::Again(why));
        }
    }

    /// Joins the service, so that errors show before the first operation.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the service cannot be joined within `timeout_ns`.
    pub fn begin(&mut self, timeout_ns: u64) -> Result<(), ClientError> {
        let until = self.now_ns() + timeout_ns;
        self.join(0, until)
    }

    /// Keeps the session alive, and commits data written some time ago. One thread must call this every
    /// [`Client::pause`].
    pub fn run_periodic(&mut self) {
        let identity = self.client.identity();
        let now = self.now_ns();
        if identity.joined > 0 && now.saturating_sub(self.client.last_answer_ns()) > identity.lease_ns / 4 {
            // If this fails, the next request reports it.
            let _ = self.ask_as_root(Request::Heartbeat);
        }
        self.flush_old();
        self.client.log_repeats(now);
        self.return_doubtful();
        // Other clients may need what was reserved ahead.
        let identity = self.client.identity();
        let is_idle = now.saturating_sub(self.client.last_write_ns()) > 4 * self.client.config.dirty_age_ns;
        if is_idle {
            self.give_back_spare(&identity, Purpose::Any);
        }
        // There may be few of these, and each write asks for what it needs.
        self.give_back_spare(&identity, Purpose::Overwrite);
    }

    /// Gives reserved pages back that are not promised to any write. Returns whether there were some.
    pub(super) fn give_back_spare(&mut self, identity: &Identity, purpose: Purpose) -> bool {
        let mut pages = {
            let mut reserve = self.client.reserve();
            let reserve = reserve.of(purpose);
            // Another lane may have joined meanwhile.
            if !reserve.is_of(identity.joined) {
                return false;
            }
            reserve.shrink(RESERVE_PAGES_MAX.into())
        };
        pages.truncate(EXTENTS_MAX);
        if pages.is_empty() {
            return false;
        }
        // If this fails, the pages are unavailable until the client leaves.
        let _ = self.ask_about_pages(identity, Request::GiveBack { pages });
        true
    }

    /// Commits all written data, gives back reservations, and leaves the service.
    ///
    /// # Errors
    ///
    /// The error of the first file that could not be committed.
    pub fn end(&mut self) -> Result<(), ClientError> {
        self.client.mark_ended();
        let mut result = Ok(());
        for file in self.client.dirty_files() {
            result = result.and(self.write_out(&file));
        }
        self.client.log_repeats(u64::MAX);
        // A client that does not say so is removed when its lease expires.
        let _ = self.ask_as_root(Request::Leave);
        self.client.leave();
        result
    }
}
