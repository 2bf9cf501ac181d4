//! One suite of facts that every frame port must satisfy, whatever moves the frames.
//!
//! A backend writes a [`Fixture`], which opens pairs of ports at the two ends of a wire, and instantiates the suite:
//!
//! ```text
//! sinew_conformance::frame_tests!(MyFixture::new());
//! ```
//!
//! This makes a `#[test]` of each fact; [`run_all`] runs them all in one. A fixture that lacks what its ports need
//! returns `None` from [`Fixture::pair`] after calling [`skipped`](crate::skipped).

mod facts;
#[cfg(test)]
mod tests;

use sinew_fabric::frames::{ETHERNET_HEADER_LEN, FrameBurst, FramePort, FrameRx, FrameTx, LentFrame};

use crate::pattern;

pub use facts::*;

/// Promises of a fixture's wire beyond what every wire must keep.
#[derive(Clone, Copy, Debug)]
pub struct Expectations {
    /// Whether the clock runs by itself, so that other threads can wake a port while it waits.
    pub real_time: bool,
    /// Time allowed for anything that must happen, in nanoseconds. Only failures take that long.
    pub patience_ns: u64,
}

impl Default for Expectations {
    fn default() -> Self {
        Self { real_time: true, patience_ns: 10_000_000_000 }
    }
}

/// Source of the ports that the facts are checked on.
pub trait Fixture {
    /// The port under test.
    type Port: FramePort;

    /// Opens two ports at the ends of a wire that carries their frames and no others. `None` when this machine lacks
    /// what they need, which the fixture has then reported.
    fn pair(&mut self) -> Option<(Self::Port, Self::Port)>;

    /// Time on the clock by which deadlines and bursts are measured, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Promises of this wire.
    fn expectations(&self) -> Expectations {
        Expectations::default()
    }
}

/// The list of facts, written once. It is passed to a macro, after that macro's own arguments.
#[doc(hidden)]
#[macro_export]
macro_rules! __frame_facts {
    ($consumer:path, $($arguments:tt)*) => {
        $consumer! { $($arguments)*;
            a_frame_port_says_what_it_can_do
            frames_of_every_length_arrive_intact
            frames_arrive_in_order
            frames_beyond_the_limits_are_counted_and_not_sent
            a_burst_lends_at_most_burst_max_frames
            to_submit_and_receive_nothing_changes_nothing
            frame_counters_add_up
            room_for_frames_comes_back
            a_flood_of_frames_loses_some_and_nothing_else
            pushed_bytes_are_copied
            a_lent_frame_is_written_and_forwarded_as_it_is_then
            frames_that_were_not_forwarded_stay_readable
            forwarding_for_long_uses_up_nothing
            a_wait_for_frames_keeps_its_timeout
            a_wait_ends_when_a_frame_is_there
            a_frame_makes_an_armed_port_readable
            a_waker_ends_a_wait_for_frames
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __frame_facts_as_tests {
    ($fixture:expr; $($fact:ident)*) => {
        $(
            #[test]
            fn $fact() {
                $crate::frames::$fact(&mut $fixture);
            }
        )*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __frame_facts_in_turn {
    ($fixture:expr; $($fact:ident)*) => {
        $( $crate::frames::$fact($fixture); )*
    };
}

/// Makes a test of each fact of the [suite](crate::frames). The expression makes a new fixture for each.
#[macro_export]
macro_rules! frame_tests {
    ($fixture:expr) => {
        $crate::__frame_facts!($crate::__frame_facts_as_tests, $fixture);
    };
}

/// Checks every fact, one after the other.
///
/// # Panics
///
/// At the first fact that does not hold.
pub fn run_all<F: Fixture>(fixture: &mut F) {
    crate::__frame_facts!(crate::__frame_facts_in_turn, fixture);
}

/// A frame of `len` bytes from one port to the other, with bytes that depend on its number and their position. Its type
/// is that of local experiments, which no stack answers.
fn frame<P: FramePort>(from: &P, to: &P, number: usize, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(to.mac().0);
    bytes.extend(from.mac().0);
    bytes.extend(0x88B5u16.to_be_bytes());
    bytes.extend(pattern(number, len - ETHERNET_HEADER_LEN));
    bytes
}

/// The number in a [`frame`] of at least 22 bytes.
fn number_of(frame: &[u8]) -> usize {
    u64::from_le_bytes(frame[14..22].try_into().expect("numbered frames have 22 bytes")) as usize
}

fn push<P: FramePort>(port: &mut P, frame: &[u8]) {
    let (head, rest) = frame.split_at(frame.len() / 2);
    port.split().1.push(head, rest);
}

fn submit<P: FramePort>(port: &mut P) {
    port.split().1.submit();
}

/// One burst, copied.
fn receive<F: Fixture>(fixture: &F, port: &mut F::Port) -> Vec<Vec<u8>> {
    let burst_max = port.caps().burst_max;
    let mut burst = FrameBurst::new(fixture.now_ns());
    port.split().0.receive(&mut burst);
    assert!(burst.frames.len() <= burst_max, "{} frames lent, {burst_max} allowed", burst.frames.len());
    burst.frames.iter().map(|frame| frame.bytes().to_vec()).collect()
}

/// Receives until there are `count` frames or patience runs out.
fn collect<F: Fixture>(fixture: &F, port: &mut F::Port, count: usize) -> Vec<Vec<u8>> {
    let deadline_ns = fixture.now_ns().saturating_add(fixture.expectations().patience_ns);
    let mut all = Vec::new();
    loop {
        let burst = receive(fixture, port);
        let idle = burst.is_empty();
        all.extend(burst);
        if all.len() >= count || fixture.now_ns() >= deadline_ns {
            return all;
        }
        if idle {
            port.wait(Some(1_000_000)).expect("waiting works");
        }
    }
}

/// Receives for as long as frames keep coming, and a little longer.
fn drain<F: Fixture>(fixture: &F, port: &mut F::Port) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut quiet = 0;
    while quiet < 5 {
        let burst = receive(fixture, port);
        quiet = if burst.is_empty() { quiet + 1 } else { 0 };
        if burst.is_empty() {
            port.wait(Some(1_000_000)).expect("waiting works");
        }
        all.extend(burst);
    }
    all
}

/// Number of frames that a fact sends before it receives, so that the receiver's room suffices.
fn chunk_len<P: FramePort>(port: &P) -> usize {
    port.caps().receive_frames.clamp(1, 32)
}

fn assert_same(got: &[Vec<u8>], sent: &[Vec<u8>]) {
    for (index, (got, sent)) in got.iter().zip(sent).enumerate() {
        assert_eq!(got.len(), sent.len(), "length of frame {index}");
        assert!(got == sent, "frame {index} of {} bytes arrived with other contents", sent.len());
    }
    assert_eq!(got.len(), sent.len(), "frames that arrived, and were sent");
}
