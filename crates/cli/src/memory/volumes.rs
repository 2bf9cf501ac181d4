//! `sinew memory volumes`: who has the memory of donors.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};
use sinew::host::Interrupt;
use sinew::remote_memory::pool::{Inventory, ListedVolume};
use sinew::remote_memory::volume::{DonorId, Donors, VolumeConfig, id_of};
use sinew_harness::units;

use crate::donors::{Buffers, DonorArgs, DonorNames, WithDonors, drive};
use crate::{Outcome, Usage, output, table};

/// Bytes of buffers for what passes between donors and these commands: calls alone.
pub const BUFFERS: usize = 1 << 20;
/// Name of the volume that other commands use unless they are told another.
const DEFAULT_NAME: &str = "volume";

const AFTER_HELP: &str = "\
Lists the volumes that have memory at these donors: volumes that `sinew serve block` and others made, and file services
(`sinew serve files`), which have no name and no record here. Donors know volumes by their ids. A name is shown if it is
given with --volume, or is the default one.

It takes three seconds if a writer may be alive: a volume is in use if its writer sends a heartbeat in that time.

--json prints `volumes`, a list with id, name (null if it is not known), recorded, in_use, bytes (all donors together)
and donors (donor, bytes); and `unanswered`, a list of donors that do not answer, with donor and why. recorded is false
for file services, for what was never completed, and if no donor that keeps the volume's record (five at most) is named
and answers.

Examples:
  sinew memory volumes shm://donor1 shm://donor2 shm://donor3
  sinew memory volumes udp://a:7200 --key-file pool.key --volume disk --json";

/// List the volumes that have memory at donors.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Addresses of the donors, written as for the server of a volume
    #[arg(value_name = "DONOR", required = true)]
    donors: Vec<String>,
    /// Name of a volume, to be shown instead of its id; may be given any number of times
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    volume: Vec<String>,
    #[command(flatten)]
    donor_args: DonorArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Lists the volumes.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.donor_args.check(&args.donors).map_err(Usage::of)?;
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let list = args.donor_args.run(&args.donors, Buffers::new(BUFFERS), Listing { interrupt })?;
    let names = args.volume.iter().map(String::as_str).chain([DEFAULT_NAME]);
    let names = names.map(|name| (id_of(name), name)).collect();
    if args.json {
        output::print(list.as_json(&names))?;
    } else {
        list.unanswered.iter().for_each(|(donor, why)| output::complain(format_args!("{donor}: {why}")));
        output::print(list.as_text(&names))?;
    }
    Ok(Outcome::Done)
}

struct Listing {
    interrupt: Interrupt,
}

impl WithDonors for Listing {
    type Result = List;

    fn run<D: Donors + 'static>(self, donors: D, names: &DonorNames) -> anyhow::Result<List> {
        let ids = donors.ids().to_vec();
        let mut inventory = Inventory::new(donors, VolumeConfig::default().lease_ns);
        drive(&mut inventory, self.interrupt, |inventory| Ok(inventory.turn().then_some(())))?;
        let failures = inventory.failures().zip(names.all());
        let unanswered: Vec<_> =
            failures.filter_map(|(failure, name)| Some((name.to_owned(), failure?.to_string()))).collect();
        if unanswered.len() == names.count() {
            let whys = unanswered.iter().map(|(donor, why)| format!("{donor}: {why}")).collect::<Vec<_>>();
            bail!("no donor answers: {} (`sinew serve memory ADDRESS` starts a donor)", whys.join("; "));
        }
        let donors = ids.into_iter().zip(names.all().map(str::to_owned)).collect();
        Ok(List { volumes: inventory.volumes(), donors, unanswered })
    }
}

struct List {
    volumes: BTreeMap<u64, ListedVolume>,
    donors: BTreeMap<DonorId, String>,
    unanswered: Vec<(String, String)>,
}

impl List {
    fn donor(&self, id: DonorId) -> &str {
        self.donors.get(&id).map_or("", String::as_str)
    }

    fn as_json(&self, names: &BTreeMap<u64, &str>) -> Value {
        let volume = |(id, volume): (&u64, &ListedVolume)| {
            let lent = volume.lent.iter().map(|(donor, bytes)| json!({ "donor": self.donor(*donor), "bytes": bytes }));
            json!({
                "id": format!("{id:016x}"),
                "name": names.get(id),
                "recorded": volume.has_record,
                "in_use": volume.is_in_use,
                "bytes": volume.bytes(),
                "donors": lent.collect::<Vec<_>>(),
            })
        };
        let unanswered = self.unanswered.iter().map(|(donor, why)| json!({ "donor": donor, "why": why }));
        json!({
            "volumes": self.volumes.iter().map(volume).collect::<Vec<_>>(),
            "unanswered": unanswered.collect::<Vec<_>>(),
        })
    }

    fn as_text(&self, names: &BTreeMap<u64, &str>) -> String {
        if self.volumes.is_empty() {
            return "No volume has memory at these donors.".into();
        }
        let mut rows = Vec::new();
        for (id, volume) in &self.volumes {
            let name = names.get(id).map_or_else(|| format!("{id:016x}"), |name| (*name).to_owned());
            let what = match (volume.has_record, volume.is_in_use) {
                (true, true) => "in use",
                (true, false) => "not in use",
                (false, true) => "no record at these donors, in use",
                (false, false) => "no record at these donors, not in use",
            };
            rows.push(vec![format!("{name}: {what}, {}", units::size(volume.bytes() as usize))]);
            let row = |(donor, bytes): &(DonorId, u64)| {
                vec![self.donor(*donor).to_owned(), units::size(*bytes as usize).to_string()]
            };
            rows.extend(volume.lent.iter().map(row));
        }
        table::of(&["donor", "lent"], rows, table::FIGURES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_shown_where_it_is_known_and_each_donor_with_what_it_lends() {
        let lent = vec![(DonorId(1), 4 << 20), (DonorId(2), 8 << 20)];
        let recorded = ListedVolume { lent: lent.clone(), has_record: true, is_in_use: true };
        let other = ListedVolume { lent, has_record: false, is_in_use: false };
        let list = List {
            volumes: [(id_of("volume"), recorded), (0xAB, other)].into(),
            donors: [(DonorId(1), "shm://one".to_owned()), (DonorId(2), "shm://two".to_owned())].into(),
            unanswered: vec![("shm://three".into(), "it is down".into())],
        };
        let names = [(id_of("volume"), "volume")].into();
        let text = list.as_text(&names);
        assert!(text.contains("volume: in use, 12 MB"), "{text}");
        assert!(text.contains("00000000000000ab: no record at these donors, not in use, 12 MB"), "{text}");
        assert!(text.matches("shm://two").count() == 2, "{text}");
        let json = list.as_json(&names);
        assert_eq!(json["volumes"][0]["id"], "00000000000000ab");
        assert_eq!((&json["volumes"][0]["name"], &json["volumes"][1]["name"]), (&Value::Null, &"volume".into()));
        assert_eq!(json["volumes"][1]["donors"][1], json!({ "donor": "shm://two", "bytes": 8 << 20 }));
        assert_eq!(json["unanswered"][0]["donor"], "shm://three");
    }
}
