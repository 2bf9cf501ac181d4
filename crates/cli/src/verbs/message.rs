//! What messages hold, and where they lie in exposed memory.

use sinew::mem::SharedMemory;

use crate::pattern;

/// Messages this short hold the low bytes of their number and nothing else, which no two in turn share.
const SHORT: usize = 8;

/// Writes what does not change from message to message.
pub fn write_body(message: &mut [u8]) {
    pattern::write_body(message);
}

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

/// The first eight bytes of message number `sequence`, of at least as many bytes.
pub fn first_word(sequence: u64) -> [u8; 8] {
    pattern::stamp(sequence, 0).to_le_bytes()
}

/// Messages of one size in memory, each from a cache line on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub size: usize,
    pub slots: usize,
}

impl Layout {
    pub fn new(size: usize, slots: usize) -> Self {
        Self { size, slots }
    }

    /// From one message to the next.
    pub fn stride(self) -> usize {
        self.size.max(1).next_multiple_of(64)
    }

    pub fn bytes(self) -> usize {
        self.stride() * self.slots
    }

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
        let slot = nth % slots;
        (slot as usize, nth / slots * (slots | 1) + slot + 1)
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
    fn a_byte_that_is_wrong_is_noticed() {
        for size in [1, 7, 8, 31, 32, 100] {
            let mut message = vec![0; size];
            write_body(&mut message);
            stamp(&mut message, 7);
            assert!(is_all_good(&message, 7) && !is_good(&message, 8));
            for at in 0..size {
                message[at] ^= 1;
                assert!(!is_all_good(&message, 7), "{size} {at}");
                message[at] ^= 1;
            }
        }
    }
}
