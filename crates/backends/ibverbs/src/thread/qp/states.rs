//! States of a queue pair, at the device and as we see them.

use sinew_fabric::verbs::{QpAddress, QpState, Status, Transport, VerbsError};

use super::QpInner;
use crate::abi::*;
use crate::library::{Library, error_of};
use crate::port::common_mtu;
use crate::routes::ah_attr;
use crate::thread::read_port;

/// Time for which a request waits for its acknowledgement before it is retransmitted: 4.096 us * 2^14 = 67 ms, the
/// usual value.
const TIMEOUT: u8 = 14;
/// Retransmissions before the peer counts as gone. (The maximum, 7, means for ever on soft-RoCE.)
const RETRIES: u8 = 6;
/// Time for which a sender waits after its message found no receive: 0.64 ms.
const RNR_TIMER: u8 = 12;
/// Packet numbers have 24 bits.
pub(super) const PACKET_MASK: u32 = 0xFF_FFFF;

impl QpInner {
    pub fn library(&self) -> &'static Library {
        self.thread.domain.library()
    }

    /// Changes the device's queue pair.
    fn modify_device(&self, mut attributes: ibv_qp_attr, mask: i32) -> Result<(), VerbsError> {
        // SAFETY: our queue pair, and a description of which only the parts in `mask` count.
        let status = unsafe { (self.library().ibv_modify_qp)(self.qp.as_ptr(), &raw mut attributes, mask) };
        if status == 0 {
            return Ok(());
        }
        let name = &self.thread.domain.device.context.name;
        Err(error_of(format!("changing the state of queue pair {} on {name}", self.number), status))
    }

    fn set_device_state(&self, state: u32) -> Result<(), VerbsError> {
        self.modify_device(ibv_qp_attr { qp_state: state, ..empty_attributes() }, IBV_QP_STATE)
    }

    fn to_init(&self) -> Result<(), VerbsError> {
        let device = &self.thread.domain.device;
        let atomics = if device.attributes.atomics { IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
        let mut attributes = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index: 0,
            port_num: device.port.number,
            qkey: self.config.qkey,
            ..empty_attributes()
        };
        // Exposed memory limits what peers may do.
        attributes.qp_access_flags = match self.config.transport {
            Transport::Rc => IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | atomics,
            Transport::Uc => IBV_ACCESS_REMOTE_WRITE,
            Transport::Ud => 0,
        };
        let of_kind = if self.config.transport.is_connected() { IBV_QP_ACCESS_FLAGS } else { IBV_QP_QKEY };
        self.modify_device(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | of_kind)
    }

    fn to_ready_to_receive(&self, remote: Option<&QpAddress>) -> Result<(), VerbsError> {
        let transport = self.config.transport;
        if !transport.is_connected() {
            return self.set_device_state(IBV_QPS_RTR);
        }
        let wrong = |why: String| Err(VerbsError::Address(why));
        let Some(remote) = remote else {
            return wrong(format!("a {transport:?} queue pair needs one to connect"));
        };
        if remote.transport != transport {
            return wrong(format!("it is {:?}, but this queue pair is {transport:?}", remote.transport));
        }
        let port = read_port(remote)?;
        port.check_from(&self.thread.address)?;
        let device = &self.thread.domain.device;
        let Some(mtu) = common_mtu(device.attributes.mtu, remote.mtu) else {
            return wrong(format!("its MTU is {} bytes, but 256 is the smallest", remote.mtu));
        };
        let sgid_index = device.gid.as_ref().map_or(0, |gid| gid.index);
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: mtu,
            dest_qp_num: remote.number.0,
            rq_psn: remote.first_packet & PACKET_MASK,
            ah_attr: ah_attr(self.thread.target(&port), device.port.number, sgid_index),
            max_dest_rd_atomic: device.reads_in,
            min_rnr_timer: RNR_TIMER,
            ..empty_attributes()
        };
        self.reads_out.set(device.reads_out.min(port.reads_in));
        let of_rc = if transport == Transport::Rc { IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER } else { 0 };
        let connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        self.modify_device(attributes, IBV_QP_STATE | connected | of_rc)
    }

    fn to_ready_to_send(&self) -> Result<(), VerbsError> {
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: self.first_packet,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: self.config.rnr_retries,
            max_rd_atomic: self.reads_out.get(),
            ..empty_attributes()
        };
        let of_rc = match self.config.transport {
            Transport::Rc => IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
            _ => 0,
        };
        self.modify_device(attributes, IBV_QP_STATE | IBV_QP_SQ_PSN | of_rc)
    }

    /// Returns the state. Asks the device, which can be in error without having reported it.
    pub fn query_state(&self) -> QpState {
        let state = self.state.get();
        if matches!(state, QpState::ReadyToReceive | QpState::ReadyToSend) && self.is_broken() {
            self.enter_error();
        }
        self.state.get()
    }

    /// Whether the device's queue pair is in one of its error states.
    fn is_broken(&self) -> bool {
        let mut attributes = empty_attributes();
        // SAFETY: zeros are a value of this plain structure.
        let mut init_attributes: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        // SAFETY: our queue pair, and room for the answers.
        let status = unsafe {
            (self.library().ibv_query_qp)(self.qp.as_ptr(), &raw mut attributes, IBV_QP_STATE, &raw mut init_attributes)
        };
        status == 0 && matches!(attributes.qp_state, IBV_QPS_ERR | IBV_QPS_SQE)
    }

    /// Takes note that a request or receive failed. That breaks a connected queue pair; on some devices, a failed
    /// receive of a datagram breaks nothing.
    pub fn note_failure(&self, receive: bool) {
        let is_working = matches!(self.state.get(), QpState::Init | QpState::ReadyToReceive | QpState::ReadyToSend);
        if is_working && (self.config.transport.is_connected() || !receive || self.is_broken()) {
            self.enter_error();
        }
    }

    /// Enters the error state, and brings the device there: after a failure, unreliable transports stop only their
    /// requests by themselves, and some devices ignore receives that are posted later.
    fn enter_error(&self) {
        self.state.set(QpState::Error);
        // A device that refuses even this is broken for good, and keeps what it holds.
        let _ = self.set_device_state(IBV_QPS_ERR);
    }

    /// Moves the queue pair from one state to the next.
    pub fn modify(&self, next: QpState, remote: Option<&QpAddress>) -> Result<(), VerbsError> {
        let from = self.query_state();
        if !from.can_become(next) {
            return Err(VerbsError::Transition { from, to: next });
        }
        match next {
            QpState::Init => self.to_init()?,
            QpState::ReadyToReceive => self.to_ready_to_receive(remote)?,
            QpState::ReadyToSend => self.to_ready_to_send()?,
            // Devices have no transition from reset to error.
            QpState::Error if from == QpState::Reset => self.stopped.set(true),
            QpState::Error if self.stopped.get() => {}
            QpState::Error => self.set_device_state(IBV_QPS_ERR)?,
            QpState::Reset => {
                self.stop(None)?;
                self.stopped.set(false);
            }
        }
        self.state.set(next);
        Ok(())
    }

    /// Takes everything back from the device by a reset. What was not over is flushed, except that the request that the
    /// device refused fails.
    fn stop(&self, refused: Option<u64>) -> Result<(), VerbsError> {
        // Operations that are over complete as they ended, and before those that are flushed.
        self.drain();
        self.set_device_state(IBV_QPS_RESET)?;
        self.drain();
        self.generation.set(self.thread.qps.borrow_mut().renew(self.slot));
        self.flush(refused);
        Ok(())
    }

    fn drain(&self) {
        self.send_cq.drain();
        self.receive_cq.drain();
    }

    /// Completes everything posted. The device must have none of it.
    pub fn flush(&self, refused: Option<u64>) {
        let mut work = self.held.borrow_mut();
        work.chain.clear();
        loop {
            let failed = refused == Some(work.sends.oldest());
            let Some(sent) = work.sends.pop() else { break };
            let status = if failed { Status::LocalQpOperation } else { Status::Flushed };
            if let Some(completion) = sent.entry.complete(self.number, status) {
                self.send_cq.add(completion);
            }
        }
        while let Some(place) = work.receives.pop() {
            if let Some(posted) = place {
                self.receive_cq.add(self.flushed(posted.id, posted.buffers));
            }
        }
    }

    /// Stops the queue pair after a refusal: the requests from `refused` on never reached the device.
    pub fn refuse(&self, refused: Option<u64>) {
        match self.stop(refused) {
            Ok(()) => {
                self.stopped.set(true);
                self.state.set(QpState::Error);
            }
            // Whatever it may still use stays in the table, for good if need be.
            Err(_) => self.enter_error(),
        }
    }
}

fn empty_attributes() -> ibv_qp_attr {
    // SAFETY: zeros are a value of this plain structure.
    unsafe { std::mem::zeroed() }
}
