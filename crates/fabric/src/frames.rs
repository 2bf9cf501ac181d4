//! The frame port: raw Ethernet frames in bursts, owned by one thread.
//!
//! What forwards packets needs frames as they are on the wire, and has no use for peers and names, so frames have a face of their own
//! beside the [packet port](crate::port). A port splits into halves as packet ports do. A received burst is lent, and its frames can
//! be written: a router changes addresses and the hop limit where the frame lies, and [passes it on](FrameTx::forward). Between ports
//! that share their memory that takes no copy.
//!
//! [`cable`] makes a frame port of any packet port, over shared memory or a simulated network for example. [`any`] has ports of several kinds behind one type.

pub mod any;
pub mod cable;

use std::fmt;

use arrayvec::ArrayVec;

use crate::port::{MAX_BURST, PortStats};
use crate::readiness::{self, Readiness};
use crate::waker::Waker;

/// Bytes of an Ethernet header: two addresses and a type. A frame is never shorter.
pub const ETHERNET_HEADER_LEN: usize = 14;

/// The address of an Ethernet interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// All hosts.
    pub const BROADCAST: Self = Self([0xFF; 6]);

    /// Whether it names one host rather than a group.
    pub const fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// What a frame port can do, as data. It affects speed and limits, never soundness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameCaps {
    /// The longest frame, Ethernet header included and check sequence excluded, in bytes.
    pub frame_len_max: usize,
    /// Frames that a receive burst lends at most; `<= MAX_BURST`.
    pub burst_max: usize,
    /// Frames that can be waiting at this port before further ones are lost.
    pub receive_frames: usize,
    /// Whether a frame that a port of the same memory received is forwarded without a copy.
    pub forwards_in_place: bool,
}

/// A received frame, lent until its burst goes, that its holder may write.
pub trait LentFrame {
    /// Its bytes, from the Ethernet header on, without the check sequence.
    fn bytes(&self) -> &[u8];

    /// Its bytes, to write.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Which frames a family of ports lends: the same for all ports that can pass frames to each other without a copy.
pub trait FrameFamily {
    /// A frame of theirs.
    type Frame<'a>: LentFrame;
}

/// A received burst and the time that counts as its arrival.
pub struct FrameBurst<'a, F: FrameFamily> {
    /// When the burst was taken from the fabric, on the clock of the caller.
    pub time_ns: u64,
    /// The frames, in the order of their arrival.
    pub frames: ArrayVec<F::Frame<'a>, MAX_BURST>,
}

impl<F: FrameFamily> FrameBurst<'_, F> {
    /// An empty burst.
    #[inline]
    pub fn new(time_ns: u64) -> Self {
        Self { time_ns, frames: ArrayVec::new_const() }
    }
}

/// The receiving half of a frame port.
pub trait FrameRx {
    /// The frames that it lends.
    type Family: FrameFamily;

    /// Lends the next frames, at most [`FrameCaps::burst_max`], by pushing them to `burst`. Never blocks. What the previous call lent,
    /// and nobody forwarded, is given back to the fabric by this call.
    fn receive<'a>(&'a mut self, burst: &mut FrameBurst<'a, Self::Family>);
}

/// The transmitting half of a frame port.
///
/// Frames are unreliable: one that cannot be sent is dropped and counted. One shorter than its header counts as
/// [`Malformed`](crate::Dropped::Malformed), one over [`FrameCaps::frame_len_max`] as [`TooLong`](crate::Dropped::TooLong), and one that
/// finds no room as [`Full`](crate::Dropped::Full).
pub trait FrameTx {
    /// The frames that it can take from a receiver.
    type Family: FrameFamily;

    /// Copies a frame in two pieces, such as its headers and the rest, and takes it for sending. It may wait for [`Self::submit`].
    fn push(&mut self, head: &[u8], rest: &[u8]);

    /// Takes a received frame, as it is now, for sending: without a copy where the port that lent it has its memory from the same place
    /// ([`FrameCaps::forwards_in_place`]).
    fn forward(&mut self, frame: <Self::Family as FrameFamily>::Frame<'_>);

    /// Sends all that was taken: the doorbell at the end of a burst.
    fn submit(&mut self);
}

/// A port for Ethernet frames. It has no peers and no names: who a frame is for stands in the frame.
pub trait FramePort: Readiness {
    /// The frames that it lends and takes.
    type Family: FrameFamily;
    /// The receiving half.
    type Rx: FrameRx<Family = Self::Family>;
    /// The transmitting half.
    type Tx: FrameTx<Family = Self::Family>;

    /// What the port can do.
    fn caps(&self) -> FrameCaps;

    /// The address of its interface.
    fn mac(&self) -> MacAddress;

    /// Both halves, so that frames can be sent while a burst is lent.
    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx);

    /// Wakes this port from other threads.
    fn waker(&self) -> Waker;

    /// Blocks until a frame may be there, the waker was called, or `timeout_ns` passed (`None`: no time-out). May return early.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        readiness::wait(self, timeout_ns)
    }

    /// What went through so far: frames as packets.
    fn stats(&self) -> PortStats;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_people_write_it() {
        assert_eq!(MacAddress([2, 0, 0, 0xAB, 0xC, 0xFF]).to_string(), "02:00:00:ab:0c:ff");
        assert!(MacAddress([2, 0, 0, 0, 0, 1]).is_unicast() && !MacAddress::BROADCAST.is_unicast());
    }
}
