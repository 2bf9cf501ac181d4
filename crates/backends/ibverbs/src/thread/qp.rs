//! Queue pairs: making them, posting to them, and ending them.

mod settle;
mod states;

use std::cell::{Cell, RefCell};
use std::hash::BuildHasher;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use sinew_fabric::verbs::{
    Destination, Operation, PostError, QpAddress, QpConfig, QpNumber, QpState, QueuePair, RefusedReceive,
    RefusedRequest, RemoteMemory, Request, Scatter, Transport, Verb, VerbsError, WorkEntry, check_receive,
};

use super::ThreadInner;
use super::cq::{CqInner, IbCompletionQueue};
use crate::abi::*;
use crate::device::qp_type;
use crate::library::system;
use crate::routes::AddressHandle;
use crate::work::{Headers, PostOutcome, Posted, Sent, Work};
use crate::work_id::WorkId;

use states::PACKET_MASK;

/// Most retries for a receiver that is not ready; this value means without limit.
const RNR_RETRIES_MAX: u8 = 7;

/// A queue pair on an [`IbDevice`](crate::IbDevice).
#[derive(Debug)]
pub struct IbQueuePair(Rc<QpInner>);

#[derive(Debug)]
pub(crate) struct QpInner {
    pub qp: NonNull<ibv_qp>,
    pub number: QpNumber,
    post_send: PostSend,
    post_recv: PostRecv,
    pub config: QpConfig,
    /// Number of the first packet that we send.
    pub first_packet: u32,
    pub state: Cell<QpState>,
    /// Whether the queue pair is in error here while the device's is reset and has none of its work: we flush whatever
    /// is posted.
    pub stopped: Cell<bool>,
    /// Most of our READs and atomics in flight, within both sides' limits.
    pub reads_out: Cell<u8>,
    pub slot: usize,
    pub generation: Cell<u32>,
    /// The posted work. Dropped after the device's queue pair, or never.
    pub held: ManuallyDrop<RefCell<Work>>,
    /// UD: the senders of received datagrams. Dropped as `held` is.
    pub headers: ManuallyDrop<Option<Headers>>,
    pub send_cq: Rc<CqInner>,
    pub receive_cq: Rc<CqInner>,
    pub thread: Rc<ThreadInner>,
}

impl IbQueuePair {
    pub(crate) fn new(
        thread: &Rc<ThreadInner>,
        config: &QpConfig,
        send: &IbCompletionQueue,
        receive: &IbCompletionQueue,
    ) -> Result<Self, VerbsError> {
        let domain = &thread.domain;
        let (device, library) = (&domain.device, domain.library());
        let datagrams = config.transport == Transport::Ud;
        if [send, receive].iter().any(|cq| !Rc::ptr_eq(&cq.0.thread, thread)) {
            return Err(VerbsError::Device("the completion queue belongs to another thread domain".into()));
        }
        // A datagram's header takes a piece of its own.
        let receive_pieces = config.gather_max + usize::from(datagrams);
        let attributes = &device.attributes;
        for (what, asked, limit) in [
            ("requests of a queue pair", config.send_depth, attributes.queue_depth_max),
            ("receives of a queue pair", config.receive_depth, attributes.queue_depth_max),
            ("bytes of inline data", config.inline_max, attributes.inline_max),
            ("pieces of a source or target", config.gather_max, attributes.gather_max),
            ("pieces of a receive, including the datagram's header", receive_pieces, device.sges_max),
            ("retries for a receiver that is not ready", config.rnr_retries.into(), RNR_RETRIES_MAX.into()),
        ] {
            if asked > limit {
                return Err(VerbsError::Limit { what, asked, limit });
            }
        }
        let headers = datagrams.then(|| Headers::new(domain, config.receive_depth)).transpose()?;
        send.0.reserve(config.send_depth)?;
        receive.0.reserve(config.receive_depth).inspect_err(|_| send.0.release(config.send_depth))?;
        let release = || {
            send.0.release(config.send_depth);
            receive.0.release(config.receive_depth);
        };
        let (slot, generation) = thread.qps.borrow_mut().reserve().inspect_err(|_| release())?;
        let mut wanted = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send.0.cq.as_ptr(),
            recv_cq: receive.0.cq.as_ptr(),
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: config.send_depth.max(1) as u32,
                max_recv_wr: config.receive_depth.max(1) as u32,
                max_send_sge: config.gather_max.max(1) as u32,
                max_recv_sge: receive_pieces.max(1) as u32,
                max_inline_data: config.inline_max as u32,
            },
            qp_type: qp_type(config.transport),
            sq_sig_all: 0,
        };
        // SAFETY: our domain, and queues of the same device.
        let qp = unsafe { (library.ibv_create_qp)(domain.pd(), &raw mut wanted) };
        let Some(qp) = NonNull::new(qp) else {
            let error = io::Error::last_os_error();
            thread.qps.borrow_mut().free(slot);
            release();
            return Err(refused_qp(&device.context.name, config, error));
        };
        // SAFETY: made just now.
        let number = QpNumber(unsafe { qp.as_ref() }.qp_num);
        let ops = device.context.ops();
        let inner = Rc::new(QpInner {
            qp,
            number,
            post_send: ops.post_send,
            post_recv: ops.post_recv,
            config: *config,
            // Any number will do; a fresh one keeps packets of an earlier queue pair of this number from being taken
            // for ours.
            first_packet: std::hash::RandomState::new().hash_one(number.0) as u32 & PACKET_MASK,
            state: Cell::new(QpState::Reset),
            stopped: Cell::new(false),
            reads_out: Cell::new(0),
            slot,
            generation: Cell::new(generation),
            held: ManuallyDrop::new(RefCell::new(Work::new(config))),
            headers: ManuallyDrop::new(headers),
            send_cq: Rc::clone(&send.0),
            receive_cq: Rc::clone(&receive.0),
            thread: Rc::clone(thread),
        });
        thread.qps.borrow_mut().set(slot, &inner);
        Ok(Self(inner))
    }
}

fn refused_qp(name: &str, config: &QpConfig, error: io::Error) -> VerbsError {
    let QpConfig { transport, send_depth, receive_depth, inline_max, .. } = config;
    let doing = format!(
        "making a {transport:?} queue pair of {send_depth} requests ({inline_max} bytes inline) and {receive_depth} receives \
         on {name}"
    );
    let remedy = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => "not every device has every transport; RC and UD are the usual ones",
        _ => "ask for fewer requests, receives or bytes inline, or for more memory that may be locked (`ulimit -l`)",
    };
    system(doing, error, Some(remedy))
}

impl QpInner {
    /// Writes a request into the chain's next work request.
    #[inline]
    fn describe(&self, work: &mut Work, request: &Request<'_>) -> Result<Option<Rc<AddressHandle>>, PostError> {
        let domain = &self.thread.domain;
        request.check(&self.config, self.state.get(), &domain.device.attributes)?;
        let Work { sends, chain, keys, .. } = work;
        if sends.is_full() {
            return Err(PostError::QueueFull(sends.depth()));
        }
        let number = sends.oldest() + sends.len() as u64;
        let (wr, sges) = chain.next();
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        wr.wr_id = WorkId::pack(self.generation.get(), self.slot, false, number);
        wr.send_flags = flag(request.signaled, IBV_SEND_SIGNALED)
            | flag(request.fence, IBV_SEND_FENCE)
            | flag(request.solicited, IBV_SEND_SOLICITED);
        let mut handle = None;
        match &request.operation {
            Operation::Send { source, immediate, to } => {
                wr.opcode = if immediate.is_some() { IBV_WR_SEND_WITH_IMM } else { IBV_WR_SEND };
                wr.imm_data = immediate.unwrap_or(0).to_be();
                if let Some(to) = to {
                    let found = self.address_handle_for(to, source.len())?;
                    wr.wr.ud = ibv_wr_ud { ah: found.as_ptr(), remote_qpn: to.number.0, remote_qkey: to.qkey };
                    handle = Some(found);
                }
                chain.source(keys, domain, source)?;
            }
            Operation::Write { source, remote, immediate } => {
                wr.opcode = if immediate.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE };
                wr.imm_data = immediate.unwrap_or(0).to_be();
                wr.wr.rdma = ibv_wr_rdma { remote_addr: remote.address, rkey: remote.rkey };
                chain.source(keys, domain, source)?;
            }
            Operation::Read { target, remote } => {
                wr.opcode = IBV_WR_RDMA_READ;
                wr.wr.rdma = ibv_wr_rdma { remote_addr: remote.address, rkey: remote.rkey };
                wr.num_sge = keys.scatter(domain, target, sges)? as i32;
            }
            Operation::WriteRange { source: range, remote } | Operation::ReadRange { target: range, remote } => {
                let is_write = request.operation.verb() == Verb::Write;
                wr.opcode = if is_write { IBV_WR_RDMA_WRITE } else { IBV_WR_RDMA_READ };
                wr.wr.rdma = ibv_wr_rdma { remote_addr: remote.address, rkey: remote.rkey };
                wr.num_sge = keys.range(domain, range, sges)? as i32;
            }
            Operation::CompareSwap { target, remote, expected, desired } => {
                wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
                wr.wr.atomic = atomic(remote, *expected, *desired);
                sges[0] = keys.sge_of(domain, target)?;
                wr.num_sge = 1;
            }
            Operation::FetchAdd { target, remote, add } => {
                wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                wr.wr.atomic = atomic(remote, *add, 0);
                sges[0] = keys.sge_of(domain, target)?;
                wr.num_sge = 1;
            }
        }
        Ok(handle)
    }

    /// Finds the route to a destination, and checks that a message of `len` bytes fits on it.
    #[inline]
    fn address_handle_for(&self, to: &Destination, len: usize) -> Result<Rc<AddressHandle>, PostError> {
        let mut routes = self.thread.routes.borrow_mut();
        let route = routes.get(to.handle).ok_or(PostError::UnknownDestination)?;
        if len > route.mtu {
            return Err(PostError::TooLong { len, limit: route.mtu });
        }
        if let Some(handle) = &route.handle {
            return Ok(Rc::clone(handle));
        }
        let thread = &*self.thread;
        let now_ns = || thread.began.elapsed().as_nanos() as u64;
        let make = |target| AddressHandle::new(&thread.domain, target);
        routes.reply_handle(to.handle, now_ns, make).map_err(PostError::Device)
    }

    /// Hands a receive to the device, or, once the queue pair is in error, keeps it to be flushed.
    fn take_receive(&self, id: u64, buffers: &mut Scatter) -> Result<(), PostError> {
        let mut work = self.held.borrow_mut();
        let Work { receives, receive_sges: sges, keys, .. } = &mut *work;
        let state = self.state.get();
        check_receive(buffers, &self.config, state)?;
        if receives.is_full() {
            return Err(PostError::QueueFull(receives.depth()));
        }
        let number = receives.oldest() + receives.len() as u64;
        let slots_after = match &*self.headers {
            Some(headers) => {
                sges[0] = headers.piece(number);
                1
            }
            None => 0,
        };
        let count = slots_after + keys.scatter(&self.thread.domain, buffers, &mut sges[slots_after..])?;
        let at_device = state != QpState::Error;
        if at_device {
            let mut wr = ibv_recv_wr {
                wr_id: WorkId::pack(self.generation.get(), self.slot, true, number),
                next: null_mut(),
                sg_list: sges.as_mut_ptr(),
                num_sge: count as i32,
            };
            let mut refused = null_mut();
            // SAFETY: our queue pair, and one request, which the device copies. The buffers move to the table below, in
            // which they stay until the receive is over.
            let status = unsafe { (self.post_recv)(self.qp.as_ptr(), &raw mut wr, &raw mut refused) };
            if status != 0 {
                return Err(PostError::Device(status));
            }
        } else if receives.is_empty() {
            self.receive_cq.add(self.flushed(id, std::mem::take(buffers)));
            return Ok(());
        }
        receives.push(Some(Posted { id, buffers: std::mem::take(buffers), at_device }));
        Ok(())
    }
}

fn atomic(remote: &RemoteMemory, compare_add: u64, swap: u64) -> ibv_wr_atomic {
    ibv_wr_atomic { remote_addr: remote.address, compare_add, swap, rkey: remote.rkey }
}

impl QueuePair for IbQueuePair {
    fn number(&self) -> QpNumber {
        self.0.number
    }

    fn transport(&self) -> Transport {
        self.0.config.transport
    }

    fn state(&self) -> QpState {
        self.0.query_state()
    }

    fn address(&self) -> QpAddress {
        let qp = &*self.0;
        let mtu = qp.thread.domain.device.attributes.mtu as u32;
        QpAddress {
            number: qp.number,
            transport: qp.config.transport,
            first_packet: qp.first_packet,
            qkey: qp.config.qkey,
            mtu,
            port: qp.thread.address.to_bytes(),
        }
    }

    fn modify(&mut self, state: QpState, remote: Option<&QpAddress>) -> Result<(), VerbsError> {
        self.0.modify(state, remote)
    }

    fn post_receive(&mut self, id: u64, mut buffers: Scatter) -> Result<(), RefusedReceive> {
        self.0.take_receive(id, &mut buffers).map_err(|error| RefusedReceive { error, buffers })
    }

    #[inline]
    fn push(&mut self, request: Request<'_>) -> Result<(), RefusedRequest> {
        let mut work = self.0.held.borrow_mut();
        match self.0.describe(&mut work, &request) {
            Ok(handle) => {
                work.chain.push();
                work.sends.push(Sent { entry: WorkEntry::new(request), _handle: handle });
                Ok(())
            }
            Err(error) => Err(RefusedRequest::new(error, request.operation)),
        }
    }

    #[inline]
    fn doorbell(&mut self) {
        let qp = &*self.0;
        if qp.stopped.get() {
            qp.flush(None);
            return;
        }
        let mut work = qp.held.borrow_mut();
        let Work { sends, chain, .. } = &mut *work;
        let first = sends.oldest() + (sends.len() - chain.len()) as u64;
        // SAFETY: our queue pair, and its device's function. What the requests name stays in the table until they are
        // over.
        let rung = unsafe { chain.post_all(qp.qp.as_ptr(), qp.post_send) };
        drop(work);
        match rung {
            PostOutcome::All => {}
            PostOutcome::Some(taken) => qp.refuse(Some(first + taken as u64)),
            PostOutcome::Unknown => qp.refuse(None),
        }
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        // SAFETY: our queue pair, which nothing uses any more.
        let destroyed = unsafe { (self.library().ibv_destroy_qp)(self.qp.as_ptr()) } == 0;
        self.thread.qps.borrow_mut().free(self.slot);
        if !destroyed {
            // The device may still use everything that it was given, so that is leaked, with everything that it depends
            // on.
            std::mem::forget((Rc::clone(&self.send_cq), Rc::clone(&self.receive_cq), Rc::clone(&self.thread)));
            return;
        }
        self.send_cq.leave(self.number, self.config.send_depth);
        self.receive_cq.leave(self.number, self.config.receive_depth);
        // SAFETY: dropped once, here; the device is done with them.
        unsafe {
            ManuallyDrop::drop(&mut self.held);
            ManuallyDrop::drop(&mut self.headers);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Refusals by a device. None of our devices refuses a request that passed our checks, so these requests are spoilt
    //! after them.

    use super::*;
    use crate::common::{Pair, assert_silent};
    use sinew_fabric::verbs::{Access, CompletionQueue, Exposed, ProtectionDomain, Slice, Source, Status};

    /// The last pushed request as the device sees it: its flags, and its pieces' lengths.
    fn last_request(pair: &Pair) -> (u32, Vec<u32>) {
        pair.a.qp.0.held.borrow().chain.last()
    }

    #[test]
    fn the_device_is_told_what_a_request_says() {
        let Some(mut pair) = Pair::new(Transport::Rc) else { return };
        let piece = |len| Slice { buffer: pair.buffer(b"abcd").freeze(), start: 0, len };
        let source = Source::Gather([piece(0), piece(3), piece(0), piece(1)].into_iter().collect());
        let mut request = Request::new(0, Operation::Send { source, immediate: None, to: None });
        (request.fence, request.solicited) = (true, true);
        pair.a.qp.push(request).unwrap();
        // Empty pieces are left out: the device would read their length of 0 as 2 GiB.
        assert_eq!(last_request(&pair), (IBV_SEND_SIGNALED | IBV_SEND_FENCE | IBV_SEND_SOLICITED, vec![3, 1]));
        let memory = pair.domain.expose(8, Access::ALL).unwrap();
        let target = [0, 5].into_iter().map(|len| pair.empty(len)).collect();
        let read = Operation::Read { target, remote: memory.remote() };
        pair.a.qp.push(Request::new(0, read).unsignaled()).unwrap();
        assert_eq!(last_request(&pair), (0, vec![5]));
        let send = Operation::Send { source: Source::Inline(&[]), immediate: None, to: None };
        pair.a.qp.push(Request::new(0, send)).unwrap();
        assert_eq!(last_request(&pair), (IBV_SEND_SIGNALED, vec![]));
    }

    #[test]
    fn what_a_queue_pair_posted_before_it_was_reset_is_no_longer_its_own() {
        let Some(mut pair) = Pair::new(Transport::Rc) else { return };
        let inner = &pair.a.qp.0;
        let id = || WorkId::unpack(WorkId::pack(inner.generation.get(), inner.slot, true, 0));
        let find = |id| inner.thread.qps.borrow().find(id).is_some();
        let before = id();
        assert!(find(before));
        inner.modify(QpState::Reset, None).unwrap();
        assert!(!find(before) && find(id()));
        let (after, thread) = (id(), Rc::clone(&inner.thread));
        pair.a = crate::common::Side::new(&pair.domain, &crate::common::config(Transport::Rc));
        assert!(thread.qps.borrow().find(after).is_none());
    }

    /// Pushes five requests, of which the device will refuse the third.
    fn push_five(pair: &mut Pair) {
        for id in 0..5 {
            let send = Operation::Send { source: Source::Inline(b"x"), immediate: None, to: None };
            pair.a.qp.push(Request::new(id, send).unsignaled()).unwrap();
            if id == 2 {
                pair.a.qp.0.held.borrow_mut().chain.corrupt_last();
            }
        }
    }

    #[test]
    fn requests_that_the_device_refused_fail_and_the_rest_is_flushed() {
        let Some(mut pair) = Pair::new(Transport::Rc) else { return };
        let (here, there) = (pair.empty(8), pair.empty(8));
        pair.a.qp.post_buffer(77, here).unwrap();
        pair.b.qp.post_buffer(0, there).unwrap();
        push_five(&mut pair);
        pair.a.qp.doorbell();
        let ended: Vec<_> = (0..5).map(|_| pair.a.sent()).map(|done| (done.id, done.status)).collect();
        assert_eq!(ended[2..], [(2, Status::LocalQpOperation), (3, Status::Flushed), (4, Status::Flushed)]);
        // The requests before it may have been sent.
        assert_eq!(ended[..2], [(0, Status::Flushed), (1, Status::Flushed)]);
        let receive = pair.a.received();
        assert_eq!((receive.id, receive.status, receive.buffers.len()), (77, Status::Flushed, 1));
        assert_eq!(pair.a.qp.state(), QpState::Error);
        // It accepts more requests, as any queue pair in error does.
        let buffer = pair.empty(8);
        pair.a.qp.post_buffer(78, buffer).unwrap();
        let send = Operation::Send { source: Source::Empty, immediate: None, to: None };
        pair.a.qp.post(Request::new(5, send)).unwrap();
        assert_eq!((pair.a.received().status, pair.a.sent().status), (Status::Flushed, Status::Flushed));
        assert_silent(&mut pair.a.sends);
        for side in [&mut pair.a, &mut pair.b] {
            side.qp.modify(QpState::Reset, None).unwrap();
        }
        // Discard what arrived, and what the reset flushed.
        let mut old = Vec::new();
        pair.b.receives.poll(&mut old, 8);
        pair.connect();
        let buffer = pair.empty(8);
        pair.b.qp.post_buffer(1, buffer).unwrap();
        let again = Operation::Send { source: Source::Inline(b"again"), immediate: None, to: None };
        pair.a.qp.post(Request::new(6, again)).unwrap();
        assert_eq!((pair.a.sent().status, &pair.b.received().buffers[0][..]), (Status::Success, &b"again"[..]));
    }
}
