//! Contents of the swarm's calls, in which a change of any byte shows.

use sinew_rpc::RequestType;

/// Types that are answered in their handlers: by a dispatch handler, and by a burst handler.
pub const WORK: RequestType = RequestType::new(1);
pub const BURST: RequestType = RequestType::new(2);
/// Types that are answered later by the member's program: kept by handlers one by one, kept in bursts, and polled.
pub const DEFERRED: RequestType = RequestType::new(3);
pub const DEFERRED_BURST: RequestType = RequestType::new(4);
pub const POLLED: RequestType = RequestType::new(5);
/// Type that is answered by a worker.
pub const WORKER: RequestType = RequestType::new(6);

/// Bytes at the head of a request: the call's number and the length of its answer.
pub const HEAD_LEN: usize = 12;

/// Byte at one place of a call's answer or request.
pub fn content(call: u64, at: usize) -> u8 {
    (call as u8).wrapping_mul(31).wrapping_add(at as u8).wrapping_add((at >> 8) as u8)
}

/// Whether the bytes from a place on are those of a call.
pub fn is_content(call: u64, bytes: &[u8], from: usize) -> bool {
    bytes.iter().enumerate().skip(from).all(|(at, byte)| *byte == content(call, at))
}

pub fn write_request(request: &mut [u8], call: u64, answer_len: u32) {
    for (at, byte) in request.iter_mut().enumerate() {
        *byte = content(call, at);
    }
    request[..8].copy_from_slice(&call.to_le_bytes());
    request[8..HEAD_LEN].copy_from_slice(&answer_len.to_le_bytes());
}

/// Content of a request.
#[derive(Clone, Copy, Debug)]
pub struct ParsedRequest {
    pub call: u64,
    pub answer_len: usize,
    /// Whether the request arrived as it was written.
    pub is_intact: bool,
}

impl ParsedRequest {
    pub fn read(request: &[u8]) -> Self {
        let number = |range: std::ops::Range<usize>| {
            let bytes = request.get(range).unwrap_or_default();
            bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let (call, answer_len) = (number(0..8), number(8..HEAD_LEN) as usize);
        let is_intact = request.len() >= HEAD_LEN && is_content(call, request, HEAD_LEN);
        Self { call, answer_len, is_intact }
    }

    pub fn answer(&self) -> Vec<u8> {
        (0..self.answer_len).map(|at| content(self.call, at)).collect()
    }
}
