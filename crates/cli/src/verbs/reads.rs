//! The rate of READs: what a store whose GETs are READs is measured beside.

use std::time::Duration;

use super::device::DeviceArgs;
use super::plan::{Carrier, Op, Plan, Work};
use super::result::{Figures, Kind};
use super::run::Measure;
use crate::limits::References;
use crate::units;

/// `sinew verbs rate read` between a thread of this process and one of a server process that is started for it.
pub struct ReadRate<'a> {
    pub device: &'a DeviceArgs,
    /// Bytes of a READ.
    pub size: usize,
    /// READs on their way.
    pub window: usize,
    pub client_cpu: Option<usize>,
    pub server_cpu: Option<usize>,
    pub references: &'a References,
}

impl ReadRate<'_> {
    fn plan(&self) -> Plan {
        Plan {
            window: self.window,
            // As a client does whose READs are searches: all that are due start together, and each is told.
            signal: 1,
            cpus: vec![self.server_cpu],
            ..Plan::new(Work::Load(Op::Read), Carrier::Rc, self.size)
        }
    }

    /// Measures for a time: millions a second, and whether the machine was free enough.
    pub fn measure(&self, duration: Duration) -> anyhow::Result<(f64, bool)> {
        let plans = [(Kind::Rate, self.plan())];
        let measure = Measure {
            plans: &plans,
            duration,
            client_cpus: &[self.client_cpu],
            references: self.references,
            device: self.device,
            address: None,
        };
        let figures = self.device.run(measure)?;
        let ours = figures.iter().flat_map(|figures| &figures.ours).copied().collect::<Vec<_>>();
        Ok((units::median(&ours), figures.iter().all(Figures::is_valid)))
    }
}
