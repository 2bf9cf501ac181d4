//! The port: both halves, opening, resolving, sleeping.

use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use sinew_fabric::{Address, AddressError, Caps, PacketPort, Peer, PortError, PortEvent, PortStats, WakeTarget, Waker};
use sinew_mem::ring::{self, BOARD_BYTES, Board, INLINE_MAX, Words};
use sinew_mem::{Access, Arena, Region};

use crate::barrier;
use crate::door::{Door, PAUSE_NS, Token, Watch};
use crate::hub::{Hub, Mailbox};
use crate::link::{TxInbox, wake_event};
use crate::names::{self, Name};
use crate::options::Options;
use crate::rx::{BURST_MAX, ShmRx};
use crate::tx::ShmTx;
use crate::upkeep::Own;
use crate::{LINKS_MAX, PACKET_LEN_MAX};

/// A packet port over shared memory. See the [crate's documentation](crate).
///
/// Between processes: [`ShmPort::open`]. Between threads of one process: [`Hub::port`]. A port can be opened on one thread and
/// handed to another, which then owns it.
#[derive(Debug)]
pub struct ShmPort {
    rx: ShmRx,
    tx: ShmTx,
    arena: Arena,
    address: Address,
    /// Peers that were forgotten and still hold shares.
    forgotten: Vec<Peer>,
}

/// How long a port sleeps at most where it cannot be sure that senders see it sleep.
const NAP_NS: u64 = 1_000_000;

fn system(doing: &str) -> impl FnOnce(std::io::Error) -> PortError {
    let doing = doing.to_owned();
    move |source| PortError::System { doing, source }
}

fn board_of(region: &Arc<Region>) -> Result<Board, PortError> {
    // SAFETY: the memory was just made, and is accessed through boards and doorbells only.
    let board = Words::of_region(region, 0, BOARD_BYTES).and_then(|words| unsafe { Board::new(words) });
    let board = board.ok_or_else(|| PortError::System {
        doing: "laying out the board".to_owned(),
        source: std::io::ErrorKind::InvalidInput.into(),
    })?;
    if barrier::is_shared() {
        board.promise_fences();
    }
    Ok(board)
}

impl ShmPort {
    /// Opens a port that other processes of this user can reach: `shm://name`, or `shm://` for one that only talks to others
    /// first. Options are those of the [crate](crate).
    ///
    /// # Errors
    ///
    /// [`PortError`]: no `shm` address, a name that is taken or cannot be one, no directory for names, or what the system says.
    pub fn open(address: &Address) -> Result<Self, PortError> {
        let options = Self::options(address)?;
        let watch = Watch::new()?;
        let name = match address.rest() {
            "" => None,
            name => Some(Name::claim(&address.to_string(), name, options.ring_lines)?),
        };
        if let Some(name) = &name {
            watch
                .add(&name.listener, Token::Listener)
                .map_err(|error| system("watching the listener")(error.into()))?;
        }
        let arena = Arena::shared("sinew-arena", options.arena_bytes).map_err(system("making the arena"))?;
        let (board, board_fd) =
            Region::shared("sinew-board", BOARD_BYTES, Access::ReadWrite).map_err(system("making the board"))?;
        let board = Arc::new(board);
        let door = Door::process(name, board_fd);
        Ok(Self::with(board_of(&board)?, door, watch, arena, options, address))
    }

    pub(crate) fn in_hub(hub: &Hub, address: &Address) -> Result<Self, PortError> {
        let options = Self::options(address)?;
        let watch = Watch::new()?;
        let arena = Arena::private(options.arena_bytes).map_err(system("making the arena"))?;
        let board = Arc::new(Region::private(BOARD_BYTES).map_err(system("making the board"))?);
        let event = Arc::clone(&watch.event);
        let mailbox =
            Arc::new(Mailbox::new(address.rest(), event, arena.clone(), Arc::clone(&board), options.ring_lines));
        hub.register(&address.to_string(), address.rest(), &mailbox)?;
        let door = Door::Hub { hub: hub.clone(), mailbox };
        Ok(Self::with(board_of(&board)?, door, watch, arena, options, address))
    }

    fn options(address: &Address) -> Result<Options, PortError> {
        if address.scheme() != "shm" {
            return Err(PortError::Address(AddressError::NoScheme(address.to_string())));
        }
        Ok(Options::of(address)?)
    }

    fn with(board: Board, door: Door, watch: Watch, arena: Arena, options: Options, address: &Address) -> Self {
        let inbox = Arc::new(TxInbox::default());
        let own = Own { watch, arena: arena.clone(), ring_lines: options.ring_lines };
        Self {
            rx: ShmRx::new(board, door, own, Arc::clone(&inbox)),
            tx: ShmTx::new(inbox, arena.clone()),
            arena,
            address: Address::new("shm", address.rest()),
            forgotten: Vec::new(),
        }
    }

    /// Connections that were turned away: those of other users, hellos that made no sense or never came, links beyond the limit.
    pub fn turned_away(&self) -> u64 {
        match &self.rx.door {
            Door::Process { turned_away, .. } => *turned_away,
            Door::Hub { .. } => 0,
        }
    }

    /// Times that there was no descriptor (or kernel memory) for a connection. Those that wait are let in once there is; see
    /// `ulimit -n`.
    pub fn out_of_descriptors(&self) -> u64 {
        match &self.rx.door {
            Door::Process { out_of_descriptors, .. } => *out_of_descriptors,
            Door::Hub { .. } => 0,
        }
    }

    /// Links that this port has, and how many of them it polls now.
    pub fn links(&self) -> (usize, usize) {
        (self.rx.links.iter().flatten().count(), self.rx.hot.len())
    }

    /// Closes the links of forgotten peers as soon as nothing is lent to them.
    #[cold]
    fn close_forgotten(&mut self) {
        let Self { rx, tx, forgotten, .. } = self;
        forgotten.retain(|&peer| {
            let index = peer.0[0] as usize;
            let Some(Some(link)) = rx.links.get(index) else { return false };
            // It came back, or it is another.
            if link.generation != peer.0[1] || link.ending.is_some() || !link.consumer.is_empty() {
                return false;
            }
            if tx.lends_to(peer) {
                return true;
            }
            rx.end(index, None);
            false
        });
        self.rx.finish_ending();
    }
}

impl Drop for ShmPort {
    fn drop(&mut self) {
        self.rx.close();
        // Shares end, revoked, before the arena can be used by whoever still has buffers of it.
        self.tx.apply_changes();
    }
}

struct EventWaker(Arc<OwnedFd>);

impl WakeTarget for EventWaker {
    fn wake(&self) {
        wake_event(&self.0);
    }
}

impl PacketPort for ShmPort {
    type Rx = ShmRx;
    type Tx = ShmTx;

    fn caps(&self) -> Caps {
        let per_peer = ring::packets_for(self.rx.own.ring_lines);
        Caps {
            packet_len_max: PACKET_LEN_MAX,
            copy_len_max: INLINE_MAX,
            burst_max: BURST_MAX,
            receive_packets: per_peer * LINKS_MAX,
            receive_packets_per_peer: per_peer,
            lends_in_place: matches!(self.rx.door, Door::Hub { .. }),
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn resolve(&mut self, address: &Address) -> Result<Peer, PortError> {
        Self::options(address)?;
        names::check(&address.to_string(), address.rest())?;
        // A link whose other end has died is not one to return.
        self.rx.look(None);
        match self.rx.resolved(address.rest()) {
            Some(peer) => Ok(peer),
            None => self.rx.connect(&format!("shm://{}", address.rest()), address.rest()),
        }
    }

    fn describe(&self, peer: Peer) -> String {
        match self.rx.links.get(peer.0[0] as usize) {
            Some(Some(link)) if link.generation == peer.0[1] => link.name.clone(),
            _ => "shm://(gone)".to_owned(),
        }
    }

    fn split(&mut self) -> (&mut ShmRx, &mut ShmTx) {
        (&mut self.rx, &mut self.tx)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<PortEvent> {
        if !self.forgotten.is_empty() {
            self.close_forgotten();
        }
        if self.rx.ending > 0 {
            self.rx.finish_ending();
        }
        self.rx.events.pop_front()
    }

    /// The link is closed once nothing is lent to the peer, which then sees [`sinew_fabric::PeerLoss::Closed`]. If it sends before
    /// that, the link stays.
    fn forget(&mut self, peer: Peer) {
        if !self.forgotten.contains(&peer) {
            self.forgotten.push(peer);
        }
        self.close_forgotten();
    }

    fn waker(&self) -> Waker {
        Waker::new(Arc::new(EventWaker(Arc::clone(&self.rx.own.watch.event))))
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        self.rx.board.sleep();
        let bounded = |by_ns: u64| Some(timeout_ns.map_or(by_ns, |ns| ns.min(by_ns)));
        let timeout_ns = match () {
            // A sender whose fence could not be made may be missed: then this sleep is a nap.
            () if !barrier::fence_everywhere() => bounded(NAP_NS),
            () if self.rx.door.is_paused() => bounded(PAUSE_NS),
            () => timeout_ns,
        };
        let mut slept = Ok(());
        if !self.rx.has_work() {
            let timeout = timeout_ns.map(|ns| Timespec {
                tv_sec: (ns / 1_000_000_000).try_into().unwrap_or(i64::MAX / 2),
                tv_nsec: (ns % 1_000_000_000) as _,
            });
            slept = match rustix::event::poll(
                &mut [PollFd::from_borrowed_fd(self.rx.own.watch.fd(), PollFlags::IN)],
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        self.rx.board.awake();
        self.rx.look(None);
        self.rx.woken = false;
        if self.tx.has_changes() {
            self.tx.apply_changes();
        }
        slept
    }

    fn stats(&self) -> PortStats {
        self.rx.stats.merged(&self.tx.stats)
    }
}
