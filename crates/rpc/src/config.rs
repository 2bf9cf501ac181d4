//! What an endpoint may do: limits, times, and the switches of its optimisations.

use sinew_fabric::PollerConfig;

use crate::congestion::Congestion;
use crate::error::ConfigError;
use crate::recovery::{Recovery, Timeout, Window};

/// Optimisations for the common case, each of which can be switched off to measure what it is worth (nsdi19 Table 3).
///
/// The multi-packet receive queue of that table is a NIC's; the ports here have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Short responses reuse a buffer of their slot instead of allocating one (nsdi19 4.3).
    pub preallocated_responses: bool,
    /// Single-packet requests are handled where they were received (nsdi19 4.2.3). Where the port lends private memory that
    /// saves a copy to an allocated buffer.
    pub zero_copy_requests: bool,
    /// The clock is read once per loop turn and not once per packet (nsdi19 5.2.2).
    pub batched_clock: bool,
    /// One credit return and one request-for-response stand for a run of packets (nsdi19 5.1 names this as worth while
    /// where a tiny packet costs as much as a large one). Without it a credit return stands for its packet alone, so that with go-back-N
    /// one that is lost costs a time-out, as in nsdi19.
    pub cumulative_credits: bool,
    /// With many sessions, a received burst's session state is prefetched before the burst is handled.
    pub prefetch_sessions: bool,
    /// Short round trips of an uncongested session do not go into its rate (nsdi19 5.2.2).
    pub congestion_bypass: bool,
    /// Packets of an uncongested session leave without a look at the pacing wheel (nsdi19 5.2.2).
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

/// Limits and times of an endpoint. `Config::default()` suits most.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Packets that a session may have on their way before it hears back (nsdi19 4.3.1). Both sides offer, the smaller holds.
    pub credits: u16,
    /// Calls of a session that can be outstanding; further ones wait in a queue. A power of two, at most 64 (nsdi19 4.3).
    pub slots: u16,
    /// The largest request or response, in bytes. A server with little memory takes less: see [`Self::peer_share_percent`].
    pub message_len_max: u32,
    /// Calls that may wait in a session's queue.
    pub queued_calls_max: usize,
    /// Calls of a [lane](crate::LaneId) that can be under way or wait to be taken; more are refused. The main lane has no limit of its own.
    pub lane_backlog_max: usize,
    /// Whether [`crate::Rpc::poll_client_event`] tells when clients come and go.
    pub client_events: bool,
    /// Requests that may wait for [`crate::Rpc::poll_request`], of which one client has up to [`Self::peer_share_percent`]; further ones fail with
    /// [`crate::Cause::ServerBusy`].
    pub polled_requests_max: usize,
    /// Closures and calls of other threads ([`crate::RpcHandle`]) that may wait for the endpoint's next turn; further ones are refused.
    pub handle_queue_max: usize,
    /// Sessions of this endpoint in both roles.
    pub sessions_max: usize,
    /// Receive capacity kept for packets that open, close and watch sessions.
    pub management_packets: usize,
    /// Accept more sessions than the port's receive capacity covers. What overflows is lost and sent again.
    pub overcommit: bool,
    /// Responses up to this long use their slot's own buffer.
    pub preallocated_response_len: usize,
    /// Which packets are sent again when some were lost.
    pub recovery: Recovery,
    /// Time without progress after which a call's packets are sent again (nsdi19 5.2.3: 5 ms), at least. A client looks for late packets
    /// five times in it. Half a millisecond is still longer than most pauses of a busy machine.
    pub retransmit_timeout_ns: u64,
    /// Whether that time grows with the round trips.
    pub timeout: Timeout,
    /// A request of several packets none of which came for so long, or a response that nothing was asked of for so long, is given up when
    /// another call finds no memory, or when its peer has its share of it. Should its client go on, its call fails with
    /// [`crate::Cause::ServerBusy`].
    pub stalled_request_ns: u64,
    /// The most that one peer may have of what all peers share: receive capacity, sessions, and memory for its requests and responses,
    /// in percent. Requests that deferred calls or workers have count, too, until they are answered. It holds for what peers ask of us, not for
    /// sessions that we open. A call that finds its client's share used up fails with [`crate::Cause::ServerBusy`]; a request that is larger than all
    /// of the share, as the arena lays it out in blocks of 2^n and 1.5 x 2^n bytes, with [`crate::Cause::RequestTooLarge`].
    pub peer_share_percent: u8,
    /// A request that arrives more slowly than this, after the first [`Self::stalled_request_ns`], counts as stalled.
    pub request_rate_min_bytes_per_s: u64,
    /// Silence after which a peer is asked for a sign of life, and the time between two questions; from half of [`Self::peer_timeout_ns`] on that
    /// is no more than a hundredth of the latter.
    pub probe_interval_ns: u64,
    /// Silence after which a peer counts as dead.
    pub peer_timeout_ns: u64,
    /// Time after which an unanswered connect fails.
    pub connect_timeout_ns: u64,
    /// Time between two tries of an unanswered connect or disconnect.
    pub connect_retry_ns: u64,
    /// Deadline of blocking calls.
    pub call_timeout_ns: u64,
    /// How blocking calls and `run_until` wait. In virtual time they sleep at once.
    pub poller: PollerConfig,
    /// Congestion control; none, where the fabric has none to control.
    pub congestion: Option<Congestion>,
    /// Switches.
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
            poller: PollerConfig::ADAPTIVE,
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
                "at least one packet must overtake another before that counts as lost",
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
        need(self.lane_backlog_max > 0, "lane_backlog_max", 0, "a lane takes at least one call")?;
        need(self.handle_queue_max > 0, "handle_queue_max", 0, "a handle's queue takes at least one closure or call")?;
        for (field, value) in [
            ("retransmit_timeout_ns", self.retransmit_timeout_ns),
            ("stalled_request_ns", self.stalled_request_ns),
            ("probe_interval_ns", self.probe_interval_ns),
            ("connect_retry_ns", self.connect_retry_ns),
        ] {
            need(value > 0, field, value, "a time-out must be longer than nothing")?;
        }
        need(
            (1..=100).contains(&self.peer_share_percent),
            "peer_share_percent",
            self.peer_share_percent.into(),
            "from 1 to 100: with 100 one peer may have all",
        )?;
        self.congestion.map_or(Ok(()), |congestion| congestion.check())?;
        need(
            self.peer_timeout_ns > self.probe_interval_ns,
            "peer_timeout_ns",
            self.peer_timeout_ns,
            "longer than probe_interval_ns, so that a peer is asked before it is given up",
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
