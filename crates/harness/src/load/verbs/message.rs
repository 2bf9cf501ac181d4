//! What messages hold, and where they lie in exposed memory.

use sinew::mem::{OutOfBounds, SharedMemory};

use crate::pattern;

pub use crate::pattern::{FULL_CHECK_EVERY, write_body};

/// Messages this short hold the low bytes of their number and nothing else, which no two in turn share.
pub const SHORT: usize = 8;

/// Makes it message number `sequence`.
#[inline]
pub fn stamp(message: &mut [u8], sequence: u64) {
    if message.len() < SHORT {
        let len = message.len();
        message.copy_from_slice(&sequence.to_le_bytes()[..len]);
    } else {
        pattern::write_stamps(message, sequence);
    }
}

/// Whether it is message number `sequence`: its stamps, and all of it now and then.
#[inline]
pub fn is_good(message: &[u8], sequence: u64) -> bool {
    if message.len() < SHORT {
        return message == &sequence.to_le_bytes()[..message.len()];
    }
    pattern::check(message, sequence)
}

/// Whether every byte is that of message number `sequence`.
pub fn is_all_good(message: &[u8], sequence: u64) -> bool {
    if message.len() < SHORT { is_good(message, sequence) } else { pattern::check_all(message, sequence) }
}

/// Messages before one whose remains are recognised in its place.
const REMAINS_MAX: u64 = 1 << 16;

/// Whether the place of the `nth` message holds what is left when it was lost, or packets of it were: bytes of it, and for the
/// rest those of one that was written there before, or none.
pub fn is_mixed(seen: &[u8], layout: Layout, nth: u64) -> bool {
    let (mut new, mut old) = (vec![0; seen.len()], vec![0; seen.len()]);
    write_body(&mut new);
    stamp(&mut new, layout.place(nth).1);
    let Some(at) = seen.iter().zip(&new).position(|(seen, new)| seen != new) else { return true };
    let is_mix = |old: &[u8]| {
        seen[at] == old[at] && seen.iter().zip(&new).zip(old).all(|((seen, new), old)| seen == new || seen == old)
    };
    if is_mix(&old) {
        return true;
    }
    write_body(&mut old);
    let slots = layout.slots as u64;
    (1..REMAINS_MAX).map_while(|rounds| nth.checked_sub(rounds * slots)).any(|earlier| {
        stamp(&mut old, layout.place(earlier).1);
        is_mix(&old)
    })
}

/// The first eight bytes of message number `sequence`, of at least as many bytes.
pub fn first_word(sequence: u64) -> [u8; 8] {
    pattern::stamp(sequence, 0).to_le_bytes()
}

/// Messages of one size in memory, each from a cache line on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a message.
    pub size: usize,
    /// Messages.
    pub slots: usize,
}

impl Layout {
    /// So many of so many bytes.
    pub fn new(size: usize, slots: usize) -> Self {
        Self { size, slots }
    }

    /// From one message to the next.
    pub fn stride(self) -> usize {
        self.size.max(1).next_multiple_of(64)
    }

    /// Bytes of all.
    pub fn bytes(self) -> usize {
        self.stride() * self.slots
    }

    /// Where a slot begins.
    pub fn offset(self, slot: usize) -> usize {
        slot * self.stride()
    }

    /// The slot of the `nth` message, and its number, which differs from that of the one before in its slot even in one byte.
    #[inline(always)]
    pub fn place(self, nth: u64) -> (usize, u64) {
        let slots = self.slots as u64;
        if slots == 1 {
            return (0, nth + 1);
        }
        // As a rule a power of two, and a division takes as long as a WRITE of a few bytes.
        let (lap, slot) = if slots.is_power_of_two() {
            (nth >> slots.trailing_zeros(), nth & (slots - 1))
        } else {
            (nth / slots, nth % slots)
        };
        (slot as usize, lap * (slots | 1) + slot + 1)
    }

    /// Whether message number `sequence` has arrived in a slot, which is read into `message` then. Its last word arrives last, so
    /// that alone is looked at until it is there; and what is torn has not arrived.
    #[inline(always)]
    pub fn arrived(self, memory: &SharedMemory, slot: usize, sequence: u64, message: &mut [u8]) -> bool {
        let last = (self.size - 1) & !7;
        let Ok(word) = memory.load(self.offset(slot) + last) else { return false };
        let expected = if self.size < SHORT { sequence } else { pattern::stamp(sequence, last) };
        let bits = 8 * (self.size - last) as u32;
        let differing = (u64::from_le(word) ^ expected) << (64 - bits);
        differing == 0 && memory.read(self.offset(slot), message).is_ok() && is_good(message, sequence)
    }
}

/// Two words behind the messages: which message is asked for, and which was written. Each is two lines away from all else, since
/// processors fetch lines in pairs.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// Where the first is.
    pub asked: usize,
    /// Where the second is.
    pub written: usize,
}

impl Exchange {
    const APART: usize = 128;

    /// Those behind the messages of a layout.
    pub fn of(layout: Layout) -> Self {
        let asked = (layout.bytes() + Self::APART).next_multiple_of(Self::APART);
        Self { asked, written: asked + Self::APART }
    }

    /// Bytes of the memory that holds them.
    pub fn bytes(self) -> usize {
        self.written + Self::APART
    }

    /// Writes the first message as number `sequence`, if that is asked for and was not `written` before; which was written last.
    ///
    /// # Errors
    ///
    /// The memory is too small for them.
    #[inline(always)]
    pub fn answer(self, memory: &SharedMemory, message: &mut [u8], written: u64) -> Result<u64, OutOfBounds> {
        let asked = memory.load(self.asked)?;
        if asked != written {
            stamp(message, asked);
            memory.write(0, message)?;
            memory.store(self.written, asked)?;
        }
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_arrived_with_its_last_byte_and_not_before() {
        for size in [1, 2, 7, 8, 9, 12, 32, 33, 64, 4097] {
            let layout = Layout::new(size, 3);
            let memory = SharedMemory::private(layout.bytes()).unwrap();
            let (mut sent, mut seen) = (vec![0; size], vec![0; size]);
            write_body(&mut sent);
            for nth in 0..1000 {
                let (slot, sequence) = layout.place(nth);
                assert!(!layout.arrived(&memory, slot, sequence, &mut seen), "{size} {nth}");
                stamp(&mut sent, sequence);
                memory.write(layout.offset(slot), &sent[..size - 1]).unwrap();
                memory.write(layout.offset(slot), &sent).unwrap();
                assert!(layout.arrived(&memory, slot, sequence, &mut seen), "{size} {nth}");
                assert_eq!(seen, sent);
                assert!(is_all_good(&seen, sequence));
            }
        }
    }

    #[test]
    fn what_a_lost_message_leaves_is_told_from_what_nobody_wrote() {
        let nth = 1000;
        for (size, slots) in [(1, 1), (7, 3), (8, 1), (32, 5), (4097, 1)] {
            let layout = Layout::new(size, slots);
            let message = |nth: u64| {
                let mut message = vec![0; size];
                write_body(&mut message);
                stamp(&mut message, layout.place(nth).1);
                message
            };
            let earlier = message(nth - 3 * slots as u64);
            assert!(is_mixed(&vec![0; size], layout, nth) && is_mixed(&earlier, layout, nth), "{size}");
            let half = [&message(nth)[..size / 2], &earlier[size / 2..]].concat();
            assert!(is_mixed(&half, layout, nth), "{size}");
            if size >= 8 {
                let mut wrong = half;
                wrong[size - 1] ^= 0x55;
                assert!(!is_mixed(&wrong, layout, nth), "{size}");
            }
        }
    }
}
