//! Handlers of the test server, and the client's reading of their answers.

use std::time::Duration;

use serde_json::{Value, json};
use sinew::EndpointReport;
use sinew::fabric::{Dropped, PortStats};
use sinew::mem::copy_small;
use sinew::prelude::*;
use sinew::rpc::{PacketDrop, Stats};

use crate::pattern;
use crate::units::counted;

/// Answers with the request.
pub const ECHO: RequestType = RequestType::new(1);
/// Checks the request, which is a message of [`pattern`], and answers with a [`Verdict`].
pub const SINK: RequestType = RequestType::new(2);
/// Answers with the endpoint's counters as JSON.
pub const REPORT: RequestType = RequestType::new(3);
/// Answers `slept` from a worker, after the number of milliseconds that the request states in decimal digits.
pub const SLEEP: RequestType = RequestType::new(4);
/// Answers with as many bytes as the number in the request's first [`LEN_LEN`] bytes says: the request, over and over.
pub const REPEAT: RequestType = RequestType::new(5);

/// Length of the number in a request of [`REPEAT`], in bytes.
pub const LEN_LEN: usize = 4;
/// Longest sleep of [`SLEEP`], in milliseconds.
const SLEEP_MAX_MS: u64 = 60_000;

/// Answer of [`SINK`] to a request, in which a sequence number of 8 bytes comes before the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The request's sequence number.
    pub sequence: u64,
    /// Length of the message, in bytes.
    pub len: u64,
    /// Whether the message was right.
    pub good: bool,
}

/// Length of the sequence number before the message of [`SINK`], in bytes.
pub const SEQUENCE_LEN: usize = 8;
/// Length of a [`Verdict`], in bytes.
pub const VERDICT_LEN: usize = 32;

impl Verdict {
    fn of(request: &[u8]) -> Self {
        match request.split_first_chunk::<SEQUENCE_LEN>() {
            Some((sequence, message)) => {
                let sequence = u64::from_le_bytes(*sequence);
                Self { sequence, len: message.len() as u64, good: pattern::check(message, sequence) }
            }
            None => Self { sequence: 0, len: 0, good: false },
        }
    }

    fn write(self, target: &mut [u8]) {
        let words = [self.sequence, self.len, self.good.into(), 0];
        for (target, word) in target.chunks_exact_mut(8).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Reads an answer; `None` if it is not a verdict.
    pub fn read(answer: &[u8]) -> Option<Self> {
        let answer = answer.as_array::<VERDICT_LEN>()?;
        let word = |index: usize| u64::from_le_bytes(answer.as_chunks::<8>().0[index]);
        Some(Self { sequence: word(0), len: word(1), good: word(2) == 1 })
    }
}

/// The test server's handlers.
pub fn nexus(config: Config) -> sinew::Result<Nexus> {
    Nexus::builder()
        .config(config)
        .handle(ECHO, |call: Call| {
            let request = call.request();
            call.reply(request);
        })
        .handle(SINK, |call: Call| {
            let verdict = Verdict::of(call.request());
            call.reply_with(VERDICT_LEN, |target| verdict.write(target));
        })
        .handle(REPEAT, |call: Call| {
            let request = call.request();
            let len = request.first_chunk::<LEN_LEN>().map_or(0, |len| u32::from_le_bytes(*len) as usize);
            call.reply_with(len, |target| {
                let parts = target.chunks_mut(request.len().max(1));
                parts.for_each(|part| copy_small(part, &request[..part.len()]));
            });
        })
        // The endpoint's loop answers these, since handlers do not see the counters.
        .handle_polled(REPORT)
        .handle_worker(SLEEP, |call: DeferredCall| {
            let ms = std::str::from_utf8(call.request()).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
            std::thread::sleep(Duration::from_millis(SLEEP_MAX_MS.min(ms)));
            call.reply(b"slept");
        })
        .build()
}

/// Turns the loop of a server's endpoint once. Returns whether anything happened.
pub fn turn(rpc: &mut Rpc) -> bool {
    let busy = rpc.turn();
    while rpc.poll_completion().is_some() || rpc.poll_event().is_some() {}
    answer_reports(rpc);
    busy
}

/// Answers requests for a report; to be called between turns of a server's loop.
pub fn answer_reports(rpc: &mut Rpc) {
    while let Some(call) = rpc.poll_request() {
        let report = counters(&rpc.stats(), &rpc.port_stats(), rpc.sessions()).to_string();
        rpc.reply(call, report.as_bytes());
    }
}

/// Counters as JSON: work done, and drops by reason.
pub fn counters(stats: &Stats, port: &PortStats, sessions: usize) -> Value {
    let nonzero = |pairs: Vec<(&str, u64)>| -> Value {
        pairs.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), json!(count))).collect()
    };
    let dropped = PacketDrop::ALL.iter().map(|&reason| (reason.name(), stats.dropped(reason))).collect();
    let port_dropped = Dropped::ALL.iter().map(|&reason| (reason.name(), port.dropped(reason))).collect();
    json!({
        "sessions": sessions,
        "requests_handled": stats.requests_handled,
        "calls_completed": stats.calls_completed,
        "calls_failed": stats.calls_failed,
        "retransmissions": stats.retransmissions,
        "in_progress_answers": stats.in_progress_answers,
        "requests_given_up": stats.requests_given_up,
        "responses_given_up": stats.responses_given_up,
        "peers_lost": stats.peers_lost,
        "packets_received": port.rx_packets,
        "packets_sent": port.tx_packets,
        "dropped": nonzero(dropped),
        "port_dropped": nonzero(port_dropped),
    })
}

/// Report of an endpoint, as JSON.
pub fn report(report: &EndpointReport) -> Value {
    let mut object = counters(&report.stats, &report.port_stats, report.sessions);
    object["address"] = json!(report.address.to_string());
    object
}

/// Report of an endpoint, for people: brief about what went well, complete about what did not.
pub fn sentence(address: &str, stats: &Stats, port: &PortStats, sessions: usize) -> String {
    let mut text = format!(
        "{address}: {} answered; {} received, {} sent",
        counted(stats.requests_handled, "request"),
        counted(port.rx_packets, "packet"),
        port.tx_packets
    );
    if sessions > 0 {
        text += &format!("; {} still open", counted(sessions, "session"));
    }
    let rare = [
        (stats.retransmissions, "retransmitted"),
        (stats.in_progress_answers, "still in progress when a client asked again"),
    ];
    for (count, what) in rare.into_iter().filter(|(count, _)| *count > 0) {
        text += &format!("; {count} {what}");
    }
    let lost = [
        (stats.requests_given_up, "request", "given up"),
        (stats.responses_given_up, "response", "given up"),
        (stats.peers_lost, "peer", "lost"),
    ];
    for (count, what, how) in lost.into_iter().filter(|(count, ..)| *count > 0) {
        text += &format!("; {} {how}", counted(count, what));
    }
    // The last packets to clients that leave reach nobody, which is no loss.
    let is_notable = |reason: &&Dropped| **reason != Dropped::NoSuchPeer;
    let by_port = Dropped::ALL.iter().filter(is_notable).map(|&reason| (reason.name(), port.dropped(reason)));
    let by_rpc = PacketDrop::ALL.iter().map(|&reason| (reason.name(), stats.dropped(reason)));
    // Both have a reason of the same name.
    for (by, reasons) in [("port", Vec::from_iter(by_port)), ("endpoint", Vec::from_iter(by_rpc))] {
        let dropped = reasons.into_iter().filter(|(_, count)| *count > 0);
        let dropped: Vec<_> = dropped.map(|(name, count)| format!("{count} {}", name.replace('_', " "))).collect();
        if !dropped.is_empty() {
            text += &format!("; packets dropped by the {by}: {}", dropped.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_what_went_well_in_short_and_each_thing_that_did_not() {
        let (mut stats, mut port) = (Stats::default(), PortStats::default());
        (stats.requests_handled, port.rx_packets, port.tx_packets) = (1, 3, 2);
        assert_eq!(sentence("shm://a", &stats, &port, 0), "shm://a: 1 request answered; 3 packets received, 2 sent");
        (stats.retransmissions, stats.peers_lost) = (5, 1);
        port.count_dropped(Dropped::BadSeal, 4);
        port.count_dropped(Dropped::NoSuchPeer, 4);
        let text = sentence("shm://a", &stats, &port, 2);
        assert!(
            text.ends_with(
                "sent; 2 sessions still open; 5 retransmitted; 1 peer lost; packets dropped by the port: 4 bad seal"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_verdict_says_whether_the_message_is_good() {
        let mut request = vec![0; SEQUENCE_LEN + 1000];
        request[..SEQUENCE_LEN].copy_from_slice(&5u64.to_le_bytes());
        pattern::write_body(&mut request[SEQUENCE_LEN..]);
        pattern::write_stamps(&mut request[SEQUENCE_LEN..], 5);
        let mut answer = [0; VERDICT_LEN];
        Verdict::of(&request).write(&mut answer);
        assert_eq!(Verdict::read(&answer), Some(Verdict { sequence: 5, len: 1000, good: true }));
        request[SEQUENCE_LEN] ^= 1;
        assert!(!Verdict::of(&request).good);
        assert!(!Verdict::of(&[1, 2, 3]).good);
        assert_eq!(Verdict::read(&answer[1..]), None);
    }
}
