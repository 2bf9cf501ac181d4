//! The device's part of a queue pair's address.

use arrayvec::ArrayVec;
use sinew_fabric::verbs::{QpAddress, VerbsError};

/// The longest name of a device, in bytes: with the suffixes of its ports it still fits in [`crate::NAME_LEN_MAX`].
pub(crate) const DEVICE_NAME_MAX: usize = crate::NAME_LEN_MAX - SUFFIX_MAX;
/// Bytes of `.v` and a number.
const SUFFIX_MAX: usize = ".v".len() + "4294967295".len();

const VERSION: u8 = 2;
const FIXED: usize = 1 + 8 + 3 * 4;
const _: () = assert!(FIXED + DEVICE_NAME_MAX <= QpAddress::PORT_MAX);

/// Location of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// Random number of the device, drawn when it was opened: a later device of the same name has another.
    pub incarnation: u64,
    /// Its protection domain.
    pub domain: u32,
    /// Key that packets to it must carry. It changes when the queue pair is reset, so that packets of an earlier
    /// connection do not count.
    pub key: u32,
    /// Number of the device's port through which it receives.
    pub port: u32,
    /// The device's name.
    pub device: String,
}

impl Home {
    pub fn to_bytes(&self) -> ArrayVec<u8, { QpAddress::PORT_MAX }> {
        let mut bytes = ArrayVec::new();
        bytes.push(VERSION);
        bytes.extend(self.incarnation.to_le_bytes());
        for word in [self.domain, self.key, self.port] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.device.bytes().take(DEVICE_NAME_MAX));
        bytes
    }

    /// Reads the bytes that a peer gave.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, VerbsError> {
        Self::parse(bytes).ok_or_else(|| {
            VerbsError::Address(
                "it is not the address of a queue pair over shared memory, or comes from another version".to_owned(),
            )
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (fixed, name) = bytes.split_first_chunk::<FIXED>()?;
        let word = |offset: usize| Some(u32::from_le_bytes(*fixed.get(offset..)?.first_chunk()?));
        let device = std::str::from_utf8(name).ok()?.to_owned();
        (fixed[0] == VERSION && device.len() <= DEVICE_NAME_MAX).then_some(Self {
            incarnation: u64::from_le_bytes(*fixed.get(1..)?.first_chunk()?),
            domain: word(9)?,
            key: word(13)?,
            port: word(17)?,
            device,
        })
    }
}

/// The name under which a device gives its memory to other processes.
pub(crate) fn memory_name(device: &str) -> String {
    format!("{device}.v")
}

/// The name of one of the device's ports.
pub(crate) fn port_name(device: &str, port: u32) -> String {
    format!("{device}.v{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_survive_the_way_and_other_bytes_are_none() {
        let home =
            Home { incarnation: u64::MAX - 1, domain: 2, key: 3, port: u32::MAX, device: "x".repeat(DEVICE_NAME_MAX) };
        let bytes = home.to_bytes();
        assert_eq!(Home::from_bytes(&bytes).unwrap(), home);
        assert!(port_name(&home.device, home.port).len() <= crate::NAME_LEN_MAX);
        for len in 0..FIXED {
            assert!(Home::from_bytes(&bytes[..len]).is_err());
        }
        let mut bad = bytes.clone();
        bad[FIXED] = 0xFF;
        assert!(Home::from_bytes(&bad).is_err());
        bad[FIXED] = b'x';
        bad[0] = VERSION + 1;
        assert!(Home::from_bytes(&bad).is_err());
        assert!(Home::from_bytes(&[bytes.as_slice(), b"y"].concat()).is_err());
    }
}
