//! What dead clients had reserved, until every donor has cut them off.

use std::collections::BTreeSet;

use super::lanes::Lanes;
use super::store::Store;
use crate::disk::Disk;
use crate::protocol::Pages;

/// A client that is gone.
struct Grave {
    client: u64,
    pages: Vec<Pages>,
    /// Donors that may still let it in.
    open: BTreeSet<usize>,
}

/// All that are not done with.
#[derive(Default)]
pub(super) struct Graves(Vec<Grave>);

impl Graves {
    /// A client is gone, which may have had access at these donors.
    pub fn dig(&mut self, client: u64, pages: Vec<Pages>, open: BTreeSet<usize>) {
        self.0.push(Grave { client, pages, open });
    }

    /// Clients that a donor is to cut off.
    pub fn of_lane(&self, lane: usize) -> Vec<u64> {
        self.0.iter().filter(|grave| grave.open.contains(&lane)).map(|grave| grave.client).collect()
    }

    /// A donor has cut a client off; `None`: all of them, since it has started again.
    pub fn close(&mut self, lane: usize, client: Option<u64>) {
        for grave in self.0.iter_mut().filter(|grave| client.is_none_or(|client| client == grave.client)) {
            grave.open.remove(&lane);
        }
    }

    /// Gives free what nobody can write to any more: pages none of whose copies lie at a donor that may still let their client in.
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
