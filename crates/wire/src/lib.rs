//! Layouts of Sinew's wire protocol, as bytes and as values.
//!
//! - [`Header`]: the 24 bytes before every packet's data.
//! - [`Meaning`]: the fields of a call's packet, named by their meaning in that packet.
//! - [`options`]: a call's options, such as its deadline.
//! - [`batch`]: several packets in one datagram.
//! - [`management`]: the bodies of the packets that open, close and watch sessions.
//! - [`udp`], [`neighbour`], [`checksum`]: the standard headers, for ports that make whole Ethernet frames.
//!
//! All numbers of Sinew's own are little-endian. Nothing here allocates, or panics on bytes from outside: a reader
//! returns a value or an error.
#![forbid(unsafe_code)]

pub mod arp;
pub mod batch;
pub mod checksum;
pub mod discovery;
pub mod header;
pub mod management;
pub mod meaning;
pub mod neighbour;
pub mod options;
pub mod residence;
pub mod udp;

pub use header::{
    CREDIT_ALONE, HEADER_LEN, Header, HeaderError, Kind, MAGIC, PACKETS_MAX, REQUEST_NUMBER_MAX, SessionKey, VERSION,
};
pub use meaning::{CallName, Meaning, Part};
pub use options::{OPTIONS_LEN, Options};
