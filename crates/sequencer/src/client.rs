//! What all designs look like to a program that wants numbers.

use crate::error::{CallError, ClientError, RequestError};

/// The numbers that a call got: `count` of them, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numbers {
    /// The first.
    pub first: u64,
    /// How many there are; at least one.
    pub count: u32,
}

impl Numbers {
    /// The last.
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

/// A call that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The tag it was given.
    pub tag: u64,
    /// Its numbers, or why it has none.
    pub result: Result<Numbers, CallError>,
}

/// A client of a sequencer. It belongs to the thread that drives it, and allocates nothing per call once warm.
pub trait Client {
    /// Calls that can be in flight.
    fn window(&self) -> usize;

    /// Calls that are in flight.
    fn in_flight(&self) -> usize;

    /// Takes a call for `count` numbers. It leaves with the next [`Self::turn`]; `tag` comes back with its answer.
    ///
    /// # Errors
    ///
    /// [`RequestError`]; other calls are not affected.
    fn request(&mut self, tag: u64, count: u32) -> Result<(), RequestError>;

    /// Sends what was taken and takes in what has come. Never blocks. `now_ns` is any clock that does not run backwards. Returns
    /// whether anything happened.
    ///
    /// # Errors
    ///
    /// [`ClientError`], after which the client is of no more use. Calls that have no answer by then get none, and numbers of theirs are gaps.
    fn turn(&mut self, now_ns: u64) -> Result<bool, ClientError>;

    /// The next call that is over.
    fn answer(&mut self) -> Option<Answer>;
}
