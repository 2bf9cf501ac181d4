//! What the allocator keeps of memory that was freed.

/// Buffers from this size on are memory of the system's own.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LONG: libc::c_int = 64 << 10;

/// Has the allocator give buffers of 64 KB and more back to the system as soon as they are freed. It does so at first, and ends to once
/// it has seen that such buffers come and go: what a crowd of clients has needed once would stay with the process. Whoever uses many of them
/// keeps some.
///
/// Allocators other than glibc's are left as they are.
pub fn give_back_long_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` changes how the allocator goes about further requests, under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LONG);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LONG);
    }
}
