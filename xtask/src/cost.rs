//! Counts the instructions that operations cost: the one figure that is the same on every machine and at every load.
//!
//! The programs in `xtask/cost` perform the operations. Callgrind counts what one side's steps execute, instruction by
//! instruction, and the disassembly shows which of these are locked or system calls. `costs.toml` is the ledger of the
//! figures; a check compares with it and with a base revision.

mod base;
mod breakdown;
mod callgrind;
mod compare;
mod disassembly;
mod ledger;
mod measure;
mod table;

use anyhow::{Context, bail};

use crate::process;
use ledger::Ledger;
use measure::{Measured, Programs};

/// Arguments of `cargo xtask cost`.
#[derive(clap::Args)]
pub struct Args {
    /// Only operations whose name or side contains this text
    #[arg(long, value_name = "TEXT")]
    row: Option<String>,
    /// Show where the instructions are, by function: code inlined from outside the project counts for its caller
    #[arg(long)]
    functions: bool,
    /// Show where the instructions are, by the project's lines
    #[arg(long)]
    lines: bool,
    /// Most functions or lines to show for each operation
    #[arg(long, value_name = "COUNT", default_value_t = 40)]
    top: usize,
    /// Print JSON, one line for each operation and side
    #[arg(long)]
    json: bool,
    /// Write the figures to costs.toml; budgets and notes stay as they are
    #[arg(long)]
    update: bool,
    /// Cause of the change in the figures, for costs.toml
    #[arg(long, value_name = "TEXT", requires = "update")]
    because: Option<String>,
    /// Fail if an operation costs more than in the base or more than its budget, or differs from costs.toml
    #[arg(long)]
    check: bool,
    /// Compare with this revision, built in a working tree of its own [default with --check: the merge base with
    /// origin/main]
    #[arg(long, value_name = "REVISION")]
    base: Option<String>,
    /// Succeed, with a message, if a tool that counting needs is missing
    #[arg(long)]
    if_present: bool,
}

/// Counts the operations, prints the figures, and compares or writes them as asked.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Err(missing) = measure::check_tools() {
        if args.if_present {
            println!("!!! {missing:#}: no instructions were counted");
            return Ok(());
        }
        return Err(missing);
    }
    let root = process::workspace_root();
    let programs = Programs::build(&root, &process::target_dir())?;
    let wanted = |operation: &str, side: &str| {
        args.row.as_ref().is_none_or(|text| format!("{operation}, {side}").contains(text.as_str()))
    };
    let measured = programs.measure(wanted)?;
    if measured.is_empty() {
        bail!("no operation or side contains the text of --row; without it, all are counted");
    }
    let mut ledger = Ledger::read(&root)?;
    show(args, &programs, &measured, &ledger)?;
    if args.update {
        ledger.update(&measured, args.row.is_none(), args.because.as_deref(), &today()?)?;
        ledger.write(&root)?;
    }

    let mut findings = Vec::new();
    if let Some(revision) = base::revision(args.base.as_deref(), args.check)? {
        findings.extend(compare_with_base(args, &revision, &measured, wanted)?);
    }
    if args.check {
        findings.extend(ledger.check(&measured, args.row.is_none()));
    }
    if !findings.is_empty() {
        bail!("the counted costs are not as they should be:\n  {}", findings.join("\n  "));
    }
    Ok(())
}

fn show(args: &Args, programs: &Programs, measured: &[Measured], ledger: &Ledger) -> anyhow::Result<()> {
    if args.json {
        for row in measured {
            println!("{}", table::json(row, ledger.row(&row.operation, &row.side)));
        }
        return Ok(());
    }
    print!("{}", table::table(measured, ledger));
    for row in measured {
        if args.functions {
            print!("{}", breakdown::by_function(programs, row, args.top)?);
        }
        if args.lines {
            print!("{}", breakdown::by_line(programs, row, args.top)?);
        }
    }
    Ok(())
}

/// Counts the operations of a revision, prints the changes, and returns what became dearer.
fn compare_with_base(
    args: &Args,
    revision: &str,
    measured: &[Measured],
    wanted: impl Fn(&str, &str) -> bool,
) -> anyhow::Result<Vec<String>> {
    // With `--json`, standard output holds JSON alone, and text for people goes to standard error.
    let say = |line: String| if args.json { eprintln!("{line}") } else { println!("{line}") };
    let Some(checkout) = base::Checkout::new(revision)? else {
        say(format!("the base {revision} has no xtask/cost, so there is nothing to compare with"));
        return Ok(Vec::new());
    };
    let programs = Programs::build(checkout.folder(), &checkout.target())?;
    let before = programs
        .measure(|operation, side| wanted(operation, side) && measured.iter().any(|row| row.is(operation, side)))?;
    say(format!("\ncompared with {revision}:"));
    let mut findings = Vec::new();
    for row in measured {
        let Some(old) = before.iter().find(|old| old.is(&row.operation, &row.side)) else {
            say(format!("{}, {}: not in the base", row.operation, row.side));
            continue;
        };
        say(table::change(&old.cost, row));
        findings.extend(
            compare::dearer(&old.cost, &row.cost)
                .into_iter()
                .map(|how| format!("{}, {}: {how} in {revision}", row.operation, row.side)),
        );
    }
    Ok(findings)
}

fn today() -> anyhow::Result<String> {
    let date = process::output(std::process::Command::new("date").args(["-u", "+%F"]));
    Ok(date.context("the ledger needs today's date")?.trim().to_owned())
}
