//! Becoming a client, and staying one.

use std::sync::PoisonError;

use sinew_remote_memory::pool::Approach;
use sinew_rpc::Endpoint;

use super::ask::Attempt;
use super::error::Failed;
use super::lane::Lane;
use super::shared::{Client, Handle, Identity};
use crate::protocol::{
    Access, EXTENTS_MAX, Error, Held, Ino, Join, Joined, Message, RESERVE_PAGES_MAX, Reply, Request,
};

const MS: u64 = 1_000_000;
const PAUSE: u64 = 50 * MS;

impl Client {
    /// What it has open, and locked.
    fn to_join(&self) -> Join {
        let identity = self.identity();
        let held = |(handle, open): (&u64, &Handle)| {
            let (ino, access) = match open {
                Handle::File { file, access } => (file.ino, *access),
                Handle::Directory { ino, .. } => (*ino, Access { read: true, ..Access::default() }),
            };
            Held { handle: *handle, ino, access }
        };
        Join {
            before: (identity.joined > 0).then_some((identity.client, identity.secret)),
            opens: self.handles().iter().map(held).collect(),
            locks: self.locks().all(),
        }
    }

    fn joined(&self, joined: Joined) {
        let before = self.identity();
        let Joined { client, secret, is_known, epoch, volume, lease_ns, opens, locks, donors, .. } = joined;
        // Reservations are gone in any case.
        self.reserve().lose();
        self.set_donors(donors);
        if before.epoch != epoch {
            self.forget_places();
        }
        let lost: Vec<(u64, Ino)> = {
            let mut handles = self.handles();
            let gone: Vec<u64> = handles.keys().filter(|handle| !opens.contains(handle)).copied().collect();
            let ino = |open: Handle| match open {
                Handle::File { file, .. } => file.ino,
                Handle::Directory { ino, .. } => ino,
            };
            gone.into_iter().filter_map(|handle| Some((handle, ino(handles.remove(&handle)?)))).collect()
        };
        for (handle, ino) in &lost {
            if let Some(file) = self.known_file(*ino) {
                file.lock().handles.retain(|(open, _)| open != handle);
            }
        }
        if before.joined > 0 {
            let what = if is_known { "goes on with this client" } else { "had taken this client for dead" };
            let lost = if lost.is_empty() { String::new() } else { format!("; {} open files are lost", lost.len()) };
            self.log(&format!("the service at {} {what} (epoch {epoch}){lost}", self.service));
        }
        self.locks().set(locks);
        self.set_identity(Identity { joined: before.joined + 1, client, secret, epoch, volume, lease_ns });
    }
}

impl<E: Endpoint, A: Approach> Lane<E, A> {
    /// Joins, if it has not happened since `seen`.
    pub(super) fn join(&mut self, seen: u64, until: u64) -> Result<(), Failed> {
        let client = std::sync::Arc::clone(&self.client);
        let _held = client.joining.lock().unwrap_or_else(PoisonError::into_inner);
        if client.identity().joined != seen {
            return Ok(());
        }
        loop {
            let why = match self.attempt(&Message::Join(client.to_join()), until)? {
                Attempt::Answered(Reply::Joined(joined)) => {
                    client.joined(joined);
                    return Ok(());
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

    /// Becomes a client, so that whatever is wrong is told before anything is done.
    ///
    /// # Errors
    ///
    /// [`Failed`].
    pub fn begin(&mut self, timeout_ns: u64) -> Result<(), Failed> {
        let until = self.now_ns() + timeout_ns;
        self.join(0, until)
    }

    /// Tells the service that the client lives, and commits what was written some time ago. Some thread calls this every [`Client::pause`].
    pub fn tend(&mut self) {
        let identity = self.client.identity();
        let now = self.now_ns();
        if identity.joined > 0 && now.saturating_sub(self.client.heard_ns()) > identity.lease_ns / 4 {
            // If that fails, whoever asks next is told.
            let _ = self.ask_own(Request::Heartbeat);
        }
        self.flush_old();
        // Others may have use for what was reserved ahead.
        let is_idle = now.saturating_sub(self.client.wrote_ns()) > 4 * self.client.config.dirty_age_ns;
        if is_idle && self.client.reserve().spare() > 0 {
            let mut pages = self.client.reserve().shrink(RESERVE_PAGES_MAX.into());
            pages.truncate(EXTENTS_MAX);
            // Where that fails they are lost to us until we leave.
            let _ = self.ask_own(Request::GiveBack { pages });
        }
    }

    /// Commits all that was written, gives back what was reserved, and leaves.
    ///
    /// # Errors
    ///
    /// The first file that could not be committed says why.
    pub fn end(&mut self) -> Result<(), Failed> {
        self.client.end();
        let mut result = Ok(());
        for file in self.client.dirty_files() {
            result = result.and(self.flush(&file));
        }
        // Whoever is silent is forgotten all the same.
        let _ = self.ask_own(Request::Leave);
        self.client.leave();
        result
    }
}
