//! Volumes: options that choose one, opening and making it, and reports about its health.

use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};
use sinew::fabric::Generator;
use sinew::host::{Interrupt, SystemEntropy};
use sinew::remote_memory::pool::{Survey, place_volume};
use sinew::remote_memory::store::{BLOCK, Job, Request, Status, Store};
use sinew::remote_memory::volume::{CallFailed, Donors, NewVolume, OpenError, Opening, Volume, VolumeConfig, id_of};
use sinew_harness::units::{self, counted, parse_size};

use crate::donors::{DonorNames, drive};
use crate::output;

/// Memory for buffers that a volume needs to look through its slots and to rebuild copies, in bytes.
pub const ARENA: usize = 64 << 20;
/// Default number of copies of a new volume.
const COPIES: u32 = 2;
/// Smallest and largest slab, in bytes.
const SLABS: (u64, u64) = (4 << 20, 1 << 30);
/// Approximate number of slabs in one copy of a volume, where their limits allow it.
const SLABS_PER_COPY: u64 = 16;

/// Options that choose a volume.
#[derive(clap::Args, Clone, Debug)]
pub struct VolumeArgs {
    /// Name of the volume. Opening it waits until its last writer has been silent for three seconds, unless that writer
    /// shut down cleanly
    #[arg(long, value_name = "NAME", default_value = "volume", value_parser = NonEmptyStringValueParser::new())]
    pub volume: String,
    /// Take the volume at once from the program that has it open, alive or not
    #[arg(long)]
    pub force: bool,
}

/// Options of a volume that is made if there is none of the name.
#[derive(clap::Args, Clone, Debug)]
pub struct NewArgs {
    /// Size of a new volume, in bytes, a multiple of 4K; needed if there is no volume of this name yet
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = parse_size)]
    pub size: Option<usize>,
    /// Copies of every page, each at another donor, 1 to 16 [default for a new volume: 2]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub copies: Option<u32>,
}

impl NewArgs {
    /// Checks the options for this number of donors.
    pub fn check(&self, donors: usize) -> anyhow::Result<()> {
        if let Some(size) = self.size {
            let is_whole = size > 0 && size.is_multiple_of(BLOCK);
            ensure!(
                is_whole,
                "--size {}: a volume must have whole blocks of {}",
                units::size(size),
                units::size(BLOCK)
            );
        }
        let copies = self.copies.unwrap_or(COPIES) as usize;
        ensure!(
            copies <= donors,
            "--copies {copies}: each copy needs a donor of its own, and {donors} {} named: name more, or say --copies {donors}{}",
            if donors == 1 { "is" } else { "are" },
            if donors == 1 { ", which loses pages if the donor fails" } else { "" }
        );
        Ok(())
    }
}

/// Opens a volume, or makes it if there is none of its name.
pub fn open_or_make<D: Donors>(
    donors: D,
    names: &DonorNames,
    args: &VolumeArgs,
    new: &NewArgs,
    interrupt: Interrupt,
) -> anyhow::Result<Volume<D>> {
    let volume = match open(donors, names, args, interrupt)? {
        Ok(mut volume) => {
            if let Err(error) = check_found(&volume, args, new) {
                leave(&mut volume);
                return Err(error);
            }
            volume
        }
        Err(donors) => make(donors, names, args, new, interrupt)?,
    };
    if names.count() < 3 {
        output::complain(format_args!(
            "the volume \"{}\" is on {}, the volume can be neither opened again nor written to; with three donors any one may fail",
            args.volume,
            if names.count() == 1 {
                "one donor: if that fails"
            } else {
                "two donors, of which one votes: if that one fails"
            }
        ));
    }
    Ok(volume)
}

/// Opens a volume. If no donor knows it, returns the donors.
pub fn open<D: Donors>(
    donors: D,
    names: &DonorNames,
    args: &VolumeArgs,
    interrupt: Interrupt,
) -> anyhow::Result<Result<Volume<D>, D>> {
    let mut opening = Opening::new(donors, id_of(&args.volume), config(args.force));
    match turn_opening(&mut opening, interrupt)? {
        Ok(volume) => Ok(Ok(volume)),
        Err(error @ OpenError::NotFound(_)) => Ok(Err(opening.into_donors().with_context(|| error.to_string())?)),
        Err(error @ OpenError::InUse) => {
            bail!("opening the volume \"{}\": {error}, or take the volume from it with --force", args.volume)
        }
        Err(error) => bail!("opening the volume \"{}\": {}", args.volume, names.with_addresses(error)),
    }
}

/// Configuration of a volume that is taken from its writer, if it is forced, or else only once that is dead.
pub fn config(is_forced: bool) -> VolumeConfig {
    let config = VolumeConfig::default();
    VolumeConfig { lease_ns: if is_forced { 0 } else { config.lease_ns }, ..config }
}

fn turn_opening<D: Donors>(
    opening: &mut Opening<D>,
    interrupt: Interrupt,
) -> anyhow::Result<Result<Volume<D>, OpenError>> {
    drive(opening, interrupt, |opening| Ok(opening.turn().transpose()))
}

fn check_found<D: Donors>(volume: &Volume<D>, args: &VolumeArgs, new: &NewArgs) -> anyhow::Result<()> {
    let len = volume.len() as usize;
    ensure!(
        new.size.is_none_or(|size| size == len),
        "--size {}: the volume \"{}\" exists, and has {}; leave --size out, or choose another name with --volume",
        units::size(new.size.unwrap_or(0)),
        args.volume,
        units::size(len)
    );
    ensure!(
        new.copies.is_none_or(|copies| copies == volume.copies()),
        "--copies {}: the volume \"{}\" exists, and has {} of everything; leave --copies out, or choose another name with --volume",
        new.copies.unwrap_or(0),
        args.volume,
        counted(volume.copies(), "copy")
    );
    Ok(())
}

/// Asks all donors for the memory that is free for a volume. Returns the survey, and the donors that do not answer,
/// each with the reason.
fn survey<D: Donors>(
    donors: D,
    names: &DonorNames,
    volume: &str,
    interrupt: Interrupt,
) -> anyhow::Result<(Survey<D>, Vec<String>)> {
    let mut survey = Survey::for_volume(donors, id_of(volume));
    drive(&mut survey, interrupt, |survey| Ok(survey.turn().then_some(())))?;
    let silent = survey.results().zip(names.all()).filter_map(|(result, name)| match result {
        Ok(_) => None,
        Err(CallFailed::Unreachable(why)) => Some(format!("{name}: {why}")),
        Err(refused) => Some(format!("{name}: {refused}")),
    });
    let silent = silent.collect();
    Ok((survey, silent))
}

/// Error for a volume that none of these donors knows, because they do not answer or do not have it.
///
/// # Errors
///
/// Asking the donors failed.
pub fn unknown<D: Donors>(
    donors: D,
    names: &DonorNames,
    volume: &str,
    interrupt: Interrupt,
) -> anyhow::Result<anyhow::Error> {
    let (_, silent) = survey(donors, names, volume, interrupt)?;
    Ok(if silent.is_empty() {
        anyhow!(
            "no donor knows the volume \"{volume}\": give its name with --volume, and the addresses of the donors that \
             hold it"
        )
    } else if silent.len() == names.count() {
        anyhow!("no donor answers: {} (`sinew serve memory ADDRESS` starts a donor)", silent.join("; "))
    } else {
        anyhow!(
            "no donor that answers knows the volume \"{volume}\", and these do not answer: {} (`sinew serve memory \
             ADDRESS` starts a donor; --volume gives another name)",
            silent.join("; ")
        )
    })
}

/// Makes a volume. All donors must answer, since one that does not may know a volume of this name.
fn make<D: Donors>(
    donors: D,
    names: &DonorNames,
    args: &VolumeArgs,
    new: &NewArgs,
    interrupt: Interrupt,
) -> anyhow::Result<Volume<D>> {
    let (survey, silent) = survey(donors, names, &args.volume, interrupt)?;
    let name = &args.volume;
    ensure!(
        silent.is_empty(),
        "no donor that answers knows the volume \"{name}\", and it is made only when all of them answer: {}",
        silent.join("; ")
    );
    let size = new.size.with_context(|| format!("no donor knows the volume \"{name}\": --size BYTES makes it"))?;
    let rooms: Vec<_> = survey.results().filter_map(|result| result.as_ref().ok().copied()).collect();
    let number = SystemEntropy::new().context("drawing the volume's random number")?.next_u64();
    let placed = place_volume(size as u64, new.copies.unwrap_or(COPIES), slab_len(size as u64), number, &rooms);
    let placed: NewVolume = placed.with_context(|| {
        format!("making the volume \"{name}\" (`sinew memory volumes` lists who has the donors' memory)")
    })?;
    let mut opening = Opening::create(survey.into_donors(), id_of(name), placed, config(args.force));
    match turn_opening(&mut opening, interrupt)? {
        Ok(volume) => Ok(volume),
        Err(error @ OpenError::InUse) => {
            bail!("making the volume \"{name}\": {error}, or take the volume from it with --force")
        }
        Err(error) => bail!("making the volume \"{name}\": {}", names.with_addresses(error)),
    }
}

fn slab_len(len: u64) -> u64 {
    (len / SLABS_PER_COPY).clamp(SLABS.0, SLABS.1).next_multiple_of(BLOCK as u64)
}

/// Health of a volume as last reported; each change is reported once.
#[derive(Debug, Default)]
pub struct Health {
    last_reported: Option<(u8, u64)>,
}

impl Health {
    /// Reports the volume's health if it has changed.
    pub fn report_changes<D: Donors>(&mut self, volume: &Volume<D>, names: &DonorNames) {
        let status = volume.status();
        let lost = volume.stats().donors_lost;
        let now = (rank(&status), lost);
        let (before, lost_before) = self.last_reported.replace(now).unwrap_or((0, lost));
        if before == now.0 && lost == lost_before {
            return;
        }
        match status {
            Status::FewVoters(why) => output::complain(format_args!(
                "the volume has all its copies, but might not survive the loss of a donor: {}",
                names.with_addresses(why)
            )),
            Status::Degraded(why) => {
                output::complain(format_args!(
                    "the volume has fewer copies than it should: {}",
                    names.with_addresses(why)
                ));
            }
            Status::Damaged(why) => {
                output::complain(format_args!("the volume is damaged: {}", names.with_addresses(why)))
            }
            Status::Ended(why) => output::complain(format_args!(
                "this program can no longer use the volume: {}",
                names.with_addresses(why)
            )),
            _ if before == 0 => output::complain(format_args!(
                "a donor is gone, and the volume is whole again: {}",
                names.with_addresses(volume.describe_down())
            )),
            _ => output::complain("the volume is whole again"),
        }
    }
}

fn rank(status: &Status) -> u8 {
    match status {
        Status::Whole => 0,
        Status::FewVoters(_) => 1,
        Status::Degraded(_) => 2,
        Status::Damaged(_) => 3,
        _ => 4,
    }
}

/// Status and counters of a volume, as JSON.
pub fn counters<D: Donors>(volume: &Volume<D>, names: &DonorNames) -> Value {
    let stats = volume.stats();
    let (status, why) = match volume.status() {
        Status::Whole => ("whole", None),
        Status::FewVoters(why) => ("few_voters", Some(names.with_addresses(why))),
        Status::Degraded(why) => ("degraded", Some(names.with_addresses(why))),
        Status::Damaged(why) => ("damaged", Some(names.with_addresses(why))),
        Status::Ended(why) => ("ended", Some(names.with_addresses(why))),
        _ => ("unknown", None),
    };
    json!({
        "status": status,
        "why": why,
        "pages_written": stats.pages_written,
        "pages_read": stats.pages_read,
        "bad_pages": stats.bad_pages,
        "refreshed": stats.refreshed,
        "donors_lost": stats.donors_lost,
        "copies_made": stats.copies_made,
    })
}

/// Waits until all writes have reached all their places, but not longer than `patience`.
pub fn flush(volume: &mut impl Store, patience: Duration) -> anyhow::Result<()> {
    // Requests that were in flight before have other tags.
    const TAG: u64 = u64::MAX;
    let mut finished = Vec::new();
    let began = std::time::Instant::now();
    if volume.submit(Request { tag: TAG, job: Job::Flush }).is_err() {
        bail!("the volume has no room for another request");
    }
    while began.elapsed() < patience {
        let busy = volume.turn();
        volume.poll(&mut finished, usize::MAX);
        if let Some(flushed) = finished.drain(..).find(|finished| finished.tag == TAG) {
            return Ok(flushed.result?);
        }
        if !busy {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    bail!("the last writes did not reach all donors within {} s", patience.as_secs())
}

/// Tells the donors that nobody has the volume open any more. Donors that do not answer within a second are left
/// uninformed.
pub fn leave<D: Donors>(volume: &mut Volume<D>) {
    const PATIENCE: Duration = Duration::from_secs(1);
    volume.leave();
    let began = std::time::Instant::now();
    while !volume.has_left() && began.elapsed() < PATIENCE {
        if !volume.turn() {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_all_sizes_have_slabs_that_donors_can_give() {
        for (len, slab) in [(4096, 4 << 20), (64 << 20, 4 << 20), (4 << 30, 256 << 20), (1 << 40, 1 << 30)] {
            assert_eq!(slab_len(len), slab, "{len}");
        }
    }

    #[test]
    fn what_a_new_volume_cannot_have_is_wrong_usage() {
        let new = |size, copies| NewArgs { size, copies };
        assert!(new(Some(4097), None).check(3).is_err() && new(Some(0), None).check(3).is_err());
        assert!(new(Some(4096), None).check(1).is_err() && new(Some(4096), Some(1)).check(1).is_ok());
        assert!(new(None, Some(4)).check(3).is_err() && new(None, Some(3)).check(3).is_ok());
    }
}
