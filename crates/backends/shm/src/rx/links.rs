//! Adds new links to a port. `processes` and `threads` make them.

use std::collections::VecDeque;
use std::sync::Arc;

use sinew_fabric::{Peer, PortError};
use sinew_mem::Region;
use sinew_mem::ring::{self, Doorbell, Words};

use super::{Remote, RxLink, ShmRx};
use crate::LINKS_MAX;
use crate::copies::Copies;
use crate::link::{Claim, Ends, LinkState, PeerArena, TxChange, TxLink, Wake};
use crate::peer_source::PeerSource;

/// A link that is ready to be added.
pub(super) struct NewLink {
    pub generation: u64,
    pub ends: Ends,
    /// Set for memory that a peer could pass to us a second time.
    pub claim: Option<Claim>,
    pub arena: Option<PeerArena>,
    pub doorbell: Option<Doorbell>,
    pub wake: Wake,
    pub peer: Remote,
    pub name: String,
    pub resolved: Option<String>,
}

pub(super) fn doorbell(board: &Arc<Region>, bit: usize) -> Option<Doorbell> {
    let words = Words::of_region(board, 0, ring::BOARD_BYTES)?;
    // SAFETY: a board's memory is accessed only through boards and doorbells.
    unsafe { Doorbell::new(words, bit) }
}

impl ShmRx {
    /// Takes an index for a new link; `None` at the limit.
    pub(super) fn index(&mut self) -> Option<usize> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        (self.links.len() < LINKS_MAX).then(|| {
            self.links.push(None);
            self.links.len() - 1
        })
    }

    pub(super) fn next_generation(&mut self) -> u64 {
        self.generations += 1;
        self.generations
    }

    /// Adds both halves of a link at `index`.
    pub(super) fn add(&mut self, index: usize, link: NewLink) -> Peer {
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
            copies: Copies::default(),
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
        self.start_polling(index);
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
            remedy: "forget peers that are no longer needed, or open another port".to_owned(),
        };
        let Some(index) = self.index() else { return Err(limit()) };
        let made = match &self.peer_source {
            PeerSource::Process { .. } => self.connect_process(index, address, name),
            PeerSource::Hub { hub, .. } => {
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

    pub(super) fn attach(&mut self, index: usize, doorbell: Doorbell) {
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        self.inbox.post(TxChange::Attach(index, link.generation, doorbell));
        self.start_polling(index);
    }
}
