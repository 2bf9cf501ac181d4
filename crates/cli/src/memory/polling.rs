//! Polling policies by name: how a thread of `sinew memory bench` waits for completions, and in how many queues.

use anyhow::ensure;
use serde_json::{Value, json};
use sinew::fabric::{PollPolicy, PollerStats};
use sinew_harness::units;

/// A policy, and the completion queues of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polling {
    /// Name, as the user gave it.
    name: String,
    pub policy: PollPolicy,
    /// Completion queues that the queue pairs of a thread share.
    pub completion_queues: usize,
}

/// The policies that have a name of their own.
const POLICIES: [(&str, PollPolicy); 6] = [
    ("busy", PollPolicy::SPIN),
    ("event", PollPolicy::EVENT),
    ("event-batch", PollPolicy::Event { batch: 16 }),
    ("hybrid", PollPolicy::SLEEP),
    ("retry", PollPolicy::RDMABOX),
    ("adaptive", PollPolicy::ADAPTIVE),
];

/// Parses the option, for clap.
pub fn parse(text: &str) -> Result<Polling, String> {
    let polling = |policy, completion_queues| Polling { name: text.to_owned(), policy, completion_queues };
    if let Some((_, policy)) = POLICIES.into_iter().find(|(name, _)| *name == text) {
        return Ok(polling(policy, 1));
    }
    let queues = text.strip_prefix("shared:").and_then(|queues| queues.parse().ok());
    match queues.filter(|queues| *queues > 0) {
        Some(queues) => Ok(polling(PollPolicy::SPIN, queues)),
        None => {
            let names = POLICIES.map(|(name, _)| name).join(", ");
            Err(format!("it is {names}, or shared:M, where M is the number of completion queues of each thread"))
        }
    }
}

/// What the threads' polling came to.
#[derive(Clone, Debug, Default)]
pub struct Polled {
    pub stats: PollerStats,
    /// Completions taken from each queue of each thread.
    pub completions: Vec<u64>,
}

impl Polled {
    /// What was added since `before`, of the same threads.
    pub fn since(&self, before: &Self) -> Self {
        let (now, then) = (&self.stats, &before.stats);
        let stats = PollerStats {
            busy_turns: now.busy_turns - then.busy_turns,
            idle_turns: now.idle_turns - then.idle_turns,
            blocks: now.blocks - then.blocks,
            worked_ns: now.worked_ns - then.worked_ns,
            spun_ns: now.spun_ns - then.spun_ns,
            slept_ns: now.slept_ns - then.slept_ns,
        };
        let then = before.completions.iter().copied().chain(std::iter::repeat(0));
        Self { stats, completions: self.completions.iter().zip(then).map(|(now, then)| now - then).collect() }
    }

    /// Adds another thread's.
    pub fn add(&mut self, other: &Self) {
        let (all, more) = (&mut self.stats, &other.stats);
        all.busy_turns += more.busy_turns;
        all.idle_turns += more.idle_turns;
        all.blocks += more.blocks;
        all.worked_ns += more.worked_ns;
        all.spun_ns += more.spun_ns;
        all.slept_ns += more.slept_ns;
        self.completions.extend_from_slice(&other.completions);
    }
}

impl Polling {
    /// Checks that each queue has a queue pair.
    pub fn check(&self, queue_pairs: usize) -> anyhow::Result<()> {
        ensure!(
            self.completion_queues <= queue_pairs,
            "--poller {}: there are only {} (--queue-pairs), so the other completion queues would be of no use",
            self.name,
            units::counted(queue_pairs as u64, "queue pair"),
        );
        Ok(())
    }

    /// The policy, as JSON.
    pub fn setup(&self) -> Value {
        json!({ "policy": self.name, "completion_queues": self.completion_queues })
    }

    /// What it did for so many requests, by threads that worked for `elapsed_ns` together, as JSON. A policy that never
    /// sleeps is not watched: its threads take all of their time.
    pub fn details(&self, polled: &Polled, requests: f64, elapsed_ns: u64) -> Value {
        let stats = &polled.stats;
        let turns = (stats.busy_turns + stats.idle_turns).max(1) as f64;
        let of_each = |count: u64| units::rounded(count as f64 / requests.max(1.0));
        let (cpu_percent, busy_turns_percent) = match self.policy {
            PollPolicy::Busy => (100.0, None),
            _ => {
                let cpu = 100.0 * stats.cpu_ns() as f64 / elapsed_ns.max(1) as f64;
                (cpu.min(100.0), Some(units::rounded(100.0 * stats.busy_turns as f64 / turns)))
            }
        };
        json!({
            "cpu_percent": units::rounded(cpu_percent),
            "sleeps_per_request": of_each(stats.blocks),
            "busy_turns_percent": busy_turns_percent,
            "completions_per_queue": polled.completions,
        })
    }

    /// The same as a sentence.
    pub fn sentence(&self, details: &Value) -> String {
        let figure = |key: &str| details[key].as_f64().map(units::figure).unwrap_or_default();
        let queues = units::counted(self.completion_queues as u64, "completion queue");
        let how = match self.policy {
            PollPolicy::Busy => "never slept".to_owned(),
            _ => format!("asked to be woken {} times per request", figure("sleeps_per_request")),
        };
        format!(
            "Polling: {}, over {queues} of each thread; threads {how} and took {} % of their processors.",
            self.name,
            figure("cpu_percent")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_a_name_and_shared_queues_have_a_number() {
        for (name, policy) in POLICIES {
            let polling = parse(name).unwrap();
            assert_eq!((polling.policy, polling.completion_queues), (policy, 1));
        }
        let shared = parse("shared:3").unwrap();
        assert_eq!((shared.policy, shared.completion_queues), (PollPolicy::SPIN, 3));
        assert!(shared.check(3).is_ok() && shared.check(2).unwrap_err().to_string().contains("--queue-pairs"));
        for wrong in ["", "shared", "shared:", "shared:0", "shared:-1", "idle"] {
            assert!(parse(wrong).unwrap_err().contains("shared:M"), "{wrong}");
        }
    }

    #[test]
    fn what_was_polled_is_told_for_the_measured_time_and_for_all_threads() {
        let stats = |blocks, worked_ns| PollerStats { blocks, worked_ns, busy_turns: 10, ..PollerStats::default() };
        let before = Polled { stats: PollerStats::default(), completions: Vec::new() };
        let mut all = Polled { stats: stats(30, 400), completions: vec![7, 8] }.since(&before);
        all.add(&Polled { stats: stats(10, 100), completions: vec![5, 10] });
        let details = parse("retry").unwrap().details(&all, 20.0, 1000);
        assert_eq!((&details["cpu_percent"], &details["sleeps_per_request"]), (&json!(50.0), &json!(2.0)));
        assert_eq!(details["completions_per_queue"], json!([7, 8, 5, 10]));
        let busy = parse("shared:2").unwrap();
        assert!(busy.sentence(&busy.details(&all, 20.0, 1000)).contains("2 completion queues of each thread"));
    }
}
