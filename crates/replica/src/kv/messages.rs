//! Commands, queries and answers, as bytes by [`crate::wire`].

use serde::{Deserialize, Serialize};

/// What changes the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command<'a> {
    /// A key gets a value.
    Put {
        /// The key.
        #[serde(borrow, with = "serde_bytes")]
        key: &'a [u8],
        /// Its value.
        #[serde(borrow, with = "serde_bytes")]
        value: &'a [u8],
    },
    /// A key goes.
    Delete {
        /// The key.
        #[serde(borrow, with = "serde_bytes")]
        key: &'a [u8],
    },
    /// A key gets a value, or goes, if what is there is as expected.
    Swap {
        /// The key.
        #[serde(borrow, with = "serde_bytes")]
        key: &'a [u8],
        /// What has to be there.
        #[serde(borrow)]
        expect: Expect<'a>,
        /// Its value; none takes the key away.
        #[serde(borrow)]
        value: Option<&'a [u8]>,
    },
}

/// What has to be there for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expect<'a> {
    /// No such key.
    Nothing,
    /// The value that this change made.
    Revision(u64),
    /// These bytes.
    Value(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
}

/// What asks the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query<'a> {
    /// A key's value.
    Get {
        /// The key.
        #[serde(borrow, with = "serde_bytes")]
        key: &'a [u8],
    },
    /// Keys in order.
    Range {
        /// The first.
        #[serde(borrow, with = "serde_bytes")]
        from: &'a [u8],
        /// The first behind them.
        #[serde(borrow)]
        to: Option<&'a [u8]>,
        /// How many at most.
        limit: u32,
    },
    /// Changes of keys that begin so; waits for one.
    Watch {
        /// How keys begin.
        #[serde(borrow, with = "serde_bytes")]
        prefix: &'a [u8],
        /// The first revision of interest.
        from: u64,
        /// How many at most.
        limit: u32,
    },
}

/// A key and what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item<'a> {
    /// The key; empty where it is known.
    #[serde(borrow, with = "serde_bytes")]
    pub key: &'a [u8],
    /// Its value.
    #[serde(borrow, with = "serde_bytes")]
    pub value: &'a [u8],
    /// Of the change that made the value.
    pub revision: u64,
    /// Of the change that made the key.
    pub created: u64,
}

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change<'a> {
    /// Its revision.
    pub revision: u64,
    /// The key.
    #[serde(borrow, with = "serde_bytes")]
    pub key: &'a [u8],
    /// Its value; none when it is gone.
    #[serde(borrow)]
    pub value: Option<&'a [u8]>,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done<'a> {
    /// It changed something.
    Changed {
        /// Of the change.
        revision: u64,
    },
    /// There was nothing to delete.
    NotThere,
    /// What is there is not what was expected.
    Differs {
        /// What is there.
        #[serde(borrow)]
        found: Option<Item<'a>>,
    },
    /// It was none.
    Malformed,
}

/// What a query found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found<'a> {
    /// Of one key.
    Item {
        /// Of the store.
        revision: u64,
        /// If it is there.
        #[serde(borrow)]
        item: Option<Item<'a>>,
    },
    /// Of several.
    Items {
        /// Of the store.
        revision: u64,
        /// In order.
        #[serde(borrow)]
        items: Vec<Item<'a>>,
        /// Whether there are more, behind the last.
        more: bool,
    },
    /// Changes.
    Changes {
        /// In order.
        #[serde(borrow)]
        changes: Vec<Change<'a>>,
        /// The first revision that was not looked at.
        next: u64,
    },
    /// The changes asked for are kept no more.
    Compacted {
        /// The first that are.
        oldest: u64,
    },
    /// It was none.
    Malformed,
}
