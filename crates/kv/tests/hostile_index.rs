//! Hostile clients of an ordered index, and a hostile index.

#[path = "hostile/index.rs"]
mod hostile;

use proptest::prelude::*;
use sinew_kv::ordered::protocol::{Response, Sum};

/// An answer, after its length. It resembles one to a scan or a sum.
fn answer() -> impl Strategy<Value = Vec<u8>> {
    let key = || prop::collection::vec(b'a'..b'e', 0..3);
    let entry = (key(), prop::collection::vec(any::<u8>(), 0..9));
    let entries = (any::<bool>(), prop::collection::vec(entry, 0..4)).prop_map(|(more, entries)| {
        let mut bytes = vec![4, u8::from(more)];
        bytes.extend((entries.len() as u32).to_le_bytes());
        for (key, value) in entries {
            bytes.extend((key.len() as u16).to_le_bytes());
            bytes.extend((value.len() as u32).to_le_bytes());
            bytes.extend(key);
            bytes.extend(value);
        }
        bytes
    });
    let sum =
        (any::<u128>(), 0..4u32, 0..4u32, key(), any::<bool>()).prop_map(|(sum, added, passed_over, last, more)| {
            let mut bytes = Vec::new();
            Response::Sum(Sum { sum, added, passed_over, last: &last, more }).write(&mut bytes);
            bytes
        });
    let other = prop::collection::vec(any::<u8>(), 0..20);
    prop_oneof![4 => entries, 2 => sum, 1 => other].prop_map(|mut bytes| {
        bytes.insert(0, bytes.len() as u8);
        bytes
    })
}

proptest! {
    #[test]
    fn an_index_answers_as_a_map_does_whatever_it_is_sent(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        hostile::index(&[&[0], &bytes[..]].concat());
    }

    #[test]
    fn a_client_takes_nothing_out_of_order_and_goes_on_whatever_it_is_answered(
        question in 0..7u8,
        answers in prop::collection::vec(answer(), 0..8),
    ) {
        hostile::index(&[&[2 * question + 1], &answers.concat()[..]].concat());
    }

    #[test]
    fn any_bytes_are_a_message_or_malformed(
        kind in prop_oneof![0..9u8, 127..135u8],
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..4u8], 0..80),
    ) {
        hostile::messages(&bytes);
        hostile::messages(&[&[kind], &bytes[..]].concat());
    }
}
