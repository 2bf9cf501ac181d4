//! Items that wait for the transmit burst. An item names state; its packets are made from that state when it is sent.

use crate::table::SlotId;

/// Kind of a waiting packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxKind {
    Request,
    Response,
    RequestForResponse,
    CreditReturn,
    /// A credit return for a single packet.
    CreditAlone,
    InProgress,
    CallError,
    CongestionNotice,
}

/// A run of packets waiting for the transmit burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxItem {
    pub slot: SlotId,
    /// Low bits of the request number, by which an item that outlived its call is recognised.
    pub number_low: u32,
    pub first: u16,
    pub count: u16,
    pub kind: TxKind,
    /// Whether the packets are retransmissions, or answers to retransmissions.
    pub is_copy: bool,
}
const _: () = assert!(size_of::<TxItem>() == 16);

impl TxItem {
    /// The numbers of its packets. Computed without an end, since the last number can be the largest `u16`.
    #[inline(always)]
    pub fn numbers(&self) -> impl Iterator<Item = u16> + use<> {
        let first = self.first;
        (0..self.count).map(move |offset| first + offset)
    }
}
