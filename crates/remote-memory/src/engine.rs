//! Reads and writes of one donor's memory by many threads: merged, chained and admitted (rdmabox IV-A).
//!
//! - [`Shared`]: what all threads that use a donor have in common: the merge queue, the order of requests that overlap, and how many bytes may be in
//!   flight. An [`Arc`](std::sync::Arc) of it goes to each thread.
//! - [`Engine`]: a thread's own. [`Engine::submit`] puts a request into the queue; [`Engine::turn`] takes what has gathered there, whoever asked for it,
//!   makes as few operations of it as it can, and posts them with one doorbell (Algorithms 1 and 2, Figure 4). It never waits for company: whoever turns first
//!   takes all, and the others find nothing and go on. What it finishes for others goes to their inboxes, and wakes them.
//! - [`Path`]: a thread's way to the donor: [`VerbsPath`], over any [verbs](sinew_fabric::verbs), or [`RpcPath`], by calls to a donor that answers for its [`Ranges`].
//! - [`Registering`]: what becomes of requests whose memory is none that the path registered: copied, or registered and kept so in a cache of the path's, by their size (preMR and dynMR). [`Crossing`]
//!   measures from which size on.
//! - [`Admission`]: how many bytes may be in flight: [`Unlimited`], [`StaticWindow`] (the paper's) or [`FindingWindow`].
//!
//! # What holds
//!
//! - A read sees all that was written by requests that were submitted before it, by whichever thread, and of overlapping writes the one that was submitted last stays: a request that overlaps an
//!   earlier one (one of them a write) waits in the queue until that is over. Others pass it.
//! - A request alone is posted in its engine's next turn, as an operation of its own. One that finds no other on its way to the donor passes by the queue.
//! - Every request is finished once. One that fails leaves what it wrote undefined: it may be written, in part or as a whole, and on a network may still be
//!   so a while after it failed. The donor is lost to the engine then ([`Engine::error`]), and whoever goes on with another writes elsewhere.
//! - An engine that has operations in flight may have those of others among them, and what it has submitted others may wait for: it is turned until it is [idle](Engine::is_idle), or dropped. What a dropped engine has not
//!   posted goes back to the queue, and what it has in flight ends with an error for whoever asked.
//!
//! Nothing here has a thread, does I/O of its own or reads a clock: [`Engine::turn`] is handed the time.

mod admission;
mod batch;
mod crossing;
mod donating;
mod driver;
mod error;
#[cfg(feature = "facts")]
pub mod facts;
mod finding;
mod flight;
mod inbox;
pub(crate) mod order;
mod path;
mod registering;
mod request;
mod rpc_path;
mod shared;
mod state;
mod stats;
mod verbs_path;

pub use admission::{Admission, StaticWindow, Unlimited};
pub use batch::Mode;
pub use crossing::{Crossing, Takes};
pub use donating::{ACCESS, Ranges, Refusal};
pub(crate) use donating::{Parsed, answer};
pub use driver::{Engine, EngineConfig};
pub use error::{EngineError, Why};
pub use finding::FindingWindow;
pub use path::{Done, Limits, Path, PathJob};
pub use registering::{Registering, RegistrationStats};
pub use request::{Finished, Op, Refused, Request};
pub use rpc_path::{RpcPath, RpcPathConfig};
pub use shared::{Shared, SharedConfig};
pub use stats::EngineStats;
pub use verbs_path::{Lending, VerbsPath, VerbsPathConfig};
