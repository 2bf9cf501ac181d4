//! Property tests of a donor against hostile callers, and of messages against arbitrary bytes.

mod hostile;

use proptest::prelude::*;

proptest! {
    #[test]
    fn a_donor_keeps_its_accounts_and_its_volumes_apart_whatever_it_hears(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..16u8], 0..600),
    ) {
        hostile::donor(&bytes);
    }

    #[test]
    fn any_bytes_are_a_message_or_none(
        kind in 0..20u8,
        words in prop::collection::vec(prop_oneof![any::<u64>(), 0..8u64], 0..12),
        cut in 0..8usize,
    ) {
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        hostile::messages(&words);
        hostile::messages(&[&[kind], &words[..words.len().saturating_sub(cut)]].concat());
    }
}
