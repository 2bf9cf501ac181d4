//! `sinew fsck --files`: checks a file system whose service is stopped.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::json;
use sinew::host::Interrupt;
use sinew::remote_memory::volume::Donors;
use sinew_harness::units::counted;
use sinew_remote_fs::check::{self, Finding, PageCheck};
use sinew_remote_fs::disk::{HostDisk, OpenFailed};
use sinew_remote_fs::durable_state::DurableState;

use super::{Args, progress};
use crate::donors::{Buffers, DonorNames, WithDonors, drive};
use crate::{Outcome, output, volume};

/// Copies of a page where the service has not recorded how many there should be.
const COPIES: u8 = 2;

/// Findings shown to people; JSON has all.
const SHOWN_MAX: usize = 100;

/// Checks the directory and, if donors are named, all pages.
pub fn run(args: &Args, directory: &Path, interrupt: Interrupt) -> anyhow::Result<Outcome> {
    let shown = directory.display();
    let none = || format!("there is no file system in {shown}: sinew serve files makes one, with --data DIRECTORY");
    let disk = match HostDisk::open(directory) {
        Err(OpenFailed::Foreign(..)) => bail!(none()),
        opened => opened.with_context(|| format!("opening {shown}"))?,
    };
    let Some(kept) = check::read(disk).with_context(|| format!("reading {shown}"))? else { bail!(none()) };
    let copies = args.copies.unwrap_or(match kept.copies {
        // An earlier version did not record it.
        0 => COPIES,
        copies => copies,
    });
    let mut findings = check::names(&kept, copies.into());
    let (mut pages, mut unread) = (None, 0);
    if !args.donors.is_empty() {
        let (more, looked_at, copies_unread) = args.donor_args.run(
            &args.donors,
            Buffers::new(volume::ARENA),
            Checking { args, kept: &kept, interrupt },
        )?;
        findings.extend(more);
        (pages, unread) = (Some(looked_at), copies_unread);
    }
    let (inodes, segments) = (kept.tree.inodes().count(), kept.segments.len());
    let sentences: Vec<String> = findings.iter().map(Finding::to_string).collect();
    let is_clean = sentences.is_empty();
    if args.json {
        output::print(json!({
            "files": shown.to_string(), "clean": is_clean, "inodes": inodes, "segments": segments, "pages": pages,
            "copies_unread": unread, "findings": sentences,
        }))?;
    } else {
        for sentence in sentences.iter().take(SHOWN_MAX) {
            output::print(sentence)?;
        }
        if sentences.len() > SHOWN_MAX {
            output::print(format_args!("... and {} more: --json has all", sentences.len() - SHOWN_MAX))?;
        }
        let read = match pages {
            Some(pages) if unread > 0 => format!(
                "{} of copies read, but not the {} of segments at donors that were not named",
                counted(pages, "page"),
                counted(unread, "copy")
            ),
            Some(pages) => format!("{} of copies read", counted(pages, "page")),
            None => "no donor was named, so no page was read".to_owned(),
        };
        let verdict = if is_clean { "Nothing is wrong." } else { "Something is wrong." };
        let (inodes, segments) = (counted(inodes, "inode"), counted(segments, "segment"));
        output::print(format_args!("{inodes}, {segments}; {read}. {verdict}"))?;
    }
    Ok(if is_clean { Outcome::Done } else { Outcome::FoundWrong })
}

struct Checking<'a> {
    args: &'a Args,
    kept: &'a DurableState,
    interrupt: Interrupt,
}

impl WithDonors for Checking<'_> {
    /// Findings, pages of copies that were read, and copies of segments at donors that were not named.
    type Result = (Vec<Finding>, u64, usize);

    fn run<D: Donors + 'static>(self, donors: D, names: &DonorNames) -> anyhow::Result<Self::Result> {
        let ids = donors.ids();
        let members = self.kept.segments.values().flat_map(|segment| &segment.members);
        let unread = members.filter(|member| !ids.iter().any(|id| id.0 == member.donor)).count();
        let mut check = PageCheck::new(self.kept, donors, names.all().map(str::to_owned).collect());
        let bar = progress(self.args.json, "pages");
        let findings = drive(&mut check, self.interrupt, |check| {
            let over = check.turn();
            let progress = check.progress();
            bar.set_length(progress.all);
            bar.set_position(progress.done);
            Ok(over)
        });
        bar.finish_and_clear();
        Ok((findings?, check.progress().done, unread))
    }
}
