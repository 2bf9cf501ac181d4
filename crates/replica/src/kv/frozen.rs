//! A snapshot that is serialised in parts, in the order of the keys, while the items go on changing.
//!
//! Before an item that is still to be serialised changes for the first time, its old value is kept here.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::key::Key;
use super::{Items, KIND, StoredItem, StoredState, Value};
use crate::wire;

/// The part of a frozen state that is still to be serialised.
#[derive(Clone, Debug)]
pub struct SnapshotInProgress {
    /// Last key that was serialised.
    last: Option<Key>,
    /// Values, since changed, of later keys; `None` for a key that did not exist.
    kept: BTreeMap<Key, Option<Value>>,
}

impl SnapshotInProgress {
    /// Freezes the present items, and appends the bytes that precede the first of them.
    pub fn begin(revision: u64, items: &Items, bytes: &mut Vec<u8>) -> Self {
        wire::encode(&StoredState { kind: KIND, revision, items: Vec::new() }, bytes);
        // Replaces the number of items, which is 0 so far.
        bytes.pop();
        wire::append(&items.len(), bytes);
        Self { last: None, kept: BTreeMap::new() }
    }

    /// Keeps the present value of a key that is about to change.
    pub fn keep(&mut self, key: &Key, value: Option<&Value>) {
        if self.last.as_ref().is_none_or(|last| key > last) && !self.kept.contains_key(key) {
            self.kept.insert(key.clone(), value.cloned());
        }
    }

    /// Appends the next items, of about `len` bytes. Returns whether they were the last.
    pub fn serialize(&mut self, items: &Items, bytes: &mut Vec<u8>, len: usize) -> bool {
        let end = bytes.len().saturating_add(len);
        let from = self.last.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let mut items = items.range((from, Bound::Unbounded)).peekable();
        let mut last = None;
        while bytes.len() < end {
            let is_kept = match (items.peek(), self.kept.first_key_value()) {
                (None, None) => return true,
                (Some((present, _)), Some((kept, _))) => {
                    if *present == kept {
                        items.next();
                        true
                    } else {
                        kept < *present
                    }
                }
                (present, _) => present.is_none(),
            };
            if is_kept {
                let Some((key, value)) = self.kept.pop_first() else { return true };
                if let Some(value) = value {
                    append_item(key.bytes(), &value, bytes);
                }
                (self.last, last) = (Some(key), None);
            } else if let Some((key, value)) = items.next() {
                append_item(key.bytes(), value, bytes);
                last = Some(key);
            }
        }
        if let Some(key) = last {
            self.last = Some(key.clone());
        }
        false
    }
}

fn append_item(key: &[u8], value: &Value, bytes: &mut Vec<u8>) {
    let Value { bytes: value, revision, created } = value;
    wire::append(&StoredItem { key, value, revision: *revision, created: *created }, bytes);
}
