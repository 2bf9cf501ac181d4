//! Limits of endpoints on the command line.

use sinew::fabric::PollPolicy;
use sinew::prelude::*;
use sinew_harness::{machine, service};

/// Limits of endpoints, for servers and clients alike.
#[derive(clap::Args, Clone, Debug)]
pub struct LimitArgs {
    /// Packets that each session may have in flight, 1 to 65535 [default: 32]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..))]
    pub credits: Option<u16>,
    /// Calls that each session can have outstanding: a power of two from 1 to 64
    #[arg(long, default_value_t = 8, allow_negative_numbers = true, value_parser = parse_slots)]
    pub slots: u16,
    /// Sleep as soon as there is nothing to do, instead of spinning for up to 50 us first
    #[arg(long)]
    pub block: bool,
    /// Milliseconds of silence after which a peer counts as dead, 2 to 86400000
    #[arg(long, value_name = "MS", default_value_t = 5000, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(2..=PEER_TIMEOUT_MAX_MS))]
    pub peer_timeout_ms: u64,
}

/// One day.
const PEER_TIMEOUT_MAX_MS: u64 = 86_400_000;

/// Largest test message, in bytes.
pub const SIZE_MAX: usize = 16 << 20;

fn parse_slots(text: &str) -> Result<u16, String> {
    let slots = text.parse().ok().filter(|slots: &u16| slots.is_power_of_two() && *slots <= 64);
    slots.ok_or_else(|| "must be a power of two from 1 to 64".to_owned())
}

impl Default for LimitArgs {
    /// The command line's defaults.
    fn default() -> Self {
        Self { credits: None, slots: 8, block: false, peer_timeout_ms: 5000 }
    }
}

impl LimitArgs {
    /// Packets of a session that may be in flight.
    pub fn credits(&self) -> u16 {
        self.credits.unwrap_or(Config::default().credits)
    }

    /// Arguments that give a server process the same limits, and a thread on each of these processors.
    pub fn to_args(&self, cpus: &[Option<usize>]) -> Vec<String> {
        let mut args = Vec::new();
        let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
        option("--threads", cpus.len().max(1).to_string());
        for cpu in cpus.iter().flatten() {
            option("--pin", cpu.to_string());
        }
        option("--credits", self.credits().to_string());
        option("--slots", self.slots.to_string());
        option("--peer-timeout-ms", self.peer_timeout_ms.to_string());
        if self.block {
            args.push("--block".to_owned());
        }
        args
    }

    /// The configuration of an endpoint.
    ///
    /// Receive capacity may be overcommitted: a test server accepts as many sessions as a test opens, and packets that
    /// overflow are counted and retransmitted.
    pub fn config(&self) -> Config {
        let spins = machine::has_two_cpus() && !self.block;
        let peer_timeout_ns = self.peer_timeout_ms * 1_000_000;
        Config {
            credits: self.credits(),
            slots: self.slots,
            message_len_max: (SIZE_MAX + service::SEQUENCE_LEN) as u32,
            overcommit: true,
            peer_timeout_ns,
            probe_interval_ns: (peer_timeout_ns / 4).min(Config::default().probe_interval_ns),
            poller: if spins { PollPolicy::ADAPTIVE } else { PollPolicy::SLEEP },
            ..Config::default()
        }
    }
}
