//! Limits the freed memory that the allocator keeps.

/// Buffers of this many bytes and more are mapped from the system one by one.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MMAP_THRESHOLD: libc::c_int = 64 << 10;

/// Makes the allocator return buffers of 64 KiB and more to the system as soon as they are freed.
///
/// By default it stops doing so once it has seen such buffers come and go, and memory that a crowd of clients needed
/// once would stay with the process. A program that uses many long buffers should keep some of them for reuse.
///
/// Allocators other than glibc's are left unchanged.
pub fn give_back_long_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` changes how the allocator treats later requests, under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MMAP_THRESHOLD);
    }
}
