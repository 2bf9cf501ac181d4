//! Receiving and sending frames through the sockets of a port, for both kinds of ports.

use std::cell::RefCell;
use std::rc::Rc;

use rustix::io::Errno;
use sinew_mem::atomic::plain::Arc;

use crate::interface::{Attachment, Interface};
use crate::memory::{Chunk, Memory, borrowed};
use crate::sys::socket::{Descriptor, kick_tx, statistics};

/// Chunks that are fetched at a time for sending.
const CHUNKS_FETCHED: usize = 64;
/// Chunks that a queue may lack before it gets new ones: these share the cost of the locks.
const MISSING_CHUNKS_MAX: usize = 16;
/// Pause after which a queue that lacks chunks is looked at again.
pub(crate) const SHORT_PAUSE_NS: u64 = 1_000_000;
/// Pauses after which the kernel is called again for frames that it left unsent, normally and while the interface is
/// down.
const BUSY_PAUSE_NS: u64 = 1_000_000;
const DOWN_PAUSE_NS: u64 = 100_000_000;
/// Receive calls between such calls, for a caller that does not sleep.
const UNSENT_LOOKS: u32 = 64;
/// Calls in a row that may send nothing before a port gives up for the moment.
const IDLE_KICKS_MAX: u32 = 4;

/// A received frame.
#[derive(Debug)]
pub(crate) struct Received {
    pub chunk: Chunk,
    pub start: usize,
    pub len: usize,
}

/// Frames that the kernel lost before they reached the port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossCounts {
    /// Lost for want of a chunk, or of room in the ring.
    pub no_room: u64,
    /// Lost since they were longer than a chunk takes.
    pub too_long: u64,
}

impl Attachment {
    /// Frames that the kernel lost, as far as it reports them.
    pub fn lost(&self) -> LossCounts {
        let kernel_counts = self.sockets.iter().filter_map(|socket| statistics(borrowed(socket.fd.as_ref()?)).ok());
        kernel_counts.fold(LossCounts::default(), |lost, counts| {
            // The kernel also reports how many of the dropped frames found no chunk.
            let no_chunk = counts.rx_fill_ring_empty_descs.unwrap_or(0).min(counts.rx_dropped);
            LossCounts {
                no_room: lost.no_room + counts.rx_ring_full.unwrap_or(0) + no_chunk,
                too_long: lost.too_long + counts.rx_dropped - no_chunk,
            }
        })
    }
}

/// The receiving side of a port.
#[derive(Debug)]
pub(crate) struct Receiver {
    attachment: Rc<RefCell<Attachment>>,
    interface: Arc<Interface>,
    /// Chunks to give back; the queues that are looked at next get them first.
    spare: Vec<Chunk>,
    /// The socket at which the next look begins.
    next: usize,
    /// Chunks that each queue lacks.
    missing_chunks: Vec<usize>,
    refused: u64,
    /// Receive calls while the kernel has unsent frames.
    polls: u32,
}

impl Receiver {
    pub fn new(attachment: &Rc<RefCell<Attachment>>) -> Self {
        let interface = Arc::clone(&attachment.borrow().interface);
        let missing_chunks = vec![0; attachment.borrow().sockets.len()];
        let spare = Vec::with_capacity(128);
        Self { attachment: Rc::clone(attachment), interface, spare, next: 0, missing_chunks, refused: 0, polls: 0 }
    }

    /// Takes chunks that are no longer used. The next call of [`Self::receive`] gives them to the kernel.
    #[inline]
    pub fn give_back(&mut self, chunks: impl Iterator<Item = Chunk>) {
        self.spare.extend(chunks);
    }

    /// Takes up to `frames_max` frames and hands each to `each`, which may return the chunk.
    #[inline]
    pub fn receive(&mut self, frames_max: usize, mut each: impl FnMut(Received) -> Option<Chunk>) {
        let Self { attachment, interface, spare, next, missing_chunks, refused, polls } = self;
        let attachment = &mut *attachment.borrow_mut();
        if attachment.unsent_pause_ns.is_some() {
            *polls += 1;
            if polls.is_multiple_of(UNSENT_LOOKS) {
                kick(interface, attachment, spare);
                interface.memory.give_back(spare.drain(..));
            }
        }
        let (count, memory) = (attachment.sockets.len(), &interface.memory);
        let mut left = frames_max;
        for _ in 0..count {
            let socket = &mut attachment.sockets[*next];
            let before = left;
            while left > 0
                && let Some(descriptor) = socket.rx.take()
            {
                match taken(memory, descriptor) {
                    Some(received) => {
                        left -= 1;
                        spare.extend(each(received));
                    }
                    None => *refused += 1,
                }
            }
            if left < before {
                socket.rx.release();
                missing_chunks[*next] += before - left;
            }
            // Look for chunks even if no frame came: a queue without chunks receives nothing.
            if missing_chunks[*next] >= MISSING_CHUNKS_MAX || interface.missing(socket.queue) >= MISSING_CHUNKS_MAX {
                interface.fill(socket.queue, spare);
                missing_chunks[*next] = 0;
            }
            // The next look begins at another queue even if this one has more: a full queue must not keep others
            // waiting.
            *next = (*next + 1) % count;
            if left == 0 {
                return;
            }
        }
    }

    /// Whether frames wait to be received.
    pub fn has_news(&self) -> bool {
        self.attachment.borrow_mut().sockets.iter_mut().any(|socket| socket.rx.available() > 0)
    }

    /// Whether a queue lacks chunks that the memory did not have. It is to be received from again soon, to get them.
    pub fn is_short(&self) -> bool {
        self.attachment.borrow().sockets.iter().any(|socket| self.interface.missing(socket.queue) >= MISSING_CHUNKS_MAX)
    }

    /// Invalid descriptors from the kernel.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.interface.memory.give_back(self.spare.drain(..));
    }
}

/// Makes a frame of the kernel's descriptor, if that is valid.
#[inline]
fn taken(memory: &Memory, descriptor: Descriptor) -> Option<Received> {
    let (chunk, start) = memory.reclaim(descriptor.address)?;
    let len = descriptor.len as usize;
    // Packets over several descriptors were not asked for.
    if len > memory.chunk_len() - start || descriptor.options != 0 {
        memory.give_back(std::iter::once(chunk));
        return None;
    }
    Some(Received { chunk, start, len })
}

/// The transmitting side of a port. It sends at the port's first queue.
#[derive(Debug)]
pub(crate) struct Sender {
    attachment: Rc<RefCell<Attachment>>,
    interface: Arc<Interface>,
    /// Free chunks for frames to send.
    chunks: Vec<Chunk>,
    /// Frames that were pushed since the kernel was called.
    pushed: u32,
    /// Frames that were sent since chunks were taken back.
    sent: u32,
}

impl Sender {
    pub fn new(attachment: &Rc<RefCell<Attachment>>) -> Self {
        let interface = Arc::clone(&attachment.borrow().interface);
        Self { attachment: Rc::clone(attachment), interface, chunks: Vec::with_capacity(256), pushed: 0, sent: 0 }
    }

    /// A chunk to put a frame into; `None` when all are in use.
    #[inline]
    pub fn chunk(&mut self) -> Option<Chunk> {
        if self.chunks.is_empty() {
            self.fetch();
        }
        self.chunks.pop()
    }

    fn fetch(&mut self) {
        self.take_back();
        if self.chunks.len() < CHUNKS_FETCHED {
            self.interface.memory.take(CHUNKS_FETCHED - self.chunks.len(), &mut self.chunks);
        }
    }

    /// Takes back the chunks of sent frames, and keeps those that will be used soon.
    fn take_back(&mut self) {
        let queue = self.attachment.borrow().sockets[0].queue;
        self.interface.complete(queue, &mut self.chunks);
        self.return_excess();
        self.sent = 0;
    }

    /// Gives up chunks that will not be used soon.
    #[inline]
    fn return_excess(&mut self) {
        if self.chunks.len() > 2 * CHUNKS_FETCHED {
            self.interface.memory.give_back(self.chunks.drain(CHUNKS_FETCHED..));
        }
    }

    /// Time in ns after which to submit again, because the kernel left frames unsent.
    pub fn unsent_pause_ns(&self) -> Option<u64> {
        self.attachment.borrow().unsent_pause_ns
    }

    /// Puts back a chunk that was not sent.
    #[inline]
    pub fn give_back(&mut self, chunk: Chunk) {
        self.chunks.push(chunk);
        self.return_excess();
    }

    /// Queues a frame for sending; returns whether there was room for it.
    #[inline]
    pub fn push(&mut self, chunk: Chunk, start: usize, len: usize) -> bool {
        let mut attachment = self.attachment.borrow_mut();
        if attachment.sockets[0].tx.free(1) == 0 {
            kick(&self.interface, &mut attachment, &mut self.chunks);
            if attachment.sockets[0].tx.free(1) == 0 {
                drop(attachment);
                self.give_back(chunk);
                return false;
            }
        }
        let address = self.interface.memory.hand_over(chunk) + start as u64;
        attachment.sockets[0].tx.push(Descriptor { address, len: len as u32, options: 0 });
        self.pushed += 1;
        true
    }

    /// Sends the frames that were pushed, and those that the kernel left unsent before.
    #[inline]
    pub fn submit(&mut self) {
        let pushed = std::mem::take(&mut self.pushed);
        let mut attachment = self.attachment.borrow_mut();
        if pushed > 0 || attachment.unsent_pause_ns.is_some() {
            kick(&self.interface, &mut attachment, &mut self.chunks);
            drop(attachment);
            self.sent += pushed;
            // A port that only passes frames on never fetches chunks, so take them back here.
            if self.sent as usize >= CHUNKS_FETCHED {
                self.take_back();
            }
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.interface.memory.give_back(self.chunks.drain(..));
    }
}

/// Shows the kernel the frames in the first socket's ring, and calls it until it has taken all of them, or takes no
/// more.
fn kick(interface: &Interface, attachment: &mut Attachment, chunks: &mut Vec<Chunk>) {
    let Attachment { sockets, unsent_pause_ns, .. } = attachment;
    let socket = &mut sockets[0];
    socket.tx.publish();
    let mut pause_ns = BUSY_PAUSE_NS;
    if socket.tx.needs_wakeup()
        && let Some(fd) = &socket.fd
    {
        let (mut waiting, mut idle) = (socket.tx.waiting(), 0);
        while waiting > 0 && idle < IDLE_KICKS_MAX {
            match kick_tx(borrowed(fd)) {
                Ok(()) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                // The interface is down or gone: waiting frames go once it is back, or never.
                Err(_) => {
                    pause_ns = DOWN_PAUSE_NS;
                    interface.complete(socket.queue, chunks);
                    break;
                }
            }
            let left = socket.tx.waiting();
            idle = if left < waiting { 0 } else { idle + 1 };
            waiting = left;
            if waiting > 0 {
                // The kernel sends only frames whose completion it has room to report.
                interface.complete(socket.queue, chunks);
            }
        }
    }
    *unsent_pause_ns = (socket.tx.waiting() > 0).then_some(pause_ns);
}
