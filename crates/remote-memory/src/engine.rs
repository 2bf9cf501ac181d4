//! Reads and writes of one donor's memory by many threads: merged, chained and admitted (rdmabox IV-A).
//!
//! - [`Shared`]: state common to all threads that use a donor: the merge queue, the order of overlapping requests, and
//!   the limit on bytes in flight. Each thread gets an [`Arc`](std::sync::Arc) of it.
//! - [`Engine`]: one per thread. [`Engine::submit`] puts a request into the queue. [`Engine::turn`] takes what has
//!   gathered there, from any thread, turns it into as few operations as it can, and posts them with one doorbell
//!   (Algorithms 1 and 2, Figure 4). It never waits for more requests: the thread that turns first takes all of them,
//!   and the others find nothing and go on. Requests that it finishes for other threads go to their inboxes, and those
//!   threads are woken.
//! - [`Path`]: a thread's path to the donor: [`VerbsPath`], over any [verbs](sinew_fabric::verbs), or [`RpcPath`], by
//!   calls to a donor that answers for its [`Ranges`].
//! - [`RegistrationPolicy`]: the treatment of requests whose memory the path has not registered: depending on their
//!   size it is copied (preMR), or registered and kept in a cache of the path (dynMR). [`CostCurve`] measures the size
//!   at which registering becomes cheaper.
//! - [`Admission`]: the limit on bytes in flight: [`Unlimited`], [`StaticWindow`] (the paper's) or [`AdaptiveWindow`].
//!
//! # Guarantees
//!
//! - A read sees every write submitted before it, by any thread, and of overlapping writes the one submitted last
//!   prevails: a request that overlaps an earlier one, where at least one of the two is a write, waits in the queue
//!   until the earlier one has finished. Other requests pass it.
//! - A lone request is posted in its engine's next turn, as an operation of its own. A request that finds no other
//!   unfinished one bypasses the queue.
//! - Every request is finished once. A write that fails leaves its bytes undefined: they may be written, in part or as
//!   a whole, and on a network even some time after the failure. The engine has then lost its donor
//!   ([`Engine::error`]); a caller that goes on with another donor must write elsewhere.
//! - An engine with operations in flight may hold requests of other engines, and others may wait for what it has
//!   submitted. So it must be turned until it is [idle](Engine::is_idle), or dropped. What a dropped engine has not
//!   posted goes back to the queue, and what it has in flight ends with an error for its submitter.
//!
//! Nothing here starts a thread, does I/O of its own or reads a clock: [`Engine::turn`] is given the time.
//!
//! # Design
//!
//! Queues of verbs belong to a thread, so the merge queue is shared and the paths are not.
//!
//! - **[`Shared`] is behind one lock**, which is held for some tens of instructions. Each thread's [`Engine`] posts by
//!   its own [`Path`], for itself and for others.
//! - **Ranges are looked up by stripes**, so the check for overlaps takes the same time however much is in flight.
//! - **A lone request bypasses the queue.** Only its own engine posts it, so that engine must be turned or dropped. A
//!   turn that finds nothing else posts and completes it on a short path of its own.
//! - **Callers' memory is copied or, from a certain size on, registered** (rdmabox IV-A: preMR and dynMR). Each path
//!   keeps registrations for their next use, by where they begin, since arenas hand out the same places again and
//!   again. Registrations that are in flight, or were asked for since the last doorbell, are not evicted. What cannot
//!   be registered is copied. Pools and volumes never face this choice: a [`Store`](crate::Store) has its requests'
//!   buffers from its own arena, which is registered when it is opened, so they are sent without a copy, and a
//!   threshold would have no effect. Programs that use other memory measure the threshold at start
//!   ([`VerbsPathConfig::measured`]).
//! - **One failed operation breaks its engine's path.** What was queued goes to other engines. What was in flight ends
//!   with an error, and a write among it may still land later.
//! - **[`VerbsPath`] has four queue pairs**, which complete in one queue or share a few, and gives one chain to each in
//!   turn; [`RpcPath`] makes a chain one call. Both pass one suite of facts (feature `facts`), on modelled NICs, on
//!   loopback and over shared memory.
//! - **A window is fixed** (7 MB in rdmabox V-A) **or found**: [`AdaptiveWindow`] tries windows up and down, and keeps
//!   the one with the highest throughput. On modelled NICs it finds a good one for pages, and one that is too small
//!   for short messages of many threads (`rdmabox-fig8`): the thread that turns first takes all of a small window, and
//!   enlarging it a little brings nothing.
//! - **Four queue pairs for each thread are too many** for more than eight threads on a ConnectX-3 (`rdmabox-fig8`):
//!   the NIC caches the state of 35 queue pairs, and the misses make the rate fall to a quarter. With a window the rate
//!   holds.
//! - **An engine is turned until it is idle**, even by an owner that has no requests of its own left, since it may have
//!   taken others' requests. (`sinew_harness::load::memory` ends only then.)

mod adaptive_window;
mod admission;
mod batch;
mod cost_curve;
mod donating;
mod driver;
mod error;
#[cfg(feature = "facts")]
pub mod facts;
mod flight;
mod inbox;
pub(crate) mod order;
mod path;
mod registration;
mod request;
mod rpc_path;
mod shared;
mod state;
mod stats;
mod verbs_path;

pub use adaptive_window::AdaptiveWindow;
pub use admission::{Admission, StaticWindow, Unlimited};
pub use batch::Mode;
pub use cost_curve::{Cost, CostCurve};
pub use donating::{ACCESS, Ranges, Refusal};
pub(crate) use donating::{Parsed, answer};
pub use driver::{Engine, EngineConfig};
pub use error::{EngineError, FailureCause};
pub use path::{Done, Limits, Path, PathJob};
pub use registration::{RegistrationPolicy, RegistrationStats};
pub use request::{Finished, Op, Refused, Request};
pub use rpc_path::{RpcPath, RpcPathConfig};
pub use shared::{Shared, SharedConfig};
pub use stats::EngineStats;
pub use verbs_path::{DonorQueuePairs, VerbsPath, VerbsPathConfig};
