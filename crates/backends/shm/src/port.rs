//! The port: it holds the two halves, resolves names, and sleeps.

use std::sync::Arc;

use rustix::fd::OwnedFd;
use sinew_fabric::{
    Address, Armed, Caps, Descriptor, PacketPort, PacketTx, Peer, PortError, PortEvent, PortStats, Readiness,
    WakeTarget, Waker,
};
use sinew_mem::ring::{self, BOARD_BYTES, Board, INLINE_MAX, Words};
use sinew_mem::{Access, Arena, Region};

use crate::barrier;
use crate::hub::{Hub, Mailbox};
use crate::link::{TxInbox, wake_event};
use crate::names::{self, Name};
use crate::options::Options;
use crate::peer_source::{ACCEPT_PAUSE_NS, PeerSource, Token, Watch};
use crate::rx::{BURST_MAX, LocalSide, ShmRx};
use crate::tx::ShmTx;
use crate::{LINKS_MAX, PACKET_LEN_MAX};

/// A packet port over shared memory. See the [crate's documentation](crate).
///
/// [`ShmPort::open`] opens one for use between processes, [`Hub::port`] one between threads of one process. A port can
/// be opened on one thread and handed to another, which then owns it.
#[derive(Debug)]
pub struct ShmPort {
    rx: ShmRx,
    tx: ShmTx,
    arena: Arena,
    address: Address,
    /// Forgotten peers that still hold shares.
    forgotten: Vec<Peer>,
    /// Whether the board says that the thread sleeps.
    armed: bool,
}

/// Longest sleep, in ns, of a port that cannot be sure that senders see it sleep.
const NAP_NS: u64 = 1_000_000;

fn system(doing: &str) -> impl FnOnce(std::io::Error) -> PortError {
    let doing = doing.to_owned();
    move |source| PortError::System { doing, source }
}

fn board_of(region: &Arc<Region>) -> Result<Board, PortError> {
    // SAFETY: the memory was just made, and is accessed only through boards and doorbells.
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
    /// Opens a port that other processes of this user can reach: `shm://name`, or `shm://` for one that must make the
    /// first contact. Options are those of the [crate](crate).
    ///
    /// # Errors
    ///
    /// [`PortError`]: the address is not an `shm` one, the name is taken or invalid, there is no directory for names,
    /// or the system refuses.
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
        let door = PeerSource::process(name, board_fd);
        Ok(Self::with(board_of(&board)?, door, watch, arena, options, address))
    }

    fn in_hub(hub: &Hub, address: &Address) -> Result<Self, PortError> {
        let options = Self::options(address)?;
        let watch = Watch::new()?;
        let arena = Arena::private(options.arena_bytes).map_err(system("making the arena"))?;
        let board = Arc::new(Region::private(BOARD_BYTES).map_err(system("making the board"))?);
        let event = Arc::clone(&watch.event);
        let mailbox =
            Arc::new(Mailbox::new(address.rest(), event, arena.clone(), Arc::clone(&board), options.ring_lines));
        hub.register(&address.to_string(), address.rest(), &mailbox)?;
        let door = PeerSource::Hub { hub: hub.clone(), mailbox };
        Ok(Self::with(board_of(&board)?, door, watch, arena, options, address))
    }

    fn options(address: &Address) -> Result<Options, PortError> {
        address.check_scheme("shm", "NAME")?;
        Ok(Options::of(address)?)
    }

    fn with(board: Board, door: PeerSource, watch: Watch, arena: Arena, options: Options, address: &Address) -> Self {
        let inbox = Arc::new(TxInbox::default());
        let own = LocalSide { watch, arena: arena.clone(), ring_lines: options.ring_lines };
        Self {
            rx: ShmRx::new(board, door, own, Arc::clone(&inbox)),
            tx: ShmTx::new(inbox, arena.clone()),
            arena,
            address: Address::new("shm", address.rest()),
            forgotten: Vec::new(),
            armed: false,
        }
    }

    /// Connections that were turned away: those of other users, those with a malformed hello or none in time, and those
    /// beyond the limit on links.
    pub fn turned_away(&self) -> u64 {
        match &self.rx.peer_source {
            PeerSource::Process { turned_away, .. } => *turned_away,
            PeerSource::Hub { .. } => 0,
        }
    }

    /// Times that there was no descriptor (or kernel memory) for a connection. Waiting connections are accepted once
    /// there is; see `ulimit -n`.
    pub fn out_of_descriptors(&self) -> u64 {
        match &self.rx.peer_source {
            PeerSource::Process { out_of_descriptors, .. } => *out_of_descriptors,
            PeerSource::Hub { .. } => 0,
        }
    }

    /// Links of this port, and how many of them it polls now.
    pub fn links(&self) -> (usize, usize) {
        (self.rx.links.iter().flatten().count(), self.rx.hot.len())
    }

    /// Marks the thread as awake and handles whatever made the descriptor readable. Returns whether a waker was called.
    fn end_sleep(&mut self) -> bool {
        self.armed = false;
        self.rx.board.end_sleep();
        self.rx.upkeep(None);
        if self.tx.has_changes() {
            self.tx.apply_changes();
        }
        std::mem::take(&mut self.rx.woken)
    }

    /// Closes the links of forgotten peers that hold no more shares.
    #[cold]
    fn close_forgotten(&mut self) {
        let Self { rx, tx, forgotten, .. } = self;
        forgotten.retain(|&peer| {
            let index = peer.0[0] as usize;
            let Some(Some(link)) = rx.links.get(index) else { return false };
            // The peer has sent again, or the index belongs to another link.
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

impl Hub {
    /// Opens a port: `name`, or `name?option=value&...` with the options of `shm://` addresses. A port with an empty
    /// name cannot be found by others, but they can answer it.
    ///
    /// # Errors
    ///
    /// [`PortError`]: the name is taken or invalid, an option is invalid, or the system refuses.
    pub fn port(&self, name: &str) -> Result<ShmPort, PortError> {
        let address: Address = format!("shm://{name}").parse()?;
        ShmPort::in_hub(self, &address)
    }
}

impl Drop for ShmPort {
    fn drop(&mut self) {
        self.rx.close();
        // Shares are revoked before anybody who still has buffers of the arena can reuse it.
        self.tx.apply_changes();
    }
}

struct EventWaker(Arc<OwnedFd>);

impl WakeTarget for EventWaker {
    fn wake(&self) {
        wake_event(&self.0);
    }
}

impl Readiness for ShmPort {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.rx.own.watch.descriptor())
    }

    /// The sleep is limited to a millisecond where `membarrier` has stopped working, and to ten where connections wait
    /// for a descriptor.
    fn arm(&mut self, now_ns: u64) -> std::io::Result<Armed> {
        self.tx.submit();
        let was_woken = self.armed && self.end_sleep();
        self.rx.board.sleep();
        self.armed = true;
        // The senders' fences come before the look into their rings: packets published before the senders could see the
        // sleeper are seen here.
        let is_fenced = barrier::fence_everywhere();
        if was_woken || self.rx.has_work() {
            self.end_sleep();
            return Ok(Armed::Ready);
        }
        // Without the senders' fences a sender may be missed, so this sleep is a nap.
        let nap_ns = if is_fenced { self.rx.peer_source.is_paused().then_some(ACCEPT_PAUSE_NS) } else { Some(NAP_NS) };
        Ok(Armed::Sleep { until_ns: nap_ns.map(|nap_ns| now_ns.saturating_add(nap_ns)) })
    }

    fn disarm(&mut self) -> bool {
        self.armed && self.end_sleep()
    }
}

impl PacketPort for ShmPort {
    type Rx = ShmRx;
    type Tx = ShmTx;

    fn caps(&self) -> Caps {
        let per_peer = ring::packets_for(self.rx.own.ring_lines);
        Caps {
            packet_len_max: PACKET_LEN_MAX,
            overhead: 0,
            copy_len_max: INLINE_MAX,
            burst_max: BURST_MAX,
            receive_packets: per_peer * LINKS_MAX,
            receive_packets_per_peer: per_peer,
            lends_in_place: matches!(self.rx.peer_source, PeerSource::Hub { .. }),
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
        // Upkeep ends links whose peers have died, so that none of them is returned.
        self.rx.upkeep(None);
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

    /// The link is closed once nothing is lent to the peer, which then sees [`sinew_fabric::PeerLoss::Closed`]. If the
    /// peer sends before that, the link stays.
    fn forget(&mut self, peer: Peer) {
        if !self.forgotten.contains(&peer) {
            self.forgotten.push(peer);
        }
        self.close_forgotten();
    }

    fn waker(&self) -> Waker {
        Waker::new(Arc::new(EventWaker(Arc::clone(&self.rx.own.watch.event))))
    }

    fn stats(&self) -> PortStats {
        self.rx.stats.merged(&self.tx.stats)
    }
}
