//! Reservations of dead clients, kept until every donor has cut the clients off.

use std::collections::BTreeSet;

use super::lanes::Lanes;
use super::store::Store;
use crate::disk::Disk;
use crate::protocol::Pages;

/// A client that is gone, and its reservations.
struct Grave {
    client: u64,
    pages: Vec<Pages>,
    /// Donors that may still admit the client.
    open: BTreeSet<usize>,
}

/// All graves whose donors have not all cut their client off.
#[derive(Default)]
pub(super) struct Graves(Vec<Grave>);

impl Graves {
    /// Adds a client that is gone, which may have had access to these donors.
    pub fn dig(&mut self, client: u64, pages: Vec<Pages>, open: BTreeSet<usize>) {
        self.0.push(Grave { client, pages, open });
    }

    /// Clients that a donor must still cut off.
    pub fn of_lane(&self, lane: usize) -> Vec<u64> {
        self.0.iter().filter(|grave| grave.open.contains(&lane)).map(|grave| grave.client).collect()
    }

    /// Records that a donor has cut off a client; `None`: all clients, since it has restarted.
    pub fn close(&mut self, lane: usize, client: Option<u64>) {
        for grave in self.0.iter_mut().filter(|grave| client.is_none_or(|client| client == grave.client)) {
            grave.open.remove(&lane);
        }
    }

    /// Frees the pages to which their client can no longer write: those without a copy at a donor that may still admit
    /// it.
    pub fn settle<K: Disk>(&mut self, lanes: &Lanes, store: &mut Store<K>) {
        for grave in &mut self.0 {
            let open = &grave.open;
            let segments = &store.kept.segments;
            let is_open = |pages: &Pages| {
                let members = segments.get(&pages.segment).map_or(&[][..], |segment| &segment.members);
                members.iter().any(|member| lanes.of(member).is_some_and(|lane| open.contains(&lane)))
            };
            let (kept, done): (Vec<_>, Vec<_>) = std::mem::take(&mut grave.pages).into_iter().partition(is_open);
            grave.pages = kept;
            store.space.let_go(&done);
        }
        self.0.retain(|grave| !grave.open.is_empty());
    }
}
