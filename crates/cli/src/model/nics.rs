//! `sinew model nics`: the parameters of NIC models.

use serde_json::{Value, json};
use sinew_harness::units;
use sinew_sim::nic::Profile;

use super::request;
use crate::{Usage, output, table};

const HELP: &str = "\
Each parameter has a source: a data sheet, a section of a paper, an estimate with its reason, or a calibration, which
names the published figures that it was fitted to. Agreement with those figures is no evidence for the model;
agreement with other figures is. For a NIC that is `not compared`, we know of no published figure.

Your own file may be based on one of these, and give only what differs:

  name = \"mine\"
  title = \"A ConnectX-3 on PCIe 2.0\"
  is_validated = false
  based_on = \"cx3\"

  [pcie]
  generation = { value = 2, source = \"lspci\" }

Examples:
  sinew model nics
  sinew model nics cx3
  sinew model nics cx3 --file > mine.toml
  sinew model pcie --nic mine.toml";

/// Options of `sinew model nics`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Name of a built-in NIC, or a TOML file [default: all]
    #[arg(value_name = "NIC|FILE")]
    nic: Option<String>,
    /// Print the file of a built-in NIC, with its comments, as a start for one of your own
    #[arg(long, requires = "nic", conflicts_with = "json")]
    file: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the NICs.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Some(name) = &args.nic else {
        let all: Vec<Profile> = Profile::BUILT_IN.iter().map(|name| request::nic(name)).collect::<Result<_, _>>()?;
        if args.json {
            output::print(json!({ "nics": all.iter().map(json_of).collect::<Vec<_>>() }))?;
        } else {
            output::print(list(&all))?;
        }
        return Ok(());
    };
    if args.file {
        let text = Profile::built_in_file(name).ok_or_else(|| {
            Usage(format!("there is no NIC `{name}` built in; there are {}", Profile::BUILT_IN.join(", ")))
        })?;
        output::print(text.trim_end())?;
        return Ok(());
    }
    let nic = request::nic(name)?;
    if args.json {
        output::print(json!({ "nics": [json_of(&nic)] }))?;
    } else {
        output::print(text(&nic))?;
    }
    Ok(())
}

fn calibrations(nic: &Profile) -> String {
    match nic.calibrations() {
        _ if !nic.is_validated => "not compared".to_owned(),
        rows if rows.is_empty() => "nothing".to_owned(),
        rows => rows.join(", "),
    }
}

fn list(all: &[Profile]) -> String {
    let rows = all.iter().map(|nic| vec![nic.name.clone(), nic.title.clone(), calibrations(nic)]);
    table::of(&["NIC", "hardware", "calibrated on"], rows, table::TEXT)
}

fn text(nic: &Profile) -> String {
    let mut rows = Vec::new();
    let mut table_name = "";
    for parameter in nic.sources() {
        let (of, field) = parameter.path.split_once('.').unwrap_or(("", &parameter.path));
        if of != table_name {
            rows.push(vec![of.to_owned()]);
            table_name = of;
        }
        rows.push(vec![format!("  {field}"), parameter.value.clone(), parameter.source.clone()]);
    }
    let table = table::of(&["parameter", "value", "source"], rows, table::TEXT);
    let latency = nic.read_latency_ns(32);
    let last =
        format!("Calibrated on: {}. A READ of 32 B alone takes {} then.", calibrations(nic), units::time(latency));
    format!("{}: {}\n\n{table}{}", nic.name, nic.title, table::wrapped(&last))
}

fn json_of(nic: &Profile) -> Value {
    let parameter = |parameter: &sinew_sim::nic::Parameter| json!({ "path": parameter.path, "value": parameter.value, "source": parameter.source });
    json!({
        "name": nic.name,
        "title": nic.title,
        "is_validated": nic.is_validated,
        "calibrations": nic.calibrations(),
        "read_latency_ns": units::rounded(nic.read_latency_ns(32)),
        "parameters": nic.sources().iter().map(parameter).collect::<Vec<_>>(),
    })
}
