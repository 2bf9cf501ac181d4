//! Files as a program on another host has them: its session with the service, what it has cached, and pages that it reads and writes at the donors by itself.
//!
//! - [`Client`]: what all threads of the program have in common: who it is, what it has open, what it has cached and not committed.
//! - [`Lane`]: a thread's own: its endpoint, its session with the service, its queue pairs to the donors. All that can be done with files is done by a lane, and waits until it is over.
//!
//! # What holds
//!
//! - **Close-to-open**: whoever opens a file sees all that was committed before, by whichever client. What is written is committed when the file is flushed (each `close`) or synced, when there is
//!   [too much](ClientConfig::dirty_bytes_max) of it, and after [some time](ClientConfig::dirty_age_ns).
//! - **No wrong bytes**: each page that is read is checked against its checksum. One that differs is read from the other copies, and from where the file has it by now, and else is an error that is
//!   logged with the file, the page and the donors.
//! - **Nothing in place**: pages are written to memory that the service has reserved for this client, and then committed. They stay in this program's memory until they are: a client that is
//!   taken for dead, or a service that starts again, has them written anew.
//! - **Parts of pages**: two clients may write different bytes of one page. The later commit is refused, and its bytes are put over the earlier one's.
//! - **No room** is told by the write that there is no room for: pages are reserved ahead.

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
