//! Hostile peers and clients of a member.

mod hostile;

use proptest::prelude::*;

proptest! {
    #[test]
    fn a_member_keeps_what_was_put_whatever_it_hears(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..16u8], 0..400),
    ) {
        hostile::member(&bytes);
    }

    #[test]
    fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..8u8], 0..100)) {
        hostile::messages(&bytes);
    }
}
