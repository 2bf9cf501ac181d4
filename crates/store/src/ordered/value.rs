//! Values as stored in the tree: short ones lie in the node itself, so that a scan reaches them without another cache
//! miss.

use std::sync::Arc;

/// Longest value that is stored in its node: it makes a [`Value`] three words long, which a long value needs anyway.
const SHORT_MAX: usize = 22;

/// A value. The tree clones values when it splits a node; for a long one that only increments a reference count.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Short { len: u8, bytes: [u8; SHORT_MAX] },
    Long(Arc<[u8]>),
}

impl Value {
    pub fn new(value: &[u8]) -> Self {
        if value.len() > SHORT_MAX {
            return Self::Long(value.into());
        }
        let mut bytes = [0; SHORT_MAX];
        bytes[..value.len()].copy_from_slice(value);
        Self::Short { len: value.len() as u8, bytes }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Self::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_gives_its_bytes_back_on_both_sides_of_the_limit() {
        assert_eq!(size_of::<Value>(), 24);
        for len in [0, 1, 8, SHORT_MAX - 1, SHORT_MAX, SHORT_MAX + 1, 1000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let value = Value::new(&bytes);
            assert_eq!(value.bytes(), bytes);
            assert_eq!(matches!(value, Value::Long(_)), len > SHORT_MAX);
        }
    }
}
