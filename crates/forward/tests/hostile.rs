//! Property tests: no input stops a forwarder.

#[allow(dead_code, reason = "this test's part of it")]
mod common;
#[path = "hostile/mod.rs"]
mod made;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_frames_stop_a_forwarder(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        made::forwarders(&bytes);
    }
}

#[test]
fn every_template_is_taken_as_it_is() {
    let bytes: Vec<u8> = std::iter::once(31).chain((0..18).flat_map(|which| [which, 0])).collect();
    made::forwarders(&bytes);
}
