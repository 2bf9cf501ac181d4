//! How members and clients send a call.

use sinew_rpc::{CallOptions, Endpoint, RequestType, SessionId};

/// Enqueues a call of these bytes, whose answer has room for `answer_len` bytes before it needs a buffer of its own.
/// Returns whether it was enqueued; the reasons why not (no buffer, no session, too much in flight) pass with time.
pub(crate) fn enqueue(
    rpc: &mut impl Endpoint,
    session: SessionId,
    request_type: RequestType,
    bytes: &[u8],
    answer_len: usize,
    options: CallOptions,
) -> bool {
    let (Ok(mut request), Ok(response)) = (rpc.alloc(bytes.len()), rpc.alloc(answer_len)) else { return false };
    request.fill(bytes).is_ok() && rpc.enqueue_request(session, request_type, request, response, options).is_ok()
}
