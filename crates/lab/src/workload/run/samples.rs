//! Samples that are taken at the end of each interval of a run.

use sinew_sim::{LinkId, Topology};

use super::Run;
use super::totals::{GroupTotals, lane_name};
use crate::workload::report::{Queue, Series};

/// Queues that are reported, and those that are drawn.
const QUEUES: usize = 10;
const QUEUES_DRAWN: usize = 4;

/// Samples of a run.
pub struct Samples {
    times_ns: Vec<u64>,
    /// For each direction of each link: the most bytes that waited in each interval, and the bytes that waited at its
    /// end.
    queued: Vec<(Vec<u64>, Vec<u64>)>,
    goodput_gbps: Vec<Vec<f64>>,
    rates_gbps: Vec<Vec<[f64; 3]>>,
    data_bytes: Vec<f64>,
}

impl Samples {
    pub fn new(run: &Run) -> Self {
        (0..run.links).for_each(|link| _ = run.network.take_queued_max(LinkId(link)));
        let groups = run.groups.len();
        Self {
            times_ns: Vec::new(),
            queued: vec![(Vec::new(), Vec::new()); 2 * run.links],
            goodput_gbps: vec![Vec::new(); groups],
            rates_gbps: vec![Vec::new(); groups],
            data_bytes: run.groups.iter().map(|running| GroupTotals::of(&run.cluster, running).data_bytes).collect(),
        }
    }

    /// Takes samples at the end of an interval.
    pub fn take(&mut self, run: &Run, time_ns: u64) {
        let took_ns = time_ns - self.times_ns.last().copied().unwrap_or(0);
        self.times_ns.push(time_ns);
        for link in 0..run.links {
            let at_end = run.network.link_stats(LinkId(link)).map(|stats| stats.queued_bytes);
            for (direction, most) in run.network.take_queued_max(LinkId(link)).into_iter().enumerate() {
                let (mosts, ends) = &mut self.queued[2 * link + direction];
                mosts.push(most);
                ends.push(at_end[direction]);
            }
        }
        for (index, running) in run.groups.iter().enumerate() {
            let data_bytes = GroupTotals::of(&run.cluster, running).data_bytes;
            let gbps = (data_bytes - self.data_bytes[index]).max(0.0) * 8.0 / took_ns as f64;
            self.data_bytes[index] = data_bytes;
            self.goodput_gbps[index].push(gbps);
            self.rates_gbps[index].push(running.rates_gbps().unwrap_or_default());
        }
    }

    /// Returns the deepest queues after the warm-up, and the series.
    pub fn end(self, topology: &Topology, warm_up_ns: u64) -> (Vec<Queue>, Series) {
        let first = self.times_ns.partition_point(|time_ns| *time_ns <= warm_up_ns);
        let mut deepest: Vec<(u64, usize)> = self
            .queued
            .iter()
            .enumerate()
            .map(|(lane, (mosts, _))| (mosts[first..].iter().copied().max().unwrap_or(0), lane))
            .collect();
        deepest.sort_by_key(|(most, lane)| (u64::MAX - most, *lane));
        deepest.retain(|(most, _)| *most > 0);
        deepest.truncate(QUEUES);
        let queue = |(max_bytes, lane): &(u64, usize)| {
            let ends = &self.queued[*lane].1[first..];
            let mean_bytes = ends.iter().sum::<u64>() as f64 / ends.len().max(1) as f64;
            Queue { port: lane_name(topology, *lane), max_bytes: *max_bytes, mean_bytes }
        };
        let queues = deepest.iter().map(queue).collect();
        let drawn = deepest.iter().take(QUEUES_DRAWN);
        let series = Series {
            queues_bytes: drawn.map(|(_, lane)| self.queued[*lane].0.clone()).collect(),
            times_ns: self.times_ns,
            goodput_gbps: self.goodput_gbps,
            rates_gbps: self.rates_gbps,
        };
        (queues, series)
    }
}
