//! Watching of peers, and retransmission of management packets that were not answered.
//!
//! If the client of an accepted session neither confirms nor uses it, the client is reminded. The session ends after a
//! hundred reminders that a living peer left unanswered. A check sends at most eight reminders, however many sessions
//! wait.

use std::sync::Arc;

use sinew_fabric::{Peer, PeerLoss};
use sinew_wire::management::{Liveness, Management};
use sinew_wire::{Header, Kind, SessionKey};

use super::Sessions;
use crate::client::ClientState;
use crate::config::Config;
use crate::core::Core;
use crate::error::{Cause, ConnectError};
use crate::events::SessionEvent;
use crate::stats::PacketDrop;

/// Time between two reminders to a client that has not used its accepted session.
const REMIND_NS: u64 = 1_000_000_000;
/// Unanswered reminders, counted only while the peer is heard, after which the session ends. Where half of all packets
/// are lost, three of four reminders bring no answer: a limit of twenty would lose one session in some 300. A high
/// limit does not help an attacker: by answering one reminder, a client can keep a session that it never uses.
const REMINDERS_MAX: u8 = 100;
/// Reminders sent in one check; the sessions take turns. A client that asks for sessions by the thousand and answers
/// nothing must not be sent megabytes.
const REMINDERS_AT_ONCE: usize = 8;
/// Gap between two turns above which the loop counts as stopped. Shorter gaps are part of the measured round trips.
const PAUSE_NS: u64 = 5_000_000;
/// Time without a valid packet after which a peer that is reported unreachable is given up; two round trips, if these
/// are longer.
const SUSPICION_NS: u64 = 100_000_000;
/// Interval of the pings of a peer that is reported unreachable.
const SUSPECT_PING_NS: u64 = 20_000_000;
/// Least number of these pings before the peer is given up, however rarely our loop turned: some may have been lost.
const SUSPECT_PINGS: u8 = 4;
/// Pings of a silent peer in the second half of the time after which it is given up. Where half of all packets are
/// lost, three of four pings bring no answer, and ten in a row every ten minutes.
const LAST_PINGS: u64 = 50;

/// Gap between two turns above which the time of the gap is excluded from time-outs.
pub(super) fn pause_ns(config: &Config) -> u64 {
    config.probe_interval_ns.min(config.retransmit_timeout_ns.max(PAUSE_NS))
}

/// Time between two of the last pings of a silent peer.
fn last_ping_spacing_ns(config: &Config) -> u64 {
    config.peer_timeout_ns / 2 / LAST_PINGS
}

/// Time between two checks of a loop that turns.
fn check_spacing_ns(config: &Config) -> u64 {
    let due_ns = [config.connect_retry_ns / 2, config.probe_interval_ns / 4, last_ping_spacing_ns(config)];
    due_ns.into_iter().fold(u64::MAX, u64::min).max(1)
}

/// When a peer with these times is next pinged, or given up, if it stays silent.
fn silence_due_ns(config: &Config, last_heard_ns: u64, last_ping_ns: u64) -> u64 {
    let (interval_ns, timeout_ns) = (config.probe_interval_ns, config.peer_timeout_ns);
    let next_ns =
        |silence_ns, spacing_ns| last_heard_ns.saturating_add(silence_ns).max(last_ping_ns.saturating_add(spacing_ns));
    // One check later than the interval demands: by then the peer has usually answered the last ping, so that no other
    // is due.
    let next = next_ns(interval_ns, interval_ns).saturating_add(check_spacing_ns(config));
    let last_chance = next_ns(interval_ns.max(timeout_ns / 2), interval_ns.min(last_ping_spacing_ns(config)));
    next.min(last_chance).min(last_heard_ns.saturating_add(timeout_ns))
}

/// Excludes a pause, in which we were stopped or our user was busy, from the silence of peers and the waits of calls.
#[cold]
fn exclude_gap(core: &mut Core, gap_ns: u64) {
    if gap_ns > core.shared.config.probe_interval_ns {
        // The peers were not silent; we did not listen.
        core.shared.peers.shift_last_heard(gap_ns);
    }
    if gap_ns > core.shared.config.retransmit_timeout_ns.max(PAUSE_NS) {
        core.clients.exclude_pause(core.shared.times_calls);
    }
}

impl Sessions {
    /// Starts a turn of the loop at `now_ns`. Returns whether the endpoint is armed.
    #[inline(always)]
    pub fn begin_turn(&mut self, core: &mut Core, now_ns: u64) -> bool {
        let gap_ns = now_ns.saturating_sub(self.last_turn_ns);
        (self.last_turn_ns, core.shared.now_ns) = (now_ns, now_ns);
        gap_ns >= self.noticed_gap_ns && self.notice_gap(core, gap_ns)
    }

    #[cold]
    fn notice_gap(&mut self, core: &mut Core, gap_ns: u64) -> bool {
        // A thread that sleeps until something arrives is listening, but only until the time at which it was to wake.
        let gap_ns = gap_ns.min(self.last_turn_ns.saturating_sub(self.slept_until_ns));
        if gap_ns > self.pause_ns {
            exclude_gap(core, gap_ns);
        }
        self.slept_until_ns = 0;
        if !self.armed {
            self.noticed_gap_ns = self.pause_ns.saturating_add(1);
        }
        self.armed
    }

    /// Notes whether a thread may be sleeping on the endpoint.
    pub fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
        // The turn after a sleep must notice the sleep, even if it was ended elsewhere.
        let slept = armed || self.slept_until_ns > 0;
        self.noticed_gap_ns = if slept { 0 } else { self.pause_ns.saturating_add(1) };
    }

    /// Notes that the endpoint's thread sleeps until something arrives, or until `until_ns`.
    pub fn note_sleep_until(&mut self, until_ns: Option<u64>) {
        self.slept_until_ns = until_ns.unwrap_or(u64::MAX);
        self.noticed_gap_ns = 0;
    }

    /// Whether a thread may be sleeping on the endpoint, which has not turned since.
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// When [`Self::manage`] next has something to do.
    #[inline(always)]
    pub fn manage_due_ns(&self) -> u64 {
        self.next_manage_ns
    }

    /// When the loop must turn next even if nothing arrives.
    pub fn next_deadline_ns(&self, core: &Core) -> Option<u64> {
        let watch = core.clients.table.len() + core.servers.table.len() > 0;
        // The last check knows what is due; sessions that came since are checked soon.
        let unseen = self.seen_pending != [self.in_transition.len(), core.servers.unconfirmed.len()];
        let manage_ns = if unseen { self.next_manage_ns } else { self.due_ns.max(self.next_manage_ns) };
        let manage = watch.then_some(manage_ns);
        let deadlines = Some(core.shared.deadlines_due_ns).filter(|&due_ns| due_ns != u64::MAX);
        let others = core.clients.next_scan_ns().into_iter().chain(core.shared.pacing.next_ns()).chain(deadlines);
        manage.into_iter().chain(others).min()
    }

    /// Handles the port's report that a peer is lost.
    pub fn peer_lost(&mut self, core: &mut Core, peer: Peer, loss: PeerLoss) {
        let Some(index) = core.shared.peers.index_of(peer) else { return };
        let cause = match loss {
            PeerLoss::ProcessDied => Cause::PeerDied,
            PeerLoss::Closed => Cause::PeerClosed,
            PeerLoss::Refused => Cause::PeerRefused,
            // Anybody on the network can forge this report, about any peer.
            PeerLoss::Unreachable => return self.begin_suspicion(core, index),
        };
        self.fail_peer(core, index, cause);
    }

    /// Pings a peer at once that is reported unreachable.
    fn begin_suspicion(&mut self, core: &mut Core, index: u32) {
        let now_ns = core.shared.now_ns;
        let entry = core.shared.peers.get_mut(index);
        if entry.suspected_since_ns.is_none() {
            (entry.suspected_since_ns, entry.suspect_pings) = (Some(now_ns), 1);
            Self::ping(core, index);
            self.note_due(now_ns + SUSPECT_PING_NS);
        }
    }

    fn ping(core: &mut Core, index: u32) {
        let now_ns = core.shared.now_ns;
        let entry = core.shared.peers.get_mut(index);
        entry.last_ping_ns = now_ns;
        let life = Liveness { sender_token: entry.local_token, receiver_token: entry.remote_token };
        let to = entry.peer;
        core.shared.send(to, life.encode(Kind::Ping));
    }

    pub(super) fn on_ping(&mut self, core: &mut Core, body: &[u8], from: Peer) -> Result<(), PacketDrop> {
        let life = Liveness::read(body).ok_or(PacketDrop::Malformed)?;
        let ours = match core.shared.peers.index_of(from) {
            Some(index) => {
                let ours = core.shared.peers.get(index).local_token;
                if life.receiver_token == ours {
                    core.shared.peers.note_heard(index, core.shared.now_ns);
                }
                ours
            }
            None => 0,
        };
        // The pong echoes, in place of the key, the token that the ping named as ours. From this the sender can tell
        // whether it still knew another token when it pinged.
        let header = Header::management(Kind::Pong, SessionKey(life.receiver_token), 0);
        core.shared.send(from, Management::new(header, &[ours, life.sender_token]));
        Ok(())
    }

    pub(super) fn on_pong(
        &mut self,
        core: &mut Core,
        header: &Header,
        body: &[u8],
        from: Peer,
    ) -> Result<(), PacketDrop> {
        let life = Liveness::read(body).ok_or(PacketDrop::Malformed)?;
        let index = core.shared.peers.index_of(from).ok_or(PacketDrop::UnknownSession)?;
        let entry = core.shared.peers.get(index);
        // The echo of our token shows that this answers a ping of ours.
        if life.receiver_token != entry.local_token {
            return Err(PacketDrop::Stale);
        }
        let (known, pinged_token) = (entry.remote_token, header.session.0);
        core.shared.peers.note_heard(index, core.shared.now_ns);
        if known != pinged_token {
            // The ping left before an accept or connect told us the token that we know now.
            return Err(PacketDrop::Stale);
        }
        if known != 0 && life.sender_token != known {
            self.forget_established(core, index);
            return Ok(());
        }
        let now_ns = core.shared.now_ns;
        let entry = core.shared.peers.get_mut(index);
        // A suspected peer is pinged again before it can have answered, so this may not answer the last ping.
        if entry.suspected_since_ns.is_none() {
            entry.round_trip_ns = now_ns.saturating_sub(entry.last_ping_ns);
        }
        Ok(())
    }

    /// Retransmits what was not answered, pings silent peers and gives up dead ones, if a check is due.
    pub fn manage(&mut self, core: &mut Core) {
        if core.shared.now_ns >= self.next_manage_ns {
            self.manage_now(core);
        }
    }

    fn manage_now(&mut self, core: &mut Core) {
        self.next_manage_ns = core.shared.now_ns + check_spacing_ns(&core.shared.config);
        self.due_ns = u64::MAX;
        self.repeat_unanswered(core);
        self.remind_unconfirmed(core);
        self.repeat_farewells(core);
        for index in 0..core.shared.peers.index_end() {
            if core.shared.peers.is_known(index) {
                self.watch(core, index);
            }
        }
        self.seen_pending = [self.in_transition.len(), core.servers.unconfirmed.len()];
    }

    /// Notes that something is due at `due_ns`.
    pub(super) fn note_due(&mut self, due_ns: u64) {
        self.due_ns = self.due_ns.min(due_ns);
    }

    /// Pings a peer that is silent, or reported unreachable; gives it up if it does not answer. Notes when to do so
    /// next.
    fn watch(&mut self, core: &mut Core, index: u32) {
        self.probe_if_silent(core, index);
        if core.shared.peers.is_known(index) {
            let shared = &core.shared;
            let entry = shared.peers.get(index);
            if entry.suspected_since_ns.is_some() {
                self.note_due(entry.last_ping_ns + SUSPECT_PING_NS);
            }
            let last_heard_ns = shared.peers.last_heard_ns(index);
            self.note_due(silence_due_ns(&shared.config, last_heard_ns, entry.last_ping_ns));
        }
    }

    fn probe_if_silent(&mut self, core: &mut Core, index: u32) {
        let shared = &mut core.shared;
        let now_ns = shared.now_ns;
        let silence_ns = shared.peers.silence_ns(index, now_ns);
        let entry = shared.peers.get(index);
        let since_ping_ns = now_ns.saturating_sub(entry.last_ping_ns);
        if silence_ns >= shared.config.peer_timeout_ns {
            return self.fail_peer(core, index, Cause::PeerSilent);
        }
        if let Some(since_ns) = entry.suspected_since_ns {
            if shared.peers.was_heard_after(index, since_ns) {
                shared.peers.get_mut(index).suspected_since_ns = None;
            } else if since_ping_ns >= SUSPECT_PING_NS {
                let patience_ns = SUSPICION_NS.max(entry.round_trip_ns.saturating_mul(2));
                if now_ns.saturating_sub(since_ns) >= patience_ns && entry.suspect_pings >= SUSPECT_PINGS {
                    return self.fail_peer(core, index, Cause::PeerUnreachable);
                }
                let entry = shared.peers.get_mut(index);
                entry.suspect_pings = entry.suspect_pings.saturating_add(1);
                return Self::ping(core, index);
            }
        }
        let interval_ns = shared.config.probe_interval_ns;
        let last_chance = silence_ns >= shared.config.peer_timeout_ns / 2;
        let spacing_ns = if last_chance { interval_ns.min(last_ping_spacing_ns(&shared.config)) } else { interval_ns };
        if silence_ns >= interval_ns && since_ping_ns >= spacing_ns {
            Self::ping(core, index);
        }
    }

    fn repeat_unanswered(&mut self, core: &mut Core) {
        let in_transition = std::mem::take(&mut self.in_transition);
        for id in in_transition {
            let Some(index) = core.clients.table.find(id.key()) else { continue };
            let (now_ns, retry_ns, timeout_ns) =
                (core.shared.now_ns, core.shared.config.connect_retry_ns, core.shared.config.connect_timeout_ns);
            let session = &core.clients.table.entries[index];
            let (state, peer_index) = (session.state, session.peer_index);
            let cold = core.clients.cold(index);
            let is_retry_due = now_ns.saturating_sub(cold.last_try_ns) >= retry_ns;
            let since_ns = match state {
                ClientState::Open => continue,
                ClientState::Connecting => {
                    let since_ns = cold.opening.as_ref().map_or(now_ns, |opening| opening.since_ns);
                    if now_ns.saturating_sub(since_ns) >= timeout_ns {
                        let peer = Arc::clone(&core.shared.peers.get(peer_index).name);
                        core.clients.end_calls(&mut core.shared, id, Cause::PeerSilent);
                        let error = ConnectError::TimedOut { peer, timeout_ms: timeout_ns / 1_000_000 };
                        Self::end_client(core, index, SessionEvent::ConnectFailed { session: id, error });
                        continue;
                    }
                    if is_retry_due {
                        Self::send_connect(core, index);
                    }
                    since_ns
                }
                ClientState::Disconnecting => {
                    let since_ns = cold.ending_since_ns;
                    if now_ns.saturating_sub(since_ns) >= timeout_ns {
                        let session = &core.clients.table.entries[index];
                        let (peer, keys) = (session.peer, (id.key(), session.remote_key));
                        Self::end_client(core, index, SessionEvent::Disconnected(id));
                        self.remember_farewell(core, Kind::Disconnect, peer, keys);
                        continue;
                    }
                    if is_retry_due {
                        Self::send_disconnect(core, index);
                    }
                    since_ns
                }
            };
            let last_try_ns = core.clients.cold(index).last_try_ns;
            self.note_due(last_try_ns.saturating_add(retry_ns).min(since_ns.saturating_add(timeout_ns)));
            self.in_transition.push(id);
        }
    }

    fn remind_unconfirmed(&mut self, core: &mut Core) {
        let mut waiting = std::mem::take(&mut core.servers.unconfirmed);
        let (mut kept, mut reminded, mut next) = (0, 0, 0);
        waiting.retain_mut(|session| {
            let Some(index) = core.servers.table.find(session.key) else { return false };
            if core.servers.table.entries[index].confirmed {
                return false;
            }
            kept += 1;
            if reminded == REMINDERS_AT_ONCE || core.shared.now_ns.saturating_sub(session.since_ns) < REMIND_NS {
                self.note_due(session.since_ns + REMIND_NS);
                return true;
            }
            if session.reminders >= REMINDERS_MAX {
                // The peer that asked for it does not want it, or is not there.
                self.reset(core, index, Cause::PeerClosed);
                kept -= 1;
                return false;
            }
            (reminded, next) = (reminded + 1, kept);
            // A peer that says nothing at all may be busy, and has until the peer time-out.
            let peer_index = core.servers.table.entries[index].peer_index;
            session.reminders += u8::from(core.shared.peers.was_heard_after(peer_index, session.since_ns));
            session.since_ns = core.shared.now_ns;
            Self::send_accept(core, index);
            self.note_due(session.since_ns + REMIND_NS);
            true
        });
        if reminded == REMINDERS_AT_ONCE {
            // The next check begins with the next session.
            waiting.rotate_left(next);
        }
        waiting.append(&mut core.servers.unconfirmed);
        core.servers.unconfirmed = waiting;
    }
}
