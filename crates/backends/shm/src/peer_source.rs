//! Sources of a port's new peers: connections that have no link yet, and the hub. Also the descriptors on which a
//! port sleeps.

use std::collections::VecDeque;
use std::sync::Arc;

use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use sinew_fabric::{Descriptor, PortError};

use crate::hello::{self, Message};
use crate::hub::{Hub, Mailbox};
use crate::names::{self, Name};

/// Most connections that have not said hello. Beyond it, the oldest is dropped.
const PENDING_MAX: usize = 64;
/// Time in which a connection must say hello, in ns.
const HELLO_TIMEOUT_NS: u64 = 1_000_000_000;
/// Most connections accepted in one upkeep pass.
const ACCEPTS_PER_PASS: usize = 16;
/// Time for which nobody is accepted after a lack of descriptors or memory, in ns. (Connections wait, and a watched
/// listener would keep the port awake.)
pub(crate) const ACCEPT_PAUSE_NS: u64 = 10_000_000;

/// Identity of a descriptor in the epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Waker,
    Listener,
    Pending(u64),
    /// The socket of a link, or the process behind it: the link's index and generation.
    Socket(usize, u64),
    Process(usize, u64),
}

const INDEX_BITS: u32 = 28;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

impl Token {
    fn encode(self) -> u64 {
        let link = |index: usize, generation: u64| (index as u64 & INDEX_MASK) << 32 | (generation & 0xFFFF_FFFF);
        let (kind, rest) = match self {
            Self::Waker => (0, 0),
            Self::Listener => (1, 0),
            Self::Pending(id) => (2, id & ((1 << 60) - 1)),
            Self::Socket(index, generation) => (3, link(index, generation)),
            Self::Process(index, generation) => (4, link(index, generation)),
        };
        kind << 60 | rest
    }

    fn decode(bits: u64) -> Self {
        let rest = bits & ((1 << 60) - 1);
        let (index, generation) = ((rest >> 32) as usize, rest & 0xFFFF_FFFF);
        match bits >> 60 {
            0 => Self::Waker,
            1 => Self::Listener,
            2 => Self::Pending(rest),
            3 => Self::Socket(index, generation),
            _ => Self::Process(index, generation),
        }
    }
}

/// The descriptors that a sleeping port waits for.
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: Descriptor,
    pub event: Arc<OwnedFd>,
}

impl Watch {
    pub fn new() -> Result<Self, PortError> {
        let make = || {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
            let watch = Self { epoll: epoll.into(), event: Arc::new(rustix::event::eventfd(0, flags)?) };
            watch.add(&watch.event, Token::Waker)?;
            Ok(watch)
        };
        make().map_err(|error: Errno| PortError::System {
            doing: "making an epoll set and an eventfd".to_owned(),
            source: error.into(),
        })
    }

    pub fn descriptor(&self) -> Descriptor {
        self.epoll.clone()
    }

    pub fn add(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token.encode()), epoll::EventFlags::IN)
    }

    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// The descriptors that are ready now, at most 32.
    pub fn ready(&self) -> [Option<Token>; 32] {
        let mut tokens = [None; 32];
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 32];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { return tokens };
        for (token, event) in tokens.iter_mut().zip(events.iter()) {
            *token = Some(Token::decode(event.data.u64()));
        }
        tokens
    }
}

/// A connection that has not said hello.
#[derive(Debug)]
pub(crate) struct PendingConnection {
    id: u64,
    socket: OwnedFd,
    first_seen_ns: Option<u64>,
}

/// The first message of a pending connection.
#[derive(Debug)]
pub(crate) struct FirstMessage {
    pub socket: OwnedFd,
    pub message: Message,
}

/// Whether, and since when, accepting is paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AcceptPause {
    /// The listener is watched.
    #[default]
    No,
    /// The pause has just begun. The next upkeep pass sets its start, since `accept` is not told the time.
    Begins,
    /// The listener has not been watched since this time, in ns.
    Since(u64),
}

/// The source of new peers.
#[derive(Debug)]
pub(crate) enum PeerSource {
    Process {
        name: Option<Name>,
        /// Memory of our board, to be passed to peers.
        board: OwnedFd,
        pending: VecDeque<PendingConnection>,
        ids_given: u64,
        /// Connections turned away.
        turned_away: u64,
        /// Times that there was no descriptor or memory for a connection.
        out_of_descriptors: u64,
        pause: AcceptPause,
    },
    Hub {
        hub: Hub,
        mailbox: Arc<Mailbox>,
    },
}

impl PeerSource {
    /// Creates the source for a port that other processes reach, under its name if it has one.
    pub fn process(name: Option<Name>, board: OwnedFd) -> Self {
        Self::Process {
            name,
            board,
            pending: VecDeque::new(),
            ids_given: 0,
            turned_away: 0,
            out_of_descriptors: 0,
            pause: AcceptPause::No,
        }
    }

    /// Counts a connection that is turned away.
    pub fn count_turned_away(&mut self) {
        if let Self::Process { turned_away, .. } = self {
            *turned_away += 1;
        }
    }

    /// Counts a connection for which there was no descriptor.
    pub fn count_out_of_descriptors(&mut self) {
        if let Self::Process { out_of_descriptors, .. } = self {
            *out_of_descriptors += 1;
        }
    }

    /// Accepts waiting connections.
    pub fn accept(&mut self, watch: &Watch) {
        let Self::Process { name: Some(name), pending, ids_given, turned_away, out_of_descriptors, pause, .. } = self
        else {
            return;
        };
        for _ in 0..ACCEPTS_PER_PASS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&name.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    *out_of_descriptors += 1;
                    *pause = AcceptPause::Begins;
                    watch.remove(&name.listener);
                    return;
                }
            };
            if !names::is_own(&socket) {
                *turned_away += 1;
                continue;
            }
            if pending.len() >= PENDING_MAX {
                pending.pop_front();
                *turned_away += 1;
            }
            *ids_given += 1;
            let id = *ids_given;
            match watch.add(&socket, Token::Pending(id)) {
                Ok(()) => pending.push_back(PendingConnection { id, socket, first_seen_ns: None }),
                Err(_) => *turned_away += 1,
            }
        }
    }

    /// Reads the first message of a pending connection, if it has come.
    pub fn read_first(&mut self, id: u64, watch: &Watch) -> Option<FirstMessage> {
        let Self::Process { pending, .. } = self else { return None };
        let index = pending.iter().position(|connection| connection.id == id)?;
        let message = hello::receive(&pending[index].socket);
        if matches!(message, Message::Nothing) {
            return None;
        }
        let connection = pending.remove(index)?;
        watch.remove(&connection.socket);
        Some(FirstMessage { socket: connection.socket, message })
    }

    /// Whether accepting is paused.
    pub fn is_paused(&self) -> bool {
        matches!(self, Self::Process { pause: AcceptPause::Begins | AcceptPause::Since(_), .. })
    }

    /// Watches the listener again once a pause is over, and drops the connections that have been silent for too long.
    pub fn expire_pending(&mut self, now_ns: u64, watch: &Watch) {
        let Self::Process { name, pending, turned_away, pause, .. } = self else { return };
        *pause = match (*pause, name) {
            (AcceptPause::Begins, _) => AcceptPause::Since(now_ns),
            (AcceptPause::Since(since_ns), Some(name)) if now_ns.saturating_sub(since_ns) >= ACCEPT_PAUSE_NS => {
                watch.add(&name.listener, Token::Listener).map_or(AcceptPause::Since(now_ns), |()| AcceptPause::No)
            }
            (pause, _) => pause,
        };
        let before = pending.len();
        pending.retain_mut(|connection| {
            let since = *connection.first_seen_ns.get_or_insert(now_ns);
            now_ns.saturating_sub(since) < HELLO_TIMEOUT_NS
        });
        *turned_away += (before - pending.len()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in
            [Token::Waker, Token::Listener, Token::Pending(7), Token::Socket(4095, 0xFFFF_FFFF), Token::Process(1, 2)]
        {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
