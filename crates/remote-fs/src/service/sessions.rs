//! Open handles of clients, and whether the clients are alive. None of this is stored: after a restart the clients
//! report it.

use std::collections::{BTreeMap, HashMap};

use crate::protocol::{Access, Error, Ino, OPENS_MAX, OpenFile};

/// A client that has joined.
#[derive(Debug)]
pub(super) struct Session<P> {
    /// Peer that its last message came from.
    pub peer: P,
    /// Time at which it is declared dead, unless it sends something.
    pub until_ns: u64,
    opens: HashMap<u64, (Ino, Access)>,
    /// Refused requests that the client has not settled, by number.
    pub errors: BTreeMap<u64, Error>,
    /// Highest [`settled`](crate::protocol::Envelope::settled) that the client has sent.
    pub settled: u64,
    /// Copies removed on the client's reports.
    pub failed: u32,
}

/// All clients that have joined in this epoch.
#[derive(Debug)]
pub(super) struct Sessions<P> {
    by_client: BTreeMap<u64, Session<P>>,
    /// Number of open handles of each inode.
    counts: HashMap<Ino, u32>,
}

impl<P> Default for Sessions<P> {
    fn default() -> Self {
        Self { by_client: BTreeMap::new(), counts: HashMap::new() }
    }
}

impl<P: Copy + Eq> Sessions<P> {
    pub fn begin(&mut self, client: u64, peer: P, until_ns: u64) {
        let (opens, errors) = (HashMap::new(), BTreeMap::new());
        let new = Session { peer, until_ns, opens, errors, settled: 0, failed: 0 };
        self.by_client.entry(client).or_insert(new);
    }

    pub fn has(&self, client: u64) -> bool {
        self.by_client.contains_key(&client)
    }

    pub fn get_mut(&mut self, client: u64) -> Option<&mut Session<P>> {
        self.by_client.get_mut(&client)
    }

    pub fn clients(&self) -> impl Iterator<Item = u64> {
        self.by_client.keys().copied()
    }

    /// Clients whose time has expired.
    pub fn expired(&self, now_ns: u64) -> Vec<u64> {
        self.by_client.iter().filter(|(_, session)| session.until_ns <= now_ns).map(|(client, _)| *client).collect()
    }

    /// Records that a peer's `rpc` session ended: its clients expire soon.
    pub fn peer_left(&mut self, peer: P, until_ns: u64) {
        for session in self.by_client.values_mut().filter(|session| session.peer == peer) {
            session.until_ns = session.until_ns.min(until_ns);
        }
    }

    /// Whether any client has the inode open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.counts.contains_key(&ino)
    }

    /// The inode and access of a client's handle.
    pub fn open_file(&self, client: u64, handle: u64) -> Result<(Ino, Access), Error> {
        let session = self.by_client.get(&client).ok_or(Error::Rejoin)?;
        session.opens.get(&handle).copied().ok_or(Error::BadHandle)
    }

    /// Opens a handle. Opening it again for the same has no effect.
    pub fn open(&mut self, client: u64, OpenFile { handle, ino, access }: OpenFile) -> Result<(), Error> {
        let session = self.by_client.get_mut(&client).ok_or(Error::Rejoin)?;
        match session.opens.get(&handle) {
            Some(held) if *held == (ino, access) => return Ok(()),
            Some(_) => return Err(Error::Invalid),
            None if session.opens.len() >= OPENS_MAX => return Err(Error::TooMany),
            None => {}
        }
        session.opens.insert(handle, (ino, access));
        *self.counts.entry(ino).or_default() += 1;
        Ok(())
    }

    /// Checks that a handle can be opened.
    pub fn may_open(&self, client: u64, held: OpenFile) -> Result<(), Error> {
        let session = self.by_client.get(&client).ok_or(Error::Rejoin)?;
        match session.opens.contains_key(&held.handle) {
            true => Err(Error::Invalid),
            false if session.opens.len() >= OPENS_MAX => Err(Error::TooMany),
            false => Ok(()),
        }
    }

    /// Closes a handle. Returns the inode if that was its last open handle.
    pub fn close(&mut self, client: u64, handle: u64) -> Option<Ino> {
        let (ino, _) = self.by_client.get_mut(&client)?.opens.remove(&handle)?;
        self.count_closed(ino).then_some(ino)
    }

    fn count_closed(&mut self, ino: Ino) -> bool {
        let Some(count) = self.counts.get_mut(&ino) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.counts.remove(&ino);
        }
        is_last
    }

    /// Closes all handles of a client. Returns the inodes that no client has open any more.
    pub fn close_all(&mut self, client: u64) -> Vec<Ino> {
        let opens = self.by_client.get_mut(&client).map(|session| std::mem::take(&mut session.opens));
        let inos = opens.unwrap_or_default().into_values().map(|(ino, _)| ino);
        inos.collect::<Vec<_>>().into_iter().filter(|ino| self.count_closed(*ino)).collect()
    }

    /// Removes a client. Returns the same as [`Self::close_all`].
    pub fn end(&mut self, client: u64) -> Vec<Ino> {
        let closed = self.close_all(client);
        self.by_client.remove(&client);
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(handle: u64, ino: u64) -> OpenFile {
        OpenFile { handle, ino: Ino(ino), access: Access::default() }
    }

    #[test]
    fn an_inode_is_open_until_its_last_handle_is_closed() {
        let mut sessions = Sessions::default();
        (1..3).for_each(|client| sessions.begin(client, 'p', 100));
        for (client, handle, ino) in [(1, 1, 5), (1, 2, 5), (2, 1, 5), (2, 2, 6)] {
            sessions.open(client, held(handle, ino)).unwrap();
        }
        assert_eq!(sessions.open(1, held(1, 5)), Ok(()), "twice is once");
        assert_eq!(sessions.open(1, held(1, 6)), Err(Error::Invalid));
        assert_eq!((sessions.close(1, 1), sessions.close(1, 1), sessions.close(1, 9)), (None, None, None));
        assert_eq!(sessions.end(2), [Ino(6)]);
        assert!(sessions.is_open(Ino(5)) && !sessions.is_open(Ino(6)));
        assert_eq!(sessions.close(1, 2), Some(Ino(5)));
        assert_eq!(sessions.open_file(2, 1), Err(Error::Rejoin));
        assert_eq!(sessions.open_file(1, 2), Err(Error::BadHandle));
    }

    #[test]
    fn a_client_opens_so_many_and_no_more() {
        let mut sessions = Sessions::default();
        sessions.begin(1, 'p', 100);
        (0..OPENS_MAX as u64).for_each(|handle| sessions.open(1, held(handle, 5)).unwrap());
        let more = held(OPENS_MAX as u64, 5);
        assert_eq!((sessions.open(1, more), sessions.may_open(1, more)), (Err(Error::TooMany), Err(Error::TooMany)));
    }

    #[test]
    fn who_is_silent_is_dead_and_who_left_is_so_sooner() {
        let mut sessions = Sessions::default();
        sessions.begin(1, 'p', 100);
        sessions.begin(2, 'q', 100);
        sessions.peer_left('q', 20);
        assert_eq!((sessions.expired(19), sessions.expired(20), sessions.expired(100)), (vec![], vec![2], vec![1, 2]));
    }
}
