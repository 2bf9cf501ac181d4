//! Readers of bytes given bytes that anybody may have sent.

mod hostile;

use proptest::prelude::*;
use sinew_wire::{HEADER_LEN, MAGIC, VERSION};

/// Fewer cases under miri, which is slow, and whose kind of fault does not take many cases to find.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: if cfg!(miri) { 16 } else { usual.cases }, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_bytes_are_a_header_or_refused_by_reason(bytes in prop::collection::vec(any::<u8>(), 0..2 * HEADER_LEN)) {
        hostile::header(&bytes);
    }

    #[test]
    fn bytes_that_begin_well_are_a_header_or_refused_by_reason(
        second in prop_oneof![any::<u8>(), (0..32u8).prop_map(|kind| VERSION << 5 | kind)],
        rest in prop::collection::vec(any::<u8>(), 0..2 * HEADER_LEN),
    ) {
        hostile::header(&[&[MAGIC, second], &rest[..]].concat());
    }

    #[test]
    fn any_body_makes_no_sense_or_survives(
        words in prop::collection::vec(prop_oneof![any::<u64>(), 0..64u64], 0..12),
        cut in 0..8usize,
    ) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        hostile::management(&bytes);
        hostile::management(&bytes[..bytes.len().saturating_sub(cut)]);
    }
}
