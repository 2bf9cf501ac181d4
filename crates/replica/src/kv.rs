//! A key-value store, as a replicated state machine.
//!
//! Keys are bytes, and are kept in order. Each change has a revision, one more than the change before. A value has the
//! revision of the change that made it, so that compare-and-swap can name it. The latest changes are kept for watches.

mod frozen;
mod history;
mod key;
mod messages;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::machine::{BadSnapshot, Malformed, StateMachine};
use crate::wire;
use frozen::SnapshotInProgress;
use history::RecentChanges;
use key::Key;
pub use messages::{Change, Command, CommandResult, Expect, Item, Query, QueryResult};

/// Longest key, in bytes.
pub const KEY_LEN_MAX: usize = 64 << 10;
/// Longest value, in bytes.
pub const VALUE_LEN_MAX: usize = 1 << 20;
/// Bytes of one answer, at most, unless it has a single item: those of keys and values, and 32 for each item.
pub const ANSWER_LEN_MAX: usize = 1 << 20;
/// Bytes counted for each item of an answer beside its key and value, so that there are not too many short ones.
const ITEM_LEN: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Value {
    bytes: Arc<[u8]>,
    /// Revision of the change that made the value.
    revision: u64,
    /// Revision of the change that made the key.
    created: u64,
}

/// The store; see [the module](self).
#[derive(Clone, Debug, Default)]
pub struct KvStore {
    revision: u64,
    items: Items,
    history: RecentChanges,
    /// The snapshot that is being serialised.
    frozen: Option<SnapshotInProgress>,
}

type Items = BTreeMap<Key, Value>;

#[derive(Serialize, Deserialize)]
struct StoredItem<'a> {
    #[serde(borrow, with = "serde_bytes")]
    key: &'a [u8],
    #[serde(borrow, with = "serde_bytes")]
    value: &'a [u8],
    revision: u64,
    created: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredState<'a> {
    kind: u32,
    revision: u64,
    #[serde(borrow)]
    items: Vec<StoredItem<'a>>,
}

const KIND: u32 = u32::from_le_bytes(*b"kv-1");

fn check_key(key: &[u8]) -> Result<(), Malformed> {
    match key.len() {
        0 => Err(Malformed("a key must have at least one byte".into())),
        len if len > KEY_LEN_MAX => Err(Malformed(format!("a key of {len} bytes: at most {KEY_LEN_MAX} are allowed"))),
        _ => Ok(()),
    }
}

fn check_value(value: &[u8]) -> Result<(), Malformed> {
    let len = value.len();
    if len > VALUE_LEN_MAX {
        return Err(Malformed(format!("a value of {len} bytes: at most {VALUE_LEN_MAX} are allowed")));
    }
    Ok(())
}

impl Command<'_> {
    /// Checks that its key has 1 to [`KEY_LEN_MAX`] bytes, and its values at most [`VALUE_LEN_MAX`].
    ///
    /// # Errors
    ///
    /// [`Malformed`], as a member would refuse it.
    pub fn check(&self) -> Result<(), Malformed> {
        match *self {
            Self::Put { key, value } => check_key(key).and_then(|()| check_value(value)),
            Self::Delete { key } => check_key(key),
            Self::Swap { key, expect, value } => {
                check_key(key)?;
                let expected = if let Expect::Value(expected) = expect { Some(expected) } else { None };
                expected.into_iter().chain(value).try_for_each(check_value)
            }
        }
    }
}

fn not_understood(what: &str) -> Malformed {
    Malformed(format!("the {what} was not understood: use the same release on both sides"))
}

impl KvStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Revision of the last change; 0 before the first.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> u64 {
        self.revision += 1;
        let revision = self.revision;
        let bytes: Arc<[u8]> = value.into();
        let entry = self.items.entry(Key::new(key));
        if let Some(frozen) = &mut self.frozen {
            let old = match &entry {
                Entry::Occupied(old) => Some(old.get()),
                Entry::Vacant(_) => None,
            };
            frozen.keep(entry.key(), old);
        }
        self.history.push(revision, entry.key().clone(), Some(Arc::clone(&bytes)));
        match entry {
            Entry::Occupied(mut old) => {
                let value = old.get_mut();
                (value.bytes, value.revision) = (bytes, revision);
            }
            Entry::Vacant(entry) => drop(entry.insert(Value { bytes, revision, created: revision })),
        }
        revision
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let Some((key, value)) = self.items.remove_entry(&Key::new(key)) else { return false };
        if let Some(frozen) = &mut self.frozen {
            frozen.keep(&key, Some(&value));
        }
        self.revision += 1;
        self.history.push(self.revision, key, None);
        true
    }

    fn run(&mut self, command: &Command<'_>) -> CommandResult<'_> {
        match *command {
            Command::Put { key, value } => CommandResult::Changed { revision: self.put(key, value) },
            Command::Delete { key } if self.delete(key) => CommandResult::Changed { revision: self.revision },
            Command::Delete { .. } => CommandResult::KeyMissing,
            Command::Swap { key, expect, value } => {
                let place = Key::new(key);
                let is_expected = match (expect, self.items.get(&place)) {
                    (Expect::Nothing, found) => found.is_none(),
                    (Expect::Revision(revision), Some(found)) => found.revision == revision,
                    (Expect::Value(bytes), Some(found)) => *found.bytes == *bytes,
                    (_, None) => false,
                };
                if !is_expected {
                    return CommandResult::Differs { found: self.items.get(&place).map(|value| item(&[], value)) };
                }
                match value {
                    Some(value) => CommandResult::Changed { revision: self.put(key, value) },
                    None if self.delete(key) => CommandResult::Changed { revision: self.revision },
                    None => CommandResult::KeyMissing,
                }
            }
        }
    }

    fn range(&self, from: &[u8], to: Option<&[u8]>, limit: usize) -> QueryResult<'_> {
        let end = to.map_or(Bound::Unbounded, |to| Bound::Excluded(Key::new(to)));
        let (mut items, mut len, mut more) = (Vec::new(), 0, false);
        if to.is_none_or(|to| from < to) {
            for (key, value) in self.items.range((Bound::Included(Key::new(from)), end)) {
                len += key.bytes().len() + value.bytes.len() + ITEM_LEN;
                more = items.len() >= limit || (!items.is_empty() && len > ANSWER_LEN_MAX);
                if more {
                    break;
                }
                items.push(item(key.bytes(), value));
            }
        }
        QueryResult::Items { revision: self.revision, items, more }
    }
}

fn item<'a>(key: &'a [u8], value: &'a Value) -> Item<'a> {
    Item { key, value: &value.bytes, revision: value.revision, created: value.created }
}

fn read_snapshot(bytes: &[u8]) -> Result<StoredState<'_>, BadSnapshot> {
    let state: StoredState<'_> = wire::decode(bytes).map_err(|_| BadSnapshot)?;
    let is_right = |item: &StoredItem<'_>| {
        (item.created..=state.revision).contains(&item.revision)
            && check_key(item.key).and_then(|()| check_value(item.value)).is_ok()
    };
    let has_next = state.revision < wire::NUMBER_MAX;
    if state.kind == KIND && has_next && state.items.iter().all(is_right) { Ok(state) } else { Err(BadSnapshot) }
}

impl StateMachine for KvStore {
    fn check_command(&self, command: &[u8]) -> Result<(), Malformed> {
        wire::decode::<Command<'_>>(command).map_err(|_| not_understood("command"))?.check()
    }

    fn check_query(&self, query: &[u8]) -> Result<(), Malformed> {
        match wire::decode(query).map_err(|_| not_understood("query"))? {
            Query::Get { key } => check_key(key),
            // The key behind the longest one has a byte more.
            Query::Range { from, to, .. }
                if from.len() > KEY_LEN_MAX + 1 || to.is_some_and(|to| to.len() > KEY_LEN_MAX) =>
            {
                Err(Malformed(format!("a bound of the range has more than {KEY_LEN_MAX} bytes")))
            }
            Query::Range { limit: 0, .. } | Query::Watch { limit: 0, .. } => {
                Err(Malformed("the limit is 0 items; ask for at least 1".into()))
            }
            Query::Range { .. } => Ok(()),
            Query::Watch { prefix, .. } if prefix.len() > KEY_LEN_MAX => {
                Err(Malformed(format!("the prefix has more than {KEY_LEN_MAX} bytes")))
            }
            Query::Watch { .. } => Ok(()),
        }
    }

    fn apply(&mut self, command: &[u8], answer: &mut Vec<u8>) {
        let done = match wire::decode::<Command<'_>>(command) {
            Ok(decoded) if decoded.check().is_ok() => self.run(&decoded),
            _ => CommandResult::Malformed,
        };
        wire::encode(&done, answer);
    }

    fn read(&self, query: &[u8], answer: &mut Vec<u8>) -> bool {
        let found = match wire::decode(query) {
            Ok(Query::Get { key }) => QueryResult::Item {
                revision: self.revision,
                item: self.items.get_key_value(&Key::new(key)).map(|(key, value)| item(key.bytes(), value)),
            },
            Ok(Query::Range { from, to, limit }) => self.range(from, to, limit as usize),
            Ok(Query::Watch { prefix, from, limit }) => match self.history.since(prefix, from, limit as usize) {
                Some(found) => found,
                None => return false,
            },
            Err(_) => QueryResult::Malformed,
        };
        wire::encode(&found, answer);
        true
    }

    fn resume(&self, query: &[u8]) -> Option<Vec<u8>> {
        let Ok(Query::Watch { prefix, from, limit }) = wire::decode(query) else { return None };
        (from <= self.revision).then(|| {
            let mut later = Vec::with_capacity(query.len() + 8);
            wire::encode(&Query::Watch { prefix, from: self.revision + 1, limit }, &mut later);
            later
        })
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut frozen = SnapshotInProgress::begin(self.revision, &self.items, &mut bytes);
        frozen.serialize(&self.items, &mut bytes, usize::MAX);
        bytes
    }

    fn begin_snapshot(&mut self, bytes: &mut Vec<u8>) -> bool {
        self.frozen = Some(SnapshotInProgress::begin(self.revision, &self.items, bytes));
        false
    }

    fn continue_snapshot(&mut self, bytes: &mut Vec<u8>, len: usize) -> bool {
        let is_done = self.frozen.as_mut().is_none_or(|frozen| frozen.serialize(&self.items, bytes, len));
        if is_done {
            self.frozen = None;
        }
        is_done
    }

    fn check_snapshot(&self, snapshot: &[u8]) -> Result<(), BadSnapshot> {
        read_snapshot(snapshot).map(drop)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), BadSnapshot> {
        let StoredState { revision, items, .. } = read_snapshot(snapshot)?;
        let items = items.into_iter().map(|StoredItem { key, value, revision, created }| {
            (Key::new(key), Value { bytes: value.into(), revision, created })
        });
        (self.items, self.revision) = (items.collect(), revision);
        (self.history, self.frozen) = (RecentChanges::after(revision), None);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
