//! Lookups in tables that are larger than the caches, in several forms, on one thread (nsdi15 2.5, 3.3).
//!
//! Every data set is made by fixed rules from a seed. Keys are drawn in advance, together with what each must find;
//! every result is compared inside the timed run.

mod chase;
mod limit;
mod mica;
mod tables;

use std::time::{Duration, Instant};

use anyhow::ensure;

pub use chase::{Chase, Hashes};
pub use limit::RandomLines;
pub use mica::Mica;
pub use tables::{Ipv4, Ipv6, Names, Numbers, Stations};
pub(crate) use tables::{NAME_LEN, ipv4_prefix, ipv6_prefix, name_text, station};

/// Most lookups in flight at a time.
pub const WIDTH_MAX: usize = sinew::store::lookup::GROUP_MAX;
/// Keys drawn in advance: enough that the data they touch fit no cache.
pub const TRACE: usize = 1 << 22;
/// Lookups between readings of the clock.
const STRETCH: usize = 4096;

/// Form of the lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One after the other.
    Plain,
    /// Many at a time, by the interleaver.
    Interleaved,
    /// Many at a time, with group prefetching by hand.
    Grouped,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 3] = [Self::Interleaved, Self::Plain, Self::Grouped];
}

/// A table, and keys that are looked up in it.
pub trait Lookups {
    /// Key of a lookup.
    type Key: Copy;
    /// Result of a lookup.
    type Found: Copy + PartialEq + Default;

    /// Draws a key by a random number. Returns what it must find, too.
    fn draw(&self, random: u64) -> (Self::Key, Self::Found);

    /// Size of the table, in bytes.
    fn bytes(&self) -> usize;

    /// Looks up all keys, `width` at a time.
    fn look_up(&self, form: Form, width: usize, keys: &[Self::Key], found: &mut [Self::Found]);

    /// Memory accesses that each lookup counts for; 1 where lookups themselves are counted.
    fn weight(&self) -> usize {
        1
    }
}

/// Lookups that are made over and over.
#[derive(Debug)]
pub struct Trace<L: Lookups> {
    /// The table.
    pub lookups: L,
    keys: Vec<L::Key>,
    expected: Vec<L::Found>,
    found: Vec<L::Found>,
    at: usize,
}

/// Mixes the bits of a number, one to one.
pub(crate) fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let number = (number ^ number >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    number ^ number >> 32
}

impl<L: Lookups> Trace<L> {
    /// Draws `len` keys.
    pub fn new(lookups: L, len: usize) -> Self {
        let (keys, expected): (Vec<_>, Vec<_>) = (0..len as u64).map(|at| lookups.draw(mixed(at + 1))).unzip();
        let found = vec![L::Found::default(); STRETCH.min(len)];
        Self { lookups, keys, expected, found, at: 0 }
    }

    /// Makes lookups for `duration`. Returns millions a second, by their [weight](Lookups::weight).
    ///
    /// # Errors
    ///
    /// A lookup had the wrong result.
    pub fn mops(&mut self, form: Form, width: usize, duration: Duration) -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut count = 0;
        let mut good = true;
        while began.elapsed() < duration {
            let len = self.found.len();
            self.at = if self.at + len > self.keys.len() { 0 } else { self.at };
            let range = self.at..self.at + len;
            self.lookups.look_up(form, width, &self.keys[range.clone()], &mut self.found);
            good &= self.found[..] == self.expected[range];
            self.at += len;
            count += len;
        }
        ensure!(good, "a lookup had the wrong result");
        Ok((count * self.lookups.weight()) as f64 / began.elapsed().as_secs_f64() / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lookups: impl Lookups) {
        let mut trace = Trace::new(lookups, 10_000);
        for form in Form::ALL {
            for width in [1, 7, WIDTH_MAX] {
                assert!(trace.mops(form, width, Duration::from_millis(1)).unwrap() > 0.0);
            }
        }
        // The first key now expects the result of another.
        let other = trace.expected.iter().copied().find(|other| *other != trace.expected[0]).unwrap_or_default();
        trace.expected[0] = other;
        trace.at = 0;
        assert!(trace.mops(Form::Plain, 1, Duration::from_millis(1)).is_err(), "what is wrong is noticed");
    }

    #[test]
    fn every_form_finds_what_is_there_and_what_is_wrong_is_noticed() {
        check(Chase::new(1 << 12, 10));
        check(Hashes::new(3));
        check(Numbers::new(1000).unwrap());
        check(Ipv4::new(1000).unwrap());
        check(Ipv6::new(1000).unwrap());
        check(Stations::new(1000).unwrap());
        check(Names::new(1000).unwrap());
        check(Mica::new(1000).unwrap());
    }
}
