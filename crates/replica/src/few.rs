//! Lists that usually have one element, which then needs no allocation.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

/// A list that stores one element inline.
pub type InlineList<T> = SmallVec<[T; 1]>;

/// Serialises the list as a sequence.
pub fn serialize<T: Serialize, S: Serializer>(few: &InlineList<T>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(few)
}

/// Deserialises a sequence. Reserves room only for elements that are there, not for as many as the bytes claim.
pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<InlineList<T>, D::Error> {
    struct Elements<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
        type Value = InlineList<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a sequence")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<InlineList<T>, A::Error> {
            let mut few = InlineList::new();
            while let Some(element) = elements.next_element()? {
                few.push(element);
            }
            Ok(few)
        }
    }

    deserializer.deserialize_seq(Elements(PhantomData))
}
