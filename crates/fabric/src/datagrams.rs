//! The packets of a received datagram, of which there may be several ([`sinew_wire::batch`]).

use arrayvec::ArrayVec;
use sinew_wire::batch::{check_batch, frame_at, is_batch};

use crate::address::Peer;
use crate::port::{Dropped, MAX_BURST, PortStats, RxPacket};

/// A received datagram, or several that the kernel joined.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    /// The sender.
    pub from: Peer,
    /// The bytes of all datagrams.
    pub bytes: &'a [u8],
    /// Length in bytes of each datagram except the last; of a single one, its whole length.
    pub segment_len: usize,
}

/// Progress of handing on a datagram, whose packets may fill more than one burst.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Offset at which the next packet begins.
    offset: usize,
    /// End of the current batch; no greater than `offset` when `offset` is at the beginning of a datagram.
    batch_end: usize,
    /// Whether anything of the datagram has been looked at: an empty one is a packet too.
    is_started: bool,
}

impl Reading {
    /// Lends the packets from here on, and counts them. A packet longer than `packet_len_max`, or a malformed batch, is
    /// counted as [`Dropped::Malformed`]. Returns whether that was all; if not, the burst is full.
    #[inline]
    pub fn lend<'a>(
        &mut self,
        Segments { from, bytes: datagram, segment_len }: Segments<'a>,
        packet_len_max: usize,
        stats: &mut PortStats,
        packets: &mut ArrayVec<RxPacket<'a>, MAX_BURST>,
    ) -> bool {
        loop {
            let batch = &datagram[..self.batch_end.min(datagram.len())];
            while let Some((start, end)) = frame_at(batch, self.offset) {
                if packets.is_full() {
                    return false;
                }
                stats.rx_packets += 1;
                stats.rx_bytes += (end - start) as u64;
                packets.push(RxPacket { from, head: &datagram[start..end], tail: None });
                self.offset = end;
            }
            if self.offset >= datagram.len() && (self.is_started || !datagram.is_empty()) {
                return true;
            }
            if packets.is_full() {
                return false;
            }
            self.is_started = true;
            let end = (self.offset + segment_len).min(datagram.len());
            let segment = &datagram[self.offset..end];
            if is_batch(segment) {
                // All of a batch is checked before any of it is lent.
                match check_batch(segment, packet_len_max) {
                    Ok(first) => {
                        self.batch_end = end;
                        self.offset += first;
                    }
                    Err(_) => {
                        stats.count_dropped(Dropped::Malformed, 1);
                        self.offset = end;
                    }
                }
                continue;
            }
            self.offset = end;
            if segment.len() > packet_len_max {
                stats.count_dropped(Dropped::Malformed, 1);
            } else {
                stats.rx_packets += 1;
                stats.rx_bytes += segment.len() as u64;
                packets.push(RxPacket { from, head: segment, tail: None });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sinew_wire::batch::{BATCH_HEADER, BATCH_MAGIC, BATCH_VERSION, FRAME_HEADER};

    const LIMIT: usize = 100;
    const FROM: Peer = Peer([0; 3]);

    /// Packets that should be lent, computed in the plainest way: segments, each a batch or a packet.
    fn oracle(datagram: &[u8], segment_len: usize) -> (Vec<Vec<u8>>, u64) {
        let (mut packets, mut malformed) = (Vec::new(), 0);
        if datagram.is_empty() {
            packets.push(Vec::new());
        }
        for segment in datagram.chunks(segment_len) {
            if segment[0] != BATCH_MAGIC {
                if segment.len() <= LIMIT {
                    packets.push(segment.to_vec())
                } else {
                    malformed += 1
                }
                continue;
            }
            let mut frames = Vec::new();
            let mut rest = segment.get(BATCH_HEADER..).unwrap_or(&[]);
            let mut good = segment.get(1) == Some(&BATCH_VERSION) && !rest.is_empty();
            while good && !rest.is_empty() {
                let len = rest.first_chunk::<FRAME_HEADER>().map_or(0, |len| usize::from(u16::from_le_bytes(*len)));
                good = (1..=LIMIT).contains(&len) && FRAME_HEADER + len <= rest.len();
                if good {
                    frames.push(rest[FRAME_HEADER..][..len].to_vec());
                    rest = &rest[FRAME_HEADER + len..];
                }
            }
            if good { packets.extend(frames) } else { malformed += 1 }
        }
        (packets, malformed)
    }

    /// Packets lent, over as many bursts as it takes.
    fn lent(datagram: &[u8], segment_len: usize) -> (Vec<Vec<u8>>, u64, usize) {
        let (mut reading, mut stats, mut bursts) = (Reading::default(), PortStats::default(), 0);
        let mut all = Vec::new();
        loop {
            let mut packets = ArrayVec::new();
            let ended =
                reading.lend(Segments { from: FROM, bytes: datagram, segment_len }, LIMIT, &mut stats, &mut packets);
            all.extend(packets.iter().map(|packet| packet.head.to_vec()));
            bursts += 1;
            if ended {
                break;
            }
            assert!(packets.is_full(), "only a full burst leaves something");
        }
        assert_eq!(stats.rx_packets, all.len() as u64);
        assert_eq!(stats.rx_bytes, all.iter().map(|packet| packet.len() as u64).sum::<u64>());
        (all, stats.dropped(Dropped::Malformed), bursts)
    }

    #[test]
    fn a_datagram_of_many_frames_is_lent_over_several_bursts() {
        let mut datagram = vec![BATCH_MAGIC, BATCH_VERSION];
        (0..200u8).for_each(|number| datagram.extend([1, 0, number]));
        let (packets, malformed, bursts) = lent(&datagram, datagram.len());
        assert_eq!((packets.len(), malformed, bursts), (200, 0, 4));
        assert!(packets.iter().enumerate().all(|(index, packet)| packet[..] == [index as u8]));
    }

    proptest! {
        #[test]
        fn any_datagram_is_lent_as_the_format_says(
            mut datagram in prop::collection::vec(any::<u8>(), 0..600),
            pieces in 1usize..8,
            batches in any::<u8>(),
        ) {
            let segment_len = datagram.len().div_ceil(pieces).max(1);
            for (index, segment) in datagram.chunks_mut(segment_len).enumerate() {
                if batches & 1 << index != 0 && segment.len() > 2 {
                    // Often valid frames: lengths of 1 or 2, and contents that read as such lengths.
                    segment.iter_mut().enumerate().for_each(|(at, byte)| *byte = if at % 2 == 0 { *byte % 3 } else { 0 });
                    segment[..2].copy_from_slice(&[BATCH_MAGIC, BATCH_VERSION]);
                }
            }
            let (packets, malformed) = oracle(&datagram, segment_len);
            let (lent_packets, lent_malformed, _) = lent(&datagram, segment_len);
            prop_assert_eq!(lent_packets, packets);
            prop_assert_eq!(lent_malformed, malformed);
        }
    }
}
