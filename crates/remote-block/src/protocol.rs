//! The server's side of the NBD protocol: fixed newstyle handshake, simple and structured replies.
//!
//! There is no I/O here: bytes come in, and bytes go out. See `doc/proto.md` of
//! <https://github.com/NetworkBlockDevice/nbd>; the constants bear its names.
//!
//! ```
//! use sinew_remote_block::protocol::{Command, Export, Handshake, Request, NextStep};
//!
//! let export = Export { name: "memory".to_owned(), description: String::new(), len: 1 << 20 };
//! let mut output = Vec::new();
//! let mut handshake = Handshake::begin(&mut output);
//! // The client's flags, then EXPORT_NAME with the empty name.
//! let mut input = 3u32.to_be_bytes().to_vec();
//! input.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
//! let progress = handshake.run(&export, false, &input, &mut output);
//! let NextStep::Serve(session) = progress.next else { panic!("{progress:?}") };
//!
//! let read = Request { flags: 0, kind: 0, cookie: 7, at: 4096, len: 512 };
//! let request = Request::read(&read.to_bytes()).unwrap();
//! assert_eq!(request.command(session, export.len), Ok(Command::Read { at: 4096, len: 512, in_one: true }));
//! ```

mod bytes;
mod handshake;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use handshake::{Export, Handshake, HandshakeError, NextStep, OPTION_LEN_MAX, OPTIONS_MAX, Progress, Session};
pub use reply::{DATA_FRONT_MAX, StatusExtent, data_front, put_done, put_error, put_hole, put_status};
pub use request::{Command, ErrorCode, Request};

/// Shortest request, in bytes; also the unit of offsets.
pub const BLOCK_MIN: u32 = 1;
/// Requests are fastest when their offset and length are multiples of this many bytes.
pub const BLOCK_PREFERRED: u32 = 4096;
/// Longest read or write, in bytes.
pub const BLOCK_MAX: u32 = 32 << 20;
/// Longest name of an export, in bytes.
pub const NAME_LEN_MAX: usize = 4096;

mod constants {
    pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
    pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
    pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
    pub const REQUEST_MAGIC: u32 = 0x2560_9513;
    pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
    pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

    pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
    pub const FLAG_NO_ZEROES: u16 = 1 << 1;

    pub const FLAG_HAS_FLAGS: u16 = 1 << 0;
    pub const FLAG_SEND_FLUSH: u16 = 1 << 2;
    pub const FLAG_SEND_FUA: u16 = 1 << 3;
    pub const FLAG_SEND_TRIM: u16 = 1 << 5;
    pub const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const FLAG_SEND_DF: u16 = 1 << 7;
    pub const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
    pub const FLAG_SEND_CACHE: u16 = 1 << 10;
    pub const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

    pub const OPT_EXPORT_NAME: u32 = 1;
    pub const OPT_ABORT: u32 = 2;
    pub const OPT_LIST: u32 = 3;
    pub const OPT_INFO: u32 = 6;
    pub const OPT_GO: u32 = 7;
    pub const OPT_STRUCTURED_REPLY: u32 = 8;
    pub const OPT_LIST_META_CONTEXT: u32 = 9;
    pub const OPT_SET_META_CONTEXT: u32 = 10;

    pub const REP_ACK: u32 = 1;
    pub const REP_SERVER: u32 = 2;
    pub const REP_INFO: u32 = 3;
    pub const REP_META_CONTEXT: u32 = 4;
    pub const REP_ERR_UNSUP: u32 = 1 << 31 | 1;
    pub const REP_ERR_INVALID: u32 = 1 << 31 | 3;
    pub const REP_ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub const REP_ERR_SHUTDOWN: u32 = 1 << 31 | 7;
    pub const REP_ERR_TOO_BIG: u32 = 1 << 31 | 9;

    pub const INFO_EXPORT: u16 = 0;
    pub const INFO_NAME: u16 = 1;
    pub const INFO_DESCRIPTION: u16 = 2;
    pub const INFO_BLOCK_SIZE: u16 = 3;

    pub const CMD_READ: u16 = 0;
    pub const CMD_WRITE: u16 = 1;
    pub const CMD_DISC: u16 = 2;
    pub const CMD_FLUSH: u16 = 3;
    pub const CMD_TRIM: u16 = 4;
    pub const CMD_CACHE: u16 = 5;
    pub const CMD_WRITE_ZEROES: u16 = 6;
    pub const CMD_BLOCK_STATUS: u16 = 7;

    pub const CMD_FLAG_FUA: u16 = 1 << 0;
    pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
    pub const CMD_FLAG_DF: u16 = 1 << 2;
    pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
    pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

    pub const REPLY_FLAG_DONE: u16 = 1 << 0;
    pub const REPLY_TYPE_OFFSET_DATA: u16 = 1;
    pub const REPLY_TYPE_OFFSET_HOLE: u16 = 2;
    pub const REPLY_TYPE_BLOCK_STATUS: u16 = 5;
    pub const REPLY_TYPE_ERROR: u16 = 1 << 15 | 1;

    pub const STATE_HOLE: u32 = 1 << 0;
    pub const STATE_ZERO: u32 = 1 << 1;
}
