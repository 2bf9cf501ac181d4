//! Configuration of an endpoint: limits, times, and the switches of its optimisations.

use sinew_fabric::PollPolicy;

use crate::congestion::Congestion;
use crate::error::ConfigError;
use crate::recovery::{Recovery, Timeout, Window};

/// Optimisations for the common case. Each can be switched off to measure what it gains (nsdi19 Table 3).
///
/// The multi-packet receive queue of that table is a NIC's; the ports here have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Whether short responses reuse a buffer of their slot instead of allocating one (nsdi19 4.3).
    pub preallocated_responses: bool,
    /// Whether single-packet requests are handled where they were received (nsdi19 4.2.3). Where the port lends private
    /// memory, that saves a copy into an allocated buffer.
    pub zero_copy_requests: bool,
    /// Whether the clock is read once per loop turn rather than once per packet (nsdi19 5.2.2).
    pub batched_clock: bool,
    /// Whether one credit return and one request-for-response stand for a run of packets (nsdi19 5.1 finds this worth
    /// while where a tiny packet costs as much as a large one). Without it a credit return stands for its packet alone,
    /// so that with go-back-N a lost one costs a time-out, as in nsdi19.
    pub cumulative_credits: bool,
    /// With many sessions: whether the session state for a received burst is prefetched before the burst is handled.
    pub prefetch_sessions: bool,
    /// Whether the rate of an uncongested session ignores short round trips (nsdi19 5.2.2).
    pub congestion_bypass: bool,
    /// Whether packets of an uncongested session bypass the pacing wheel (nsdi19 5.2.2).
    pub pacing_bypass: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            preallocated_responses: true,
            zero_copy_requests: true,
            batched_clock: true,
            cumulative_credits: true,
            prefetch_sessions: true,
            congestion_bypass: true,
            pacing_bypass: true,
        }
    }
}

/// Limits and times of an endpoint. The defaults suit most programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Packets that a session may have in flight before it hears back (nsdi19 4.3.1). Both sides offer a number, and
    /// the smaller one holds.
    pub credits: u16,
    /// Calls that a session can have outstanding; further ones wait in a queue. A power of two, at most 64 (nsdi19
    /// 4.3).
    pub slots: u16,
    /// Largest request or response, in bytes. A server with little memory accepts less: see
    /// [`Self::peer_share_percent`].
    pub message_len_max: u32,
    /// Calls that may wait in a session's queue.
    pub queued_calls_max: usize,
    /// Calls of a [lane](crate::LaneId) that can be under way or wait to be taken; further ones are refused. The main
    /// lane has no such limit.
    pub lane_backlog_max: usize,
    /// Whether [`crate::Rpc::poll_client_event`] reports clients that come and go.
    pub client_events: bool,
    /// Requests that may wait for [`crate::Rpc::poll_request`], of which one client has at most
    /// [`Self::peer_share_percent`]; further ones fail with [`crate::Cause::ServerBusy`].
    pub polled_requests_max: usize,
    /// Closures and calls of other threads ([`crate::RpcHandle`]) that may wait for the endpoint's next turn; further
    /// ones are refused.
    pub handle_queue_max: usize,
    /// Sessions of this endpoint, in both roles together.
    pub sessions_max: usize,
    /// Receive capacity reserved for packets that open, close and watch sessions, in packets.
    pub management_packets: usize,
    /// Whether to accept more sessions than the port's receive capacity covers. Packets that overflow it are lost and
    /// retransmitted.
    pub overcommit: bool,
    /// Length up to which a response uses its slot's own buffer, in bytes.
    pub preallocated_response_len: usize,
    /// Choice of the packets that are retransmitted after a loss.
    pub recovery: Recovery,
    /// Shortest time without progress after which a call's packets are retransmitted (nsdi19 5.2.3: 5 ms). A client
    /// looks for late packets five times within it. Half a millisecond is still longer than most pauses of a busy
    /// machine.
    pub retransmit_timeout_ns: u64,
    /// Choice of the time-out: one that grows with the round trips, or a fixed one.
    pub timeout: Timeout,
    /// Time after which a request of several packets counts as stalled if none of them came meanwhile, and a response
    /// if none of its packets was asked for meanwhile. It is given up when another call finds no memory, or when its
    /// peer has used up its share. If its client continues it after all, its call fails with
    /// [`crate::Cause::ServerBusy`].
    pub stalled_request_ns: u64,
    /// Largest part that one peer may have of what all peers share, in percent: of receive capacity, of sessions, and
    /// of memory for its requests and responses. Requests that deferred calls or workers hold count until they are
    /// answered. The limit holds for what peers ask of us, not for sessions that we open. A call that finds its
    /// client's share used up fails with [`crate::Cause::ServerBusy`]; a request that is larger than the whole share,
    /// rounded up to the arena's blocks of 2^n and 1.5 x 2^n bytes, fails with [`crate::Cause::RequestTooLarge`].
    pub peer_share_percent: u8,
    /// Slowest rate of a request that does not count as stalled, in bytes per second. It holds once the first
    /// [`Self::stalled_request_ns`] have passed.
    pub request_rate_min_bytes_per_s: u64,
    /// Silence after which a peer is probed, and the time between two probes; once half of [`Self::peer_timeout_ns`]
    /// has passed, probes are at most a hundredth of the latter apart.
    pub probe_interval_ns: u64,
    /// Silence after which a peer counts as dead.
    pub peer_timeout_ns: u64,
    /// Time after which an unanswered connect fails.
    pub connect_timeout_ns: u64,
    /// Time between two attempts at an unanswered connect or disconnect.
    pub connect_retry_ns: u64,
    /// Deadline of blocking calls.
    pub call_timeout_ns: u64,
    /// Way in which blocking calls and `run_until` wait. In virtual time they sleep without spinning first.
    pub poller: PollPolicy,
    /// Congestion control; `None` where the fabric has no congestion to control.
    pub congestion: Option<Congestion>,
    /// Switches of the optimisations.
    pub tuning: Tuning,
}

impl Default for Config {
    fn default() -> Self {
        const MS: u64 = 1_000_000;
        Self {
            credits: 32,
            slots: 8,
            message_len_max: 16 << 20,
            queued_calls_max: 1 << 16,
            lane_backlog_max: 1 << 14,
            client_events: false,
            polled_requests_max: 4096,
            handle_queue_max: 4096,
            sessions_max: 1 << 16,
            management_packets: 32,
            overcommit: false,
            preallocated_response_len: 1472,
            recovery: Recovery::GoBackN,
            retransmit_timeout_ns: 5 * MS,
            timeout: Timeout::Adaptive,
            stalled_request_ns: 1_000 * MS,
            peer_share_percent: 50,
            request_rate_min_bytes_per_s: 1_000_000,
            probe_interval_ns: 500 * MS,
            peer_timeout_ns: 5_000 * MS,
            connect_timeout_ns: 3_000 * MS,
            connect_retry_ns: 20 * MS,
            call_timeout_ns: 10_000 * MS,
            poller: PollPolicy::ADAPTIVE,
            congestion: None,
            tuning: Tuning::default(),
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let need = |holds: bool, field, value: u64, expected| {
            if holds { Ok(()) } else { Err(ConfigError { field, value, expected }) }
        };
        need(self.credits > 0, "credits", self.credits.into(), "a session needs at least one credit")?;
        if let Recovery::Selective { packet_threshold } = self.recovery {
            need(
                u32::from(self.credits) <= Window::PLACES,
                "credits",
                self.credits.into(),
                "at most 64 with selective retransmission",
            )?;
            need(
                packet_threshold > 0,
                "recovery.packet_threshold",
                packet_threshold.into(),
                "at least one packet must overtake another before the latter counts as lost",
            )?;
        }
        need(
            self.slots.is_power_of_two() && self.slots <= 64,
            "slots",
            self.slots.into(),
            "slots must be a power of two up to 64",
        )?;
        need(
            self.message_len_max as usize <= sinew_mem::MAX_DATA_LEN,
            "message_len_max",
            self.message_len_max.into(),
            "a message is at most 2 GiB",
        )?;
        need(
            self.sessions_max < sinew_wire::SessionKey::INDEX_LIMIT,
            "sessions_max",
            self.sessions_max as u64,
            "at most 2^24 - 1 sessions",
        )?;
        need(self.lane_backlog_max > 0, "lane_backlog_max", 0, "a lane must take at least one call")?;
        need(self.handle_queue_max > 0, "handle_queue_max", 0, "a handle's queue must take at least one entry")?;
        for (field, value) in [
            ("retransmit_timeout_ns", self.retransmit_timeout_ns),
            ("stalled_request_ns", self.stalled_request_ns),
            ("probe_interval_ns", self.probe_interval_ns),
            ("connect_retry_ns", self.connect_retry_ns),
        ] {
            need(value > 0, field, value, "a time-out must be longer than 0")?;
        }
        need(
            (1..=100).contains(&self.peer_share_percent),
            "peer_share_percent",
            self.peer_share_percent.into(),
            "must be from 1 to 100; with 100 one peer may have everything",
        )?;
        self.congestion.map_or(Ok(()), |congestion| congestion.check())?;
        need(
            self.peer_timeout_ns > self.probe_interval_ns,
            "peer_timeout_ns",
            self.peer_timeout_ns,
            "must be longer than probe_interval_ns, so that a peer is probed before it is given up",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_checked_on_both_sides() {
        assert_eq!(Config::default().check(), Ok(()));
        for slots in [1, 2, 64] {
            assert_eq!(Config { slots, ..Config::default() }.check(), Ok(()));
        }
        for slots in [0, 3, 128] {
            assert_eq!(Config { slots, ..Config::default() }.check().unwrap_err().field, "slots");
        }
        assert_eq!(Config { credits: 0, ..Config::default() }.check().unwrap_err().field, "credits");
        let selective = |credits, packet_threshold| {
            let recovery = Recovery::Selective { packet_threshold };
            Config { recovery, credits, ..Config::default() }.check()
        };
        assert_eq!((selective(64, 1), selective(1, 255)), (Ok(()), Ok(())));
        assert_eq!(selective(65, 1).unwrap_err().field, "credits");
        assert_eq!(selective(64, 0).unwrap_err().field, "recovery.packet_threshold");
        let queue = |handle_queue_max| Config { handle_queue_max, ..Config::default() }.check();
        assert_eq!(queue(1), Ok(()));
        assert_eq!(queue(0).unwrap_err().field, "handle_queue_max");
        let timeout = |retransmit_timeout_ns| Config { retransmit_timeout_ns, ..Config::default() }.check();
        assert_eq!(timeout(1), Ok(()));
        assert_eq!(timeout(0).unwrap_err().field, "retransmit_timeout_ns");
        let share = |peer_share_percent| Config { peer_share_percent, ..Config::default() }.check();
        assert_eq!((share(1), share(100)), (Ok(()), Ok(())));
        assert!([0, 101].iter().all(|&percent| share(percent).unwrap_err().field == "peer_share_percent"));
        let config = Config { peer_timeout_ns: 1, probe_interval_ns: 1, ..Config::default() };
        assert_eq!(config.check().unwrap_err().field, "peer_timeout_ns");
    }
}
