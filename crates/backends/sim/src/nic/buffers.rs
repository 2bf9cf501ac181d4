//! Bytes into buffers that a message, or a result, is scattered over.

use sinew_fabric::verbs::Scatter;

/// Writes bytes to buffers, from `offset` on in all of them.
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
        buffer.resize(has).expect("it is shorter");
        len -= has;
    }
}
