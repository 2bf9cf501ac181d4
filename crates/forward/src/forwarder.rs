//! An application between ports: receives bursts, has them processed and sends the outcome.

use arrayvec::ArrayVec;
use sinew_fabric::Readiness;
use sinew_fabric::frames::{FrameBurst, FramePort, FrameRx, FrameTx, LentFrame};

use crate::burst::{Application, Fate, Fates, Outbox};
use crate::interface::INTERFACES_MAX;

/// Ports, and the application that forwards between them. A forwarder belongs to one thread, whose loop calls
/// [`Self::turn`].
#[derive(Debug)]
pub struct Forwarder<P, A> {
    ports: Vec<P>,
    application: A,
    outbox: Outbox,
}

/// More ports than a forwarder can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ports} ports are too many: a forwarder has at most {INTERFACES_MAX}")]
pub struct TooManyPorts {
    /// Ports that were given.
    pub ports: usize,
}

impl<P: FramePort, A: Application> Forwarder<P, A> {
    /// Puts an application between these ports. A port's number is its index.
    ///
    /// # Errors
    ///
    /// [`TooManyPorts`] for more than [`INTERFACES_MAX`].
    pub fn new(ports: Vec<P>, application: A) -> Result<Self, TooManyPorts> {
        if ports.len() > INTERFACES_MAX {
            return Err(TooManyPorts { ports: ports.len() });
        }
        Ok(Self { ports, application, outbox: Outbox::new() })
    }

    /// The ports.
    pub fn ports(&self) -> &[P] {
        &self.ports
    }

    /// The application.
    pub fn application(&self) -> &A {
        &self.application
    }

    /// The application, for changes between turns.
    pub fn application_mut(&mut self) -> &mut A {
        &mut self.application
    }

    /// The readiness sources that a sleeping thread waits for.
    pub fn sources(&mut self) -> ArrayVec<&mut dyn Readiness, INTERFACES_MAX> {
        self.ports.iter_mut().map(|port| port as &mut dyn Readiness).collect()
    }

    /// When the application next has work that is due, with or without frames.
    pub fn next_ns(&self) -> Option<u64> {
        self.application.next_ns()
    }

    /// Receives a burst from each port, has the application process it and sends the outcome. Returns the number of
    /// frames received.
    pub fn turn(&mut self, now_ns: u64) -> usize {
        let Self { ports, application, outbox } = self;
        let mut rxs = ArrayVec::<&mut P::Rx, INTERFACES_MAX>::new();
        let mut txs = ArrayVec::<&mut P::Tx, INTERFACES_MAX>::new();
        for port in ports {
            let (rx, tx) = port.split();
            rxs.push(rx);
            txs.push(tx);
        }
        let (mut taken, mut has_sent) = (0, false);
        for (from, rx) in (0..).zip(&mut rxs) {
            let mut burst = FrameBurst::new(now_ns);
            rx.receive(&mut burst);
            if burst.frames.is_empty() {
                continue;
            }
            taken += burst.frames.len();
            has_sent = true;
            let mut fates = Fates::new();
            application.process(from, now_ns, &mut burst.frames, &mut fates, outbox);
            // The outbox goes first: frames that waited for a frame of this burst are older than those sent on now.
            send_out(outbox, &mut txs);
            for (frame, fate) in burst.frames.drain(..).zip(fates) {
                match fate {
                    Fate::Drop => {}
                    Fate::Forward(to) => {
                        if let Some(tx) = txs.get_mut(usize::from(to)) {
                            tx.forward(frame);
                        }
                    }
                    Fate::Shorten(to, len) => {
                        if let Some(tx) = txs.get_mut(usize::from(to)) {
                            let bytes = frame.bytes();
                            tx.push(&bytes[..bytes.len().min(usize::from(len))], &[]);
                        }
                    }
                    Fate::Flood => {
                        for (_, tx) in txs.iter_mut().enumerate().filter(|(to, _)| *to != usize::from(from)) {
                            tx.push(frame.bytes(), &[]);
                        }
                    }
                }
            }
        }
        application.tick(now_ns, outbox);
        has_sent |= send_out(outbox, &mut txs);
        if has_sent {
            txs.iter_mut().for_each(|tx| tx.submit());
        }
        taken
    }
}

/// Sends the frames of an outbox; returns whether there were any.
fn send_out<T: FrameTx>(outbox: &mut Outbox, txs: &mut [&mut T]) -> bool {
    if outbox.is_empty() {
        return false;
    }
    for (to, frame) in outbox.frames() {
        if let Some(tx) = txs.get_mut(usize::from(to)) {
            tx.push(frame, &[]);
        }
    }
    outbox.clear();
    true
}
