//! What came of a benchmark, and how it reads.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::args::Judged;
use super::run::Plan;
use crate::limits::Reading;
use crate::others::Others;
use crate::{machine, units};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One call at a time.
    Latency,
    /// Small calls, many in flight.
    Rate,
    /// Large requests.
    Bandwidth,
    /// The rate over many sessions against that over few.
    Scale,
}

impl Kind {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
            Self::Bandwidth => "bandwidth",
            Self::Scale => "scale",
        }
    }

    /// The figure's name in JSON, and that of its limit.
    fn keys(self) -> (&'static str, &'static str) {
        match self {
            Self::Latency => ("p50_ns", "limit_p50_ns"),
            Self::Rate | Self::Scale => ("rate_mops", "limit_mops"),
            Self::Bandwidth => ("gbps", "limit_gbps"),
        }
    }
}

/// The outcome of a benchmark.
pub struct Figures {
    pub plan: Plan,
    /// One figure for each slice, of one client thread.
    pub ours: Vec<f64>,
    /// One figure of the limit for each slice.
    pub limits: Vec<f64>,
    /// Bytes of the messages that the limit was measured with.
    pub limit_size: usize,
    pub latency: Histogram<u64>,
    /// Calls whose answers were checked.
    pub calls: u64,
    /// Before and after: whether the limits can be trusted.
    pub yardstick: [Reading; 2],
    /// Who else used the processors.
    pub others: Others,
    pub server: Value,
    pub client: Value,
}

impl Figures {
    /// The figure.
    pub fn figure(&self) -> f64 {
        match self.plan.kind {
            Kind::Latency => self.latency.value_at_quantile(0.5) as f64,
            _ => units::median(&self.ours),
        }
    }

    /// The limit beside it; `None` when nothing came through while it was measured.
    pub fn limit(&self) -> Option<f64> {
        Some(units::median(&self.limits)).filter(|limit| *limit > 0.0)
    }

    /// The figure divided by its limit, where there is one for messages of that size.
    pub fn ratio(&self) -> Option<f64> {
        self.limit().filter(|_| self.plan.has_ratio(self.limit_size)).map(|limit| self.figure() / limit)
    }

    /// A percentile of the latency, in nanoseconds.
    pub fn percentile_ns(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64
    }

    /// Whether the machine was free enough, before, after and meanwhile, for the limit to be one.
    pub fn limit_valid(&self) -> bool {
        self.limit().is_some() && self.yardstick.iter().all(Reading::is_enough) && self.others.are_few()
    }

    /// What thresholds are held against.
    pub fn judged(&self) -> Judged {
        let (name, figure) = match self.plan.kind {
            Kind::Scale => ("ratio", self.ratio()),
            kind => (kind.keys().0, Some(self.figure())),
        };
        Judged { name, figure, ratio: self.ratio(), valid: self.limit_valid() }
    }

    /// One JSON object.
    pub fn to_json(&self) -> Value {
        let plan = &self.plan;
        let (figure_key, limit_key) = plan.kind.keys();
        let [before, after] = &self.yardstick;
        let list = |values: &[f64]| values.iter().copied().map(units::rounded).collect::<Vec<_>>();
        let mut object = json!({
            "bench": plan.kind.name(),
            "fabric": plan.fabric.name(),
            "size": plan.size,
            "batch": plan.batch,
            "window": plan.window,
            "sessions": plan.sessions,
            "credits": plan.limits.credits(),
            "threads": plan.threads,
            "seconds": plan.duration.as_secs_f64(),
            "client_cpus": plan.client_cpus,
            "server_cpus": plan.server_cpus,
            "p50_ns": self.percentile_ns(0.5),
            "p99_ns": self.percentile_ns(0.99),
            "p999_ns": self.percentile_ns(0.999),
            "ratio": self.ratio().map(units::rounded),
            "limit_size": self.limit_size,
            "slices": { "ours": list(&self.ours), "limit": list(&self.limits) },
            "calls_checked": self.calls,
            "cores": {
                "before": machine::distance(before.cores_ns),
                "before_ns": before.cores_ns.map(units::rounded),
                "after": machine::distance(after.cores_ns),
                "after_ns": after.cores_ns.map(units::rounded),
            },
            "yardstick": {
                "what": before.name(),
                "before": units::rounded(before.value),
                "before_reference": units::rounded(before.reference),
                "after": units::rounded(after.value),
                "after_reference": units::rounded(after.reference),
            },
            "others_share": self.others.share.map(units::rounded),
            "limit_valid": self.limit_valid(),
            "server": self.server,
            "client": self.client,
        });
        object[figure_key] = json!(units::rounded(self.figure()));
        object[limit_key] = json!(self.limit().map(units::rounded));
        if plan.threads > 1 {
            object["total"] = json!(units::rounded(self.figure() * plan.threads as f64));
        }
        object
    }

    /// The limit with its unit.
    pub fn limit_text(&self) -> String {
        match (self.limit(), self.plan.kind) {
            (None, _) => "not measured".to_owned(),
            (Some(limit), Kind::Latency) => units::time(limit),
            (Some(limit), Kind::Rate | Kind::Scale) => format!("{} M/s", units::figure(limit)),
            (Some(limit), Kind::Bandwidth) => format!("{} Gbps", units::figure(limit)),
        }
    }

    /// The limit, what it was measured with where that is something else, and the ratio.
    fn limit_and_ratio(&self) -> String {
        let (limit, size) = (self.limit_text(), units::size(self.limit_size));
        let limit = match self.plan.kind {
            _ if self.limit_size == self.plan.size || self.limit().is_none() => limit,
            Kind::Bandwidth => format!("{limit} in pieces of {size}"),
            _ => format!("{limit} for {size}, the most that it can be measured with, so there is no ratio"),
        };
        match self.ratio().map(units::figure) {
            Some(ratio) if self.plan.kind == Kind::Latency => format!("{limit} ({ratio} times)"),
            Some(ratio) => format!("{limit} (ratio {ratio})"),
            None => limit,
        }
    }

    /// A few lines to read.
    pub fn to_text(&self) -> String {
        let plan = &self.plan;
        let percentiles = [0.5, 0.99, 0.999].map(|quantile| units::time(self.percentile_ns(quantile)));
        let percentiles = format!("p50 {}, p99 {}, p99.9 {}", percentiles[0], percentiles[1], percentiles[2]);
        let figure = units::figure(self.figure());
        let limit = self.limit_and_ratio();
        let what = format!("{} over {}, {}", plan.kind.name(), plan.fabric.name(), units::size(plan.size));
        let main = match plan.kind {
            Kind::Latency => format!("{what}: {percentiles}\n  limit: {limit}"),
            Kind::Rate => format!(
                "{what}, {} in flight in batches of {}: {figure} M RPC/s per client core\n  limit: {limit}; latency \
                 {percentiles}",
                plan.window, plan.batch
            ),
            Kind::Bandwidth => format!("{what}: {figure} Gbps\n  limit: {limit}; {percentiles}"),
            Kind::Scale => format!(
                "{what}: {figure} M RPC/s over {} sessions\n  {limit} over {} sessions; latency {percentiles}",
                plan.sessions,
                Plan::FEW_SESSIONS
            ),
        };
        let [before, after] = &self.yardstick;
        let cores = match (before.cores_ns, after.cores_ns) {
            (Some(before), Some(after)) => format!(
                "cores {} before ({}), {} after ({})",
                machine::distance(Some(before)),
                units::time(before),
                machine::distance(Some(after)),
                units::time(after)
            ),
            _ => "one processor: client and server take turns, so the figures say little".to_owned(),
        };
        let valid = if self.limit_valid() {
            String::new()
        } else if self.limit().is_none() {
            "\n  INVALID: the machine was too busy for the limit to be measured".to_owned()
        } else if let Some(complaint) = self.others.complaint() {
            format!("\n  INVALID: {complaint}")
        } else {
            format!(
                "\n  INVALID: the machine was busy, or is slower than the one that the references come from (see --reference): \
                 {} was {} before and {} after, where {} is expected",
                before.name(),
                units::figure(before.value),
                units::figure(after.value),
                units::figure(before.reference)
            )
        };
        let resent = self.client["retransmissions"].as_u64().unwrap_or(0);
        format!("{main}\n  {} answers checked, {resent} sent again; {cores}{valid}", self.calls)
    }
}
