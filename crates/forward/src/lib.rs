//! Forwarding of Ethernet frames: the applications of nsdi15 ("Raising the Bar for Using GPUs in Software Packet
//! Processing", section 4), as libraries and on live frames.
//!
//! | application | forwards by |
//! | --- | --- |
//! | [`echo::Echo`] | the port number in the frame |
//! | [`router::Router`] | the longest prefix of an IPv4 or IPv6 destination, with all duties of a router |
//! | [`switch::Switch`] | the Ethernet destination |
//! | [`named::NameForwarder`] | the longest prefix of an Interest's name |
//!
//! Each application looks up a burst's keys in one of three [forms](Form), which share the table: one after the other,
//! interleaved, and with group prefetching by hand. An [`Application`] is a state machine: it is handed bursts and the
//! time and decides the fate of each frame, so it runs the same on any port and in virtual time. A [`Forwarder`] puts
//! it between ports. [`filter`] finds patterns in packets (section 5); [`rules`] reads them from Snort rules.
//!
//! ```
//! use sinew_fabric::frames::cable::Cable;
//! use sinew_fabric::frames::{FramePort, FrameTx, MacAddress};
//! use sinew_fabric::{ManualClock, PacketPort, loopback::Network};
//! use sinew_forward::{Forwarder, echo::Echo};
//!
//! let network = Network::new(ManualClock::new());
//! let (near, far) = (network.port("near")?, network.port("far")?);
//! let to_near = near.address();
//! let near = Cable::to_first_sender(near, MacAddress([2, 0, 0, 0, 0, 1]));
//! let mut far = Cable::to(far, &to_near, MacAddress([2, 0, 0, 0, 0, 2]))?;
//! far.split().1.push(&[0xFF; 14], &[0, 0, 0, 0]);
//! far.split().1.submit();
//! let mut forwarder = Forwarder::new(vec![near], Echo::new(1)).unwrap();
//! assert_eq!(forwarder.turn(0), 1);
//! # Ok::<(), sinew_fabric::PortError>(())
//! ```
//!
//! # Design
//!
//! - **A burst in three steps**: all headers are read and checked, all keys are looked up, all fates are decided. So
//!   the three forms differ only in the lookup and share what is around it, and the plain form is not made slower by
//!   code between its lookups. Fates are in the order of the frames, so every flow keeps its order.
//! - **What waited goes first.** The [`Outbox`] is sent before the frames of the burst that filled it, so frames that
//!   waited for a neighbour leave before later ones that found it known.
//! - **The table says what is local.** A router's own addresses, its networks and their broadcast addresses are entries
//!   of the same trie as routes; a packet that is only passing through needs no other check.
//! - **Tables are built whole and exchanged** between bursts ([`router::Router::install`]); none changes while it is
//!   read. Learnt neighbours are kept.
//! - **Unknown senders cost a bounded amount**: there are limits for neighbours, waiting frames (for each neighbour and
//!   in all), address requests a second, errors a second, and learnt stations. Neighbours that routes name are pinned,
//!   and stations from the file stay.
//! - **Ports of several families** are put behind one type by [`sinew_fabric::frames::any`]; a [`Forwarder`] has ports
//!   of one family.
//! - **Not implemented**: multicast, VLANs, reassembly, redirects, router advertisements; and, for named data, a table
//!   of pending Interests.
#![forbid(unsafe_code)]

mod bucket;
mod burst;
mod counters;
pub mod echo;
mod fib;
pub mod filter;
mod form;
mod forwarder;
pub mod headers;
pub mod interface;
pub mod named;
mod neighbours;
pub mod router;
pub mod routes;
pub mod rules;
pub mod switch;

pub use burst::{Application, Fate, Fates, Outbox};
pub use counters::{Counters, Reason};
pub use fib::Fib;
pub use form::Form;
pub use forwarder::{Forwarder, TooManyPorts};
pub use neighbours::{FRESH_NS, NeighbourLimits, RETRANSMIT_NS, SOLICITATIONS_MAX, WAITING_PER_NEIGHBOUR_MAX};
