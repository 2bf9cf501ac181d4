//! `--last-copy`: a volume with or without a file of this host as one more copy, and reports about that file.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use serde_json::{Value, json};
use sinew::host::{HostClock, ThreadPool};
use sinew::remote_block::{LastCopy, LastCopyFile, Whose};
use sinew::remote_memory::volume::{Donors, Volume};
use sinew::remote_memory::{Store, StoreError};

use crate::output;

/// A volume, with or without a last copy around it.
pub trait OfVolume<D: Donors>: Store {
    /// The volume.
    fn volume(&self) -> &Volume<D>;

    /// The volume. The last copy does not see requests made directly to it.
    fn volume_mut(&mut self) -> &mut Volume<D>;

    /// Reports news of the last copy, except what `told` records as reported.
    fn look(&self, told: &mut Told);

    /// The last copy's state and counters, as JSON.
    fn last_copy(&self) -> Option<Value>;

    /// The volume alone, once it has left its donors, and the result of syncing the file.
    fn into_volume(self) -> (Volume<D>, anyhow::Result<()>);
}

/// Opens the file at `path` as the last copy of a volume, with the thread that syncs it.
pub fn open<D: Donors>(volume: &Volume<D>, path: &Path) -> anyhow::Result<(LastCopyFile, Arc<ThreadPool>)> {
    let whose = Whose { id: volume.id(), number: volume.number() };
    let file = LastCopyFile::open(path, whose, volume.len()).context("--last-copy")?;
    let pool = ThreadPool::new("last-copy", 1, 4).context("starting the thread that syncs the last copy")?;
    Ok((file, Arc::new(pool)))
}

/// News that has been reported.
#[derive(Debug, Default)]
pub struct Told {
    is_complete: bool,
    is_given_up: bool,
    is_read: bool,
    is_over: bool,
}

impl<D: Donors> OfVolume<D> for Volume<D> {
    fn volume(&self) -> &Volume<D> {
        self
    }

    fn volume_mut(&mut self) -> &mut Volume<D> {
        self
    }

    fn look(&self, _: &mut Told) {}

    fn last_copy(&self) -> Option<Value> {
        None
    }

    fn into_volume(self) -> (Volume<D>, anyhow::Result<()>) {
        (self, Ok(()))
    }
}

impl<D: Donors> OfVolume<D> for LastCopy<Volume<D>, HostClock> {
    fn volume(&self) -> &Volume<D> {
        self.inner()
    }

    fn volume_mut(&mut self) -> &mut Volume<D> {
        self.inner_mut()
    }

    fn look(&self, told: &mut Told) {
        if self.is_complete() && !std::mem::replace(&mut told.is_complete, true) {
            output::complain("the last copy has all of the volume");
        }
        if self.stats().reads > 0 && !std::mem::replace(&mut told.is_read, true) {
            output::complain("the donors have lost data: it is read from the last copy");
        }
        if let Some(ended) = self.inner().ended()
            && !matches!(ended, StoreError::Silent(_))
            && !std::mem::replace(&mut told.is_over, true)
        {
            output::complain(format_args!("the last copy is no longer read, since the volume has ended: {ended}"));
        }
        if let Some(why) = self.given_up()
            && !std::mem::replace(&mut told.is_given_up, true)
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
