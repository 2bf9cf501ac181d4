//! File access for a program on another host: it has a session with the service, caches what it learns, and reads and
//! writes pages at the donors directly.
//!
//! - [`Client`]: state shared by all threads of the program: its identity, open files, caches and uncommitted data.
//! - [`Lane`]: state of one thread: its endpoint, its session with the service, its queue pairs to the donors. Every
//!   operation on files is a method of a lane, and blocks until it is done.
//!
//! # Guarantees
//!
//! - **Close-to-open**: a program that opens a file sees everything committed before, by any client. Written data is
//!   committed when the file is flushed (on each `close`) or synced, when there is [too
//!   much](ClientConfig::dirty_bytes_max) of it, and after [some time](ClientConfig::dirty_age_ns).
//! - **No wrong bytes**: each page read is checked against its checksum. If it differs, it is read from the other
//!   copies, and from the place where the file has it by now. If that fails, too, the read fails, and the file, the
//!   page and the donors are logged.
//! - **Nothing in place**: pages are written to memory that the service has reserved for this client, and then
//!   committed. Until then they stay in this program's memory: if the client is declared dead or the service restarts,
//!   they are written again.
//! - **Partial pages**: two clients may write different bytes of one page. The later commit is refused, and its bytes
//!   are merged into the page of the earlier one.
//! - **No room** is reported by the write that lacks it: pages are reserved ahead.

mod ask;
mod config;
mod data;
mod dirty;
mod error;
mod file;
mod flush;
mod join;
mod lane;
mod layout;
mod locks;
mod names;
mod reach;
mod read;
mod reserve;
mod sequence;
mod shared;
mod within;
mod write;

pub use config::ClientConfig;
pub use error::Failed;
pub use lane::Lane;
pub use names::{Opened, Punch, Whence};
pub use shared::Client;
