//! The transmitting half: it puts packets into rings, rings doorbells, and keeps lent buffers until they are taken.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sinew_fabric::{Dropped, PacketTx, Peer, PortStats, TxData, TxPacket};
use sinew_mem::ring::{Doorbell, FAR_HEAD_MAX, FULL_LINE, Far, INLINE_MAX, Producer, Refused, Sleeper};
use sinew_mem::{Arena, Frozen, MessageBuffer};

use crate::PACKET_LEN_MAX;
use crate::barrier;
use crate::copies::{self, COPIED_LEN_MAX};
use crate::link::{Lent, TxChange, TxInbox, TxLink};

/// Bytes that a buffer for the longest packet takes of an arena, whose blocks have 2^n or 1.5 x 2^n bytes.
const STAGED_BYTES: usize = PACKET_LEN_MAX + PACKET_LEN_MAX / 2;

/// The transmitting half of a [`crate::ShmPort`].
#[derive(Debug)]
pub struct ShmTx {
    links: Vec<Option<Box<TxLink>>>,
    /// Links with packets pushed since the last submit.
    unannounced: Vec<usize>,
    /// Links whose packets hold shares.
    lenders: Vec<usize>,
    inbox: Arc<TxInbox>,
    arena: Arena,
    /// Idle buffers of our own, for long packets outside the arena.
    staging: Vec<MessageBuffer>,
    /// Buffers of our own that hold packets.
    staged: usize,
    /// Buffers of our own for which the arena has room.
    staged_max: usize,
    /// Number of links for whose copies the arena has room: those with the lowest indices.
    copying_links: usize,
    pub(crate) stats: PortStats,
}

/// Positions in a link's ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Position behind everything sent to the peer.
    pub sent: u64,
    /// Position behind everything that the peer has taken.
    pub taken: u64,
}

impl ShmTx {
    pub(crate) fn new(inbox: Arc<TxInbox>, arena: Arena) -> Self {
        let staged_max = arena.capacity() / STAGED_BYTES;
        let copying_links = copies::links_max(arena.capacity());
        Self {
            links: Vec::new(),
            unannounced: Vec::new(),
            lenders: Vec::new(),
            inbox,
            arena,
            staging: Vec::new(),
            staged: 0,
            staged_max,
            copying_links,
            stats: PortStats::default(),
        }
    }

    pub(crate) fn has_changes(&self) -> bool {
        self.inbox.is_pending()
    }

    /// Applies the changes of links that the receiving half has posted.
    #[cold]
    #[inline(never)]
    pub(crate) fn apply_changes(&mut self) {
        for change in self.inbox.take() {
            match change {
                TxChange::Add(index, link) => {
                    if self.links.len() <= index {
                        self.links.resize_with(index + 1, || None);
                    }
                    self.links[index] = Some(link);
                }
                TxChange::Attach(index, generation, doorbell) => {
                    if let Some(link) = self.link(index, generation) {
                        // Packets sent so far are announced at once: the peer may have found nothing, and gone to
                        // sleep, before.
                        link.fenced = barrier::is_shared() && doorbell.receiver_fences();
                        link.doorbell = Some(doorbell);
                        link.touched = true;
                        self.unannounced.push(index);
                    }
                }
                TxChange::Remove(index, generation) => {
                    if let Some(link) = self.link(index, generation) {
                        self.staged -= std::mem::take(&mut link.staged);
                        self.links[index] = None;
                        self.unannounced.retain(|&other| other != index);
                        self.lenders.retain(|&other| other != index);
                    }
                }
            }
        }
        self.announce();
    }

    fn link(&mut self, index: usize, generation: u64) -> Option<&mut TxLink> {
        self.links.get_mut(index)?.as_deref_mut().filter(|link| link.generation == generation)
    }

    /// Whether packets to `peer` have bytes in the arena that it has not taken.
    pub(crate) fn lends_to(&mut self, peer: Peer) -> bool {
        self.release();
        self.link(peer.0[0] as usize, peer.0[1]).is_some_and(|link| {
            let given_back = link.producer.given_back();
            !link.lent.is_empty() || link.copies.positions().any(|position| position >= given_back)
        })
    }

    /// Progress of the packets to `peer`; `None` when its link is gone, or is about to go because somebody overwrote
    /// its ring.
    #[cold]
    pub(crate) fn progress_to(&mut self, peer: Peer) -> Option<Progress> {
        let link = self.link(peer.0[0] as usize, peer.0[1])?;
        if link.producer.is_overwritten() {
            // Partner: as in `refused`.
            link.state.broken.store(true, Ordering::Relaxed);
            return None;
        }
        Some(Progress { sent: link.producer.position(), taken: link.producer.given_back() })
    }

    /// Publishes the pushed packets and rings the doorbells of their links.
    #[inline(never)]
    fn announce(&mut self) {
        // A single link whose receiver makes the fence is by far the most common case. Every call here is the last on
        // its path, so that no register has to be saved for it.
        if let [index] = self.unannounced[..]
            && let Some(Some(link)) = self.links.get_mut(index)
            && let link = &mut **link
            && link.fenced
        {
            self.unannounced.clear();
            link.producer.submit();
            Doorbell::fenced_by_receiver();
            return ring(link);
        }
        self.announce_all();
    }

    #[inline(never)]
    fn announce_all(&mut self) {
        let mut is_fenced = true;
        for &index in &self.unannounced {
            is_fenced &= announce(&mut self.links, index);
        }
        if !is_fenced {
            self.announce_unfenced();
        }
        self.unannounced.clear();
    }

    /// Rings the doorbells of links whose receivers make no fence for us, after one fence of our own for all of them.
    #[cold]
    #[inline(never)]
    fn announce_unfenced(&mut self) {
        Doorbell::fence();
        for &index in &self.unannounced {
            if let Some(Some(link)) = self.links.get_mut(index)
                && !link.fenced
            {
                ring(link);
            }
        }
    }

    /// Drops the shares of packets that their receivers have taken.
    #[inline(never)]
    fn release(&mut self) {
        let mut index = 0;
        while index < self.lenders.len() {
            let Some(link) = self.links[self.lenders[index]].as_deref_mut() else {
                self.lenders.swap_remove(index);
                continue;
            };
            let given_back = link.producer.given_back();
            while let Some(lent) = link.lent.pop_front_if(|lent| lent.position < given_back) {
                if lent.staging {
                    (link.staged, self.staged) = (link.staged - 1, self.staged - 1);
                }
                recycle_staging(&mut self.staging, lent);
            }
            if link.lent.is_empty() {
                self.lenders.swap_remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Ends the shares for which `ends` is true, whether or not their packets were taken.
    fn revoke(&mut self, ends: impl Fn(&Frozen) -> bool) {
        self.release();
        for &index in &self.lenders {
            let Some(link) = self.links[index].as_deref_mut() else { continue };
            for lent in link.lent.iter().filter(|lent| ends(&lent.buffer)) {
                // SAFETY: `push_far` returned the position.
                unsafe { link.producer.revoke(lent.position) };
            }
        }
        Producer::revoked();
        for &index in &self.lenders {
            let Some(link) = self.links[index].as_deref_mut() else { continue };
            for _ in 0..link.lent.len() {
                let Some(lent) = link.lent.pop_front() else { break };
                if ends(&lent.buffer) {
                    if lent.staging {
                        (link.staged, self.staged) = (link.staged - 1, self.staged - 1);
                    }
                    recycle_staging(&mut self.staging, lent);
                } else {
                    link.lent.push_back(lent);
                }
            }
        }
        let links = &self.links;
        self.lenders.retain(|&index| links[index].as_ref().is_some_and(|link| !link.lent.is_empty()));
    }

    /// Sends a packet that is too long for the ring by copying it into one of the link's own buffers. Returns false,
    /// and has no effect, if the packet is too long for those too, or if no buffer or no room in the ring is free.
    #[inline(never)]
    fn push_copy(&mut self, index: usize, head: &[u8], data: &[u8]) -> bool {
        let arena = (index < self.copying_links).then_some(&self.arena);
        let Some(link) = self.links[index].as_deref_mut() else { return false };
        link.copies.push(head, data, &mut link.producer, arena)
    }

    /// Sends a packet with this data that does not fit in the ring: its first bytes go there, and the rest is read from
    /// the arena.
    #[cold]
    #[inline(never)]
    fn push_far(&mut self, index: usize, packet: &TxPacket<'_>, data: &[u8]) -> Result<(), Dropped> {
        let len = packet.head.len() + data.len();
        if len > PACKET_LEN_MAX {
            return Err(Dropped::TooLong);
        }
        let (head, offset, buffer, staging) = match packet.data {
            TxData::Frozen { buffer, start, .. }
                if packet.head.len() <= FAR_HEAD_MAX && buffer.is_from(&self.arena) =>
            {
                (packet.head, buffer.arena_offset() + start, buffer.clone(), false)
            }
            _ => {
                if !self.may_stage(index) {
                    return Err(Dropped::Full);
                }
                let (head, rest) = packet.head.split_at(packet.head.len().min(FAR_HEAD_MAX));
                let buffer = self.stage(rest, data).ok_or(Dropped::Full)?.freeze();
                (head, buffer.arena_offset(), buffer, true)
            }
        };
        let far = Far { offset: offset as u64, len: (len - head.len()) as u32 };
        let Some(link) = self.links[index].as_deref_mut() else { return Err(Dropped::NoSuchPeer) };
        match link.producer.push_far(head, far) {
            Ok(position) => {
                if link.lent.is_empty() {
                    self.lenders.push(index);
                }
                link.lent.push_back(Lent { position, buffer, staging });
                if staging {
                    (link.staged, self.staged) = (link.staged + 1, self.staged + 1);
                }
                Ok(())
            }
            Err(refused) => {
                recycle_staging(&mut self.staging, Lent { position: 0, buffer, staging });
                Err(self.refused(index, refused))
            }
        }
    }

    /// Whether a link may take one more staging buffer, which it may while it holds fewer than are free. So links whose
    /// receivers take nothing never hold all buffers, however many such links there are, and a single link can hold
    /// half of them.
    fn may_stage(&mut self, index: usize) -> bool {
        let held = |tx: &Self| tx.links[index].as_ref().map_or(0, |link| link.staged);
        let has_share = |tx: &Self| held(tx) < tx.staged_max.saturating_sub(tx.staged);
        has_share(self) || {
            self.release();
            has_share(self)
        }
    }

    /// Copies both pieces into a buffer of the arena.
    fn stage(&mut self, first: &[u8], second: &[u8]) -> Option<MessageBuffer> {
        let mut buffer = match self.staging.pop() {
            Some(buffer) => buffer,
            None => self.arena.alloc(PACKET_LEN_MAX, PACKET_LEN_MAX).ok()?,
        };
        buffer.resize(first.len() + second.len()).ok()?;
        buffer[..first.len()].copy_from_slice(first);
        buffer[first.len()..].copy_from_slice(second);
        Some(buffer)
    }

    #[cold]
    #[inline(never)]
    fn refused(&mut self, index: usize, refused: Refused) -> Dropped {
        if refused == Refused::Broken
            && let Some(link) = &self.links[index]
        {
            // Partner: the load in `end_broken_links`, which closes the link.
            link.state.broken.store(true, Ordering::Relaxed);
        }
        Dropped::Full
    }
}

/// Publishes the packets of a link and rings its doorbell. Returns false when the doorbell must wait for a fence.
fn announce(links: &mut [Option<Box<TxLink>>], index: usize) -> bool {
    let Some(Some(link)) = links.get_mut(index) else { return true };
    link.producer.submit();
    if link.fenced {
        Doorbell::fenced_by_receiver();
        ring(link);
    }
    link.fenced
}

/// Rings the doorbell of a link. To be called after the fence that follows the publishing.
#[inline(always)]
fn ring(link: &mut TxLink) {
    link.touched = false;
    if !link.doorbell.as_ref().is_some_and(Doorbell::needs_no_ring) {
        ring_slow(link);
    }
}

/// The slow path of [`ring`]: the receiver may have to be told or woken.
#[cold]
#[inline(never)]
fn ring_slow(link: &TxLink) {
    let sleeper = match &link.doorbell {
        Some(doorbell) => doorbell.ring(),
        // The peer has not announced its board yet, so it may be asleep.
        None => return link.wake.wake(),
    };
    if let Some(sleeper) = sleeper {
        wake(link, sleeper);
    }
}

#[cold]
#[inline(never)]
fn wake(link: &TxLink, sleeper: Sleeper) {
    link.wake.wake();
    if let Some(doorbell) = &link.doorbell {
        doorbell.woken(sleeper);
    }
}

fn recycle_staging(pool: &mut Vec<MessageBuffer>, lent: Lent) {
    if lent.staging
        && let Ok(buffer) = lent.buffer.thaw()
    {
        pool.push(buffer);
    }
}

impl ShmTx {
    /// Like [`Self::offer`], for a header of two words and a message of whole words that fit in a line. For any other
    /// packet, or when the link needs a check first, it does nothing and returns false.
    #[inline(always)]
    pub(crate) fn offer_words(&mut self, to: Peer, head: [u64; 2], data: &[u8]) -> bool {
        let index = to.0[0] as usize;
        if let Some(Some(link)) = self.links.get_mut(index)
            && let link = &mut **link
            && link.generation == to.0[1]
            && (link.touched || !self.inbox.is_pending())
        {
            if !link.touched {
                link.touched = true;
                self.unannounced.push(index);
            }
            if link.producer.push_words(head, data) {
                self.stats.tx_packets += 1;
                self.stats.tx_bytes += (16 + data.len()) as u64;
                return true;
            }
        }
        false
    }

    /// Like [`PacketTx::push`], but returns an error when the packet was not taken, and does not count it then.
    #[inline(always)]
    pub(crate) fn offer(&mut self, packet: TxPacket<'_>) -> Result<(), Dropped> {
        let index = packet.to.0[0] as usize;
        // The common case is a header and a short message, to a link that is unchanged since the burst began: only the
        // copy is left to do.
        if let Some(Some(link)) = self.links.get_mut(index)
            && let link = &mut **link
            && link.generation == packet.to.0[1]
            && let Some(data) = copied(&packet.data)
            && (link.touched || !self.inbox.is_pending())
        {
            if !link.touched {
                link.touched = true;
                self.unannounced.push(index);
            }
            if link.producer.push_full_line(packet.head, data) {
                self.stats.tx_packets += 1;
                self.stats.tx_bytes += FULL_LINE as u64;
                return Ok(());
            }
            if link.producer.push_any(packet.head, data).is_ok() {
                self.stats.tx_packets += 1;
                self.stats.tx_bytes += (packet.head.len() + data.len()) as u64;
                return Ok(());
            }
        }
        // The packet is copied here, so that the compiler can keep the original in registers on the fast path.
        let TxPacket { to, head, data } = packet;
        self.offer_any(&TxPacket { to, head, data })
    }

    #[inline(never)]
    fn offer_any(&mut self, packet: &TxPacket<'_>) -> Result<(), Dropped> {
        if self.inbox.is_pending() {
            self.apply_changes();
        }
        let index = packet.to.0[0] as usize;
        let link = match self.links.get_mut(index) {
            Some(Some(link)) if link.generation == packet.to.0[1] => &mut **link,
            _ => return Err(Dropped::NoSuchPeer),
        };
        let data = packet.data.as_slice();
        let len = packet.head.len() + data.len();
        if !link.touched {
            link.touched = true;
            self.unannounced.push(index);
        }
        let sent = if len <= INLINE_MAX {
            match link.producer.push_any(packet.head, data) {
                Ok(()) => Ok(()),
                Err(refused) => Err(self.refused(index, refused)),
            }
        } else if len <= COPIED_LEN_MAX && self.push_copy(index, packet.head, data) {
            Ok(())
        } else {
            self.push_far(index, packet, data)
        };
        sent?;
        self.stats.tx_packets += 1;
        self.stats.tx_bytes += len as u64;
        Ok(())
    }
}

/// The data of a packet if it is to be copied; `None` if it is shared.
#[inline(always)]
fn copied<'a>(data: &TxData<'a>) -> Option<&'a [u8]> {
    match *data {
        TxData::None => Some(&[]),
        TxData::Bytes(bytes) => Some(bytes),
        TxData::Frozen { .. } => None,
    }
}

impl PacketTx for ShmTx {
    #[inline(always)]
    fn push(&mut self, packet: TxPacket<'_>) {
        if let Err(reason) = self.offer(packet) {
            self.stats.count_dropped(reason, 1);
        }
    }

    #[inline(always)]
    fn submit(&mut self) {
        if self.inbox.is_pending() {
            self.apply_changes();
        }
        if !self.unannounced.is_empty() {
            self.announce();
        }
        if !self.lenders.is_empty() {
            self.release();
        }
    }

    fn flush(&mut self) {
        self.announce();
        self.revoke(|_| true);
    }

    fn reclaim(&mut self, buffer: &Frozen) {
        self.announce();
        let address = buffer.as_ptr();
        self.revoke(|other| std::ptr::eq(other.as_ptr(), address));
    }
}
