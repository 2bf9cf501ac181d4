//! The one place from which Sinew takes its atomics, and the lock used in code that is checked with them, so that loom
//! can stand in for them (`--cfg loom`).
//!
//! Crates other than `mem` use these through the types of this crate. Each atomic that synchronises carries a comment
//! that names its partner.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::{Arc, Mutex, MutexGuard};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Arc, Mutex, MutexGuard};

/// The processor's own atomics, for words inside mapped memory, which loom cannot place.
pub mod plain {
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
}
