//! Objects, and the regions in which they may lie.

use super::choice::ACCESSES_MAX;
use crate::verbs::RemoteMemory;

/// Finds in the bytes of one access where the next one goes: the application's knowledge of its data.
///
/// Reader and server each have one with the same meaning, so both ways lead to the same object. Any closure with these
/// arguments is one.
pub trait PointerChase {
    /// The place that the access after number `access` (from 0) goes to, found in that access's `bytes`. It lies in one
    /// of the server's regions and has at least as many bytes as the next access takes. `None` when the bytes lead
    /// nowhere, or are torn; the get then ends with [`super::GetError::NoNext`].
    ///
    /// The bytes can have any value, since others may be writing them.
    fn next(&self, access: u32, bytes: &[u8]) -> Option<RemoteMemory>;
}

impl<F: Fn(u32, &[u8]) -> Option<RemoteMemory>> PointerChase for F {
    fn next(&self, access: u32, bytes: &[u8]) -> Option<RemoteMemory> {
        self(access, bytes)
    }
}

/// An object to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Place of the first access.
    pub start: RemoteMemory,
    /// Number of accesses, of which each except the last says where the next one goes. 1 is the object itself; at most
    /// [`ACCESSES_MAX`].
    pub accesses: u32,
    /// Length in bytes of each access except the last. (apnet19 4.1 has 8.)
    pub hop_len: u32,
    /// Length in bytes of the object, which is the last access.
    pub len: u32,
}

/// The most that reader and server accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectLimits {
    /// Accesses of a get; no more than [`ACCESSES_MAX`].
    pub accesses_max: u32,
    /// Length in bytes of an object, and of an access on the way to it.
    pub len_max: u32,
}

/// Reason why an object cannot be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// There are no accesses, or too many.
    #[error("a get has 1 to {limit} accesses, and this one has {accesses}")]
    Accesses {
        /// Accesses asked for.
        accesses: u32,
        /// The most that are allowed.
        limit: u32,
    },
    /// An access is too long, or empty.
    #[error("an access has 1 to {limit} bytes, and this one has {len}")]
    Len {
        /// Length asked for, in bytes.
        len: u32,
        /// The most that is allowed, in bytes.
        limit: u32,
    },
}

impl Object {
    /// Length in bytes of access number `access`.
    #[inline]
    pub fn access_len(&self, access: u32) -> u32 {
        if access + 1 < self.accesses { self.hop_len } else { self.len }
    }

    /// Checks that the object is within limits.
    ///
    /// # Errors
    ///
    /// [`ObjectError`].
    pub fn check(&self, limits: &ObjectLimits) -> Result<(), ObjectError> {
        let limit = limits.accesses_max.min(ACCESSES_MAX);
        if !(1..=limit).contains(&self.accesses) {
            return Err(ObjectError::Accesses { accesses: self.accesses, limit });
        }
        let hop_len = if self.accesses > 1 { self.hop_len } else { self.len };
        for len in [hop_len, self.len] {
            if !(1..=limits.len_max).contains(&len) {
                return Err(ObjectError::Len { len, limit: limits.len_max });
            }
        }
        Ok(())
    }
}

/// Index of the region that holds the first `len` bytes of `place`, and their offset in it; `None` when no region has
/// all of them.
pub(super) fn locate(
    mut regions: impl Iterator<Item = RemoteMemory>,
    place: &RemoteMemory,
    len: u32,
) -> Option<(usize, u64)> {
    let len = u64::from(len);
    if len > place.len {
        return None;
    }
    let offset = |region: &RemoteMemory| {
        let offset = place.address.checked_sub(region.address)?;
        (region.rkey == place.rkey && offset.checked_add(len)? <= region.len).then_some(offset)
    };
    let mut found = 0;
    let index = regions.position(|region| {
        offset(&region).is_some_and(|at| {
            found = at;
            true
        })
    })?;
    Some((index, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: RemoteMemory = RemoteMemory { address: 4096, rkey: 7, len: 100 };

    #[test]
    fn both_sides_of_every_limit() {
        let limits = ObjectLimits { accesses_max: 4, len_max: 64 };
        let object = |accesses, hop_len, len| Object { start: REGION, accesses, hop_len, len }.check(&limits);
        assert!([(1, 0, 64), (4, 8, 1), (4, 64, 64)].into_iter().all(|(a, b, c)| object(a, b, c).is_ok()));
        for accesses in [0, 5, u32::MAX] {
            assert_eq!(object(accesses, 8, 8), Err(ObjectError::Accesses { accesses, limit: 4 }));
        }
        for (hop_len, len, bad) in [(8, 0, 0), (8, 65, 65), (0, 8, 0), (65, 8, 65)] {
            assert_eq!(object(2, hop_len, len), Err(ObjectError::Len { len: bad, limit: 64 }));
        }
    }

    #[test]
    fn only_what_lies_in_a_region_is_found() {
        let other = RemoteMemory { address: 0, rkey: 8, len: u64::MAX };
        let find = |place: RemoteMemory, len| locate([other, REGION].into_iter(), &place, len);
        let at = |address, len| RemoteMemory { address, rkey: 7, len };
        assert_eq!(find(at(4096, 100), 100), Some((1, 0)));
        assert_eq!(find(at(4195, 9), 1), Some((1, 99)));
        assert_eq!(find(at(4195, 9), 2), None);
        assert_eq!(find(at(4095, 100), 1), None);
        assert_eq!(find(at(4096, 3), 4), None, "more than its place says");
        assert_eq!(find(at(u64::MAX, 100), 8), None);
        assert_eq!(find(RemoteMemory { rkey: 9, ..REGION }, 1), None);
        assert_eq!(find(RemoteMemory { address: u64::MAX, rkey: 8, len: 9 }, 9), None, "it would wrap");
    }
}
