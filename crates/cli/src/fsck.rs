//! `sinew fsck`: checks what donors hold of a volume; `files` checks a file system.

mod files;

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use sinew::host::Interrupt;
use sinew::remote_memory::volume::{Check, CheckReport, Donors};

use crate::donors::{Buffers, DonorArgs, DonorNames, WithDonors, drive};
use crate::volume::{self, VolumeArgs};
use crate::{Outcome, Usage, output, table};

const AFTER_HELP: &str = "\
Reads all slots of all copies, headers and pages, and compares them with their checksums, with each other and with the
volume's own records. Nothing is repaired: a server of the volume (`sinew serve block`) rebuilds missing copies, and
rewrites a page whose copy is bad when it comes across it.

With --files, checks a file system: what `sinew serve files` keeps in its --data directory and, if donors are named,
every page of every copy. Stop its service first.

Checking a volume opens it, so stop its server first: while a server has the volume open, the check is refused, or
with --force takes the volume from the server.

The exit status is 0 when nothing is wrong, 5 when something is, and 1 when the volume could not be checked.

--json prints of a file system: files, clean, inodes, segments, pages, copies_unread (of segments, at donors that were
not named), and findings, a list of sentences; of a volume: volume, clean, counts of pages and slots by what was found, and gone: the donors that do not answer, and why.

Examples:
  sinew fsck udp://a:7200 udp://b:7200 udp://c:7200 --key-file pool.key
  sinew fsck shm://donor1 shm://donor2 shm://donor3 --volume disk --json
  sinew fsck --files /var/lib/sinew shm://donor1 shm://donor2";

/// Check a volume, or a file system, that lies in the memory of donors.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Addresses of the donors, written as for the server
    #[arg(value_name = "DONOR")]
    donors: Vec<String>,
    /// Check a file system instead of a volume: this is the --data directory of its service
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["volume", "force"])]
    files: Option<PathBuf>,
    /// Copies that each page of the file system should have, 1 to 8 [default: as many as its service was last told to
    /// keep]
    #[arg(long, value_name = "COUNT", requires = "files", value_parser = clap::value_parser!(u8).range(1..=8))]
    copies: Option<u8>,
    #[command(flatten)]
    volume: VolumeArgs,
    #[command(flatten)]
    donor_args: DonorArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the check, and reports its findings.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    if args.donors.is_empty() && args.files.is_none() {
        return Err(Usage(
            "name the donors of the volume to check, or the directory of the file system: sinew fsck --files DIRECTORY \
             [DONOR...]"
                .into(),
        )
        .into());
    }
    if !args.donors.is_empty() {
        args.donor_args.check(&args.donors).map_err(Usage::of)?;
    }
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    if let Some(directory) = &args.files {
        return files::run(args, directory, interrupt);
    }
    let (report, donors_down) =
        args.donor_args.run(&args.donors, Buffers::new(volume::ARENA), Checking { args, interrupt })?;
    if args.json {
        output::print(as_json(&args.volume.volume, &report, &donors_down))?;
    } else {
        output::print(as_text(&report, &donors_down))?;
    }
    Ok(if report.is_clean() { Outcome::Done } else { Outcome::FoundWrong })
}

struct Checking<'a> {
    args: &'a Args,
    interrupt: Interrupt,
}

impl WithDonors for Checking<'_> {
    type Result = (CheckReport, String);

    fn run<D: Donors + 'static>(self, donors: D, names: &DonorNames) -> anyhow::Result<(CheckReport, String)> {
        let Self { args, interrupt } = self;
        let volume = match volume::open(donors, names, &args.volume, interrupt)? {
            Ok(volume) => volume,
            Err(donors) => return Err(volume::unknown(donors, names, &args.volume.volume, interrupt)?),
        };
        let donors_down = names.with_addresses(volume.describe_down());
        let mut check = Check::new(volume);
        let bar = progress(args.json, "slots");
        let report = drive(&mut check, interrupt, |check| {
            let over = check.turn();
            let (done, all) = check.progress();
            bar.set_length(all);
            bar.set_position(done);
            Ok(over)
        });
        bar.finish_and_clear();
        Ok((report?, donors_down))
    }
}

fn progress(is_json: bool, what: &str) -> ProgressBar {
    if is_json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {pos} of {len} {msg}, {eta} to go");
    ProgressBar::new(0).with_style(style.expect("a fixed template")).with_message(what.to_owned())
}

/// The counts: JSON name, meaning, value, and whether any but zero is wrong.
fn counts(report: &CheckReport) -> [(&'static str, &'static str, u64, bool); 10] {
    [
        ("pages", "pages that were written", report.pages, false),
        ("good", "slots that hold such a page correctly", report.good, false),
        ("missing", "slots that should hold one, and do not", report.missing, true),
        ("torn", "slots whose page fails its checksum", report.torn, true),
        ("differing", "slots that differ from the first copy", report.differing, true),
        ("stale", "slots with data that is no longer used", report.stale, true),
        ("garbage", "slots with an invalid header", report.garbage, true),
        ("unread", "chunks of a copy that could not be read", report.unread, true),
        ("degraded", "segments with too few copies", report.degraded, true),
        ("lost", "segments without any copy", report.lost, true),
    ]
}

fn as_json(volume: &str, report: &CheckReport, donors_down: &str) -> serde_json::Value {
    let mut json = json!({ "volume": volume, "clean": report.is_clean() });
    for (name, _, count, _) in counts(report) {
        json[name] = count.into();
    }
    json["gone"] = (!donors_down.is_empty()).then_some(donors_down).into();
    json
}

fn as_text(report: &CheckReport, donors_down: &str) -> String {
    let row = |(_, what, count, is_wrong): (&str, &str, u64, bool)| {
        vec![what.to_owned(), count.to_string(), if is_wrong && count > 0 { "wrong" } else { "" }.to_owned()]
    };
    let table = table::of(&["found", "count", ""], counts(report).map(row), table::FIGURES);
    let verdict = if report.is_clean() { "Nothing is wrong." } else { "Something is wrong." };
    let donors_down =
        if donors_down.is_empty() { String::new() } else { table::wrapped(&format!("Gone: {donors_down}.")) };
    format!("{table}{donors_down}\n\n{verdict}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_marked_and_nothing_else() {
        let clean = CheckReport::default();
        assert!(!as_text(&clean, "").contains("wrong\n") && as_text(&clean, "").ends_with("Nothing is wrong."));
        assert_eq!(as_json("v", &clean, "")["clean"], true);
        let mut bad = CheckReport::default();
        (bad.pages, bad.torn) = (7, 3);
        let text = as_text(&bad, "shm://a: it is dead");
        let marked: Vec<&str> = text.lines().filter(|line| line.trim_end().ends_with("wrong")).collect();
        assert!(marked.len() == 1 && marked[0].contains("fails its checksum"), "{text}");
        assert!(text.contains("Gone: shm://a: it is dead.") && text.ends_with("Something is wrong."), "{text}");
        let json = as_json("v", &bad, "x");
        assert_eq!((&json["torn"], &json["clean"], &json["gone"]), (&3.into(), &false.into(), &"x".into()));
    }

    #[test]
    fn what_counts_as_wrong_is_what_makes_a_volume_not_clean() {
        assert_eq!(counts(&CheckReport::default()).iter().filter(|count| count.3).count(), 8);
    }
}
