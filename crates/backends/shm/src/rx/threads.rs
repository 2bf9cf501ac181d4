//! Links with ports of other threads of this process: they are set up by [messages](ControlMessage), and use private
//! memory.

use std::io::ErrorKind;
use std::sync::Arc;

use sinew_fabric::{PeerLoss, PortError};
use sinew_mem::Region;

use super::links::{NewLink, doorbell};
use super::{Remote, RxLink, ShmRx};
use crate::hub::{ControlMessage, Mailbox};
use crate::link::{Lines, PeerArena, Side, Wake, ends};
use crate::peer_source::PeerSource;

impl ShmRx {
    pub(super) fn connect_thread(
        &mut self,
        index: usize,
        address: &str,
        other: Arc<Mailbox>,
    ) -> Result<NewLink, PortError> {
        let system = |source| PortError::System { doing: format!("making the memory of a link to {address}"), source };
        let lines = Lines { to_acceptor: other.ring_lines, to_initiator: self.own.ring_lines };
        let region = Arc::new(Region::private(lines.bytes()).map_err(system)?);
        // SAFETY: this is our side of private memory that was just made here; the other side is a port of this process
        // too.
        let ends = unsafe { ends(&region, lines, Side::Initiator, true) }
            .ok_or_else(|| system(ErrorKind::InvalidInput.into()))?;
        let PeerSource::Hub { mailbox, .. } = &self.peer_source else { return Err(system(ErrorKind::NotFound.into())) };
        let hello = ControlMessage::Hello { from: Arc::clone(mailbox), link: Arc::clone(&region), lines, bit: index };
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

    pub(super) fn read_messages(&mut self) {
        let messages = match &self.peer_source {
            PeerSource::Hub { mailbox, .. } if mailbox.is_pending() => mailbox.take(),
            _ => return,
        };
        for message in messages {
            match message {
                ControlMessage::Hello { from, link, lines, bit } => self.welcome_thread(from, link, lines, bit),
                ControlMessage::Welcome { link, bit } => {
                    if let Some(index) = self.link_of(&link, Side::Initiator)
                        && let Some(Some(there)) = self.links.get(index)
                        && let Remote::Thread { mailbox, .. } = &there.peer
                        && let Some(doorbell) = doorbell(&mailbox.board, bit)
                    {
                        self.attach(index, doorbell);
                    }
                }
                ControlMessage::Refusal { link } => {
                    if let Some(index) = self.link_of(&link, Side::Initiator) {
                        self.end(index, Some(PeerLoss::Refused));
                    }
                }
                ControlMessage::Closed { link, to } => {
                    if let Some(index) = self.link_of(&link, to) {
                        self.end(index, Some(PeerLoss::Closed));
                    }
                }
            }
        }
    }

    /// Index of our link on `side` of this memory. (A port linked to itself has both sides.)
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
            // SAFETY: this is the acceptor's side of a link between ports of this process; each hello is read only
            // once.
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
            from.post(ControlMessage::Refusal { link });
            return;
        };
        let generation = self.next_generation();
        let name = if from.name.is_empty() { "shm://(thread)".to_owned() } else { format!("shm://{}", from.name) };
        let welcome = ControlMessage::Welcome { link: Arc::clone(&link), bit: index };
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
}
