//! Contents of messages, and their places in exposed memory.

use sinew::mem::{OutOfBounds, SharedMemory};

use crate::pattern;

pub use crate::pattern::{FULL_CHECK_EVERY, write_body};

/// Length below which a message holds only the low bytes of its number, which differ between consecutive messages.
pub const SHORT: usize = 8;

/// Turns `message` into number `sequence`.
#[inline]
pub fn stamp(message: &mut [u8], sequence: u64) {
    if message.len() < SHORT {
        let len = message.len();
        message.copy_from_slice(&sequence.to_le_bytes()[..len]);
    } else {
        pattern::write_stamps(message, sequence);
    }
}

/// Whether `message` is number `sequence`. Checks its stamps, and now and then all of it.
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

/// Earlier messages whose remains are recognised in a message's place.
const REMAINS_MAX: u64 = 1 << 16;

/// Whether the slot of the `nth` message holds what is left if all or some of its packets were lost: some of its bytes,
/// and otherwise bytes of one earlier message in that slot, or zeros.
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

/// First eight bytes of message number `sequence`, which has at least as many.
pub fn first_word(sequence: u64) -> [u8; 8] {
    pattern::stamp(sequence, 0).to_le_bytes()
}

/// Messages of one size in memory, each beginning at a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Length of a message, in bytes.
    pub size: usize,
    /// Number of messages.
    pub slots: usize,
}

impl Layout {
    /// `slots` messages of `size` bytes.
    pub fn new(size: usize, slots: usize) -> Self {
        Self { size, slots }
    }

    /// Bytes from one message to the next.
    pub fn stride(self) -> usize {
        self.size.max(1).next_multiple_of(64)
    }

    /// Bytes of all messages.
    pub fn bytes(self) -> usize {
        self.stride() * self.slots
    }

    /// Offset of a slot.
    pub fn offset(self, slot: usize) -> usize {
        slot * self.stride()
    }

    /// The slot of the `nth` message, and its number, whose lowest byte differs from that of the message before it in
    /// the slot.
    #[inline(always)]
    pub fn place(self, nth: u64) -> (usize, u64) {
        let slots = self.slots as u64;
        if slots == 1 {
            return (0, nth + 1);
        }
        // Usually a power of two; a division would take as long as a WRITE of a few bytes.
        let (lap, slot) = if slots.is_power_of_two() {
            (nth >> slots.trailing_zeros(), nth & (slots - 1))
        } else {
            (nth / slots, nth % slots)
        };
        (slot as usize, lap * (slots | 1) + slot + 1)
    }

    /// Whether message number `sequence` has arrived in a slot; if so, reads it into `message`. Its last word arrives
    /// last, so only that word is polled; a torn message has not arrived.
    #[inline(always)]
    pub fn arrived(self, memory: &SharedMemory, slot: usize, sequence: u64, message: &mut [u8]) -> bool {
        arrived_at(memory, self.offset(slot), sequence, &mut message[..self.size])
    }
}

/// Whether message number `sequence`, which is as long as `message`, has arrived at an offset, a multiple of 8; if so,
/// reads it into `message`, as [`Layout::arrived`] does.
#[inline(always)]
pub fn arrived_at(memory: &SharedMemory, offset: usize, sequence: u64, message: &mut [u8]) -> bool {
    let len = message.len();
    let last = (len - 1) & !7;
    let Ok(word) = memory.load(offset + last) else { return false };
    let expected = if len < SHORT { sequence } else { pattern::stamp(sequence, last) };
    let bits = 8 * (len - last) as u32;
    let differing = (u64::from_le(word) ^ expected) << (64 - bits);
    differing == 0 && memory.read(offset, message).is_ok() && is_good(message, sequence)
}

/// Two words behind the messages: the number of the message asked for, and of the one written. Each is two lines away
/// from everything else, since processors fetch lines in pairs.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// Offset of the word that says which message is asked for.
    pub asked: usize,
    /// Offset of the word that says which message was written.
    pub written: usize,
}

impl Exchange {
    const APART: usize = 128;

    /// The words behind the messages of a layout.
    pub fn of(layout: Layout) -> Self {
        let asked = (layout.bytes() + Self::APART).next_multiple_of(Self::APART);
        Self { asked, written: asked + Self::APART }
    }

    /// Bytes of the memory that holds messages and words.
    pub fn bytes(self) -> usize {
        self.written + Self::APART
    }

    /// Writes the message that is asked for to the first slot, unless it was the last one `written`. Returns the last
    /// number written.
    ///
    /// # Errors
    ///
    /// The memory is too small for the layout.
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
