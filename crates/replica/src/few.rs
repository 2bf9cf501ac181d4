//! Lists that have one element most of the time, which then takes no memory of its own.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

/// See the module.
pub type Few<T> = SmallVec<[T; 1]>;

/// As a sequence.
pub fn serialize<T: Serialize, S: Serializer>(few: &Few<T>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(few)
}

/// From a sequence. Room is made for elements that are there, not for as many as the bytes claim.
pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Few<T>, D::Error> {
    struct Elements<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
        type Value = Few<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a sequence")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Few<T>, A::Error> {
            let mut few = Few::new();
            while let Some(element) = elements.next_element()? {
                few.push(element);
            }
            Ok(few)
        }
    }

    deserializer.deserialize_seq(Elements(PhantomData))
}
