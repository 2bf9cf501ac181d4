//! What is the most that either side sends or keeps.

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a [`Message`](super::Message), at most.
pub const REQUEST_LEN_MAX: usize = 1 << 20;
/// Bytes of a [`Reply`](super::Reply), at most.
pub const ANSWER_LEN_MAX: usize = 1 << 20;
/// Bytes of a file, at most: what a signed 64-bit offset can say, in whole pages.
pub const FILE_LEN_MAX: u64 = i64::MAX as u64 / PAGE as u64 * PAGE as u64;
/// Bytes of a name in a directory, or of an extended attribute, at most.
pub const NAME_LEN_MAX: usize = 255;
/// Bytes of a symbolic link, at most.
pub const LINK_LEN_MAX: usize = 4095;
/// Names of an inode, at most.
pub const LINKS_MAX: u32 = 1 << 20;
/// Groups of a caller beside its own, at most.
pub const GROUPS_MAX: usize = 1024;
/// Bytes of the value of an extended attribute, at most.
pub const XATTR_VALUE_MAX: usize = 65536;
/// Bytes of all extended attributes of an inode, names and values, at most.
pub const XATTRS_LEN_MAX: usize = 4 * 65536;
/// Requests with sequence numbers that a client has without an answer, at most.
pub const IN_FLIGHT_MAX: usize = 64;
/// Extents of a commit, pieces of what is given back, and ranges that become holes, at most each.
pub const EXTENTS_MAX: usize = 4096;
/// Pages of a commit and of a reservation, at most.
pub const RESERVE_PAGES_MAX: u32 = 32768;
/// Pages that a layout tells of, at most.
pub const LAYOUT_PAGES_MAX: u64 = 32768;
/// Entries of a directory in one answer, at most.
pub const READDIR_MAX: u32 = 1024;
/// Handles that a client has open, at most.
pub const OPENS_MAX: usize = 65536;
/// Ranges that a client has locked, at most.
pub const LOCKS_MAX: usize = 4096;
/// Segments that are asked for at once, at most.
pub const SEGMENTS_MAX: usize = 1024;
/// Bytes of a client's secret.
pub const SECRET_LEN: usize = 16;

// A commit, and a layout, fit their messages: a page's checksums (of the new and of the old contents) take 16 bytes, an extent and what is said of it some 40.
const _: () = assert!(RESERVE_PAGES_MAX as usize * 16 + EXTENTS_MAX * 40 + (128 << 10) < REQUEST_LEN_MAX);
