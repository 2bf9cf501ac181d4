//! The sending resources that a thread's queue pairs share: the port's sending half, and lists of what is to be sent
//! later.

use std::collections::VecDeque;

use sinew_fabric::verbs::QpNumber;
use sinew_fabric::{PacketTx, Peer, TxData, TxPacket};

use super::counts::Counts;
use super::packet::{Header, SHORT_LEN};
use crate::tx::ShmTx;

/// Resources with which a queue pair sends.
pub(crate) struct Wire<'a> {
    pub tx: &'a mut ShmTx,
    pub counts: &'a mut Counts,
    /// Memory in which a message of several pieces is gathered.
    pub scratch: &'a mut Vec<u8>,
    /// Whether packets were put into a ring whose doorbell has not been rung yet.
    pub offered: bool,
}

/// Deferred work of a thread's queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// Queue pairs that owe an acknowledgement.
    pub owing_acks: VecDeque<QpNumber>,
    /// Queue pairs whose oldest request waits.
    pub stalled: VecDeque<QpNumber>,
    /// Final packets to peers, which found no room yet.
    pub final_packets: VecDeque<(Peer, Header)>,
}

impl Wire<'_> {
    /// The same resources for a shorter time.
    #[inline(always)]
    pub fn reborrow(&mut self) -> Wire<'_> {
        let Self { tx, counts, scratch, offered } = self;
        Wire { tx, counts, scratch, offered: std::mem::take(offered) }
    }

    /// Rings the doorbells of the rings into which packets were put.
    #[inline(always)]
    pub fn submit(&mut self) {
        if std::mem::take(&mut self.offered) {
            self.tx.submit();
        }
    }

    /// Sends a packet that is a header alone. Returns false when there is no room for it now.
    pub fn send_header(&mut self, to: Peer, header: Header) -> bool {
        let (bytes, len) = header.to_bytes();
        debug_assert_eq!(len, SHORT_LEN);
        let packet = TxPacket { to, head: &bytes[..len], data: TxData::None };
        self.offered = true;
        !matches!(self.tx.offer(packet), Err(sinew_fabric::Dropped::Full))
    }
}

/// A link in one word: 16 bits of its index, and the rest for its generation.
#[inline(always)]
pub(crate) fn handle_of(link: Peer) -> u64 {
    link.0[1] << 16 | link.0[0] & 0xFFFF
}

#[inline(always)]
pub(crate) fn link_of(handle: u64) -> Peer {
    Peer([handle & 0xFFFF, handle >> 16, 0])
}
