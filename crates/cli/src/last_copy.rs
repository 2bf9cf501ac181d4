//! `--last-copy`: a volume with or without a file of this host as one more copy, and reports about that file.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use serde_json::{Value, json};
use sinew::host::{HostClock, ThreadPool};
use sinew::remote_block::{LastCopy, LastCopyFile, VolumeIdentity};
use sinew::remote_memory::volume::{Donors, Volume};
use sinew::remote_memory::{Store, StoreError};

use crate::output;

/// A volume, with or without a last copy around it.
pub trait VolumeStore<D: Donors>: Store {
    /// The volume.
    fn volume(&self) -> &Volume<D>;

    /// The volume. The last copy does not see requests made directly to it.
    fn volume_mut(&mut self) -> &mut Volume<D>;

    /// Reports news of the last copy, except what `reported` records as reported.
    fn report_changes(&self, reported: &mut Reported);

    /// The last copy's state and counters, as JSON.
    fn last_copy(&self) -> Option<Value>;

    /// The volume alone, once it has left its donors, and the result of syncing the file.
    fn into_volume(self) -> (Volume<D>, anyhow::Result<()>);
}

/// Opens the file at `path` as the last copy of a volume, with the thread that syncs it.
pub fn open<D: Donors>(volume: &Volume<D>, path: &Path) -> anyhow::Result<(LastCopyFile, Arc<ThreadPool>)> {
    let identity = VolumeIdentity { id: volume.id(), number: volume.number() };
    let file = LastCopyFile::open(path, identity, volume.len()).context("--last-copy")?;
    let pool = ThreadPool::new("last-copy", 1, 4).context("starting the thread that syncs the last copy")?;
    Ok((file, Arc::new(pool)))
}

/// News that has been reported.
#[derive(Debug, Default)]
pub struct Reported {
    is_complete: bool,
    is_given_up: bool,
    is_read: bool,
    is_over: bool,
}

impl<D: Donors> VolumeStore<D> for Volume<D> {
    fn volume(&self) -> &Volume<D> {
        self
    }

    fn volume_mut(&mut self) -> &mut Volume<D> {
        self
    }

    fn report_changes(&self, _: &mut Reported) {}

    fn last_copy(&self) -> Option<Value> {
        None
    }

    fn into_volume(self) -> (Volume<D>, anyhow::Result<()>) {
        (self, Ok(()))
    }
}

impl<D: Donors> VolumeStore<D> for LastCopy<Volume<D>, HostClock> {
    fn volume(&self) -> &Volume<D> {
        self.inner()
    }

    fn volume_mut(&mut self) -> &mut Volume<D> {
        self.inner_mut()
    }

    fn report_changes(&self, reported: &mut Reported) {
        if self.is_complete() && !std::mem::replace(&mut reported.is_complete, true) {
            output::complain("the last copy has all of the volume");
        }
        if self.stats().reads > 0 && !std::mem::replace(&mut reported.is_read, true) {
            output::complain("the donors have lost data: it is read from the last copy");
        }
        if let Some(ended) = self.inner().ended()
            && !matches!(ended, StoreError::NoAnswer(_))
            && !std::mem::replace(&mut reported.is_over, true)
        {
            output::complain(format_args!("the last copy is no longer read, since the volume has ended: {ended}"));
        }
        if let Some(why) = self.given_up()
            && !std::mem::replace(&mut reported.is_given_up, true)
        {
            output::complain(format_args!("the last copy is given up, and the volume is served without it: {why}"));
        }
    }

    fn last_copy(&self) -> Option<Value> {
        let stats = self.stats();
        Some(json!({
            "is_complete": self.is_complete(),
            "given_up": self.given_up(),
            "reads": stats.reads,
            "copied_bytes": stats.copied_bytes,
            "syncs": stats.syncs,
        }))
    }

    fn into_volume(self) -> (Volume<D>, anyhow::Result<()>) {
        let (volume, synced) = self.into_inner();
        (volume, synced.context("syncing the last copy to disk"))
    }
}
