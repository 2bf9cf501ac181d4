//! What the tour shows of sequencers.

use std::time::Duration;

use sinew_harness::Figure;
use sinew_harness::run::Progress;

use super::Design;
use super::run::{self, SequencerPlan};
use crate::fabrics::Fabric;
use crate::measure::Setting;
use crate::verbs::{Carried, DeviceArgs};

/// The one for every day, on shared memory.
pub fn over_shm(duration: Duration, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let plan = SequencerPlan {
        design: Design::Rpc,
        fabric: Fabric::Shm,
        device: DeviceArgs { fabric: Carried::Shm, device: None },
        address: None,
        window: 64,
        batch: 16,
        range: 1,
        setting: Setting::of_tour(duration),
    };
    run::measure(&plan, progress)
}
