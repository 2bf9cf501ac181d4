//! Joining the service, and staying joined.

use std::collections::{BTreeSet, HashSet};
use std::sync::PoisonError;

use sinew_remote_memory::pool::Approach;
use sinew_rpc::Endpoint;

use super::ask::Attempt;
use super::error::Failed;
use super::lane::Lane;
use super::shared::{Client, Handle, Identity};
use crate::protocol::{
    Access, Caller, EXTENTS_MAX, Envelope, Error, Held, Ino, Join, Joined, Lock, LockOwner, Message, RESERVE_PAGES_MAX,
    Reply, Request,
};

const MS: u64 = 1_000_000;
const PAUSE: u64 = 50 * MS;

/// Changes since the join request, or the whole state if the service gave the client a new identity. The service must
/// be told of them.
struct Untold {
    opens: Vec<Held>,
    closes: Vec<u64>,
    /// Owners of locks, per file, for which the service's view differs from the client's.
    owners: BTreeSet<(Ino, LockOwner)>,
}

/// Reason why the service was not told everything.
enum Interrupted {
    /// The client must join again.
    Again(String),
    Failed(Failed),
}

impl From<Failed> for Interrupted {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

impl Client {
    /// Handles that are open.
    fn held(&self) -> Vec<Held> {
        let held = |(handle, open): (&u64, &Handle)| {
            let (ino, access) = match open {
                Handle::File { file, access } => (file.ino, *access),
                Handle::Directory { ino, .. } => (*ino, Access { read: true, ..Access::default() }),
            };
            Held { handle: *handle, ino, access }
        };
        self.handles().iter().map(held).collect()
    }

    /// The request to join: open handles and locks.
    fn to_join(&self) -> Join {
        let identity = self.identity();
        Join {
            before: (identity.joined > 0).then_some((identity.client, identity.secret)),
            opens: self.held(),
            locks: self.locks().all(),
        }
    }

    /// Takes over the service's answer to a join request. Returns the new identity, and what the service has yet to be
    /// told.
    fn joined(&self, told: &Join, joined: Joined) -> (Identity, Untold) {
        let before = self.identity();
        let Joined { client, secret, is_known, epoch, volume, lease_ns, opens, locks, donors, .. } = joined;
        // Reservations are gone in any case.
        self.reserve().lose(before.joined + 1);
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
            return (identity, Untold { opens: self.held(), closes: Vec::new(), owners });
        }
        let granted: HashSet<u64> = opens.into_iter().collect();
        let refused: HashSet<u64> =
            told.opens.iter().map(|held| held.handle).filter(|of| !granted.contains(of)).collect();
        self.lose(&refused);
        let held = self.held();
        let open: HashSet<u64> = held.iter().map(|held| held.handle).collect();
        let mut mine = self.locks();
        for lock in told.locks.iter().filter(|lock| !locks.contains(lock)) {
            mine.remove(lock.ino, lock.owner, lock.first, lock.last);
        }
        let now = mine.all();
        let differs = |lock: &&Lock| now.contains(lock) != locks.contains(lock);
        let owners = now.iter().chain(&locks).filter(differs).map(|lock| (lock.ino, lock.owner)).collect();
        let opens = held.into_iter().filter(|held| !granted.contains(&held.handle)).collect();
        let closes = granted.into_iter().filter(|handle| !open.contains(handle)).collect();
        (identity, Untold { opens, closes, owners })
    }

    /// Drops handles that are no longer open at the service.
    fn lose(&self, lost: &HashSet<u64>) {
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

impl<E: Endpoint, A: Approach> Lane<E, A> {
    /// Joins, unless another lane has joined since `seen`.
    pub(super) fn join(&mut self, seen: u64, until: u64) -> Result<(), Failed> {
        let client = std::sync::Arc::clone(&self.client);
        let _held = client.joining.lock().unwrap_or_else(PoisonError::into_inner);
        if client.identity().joined != seen {
            return Ok(());
        }
        loop {
            let told = client.to_join();
            let message = Message::Join(told.clone());
            let why = match self.attempt(&message, until)? {
                Attempt::Answered(Reply::Joined(joined)) => {
                    let (identity, untold) = client.joined(&told, joined);
                    match self.tell(&identity, &untold, until) {
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
                Attempt::Answered(Reply::Stranger) => "it does not know the session any more".to_owned(),
                Attempt::Answered(_) => return Err(Failed::Nonsense),
                Attempt::Lost(why) => why,
            };
            if self.now_ns() + PAUSE > until {
                return Err(self.unreachable(why));
            }
            self.pause(PAUSE);
        }
    }

    /// Tells the service what it has missed. What it refuses is lost.
    fn tell(&mut self, us: &Identity, untold: &Untold, until: u64) -> Result<(), Interrupted> {
        let client = std::sync::Arc::clone(&self.client);
        // If a lock was lost, another client may have changed the file meanwhile, so the program must not go on using
        // it.
        let mut changed = HashSet::new();
        for &(ino, owner) in &untold.owners {
            self.tell_one(us, Request::Unlock { ino, owner, first: 0, last: u64::MAX }, until)?;
            for lock in client.locks().all().into_iter().filter(|lock| (lock.ino, lock.owner) == (ino, owner)) {
                if !self.tell_one(us, Request::Lock(lock), until)? {
                    client.locks().remove(ino, owner, lock.first, lock.last);
                    client.log(&format!("a lock of file {} is lost", ino.0));
                    changed.insert(ino);
                }
            }
        }
        let mut lost = HashSet::new();
        for &Held { handle, ino, access } in &untold.opens {
            let is_open = !changed.contains(&ino) && self.tell_one(us, Request::Open { handle, ino, access }, until)?;
            if !is_open {
                lost.insert(handle);
            }
        }
        client.lose(&lost);
        for &handle in &untold.closes {
            self.tell_one(us, Request::Close { handle }, until)?;
        }
        Ok(())
    }

    /// Sends a request under the new identity. Returns whether the service granted it.
    fn tell_one(&mut self, us: &Identity, request: Request, until: u64) -> Result<bool, Interrupted> {
        let Identity { client, secret, epoch, .. } = *us;
        let settled = self.client.sequences().settled();
        let message =
            Message::Ask(Envelope { client, secret, sequence: 0, settled, epoch, caller: Caller::default(), request });
        loop {
            let why = match self.attempt(&message, until)? {
                Attempt::Answered(Reply::Answer(_)) => return Ok(true),
                Attempt::Answered(Reply::Refused(Error::Grace)) if self.now_ns() + PAUSE < until => {
                    self.pause(PAUSE);
                    continue;
                }
                Attempt::Answered(Reply::Refused(Error::Rejoin)) => "it has started again".into(),
                Attempt::Answered(Reply::Refused(_)) => return Ok(false),
                Attempt::Answered(Reply::Stranger) => "it does not know the session any more".into(),
                Attempt::Answered(_) => return Err(Failed::Nonsense.into()),
                Attempt::Lost(why) => why,
            };
            return Err(Interrupted::Again(why));
        }
    }

    /// Joins the service, so that errors show before the first operation.
    ///
    /// # Errors
    ///
    /// [`Failed`] if the service cannot be joined within `timeout_ns`.
    pub fn begin(&mut self, timeout_ns: u64) -> Result<(), Failed> {
        let until = self.now_ns() + timeout_ns;
        self.join(0, until)
    }

    /// Keeps the session alive, and commits data written some time ago. One thread must call this every
    /// [`Client::pause`].
    pub fn tend(&mut self) {
        let identity = self.client.identity();
        let now = self.now_ns();
        if identity.joined > 0 && now.saturating_sub(self.client.heard_ns()) > identity.lease_ns / 4 {
            // If this fails, the next request reports it.
            let _ = self.ask_own(Request::Heartbeat);
        }
        self.flush_old();
        self.settle_doubtful();
        // Other clients may need what was reserved ahead.
        let identity = self.client.identity();
        let is_idle = now.saturating_sub(self.client.wrote_ns()) > 4 * self.client.config.dirty_age_ns;
        if is_idle && self.client.reserve().spare() > 0 {
            let mut pages = self.client.reserve().shrink(RESERVE_PAGES_MAX.into());
            pages.truncate(EXTENTS_MAX);
            // If this fails, the pages are unavailable until the client leaves.
            let _ = self.ask_about_pages(&identity, Request::GiveBack { pages });
        }
    }

    /// Commits all written data, gives back reservations, and leaves the service.
    ///
    /// # Errors
    ///
    /// The error of the first file that could not be committed.
    pub fn end(&mut self) -> Result<(), Failed> {
        self.client.end();
        let mut result = Ok(());
        for file in self.client.dirty_files() {
            result = result.and(self.write_out(&file));
        }
        // A client that does not say so is removed when its lease expires.
        let _ = self.ask_own(Request::Leave);
        self.client.leave();
        result
    }
}
