//! The system's random generator, buffered.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use sinew_fabric::Generator;

/// Words fetched from the system at once: a call costs some 0.3 us, a word from the buffer 1 ns.
const BUFFERED_WORDS: usize = 32;
const BUFFERED_BYTES: usize = BUFFERED_WORDS * 8;

/// The system's cryptographic generator, buffered, for tokens and seeds.
///
/// Each word is handed out once and wiped from the buffer. A process that forks should make a new generator in the
/// child.
pub struct SystemEntropy {
    buffer: [u64; BUFFERED_WORDS],
    left: usize,
}

impl SystemEntropy {
    /// Creates a generator and fills its buffer, so that a system without randomness is noticed here.
    ///
    /// # Errors
    ///
    /// The error of `getrandom`.
    pub fn new() -> io::Result<Self> {
        let mut entropy = Self { buffer: [0; BUFFERED_WORDS], left: 0 };
        entropy.refill()?;
        Ok(entropy)
    }

    fn refill(&mut self) -> io::Result<()> {
        let mut bytes = [0u8; BUFFERED_BYTES];
        let mut filled = 0;
        while filled < bytes.len() {
            match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
                Ok(more) => filled += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for (word, chunk) in self.buffer.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*chunk);
        }
        self.left = BUFFERED_WORDS;
        Ok(())
    }
}

impl std::fmt::Debug for SystemEntropy {
    /// Shows no words.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SystemEntropy").finish_non_exhaustive()
    }
}

impl Generator for SystemEntropy {
    /// # Panics
    ///
    /// When the system stops giving random bytes, having given some before: tokens that can be guessed would be worse.
    #[inline]
    fn next_u64(&mut self) -> u64 {
        if self.left == 0 {
            self.refill().expect("the system's generator, once ready, keeps giving random bytes");
        }
        self.left -= 1;
        std::mem::take(&mut self.buffer[self.left])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn words_do_not_repeat_across_refills_and_generators() {
        let (mut one, mut other) = (SystemEntropy::new().unwrap(), SystemEntropy::new().unwrap());
        let words: HashSet<u64> = (0..3 * BUFFERED_WORDS).flat_map(|_| [one.next_u64(), other.next_u64()]).collect();
        assert_eq!(words.len(), 6 * BUFFERED_WORDS);
    }

    #[test]
    fn handed_out_words_are_wiped_and_never_shown() {
        let mut entropy = SystemEntropy::new().unwrap();
        entropy.next_u64();
        assert_eq!(entropy.buffer[BUFFERED_WORDS - 1], 0);
        assert_eq!(format!("{entropy:?}"), "SystemEntropy { .. }");
    }
}
