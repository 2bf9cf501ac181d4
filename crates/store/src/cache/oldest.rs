//! The items of a log that are next to leave it.

use std::collections::VecDeque;

use super::key::KnownKey;
use super::log::Log;

/// Items that are looked up before they leave.
const AHEAD: usize = 8;

/// The oldest items, in the order in which they will leave.
#[derive(Debug, Default)]
pub(super) struct Oldest {
    items: VecDeque<OldItem>,
}

#[derive(Debug)]
pub(super) struct OldItem {
    pub position: u64,
    pub words: usize,
    pub key: KnownKey,
}

impl Oldest {
    /// Forgets them. To be called when items have left the log in another order, so that one of these may be gone.
    pub fn clear(&mut self) {
        self.items.clear();
    }

    /// Returns the key of the oldest item, at `position`, which leaves the log. Looks up the next ones.
    pub fn take(&mut self, position: u64, log: &Log, mut look_up: impl FnMut(u64) -> OldItem) -> KnownKey {
        debug_assert!(self.items.front().is_none_or(|item| item.position == position), "an item left unseen");
        while self.items.len() <= AHEAD {
            let next = match self.items.back() {
                Some(last) => log.next_item(last.position, last.words),
                None => Some(position),
            };
            let Some(next) = next else { break };
            self.items.push_back(look_up(next));
        }
        self.items.pop_front().expect("the item itself is among them").key
    }
}
