//! A word that the kernel changes when the thread that owns it dies, however it dies.
//!
//! An initiator reads the word with every operation, so it sees the death of a peer at once and without a system call.
//! The word is a robust futex: at the end of a thread, the kernel walks a list that the thread has registered, and
//! marks each word in the list that holds the thread's number.

use std::sync::atomic::{AtomicU32, Ordering};

/// Bit that the kernel sets in the word of a dead thread.
const OWNER_DIED: u32 = libc::FUTEX_OWNER_DIED;

/// Whether the word is that of a living owner.
#[inline(always)]
pub(crate) fn is_alive(word: u32) -> bool {
    word != 0 && word & OWNER_DIED == 0
}

/// Word of an owner that lives and dies with its observers.
pub(crate) const SAME_PROCESS: u32 = 1;

/// `struct robust_list_head` of the kernel, with room for one entry.
#[repr(C)]
struct List {
    /// The first entry, or the list itself when it is empty.
    next: *const Link,
    /// Distance from an entry to its word, in bytes.
    offset: libc::c_long,
    pending: *const Link,
    link: Link,
}

/// `struct robust_list` of the kernel.
#[repr(C)]
struct Link {
    next: *const Link,
}

const HEAD_BYTES: libc::size_t = std::mem::offset_of!(List, link);

/// Keeps a word marked as alive for as long as the calling thread lives, or until this is dropped on the same thread.
pub(crate) struct RobustWord<'a> {
    word: &'a AtomicU32,
    list: *mut List,
    /// The list that the thread had before, which belongs to the C library, and its length.
    before: (*mut libc::c_void, libc::size_t),
}

impl<'a> RobustWord<'a> {
    /// Sets `word` to the calling thread's number, and has the kernel mark it when the thread dies. `None` where the
    /// system does not support this.
    ///
    /// # Safety
    ///
    /// This is dropped before `'a` ends, or `word` stays mapped until the thread has ended, which is when the kernel
    /// writes it. (A robust mutex of the C library that the thread holds meanwhile is not released by its death.)
    pub unsafe fn new(word: &'a AtomicU32) -> Option<Self> {
        let mut before = (std::ptr::null_mut(), 0);
        // SAFETY: both pointers lead to live words of ours.
        if unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut before.0, &raw mut before.1) } != 0 {
            return None;
        }
        let list = Box::into_raw(Box::new(List {
            next: std::ptr::null(),
            offset: 0,
            pending: std::ptr::null(),
            link: Link { next: std::ptr::null() },
        }));
        // SAFETY: the box is ours. It is freed only after the kernel has been told to forget it.
        unsafe {
            let link = &raw mut (*list).link;
            (*list).next = link;
            (*list).offset = word.as_ptr().addr().wrapping_sub(link.addr()) as libc::c_long;
            // The only entry is also the last: it leads back to the list.
            (*link).next = list.cast();
        }
        // SAFETY: the call accesses no memory.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        // Release. Partner: the acquire load in `Directory::life`. The word is set before the list, as a word in the
        // list must hold our number.
        word.store(thread, Ordering::Release);
        // SAFETY: the list is laid out as the kernel reads it, ends where it began, and stays allocated until it is
        // replaced.
        if unsafe { libc::syscall(libc::SYS_set_robust_list, list, HEAD_BYTES) } != 0 {
            // SAFETY: the kernel did not take the list.
            drop(unsafe { Box::from_raw(list) });
            return None;
        }
        Some(Self { word, list, before })
    }
}

impl Drop for RobustWord<'_> {
    fn drop(&mut self) {
        self.word.store(OWNER_DIED, Ordering::Release);
        // SAFETY: this is the list that the thread had before.
        let restored = unsafe { libc::syscall(libc::SYS_set_robust_list, self.before.0, HEAD_BYTES) } == 0;
        if restored {
            // SAFETY: the kernel has forgotten the list, which was made by `Box::into_raw`.
            drop(unsafe { Box::from_raw(self.list) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_a_thread_that_ends_says_so_even_when_nothing_is_dropped() {
        for forget in [false, true] {
            let word: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
            assert!(!is_alive(word.load(Ordering::Relaxed)));
            std::thread::spawn(move || {
                // SAFETY: the word was leaked, so it stays mapped.
                let watch = unsafe { RobustWord::new(word) }.expect("robust futexes");
                assert!(is_alive(word.load(Ordering::Relaxed)));
                if forget {
                    std::mem::forget(watch);
                }
            })
            .join()
            .unwrap();
            // A join returns when the thread's stack is free, which is after the kernel has walked the list.
            assert!(!is_alive(word.load(Ordering::Acquire)), "forget: {forget}");
        }
    }
}
