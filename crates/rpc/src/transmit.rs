//! What waits for the transmit burst. It names state, and is made from that state when it goes.

use crate::table::SlotId;

/// What a packet that waits is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxKind {
    Request,
    Response,
    RequestForResponse,
    CreditReturn,
    /// A credit return for one packet alone.
    CreditAlone,
    InProgress,
    CallError,
    CongestionNotice,
}

/// A run of packets waiting for the transmit burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxItem {
    pub slot: SlotId,
    /// Low bits of the request number, by which an item that outlived its call is known.
    pub number_low: u32,
    pub first: u16,
    pub count: u16,
    pub kind: TxKind,
    /// Whether it was sent before, or answers what was.
    pub is_copy: bool,
}
const _: () = assert!(size_of::<TxItem>() == 16);

impl TxItem {
    /// The numbers of its packets. The last can be the largest that there is, so their end is none.
    #[inline(always)]
    pub fn numbers(&self) -> impl Iterator<Item = u16> + use<> {
        let first = self.first;
        (0..self.count).map(move |offset| first + offset)
    }
}
