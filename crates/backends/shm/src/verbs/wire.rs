//! What a thread's queue pairs have in common on their way out: the port's sending half, and notes of what is to be sent later.

use std::collections::VecDeque;

use sinew_fabric::verbs::QpNumber;
use sinew_fabric::{PacketTx, Peer, TxData, TxPacket};

use super::counts::Counts;
use super::packet::{Header, SHORT};
use crate::tx::ShmTx;

/// What a queue pair sends through.
pub(crate) struct Wire<'a> {
    pub tx: &'a mut ShmTx,
    pub counts: &'a mut Counts,
    /// For messages that do not lie in one piece.
    pub scratch: &'a mut Vec<u8>,
    /// Whether something was put into a ring that the doorbells do not tell of yet.
    pub offered: bool,
}

/// What becomes of a thread's queue pairs beside their own state.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Queue pairs that owe an acknowledgement.
    pub owing: VecDeque<QpNumber>,
    /// Queue pairs whose requests wait.
    pub stalled: VecDeque<QpNumber>,
    /// Last words to peers.
    pub letters: VecDeque<(Peer, Header)>,
}

impl Wire<'_> {
    /// Tells the receivers of what was put into their rings.
    #[inline(always)]
    pub fn submit(&mut self) {
        if std::mem::take(&mut self.offered) {
            self.tx.submit();
        }
    }

    /// Sends a packet of a header alone; false when there is no room for it now.
    pub fn send_header(&mut self, to: Peer, header: Header) -> bool {
        let (bytes, len) = header.to_bytes();
        debug_assert_eq!(len, SHORT);
        let packet = TxPacket { to, head: &bytes[..len], data: TxData::None };
        self.offered = true;
        !matches!(self.tx.offer(packet), Err(sinew_fabric::Dropped::Full))
    }
}

/// A link in one word: 16 bits of its index, the rest of its generation.
#[inline(always)]
pub(crate) fn handle_of(link: Peer) -> u64 {
    link.0[1] << 16 | link.0[0] & 0xFFFF
}

#[inline(always)]
pub(crate) fn link_of(handle: u64) -> Peer {
    Peer([handle & 0xFFFF, handle >> 16, 0])
}
