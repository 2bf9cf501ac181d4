//! `sinew memory remove`: removes a volume, and gives its memory back.

use anyhow::{Context, bail};
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use sinew::host::Interrupt;
use sinew::remote_memory::volume::{Donors, OpenError, Removal, Removed, id_of};
use sinew_harness::units;

use super::volumes::BUFFERS;
use crate::donors::{Buffers, DonorArgs, DonorNames, WithDonors, drive};
use crate::{Outcome, Usage, output, volume};

const AFTER_HELP: &str = "\
Removes a volume with all its data, and gives its memory back at all donors that are named. Name all that hold it. One
that does not answer keeps its part until the command is repeated, or a volume of this name is made there, but it does
not bring the volume back. The command can be repeated at any time.

A volume is removed only when its writer has been silent for three seconds, or shut down cleanly: first stop the
`sinew serve block`, or whatever has it open, on the host where that runs. --force removes the volume all the same, and
its writer fails.

What has no record at the donors (a file service, or a volume that was never completed) is removed by its --id, which
`sinew memory volumes` shows, and only when all donors that are named answer. Name all donors of the pool then: at most
five of a volume's donors keep its record. A file service that starts again later finds its files lost.

The exit status is 1 if the volume is not found, or if some of its memory may be left.

--json prints id, name (null with --id), bytes that were given back, and left: the donors that may still have some, and
why (null if there are none).

Examples:
  sinew memory remove shm://donor1 shm://donor2 shm://donor3 --volume disk
  sinew memory remove udp://a:7200 udp://b:7200 --key-file pool.key \\
      --id 00c0ffee00c0ffee --json";

/// Remove a volume, and give its memory back.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Addresses of the donors, written as for the server of the volume
    #[arg(value_name = "DONOR", required = true)]
    donors: Vec<String>,
    /// Name of the volume
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(),
        required_unless_present = "id", conflicts_with = "id")]
    volume: Option<String>,
    /// Id of the volume, up to 16 hexadecimal digits, as `sinew memory volumes` shows it
    #[arg(long, value_name = "HEX", value_parser = parse_id)]
    id: Option<u64>,
    /// Remove the volume at once, even if a program has it open
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    donor_args: DonorArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_id(text: &str) -> Result<u64, String> {
    let is_hex = (1..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = u64::from_str_radix(text, 16).ok().filter(|_| is_hex);
    id.ok_or_else(|| "an id has up to 16 hexadecimal digits, as in 00c0ffee00c0ffee".into())
}

impl Args {
    fn id(&self) -> u64 {
        self.volume.as_deref().map_or(self.id.unwrap_or(0), id_of)
    }

    /// The volume, as messages call it.
    fn what(&self) -> String {
        match &self.volume {
            Some(name) => format!("the volume \"{name}\""),
            None => format!("the volume {:016x}", self.id()),
        }
    }
}

/// Removes the volume.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.donor_args.check(&args.donors).map_err(Usage::of)?;
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let removed = args.donor_args.run(&args.donors, Buffers::new(BUFFERS), Removing { args, interrupt })?;
    let left = Some(&removed.left).filter(|left| !left.is_empty());
    if args.json {
        output::print(json!({
            "id": format!("{:016x}", args.id()),
            "name": args.volume,
            "bytes": removed.bytes,
            "left": left,
        }))?;
    } else {
        let bytes = units::size(removed.bytes as usize);
        output::print(format_args!("Removed {}: {bytes} given back.", args.what()))?;
    }
    let Some(left) = left else { return Ok(Outcome::Done) };
    output::complain(format_args!(
        "some memory of {} may be left: {left}; repeat this command once that is mended",
        args.what()
    ));
    Ok(Outcome::Failed)
}

struct Removing<'a> {
    args: &'a Args,
    interrupt: Interrupt,
}

impl WithDonors for Removing<'_> {
    type Result = Removed;

    fn run<D: Donors + 'static>(self, donors: D, names: &DonorNames) -> anyhow::Result<Removed> {
        let Self { args, interrupt } = self;
        let make = if args.id.is_some() { Removal::of_unrecorded } else { Removal::new };
        let mut removal = make(donors, args.id(), volume::config(args.force));
        let removed = drive(&mut removal, interrupt, |removal| Ok(removal.turn().transpose()))?;
        let what = args.what();
        match removed {
            Ok(removed) => Ok(Removed { left: names.with_addresses(&removed.left), ..removed }),
            Err(OpenError::NotFound(_)) if args.volume.is_some() => bail!(
                "no donor has a record of {what}: name all donors that hold it; `sinew memory volumes` lists what they \
                 have, and what has no record is removed by its --id"
            ),
            Err(OpenError::NotFound(_)) => {
                bail!("no donor has anything of {what}: `sinew memory volumes` lists what they have")
            }
            Err(error @ OpenError::InUse) => bail!(
                "removing {what}: {error}, on the host where it runs (`sinew serve block`, `sinew serve files`), or \
                 remove the volume all the same with --force"
            ),
            Err(error) => bail!("removing {what}: {}", names.with_addresses(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_hexadecimal_digits_and_nothing_else() {
        assert_eq!(parse_id("00c0ffee00C0FFEE"), Ok(0x00C0_FFEE_00C0_FFEE));
        assert_eq!(parse_id("f"), Ok(15));
        assert!(["", "+1", "0x1", "g", "12345678123456781"].iter().all(|text| parse_id(text).is_err()));
    }
}
