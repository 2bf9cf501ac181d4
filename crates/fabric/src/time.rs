//! Time and randomness, handed to library code by its caller.

use std::cell::Cell;
use std::rc::Rc;

/// A monotonic clock, in nanoseconds from its own origin.
pub trait Clock {
    /// Nanoseconds since the clock's origin; never decreases.
    fn now_ns(&self) -> u64;
}

/// A source of random words: the system's for real runs, a seeded one for virtual time.
pub trait Generator {
    /// The next 64 random bits.
    fn next_u64(&mut self) -> u64;
}

/// A clock that a test moves by hand. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Rc<Cell<u64>>);

impl ManualClock {
    /// A clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets `ns` nanoseconds pass.
    pub fn advance(&self, ns: u64) {
        self.0.set(self.0.get() + ns);
    }

    /// Moves on to `ns`; a time in the past changes nothing.
    pub fn advance_to(&self, ns: u64) {
        self.0.set(self.0.get().max(ns));
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.get()
    }
}

impl<C: Clock + ?Sized> Clock for &C {
    fn now_ns(&self) -> u64 {
        (**self).now_ns()
    }
}

/// A small seeded generator (splitmix64) for tests, fault injection and simulation; not for secrets.
#[derive(Clone, Debug)]
pub struct SeededGenerator(u64);

impl SeededGenerator {
    /// The sequence that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the multiplication is below 2^-32 for the small bounds used here.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with probability `probability`.
    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

impl Generator for SeededGenerator {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
