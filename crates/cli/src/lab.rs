//! `sinew lab`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use sinew_lab::{EXPERIMENTS, Experiment, Row, report};

use crate::outfile::OutFile;
use crate::{Outcome, Usage, interrupted, output, units};

/// What is done with experiments.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Name the experiments
    List(ListArgs),
    /// Run experiments, and show what the papers say beside what comes out
    Run(RunArgs),
    /// Run experiments, and write one HTML file that needs nothing beside it
    Report(ReportArgs),
}

/// How.
#[derive(clap::Args)]
pub struct ListArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Which, and how.
#[derive(clap::Args)]
pub struct RunArgs {
    /// Names of experiments, as `list` has them; all, when none is given
    names: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Which, and where to.
#[derive(clap::Args)]
pub struct ReportArgs {
    /// Names of experiments, as `list` has them; all, when none is given
    names: Vec<String>,
    /// The file; what it held before stays until the report is whole
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Does it, and shows.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    interrupted::ends()?;
    match command {
        Command::List(args) => list(args)?,
        Command::Run(args) => show(args)?,
        Command::Report(args) => write(args)?,
    }
    Ok(Outcome::Done)
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    if args.json {
        let one = |it: &&dyn Experiment| json!({ "id": it.id(), "title": it.title(), "source": it.source(), "setup": it.setup() });
        output::print(json!({ "experiments": EXPERIMENTS.iter().map(one).collect::<Vec<_>>() }))?;
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(["experiment", "source", "shows"]);
    for it in EXPERIMENTS {
        table.add_row([it.id(), it.source(), it.title()]);
    }
    output::print(table)?;
    Ok(())
}

fn find(name: &str) -> anyhow::Result<&'static dyn Experiment> {
    let known = || EXPERIMENTS.iter().map(|it| it.id()).collect::<Vec<_>>().join(", ");
    let found = EXPERIMENTS.iter().find(|it| it.id() == name).copied();
    found.ok_or_else(|| Usage::of(anyhow::anyhow!("there is no experiment `{name}`; there are {}", known())))
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static dyn Experiment>> {
    if names.is_empty() { Ok(EXPERIMENTS.to_vec()) } else { names.iter().map(|name| find(name)).collect() }
}

fn measure(it: &dyn Experiment) -> Vec<Row> {
    let bar = ProgressBar::new(1000);
    bar.set_style(ProgressStyle::with_template("{msg:24} {wide_bar} {percent}%").expect("a fixed template"));
    bar.set_message(it.id());
    let began = Instant::now();
    let rows = it.run(&mut |part| bar.set_position((part * 1000.0) as u64));
    bar.finish_and_clear();
    output::note(format_args!("{} took {:.1} s", it.id(), began.elapsed().as_secs_f64()));
    rows
}

fn show(args: &RunArgs) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for it in chosen(&args.names)? {
        let own = measure(it);
        if !args.json && !output::print(format!("{}: {} ({})\n{}", it.id(), it.title(), it.source(), table_of(&own)))? {
            // Nobody reads: what is left can take minutes.
            return Ok(());
        }
        rows.extend(own);
    }
    if args.json {
        output::print(json!({ "rows": rows.iter().map(json_of).collect::<Vec<_>>() }))?;
    }
    Ok(())
}

fn write(args: &ReportArgs) -> anyhow::Result<()> {
    // Before minutes are spent on what could not be kept.
    let (chosen, out) = (chosen(&args.names)?, OutFile::check(&args.out)?);
    let results: Vec<(&dyn Experiment, Vec<Row>)> = chosen.into_iter().map(|it| (it, measure(it))).collect();
    let html = report::html(&results).context("drawing the plots")?;
    out.write(html.as_bytes())?;
    output::note(format_args!("{} experiments are in {}", results.len(), out.name()));
    Ok(())
}

fn table_of(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(["", "paper", "model", "measured", "unit", "error"]);
    let figure = |value: Option<f64>| value.map_or_else(String::new, units::figure);
    for row in rows {
        let error = row.error().map_or_else(String::new, |error| format!("{:+.1} %", error * 100.0));
        let figures = [row.paper, row.model, row.measured].map(figure);
        let [paper, model, measured] = figures;
        table.add_row([row.metric.clone(), paper, model, measured, row.unit.to_owned(), error]);
    }
    table
}

fn json_of(row: &Row) -> Value {
    json!({
        "id": row.id,
        "place": row.place,
        "metric": row.metric,
        "paper": row.paper,
        "model": row.model.map(units::rounded),
        "measured": row.measured.map(units::rounded),
        "unit": row.unit,
        "error": row.error().map(units::rounded),
    })
}
