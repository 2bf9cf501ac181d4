//! The interface that the clients of all designs share.

use crate::error::{CallError, ClientError, RequestError};

/// The numbers that a call got: `count` consecutive ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numbers {
    /// The first number.
    pub first: u64,
    /// Count of the numbers; at least one.
    pub count: u32,
}

impl Numbers {
    /// Returns the last number.
    #[inline]
    pub fn last(self) -> u64 {
        self.first + u64::from(self.count.max(1) - 1)
    }
}

impl IntoIterator for Numbers {
    type Item = u64;
    type IntoIter = std::ops::RangeInclusive<u64>;

    fn into_iter(self) -> Self::IntoIter {
        self.first..=self.last()
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Tag given with the call.
    pub tag: u64,
    /// The call's numbers, or the reason why it has none.
    pub result: Result<Numbers, CallError>,
}

/// A client of a sequencer. It belongs to the thread that drives it, and allocates nothing per call once warm.
pub trait Client {
    /// Calls that can be in flight.
    fn window(&self) -> usize;

    /// Calls in flight, including those whose answers have not been taken.
    fn in_flight(&self) -> usize;

    /// Accepts a call for `count` numbers, to be sent by the next [`Self::turn`]; `tag` comes back with its answer.
    ///
    /// # Errors
    ///
    /// [`RequestError`]; other calls are not affected.
    fn request(&mut self, tag: u64, count: u32) -> Result<(), RequestError>;

    /// Sends the calls accepted and processes what has arrived. Never blocks. `now_ns` may be any clock that does not
    /// run backwards. Returns whether anything happened.
    ///
    /// # Errors
    ///
    /// [`ClientError`], after which the client is unusable. Calls without an answer by then get none, and their numbers
    /// are gaps.
    fn turn(&mut self, now_ns: u64) -> Result<bool, ClientError>;

    /// Returns the next answer that has arrived.
    fn answer(&mut self) -> Option<Answer>;
}
