//! Links with ports of other processes, which are set up over sockets: through these, the two ports pass each other
//! descriptors of their memory.

use std::io::ErrorKind;
use std::sync::Arc;

use rustix::fd::{AsFd, OwnedFd};
use sinew_fabric::{Dropped, PeerLoss, PortError};
use sinew_mem::{Access, Region, ring};

use super::links::{NewLink, doorbell};
use super::{Remote, ShmRx};
use crate::hello::{self, Hello, Message, Refusal};
use crate::link::{Claim, Lines, PeerArena, Side, Wake, ends, map_peer};
use crate::names;
use crate::peer_source::{PeerSource, Token};

/// Most messages read from one socket in one upkeep pass.
const MESSAGES_PER_PASS: usize = 16;

/// Reason to refuse memory that could not be mapped: either the peer's memory is unusable, or this system lacks
/// resources, which is not the peer's fault.
fn unusable(error: std::io::Error) -> Refusal {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::EAGAIN) => Refusal::Links,
        _ => Refusal::Hello,
    }
}

impl ShmRx {
    pub(super) fn read_socket(&mut self, index: usize, generation: u64) {
        for _ in 0..MESSAGES_PER_PASS {
            if !self.is_link(index, generation) {
                return;
            }
            let Some(Some(link)) = self.links.get(index) else { return };
            let Remote::Process { socket, .. } = &link.peer else { return };
            match hello::receive(socket) {
                Message::Nothing => return,
                Message::Bell => self.start_polling(index),
                Message::Welcome(hello, fds) => {
                    if let Err(refusal) = self.attach_process(index, &hello, &fds) {
                        self.cut_off(index, refusal);
                    }
                }
                Message::Refused => self.end(index, Some(PeerLoss::Refused)),
                Message::NoRoom => {
                    self.peer_source.count_out_of_descriptors();
                    self.end(index, Some(PeerLoss::Refused));
                }
                Message::Closed => {
                    // A port that never answered was closing when we connected.
                    let closed = link.arena.is_none() || link.flags.other_has_closed();
                    self.end(index, Some(if closed { PeerLoss::Closed } else { PeerLoss::ProcessDied }));
                }
                Message::Hello(..) | Message::Malformed => self.cut_off(index, Refusal::Hello),
            }
        }
    }

    pub(super) fn connect_process(&mut self, index: usize, address: &str, name: &str) -> Result<NewLink, PortError> {
        let system = |what: &str| {
            let doing = format!("{what} for {address}");
            move |source| PortError::System { doing, source }
        };
        let connection = names::connect(address, name)?;
        let lines = Lines { to_acceptor: connection.ring_lines, to_initiator: self.own.ring_lines };
        let (region, link_fd) = Region::shared("sinew-link", lines.bytes(), Access::ReadWrite)
            .map_err(system("making the link's memory"))?;
        let region = Arc::new(region);
        let claim = Claim::new(&link_fd, Side::Initiator, lines).map_err(system("claiming the link's memory"))?;
        // SAFETY: this is our side of memory that was just made here; it is shared, so not trusted.
        let ends = unsafe { ends(&region, lines, Side::Initiator, false) }
            .ok_or_else(|| system("laying out the link")(ErrorKind::InvalidInput.into()))?;
        let PeerSource::Process { board, .. } = &self.peer_source else {
            return Err(system("finding the board")(ErrorKind::NotFound.into()));
        };
        let arena_fd = self.own.arena.fd().ok_or_else(|| system("sharing the arena")(ErrorKind::NotFound.into()))?;
        let hello = Hello {
            lines_to_acceptor: lines.to_acceptor,
            lines_to_initiator: lines.to_initiator,
            arena_bytes: self.own.arena.capacity(),
            bit: index,
        };
        hello::send_hello(&connection.socket, &hello, [link_fd.as_fd(), arena_fd, board.as_fd()])
            .map_err(system("saying hello"))?;
        let generation = self.next_generation();
        let socket = Arc::new(connection.socket);
        let peer = self
            .watch_process(Arc::clone(&socket), index, generation)
            .map_err(|error| system("watching the link")(error.into()))?;
        Ok(NewLink {
            generation,
            ends,
            claim,
            arena: None,
            doorbell: None,
            wake: Wake::Socket(socket),
            peer,
            name: format!("shm://{name}"),
            resolved: None,
        })
    }

    /// Watches the socket of a link, and the process behind it if that is not ours.
    fn watch_process(&self, socket: Arc<OwnedFd>, index: usize, generation: u64) -> Result<Remote, rustix::io::Errno> {
        self.own.watch.add(&socket, Token::Socket(index, generation))?;
        let peer = rustix::net::sockopt::socket_peercred(&socket)?.pid;
        let pidfd = if peer == rustix::process::getpid() {
            None
        } else {
            // The pidfd is only a second sign: without it, the end of the socket shows the death. (A forked child of
            // the peer can hold the socket open.)
            rustix::process::pidfd_open(peer, rustix::process::PidfdFlags::empty()).ok()
        };
        if let Some(pidfd) = &pidfd {
            self.own.watch.add(pidfd, Token::Process(index, generation))?;
        }
        Ok(Remote::Process { socket, pidfd })
    }

    /// Answers the hello of a new peer with a link.
    pub(super) fn welcome(&mut self, socket: OwnedFd, hello: Hello, fds: &[OwnedFd]) {
        let Some(index) = self.index() else { return self.refuse(&socket, Refusal::Links) };
        let socket = Arc::new(socket);
        match self.answer(index, &socket, hello, fds) {
            Ok(link) => {
                self.add(index, link);
            }
            Err(refusal) => {
                self.own.watch.remove(&socket);
                self.refuse(&socket, refusal);
                self.free.push(index);
            }
        }
    }

    pub(super) fn refuse(&mut self, socket: impl AsFd, refusal: Refusal) {
        let _ = hello::send_refusal(socket, refusal);
        self.peer_source.count_turned_away();
        if refusal == Refusal::Hello {
            self.stats.count_dropped(Dropped::Malformed, 1);
        }
    }

    fn answer(
        &mut self,
        index: usize,
        socket: &Arc<OwnedFd>,
        hello: Hello,
        fds: &[OwnedFd],
    ) -> Result<NewLink, Refusal> {
        let [link_fd, arena_fd, board_fd] = fds else { return Err(Refusal::Hello) };
        let lines = Lines { to_acceptor: hello.lines_to_acceptor, to_initiator: hello.lines_to_initiator };
        if lines.to_acceptor < self.own.ring_lines {
            return Err(Refusal::Ring);
        }
        let region = Arc::new(map_peer(link_fd, lines.bytes(), Access::ReadWrite).map_err(unusable)?);
        let board = Arc::new(map_peer(board_fd, ring::BOARD_BYTES, Access::ReadWrite).map_err(unusable)?);
        let arena = PeerArena::of_peer(arena_fd, hello.arena_bytes).map_err(unusable)?;
        let claim = Claim::new(link_fd, Side::Acceptor, lines).map_err(unusable)?.ok_or(Refusal::Hello)?;
        // SAFETY: the claim makes this the only use of our side of the memory in this process; it is not trusted.
        let ends = unsafe { ends(&region, lines, Side::Acceptor, false) }.ok_or(Refusal::Hello)?;
        let doorbell = doorbell(&board, hello.bit).ok_or(Refusal::Hello)?;
        let generation = self.next_generation();
        let peer = self.watch_process(Arc::clone(socket), index, generation).map_err(|_| Refusal::Links)?;
        let (PeerSource::Process { board, .. }, Some(own_arena)) = (&self.peer_source, self.own.arena.fd()) else {
            return Err(Refusal::Hello);
        };
        let answer = Hello { arena_bytes: self.own.arena.capacity(), bit: index, ..hello };
        match hello::send_welcome(socket, &answer, [own_arena, board.as_fd()]) {
            Ok(()) => {}
            // The peer has gone already, as it might a moment later: what it had sent is delivered, and then its end is
            // seen.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            Err(_) => return Err(Refusal::Links),
        }
        let pid = rustix::net::sockopt::socket_peercred(socket).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        Ok(NewLink {
            generation,
            ends,
            claim: Some(claim),
            arena: Some(arena),
            doorbell: Some(doorbell),
            wake: Wake::Socket(Arc::clone(socket)),
            peer,
            name: format!("shm://(process {pid})"),
            resolved: None,
        })
    }

    /// Attaches the arena and the board from the acceptor's answer, or returns the reason why they are unusable.
    fn attach_process(&mut self, index: usize, hello: &Hello, fds: &[OwnedFd]) -> Result<(), Refusal> {
        let (Some(Some(link)), [arena_fd, board_fd]) = (self.links.get_mut(index), fds) else {
            return Err(Refusal::Hello);
        };
        if link.arena.is_some() {
            return Err(Refusal::Hello);
        }
        let board = map_peer(board_fd, ring::BOARD_BYTES, Access::ReadWrite).map_err(unusable)?;
        let arena = PeerArena::of_peer(arena_fd, hello.arena_bytes).map_err(unusable)?;
        let doorbell = doorbell(&Arc::new(board), hello.bit).ok_or(Refusal::Hello)?;
        link.arena = Some(arena);
        self.attach(index, doorbell);
        Ok(())
    }
}
