//! The transmitting half.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sinew_fabric::{Dropped, PacketTx, Peer, PortStats, TxData, TxPacket};
use sinew_mem::ring::{Doorbell, FAR_HEAD_MAX, FULL_LINE, Far, INLINE_MAX, Producer, Refused, Sleeper};
use sinew_mem::{Arena, Frozen, MessageBuffer};

use crate::PACKET_LEN_MAX;
use crate::barrier;
use crate::link::{Lent, TxChange, TxInbox, TxLink};

/// What a buffer for the longest packet takes of an arena, whose blocks are of 2^n and 1.5 x 2^n bytes.
const STAGED_BYTES: usize = PACKET_LEN_MAX + PACKET_LEN_MAX / 2;

/// The transmitting half of a [`crate::ShmPort`].
#[derive(Debug)]
pub struct ShmTx {
    links: Vec<Option<Box<TxLink>>>,
    /// Links with packets since the last submit.
    touched: Vec<usize>,
    /// Links with shares.
    lenders: Vec<usize>,
    inbox: Arc<TxInbox>,
    arena: Arena,
    /// Buffers of our own for packets that are long and not in the arena.
    staging: Vec<MessageBuffer>,
    /// Those of them that hold packets, and the most that the arena has room for.
    staged: usize,
    staged_max: usize,
    pub(crate) stats: PortStats,
}

/// Positions in a link's ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Behind all that was sent.
    pub sent: u64,
    /// Behind all that the peer has taken.
    pub taken: u64,
}

impl ShmTx {
    pub(crate) fn new(inbox: Arc<TxInbox>, arena: Arena) -> Self {
        let staged_max = arena.capacity() / STAGED_BYTES;
        Self {
            links: Vec::new(),
            touched: Vec::new(),
            lenders: Vec::new(),
            inbox,
            arena,
            staging: Vec::new(),
            staged: 0,
            staged_max,
            stats: PortStats::default(),
        }
    }

    pub(crate) fn has_changes(&self) -> bool {
        self.inbox.is_pending()
    }

    /// Takes over what the receiving half has decided.
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
                        // What was sent so far is announced at once: the peer may have looked, and slept, before.
                        link.fenced = barrier::is_shared() && doorbell.receiver_fences();
                        link.doorbell = Some(doorbell);
                        link.touched = true;
                        self.touched.push(index);
                    }
                }
                TxChange::Remove(index, generation) => {
                    if let Some(link) = self.link(index, generation) {
                        self.staged -= std::mem::take(&mut link.staged);
                        self.links[index] = None;
                        self.touched.retain(|&other| other != index);
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

    /// Whether packets to `peer` still hold shares.
    pub(crate) fn lends_to(&mut self, peer: Peer) -> bool {
        self.release();
        self.link(peer.0[0] as usize, peer.0[1]).is_some_and(|link| !link.lent.is_empty())
    }

    /// How far packets to `peer` came; `None` when its link is gone, or goes because somebody wrote over its ring.
    #[cold]
    pub(crate) fn way_to(&mut self, peer: Peer) -> Option<Way> {
        let link = self.link(peer.0[0] as usize, peer.0[1])?;
        if link.producer.is_spoiled() {
            // Partner: as in `refused`.
            link.state.broken.store(true, Ordering::Relaxed);
            return None;
        }
        Some(Way { sent: link.producer.position(), taken: link.producer.given_back() })
    }

    /// Publishes what was sent and rings the doorbells of the links that it was sent to.
    #[inline(never)]
    fn announce(&mut self) {
        // One link, whose receiver makes the fence: by far the most common. Nothing is done after a call, so that none costs registers.
        if let [index] = self.touched[..]
            && let Some(Some(link)) = self.links.get_mut(index)
            && let link = &mut **link
            && link.fenced
        {
            self.touched.clear();
            link.producer.submit();
            Doorbell::fenced_by_receiver();
            return ring(link);
        }
        self.announce_all();
    }

    #[inline(never)]
    fn announce_all(&mut self) {
        let mut is_fenced = true;
        for &index in &self.touched {
            is_fenced &= announce(&mut self.links, index);
        }
        if !is_fenced {
            self.announce_unfenced();
        }
        self.touched.clear();
    }

    /// The doorbells of links whose receivers make no fence for us: one of our own serves all of them.
    #[cold]
    #[inline(never)]
    fn announce_unfenced(&mut self) {
        Doorbell::fence();
        for &index in &self.touched {
            if let Some(Some(link)) = self.links.get_mut(index)
                && !link.fenced
            {
                ring(link);
            }
        }
    }

    /// Drops the shares of packets that were taken by their receivers.
    #[inline(never)]
    fn release(&mut self) {
        let mut at = 0;
        while at < self.lenders.len() {
            let Some(link) = self.links[self.lenders[at]].as_deref_mut() else {
                self.lenders.swap_remove(at);
                continue;
            };
            let given_back = link.producer.given_back();
            while let Some(lent) = link.lent.pop_front_if(|lent| lent.position < given_back) {
                if lent.staging {
                    (link.staged, self.staged) = (link.staged - 1, self.staged - 1);
                }
                keep_staging(&mut self.staging, lent);
            }
            if link.lent.is_empty() {
                self.lenders.swap_remove(at);
            } else {
                at += 1;
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
                    keep_staging(&mut self.staging, lent);
                } else {
                    link.lent.push_back(lent);
                }
            }
        }
        let links = &self.links;
        self.lenders.retain(|&index| links[index].as_ref().is_some_and(|link| !link.lent.is_empty()));
    }

    /// A packet whose bytes do not fit in the ring: its first bytes go there, the rest is read from the arena.
    #[cold]
    #[inline(never)]
    fn push_far(&mut self, index: usize, packet: &TxPacket<'_>) -> Result<(), Dropped> {
        if packet.len() > PACKET_LEN_MAX {
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
                let buffer = self.stage(rest, packet.data.as_slice()).ok_or(Dropped::Full)?.freeze();
                (head, buffer.arena_offset(), buffer, true)
            }
        };
        let far = Far { offset: offset as u64, len: (packet.len() - head.len()) as u32 };
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
                keep_staging(&mut self.staging, Lent { position: 0, buffer, staging });
                Err(self.refused(index, refused))
            }
        }
    }

    /// Whether a link may have one more of the buffers: as long as it has fewer than nobody has. So those whose receivers take
    /// nothing never have them all, however many they are, and a link that is alone with its receiver has half of them.
    fn may_stage(&mut self, index: usize) -> bool {
        let held = |tx: &Self| tx.links[index].as_ref().map_or(0, |link| link.staged);
        let has_share = |tx: &Self| held(tx) < tx.staged_max.saturating_sub(tx.staged);
        has_share(self) || {
            self.release();
            has_share(self)
        }
    }

    /// A copy of both pieces in a buffer of the arena.
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
            // Partner: the receiving half's look, which closes the link.
            link.state.broken.store(true, Ordering::Relaxed);
        }
        Dropped::Full
    }
}

/// Publishes what was sent to a link and rings its doorbell; returns false when a fence must come in between.
fn announce(links: &mut [Option<Box<TxLink>>], index: usize) -> bool {
    let Some(Some(link)) = links.get_mut(index) else { return true };
    link.producer.submit();
    if link.fenced {
        Doorbell::fenced_by_receiver();
        ring(link);
    }
    link.fenced
}

/// Rings the doorbell of a link, after the fence that comes after the publishing.
#[inline(always)]
fn ring(link: &mut TxLink) {
    link.touched = false;
    if !link.doorbell.as_ref().is_some_and(Doorbell::needs_no_ring) {
        ring_aloud(link);
    }
}

/// As [`ring`], where the receiver may have to hear it.
#[cold]
#[inline(never)]
fn ring_aloud(link: &TxLink) {
    let sleeper = match &link.doorbell {
        Some(doorbell) => doorbell.ring(),
        // Not yet told where its board is; it may be asleep.
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

fn keep_staging(pool: &mut Vec<MessageBuffer>, lent: Lent) {
    if lent.staging
        && let Ok(buffer) = lent.buffer.thaw()
    {
        pool.push(buffer);
    }
}

impl ShmTx {
    /// As [`PacketTx::push`], but says when the packet was not taken, and does not count it then.
    #[inline(always)]
    pub(crate) fn offer(&mut self, packet: TxPacket<'_>) -> Result<(), Dropped> {
        let index = packet.to.0[0] as usize;
        // A header and a short message, to a link as it was when the burst began: what is left to do is the copy.
        if let Some(Some(link)) = self.links.get_mut(index)
            && let link = &mut **link
            && link.generation == packet.to.0[1]
            && let Some(data) = copied(&packet.data)
            && (link.touched || !self.inbox.is_pending())
        {
            if !link.touched {
                link.touched = true;
                self.touched.push(index);
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
        // A copy, so that the packet itself need not be in memory before it is known that this is where it goes.
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
            self.touched.push(index);
        }
        let sent = if len <= INLINE_MAX {
            match link.producer.push_any(packet.head, data) {
                Ok(()) => Ok(()),
                Err(refused) => Err(self.refused(index, refused)),
            }
        } else {
            self.push_far(index, packet)
        };
        sent?;
        self.stats.tx_packets += 1;
        self.stats.tx_bytes += len as u64;
        Ok(())
    }
}

/// Bytes that are handed over to be copied.
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
        if !self.touched.is_empty() {
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
