//! Property tests of a server against hostile and mistaken clients.

mod common;
mod hostile;

use proptest::prelude::*;

/// Bytes that look like options, at least at first.
fn nearly_options() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => (0..12u32, prop::collection::vec(prop_oneof![any::<u8>(), 0..2u8], 0..40)).prop_map(|(kind, data)| {
            [b"IHAVEOPT", &kind.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), &data].concat()
        }),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn whatever_options_a_client_says_others_are_served(first in 0..2u8, bytes in nearly_options()) {
        hostile::client(&[&[first], &bytes[..]].concat());
    }

    #[test]
    fn random_requests_are_answered_as_a_plain_array_has_it(
        first in 2..8u8,
        bytes in prop::collection::vec(any::<u8>(), 0..280),
    ) {
        hostile::client(&[&[first], &bytes[..]].concat());
    }
}
