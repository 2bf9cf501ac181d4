//! Reservations of dead clients, kept until every donor has cut the clients off.

use std::collections::BTreeSet;

use super::lanes::Lanes;
use super::store::Store;
use crate::disk::Disk;
use crate::protocol::Pages;

/// A client that is gone, and its reservations.
struct RetiredClient {
    client: u64,
    pages: Vec<Pages>,
    /// Donors that may still admit the client.
    donors_left: BTreeSet<usize>,
}

/// All retired clients that at least one donor has not yet cut off.
#[derive(Default)]
pub(super) struct RetiredClients(Vec<RetiredClient>);

impl RetiredClients {
    /// Adds a client that is gone, which may have had access to these donors.
    pub fn add(&mut self, client: u64, pages: Vec<Pages>, donors_left: BTreeSet<usize>) {
        self.0.push(RetiredClient { client, pages, donors_left });
    }

    /// Clients that a donor must still cut off.
    pub fn of_lane(&self, lane: usize) -> Vec<u64> {
        self.0.iter().filter(|retired| retired.donors_left.contains(&lane)).map(|retired| retired.client).collect()
    }

    /// Records that a donor has cut off a client; `None`: all clients, since it has restarted.
    pub fn expelled(&mut self, lane: usize, client: Option<u64>) {
        for retired in self.0.iter_mut().filter(|retired| client.is_none_or(|client| client == retired.client)) {
            retired.donors_left.remove(&lane);
        }
    }

    /// Frees the pages to which their client can no longer write: those without a copy at a donor that may still admit
    /// it.
    pub fn release<K: Disk>(&mut self, lanes: &Lanes, store: &mut Store<K>) {
        for retired in &mut self.0 {
            let donors_left = &retired.donors_left;
            let segments = &store.state.segments;
            let is_writable = |pages: &Pages| {
                let members = segments.get(&pages.segment).map_or(&[][..], |segment| &segment.members);
                members.iter().any(|member| lanes.index_of(member).is_some_and(|lane| donors_left.contains(&lane)))
            };
            let (still_writable, done): (Vec<_>, Vec<_>) =
                std::mem::take(&mut retired.pages).into_iter().partition(is_writable);
            retired.pages = still_writable;
            store.space.release(&done);
        }
        self.0.retain(|retired| !retired.donors_left.is_empty());
    }
}
