//! Requests that need room at the donors: reservations and promises. They wait for memory that may come soon.

use std::collections::BTreeSet;
use std::hash::Hash;

use sinew_remote_memory::volume::Donors;

use super::config::Now;
use super::core::Service;
use super::reads;
use super::waiting::{Outlook, Waiting, Wanted};
use crate::disk::Disk;
use crate::protocol::{Answer, Error, Extent, Ino, RESERVE_PAGES_MAX, Request, Reservation};
use crate::space::Purpose;

impl<D: Donors, K: Disk, P: Copy + Eq + Hash> Service<D, K, P> {
    /// Answers a request now; `None` if it has to wait for memory.
    pub(super) fn try_now(&mut self, client: u64, wanted: &Wanted, now: Now) -> Option<Result<Answer, Error>> {
        match *wanted {
            Wanted::Pages(pages) => self.try_reserve(client, pages),
            Wanted::Overwrite { handle, at, count, pages, waits } => {
                self.try_overwrite(client, (handle, at, count), pages, waits).transpose()
            }
            Wanted::Allocate { numbers, ref caller, ref request, .. } => {
                if !self.is_decided(client, numbers.0) && self.has_to_wait(client, request) {
                    return None;
                }
                Some(self.change(client, numbers, caller.clone(), request.clone(), now))
            }
        }
    }

    /// Answers a request that waits. When it has waited for too long, a reservation is answered without pages, and a
    /// promise is refused.
    pub(super) fn try_again(&mut self, waiting: &mut Waiting, now: Now) -> Option<Result<Answer, Error>> {
        if let Some(result) = self.try_now(waiting.client, &waiting.wanted, now) {
            return Some(result);
        }
        let left = self.store.room();
        if let Wanted::Allocate { room, .. } = &mut waiting.wanted
            && left > std::mem::replace(room, left)
        {
            // Donors lend memory slab by slab: while more comes, the request waits on.
            waiting.until_ns = now.ns + self.config.allocate_wait_max_ns;
        }
        if now.ns < waiting.until_ns {
            return None;
        }
        Some(match &waiting.wanted {
            Wanted::Allocate { numbers, caller, request, .. } => {
                self.change(waiting.client, *numbers, caller.clone(), request.clone(), now)
            }
            Wanted::Pages(_) => Ok(self.reserve(waiting.client, Purpose::Any, 0, 0)),
            Wanted::Overwrite { .. } => Ok(self.reserve(waiting.client, Purpose::Overwrite, 0, 0)),
        })
    }

    /// Whether a change was performed or refused before.
    fn is_decided(&mut self, client: u64, sequence: u64) -> bool {
        let known = self.store.state.clients.get(&client);
        known.is_some_and(|known| known.answers.contains_key(&sequence))
            || self.sessions.get_mut(client).is_some_and(|session| session.errors.contains_key(&sequence))
    }

    /// Whether a request needs room that there is not, and may be soon.
    fn has_to_wait(&self, client: u64, request: &Request) -> bool {
        let Request::Allocate { handle, at, count, .. } = request else { return false };
        let Ok((ino, access)) = self.sessions.open_file(client, *handle) else { return false };
        if !access.write {
            return false;
        }
        let Ok(lacking) = self.lacking(ino, *at, *count) else { return false };
        lacking > self.store.room() && self.memory.may_grow_by(lacking - self.store.room())
    }

    /// Pages that it takes to fill a range of a file.
    pub(super) fn lacking(&self, ino: Ino, at: u64, count: u64) -> Result<u64, Error> {
        Ok(self.store.state.tree.map(ino)?.lacking(at, at.saturating_add(count)))
    }

    fn try_reserve(&mut self, client: u64, pages: u32) -> Option<Result<Answer, Error>> {
        if pages == 0 {
            return Some(Err(Error::Invalid));
        }
        if self.store.space.reserved_pages(client) >= self.config.reserved_max {
            return Some(Err(Error::TooMany));
        }
        let room = self.store.room().min(self.store.space.free_pages());
        if room > 0 {
            return Some(Ok(self.reserve(client, Purpose::Any, pages, room)));
        }
        (!self.memory.may_grow()).then_some(Err(Error::NoSpace))
    }

    fn try_overwrite(
        &mut self,
        client: u64,
        (handle, at, count): (u64, u64, u32),
        pages: u32,
        waits: bool,
    ) -> Result<Option<Answer>, Error> {
        let (ino, access) = self.sessions.open_file(client, handle)?;
        if !access.write {
            return Err(Error::BadHandle);
        }
        let pages = pages.min(count);
        if self.lacking(ino, at, count.into())? > 0 {
            return Err(Error::NoSpace);
        }
        if self.store.space.reserved_pages(client) >= self.config.reserved_max {
            return Err(Error::TooMany);
        }
        let free = self.store.space.free_pages();
        if free == 0 && pages > 0 && waits {
            let may_get_some = self.store.may_free_pages() || self.memory.may_grow();
            return if may_get_some { Ok(None) } else { Err(Error::NoSpace) };
        }
        Ok(Some(self.reserve(client, Purpose::Overwrite, pages, free)))
    }

    /// What there is for requests that wait.
    pub(super) fn outlook(&self) -> Outlook {
        Outlook {
            free_pages: self.store.space.free_pages(),
            room: self.store.room(),
            lendable_pages: self.memory.lendable_pages(),
            may_free_pages: self.store.may_free_pages(),
            may_grow: self.memory.may_grow(),
            may_grow_by_any: self.memory.may_grow_by(u64::MAX),
        }
    }

    /// Reserves pages of those that there is `room` for.
    fn reserve(&mut self, client: u64, purpose: Purpose, pages: u32, room: u64) -> Answer {
        let space = &mut self.store.space;
        // A client gets at most half of what is left, so that there is some for others.
        let share = room.div_ceil(2);
        let left = self.config.reserved_max.saturating_sub(space.reserved_pages(client)).max(1);
        let pages = u64::from(pages.min(RESERVE_PAGES_MAX)).min(share).min(left) as u32;
        let runs = if pages > 0 { space.reserve(client, purpose, pages) } else { Vec::new() };
        let segments: BTreeSet<u32> = runs.iter().map(|run| run.segment).collect();
        Answer::Reserved(Reservation {
            epoch: self.store.state.epoch,
            client,
            runs,
            places: reads::places(&self.store, segments),
        })
    }

    /// Checks that pages which were reserved only to replace others do so, or keep a promise of room.
    pub(super) fn check_replaced(&self, client: u64, ino: Ino, extents: &[Extent]) -> Result<(), Error> {
        for Extent { at, pages, .. } in extents {
            if self.store.space.is_for_overwrites(client, *pages) && self.lacking(ino, *at, pages.count.into())? > 0 {
                return Err(Error::NothingReplaced);
            }
        }
        Ok(())
    }
}
