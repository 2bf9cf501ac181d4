//! What the tour shows of sequencers.

use std::time::Duration;

use sinew_harness::reference::References;
use sinew_harness::run::Progress;
use sinew_harness::{Figure, machine};

use super::Design;
use super::run::{self, SequencerPlan};
use crate::fabrics::Fabric;
use crate::verbs::{Carried, DeviceArgs};

/// The one for every day, on shared memory.
pub fn over_shm(duration: Duration, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let pair = machine::default_pair();
    let plan = SequencerPlan {
        design: Design::Rpc,
        fabric: Fabric::Shm,
        device: DeviceArgs { fabric: Carried::Shm, device: None },
        address: None,
        window: 64,
        batch: 16,
        range: 1,
        duration,
        client_cpus: vec![pair.map(|cpus| cpus[0])],
        server_cpu: pair.map(|cpus| cpus[1]),
        references: References::default(),
    };
    run::measure(&plan, progress)
}
