//! Scatters the bytes of a message, or of a result, over buffers.

use sinew_fabric::verbs::Scatter;

/// Writes bytes to buffers, which count as one, from `offset` on.
pub(crate) fn scatter(buffers: &mut Scatter, mut offset: usize, mut bytes: &[u8]) {
    for buffer in buffers {
        if bytes.is_empty() {
            return;
        }
        let from = offset.min(buffer.len());
        let take = (buffer.len() - from).min(bytes.len());
        buffer[from..from + take].copy_from_slice(&bytes[..take]);
        (offset, bytes) = (offset - from, &bytes[take..]);
    }
}

/// Shortens a receive's buffers to the message's bytes.
pub(crate) fn shorten(buffers: &mut Scatter, mut len: usize) {
    for buffer in buffers {
        let has = buffer.len().min(len);
        buffer.resize(has).expect("buffers are only shortened");
        len -= has;
    }
}
