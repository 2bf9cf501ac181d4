//! Changing the limit of a table's memory.

use super::LimitError;
use super::entry::Entry;
use super::log::position_of;
use super::table::{Cache, Space, WORDS_MIN};
use super::view::HEAD;

impl Cache {
    /// Limits the items to `bytes` bytes. Items that lie beyond the limit are evicted, and their memory goes back to
    /// the system; if the limit is raised, more memory is taken as it is used.
    ///
    /// # Errors
    ///
    /// [`LimitError`]; then nothing has changed.
    pub fn limit_memory(&mut self, bytes: usize, now_s: u32) -> Result<(), LimitError> {
        let (words, max) = (bytes / 8, self.view.body.len());
        let Space::Log(log) = &self.space else { return Err(LimitError::EvictsNothing) };
        if words < WORDS_MIN || words > max {
            return Err(LimitError::Bounds { bytes, min: WORDS_MIN * 8, max: max * 8 });
        }
        let mut ends = [0; 2];
        for (end, (lap, places)) in ends.iter_mut().zip(log.laps()) {
            let mut place = places.start;
            *end = place;
            while place < places.end {
                let entry = Entry::load(&self.view.body, place).expect("a log has items from its tail to its head");
                if place + entry.room() > words {
                    entry.read_key(&self.view.body, &mut self.key);
                    let key = self.hasher.key(&self.key).known();
                    self.evict(position_of(lap, place), &entry, key, now_s);
                } else {
                    *end = place + entry.room();
                }
                place += entry.room();
            }
        }
        self.oldest.clear();
        if let Space::Log(log) = &mut self.space {
            log.limit(words, ends);
            self.view.control.store(HEAD, log.head().0);
        }
        self.note_head_moved();
        self.view.body.give_back(words);
        Ok(())
    }
}
