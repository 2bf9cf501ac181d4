//! Greetings that a reader and a server exchange before the first get, over whatever connects them already.

use super::object::ObjectLimits;
use crate::verbs::{QpAddress, RemoteMemory};

/// The most gets that any reader may have in flight.
pub const WINDOW_MAX: usize = 1 << 12;
/// The most regions of a server.
pub const REGIONS_MAX: usize = 64;

/// Greeting of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Address of its RC queue pair.
    pub address: QpAddress,
    /// Gets that it wants to have in flight.
    pub window: usize,
}

/// Greeting of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Address of its RC queue pair for this reader.
    pub address: QpAddress,
    /// Gets that the reader may have in flight.
    pub window: usize,
    /// The most that a get may ask for.
    pub limits: ObjectLimits,
    /// The regions in which objects lie.
    pub regions: Vec<RemoteMemory>,
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (part, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*part)
}

fn take_word(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(u32::from_le_bytes)
}

impl Hello {
    /// The greeting as bytes, for the server.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = (self.window as u32).to_le_bytes().to_vec();
        bytes.extend(self.address.to_bytes());
        bytes
    }

    /// Reads a reader's greeting; `None` when it is malformed.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let window = take_word(&mut bytes)? as usize;
        let address = QpAddress::from_bytes(bytes)?;
        (1..=WINDOW_MAX).contains(&window).then_some(Self { address, window })
    }
}

impl Welcome {
    /// The greeting as bytes, for the reader.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let ObjectLimits { accesses_max, len_max } = self.limits;
        for word in [self.window as u32, accesses_max, len_max, self.regions.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        self.regions.iter().for_each(|region| bytes.extend(region.to_bytes()));
        bytes.extend(self.address.to_bytes());
        bytes
    }

    /// Reads a server's greeting; `None` when it is malformed.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let window = take_word(&mut bytes)? as usize;
        let limits = ObjectLimits { accesses_max: take_word(&mut bytes)?, len_max: take_word(&mut bytes)? };
        let count = take_word(&mut bytes)? as usize;
        if count > REGIONS_MAX || !(1..=WINDOW_MAX).contains(&window) {
            return None;
        }
        let region = |_| take(&mut bytes).map(|part| RemoteMemory::from_bytes(&part));
        let regions = (0..count).map(region).collect::<Option<_>>()?;
        Some(Self { address: QpAddress::from_bytes(bytes)?, window, limits, regions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{QpNumber, Transport};
    use arrayvec::ArrayVec;

    #[test]
    fn greetings_survive_the_way_and_bad_ones_do_not() {
        let address = QpAddress {
            number: QpNumber(5),
            transport: Transport::Rc,
            first_packet: 7,
            qkey: 8,
            mtu: 4096,
            port: ArrayVec::new(),
        };
        let hello = Hello { address: address.clone(), window: 16 };
        assert_eq!(Hello::from_bytes(&hello.to_bytes()), Some(hello.clone()));
        for window in [0, WINDOW_MAX + 1] {
            assert_eq!(Hello::from_bytes(&Hello { window, ..hello.clone() }.to_bytes()), None);
        }
        let region = RemoteMemory { address: 1, rkey: 2, len: 3 };
        let limits = ObjectLimits { accesses_max: 8, len_max: 4096 };
        let welcome = Welcome { address, window: 16, limits, regions: vec![region; REGIONS_MAX] };
        let bytes = welcome.to_bytes();
        assert_eq!(Welcome::from_bytes(&bytes), Some(welcome.clone()));
        for len in 0..bytes.len() {
            assert_eq!(Welcome::from_bytes(&bytes[..len]), None, "{len}");
        }
        let welcome = Welcome { regions: vec![region; REGIONS_MAX + 1], ..welcome };
        assert_eq!(Welcome::from_bytes(&welcome.to_bytes()), None);
    }
}
