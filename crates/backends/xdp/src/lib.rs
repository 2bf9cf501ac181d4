//! x
mod bpf;
mod frames;
mod interface;
mod memory;
mod queues;
mod ring;
mod sys;
pub mod testbed;
pub use frames::{FrameOptions, Xdp, XdpFrame, XdpFrames, XdpFramesRx, XdpFramesTx};
pub use interface::{Granted, InterfaceOptions, Mode};
pub use memory::{CHUNK_LENS, Memory};
