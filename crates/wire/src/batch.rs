//! Several packets in one datagram.
//!
//! A datagram is either one plain packet or a *batch*: the byte [`BATCH_MAGIC`], the byte [`BATCH_VERSION`], and then
//! frames, each a 16-bit little-endian length and that many bytes, up to the end of the datagram. The first byte tells
//! the two apart, so a port that never batches and one that does understand each other: packets of the RPC layer begin
//! with another byte, and any other packet that happens to begin with [`BATCH_MAGIC`] is sent as a batch of one.
//!
//! No frame is empty (thousands of empty frames would cost their receiver far more than their sender); an empty packet
//! travels as an empty datagram.

/// First byte of a datagram that holds frames. The wire protocol's packets begin with 0xE2.
pub const BATCH_MAGIC: u8 = 0xB7;
/// Second byte of a datagram that holds frames.
pub const BATCH_VERSION: u8 = 1;
/// Bytes before the first frame.
pub const BATCH_HEADER: usize = 2;
/// Bytes before each frame's contents.
pub const FRAME_HEADER: usize = 2;

/// Error of a datagram that begins as a batch but is not one: for example, its lengths do not add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the datagram is not a sequence of frames")
    }
}

impl std::error::Error for Malformed {}

/// Whether a datagram or packet begins like a batch.
#[inline]
pub fn is_batch(datagram: &[u8]) -> bool {
    datagram.first() == Some(&BATCH_MAGIC)
}

/// Checks a whole batch before any of it is used; returns the offset of its first frame.
///
/// # Errors
///
/// [`Malformed`] when the version is unknown, a frame is empty or longer than `frame_len_max`, or the frames do not end
/// exactly where the datagram ends. A batch has at least one frame.
#[inline]
pub fn check_batch(datagram: &[u8], frame_len_max: usize) -> Result<usize, Malformed> {
    if datagram.len() <= BATCH_HEADER || datagram[0] != BATCH_MAGIC || datagram[1] != BATCH_VERSION {
        return Err(Malformed);
    }
    let mut at = BATCH_HEADER;
    while at < datagram.len() {
        let (start, end) = frame_at(datagram, at).ok_or(Malformed)?;
        if start == end || end - start > frame_len_max {
            return Err(Malformed);
        }
        at = end;
    }
    Ok(BATCH_HEADER)
}

/// Start and end of the contents of the frame at `at`; `None` when they do not lie in the datagram.
#[inline]
pub fn frame_at(datagram: &[u8], at: usize) -> Option<(usize, usize)> {
    let header = datagram.get(at..)?.first_chunk::<FRAME_HEADER>()?;
    let start = at + FRAME_HEADER;
    let end = start + usize::from(u16::from_le_bytes(*header));
    (end <= datagram.len()).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batch(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![BATCH_MAGIC, BATCH_VERSION];
        for frame in frames {
            bytes.extend((frame.len() as u16).to_le_bytes());
            bytes.extend(frame);
        }
        bytes
    }

    fn frames_of(datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut at = check_batch(datagram, usize::MAX).unwrap();
        let mut frames = Vec::new();
        while let Some((start, end)) = frame_at(datagram, at) {
            frames.push(datagram[start..end].to_vec());
            at = end;
        }
        frames
    }

    #[test]
    fn lengths_that_do_not_add_up_are_malformed() {
        let good = batch(&[vec![1; 3], vec![2; 300]]);
        assert!(check_batch(&good, 300).is_ok());
        assert_eq!(check_batch(&good, 299), Err(Malformed), "a frame over the limit");
        for cut in 1..good.len() {
            // Cut exactly between the frames, it is a batch of one.
            let whole = cut == BATCH_HEADER + FRAME_HEADER + 3;
            assert_eq!(check_batch(&good[..cut], 300).is_ok(), whole, "cut at {cut}");
        }
        assert!(check_batch(&[], 300).is_err() && check_batch(&[BATCH_MAGIC, BATCH_VERSION], 300).is_err());
        assert!(check_batch(&[BATCH_MAGIC, BATCH_VERSION + 1, 1, 0, 7], 300).is_err(), "a version from the future");
        assert!(check_batch(&[BATCH_MAGIC, BATCH_VERSION, 0, 0], 300).is_err(), "an empty frame");
        assert!(check_batch(&[BATCH_MAGIC, BATCH_VERSION, 0xFF, 0xFF, 1], 300).is_err(), "a length past the end");
    }

    proptest! {
        #[test]
        fn frames_come_back_as_they_went(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 1..40)) {
            prop_assert_eq!(frames_of(&batch(&frames)), frames);
        }

        #[test]
        fn any_bytes_are_either_refused_or_cover_the_datagram(mut bytes in prop::collection::vec(any::<u8>(), 0..300), small in any::<bool>()) {
            if bytes.len() > 4 {
                bytes[0] = BATCH_MAGIC;
                bytes[1] = BATCH_VERSION;
                if small {
                    // Short lengths make acceptance likely enough to be tested.
                    bytes.iter_mut().skip(2).for_each(|byte| *byte %= 3);
                }
            }
            if check_batch(&bytes, 1000).is_ok() {
                let frames = frames_of(&bytes);
                prop_assert!(frames.iter().all(|frame| !frame.is_empty()));
                prop_assert_eq!(batch(&frames), bytes);
            }
        }
    }
}
