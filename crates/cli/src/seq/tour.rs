//! What the tour shows of sequencers.

use std::time::Duration;

use super::Design;
use super::run::{self, Plan};
use crate::fabrics::Fabric;
use crate::limits::References;
use crate::machine;
use crate::tour::Row;
use crate::verbs::{Carried, DeviceArgs};

/// The one for every day, on shared memory.
pub fn over_shm(duration: Duration) -> anyhow::Result<Row> {
    let pair = machine::default_pair();
    run::measure(Plan {
        design: Design::Rpc,
        fabric: Fabric::Shm,
        device: DeviceArgs { fabric: Carried::Shm, device: None },
        address: None,
        clients: 1,
        window: 64,
        batch: 16,
        range: 1,
        duration,
        client_cpus: vec![pair.map(|cpus| cpus[0])],
        server_cpu: pair.map(|cpus| cpus[1]),
        references: References::default(),
    })
    .map(|figures| figures.row())
}
