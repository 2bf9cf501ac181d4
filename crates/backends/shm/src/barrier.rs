//! One side's fences made by the other.
//!
//! A sender that has published and a receiver that is about to sleep must not miss each other, so each has a full fence
//! between its write and its read. The sender's is paid with every burst (some 25 ns each way here, as much as a cache line's
//! journey between near processors), the receiver's once a sleep. `membarrier` moves the price: it makes every running
//! thread of the processes that registered execute a full fence, at the call of the receiver. A sender then needs none of
//! its own, provided that its process has registered and that the receiver has promised to call.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether this process executes fences that others call for, and can call for theirs. Found out once; where the system
/// refuses (an old kernel, a filter), every side fences for itself.
pub(crate) fn is_shared() -> bool {
    static SHARED: OnceLock<bool> = OnceLock::new();
    *SHARED.get_or_init(|| membarrier(REGISTER_GLOBAL_EXPEDITED) && membarrier(GLOBAL_EXPEDITED))
}

/// Makes all threads of registered processes, the caller among them, execute a full fence before this returns. Where the system
/// refused from the beginning, the caller alone executes one, and every other side has its own. `false` where it cannot any more (no
/// memory in the kernel, a filter that was installed since): senders that rely on it may then be missed, so the caller must
/// look again soon.
#[must_use]
pub(crate) fn fence_everywhere() -> bool {
    if !is_shared() {
        // No sender was told to rely on us, so each has its fence between its write and its read. This is ours. Partner: `Seat::fence`.
        fence(Ordering::SeqCst);
        return true;
    }
    membarrier(GLOBAL_EXPEDITED)
}
