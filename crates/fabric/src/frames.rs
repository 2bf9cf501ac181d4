//! The frame port: raw Ethernet frames in bursts, owned by one thread.
//!
//! Code that forwards packets needs frames as they are on the wire and has no use for peers or names, so frames have an
//! interface of their own, separate from the [packet port](crate::port). A port splits into halves as packet ports do.
//! A received burst is lent, and its frames can be written: a router changes addresses and the hop limit in place, and
//! [passes the frame on](FrameTx::forward). Between ports that share their memory this takes no copy.
//!
//! [`cable`] makes a frame port of any packet port, for example over shared memory or a simulated network. [`any`] puts
//! ports of several kinds behind one type.
//!
//! Frames are never shared: a frame that is forwarded is consumed, so a port whose memory is
//! shared with other ports need not copy it. A cable costs one copy, at the receiver; [`any`] costs one more for each
//! received frame.

pub mod any;
pub mod cable;

use std::fmt;

use arrayvec::ArrayVec;

use crate::port::{MAX_BURST, PortStats};
use crate::readiness::{self, Readiness};
use crate::waker::Waker;

/// Length of an Ethernet header in bytes: two addresses and a type. No frame is shorter.
pub const ETHERNET_HEADER_LEN: usize = 14;

/// The address of an Ethernet interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The address of all hosts.
    pub const BROADCAST: Self = Self([0xFF; 6]);

    /// Whether the address names one host rather than a group.
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

/// Capabilities of a frame port, as data. They affect speed and limits, never soundness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameCaps {
    /// The longest frame, Ethernet header included and check sequence excluded, in bytes.
    pub frame_len_max: usize,
    /// The most frames that a receive burst lends; `<= MAX_BURST`.
    pub burst_max: usize,
    /// Frames that can be waiting at this port before further ones are lost.
    pub receive_frames: usize,
    /// Whether a frame received by a port of the same memory is forwarded without a copy.
    pub forwards_in_place: bool,
}

/// A received frame, lent until its burst is dropped, that its holder may write.
pub trait LentFrame {
    /// The frame's bytes from the Ethernet header on, without the check sequence.
    fn bytes(&self) -> &[u8];

    /// The frame's bytes, writable.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// The kind of frames that a family of ports lends, shared by all ports that can pass frames to each other without a
/// copy.
pub trait FrameFamily {
    /// A frame of the family.
    type Frame<'a>: LentFrame;
}

/// A received burst and the time that counts as its arrival.
pub struct FrameBurst<'a, F: FrameFamily> {
    /// Time at which the burst was taken from the fabric, on the caller's clock.
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
    /// Family of the frames that it lends.
    type Family: FrameFamily;

    /// Lends the next frames, at most [`FrameCaps::burst_max`], by pushing them to `burst`. Never blocks. This call
    /// gives back to the fabric the frames that the previous call lent and nobody forwarded.
    fn receive<'a>(&'a mut self, burst: &mut FrameBurst<'a, Self::Family>);
}

/// The transmitting half of a frame port.
///
/// Frames are unreliable: one that cannot be sent is dropped and counted. A frame shorter than its header counts as
/// [`Malformed`](crate::Dropped::Malformed), one longer than [`FrameCaps::frame_len_max`] as
/// [`TooLong`](crate::Dropped::TooLong), and one that finds no room as [`Full`](crate::Dropped::Full).
pub trait FrameTx {
    /// Family of the frames that it can forward.
    type Family: FrameFamily;

    /// Queues a copy of a frame that is given in two pieces, such as its headers and the rest. The frame may stay
    /// queued until [`Self::submit`].
    fn push(&mut self, head: &[u8], rest: &[u8]);

    /// Queues a received frame, as it is now. This takes no copy if the port that lent it shares this port's
    /// memory ([`FrameCaps::forwards_in_place`]).
    fn forward(&mut self, frame: <Self::Family as FrameFamily>::Frame<'_>);

    /// Sends everything queued: the doorbell at the end of a burst.
    fn submit(&mut self);
}

/// A port for Ethernet frames. It has no peers and no names, since a frame itself names its receiver.
pub trait FramePort: Readiness {
    /// Family of the frames that it lends and takes.
    type Family: FrameFamily;
    /// The receiving half.
    type Rx: FrameRx<Family = Self::Family>;
    /// The transmitting half.
    type Tx: FrameTx<Family = Self::Family>;

    /// Capabilities of the port.
    fn caps(&self) -> FrameCaps;

    /// Address of the port's interface.
    fn mac(&self) -> MacAddress;

    /// Both halves of the port, so that frames can be sent while a burst is lent.
    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx);

    /// A waker, with which other threads wake a thread that waits on this port.
    fn waker(&self) -> Waker;

    /// Blocks until a frame may be there, the waker is called, or `timeout_ns` has passed (`None`: no time-out). May
    /// return early.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        readiness::wait(self, timeout_ns)
    }

    /// Traffic so far, with frames counted as packets.
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
