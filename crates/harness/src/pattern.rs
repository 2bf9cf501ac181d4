//! Contents of test messages, by which every answer can be checked.
//!
//! A message has a body, word `i` of which depends on `i` alone and is written once, and *stamps*: words that depend on
//! the call's sequence number and are written anew for every call. The first 32 bytes and the last word of a message
//! are stamps; in long messages so is the first word of every 16 KB. A packet that arrives twice, late, torn or in
//! another's place has the wrong stamps.

/// Bytes at the start of a message that are all stamps.
const HEAD: usize = 32;
/// Bytes from one stamp to the next in the body.
const STAMP_EVERY: usize = 16 << 10;
/// Bytes from one checked word of the body to the next.
const CHECK_EVERY: usize = 4 << 10;
/// Interval of full checks: one message in this many is checked byte for byte.
pub const FULL_CHECK_EVERY: u64 = 64;

const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The word at offset `at` of message `sequence`, if it is a stamp.
#[inline(always)]
pub fn stamp(sequence: u64, at: usize) -> u64 {
    (sequence ^ at as u64).wrapping_mul(ODD) ^ sequence
}

#[inline(always)]
fn body(at: usize) -> u64 {
    (at as u64).wrapping_mul(ODD).rotate_left(23)
}

fn put(message: &mut [u8], at: usize, word: u64) {
    let bytes = word.to_le_bytes();
    let len = bytes.len().min(message.len() - at);
    message[at..at + len].copy_from_slice(&bytes[..len]);
}

fn holds(message: &[u8], at: usize, word: u64) -> bool {
    let bytes = word.to_le_bytes();
    let len = bytes.len().min(message.len() - at);
    message[at..at + len] == bytes[..len]
}

/// Whether the word at `at`, a multiple of 8, is a stamp in a message of `len` bytes.
fn is_stamp(at: usize, len: usize) -> bool {
    at < HEAD || at.is_multiple_of(STAMP_EVERY) || at + 8 >= len
}

/// Offsets of the stamps after the head.
fn later_stamps(len: usize) -> impl Iterator<Item = usize> {
    let last = len.saturating_sub(1) & !7;
    let regular = (STAMP_EVERY..len).step_by(STAMP_EVERY);
    regular.chain((last >= HEAD && !last.is_multiple_of(STAMP_EVERY)).then_some(last))
}

/// Writes the body of a message; once for each buffer.
pub fn write_body(message: &mut [u8]) {
    for at in (0..message.len()).step_by(8) {
        put(message, at, body(at));
    }
}

/// Writes the stamps of a message; for every call.
#[inline]
pub fn write_stamps(message: &mut [u8], sequence: u64) {
    if let Some(head) = message.first_chunk_mut::<HEAD>() {
        for (index, word) in head.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = stamp(sequence, index * 8).to_le_bytes();
        }
        if message.len() > HEAD {
            later_stamps(message.len()).for_each(|at| put(message, at, stamp(sequence, at)));
        }
    } else {
        for at in (0..message.len()).step_by(8) {
            put(message, at, stamp(sequence, at));
        }
    }
}

/// Whether a message is that of call `sequence`. Checks all stamps, in messages of more than 4 KB one word of the body
/// in every 4 KB (another one for each call), and everything in every [`FULL_CHECK_EVERY`]th call.
#[inline]
pub fn check(message: &[u8], sequence: u64) -> bool {
    if let Some(head) = message.as_array::<HEAD>() {
        let words = head.as_chunks::<8>().0.iter().enumerate();
        return words.fold(true, |good, (index, word)| good & (*word == stamp(sequence, index * 8).to_le_bytes()));
    }
    check_long_or_short(message, sequence)
}

fn check_long_or_short(message: &[u8], sequence: u64) -> bool {
    let len = message.len();
    if len < HEAD || sequence.is_multiple_of(FULL_CHECK_EVERY) {
        return check_all(message, sequence);
    }
    let head = (0..HEAD).step_by(8).all(|at| holds(message, at, stamp(sequence, at)));
    let stamps = head && later_stamps(len).all(|at| holds(message, at, stamp(sequence, at)));
    let offset = (sequence as usize * 8) % CHECK_EVERY;
    stamps
        && (0..len.saturating_sub(CHECK_EVERY - 1)).step_by(CHECK_EVERY).all(|page| {
            let at = page + offset;
            is_stamp(at, len) || holds(message, at, body(at))
        })
}

/// Whether every byte of a message is that of call `sequence`.
pub fn check_all(message: &[u8], sequence: u64) -> bool {
    let len = message.len();
    let regions = message.chunks(STAMP_EVERY).enumerate().all(|(index, region)| {
        let start = index * STAMP_EVERY;
        let stamps = if index == 0 { HEAD } else { 8 };
        let words = region.get(stamps..).unwrap_or_default().as_chunks::<8>().0;
        // The message's last word is a stamp.
        let body_words = if start + region.len() == len && len.is_multiple_of(8) {
            words.split_last().map_or(words, |(_, rest)| rest)
        } else {
            words
        };
        // This loop has no early exit, so that it runs at the speed of memory: a server that checked for long would
        // look dead to its client.
        let differing = body_words.iter().enumerate().fold(0, |differing, (word_index, word)| {
            differing | (u64::from_le_bytes(*word) ^ body(start + stamps + word_index * 8))
        });
        differing == 0
    });
    let head = (0..HEAD.min(len)).step_by(8).all(|at| holds(message, at, stamp(sequence, at)));
    regions && head && later_stamps(len).all(|at| holds(message, at, stamp(sequence, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: usize, sequence: u64) -> Vec<u8> {
        let mut message = vec![0; len];
        write_body(&mut message);
        write_stamps(&mut message, sequence - 1);
        write_stamps(&mut message, sequence);
        message
    }

    #[test]
    fn messages_of_every_length_pass_their_own_check() {
        for len in (0..100).chain([4095, 4096, 4097, 16384, 16390, 32768, 100_001, 1 << 20]) {
            for sequence in [1, 63, 64, 65] {
                assert!(check(&message(len, sequence), sequence), "{len} {sequence}");
                assert!(check_all(&message(len, sequence), sequence), "{len} {sequence}");
            }
        }
    }

    #[test]
    fn another_calls_message_fails() {
        for len in [1, 8, 31, 32, 33, 100, 20_000] {
            assert!(!check(&message(len, 7), 8), "{len}");
        }
    }

    #[test]
    fn a_stale_packet_fails_and_any_changed_byte_fails_the_full_check() {
        let (mut mixed, older) = (message(100_000, 9), message(100_000, 8));
        mixed[32_768..65_536].copy_from_slice(&older[32_768..65_536]);
        assert!(!check(&mixed, 9));
        for at in [0, 31, 32, 5_000, 99_999] {
            let mut changed = message(100_000, 64);
            changed[at] ^= 1;
            assert!(!check(&changed, 64), "{at}");
        }
    }

    #[test]
    fn a_page_of_zeros_is_noticed() {
        for sequence in 1..=FULL_CHECK_EVERY {
            let mut torn = message(100_000, sequence);
            torn[40_960..45_056].fill(0);
            assert!(!check(&torn, sequence), "{sequence}");
        }
    }
}
