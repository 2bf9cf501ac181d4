//! Division of a message into packets.

use std::ops::Range;

use sinew_fabric::RxPacket;
use sinew_wire::{HEADER_LEN, Options};

use crate::stats::PacketDrop;

/// Returns the range of a message's data that packet `number` carries.
#[inline(always)]
pub(crate) fn packet_range(message_len: usize, data_per_packet: usize, number: usize) -> Range<usize> {
    let start = (number * data_per_packet).min(message_len);
    start..(start + data_per_packet).min(message_len)
}

/// Number of packets of a message.
#[inline(always)]
pub(crate) fn packets_of(message_len: usize, data_per_packet: usize) -> usize {
    if message_len <= data_per_packet { 1 } else { message_len.div_ceil(data_per_packet) }
}

/// Copies a packet's data, whose length was checked. Leaves out the first `skipped` bytes, which [`options_of`] has
/// found in the head.
#[inline(always)]
pub(crate) fn copy_data(packet: &RxPacket<'_>, skipped: usize, target: &mut [u8]) -> Result<(), PacketDrop> {
    let in_head = &packet.head[HEADER_LEN + skipped..];
    match packet.tail {
        None => target.copy_from_slice(in_head),
        Some(tail) => {
            let (first, rest) = target.split_at_mut(in_head.len());
            first.copy_from_slice(in_head);
            tail.copy_to(rest).map_err(|_| PacketDrop::Revoked)?;
        }
    }
    Ok(())
}

/// Reads the options that lead a request's first packet. They are in the packet's head, which nobody else writes.
#[inline]
pub(crate) fn options_of(packet: &RxPacket<'_>) -> Result<Options, PacketDrop> {
    let bytes = packet.head[HEADER_LEN..].first_chunk().ok_or(PacketDrop::Malformed)?;
    Ok(Options::read(*bytes))
}
