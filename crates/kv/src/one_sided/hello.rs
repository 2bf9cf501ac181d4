//! What an owner and a client tell each other.

use sinew_fabric::verbs::{QpAddress, RemoteMemory};

/// What a client tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// For PUTs and DELETEs.
    pub calls: sinew_herd::Hello,
    /// Its RC queue pair for READs.
    pub reads: QpAddress,
}

/// What an owner tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// For PUTs and DELETEs.
    pub calls: sinew_herd::Welcome,
    /// The owner's RC queue pair for this client.
    pub reads: QpAddress,
    /// The table's memory.
    pub memory: RemoteMemory,
    /// The table, as [`sinew_store::remote::Index::describe`] has it.
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
    /// To be told to the owner.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, &self.calls.to_bytes());
        put(&mut bytes, &self.reads.to_bytes());
        bytes
    }

    /// What a client told; `None` when it makes no sense.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let calls = sinew_herd::Hello::from_bytes(take(&mut bytes)?).ok()?;
        let reads = QpAddress::from_bytes(take(&mut bytes)?)?;
        bytes.is_empty().then_some(Self { calls, reads })
    }
}

impl Welcome {
    /// To be told to the client.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, &self.calls.to_bytes());
        put(&mut bytes, &self.reads.to_bytes());
        put(&mut bytes, &self.memory.to_bytes());
        put(&mut bytes, &self.table);
        bytes
    }

    /// What an owner told; `None` when it makes no sense.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let calls = sinew_herd::Welcome::from_bytes(take(&mut bytes)?).ok()?;
        let reads = QpAddress::from_bytes(take(&mut bytes)?)?;
        let memory = RemoteMemory::from_bytes(take(&mut bytes)?.try_into().ok()?);
        let table = take(&mut bytes)?.to_vec();
        bytes.is_empty().then_some(Self { calls, reads, memory, table })
    }
}
