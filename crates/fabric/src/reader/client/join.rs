//! Making a reader and connecting it to its server.

use std::collections::VecDeque;

use super::window::Window;
use super::{BURST, Cq, Domain, JoinError, Qp, RECEIVE_ID, Reader, ReaderStats, Sleeps, Thread};
use crate::reader::hello::{Hello, WINDOW_MAX, Welcome};
use crate::reader::load::Meter;
use crate::reader::message::{ANSWER_LEN, REQUEST_LEN};
use crate::reader::object::{ObjectLimits, PointerChase};
use crate::reader::policy::{Policy, PolicyConfig};
use crate::time::Generator;
use crate::verbs::{Device, ProtectionDomain, QpConfig, QueuePair, ThreadDomain, Transport, VerbsError};
use sinew_mem::{Arena, MessageBuffer};

/// Configuration of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderConfig {
    /// Name of the server in errors.
    pub peer: String,
    /// The most gets in flight, up to [`WINDOW_MAX`]; the server may allow fewer.
    pub window: usize,
    /// The largest gets; the server may allow less.
    pub limits: ObjectLimits,
    /// Time after which a get ends with an error, in nanoseconds.
    pub timeout_ns: u64,
    /// Configuration of the policy that makes the choices.
    pub policy: PolicyConfig,
}

impl ReaderConfig {
    /// A reader of 16 gets of up to 4 KB after up to 8 accesses (apnet19 3 has 16 in flight), with a time-out of one
    /// second.
    pub fn new(peer: impl Into<String>) -> Self {
        Self {
            peer: peer.into(),
            window: 16,
            limits: ObjectLimits { accesses_max: 8, len_max: 4096 },
            timeout_ns: 1_000_000_000,
            policy: PolicyConfig::default(),
        }
    }
}

/// A reader that is not connected yet.
pub struct Joining<D: Device> {
    config: ReaderConfig,
    qp: Qp<D>,
    cq: Cq<D>,
    thread: Thread<D>,
    arena: Arena,
}

/// Bytes of an arena that `count` buffers of `len` bytes take.
pub(in crate::reader) fn arena_bytes(count: usize, len: usize) -> usize {
    (count * (Arena::block_len(len, len) + 64)).next_power_of_two().max(1 << 16) * 2
}

impl<D: Device> Joining<D> {
    /// Makes the queues of a reader for the calling thread; returns them with the greeting for the server.
    ///
    /// # Errors
    ///
    /// [`JoinError::Verbs`].
    pub fn prepare(device: &D, domain: &Domain<D>, config: &ReaderConfig) -> Result<(Self, Hello), JoinError> {
        let attributes = device.attributes();
        let window = config.window.clamp(1, WINDOW_MAX.min(attributes.queue_depth_max / 8).max(1));
        let thread = domain.thread()?;
        // Each place of the window has a READ or a SEND in flight. SENDs of gets that ended stay until a completion
        // tells of them.
        let cq = thread.completion_queue(5 * window + 8)?;
        let qp = QpConfig {
            send_depth: 4 * window + 4,
            receive_depth: window + 1,
            inline_max: REQUEST_LEN,
            ..QpConfig::new(Transport::Rc)
        };
        let qp = thread.queue_pair(&qp, &cq, &cq)?;
        let len = config.limits.len_max as usize;
        let arena = domain.arena(arena_bytes(window, len) + arena_bytes(window, len + ANSWER_LEN))?;
        let hello = Hello { address: qp.address(), window };
        let config = ReaderConfig { window, ..config.clone() };
        Ok((Self { config, qp, cq, thread, arena }, hello))
    }

    /// Makes the reader, once the server has welcomed it. `chase` knows how one access leads to the next; `generator`
    /// decides when choices are tried again.
    ///
    /// # Errors
    ///
    /// [`JoinError`].
    pub fn join<C: PointerChase, G: Generator>(
        mut self,
        welcome: &Welcome,
        chase: C,
        generator: G,
    ) -> Result<Reader<D, C, G>, JoinError> {
        let (window, asked) = (welcome.window, self.config.window);
        if !(1..=asked).contains(&window) {
            return Err(VerbsError::Limit { what: "gets under way", asked: window, limit: asked }.into());
        }
        let limits = ObjectLimits {
            accesses_max: self.config.limits.accesses_max.min(welcome.limits.accesses_max),
            len_max: self.config.limits.len_max.min(welcome.limits.len_max),
        };
        let len = limits.len_max as usize;
        self.qp.connect(Some(&welcome.address))?;
        for _ in 0..window {
            let buffer = self.arena.alloc(len + ANSWER_LEN, len + ANSWER_LEN)?;
            self.qp.post_buffer(RECEIVE_ID, buffer).map_err(|refused| refused.error)?;
        }
        let buffer = |_| -> Result<MessageBuffer, _> { self.arena.alloc(len.max(1), len.max(1)) };
        let buffers = (0..window).map(buffer).collect::<Result<_, _>>()?;
        Ok(Reader {
            window: Window::new(buffers),
            chase,
            generator,
            policy: Policy::new(self.config.policy),
            meter: Meter::default(),
            sleeps: Sleeps::default(),
            forced: None,
            regions: welcome.regions.clone(),
            limits,
            peer: self.config.peer,
            timeout_ns: self.config.timeout_ns,
            completions: Vec::with_capacity(BURST),
            spent: VecDeque::with_capacity(window),
            pushed: false,
            sends: (0, (window / 2).max(1)),
            was_spinning: false,
            asleep_until_ns: None,
            server_lost: None,
            stats: ReaderStats::default(),
            qp: self.qp,
            cq: self.cq,
            _thread: self.thread,
            _arena: self.arena,
        })
    }
}
