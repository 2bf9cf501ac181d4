//! The messages by which an owner and a client introduce themselves.

use sinew_fabric::verbs::{QpAddress, RemoteMemory};

/// A client's introduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Introduction to the calls for PUTs and DELETEs.
    pub calls: sinew_herd::Hello,
    /// The client's RC queue pair for READs.
    pub reads: QpAddress,
}

/// An owner's introduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Introduction to the calls for PUTs and DELETEs.
    pub calls: sinew_herd::Welcome,
    /// The owner's RC queue pair for this client.
    pub reads: QpAddress,
    /// The table's memory.
    pub memory: RemoteMemory,
    /// Description of the table, by [`sinew_store::remote::Index::describe`].
    pub table: Vec<u8>,
}

fn put(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend((part.len() as u32).to_le_bytes());
    bytes.extend(part);
}

fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *bytes = rest;
    Some(part)
}

impl Hello {
    /// Encodes it, to be sent to the owner.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, &self.calls.to_bytes());
        put(&mut bytes, &self.reads.to_bytes());
        bytes
    }

    /// Decodes it; `None` if it is malformed.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let calls = sinew_herd::Hello::from_bytes(take(&mut bytes)?).ok()?;
        let reads = QpAddress::from_bytes(take(&mut bytes)?)?;
        bytes.is_empty().then_some(Self { calls, reads })
    }
}

impl Welcome {
    /// Encodes it, to be sent to the client.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, &self.calls.to_bytes());
        put(&mut bytes, &self.reads.to_bytes());
        put(&mut bytes, &self.memory.to_bytes());
        put(&mut bytes, &self.table);
        bytes
    }

    /// Decodes it; `None` if it is malformed.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let calls = sinew_herd::Welcome::from_bytes(take(&mut bytes)?).ok()?;
        let reads = QpAddress::from_bytes(take(&mut bytes)?)?;
        let memory = RemoteMemory::from_bytes(take(&mut bytes)?.try_into().ok()?);
        let table = take(&mut bytes)?.to_vec();
        bytes.is_empty().then_some(Self { calls, reads, memory, table })
    }
}
