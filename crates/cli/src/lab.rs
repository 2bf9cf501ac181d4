//! `sinew lab`: runs the experiments of the papers again.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use sinew::fabric::verbs::Device;
use sinew::host::Interrupt;
use sinew_lab::nics::real;
use sinew_lab::report::{self, COLUMNS, Cell, Done};
use sinew_lab::{EXPERIMENTS, Experiment, Row};

use sinew_harness::others::{TOO_MUCH, Watch};
use sinew_harness::surroundings::Surroundings;
use sinew_harness::{ComparedSide, Comparison, Figure, Unit, figure, machine, units};

use crate::outfile::OutFile;
use crate::table;
use crate::verbs::{DeviceArgs, Job, VerbsFabric};
use crate::{Outcome, Usage, interrupted, output};

/// The commands about experiments.
#[derive(clap::Subcommand)]
pub enum Command {
    /// List the experiments
    List(ListArgs),
    /// Run experiments, and show their results beside those of the papers
    Run(RunArgs),
    /// Run experiments, and write one self-contained HTML file
    Report(ReportArgs),
}

/// Options of `sinew lab list`.
#[derive(clap::Args)]
pub struct ListArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `sinew lab run`.
#[derive(clap::Args)]
pub struct RunArgs {
    /// Experiments to run: names from `sinew lab list`, or names of papers, such as atc16, for all of their experiments
    /// [default: all]
    names: Vec<String>,
    /// Measure the experiments' requests between two threads of this machine, over this fabric, instead of simulating
    /// them
    #[arg(long, value_enum)]
    fabric: Option<VerbsFabric>,
    /// RDMA device, for --fabric ibverbs, as rxe0 or mlx5_0:2 [default: the first usable one]
    #[arg(long, requires = "fabric")]
    device: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `sinew lab report`.
#[derive(clap::Args)]
pub struct ReportArgs {
    /// Experiments to run: names from `sinew lab list`, or names of papers, such as atc16, for all of their experiments
    /// [default: all]
    names: Vec<String>,
    /// HTML file to write; its former contents stay until the report is complete
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// SVG file to write as well: all predictions in one picture
    #[arg(long, value_name = "FILE")]
    overview: Option<PathBuf>,
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    interrupted::exit_on_signal()?;
    match command {
        Command::List(args) => list(args)?,
        Command::Run(args) => show(args)?,
        Command::Report(args) => write(args)?,
    }
    Ok(Outcome::Done)
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    if args.json {
        let one = |experiment: &&dyn Experiment| json!({ "id": experiment.id(), "title": experiment.title(), "source": experiment.source(), "setup": experiment.setup() });
        output::print(json!({ "experiments": EXPERIMENTS.iter().map(one).collect::<Vec<_>>() }))?;
        return Ok(());
    }
    let rows = EXPERIMENTS.iter().map(|experiment| [experiment.id(), experiment.title()].map(str::to_owned).to_vec());
    output::print(table::of(&["experiment", "shows"], rows, table::TEXT))?;
    Ok(())
}

/// The experiments of a name: one, or all of a paper.
fn find(name: &str) -> anyhow::Result<Vec<&'static dyn Experiment>> {
    let found: Vec<_> = EXPERIMENTS
        .iter()
        .copied()
        .filter(|experiment| experiment.id() == name || experiment.paper() == name)
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let known = EXPERIMENTS.iter().map(|experiment| experiment.id()).collect::<Vec<_>>().join(", ");
    Err(Usage::of(anyhow::anyhow!(
        "there is no experiment `{name}`; there are {known}; the name of a paper stands for all of its experiments"
    )))
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static dyn Experiment>> {
    if names.is_empty() {
        return Ok(EXPERIMENTS.to_vec());
    }
    let mut all: Vec<&'static dyn Experiment> = Vec::new();
    for name in names {
        for experiment in find(name)? {
            // A user who names a paper and one of its experiments gets that experiment once.
            if all.iter().all(|other| other.id() != experiment.id()) {
                all.push(experiment);
            }
        }
    }
    Ok(all)
}

/// Whether an experiment has requests that can be measured on a real fabric.
fn is_real(experiment: &dyn Experiment) -> bool {
    !experiment.plans().is_empty()
}

/// The chosen experiments, if all can be measured on a real fabric.
fn chosen_for(fabric: VerbsFabric, names: &[String]) -> anyhow::Result<Vec<&'static dyn Experiment>> {
    let (mut all, fabric) = (chosen(names)?, fabric.name());
    if names.is_empty() {
        all.retain(|experiment| is_real(*experiment));
    }
    if let Some(other) = all.iter().find(|experiment| !is_real(**experiment)) {
        let real = EXPERIMENTS
            .iter()
            .filter(|experiment| is_real(**experiment))
            .map(|experiment| experiment.id())
            .collect::<Vec<_>>()
            .join(", ");
        let text = format!("{} has nothing that --fabric {fabric} could measure; these have: {real}", other.id());
        return Err(Usage::of(anyhow::anyhow!(text)));
    }
    Ok(all)
}

/// An experiment's requests, to be made on a device.
struct OnDevice<'a, 'b> {
    experiment: &'a dyn Experiment,
    cpus: [usize; 2],
    progress: &'a mut (dyn FnMut(f64) + 'b),
}

impl Job for OnDevice<'_, '_> {
    type Result = Vec<Row>;

    fn run<D: Device + 'static>(self, device: D, fabric: VerbsFabric) -> anyhow::Result<Vec<Row>> {
        let what = match fabric {
            VerbsFabric::Shm => "over shared memory, not a NIC",
            VerbsFabric::Ibverbs => "over an RDMA device of this machine, to itself",
        };
        let interrupt = Interrupt::install().context("catching Ctrl-C")?;
        real::run(&device, what, self.experiment, self.cpus, interrupt, self.progress)
    }
}

fn measure<'a>(
    experiment: &'a dyn Experiment,
    on: Option<&DeviceArgs>,
) -> anyhow::Result<(Done<'a>, Option<Surroundings>)> {
    let bar = ProgressBar::new(1000);
    bar.set_style(ProgressStyle::with_template("{msg:24} {wide_bar} {percent}%").expect("a fixed template"));
    bar.set_message(experiment.id());
    let pair =
        on.map(|_| machine::cpus().first_chunk::<2>().copied().context("this needs two processors")).transpose()?;
    let cpus = pair.map_or_else(|| experiment.measures_on(), Vec::from);
    let cpus: Vec<_> = cpus.into_iter().map(Some).collect();
    let watch = (!cpus.is_empty()).then(|| Watch::new(&cpus, None));
    let began = Instant::now();
    let mut progress = |part| bar.set_position((part * 1000.0) as u64);
    let rows = match on.zip(pair) {
        Some((device, cpus)) => device.run(OnDevice { experiment, cpus, progress: &mut progress })?,
        None => experiment.run(&mut progress),
    };
    bar.finish_and_clear();
    output::note(format_args!("{} took {:.1} s", experiment.id(), began.elapsed().as_secs_f64()));
    // Simulated results are the same on every machine, so nothing is watched for them.
    let surroundings = watch.map(|watch| {
        let others_share = watch.share();
        Surroundings { others_share, attempts: 1, ..Surroundings::default() }
    });
    let share = surroundings.as_ref().and_then(|surroundings| surroundings.others_share);
    let complaint = share.filter(|share| *share >= TOO_MUCH).map(|share| {
        let share = share * 100.0;
        format!("other programs used {share:.0} % of the processors during the measurement; stop them, and run the experiment again")
    });
    Ok((Done { experiment, rows, complaint }, surroundings))
}

fn show(args: &RunArgs) -> anyhow::Result<()> {
    let on = args.fabric.map(|fabric| DeviceArgs { fabric, device: args.device.clone() });
    on.iter().try_for_each(DeviceArgs::check).map_err(Usage::of)?;
    let mut results = Vec::new();
    let all = args.fabric.map_or_else(|| chosen(&args.names), |fabric| chosen_for(fabric, &args.names))?;
    for experiment in all {
        let (done, surroundings) = measure(experiment, on.as_ref())?;
        if args.json {
            results.extend(done.rows.iter().map(|row| result_of(&done, surroundings.clone(), row)));
            continue;
        }
        let invalid = done.complaint.map(|complaint| format!("\nINVALID: {complaint}")).unwrap_or_default();
        let head = format!("{}: {}\n{}", experiment.id(), experiment.title(), experiment.source());
        let (heads, rows) = report::table(&done.rows);
        let table = table::of(&heads, rows, table::FIGURES);
        // The remark is about the model, so it does not apply to a machine.
        let mut remark = if on.is_some() { String::new() } else { table::wrapped(experiment.remark()) };
        report::missing(&done.rows).iter().for_each(|sentence| remark.push_str(&table::wrapped(sentence)));
        if !output::print(format!("{head}\n\n{table}{remark}{invalid}\n"))? {
            // Nobody reads the output any more, and the remaining experiments can take minutes.
            return Ok(());
        }
    }
    if args.json {
        output::print(figure::list(results))?;
    }
    Ok(())
}

fn write(args: &ReportArgs) -> anyhow::Result<()> {
    // Checked before minutes are spent on results that could not be kept.
    let (chosen, out) = (chosen(&args.names)?, OutFile::check(&args.out)?);
    if args.overview.as_ref() == Some(&args.out) {
        return Err(Usage::of(anyhow::anyhow!("--out and --overview name the same file; give each its own")));
    }
    let overview = args.overview.as_deref().map(OutFile::check).transpose()?;
    let results =
        chosen.into_iter().map(|experiment| Ok(measure(experiment, None)?.0)).collect::<anyhow::Result<Vec<_>>>()?;
    out.write(report::html(&results).as_bytes())?;
    if let Some(overview) = &overview {
        overview.write(report::svg(&results).as_bytes())?;
    }
    let be = if results.len() == 1 { "is" } else { "are" };
    output::note(format_args!("{} {be} in {}", units::counted(results.len(), "experiment"), out.name()));
    Ok(())
}

/// A row in the schema of all results: the result stands beside the paper's figure.
fn result_of(done: &Done<'_>, surroundings: Option<Surroundings>, row: &Row) -> Value {
    let experiment = done.experiment;
    let compared = row.paper.map(|paper| ComparedSide {
        comparison: Comparison::Paper,
        what: row.place.unwrap_or(experiment.source()).to_owned(),
        value: Some(paper),
        has_ratio: paper != 0.0,
        slices: Vec::new(),
    });
    let figure = Figure {
        bench: format!("lab {}", experiment.id()),
        title: row.metric.clone(),
        value: row.model.or(row.measured),
        unit: Unit::Of(row.unit),
        slices: Vec::new(),
        compared,
        latency: None,
        invalid_because: match experiment.measured_by() {
            Some(command) => vec![format!("`{command}` measures it; there is only the paper's value here")],
            // Other programs do not change what was simulated.
            None => done.complaint.iter().filter(|_| row.measured.is_some()).cloned().collect(),
        },
        surroundings: surroundings.filter(|_| row.measured.is_some()),
        setup: json!({ "experiment": experiment.id(), "source": experiment.source() }),
        details: json_of(row),
        lines: Vec::new(),
    };
    figure.to_json()
}

fn json_of(row: &Row) -> Value {
    let value = |cell: Cell| match cell {
        Cell::Empty => Value::Null,
        Cell::Text(text) => text.into(),
        Cell::Figure(value) => units::rounded(value).into(),
    };
    COLUMNS.iter().map(|column| (column.key.to_owned(), value((column.of)(row)))).collect()
}

#[cfg(test)]
mod tests {
    use sinew_lab::Comparison;

    use super::*;

    #[test]
    fn a_paper_stands_for_all_its_experiments_each_once() {
        let ids = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(&names).map(|all| all.iter().map(|it| it.id()).collect::<Vec<_>>())
        };
        let atc16 = ids(&["atc16-fig14", "atc16"]).unwrap();
        assert_eq!(atc16[0], "atc16-fig14");
        assert_eq!(atc16.len(), EXPERIMENTS.iter().filter(|it| it.id().starts_with("atc16-")).count());
        assert_eq!(ids(&["nsdi19-table5"]).unwrap(), ["nsdi19-table5"]);
        assert!(ids(&["atc"]).is_err() && ids(&["atc16-"]).is_err());
    }

    #[test]
    fn a_figure_that_another_command_measures_has_no_value_and_names_the_command() {
        let experiment = find("rdmabox-fig12").unwrap()[0];
        let done = Done { experiment, rows: experiment.run(&mut |_| {}), complaint: None };
        let result = result_of(&done, None, &done.rows[0]);
        assert!(result["value"].is_null() && result["invalid_because"].to_string().contains("peers --only files"));
        assert_eq!(result["details"]["paper"], 2.8);
    }

    #[test]
    fn an_object_has_every_column_and_null_where_there_is_nothing() {
        let row = Row {
            id: "a.b".to_owned(),
            place: None,
            case: "case".to_owned(),
            metric: "what".to_owned(),
            paper: Some(4.0),
            against: Comparison::Same,
            model: Some(5.0),
            measured: None,
            unit: "us",
            missing_because: None,
        };
        assert_eq!(
            json_of(&row),
            json!({ "id": "a.b", "place": null, "metric": "case, what", "paper": 4.0, "model": 5.0, "measured": null,
                    "unit": "us", "error": 0.25, "error_points": null, "against": "same", "ratio": 1.25, "missing_because": null })
        );
        let other = json_of(&Row { against: Comparison::Other("another"), ..row.clone() });
        assert_eq!((&other["error"], &other["against"]), (&Value::Null, &json!("another")));
        let percent = Row { place: Some("Table 3"), unit: "%", ..row };
        assert_eq!(json_of(&percent)["place"], "Table 3");
        assert_eq!((&json_of(&percent)["error"], &json_of(&percent)["error_points"]), (&Value::Null, &json!(1.0)));
    }
}
