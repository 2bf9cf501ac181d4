//! Endpoints that receive arbitrary bytes.

mod common;
mod hostile;

use proptest::prelude::*;

/// Miri is slow, and finds what it looks for in few cases.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: if cfg!(miri) { 2 } else { usual.cases }, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_a_client_says_others_are_served(steps in prop::collection::vec(any::<u8>(), 0..2000)) {
        hostile::endpoint(&[&[0], &steps[..]].concat());
    }

    #[test]
    fn whatever_a_client_that_is_called_back_says_each_call_completes_once_and_others_are_served(
        steps in prop::collection::vec(any::<u8>(), 0..2000)
    ) {
        hostile::endpoint(&[&[2], &steps[..]].concat());
    }

    #[test]
    fn whatever_a_server_that_may_call_back_says_each_call_completes_once(
        steps in prop::collection::vec(any::<u8>(), 0..2000)
    ) {
        hostile::endpoint(&[&[3], &steps[..]].concat());
    }

    #[test]
    fn whatever_a_server_says_each_call_completes_once(steps in prop::collection::vec(any::<u8>(), 0..2000)) {
        hostile::endpoint(&[&[1], &steps[..]].concat());
    }
}
