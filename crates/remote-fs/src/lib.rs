//! A file system whose data lies in donors' memory, and whose names lie at one metadata service.
//!
//! - [`client`]: file access for a program on another host.
//! - [`map`]: the pages of donors' memory that hold a file's pages.
//! - [`protocol`]: requests of clients and answers of the service, as values and as bytes.
//! - [`tree`]: the names, as a state machine.
//! - [`space`]: free and used pages of the donors' memory, and their owners.
//! - [`service`]: the metadata service, as a state machine.
//! - [`check`]: checks of a file system while no service runs.
//!
//! Clients read and write pages at the donors directly, one-sided, and write only to memory that the service has
//! reserved for them. A commit tells the service which pages a file now has. Data is never overwritten in place, so an
//! interrupted write leaves the old contents, page by page.
//!
//! # Terms
//!
//! Of data:
//!
//! - **Donor** (`sinew_remote_memory::donor`): a process that lends memory. A *run* of a donor, or incarnation, lasts
//!   from a start to its end, and so does what its memory holds.
//! - **Page** (`protocol/page.rs`): 4096 bytes of a file, and their place. A **run** of pages, unlike that of a donor,
//!   is consecutive both in the file and at the donors. A **hole** is pages that a file lacks; they read as zeros. It
//!   is **allocated** (`map.rs`) if room was promised to it.
//! - **Segment** (`durable_state.rs`): consecutive pages that one or more donors have copies of. A copy lies in one
//!   **slab** of its donor, and is *whole* once it has all pages.
//! - **Generation** of a segment (`durable_state.rs`): a number that grows whenever copies come, go or move. A commit
//!   names the generation that was written to.
//! - **Reservation** (`space.rs`): free pages that only one client may write to, until it commits them or returns them.
//!   Those of a dead client are *kept back* until donors have cut it off.
//! - **Commit** (`tree/commit.rs`): the step in which reserved pages become pages of a file.
//! - **Layout** (`client/layout.rs`): the places of a file's pages, as a client knows them at some **version** of the
//!   file's contents.
//!
//! Of clients and the service:
//!
//! - **Epoch** (`durable_state.rs`): the number of a service's start. Donors are *fenced* under it: from then on they
//!   obey no earlier service, and no client of an earlier epoch.
//! - **Settled** (`protocol/request.rs`): a request is settled once its client waits for no answer to it.
//! - **Retired client** (`service/retired_clients.rs`): one that is gone, but that some donor may still admit.
//! - **Former copy** (`service/orphans.rs`): a slab that was taken out of its segment while its donor still had it.
//! - **Orphan** (`tree/state.rs`): an inode without a name, which stays while it is open.
//! - **Lane**: at a client (`client/lane.rs`), the state of one thread; in the service (`service/lanes.rs`), the state
//!   of one donor.
//! - **Chunk**: in a map (`map.rs`), an array of 64 pages; at a client (`client/dirty.rs`), the memory of 64 pages that
//!   hold uncommitted data.
//!
//! # Design
//!
//! The file system is not built on a volume, since a volume has one writer. Its clients write to reserved memory at the
//! donors and then commit; the service alone knows which pages a file has. Each part uses only those listed before it,
//! and none of them except `disk::HostDisk` does I/O:
//!
//! - [`protocol`] is values and their encoding. A checksum covers a page's contents alone: bytes that match it are
//!   right wherever they were found, so even with a stale layout no client reads another file's bytes.
//! - [`tree`] (the names, with [`map`]s of pages) is changed by requests. [`durable_state`] is the tree with the
//!   clients, their unsettled answers and the segments, and is changed by operations, which are the [`journal`]'s
//!   records. So an answer that was lost is sent again after a restart.
//! - [`journal`]: a record names its predecessor's checksum, and how far the log was known to be durable. So a tail
//!   that was never made durable is truncated, whichever parts of it reached the disk, and a log damaged before that
//!   point is refused. Records of a turn are synced together; answers, including those to reads, wait until all records
//!   are durable. Log space is reserved before a change is made, so that on a full disk only changes are refused.
//! - [`space`] is not stored: used pages are those that belong to files. The reservations of a dead client are kept
//!   back until every donor that has copies of them has cut the client off.
//! - [`service`] ties them together with the donors.
//!
//! A page in which a file is truncated is not rewritten: the map says how many of its bytes are valid.
#![forbid(unsafe_code)]

pub mod check;
pub mod client;
pub mod durable_state;
pub mod locks;
pub mod map;
pub mod protocol;
pub mod service;
pub mod space;
pub mod tree;

pub use sinew_journal::{self as journal, disk};
