//! What came of a measurement, and how it reads.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::plan::{Form, Op, Plan, Work, name};
use crate::bench::Judged;
use crate::limits::Reading;
use crate::others::Others;
use crate::{machine, units};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes a second.
    Bandwidth,
    /// Messages a second.
    Rate,
    /// One request at a time.
    Latency,
    /// Messages that come back.
    Echo,
}

impl Kind {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bw",
            Self::Rate => "rate",
            Self::Latency => "lat",
            Self::Echo => "echo",
        }
    }
}

/// The outcome of one measurement.
pub struct Figures {
    pub plan: Plan,
    pub kind: Kind,
    pub fabric: &'static str,
    pub device: String,
    pub seconds: f64,
    pub client_cpus: Vec<Option<usize>>,
    /// Millions a second of one client thread, or a median in nanoseconds, for each slice.
    pub ours: Vec<f64>,
    /// The limit of each, if there is one.
    pub limits: Vec<Option<f64>>,
    pub limit_what: &'static str,
    /// Of latencies in nanoseconds, one way where `kind` is so.
    pub latency: Histogram<u64>,
    /// Messages, results and echoes that were looked at; of WRITEs the last in each place, after each slice.
    pub checked: u64,
    /// Messages of an unreliable transport that did not arrive.
    pub lost: u64,
    pub yardstick: [Reading; 2],
    /// Who else used the processors.
    pub others: Others,
}

impl Figures {
    /// Whether the figure is a time.
    fn is_time(&self) -> bool {
        is_time(self.kind, &self.plan)
    }

    /// By what a rate in millions of messages a second is multiplied.
    fn scale(&self) -> f64 {
        if self.kind == Kind::Bandwidth { 8e-3 * self.plan.message_len() as f64 } else { 1.0 }
    }

    /// The figure's name in JSON, and that of its limit.
    fn keys(&self) -> (&'static str, &'static str) {
        match self.kind {
            Kind::Bandwidth => ("gbps", "limit_gbps"),
            _ if self.is_time() => ("p50_ns", "limit_p50_ns"),
            _ => ("rate_mops", "limit_mops"),
        }
    }

    pub fn figure(&self) -> f64 {
        if self.is_time() { self.percentile_ns(0.5) } else { units::median(&self.ours) * self.scale() }
    }

    /// The limit beside it, when all slices have one.
    pub fn limit(&self) -> Option<f64> {
        let limits: Option<Vec<f64>> = self.limits.iter().copied().collect();
        limits.filter(|limits| !limits.is_empty()).map(|limits| units::median(&limits) * self.scale())
    }

    /// The figure divided by its limit.
    pub fn ratio(&self) -> Option<f64> {
        self.limit().map(|limit| self.figure() / limit)
    }

    fn percentile_ns(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64
    }

    /// Whether the machine was free enough, before, after and meanwhile.
    pub fn is_valid(&self) -> bool {
        self.yardstick.iter().all(Reading::is_enough) && self.others.are_few()
    }

    /// What thresholds are held against.
    pub fn judged(&self) -> Judged {
        let figure = Some(self.figure());
        Judged { name: self.keys().0, figure, ratio: self.ratio(), valid: self.is_valid() }
    }

    /// One JSON object.
    pub fn to_json(&self) -> Value {
        let Self { plan, .. } = self;
        let (figure_key, limit_key) = self.keys();
        let what = match plan.work {
            Work::Load(op) => ("op", name(op)),
            Work::Echo(form) if self.kind == Kind::Latency => ("op", name(op_of(form))),
            Work::Echo(form) => ("form", name(form)),
        };
        let [before, after] = &self.yardstick;
        let ours: Vec<f64> = self.ours.iter().map(|ours| units::rounded(ours * self.scale())).collect();
        let limits: Vec<_> =
            self.limits.iter().map(|limit| limit.map(|limit| units::rounded(limit * self.scale()))).collect();
        let mut object = json!({
            "bench": self.kind.name(),
            what.0: what.1,
            "fabric": self.fabric,
            "device": self.device,
            "transport": name(plan.carrier),
            "size": plan.message_len(),
            "window": plan.window,
            "doorbell": plan.doorbell,
            "signal": plan.signal,
            "inline": plan.inline,
            "header_only": plan.header_only,
            "reads": plan.reads,
            "qps": plan.qps,
            "threads": plan.threads,
            "shape": name(plan.shape),
            "wait": name(plan.wait),
            "seconds": self.seconds,
            "client_cpus": self.client_cpus,
            "server_cpus": plan.cpus,
            "ratio": self.ratio().map(units::rounded),
            "limit_what": self.limit_what,
            "slices": { "ours": ours, "limit": limits },
            "counted": if plan.knows_arrivals() { "arrived" } else { "left" },
            "checked": self.checked,
            "lost": self.lost,
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
            "limit_valid": self.is_valid(),
        });
        object[figure_key] = json!(units::rounded(self.figure()));
        object[limit_key] = json!(self.limit().map(units::rounded));
        if self.has_latency() {
            object["min_ns"] = json!(self.latency.min());
            object["typical_ns"] = json!(self.percentile_ns(0.5));
            object["avg_ns"] = json!(units::rounded(self.latency.mean()));
            for (key, quantile) in [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999)] {
                object[key] = json!(self.percentile_ns(quantile));
            }
            object["max_ns"] = json!(self.latency.max());
        }
        if !self.is_time() {
            let mops = units::median(&self.ours);
            object["rate_mops"] = json!(units::rounded(mops));
            object["total_mops"] = json!(units::rounded(mops * plan.sides().0 as f64));
            if self.kind == Kind::Bandwidth {
                object["mb_per_s"] = json!(units::rounded(mops * 1e6 * plan.message_len() as f64 / f64::from(1 << 20)));
            }
        }
        object
    }

    fn has_latency(&self) -> bool {
        matches!(self.kind, Kind::Latency | Kind::Echo)
    }

    /// What it is of.
    fn what(&self) -> String {
        match self.plan.work {
            Work::Load(_) if self.plan.reads > 1 => format!("objects of {} READs", self.plan.reads),
            Work::Load(op) => name(op),
            Work::Echo(form) if self.kind == Kind::Latency => name(op_of(form)),
            Work::Echo(form) => name(form),
        }
    }

    /// What was measured, for a table: `32 B write, rc`.
    pub fn title(&self) -> String {
        format!("{} {}, {}", units::size(self.plan.message_len()), self.what(), name(self.plan.carrier))
    }

    /// The figure, for a table.
    pub fn figure_text(&self) -> String {
        if self.is_time() {
            let [p50, p99] = [0.5, 0.99].map(|quantile| units::time(self.percentile_ns(quantile)));
            return format!("{p50} / {p99}");
        }
        self.with_unit(self.figure())
    }

    /// The limit, for a table.
    pub fn limit_text(&self) -> String {
        match self.limit() {
            Some(limit) => format!("{}: {}", self.with_unit(limit), self.limit_what),
            None => "none".to_owned(),
        }
    }

    fn with_unit(&self, value: f64) -> String {
        match self.keys().0 {
            "gbps" => format!("{} Gbps", units::figure(value)),
            "p50_ns" => units::time(value),
            _ => format!("{} M/s", units::figure(value)),
        }
    }

    /// A few lines to read.
    pub fn to_text(&self) -> String {
        let Self { plan, .. } = self;
        let shape = match plan.sides() {
            (1, 1) => String::new(),
            (clients, servers) => format!(", {clients} client threads to {servers}"),
        };
        let (kind, carrier) = (self.kind.name(), name(plan.carrier));
        let head = format!(
            "{kind} of {} on {carrier} over {}, {}{shape}",
            self.what(),
            self.fabric,
            units::size(plan.message_len())
        );
        let mops = units::median(&self.ours);
        let left = if plan.knows_arrivals() { "" } else { " that have left" };
        let main = match self.kind {
            Kind::Bandwidth => {
                let mb_per_s = mops * 1e6 * plan.message_len() as f64 / f64::from(1 << 20);
                let shown = units::figure(self.figure());
                format!(
                    "{} MB/s, {shown} Gbps, {} M messages/s per client thread{left}",
                    units::figure(mb_per_s),
                    units::figure(mops)
                )
            }
            _ if self.is_time() => {
                let [p99, p999] = [0.99, 0.999].map(|quantile| units::time(self.percentile_ns(quantile)));
                let [min, max] = [self.latency.min(), self.latency.max()].map(|ns| units::time(ns as f64));
                format!("min {min}, typical {}, p99 {p99}, p99.9 {p999}, max {max}", units::time(self.figure()))
            }
            _ => format!(
                "{} M/s per client thread{left}, {} in flight on each queue pair",
                units::figure(mops),
                plan.window
            ),
        };
        let limit = match (self.limit(), self.ratio()) {
            (Some(limit), Some(ratio)) if self.is_time() => {
                format!("{} ({} times): {}", self.with_unit(limit), units::figure(ratio), self.limit_what)
            }
            (Some(limit), Some(ratio)) => {
                format!("{} (ratio {}): {}", self.with_unit(limit), units::figure(ratio), self.limit_what)
            }
            _ => "none".to_owned(),
        };
        let lost = if self.lost > 0 { format!(", {} lost", self.lost) } else { String::new() };
        let [before, after] = &self.yardstick;
        let valid = if self.is_valid() {
            String::new()
        } else if let Some(complaint) = self.others.complaint() {
            format!("\n  INVALID: {complaint}")
        } else {
            format!(
                "\n  INVALID: the machine was busy, or is slower than the one that the references come from: {} was {} before and \
                 {} after, where {} is expected",
                before.name(),
                units::figure(before.value),
                units::figure(after.value),
                units::figure(before.reference)
            )
        };
        let checked = match plan.work {
            Work::Load(Op::Write) => "checked: the last in each place, after each slice",
            Work::Load(Op::WriteImm) => "checked: the last in each place, after each slice; the immediate of each",
            _ => "checked",
        };
        format!("{head}\n  {main}\n  limit: {limit}\n  {} {checked}{lost}{valid}", self.checked)
    }
}

/// The kind of request whose latency an echo tells.
fn op_of(form: Form) -> Op {
    match form {
        Form::Ww | Form::Ws => Op::Write,
        Form::Ss => Op::Send,
        Form::Imm => Op::WriteImm,
    }
}

/// Whether the figure of a measurement is a time.
pub fn is_time(kind: Kind, plan: &Plan) -> bool {
    kind == Kind::Latency || (kind == Kind::Echo && plan.window == 1 && plan.links().len() == 1)
}

/// Whether a latency is half of what is timed: that of a message one way, which perftest has so too.
pub fn is_halved(kind: Kind, plan: &Plan) -> bool {
    kind == Kind::Latency && matches!(plan.work, Work::Echo(_))
}

/// Whether requests are made one at a time.
pub fn is_single(kind: Kind, plan: &Plan) -> bool {
    kind == Kind::Latency && matches!(plan.work, Work::Load(Op::Read | Op::FetchAdd | Op::CompareSwap))
}
