//! A thread's handle on a domain.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sinew_fabric::PacketPort;
use sinew_fabric::verbs::{Destination, QpAddress, QpConfig, ThreadDomain, Transport, VerbsError};

use super::address::Home;
use super::completion::ShmCompletionQueue;
use super::counts::Discarded;
use super::device::ShmDomain;
use super::engine::Engine;
use super::posting::ShmQueuePair;
use super::queue_pair::QueuePair;
use super::queues::{Queue, QueueWaker};
use super::wire::handle_of;

/// The most completions of one queue.
const COMPLETIONS_MAX: usize = 1 << 22;

/// The queues of one thread. Dropping the last handle on this, on its completion queues and on its queue pairs closes
/// the thread's port.
pub struct ShmThread {
    pub(super) engine: Rc<RefCell<Engine>>,
}

impl std::fmt::Debug for ShmThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmThread").finish_non_exhaustive()
    }
}

impl ShmThread {
    pub(super) fn new(domain: ShmDomain) -> Result<Self, VerbsError> {
        Ok(Self { engine: Rc::new(RefCell::new(Engine::new(domain)?)) })
    }

    /// Messages and packets of this thread that were discarded for a reason.
    pub fn discarded(&self, reason: Discarded) -> u64 {
        self.engine.borrow().counts.of(reason)
    }
}

impl ThreadDomain for ShmThread {
    type Cq = ShmCompletionQueue;
    type Qp = ShmQueuePair;

    fn completion_queue(&self, depth: usize) -> Result<ShmCompletionQueue, VerbsError> {
        if depth > COMPLETIONS_MAX {
            return Err(VerbsError::Limit { what: "completions of a queue", asked: depth, limit: COMPLETIONS_MAX });
        }
        let engine = &mut *self.engine.borrow_mut();
        let (queue, waker): (Queue, Arc<QueueWaker>) = Queue::new(depth, engine.port.waker());
        let list = &mut engine.queues.list;
        let index = list.iter().position(Option::is_none).unwrap_or(list.len());
        if index == list.len() {
            list.push(None);
        }
        list[index] = Some(Box::new(queue));
        Ok(ShmCompletionQueue::new(Rc::clone(&self.engine), index, waker))
    }

    fn queue_pair(
        &self,
        config: &QpConfig,
        send: &ShmCompletionQueue,
        receive: &ShmCompletionQueue,
    ) -> Result<ShmQueuePair, VerbsError> {
        let attributes = sinew_fabric::verbs::Device::attributes(self.engine.borrow().domain.device()).clone();
        for (what, asked, limit) in [
            ("requests of a queue pair", config.send_depth, attributes.queue_depth_max),
            ("receives of a queue pair", config.receive_depth, attributes.queue_depth_max),
            ("bytes inline", config.inline_max, attributes.inline_max),
            ("pieces of a source or target", config.gather_max, attributes.gather_max),
        ] {
            if asked > limit {
                return Err(VerbsError::Limit { what, asked, limit });
            }
        }
        if !send.is_of(&self.engine) || !receive.is_of(&self.engine) {
            return Err(VerbsError::Device("a completion queue belongs to another thread".to_owned()));
        }
        let engine = &mut *self.engine.borrow_mut();
        let queues = &mut engine.queues;
        queues.get(send.index()).reserve(config.send_depth)?;
        queues
            .get(receive.index())
            .reserve(config.receive_depth)
            .inspect_err(|_| queues.release(send.index(), config.send_depth))?;
        let number = engine.domain.device().number().inspect_err(|_| {
            queues.release(send.index(), config.send_depth);
            queues.release(receive.index(), config.receive_depth);
        })?;
        let epoch = engine.epoch();
        let qp = QueuePair::new(number, config, engine.domain.clone(), epoch, (send.index(), receive.index()));
        let index = (number.0 & 0xFFFF) as usize;
        if engine.queue_pairs.len() <= index {
            engine.queue_pairs.resize_with(index + 1, || None);
        }
        engine.queue_pairs[index] = Some(Box::new(qp));
        Ok(ShmQueuePair::new(Rc::clone(&self.engine), number, attributes, config))
    }

    fn destination(&self, to: &QpAddress) -> Result<Destination, VerbsError> {
        if to.transport != Transport::Ud {
            return Err(VerbsError::Address(format!(
                "it is the address of a {:?} queue pair, not of a UD one",
                to.transport
            )));
        }
        let home = Home::from_bytes(&to.port)?;
        let link = self.engine.borrow_mut().resolve(&home)?;
        Ok(Destination { handle: handle_of(link), number: to.number, qkey: to.qkey })
    }
}
