//! A donor's answers to calls that access its memory, for fabrics without one-sided verbs, and the layout of these
//! calls.
//!
//! A request holds the key of a range (8 bytes; all numbers are little-endian), the number of operations (4), and for
//! each operation: its offset in the range (8), its length in bytes (4), and 1 for a write or 0 for a read (4). The
//! bytes of all writes follow, one after the other. The answer is 0 (4 bytes) and the bytes of all reads. If it is the
//! number of a [`Refusal`] (4) instead, nothing was done. Operations of one call must not overlap, so their order does
//! not matter.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use sinew_mem::SharedMemory;
use sinew_rpc::{Call, RequestType};

/// Request type of the calls that access memory.
pub const ACCESS: RequestType = RequestType::new(80);

pub(super) const HEAD_LEN: usize = KEY_LEN + 4;
const KEY_LEN: usize = 8;
pub(super) const OP_LEN: usize = 16;
pub(super) const ANSWER_HEAD_LEN: usize = 4;

/// Reason why a donor did nothing for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The call cannot be parsed.
    #[error("it cannot parse the call")]
    Malformed,
    /// There is no such range, or it was taken back.
    #[error("it does not lend such memory, or not any more")]
    NoRange,
    /// An operation reaches beyond the range.
    #[error("an operation reaches beyond the memory that it lends")]
    OutOfRange,
}

impl Refusal {
    fn code(self) -> u32 {
        match self {
            Self::Malformed => 1,
            Self::NoRange => 2,
            Self::OutOfRange => 3,
        }
    }

    pub(super) fn from_code(code: u32) -> Option<Self> {
        [Self::Malformed, Self::NoRange, Self::OutOfRange].into_iter().find(|refusal| refusal.code() == code)
    }
}

/// Ranges of memory that a donor lends to callers, by their keys.
#[derive(Debug, Default)]
pub struct Ranges(RwLock<(u64, BTreeMap<u64, SharedMemory>)>);

impl Ranges {
    /// Makes an empty table.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Lends a range, and returns its key, which no other range has or had.
    pub fn offer(&self, memory: SharedMemory) -> u64 {
        let mut ranges = self.0.write().unwrap_or_else(PoisonError::into_inner);
        ranges.0 += 1;
        let key = ranges.0;
        ranges.1.insert(key, memory);
        key
    }

    /// Takes a range back: calls from now on are refused. `None` if there is no such range.
    pub fn withdraw(&self, key: u64) -> Option<SharedMemory> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).1.remove(&key)
    }

    /// The handler of calls of type [`ACCESS`], to be registered with `handle`. It serves all endpoints of a donor.
    pub fn handler(self: &Arc<Self>) -> impl Fn(Call<'_>) + Send + Sync + 'static {
        let ranges = Arc::clone(self);
        move |call| ranges.answer(call)
    }

    fn answer(&self, call: Call<'_>) {
        answer(call, |request| self.check(request));
    }

    fn check<'a>(&self, request: &'a [u8]) -> Result<(SharedMemory, Parsed<'a>), Refusal> {
        let (key, parsed) = Parsed::read(request).ok_or(Refusal::Malformed)?;
        let ranges = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let memory = ranges.1.get(&key).ok_or(Refusal::NoRange)?;
        parsed.check(|range| range.end <= memory.len() as u64)?;
        Ok((memory.clone(), parsed))
    }
}

/// Answers a call of type [`ACCESS`]. `check` finds the memory that it accesses, and decides whether it may. Returns
/// the refusal, if any.
pub(crate) fn answer<'a>(
    call: Call<'a>,
    check: impl FnOnce(&'a [u8]) -> Result<(SharedMemory, Parsed<'a>), Refusal>,
) -> Option<Refusal> {
    match check(call.request()) {
        Ok((memory, parsed)) => {
            call.reply_with(ANSWER_HEAD_LEN + parsed.read_len, |answer| parsed.perform(&memory, answer));
            None
        }
        Err(refusal) => {
            call.reply(&refusal.code().to_le_bytes());
            Some(refusal)
        }
    }
}

/// A well-formed call.
pub(crate) struct Parsed<'a> {
    operations: &'a [u8],
    written: &'a [u8],
    read_len: usize,
}

impl<'a> Parsed<'a> {
    /// Parses a call. Returns its key and its operations; `None` if it is malformed.
    pub fn read(request: &'a [u8]) -> Option<(u64, Self)> {
        let (head, rest) = request.split_first_chunk::<HEAD_LEN>()?;
        let key = u64::from_le_bytes(*head.first_chunk()?);
        let count = u32::from_le_bytes(*head.last_chunk()?) as usize;
        let (operations, written) = rest.split_at_checked(count.checked_mul(OP_LEN)?)?;
        let mut parsed = Self { operations, written, read_len: 0 };
        let kinds_are_known =
            operations.chunks_exact(OP_LEN).all(|operation| matches!(operation[12..], [0 | 1, 0, 0, 0]));
        let (mut read_len, mut write_len) = (0usize, 0usize);
        for (_, len, is_write) in parsed.operations() {
            let sum = if is_write { &mut write_len } else { &mut read_len };
            *sum = sum.checked_add(len)?;
        }
        // A longer answer could not be sent.
        let is_valid = kinds_are_known && write_len == written.len() && read_len <= u32::MAX as usize / 2;
        parsed.read_len = read_len;
        is_valid.then_some((key, parsed))
    }

    /// Checks that `allows` holds for the range of every operation.
    pub fn check(&self, allows: impl Fn(Range<u64>) -> bool) -> Result<(), Refusal> {
        let lies_in = |(at, len, _): (u64, usize, bool)| at.checked_add(len as u64).is_some_and(|end| allows(at..end));
        if self.operations().all(lies_in) { Ok(()) } else { Err(Refusal::OutOfRange) }
    }

    fn operations(&self) -> impl Iterator<Item = (u64, usize, bool)> {
        self.operations.chunks_exact(OP_LEN).map(|operation| {
            let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| operation[at + byte]));
            let at = u64::from(word(0)) | u64::from(word(4)) << 32;
            (at, word(8) as usize, word(12) == 1)
        })
    }

    /// Performs the operations. All of them must lie in the memory.
    fn perform(&self, memory: &SharedMemory, answer: &mut [u8]) {
        let (head, mut answer) = answer.split_at_mut(ANSWER_HEAD_LEN);
        head.fill(0);
        let mut written = self.written;
        for (at, len, is_write) in self.operations() {
            let done = if is_write {
                let (bytes, rest) = written.split_at(len);
                written = rest;
                memory.write(at as usize, bytes)
            } else {
                let (bytes, rest) = std::mem::take(&mut answer).split_at_mut(len);
                answer = rest;
                memory.read(at as usize, bytes)
            };
            debug_assert!(done.is_ok(), "the range was checked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: u64, operations: &[(u64, u32, u32)], written: &[u8]) -> Vec<u8> {
        let mut bytes = key.to_le_bytes().to_vec();
        bytes.extend((operations.len() as u32).to_le_bytes());
        for (at, len, kind) in operations {
            bytes.extend(at.to_le_bytes());
            bytes.extend(len.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
        }
        bytes.extend(written);
        bytes
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_changes_nothing() {
        let ranges = Ranges::new();
        let memory = SharedMemory::private(64).unwrap();
        let key = ranges.offer(memory.clone());
        let refused = |bytes: &[u8]| ranges.check(bytes).err();
        let good = request(key, &[(0, 4, 1), (60, 4, 0), (64, 0, 0)], &[1, 2, 3, 4]);
        assert_eq!(refused(&good), None);
        for len in 0..good.len() {
            assert_eq!(refused(&good[..len]), Some(Refusal::Malformed), "{len}");
        }
        assert_eq!(refused(&[&good[..], &[0]].concat()), Some(Refusal::Malformed));
        assert_eq!(refused(&request(key, &[(0, 4, 2)], &[])), Some(Refusal::Malformed));
        assert_eq!(refused(&request(key, &[(0, u32::MAX, 0), (0, u32::MAX, 0)], &[])), Some(Refusal::Malformed));
        assert_eq!(refused(&request(key + 1, &[], &[])), Some(Refusal::NoRange));
        for (at, len) in [(61, 4), (65, 0), (u64::MAX, 1), (u64::MAX - 3, 8)] {
            assert_eq!(
                refused(&request(key, &[(0, 1, 0), (at, len, 0)], &[])),
                Some(Refusal::OutOfRange),
                "{at} {len}"
            );
        }
        assert!(ranges.withdraw(key).is_some() && ranges.withdraw(key).is_none());
        assert_eq!(refused(&good), Some(Refusal::NoRange));
        assert_ne!(ranges.offer(memory), key, "keys are not given again");
    }

    #[test]
    fn reads_and_writes_of_a_call_are_done() {
        let ranges = Ranges::new();
        let memory = SharedMemory::private(64).unwrap();
        let key = ranges.offer(memory.clone());
        memory.write(8, &[7; 8]).unwrap();
        let bytes = request(key, &[(1, 2, 1), (8, 3, 0), (20, 1, 1), (15, 1, 0)], &[1, 2, 3]);
        let (memory, parsed) = ranges.check(&bytes).unwrap();
        let mut answer = [9; 8];
        assert_eq!(parsed.read_len, 4);
        parsed.perform(&memory, &mut answer);
        assert_eq!(answer, [0, 0, 0, 0, 7, 7, 7, 7]);
        let mut found = [0; 4];
        memory.read(0, &mut found).unwrap();
        assert_eq!(found, [0, 1, 2, 0]);
        memory.read(19, &mut found).unwrap();
        assert_eq!(found, [0, 3, 0, 0]);
    }
}
