//! What a port does now and then: links come, are attached, and go.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fd::{AsFd, OwnedFd};
use sinew_fabric::{Dropped, Peer, PeerLoss, PortError, PortEvent};
use sinew_mem::ring::{self, Doorbell, Words};
use sinew_mem::{Access, Arena, Region};

use crate::door::{Door, Heard, Token, Watch};
use crate::hello::{self, Hello, Message, Refusal};
use crate::hub::{Letter, Mailbox};
use crate::link::{Claim, Ends, Lines, LinkState, PeerArena, Side, TxChange, TxLink, Wake, ends, map_peer};
use crate::rx::{Ending, Remote, RxLink, ShmRx};
use crate::{LINKS_MAX, names};

/// Links that are not polled and are looked into all the same, in one look. A sender that was stopped before it rang its
/// doorbell, or whose bit another process has cleared, waits for this at most.
const SWEEP: usize = 16;
/// Times that the sockets are asked for more in one look.
const ROUNDS_PER_LOOK: usize = 4;
/// Messages read from one socket in one look.
const MESSAGES_PER_LOOK: usize = 16;

/// A port's own side, as it tells it to peers.
#[derive(Debug)]
pub(crate) struct Own {
    pub watch: Watch,
    pub arena: Arena,
    /// Lines of rings that lead here.
    pub ring_lines: usize,
}

fn doorbell(board: &Arc<Region>, bit: usize) -> Option<Doorbell> {
    let words = Words::of_region(board, 0, ring::BOARD_BYTES)?;
    // SAFETY: a board's memory is accessed through boards and doorbells only.
    unsafe { Doorbell::new(words, bit) }
}

/// What a peer sent cannot be used; or this system has no memory for it, which is not the peer's doing.
fn unusable(error: std::io::Error) -> Refusal {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::EAGAIN) => Refusal::Links,
        _ => Refusal::Hello,
    }
}

impl ShmRx {
    /// Looks at sockets and letters, and at links that go or are not polled. `now_ns` where the caller's time is known.
    #[cold]
    #[inline(never)]
    pub(crate) fn look(&mut self, now_ns: Option<u64>) {
        if let Some(now_ns) = now_ns {
            self.looked_ns = now_ns;
        }
        // What is accepted in one round says hello in the next.
        for _ in 0..ROUNDS_PER_LOOK {
            let tokens = self.own.watch.ready();
            for token in tokens.into_iter().flatten() {
                self.attend(token);
            }
            if tokens[0].is_none() {
                break;
            }
        }
        self.read_letters();
        if let Some(now_ns) = now_ns {
            self.door.keep_time(now_ns, &self.own.watch);
        }
        self.sweep_idle();
        self.drop_breakers();
        self.finish_ending();
    }

    fn attend(&mut self, token: Token) {
        match token {
            Token::Waker => {
                let _ = rustix::io::read(&*self.own.watch.event, &mut [0; 8]);
                self.woken = true;
            }
            Token::Listener => self.door.accept(&self.own.watch),
            Token::Stranger(id) => {
                if let Some(Heard { socket, message }) = self.door.hear(id, &self.own.watch) {
                    match message {
                        Message::Hello(hello, fds) => self.welcome(socket, hello, &fds),
                        // It thought better of it, or was killed.
                        Message::Closed => self.door.count_turned_away(),
                        Message::NoRoom => {
                            self.door.count_out_of_descriptors();
                            self.refuse(&socket, Refusal::Links);
                        }
                        _ => self.refuse(&socket, Refusal::Hello),
                    }
                }
            }
            Token::Socket(index, generation) => self.read_socket(index, generation),
            Token::Process(index, generation) => {
                if self.is_link(index, generation) {
                    self.end(index, Some(PeerLoss::ProcessDied));
                }
            }
        }
    }

    fn is_link(&self, index: usize, generation: u64) -> bool {
        // Tokens carry 32 bits of a generation.
        matches!(self.links.get(index), Some(Some(link)) if link.generation as u32 == generation as u32 && link.ending.is_none())
    }

    fn read_socket(&mut self, index: usize, generation: u64) {
        for _ in 0..MESSAGES_PER_LOOK {
            if !self.is_link(index, generation) {
                return;
            }
            let Some(Some(link)) = self.links.get(index) else { return };
            let Remote::Process { socket, .. } = &link.peer else { return };
            match hello::receive(socket) {
                Message::Nothing => return,
                Message::Bell => self.heat(index),
                Message::Welcome(hello, fds) => {
                    if let Err(refusal) = self.attach_process(index, &hello, &fds) {
                        self.cut_off(index, refusal);
                    }
                }
                Message::Refused => self.end(index, Some(PeerLoss::Refused)),
                Message::NoRoom => {
                    self.door.count_out_of_descriptors();
                    self.end(index, Some(PeerLoss::Refused));
                }
                Message::Closed => {
                    // If it never answered, its port was closing when we connected.
                    let closed = link.arena.is_none() || link.flags.other_has_closed();
                    self.end(index, Some(if closed { PeerLoss::Closed } else { PeerLoss::ProcessDied }));
                }
                Message::Hello(..) | Message::Malformed => self.cut_off(index, Refusal::Hello),
            }
        }
    }

    /// An index for a new link.
    fn index(&mut self) -> Option<usize> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        (self.links.len() < LINKS_MAX).then(|| {
            self.links.push(None);
            self.links.len() - 1
        })
    }

    fn next_generation(&mut self) -> u64 {
        self.generations += 1;
        self.generations
    }

    /// Adds both halves of a link at `index`.
    fn add(&mut self, index: usize, link: NewLink) -> Peer {
        let NewLink { generation, ends, claim, arena, doorbell, wake, peer, name, resolved } = link;
        let Ends { producer, consumer, flags } = ends;
        let state = Arc::new(LinkState::new(claim));
        let tx = TxLink {
            generation,
            producer,
            fenced: crate::barrier::is_shared() && doorbell.as_ref().is_some_and(Doorbell::receiver_fences),
            doorbell,
            wake,
            touched: false,
            lent: VecDeque::new(),
            staged: 0,
            state: Arc::clone(&state),
        };
        self.links[index] = Some(Box::new(RxLink {
            consumer,
            arena,
            empty_polls: 0,
            hot: false,
            generation,
            ending: None,
            flags,
            state,
            peer,
            name,
            resolved,
        }));
        self.inbox.post(TxChange::Add(index, Box::new(tx)));
        self.heat(index);
        Peer([index as u64, generation, 0])
    }

    /// The link that an earlier resolve of `name` made.
    pub(crate) fn resolved(&self, name: &str) -> Option<Peer> {
        self.links.iter().enumerate().find_map(|(index, link)| {
            let link = link.as_ref()?;
            (link.resolved.as_deref() == Some(name) && link.ending.is_none()).then_some(Peer([
                index as u64,
                link.generation,
                0,
            ]))
        })
    }

    /// Makes a link to the port called `name`.
    pub(crate) fn connect(&mut self, address: &str, name: &str) -> Result<Peer, PortError> {
        let limit = || PortError::Limit {
            what: format!("one more link, to {address}"),
            limit: LINKS_MAX as u64,
            remedy: "forget peers that are of no use any more, or open another port".to_owned(),
        };
        let Some(index) = self.index() else { return Err(limit()) };
        let made = match &self.door {
            Door::Process { .. } => self.connect_process(index, address, name),
            Door::Hub { hub, .. } => {
                let other = hub.find(address, name);
                other.and_then(|other| self.connect_thread(index, address, other))
            }
        };
        match made {
            Ok(mut link) => {
                link.resolved = Some(name.to_owned());
                Ok(self.add(index, link))
            }
            Err(error) => {
                self.free.push(index);
                Err(error)
            }
        }
    }

    fn connect_process(&mut self, index: usize, address: &str, name: &str) -> Result<NewLink, PortError> {
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
        // SAFETY: our side of memory that was made here; shared, so not trusted.
        let ends = unsafe { ends(&region, lines, Side::Initiator, false) }
            .ok_or_else(|| system("laying out the link")(ErrorKind::InvalidInput.into()))?;
        let Door::Process { board, .. } = &self.door else {
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

    /// Watches the socket of a link, and the process behind it where that is another than ours.
    fn watch_process(&self, socket: Arc<OwnedFd>, index: usize, generation: u64) -> Result<Remote, rustix::io::Errno> {
        self.own.watch.add(&socket, Token::Socket(index, generation))?;
        let peer = rustix::net::sockopt::socket_peercred(&socket)?.pid;
        let pidfd = if peer == rustix::process::getpid() {
            None
        } else {
            // Only an additional sign: without it the end of the socket tells. (A child that the peer forked can hold its end.)
            rustix::process::pidfd_open(peer, rustix::process::PidfdFlags::empty()).ok()
        };
        if let Some(pidfd) = &pidfd {
            self.own.watch.add(pidfd, Token::Process(index, generation))?;
        }
        Ok(Remote::Process { socket, pidfd })
    }

    /// Answers a stranger's hello with a link.
    fn welcome(&mut self, socket: OwnedFd, hello: Hello, fds: &[OwnedFd]) {
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

    fn refuse(&mut self, socket: impl AsFd, refusal: Refusal) {
        let _ = hello::send_refusal(socket, refusal);
        self.door.count_turned_away();
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
        // SAFETY: the claim makes this the only use of our side of the memory in this process; not trusted.
        let ends = unsafe { ends(&region, lines, Side::Acceptor, false) }.ok_or(Refusal::Hello)?;
        let doorbell = doorbell(&board, hello.bit).ok_or(Refusal::Hello)?;
        let generation = self.next_generation();
        let peer = self.watch_process(Arc::clone(socket), index, generation).map_err(|_| Refusal::Links)?;
        let (Door::Process { board, .. }, Some(own_arena)) = (&self.door, self.own.arena.fd()) else {
            return Err(Refusal::Hello);
        };
        let answer = Hello { arena_bytes: self.own.arena.capacity(), bit: index, ..hello };
        match hello::send_welcome(socket, &answer, [own_arena, board.as_fd()]) {
            Ok(()) => {}
            // It has gone already, as it may a moment later: what it had sent is delivered, and then its end is seen.
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

    /// The acceptor has answered: its arena and board are known, or why they are of no use.
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

    /// Ends a link whose peer broke the rules, or that this side has no room for.
    fn cut_off(&mut self, index: usize, why: Refusal) {
        let loss = match why {
            Refusal::Hello => {
                self.stats.count_dropped(Dropped::Malformed, 1);
                PeerLoss::Closed
            }
            Refusal::Links | Refusal::Ring => PeerLoss::Refused,
        };
        self.end(index, Some(loss));
    }

    fn attach(&mut self, index: usize, doorbell: Doorbell) {
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        self.inbox.post(TxChange::Attach(index, link.generation, doorbell));
        self.heat(index);
    }

    fn connect_thread(&mut self, index: usize, address: &str, other: Arc<Mailbox>) -> Result<NewLink, PortError> {
        let system = |source| PortError::System { doing: format!("making the memory of a link to {address}"), source };
        let lines = Lines { to_acceptor: other.ring_lines, to_initiator: self.own.ring_lines };
        let region = Arc::new(Region::private(lines.bytes()).map_err(system)?);
        // SAFETY: our side of private memory that was made here; the other side is a port of this process too.
        let ends = unsafe { ends(&region, lines, Side::Initiator, true) }
            .ok_or_else(|| system(ErrorKind::InvalidInput.into()))?;
        let Door::Hub { mailbox, .. } = &self.door else { return Err(system(ErrorKind::NotFound.into())) };
        let hello = Letter::Hello { from: Arc::clone(mailbox), link: Arc::clone(&region), lines, bit: index };
        if !other.post(hello) {
            return Err(PortError::NotFound { address: address.to_owned(), looked_in: "this hub".to_owned() });
        }
        let generation = self.next_generation();
        Ok(NewLink {
            generation,
            ends,
            claim: None,
            arena: Some(PeerArena::Own(other.arena.clone())),
            doorbell: None,
            wake: Wake::Event(Arc::clone(&other.event)),
            name: format!("shm://{}", other.name),
            peer: Remote::Thread { mailbox: other, link: region },
            resolved: None,
        })
    }

    fn read_letters(&mut self) {
        let letters = match &self.door {
            Door::Hub { mailbox, .. } if mailbox.is_pending() => mailbox.take(),
            _ => return,
        };
        for letter in letters {
            match letter {
                Letter::Hello { from, link, lines, bit } => self.welcome_thread(from, link, lines, bit),
                Letter::Welcome { link, bit } => {
                    if let Some(index) = self.link_of(&link, Side::Initiator)
                        && let Some(Some(there)) = self.links.get(index)
                        && let Remote::Thread { mailbox, .. } = &there.peer
                        && let Some(doorbell) = doorbell(&mailbox.board, bit)
                    {
                        self.attach(index, doorbell);
                    }
                }
                Letter::Refusal { link } => {
                    if let Some(index) = self.link_of(&link, Side::Initiator) {
                        self.end(index, Some(PeerLoss::Refused));
                    }
                }
                Letter::Bye { link, to } => {
                    if let Some(index) = self.link_of(&link, to) {
                        self.end(index, Some(PeerLoss::Closed));
                    }
                }
            }
        }
    }

    /// Our side, or that of our sides, of the link with this memory.
    fn link_of(&self, region: &Arc<Region>, side: Side) -> Option<usize> {
        self.links.iter().position(|link| match link.as_deref() {
            Some(RxLink { peer: Remote::Thread { link, .. }, flags, .. }) => {
                flags.side == side && Arc::ptr_eq(link, region)
            }
            _ => false,
        })
    }

    fn welcome_thread(&mut self, from: Arc<Mailbox>, link: Arc<Region>, lines: Lines, bit: usize) {
        let made = self.index().and_then(|index| {
            // SAFETY: the acceptor's side of a link between ports of this process; letters come once.
            let ends = unsafe { ends(&link, lines, Side::Acceptor, true) };
            match (ends, doorbell(&from.board, bit)) {
                (Some(ends), Some(doorbell)) => Some((index, ends, doorbell)),
                _ => {
                    self.free.push(index);
                    None
                }
            }
        });
        let Some((index, ends, doorbell)) = made else {
            from.post(Letter::Refusal { link });
            return;
        };
        let generation = self.next_generation();
        let name = if from.name.is_empty() { "shm://(thread)".to_owned() } else { format!("shm://{}", from.name) };
        let welcome = Letter::Welcome { link: Arc::clone(&link), bit: index };
        let new = NewLink {
            generation,
            ends,
            claim: None,
            arena: Some(PeerArena::Own(from.arena.clone())),
            doorbell: Some(doorbell),
            wake: Wake::Event(Arc::clone(&from.event)),
            peer: Remote::Thread { mailbox: Arc::clone(&from), link },
            name,
            resolved: None,
        };
        self.add(index, new);
        if !from.post(welcome) {
            self.end(index, Some(PeerLoss::Closed));
        }
    }

    /// Looks into some links that are not polled.
    fn sweep_idle(&mut self) {
        let links = self.links.len();
        for _ in 0..SWEEP.min(links) {
            self.sweep = if self.sweep + 1 < links { self.sweep + 1 } else { 0 };
            if let Some(Some(link)) = self.links.get(self.sweep)
                && !link.hot
                && !link.consumer.is_empty()
            {
                self.heat(self.sweep);
            }
        }
    }

    /// Ends the links of those that broke the rules.
    fn drop_breakers(&mut self) {
        for index in 0..self.links.len() {
            if let Some(Some(link)) = self.links.get(index)
                && link.ending.is_none()
                && (link.consumer.is_broken() || link.state.broken.load(Ordering::Relaxed))
            {
                self.cut_off(index, Refusal::Hello);
            }
        }
    }

    /// Begins the end of a link: nothing is sent any more, what the peer had sent is still delivered.
    pub(crate) fn end(&mut self, index: usize, loss: Option<PeerLoss>) {
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        if link.ending.is_some() {
            return;
        }
        link.flags.close();
        let other_side = link.flags.side.other();
        match &link.peer {
            Remote::Process { socket, pidfd } => {
                self.own.watch.remove(socket);
                if let Some(pidfd) = pidfd {
                    self.own.watch.remove(pidfd);
                }
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            }
            Remote::Thread { mailbox, link } => {
                mailbox.post(Letter::Bye { link: Arc::clone(link), to: other_side });
            }
        }
        link.ending = Some(Ending { loss, last_position: link.consumer.last_position() });
        self.inbox.post(TxChange::Remove(index, link.generation));
        self.ending += 1;
        self.heat(index);
    }

    /// Completes the end of links whose packets were all taken.
    pub(crate) fn finish_ending(&mut self) {
        if self.ending == 0 {
            return;
        }
        for index in 0..self.links.len() {
            let Some(Some(link)) = self.links.get(index) else { continue };
            let Some(ending) = link.ending else { continue };
            // A link without an arena never delivers; a living peer could go on sending for ever.
            let silent = link.consumer.is_empty() || link.consumer.position() >= ending.last_position;
            if ending.loss.is_some() && link.arena.is_some() && !silent {
                continue;
            }
            if let Some(loss) = ending.loss {
                self.events.push_back(PortEvent::PeerLost { peer: Peer([index as u64, link.generation, 0]), loss });
            }
            self.links[index] = None;
            self.hot.retain(|&other| other != index);
            self.board.clear(index);
            self.free.push(index);
            self.ending -= 1;
        }
    }

    /// Ends all links at once, because the port goes.
    pub(crate) fn close(&mut self) {
        for index in 0..self.links.len() {
            self.end(index, None);
        }
        if let Door::Hub { hub, mailbox } = &self.door {
            hub.remove(mailbox);
            for letter in mailbox.close() {
                if let Letter::Hello { from, link, .. } = letter {
                    from.post(Letter::Bye { link, to: Side::Initiator });
                }
            }
        }
    }
}

/// A link that is ready to be added.
struct NewLink {
    generation: u64,
    ends: Ends,
    /// Of memory that others can pass to us a second time.
    claim: Option<Claim>,
    arena: Option<PeerArena>,
    doorbell: Option<Doorbell>,
    wake: Wake,
    peer: Remote,
    name: String,
    resolved: Option<String>,
}
