//! The occasional work of a port, its *upkeep*: a pass checks sockets and control messages, and links that end or are
//! not polled.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sinew_fabric::{Dropped, Peer, PeerLoss, PortEvent};

use super::{Ending, Remote, ShmRx};
use crate::hello::{Message, Refusal};
use crate::hub::ControlMessage;
use crate::link::{Side, TxChange};
use crate::peer_source::{FirstMessage, PeerSource, Token};

/// Links that are checked in one pass although they are not polled. A packet waits only for this check if its sender
/// was stopped before it rang the doorbell, or if another process has cleared the sender's bit.
const SWEEP: usize = 16;
/// Most rounds over the ready sockets in one pass.
const ROUNDS_PER_PASS: usize = 4;

impl ShmRx {
    /// Checks sockets and messages, and links that end or are not polled. `now_ns` is given where the caller knows the
    /// time.
    #[cold]
    #[inline(never)]
    pub(crate) fn upkeep(&mut self, now_ns: Option<u64>) {
        if let Some(now_ns) = now_ns {
            self.upkeep_ns = now_ns;
        }
        // A connection accepted in one round says hello in the next.
        for _ in 0..ROUNDS_PER_PASS {
            let tokens = self.own.watch.ready();
            for token in tokens.into_iter().flatten() {
                self.handle_ready(token);
            }
            if tokens[0].is_none() {
                break;
            }
        }
        self.read_messages();
        if let Some(now_ns) = now_ns {
            self.peer_source.expire_pending(now_ns, &self.own.watch);
        }
        self.sweep_idle();
        self.end_broken_links();
        self.finish_ending();
    }

    fn handle_ready(&mut self, token: Token) {
        match token {
            Token::Waker => {
                let _ = rustix::io::read(&*self.own.watch.event, &mut [0; 8]);
                self.woken = true;
            }
            Token::Listener => self.peer_source.accept(&self.own.watch),
            Token::Pending(id) => {
                if let Some(FirstMessage { socket, message }) = self.peer_source.read_first(id, &self.own.watch) {
                    match message {
                        Message::Hello(hello, fds) => self.welcome(socket, hello, &fds),
                        // The peer changed its mind, or was killed.
                        Message::Closed => self.peer_source.count_turned_away(),
                        Message::NoRoom => {
                            self.peer_source.count_out_of_descriptors();
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

    pub(super) fn is_link(&self, index: usize, generation: u64) -> bool {
        // Tokens carry 32 bits of a generation.
        matches!(self.links.get(index), Some(Some(link)) if link.generation as u32 == generation as u32 && link.ending.is_none())
    }

    /// Checks some of the links that are not polled.
    fn sweep_idle(&mut self) {
        let links = self.links.len();
        for _ in 0..SWEEP.min(links) {
            self.sweep = if self.sweep + 1 < links { self.sweep + 1 } else { 0 };
            if let Some(Some(link)) = self.links.get(self.sweep)
                && !link.hot
                && !link.consumer.is_empty()
            {
                self.start_polling(self.sweep);
            }
        }
    }

    /// Ends the links of peers that broke the rules.
    fn end_broken_links(&mut self) {
        for index in 0..self.links.len() {
            if let Some(Some(link)) = self.links.get(index)
                && link.ending.is_none()
                && (link.consumer.is_broken() || link.state.broken.load(Ordering::Relaxed))
            {
                self.cut_off(index, Refusal::Hello);
            }
        }
    }

    /// Ends a link whose peer broke the rules, or for which this side has no room.
    pub(super) fn cut_off(&mut self, index: usize, why: Refusal) {
        let loss = match why {
            Refusal::Hello => {
                self.stats.count_dropped(Dropped::Malformed, 1);
                PeerLoss::Closed
            }
            Refusal::Links | Refusal::Ring => PeerLoss::Refused,
        };
        self.end(index, Some(loss));
    }

    /// Begins to end a link: nothing more is sent, and what the peer had sent is still delivered.
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
                mailbox.post(ControlMessage::Closed { link: Arc::clone(link), to: other_side });
            }
        }
        link.ending = Some(Ending { loss, last_position: link.consumer.last_position() });
        self.inbox.post(TxChange::Remove(index, link.generation));
        self.ending += 1;
        self.start_polling(index);
    }

    /// Removes ending links whose packets have all been taken.
    pub(crate) fn finish_ending(&mut self) {
        if self.ending == 0 {
            return;
        }
        for index in 0..self.links.len() {
            let Some(Some(link)) = self.links.get(index) else { continue };
            let Some(ending) = link.ending else { continue };
            // A link without an arena never delivers. The position bounds the wait, as a living peer could go on
            // sending for ever.
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

    /// Ends all links at once, because the port closes.
    pub(crate) fn close(&mut self) {
        for index in 0..self.links.len() {
            self.end(index, None);
        }
        if let PeerSource::Hub { hub, mailbox } = &self.peer_source {
            hub.remove(mailbox);
            for message in mailbox.close() {
                if let ControlMessage::Hello { from, link, .. } = message {
                    from.post(ControlMessage::Closed { link, to: Side::Initiator });
                }
            }
        }
    }
}
