//! The messages by which a client and a server introduce themselves.

use sinew_fabric::verbs::{QpAddress, RemoteMemory};

use crate::layout::Layout;

const VERSION: u8 = 1;

/// Bytes that are not a valid message of this release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these {len} bytes are not a {what} of this release: use the same release on both sides")]
pub struct BadMessage {
    /// Name of the expected message.
    pub what: &'static str,
    /// Number of bytes.
    pub len: usize,
}

/// A client's introduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its UC queue pair, from which it writes requests.
    pub requests: QpAddress,
    /// Its UD queue pair, to which answers go.
    pub answers: QpAddress,
}

/// A server's introduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Index of the client's chunks in the region.
    pub client: u32,
    /// Token that each of the client's requests, and each answer to the client, carries.
    pub token: u32,
    /// The server's UC queue pair for this client.
    pub requests: QpAddress,
    /// The request region.
    pub memory: RemoteMemory,
    /// Layout of the region.
    pub layout: Layout,
}

/// Reads the parts of a message from its front.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(part)
    }

    fn word(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn address(&mut self) -> Option<QpAddress> {
        let len = self.word()? as usize;
        QpAddress::from_bytes(self.take(len)?)
    }

    fn version(&mut self) -> Option<()> {
        (self.take(1)? == [VERSION]).then_some(())
    }

    fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

fn put_address(bytes: &mut Vec<u8>, address: &QpAddress) {
    let address = address.to_bytes();
    bytes.extend((address.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&address);
}

impl Hello {
    /// Encodes it, to be sent to the server.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        put_address(&mut bytes, &self.requests);
        put_address(&mut bytes, &self.answers);
        bytes
    }

    /// Decodes a client's introduction.
    ///
    /// # Errors
    ///
    /// [`BadMessage`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadMessage> {
        let read = || {
            let mut parts = Parts(bytes);
            parts.version()?;
            let hello = Self { requests: parts.address()?, answers: parts.address()? };
            parts.end(hello)
        };
        read().ok_or(BadMessage { what: "greeting", len: bytes.len() })
    }
}

impl Welcome {
    /// Encodes it, to be sent to the client.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        let Layout { workers, clients, window, request_len_max, response_len_max } = self.layout;
        let sizes = [workers, clients, window, request_len_max, response_len_max].map(|size| size as u32);
        for word in [self.client, self.token].into_iter().chain(sizes) {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.memory.to_bytes());
        put_address(&mut bytes, &self.requests);
        bytes
    }

    /// Decodes a server's introduction, and checks it, since the client writes to the memory that it names.
    ///
    /// # Errors
    ///
    /// [`BadMessage`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadMessage> {
        let read = || {
            let mut parts = Parts(bytes);
            parts.version()?;
            let (client, token) = (parts.word()?, parts.word()?);
            let mut size = || parts.word().map(|size| size as usize);
            let layout = Layout {
                workers: size()?,
                clients: size()?,
                window: size()?,
                request_len_max: size()?,
                response_len_max: size()?,
            };
            let memory = RemoteMemory::from_bytes(parts.take(RemoteMemory::BYTES)?.try_into().ok()?);
            let welcome = Self { client, token, requests: parts.address()?, memory, layout };
            let welcome = parts.end(welcome)?;
            let fits = layout.check().is_ok()
                && (client as usize) < layout.clients
                && memory.len >= layout.region_len() as u64
                && memory.address.checked_add(memory.len).is_some();
            fits.then_some(welcome)
        };
        read().ok_or(BadMessage { what: "welcome", len: bytes.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sinew_fabric::verbs::{QpNumber, Transport};

    fn address(number: u32, transport: Transport) -> QpAddress {
        QpAddress {
            number: QpNumber(number),
            transport,
            first_packet: 1,
            qkey: 2,
            mtu: 3,
            port: [7, 8].into_iter().collect(),
        }
    }

    fn welcome() -> Welcome {
        Welcome {
            client: 2,
            token: 9,
            requests: address(4, Transport::Uc),
            memory: RemoteMemory { address: 64, rkey: 2, len: 1 << 20 },
            layout: Layout { workers: 1, clients: 3, window: 4, request_len_max: 48, response_len_max: 32 },
        }
    }

    #[test]
    fn greetings_survive_the_way_and_no_part_of_them_passes() {
        let hello = Hello { requests: address(1, Transport::Uc), answers: address(2, Transport::Ud) };
        let bytes = hello.to_bytes();
        assert_eq!(Hello::from_bytes(&bytes), Ok(hello));
        assert!((0..bytes.len()).all(|len| Hello::from_bytes(&bytes[..len]).is_err()));
        assert!(Hello::from_bytes(&[bytes, vec![0]].concat()).is_err());
        let bytes = welcome().to_bytes();
        assert_eq!(Welcome::from_bytes(&bytes), Ok(welcome()));
        assert!((0..bytes.len()).all(|len| Welcome::from_bytes(&bytes[..len]).is_err()));
    }

    #[test]
    fn a_welcome_that_leads_outside_the_memory_is_refused() {
        let memory = welcome().memory;
        let bad = [
            Welcome { client: 3, ..welcome() },
            Welcome { memory: RemoteMemory { len: 12 * 64 - 1, ..memory }, ..welcome() },
            Welcome { memory: RemoteMemory { address: u64::MAX, ..memory }, ..welcome() },
            Welcome { layout: Layout { window: 3, ..welcome().layout }, ..welcome() },
        ];
        for welcome in bad {
            assert!(Welcome::from_bytes(&welcome.to_bytes()).is_err(), "{welcome:?}");
        }
    }
}
