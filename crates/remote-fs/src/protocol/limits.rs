//! Limits on what either side sends or stores.

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Longest [`Message`](super::Message), in bytes.
pub const REQUEST_LEN_MAX: usize = 1 << 20;
/// Longest [`Reply`](super::Reply), in bytes.
pub const ANSWER_LEN_MAX: usize = 1 << 20;
/// Longest file, in bytes: the range of a signed 64-bit offset, in whole pages.
pub const FILE_LEN_MAX: u64 = i64::MAX as u64 / PAGE as u64 * PAGE as u64;
/// Longest name in a directory, or of an extended attribute, in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Longest path of a symbolic link, in bytes.
pub const LINK_LEN_MAX: usize = 4095;
/// Names that an inode can have.
pub const LINKS_MAX: u32 = 1 << 20;
/// Supplementary groups that a caller can have.
pub const GROUPS_MAX: usize = 1024;
/// Longest value of an extended attribute, in bytes.
pub const XATTR_VALUE_MAX: usize = 65536;
/// Bytes of all extended attributes of an inode, names and values.
pub const XATTRS_LEN_MAX: usize = 4 * 65536;
/// Requests with sequence numbers that a client can have in flight.
pub const IN_FLIGHT_MAX: usize = 64;
/// Extents in a commit, ranges of pages given back at once, and ranges of a commit that become holes; each at most this
/// many.
pub const EXTENTS_MAX: usize = 4096;
/// Pages in a commit, and in a reservation.
pub const RESERVE_PAGES_MAX: u32 = 32768;
/// Pages that one layout covers.
pub const LAYOUT_PAGES_MAX: u64 = 32768;
/// Entries of a directory in one answer.
pub const READDIR_MAX: u32 = 1024;
/// Handles that a client can have open.
pub const OPENS_MAX: usize = 65536;
/// Ranges that a client can have locked.
pub const LOCKS_MAX: usize = 4096;
/// Locks that a client can wait for at once and have deadlocks found among.
pub const LOCK_WAITS_MAX: usize = 4096;
/// Time after its last request for a lock in which an owner still counts as waiting for it; in ns.
pub const LOCK_WAIT_NS: u64 = 2_000_000_000;
/// Segments whose places can be requested at once.
pub const SEGMENTS_MAX: usize = 1024;
/// Bytes of a client's secret.
pub const SECRET_LEN: usize = 16;

// A commit and a layout fit their messages: the checksums of a page (new and old contents) take 16 bytes, an extent
// without them about 40.
const _: () = assert!(RESERVE_PAGES_MAX as usize * 16 + EXTENTS_MAX * 40 + (128 << 10) < REQUEST_LEN_MAX);
