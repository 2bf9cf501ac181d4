//! Commands, queries and answers of the store, which [`crate::wire`] turns into bytes.

use serde::{Deserialize, Serialize};

/// A command, which changes the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command<'a> {
    /// Gives a key a value.
    Put {
        /// The key.
        #[serde(borrow, with = "serde_bytes")]
        key: &'a [u8],
        /// Its value.
        #[serde(borrow, with = "serde_bytes")]
        value: &'a [u8],
    },
    /// Deletes a key.
    Delete {
        /// The key.
        #[serde(borrow, with = "serde_bytes")]
        key: &'a [u8],
    },
    /// Gives a key a value, or deletes it, if its current state is as expected.
    Swap {
        /// The key.
        #[serde(borrow, with = "serde_bytes")]
        key: &'a [u8],
        /// The state that it must have.
        #[serde(borrow)]
        expect: Expect<'a>,
        /// The new value; `None` deletes the key.
        #[serde(borrow)]
        value: Option<&'a [u8]>,
    },
}

/// State that a key must have for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expect<'a> {
    /// There is no such key.
    Nothing,
    /// The key has the value that this change made.
    Revision(u64),
    /// The key has this value.
    Value(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
}

/// A query, which changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query<'a> {
    /// Reads a key's value.
    Get {
        /// The key.
        #[serde(borrow, with = "serde_bytes")]
        key: &'a [u8],
    },
    /// Reads a range of keys, in order.
    Range {
        /// First key.
        #[serde(borrow, with = "serde_bytes")]
        from: &'a [u8],
        /// End of the range (exclusive); `None` for no end.
        #[serde(borrow)]
        to: Option<&'a [u8]>,
        /// Items, at most; not 0.
        limit: u32,
    },
    /// Returns changes of keys with this prefix, and waits until there is one.
    Watch {
        /// The prefix.
        #[serde(borrow, with = "serde_bytes")]
        prefix: &'a [u8],
        /// First revision of interest.
        from: u64,
        /// Changes, at most; not 0.
        limit: u32,
    },
}

/// A key and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item<'a> {
    /// The key; empty if the reader knows it.
    #[serde(borrow, with = "serde_bytes")]
    pub key: &'a [u8],
    /// Its value.
    #[serde(borrow, with = "serde_bytes")]
    pub value: &'a [u8],
    /// Revision of the change that made the value.
    pub revision: u64,
    /// Revision of the change that made the key.
    pub created: u64,
}

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change<'a> {
    /// Revision of the change.
    pub revision: u64,
    /// The key.
    #[serde(borrow, with = "serde_bytes")]
    pub key: &'a [u8],
    /// The new value; `None` if the key was deleted.
    #[serde(borrow)]
    pub value: Option<&'a [u8]>,
}

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandResult<'a> {
    /// The store was changed.
    Changed {
        /// Revision of the change.
        revision: u64,
    },
    /// There was no such key to delete. Nothing has changed.
    KeyMissing,
    /// The key is not in the expected state.
    Differs {
        /// The key's current value, if there is one.
        #[serde(borrow)]
        found: Option<Item<'a>>,
    },
    /// The command was malformed.
    Malformed,
}

/// Result of a query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueryResult<'a> {
    /// Result of [`Query::Get`].
    Item {
        /// Revision of the store.
        revision: u64,
        /// The item, if the key exists.
        #[serde(borrow)]
        item: Option<Item<'a>>,
    },
    /// Result of [`Query::Range`].
    Items {
        /// Revision of the store.
        revision: u64,
        /// The items, in order of their keys.
        #[serde(borrow)]
        items: Vec<Item<'a>>,
        /// Whether there are more after the last one.
        more: bool,
    },
    /// Result of [`Query::Watch`].
    Changes {
        /// The changes, in order.
        #[serde(borrow)]
        changes: Vec<Change<'a>>,
        /// First revision that was not searched.
        next: u64,
    },
    /// Some of the changes asked for are no longer kept.
    Compacted {
        /// Revision of the oldest change kept.
        oldest: u64,
    },
    /// The query was malformed.
    Malformed,
}
