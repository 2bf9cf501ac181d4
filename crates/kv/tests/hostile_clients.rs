//! Hostile and clumsy clients of the memcached door.

mod hostile;

use proptest::prelude::*;

/// Bytes that resemble commands.
fn nearly_commands() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(vec![
            "get ", "gets ", "gat ", "set ", "cas ", "append ", "incr ", "delete ", "touch ", "mg ", "ms ", "ma ", "md ", "me ", "mn",
            "a ", "key ", "0 ", "1 ", "2 ", "-1 ", "2147483647 ", "4294967297 ", "99999999999999999999 ", "noreply", " ", "\r\n", "\r\n",
            "\r\n", "\n", "\r", "\0", "b ", "v ", "k ", "N0 ", "T-1 ", "MA ", "I ", "q ", "stats", "stats reset", "version", "quit",
            "verbosity 1", "shutdown",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
        1 => (any::<u8>(), 0..3000usize).prop_map(|(byte, len)| vec![byte; len]),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn nothing_that_a_client_says_panics_or_changes_what_it_does_not_name(bytes in nearly_commands()) {
        hostile::memcached(&bytes);
    }

    #[test]
    fn nor_do_bytes_without_sense(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        hostile::memcached(&bytes);
    }
}
