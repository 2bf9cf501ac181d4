//! Fences that one side executes on behalf of the other.
//!
//! A sender that has published a packet and a receiver that is about to sleep must not miss each other. Each writes
//! (the packet; that it sleeps) and then reads what the other wrote, so each needs a full fence in between. The sender
//! pays for its fence with every burst (some 25 ns each way here, as much as a cache line takes between nearby
//! processors), the receiver only once per sleep. `membarrier` moves the cost: when the receiver calls it, every
//! running thread of the registered processes executes a full fence. A sender then needs no fence of its own, provided
//! that its process has registered and that the receiver has promised to call.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call accesses no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether this process executes fences on behalf of others, and can request theirs. Determined once. Where the system
/// refuses (an old kernel, a filter), every side executes its own fences.
pub(crate) fn is_shared() -> bool {
    static SHARED: OnceLock<bool> = OnceLock::new();
    *SHARED.get_or_init(|| membarrier(REGISTER_GLOBAL_EXPEDITED) && membarrier(GLOBAL_EXPEDITED))
}

/// Makes all threads of registered processes, including the caller, execute a full fence before this returns. Where the
/// system refused from the beginning, only the caller executes one, and every other side has its own. Returns `false`
/// when the system refuses from now on (no kernel memory, or a filter installed later): senders that rely on this fence
/// may then be missed, so the caller must check again soon.
#[must_use]
pub(crate) fn fence_everywhere() -> bool {
    if !is_shared() {
        // No sender was told to rely on us, so each has its own fence between its write and its read, and this is ours.
        // Partner: `Seat::fence`.
        fence(Ordering::SeqCst);
        return true;
    }
    membarrier(GLOBAL_EXPEDITED)
}
