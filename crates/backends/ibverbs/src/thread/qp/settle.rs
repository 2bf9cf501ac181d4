//! Settlement of a queue pair's work by the device's completions.

use sinew_fabric::verbs::{Completion, Destination, Opcode, QpNumber, Scatter, Status};

use super::QpInner;
use crate::abi::*;
use crate::gid;
use crate::work::Posted;
use crate::work_id::WorkId;

fn status_of(number: u32) -> Status {
    match number {
        IBV_WC_SUCCESS => Status::Success,
        IBV_WC_LOC_LEN_ERR => Status::LocalLength,
        IBV_WC_LOC_QP_OP_ERR => Status::LocalQpOperation,
        IBV_WC_LOC_PROT_ERR => Status::LocalProtection,
        IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        IBV_WC_BAD_RESP_ERR => Status::BadResponse,
        IBV_WC_LOC_ACCESS_ERR => Status::LocalAccess,
        IBV_WC_REM_INV_REQ_ERR => Status::RemoteInvalidRequest,
        IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        IBV_WC_REM_OP_ERR => Status::RemoteOperation,
        IBV_WC_RETRY_EXC_ERR => Status::RetryExceeded,
        IBV_WC_RNR_RETRY_EXC_ERR => Status::RnrRetryExceeded,
        other => Status::Other(other),
    }
}

impl QpInner {
    /// Takes in a completion of the device, which covers one operation and the unsignaled ones before it.
    #[inline]
    pub fn handle_completion(&self, id: WorkId, completed: &ibv_wc, sink: &mut impl FnMut(Completion)) {
        let status = status_of(completed.status);
        if id.receive {
            self.complete_receive(id, status, completed, sink);
        } else {
            self.complete_sends(id, status, sink);
        }
        if !status.is_success() {
            self.note_failure(id.receive);
        }
    }

    #[inline]
    fn complete_sends(&self, id: WorkId, status: Status, sink: &mut impl FnMut(Completion)) {
        let sends = &mut self.held.borrow_mut().sends;
        let number = id.number_from(sends.oldest());
        if sends.get_mut(number).is_none() {
            return;
        }
        // A failed request always completes, so earlier ones without a completion succeeded.
        while sends.oldest() <= number
            && let is_last = sends.oldest() == number
            && let Some(sent) = sends.pop()
        {
            let status = if is_last { status } else { Status::Success };
            if let Some(completion) = sent.entry.complete(self.number, status) {
                sink(completion);
            }
        }
    }

    #[inline]
    fn complete_receive(&self, id: WorkId, status: Status, completed: &ibv_wc, sink: &mut impl FnMut(Completion)) {
        let receives = &mut self.held.borrow_mut().receives;
        let number = id.number_from(receives.oldest());
        let Some(posted) = receives.get_mut(number).and_then(Option::take) else { return };
        sink(self.received(number, posted, status, completed));
        // Frees places that are over from the front, and flushes receives there that the device never had.
        while let Some(place) = receives.get_mut(receives.oldest())
            && place.as_ref().is_none_or(|posted| !posted.at_device)
        {
            if let Some(Some(posted)) = receives.pop() {
                sink(self.flushed(posted.id, posted.buffers));
            }
        }
    }

    fn received(&self, number: u64, posted: Posted, status: Status, completed: &ibv_wc) -> Completion {
        let Posted { id, mut buffers, .. } = posted;
        if !status.is_success() {
            return Completion { status, ..self.flushed(id, buffers) };
        }
        let mut len = completed.byte_len as usize;
        let mut from = None;
        if let Some(headers) = &*self.headers {
            len = len.saturating_sub(gid::GRH_LEN);
            let has_header = completed.wc_flags & IBV_WC_GRH != 0;
            let sender = has_header.then(|| gid::sender_of(&headers.read(number))).flatten();
            from = self.destination_of(completed, sender);
        }
        let write = completed.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
        let mut arrived = if write { 0 } else { len };
        for buffer in &mut buffers {
            let part = arrived.min(buffer.len());
            arrived -= part;
            let shortened = buffer.resize(part);
            debug_assert!(shortened.is_ok(), "buffers are only shortened");
        }
        let has_immediate = completed.wc_flags & IBV_WC_WITH_IMM != 0;
        Completion {
            id,
            qp: self.number,
            status,
            opcode: if write { Opcode::ReceiveWrite } else { Opcode::Receive },
            len,
            immediate: has_immediate.then(|| u32::from_be(completed.imm_data)),
            from,
            buffers,
            range: None,
        }
    }

    /// The destination of an answer to a datagram. The datagram does not carry the sender's key, so our own is used,
    /// which the sender knew.
    fn destination_of(&self, completed: &ibv_wc, sender: Option<[u8; 16]>) -> Option<Destination> {
        let target = self.thread.target_of_sender(completed.slid, sender)?;
        let handle = self.thread.routes.borrow_mut().handle_to(target);
        let number = QpNumber(completed.src_qp);
        Some(Destination { handle, number, qkey: self.config.qkey })
    }

    /// The completion of a receive that was never used.
    pub fn flushed(&self, id: u64, buffers: Scatter) -> Completion {
        Completion {
            id,
            qp: self.number,
            status: Status::Flushed,
            opcode: Opcode::Receive,
            len: 0,
            immediate: None,
            from: None,
            buffers,
            range: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_numbers_of_the_header() {
        assert_eq!(status_of(0), Status::Success);
        assert_eq!(status_of(5), Status::Flushed);
        assert_eq!(status_of(13), Status::RnrRetryExceeded);
        assert_eq!(status_of(21), Status::Other(21));
    }
}
