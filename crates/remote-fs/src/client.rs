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
//! - **No wrong bytes**: each page read is checked against its checksum. If the two differ, the page is read from its
//!   present place, or from the other copies. If that fails, too, the read fails, and the file, the page and the donors
//!   are logged.
//! - **Nothing in place**: pages are written to memory that the service has reserved for this client, and then
//!   committed. Until then they stay in this program's memory: if the client is declared dead or the service restarts,
//!   they are written again.
//! - **Partial pages**: two clients may write different bytes of one page. The later commit is refused, and its bytes
//!   are merged into the page of the earlier one.
//! - **A lack of room** is reported by the write that meets it, since pages are reserved ahead: it writes as many bytes
//!   as there is room for, and fails if those are none. Pages that a file has, or that were
//!   [allocated](Lane::change_range) for it, can be written on a full file system, too.
//!
//! # Design
//!
//! A lane works in its caller's thread, so a read needs no hand-over between threads: the thread that the kernel wakes
//! for a request posts the READ, checks the pages, and answers from the buffer in which they arrived.
//!
//! - **Written, then committed.** Written data lies in chunks of 256 KB in registered memory until the service has
//!   committed it, so that it can be written again under a new epoch or another identity. A chunk that is being flushed
//!   does not change; data written meanwhile goes to a second chunk on top.
//! - **A request that was given up never takes effect later.** Each request carries the number below which its client
//!   waits for no answer, and the service performs nothing below that number. So the pages of a commit that was given
//!   up either belong to the file, or to no file; the client offers to return them, and uses them for nothing else
//!   meanwhile.
//! - **Losses are reported by handle**, as the kernel does for disks: data that could not be committed is reported once
//!   to each handle, when it syncs or closes the file, and by no other call.
//! - **A client that was declared dead** joins under a new number. It opens its files anew before other lanes make
//!   requests under that number, and commits its written data. If a lock is lost, its file is lost too, since another
//!   client may have changed it. If lanes opened, closed or locked files while the client joined, the service is told
//!   in the same way.
//! - **The commit of a partial page names the contents of the page that it replaces**: the checksum, and how many bytes
//!   of the page belong to the file. If the file has another page there by now, or was cut within it, the commit is
//!   refused, and the written bytes are merged into the page as it is.
//! - **A page whose checksum differs** was replaced, or is damaged. The layout is asked for again: if it has changed,
//!   the pages are read from the new place; if not, the other copies are tried.
//! - **Before it blames a donor for a failed write**, the client asks the service whether it is still known: otherwise
//!   an expelled client would have healthy copies removed. A donor that refuses the client's number is never blamed.
//!   If it still has the copy, it has only lost track of which clients left, and the client joins under a new number.
//! - **Pages are reserved when data is written, not when it is flushed**, so it is `write` that reports a lack of room.
//! - **On a full file system** a write reserves pages only to overwrite others, as many as the service has, and commits
//!   what it wrote before it asks for more. Each written page remembers for which purpose it has room.
//! - **Messages about one segment** are logged once in ten seconds, with their number.

mod ask;
mod config;
mod data;
mod dirty;
mod donor_connection;
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
mod repeats;
mod reserve;
mod sequence;
mod shared;
mod write;

pub use config::ClientConfig;
pub use error::ClientError;
pub use lane::Lane;
pub use names::{Opened, RangeChange, Whence};
pub use shared::Client;
