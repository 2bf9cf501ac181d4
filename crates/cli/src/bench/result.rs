//! What came of a benchmark, and how it reads.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::run::Plan;
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

/// The distance of the two cores, in nanoseconds of a cache line's round trip, before and after.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    pub before_ns: Option<f64>,
    pub after_ns: Option<f64>,
}

/// The outcome of a benchmark.
pub struct Figures {
    pub plan: Plan,
    /// One figure for each slice, of one client thread.
    pub ours: Vec<f64>,
    /// One figure of the limit for each slice.
    pub limits: Vec<f64>,
    pub latency: Histogram<u64>,
    /// Calls whose answers were checked.
    pub calls: u64,
    pub cores: Cores,
    /// Whether the limit reached what it should on such a machine, and the reference that it was held against.
    pub reference: Option<f64>,
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

    /// The limit beside it.
    pub fn limit(&self) -> f64 {
        units::median(&self.limits)
    }

    /// The figure divided by its limit.
    pub fn ratio(&self) -> f64 {
        let limit = self.limit();
        if limit > 0.0 { self.figure() / limit } else { 0.0 }
    }

    /// A percentile of the latency, in nanoseconds.
    pub fn percentile_ns(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64
    }

    /// Whether the limit is what such a machine reaches when nothing else runs; `None` where there is no reference.
    pub fn limit_valid(&self) -> Option<bool> {
        let (reference, limit) = (self.reference?, self.limit());
        Some(match self.plan.kind {
            Kind::Latency => limit > 0.0 && reference / limit >= 0.7,
            _ => limit / reference >= 0.7,
        })
    }

    /// The name and value that thresholds are held against.
    pub fn judged(&self) -> (&'static str, f64) {
        match self.plan.kind {
            Kind::Scale => ("ratio", self.ratio()),
            kind => (kind.keys().0, self.figure()),
        }
    }

    /// One JSON object.
    pub fn to_json(&self) -> Value {
        let plan = &self.plan;
        let (figure_key, limit_key) = plan.kind.keys();
        let list = |values: &[f64]| values.iter().copied().map(units::rounded).collect::<Vec<_>>();
        let mut object = json!({
            "bench": plan.kind.name(),
            "fabric": plan.fabric.name(),
            "size": plan.size,
            "batch": plan.batch,
            "window": plan.window,
            "sessions": plan.sessions,
            "credits": plan.limits.credits,
            "threads": plan.threads,
            "seconds": plan.duration.as_secs_f64(),
            "client_cpus": plan.client_cpus,
            "server_cpus": plan.server_cpus,
            "p50_ns": self.percentile_ns(0.5),
            "p99_ns": self.percentile_ns(0.99),
            "p999_ns": self.percentile_ns(0.999),
            "ratio": units::rounded(self.ratio()),
            "slices": { "ours": list(&self.ours), "limit": list(&self.limits) },
            "calls_checked": self.calls,
            "cores": {
                "before_ns": self.cores.before_ns.map(units::rounded),
                "after_ns": self.cores.after_ns.map(units::rounded),
                "before": machine::distance(self.cores.before_ns),
                "after": machine::distance(self.cores.after_ns),
            },
            "limit_reference": self.reference,
            "limit_valid": self.limit_valid(),
            "server": self.server,
            "client": self.client,
        });
        object[figure_key] = json!(units::rounded(self.figure()));
        object[limit_key] = json!(units::rounded(self.limit()));
        if plan.threads > 1 {
            object["total"] = json!(units::rounded(self.figure() * plan.threads as f64));
        }
        object
    }

    /// A few lines to read.
    pub fn to_text(&self) -> String {
        let plan = &self.plan;
        let percentiles = [0.5, 0.99, 0.999].map(|quantile| units::time(self.percentile_ns(quantile)));
        let percentiles = format!("p50 {}, p99 {}, p99.9 {}", percentiles[0], percentiles[1], percentiles[2]);
        let (figure, limit) = (units::figure(self.figure()), units::figure(self.limit()));
        let ratio = units::figure(self.ratio());
        let what = format!("{} over {}, {}", plan.kind.name(), plan.fabric.name(), units::size(plan.size));
        let main = match plan.kind {
            Kind::Latency => {
                format!("{what}: {percentiles}\n  limit: {} ({ratio} times)", units::time(self.limit()))
            }
            Kind::Rate => format!(
                "{what}, {} in flight in batches of {}: {figure} M RPC/s per client core\n  limit: {limit} M/s \
                 (ratio {ratio}); latency {percentiles}",
                plan.window, plan.batch
            ),
            Kind::Bandwidth => format!("{what}: {figure} Gbps\n  limit: {limit} Gbps (ratio {ratio}); {percentiles}"),
            Kind::Scale => format!(
                "{what}: {figure} M RPC/s over {} sessions\n  {limit} M RPC/s over {} (ratio {ratio}); latency {percentiles}",
                plan.sessions,
                Plan::FEW_SESSIONS
            ),
        };
        let cores = match (self.cores.before_ns, self.cores.after_ns) {
            (Some(before), Some(after)) => format!(
                "cores {} before ({}), {} after ({})",
                machine::distance(Some(before)),
                units::time(before),
                machine::distance(Some(after)),
                units::time(after)
            ),
            _ => "one processor: client and server take turns, so the figures say little".to_owned(),
        };
        let valid = match self.limit_valid() {
            Some(false) => {
                "\n  INVALID: the limit itself was below 70 % of what such a machine reaches; is something else running?"
            }
            _ => "",
        };
        let resent = self.client["retransmissions"].as_u64().unwrap_or(0);
        format!("{main}\n  {} answers checked, {resent} sent again; {cores}{valid}", self.calls)
    }
}
