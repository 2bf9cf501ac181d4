//! Header layouts of Sinew's wire protocol: byte views beside their meaning.
//!
//! - [`Header`]: the 24 bytes before every packet's data.
//! - [`Meaning`]: what a packet of a call says with them.
//! - [`options`]: what a call asks for beside its request.
//! - [`batch`]: several packets in one datagram.
//! - [`management`]: the bodies of the packets that open, close and watch sessions.
//! - [`udp`], [`neighbour`], [`checksum`]: other people's headers, for ports that make whole Ethernet frames.
//!
//! All numbers of Sinew's own are little-endian. Nothing here allocates or panics on what arrives: a reader gets a value or an error.
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
