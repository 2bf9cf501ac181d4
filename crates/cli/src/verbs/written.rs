//! The rate of messages that are written to a server and sent back: what a service that works so is measured beside.

use std::time::Duration;

use super::args::INLINE_DEFAULT;
use super::device::DeviceArgs;
use super::plan::{Carrier, Form, Plan, Shape, Work};
use super::result::{Figures, Kind, is_time};
use super::run::Measure;
use crate::limits::References;
use crate::units;

/// `sinew verbs echo --form ws` between threads of this process and one of a server process that is started for it.
pub struct WrittenEcho<'a> {
    pub device: &'a DeviceArgs,
    /// Bytes of a message, there and back.
    pub size: usize,
    /// Messages on their way on each queue pair.
    pub window: usize,
    /// Queue pairs of each thread.
    pub queue_pairs: usize,
    pub client_cpus: &'a [Option<usize>],
    pub server_cpu: Option<usize>,
    pub references: &'a References,
}

/// What came of it.
pub struct Written {
    /// Of all threads, in millions a second.
    pub rate_mops: f64,
    /// Whether the machine was free enough.
    pub is_valid: bool,
}

impl WrittenEcho<'_> {
    fn plan(&self) -> Plan {
        Plan {
            window: self.window,
            inline: self.size <= INLINE_DEFAULT,
            qps: self.queue_pairs,
            threads: self.client_cpus.len(),
            shape: Shape::Inbound,
            cpus: vec![self.server_cpu],
            ..Plan::new(Work::Echo(Form::Ws), Carrier::Uc, self.size)
        }
    }

    /// Whether it can be measured, whatever the machine.
    pub fn check(&self) -> anyhow::Result<()> {
        self.plan().check()
    }

    /// Measures for a time.
    pub fn measure(&self, duration: Duration) -> anyhow::Result<Written> {
        let plans = [(Kind::Echo, self.plan())];
        let measure = Measure {
            plans: &plans,
            duration,
            client_cpus: self.client_cpus,
            references: self.references,
            device: self.device,
            address: None,
        };
        let figures = self.device.run(measure)?;
        let ours = figures.iter().flat_map(|figures| &figures.ours).copied().collect::<Vec<_>>();
        let median = units::median(&ours);
        // One message at a time is told as the time that it takes.
        let rate_mops = match is_time(Kind::Echo, &plans[0].1) {
            true if median > 0.0 => 1e3 / median,
            true => 0.0,
            false => median * self.client_cpus.len() as f64,
        };
        Ok(Written { rate_mops, is_valid: figures.iter().all(Figures::is_valid) })
    }
}
