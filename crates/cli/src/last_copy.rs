//! `--last-copy`: a volume with a file of this host as one more copy, or without, and what is told of it.

use anyhow::Context;
use serde_json::{Value, json};
use sinew::remote_block::LastCopy;
use sinew::remote_memory::Store;
use sinew::remote_memory::volume::{Donors, Volume};

use crate::output;

/// A volume, whatever is around it.
pub trait OfVolume<D: Donors>: Store {
    /// The volume.
    fn volume(&self) -> &Volume<D>;

    /// Tells news of the last copy, of which it was told `told` before.
    fn look(&self, told: &mut Told);

    /// What the last copy did, for JSON.
    fn last_copy(&self) -> Option<Value>;

    /// The volume alone, and whether the file has all of it.
    fn into_volume(self) -> (Volume<D>, anyhow::Result<()>);
}

/// What was told.
#[derive(Debug, Default)]
pub struct Told {
    is_complete: bool,
    is_given_up: bool,
    is_read: bool,
}

impl<D: Donors> OfVolume<D> for Volume<D> {
    fn volume(&self) -> &Volume<D> {
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

impl<D: Donors> OfVolume<D> for LastCopy<Volume<D>> {
    fn volume(&self) -> &Volume<D> {
        self.inner()
    }

    fn look(&self, told: &mut Told) {
        if self.is_complete() && !std::mem::replace(&mut told.is_complete, true) {
            output::complain("the last copy has all of the volume");
        }
        if self.stats().reads > 0 && !std::mem::replace(&mut told.is_read, true) {
            output::complain("what the donors do not have any more is read from the last copy");
        }
        if let Some(why) = self.given_up()
            && !std::mem::replace(&mut told.is_given_up, true)
        {
            output::complain(format_args!("the last copy is given up, and the volume is served without: {why}"));
        }
    }

    fn last_copy(&self) -> Option<Value> {
        let stats = self.stats();
        Some(json!({
            "is_complete": self.is_complete(),
            "given_up": self.given_up(),
            "reads": stats.reads,
            "copied_bytes": stats.copied_bytes,
        }))
    }

    fn into_volume(self) -> (Volume<D>, anyhow::Result<()>) {
        let (volume, synced) = self.into_inner();
        (volume, synced.context("bringing the last copy to the disk"))
    }
}
