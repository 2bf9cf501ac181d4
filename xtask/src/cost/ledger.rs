//! The ledger: `costs.toml` in the workspace's root.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

use super::compare;
use super::measure::{Cost, Measured};

const FILE: &str = "costs.toml";
const HEAD: &str = "\
# Cost of each operation in the steady state, counted by `cargo xtask cost`: instructions, how many of these are
# locked, system calls and allocations, each averaged over some thousand operations. `budget` is the most instructions
# that it may cost; a line over its budget says why. `cargo xtask cost --update --because \"what changed them\"` writes
# the figures; budgets are written by hand.
";

/// A line of the ledger.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub operation: String,
    pub side: String,
    pub instructions: f64,
    pub locked: f64,
    pub system_calls: f64,
    pub allocations: f64,
    /// Instructions that it may cost.
    pub budget: Option<f64>,
    /// Reason why it costs more.
    pub over: Option<String>,
    /// Day on which the figures last changed.
    pub date: String,
    /// Cause of that change.
    pub changed_by: String,
}

impl Row {
    fn cost(&self) -> Cost {
        let Self { instructions, locked, system_calls, allocations, .. } = *self;
        Cost { instructions, locked, system_calls, allocations }
    }

    fn set(&mut self, cost: &Cost) {
        self.instructions = cost.instructions;
        self.locked = cost.locked;
        self.system_calls = cost.system_calls;
        self.allocations = cost.allocations;
    }
}

/// All lines of the ledger.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    #[serde(default)]
    row: Vec<Row>,
}

/// Rounds figures as the ledger does.
fn rounded(cost: &Cost) -> Cost {
    let to = |figure: f64, places: f64| (figure * places).round() / places;
    Cost {
        instructions: to(cost.instructions, 10.0),
        locked: to(cost.locked, 1000.0),
        system_calls: to(cost.system_calls, 1000.0),
        allocations: to(cost.allocations, 1000.0),
    }
}

impl Ledger {
    /// Reads the ledger; an absent file is an empty ledger.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        match std::fs::read_to_string(root.join(FILE)) {
            Ok(text) => toml::from_str(&text).with_context(|| format!("{FILE} is not as it should be")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {FILE}")),
        }
    }

    /// Writes the ledger.
    pub fn write(&self, root: &Path) -> anyhow::Result<()> {
        std::fs::write(root.join(FILE), self.text()).with_context(|| format!("cannot write {FILE}"))
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        for row in &self.row {
            // A JSON string is also a TOML string.
            let quoted = |text: &str| serde_json::Value::from(text).to_string();
            let mut line = |key: &str, value: String| _ = writeln!(text, "{key} = {value}");
            line("\n[[row]]\noperation", quoted(&row.operation));
            line("side", quoted(&row.side));
            line("instructions", format!("{:.1}", row.instructions));
            line("locked", format!("{:.3}", row.locked));
            line("system_calls", format!("{:.3}", row.system_calls));
            line("allocations", format!("{:.3}", row.allocations));
            if let Some(budget) = row.budget {
                line("budget", format!("{budget:.1}"));
            }
            if let Some(over) = &row.over {
                line("over", quoted(over));
            }
            line("date", quoted(&row.date));
            line("changed_by", quoted(&row.changed_by));
        }
        text
    }

    /// The line of an operation's side.
    pub fn row(&self, operation: &str, side: &str) -> Option<&Row> {
        self.row.iter().find(|row| row.operation == operation && row.side == side)
    }

    /// Takes over the counted figures. If `all` operations were counted, lines of others are removed.
    ///
    /// # Errors
    ///
    /// A line's figures change, and `because` does not say why.
    pub fn update(
        &mut self,
        measured: &[Measured],
        all: bool,
        because: Option<&str>,
        date: &str,
    ) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        for now in measured {
            let cost = rounded(&now.cost);
            let mut row = match self.row(&now.operation, &now.side) {
                Some(row) if row.cost() == cost => row.clone(),
                Some(row) => {
                    let Some(because) = because else {
                        bail!(
                            "{}, {}: its figures change: say what changed them with --because",
                            row.operation,
                            row.side
                        );
                    };
                    Row { date: date.to_owned(), changed_by: because.to_owned(), ..row.clone() }
                }
                None => Row {
                    operation: now.operation.clone(),
                    side: now.side.clone(),
                    instructions: 0.0,
                    locked: 0.0,
                    system_calls: 0.0,
                    allocations: 0.0,
                    budget: None,
                    over: None,
                    date: date.to_owned(),
                    changed_by: because.unwrap_or("the first figures").to_owned(),
                },
            };
            row.set(&cost);
            if row.budget.is_none_or(|budget| row.instructions <= budget) {
                row.over = None;
            }
            rows.push(row);
        }
        if all {
            self.row = rows;
            return Ok(());
        }
        for row in rows {
            match self.row.iter_mut().find(|old| old.operation == row.operation && old.side == row.side) {
                Some(old) => *old = row,
                None => self.row.push(row),
            }
        }
        Ok(())
    }

    /// Returns what differs from the ledger, and what breaks its budgets.
    pub fn check(&self, measured: &[Measured], all: bool) -> Vec<String> {
        const REMEDY: &str = "run `cargo xtask cost --update --because \"what changed it\"`";
        let mut findings = Vec::new();
        for now in measured {
            let named = format!("{}, {}", now.operation, now.side);
            let Some(row) = self.row(&now.operation, &now.side) else {
                findings.push(format!("{named}: not in {FILE}: run `cargo xtask cost --update`"));
                continue;
            };
            for how in compare::differences(&row.cost(), &now.cost) {
                findings.push(format!("{named}: {how} in {FILE}: {REMEDY}"));
            }
            let instructions = rounded(&now.cost).instructions;
            let says_why = row.over.as_ref().is_some_and(|why| !why.trim().is_empty());
            match row.budget {
                Some(budget) if instructions > budget && !says_why => findings.push(format!(
                    "{named}: {instructions:.1} instructions, over its budget of {budget}: cut it, or say why in `over`"
                )),
                Some(budget) if instructions <= budget && row.over.is_some() => {
                    findings.push(format!("{named}: it keeps its budget of {budget}: {FILE} needs no `over`"));
                }
                _ => {}
            }
        }
        if all {
            let gone = self.row.iter().filter(|row| !measured.iter().any(|now| now.is(&row.operation, &row.side)));
            findings.extend(gone.map(|row| {
                format!(
                    "{}, {}: in {FILE}, but there is no such operation: run `cargo xtask cost --update`",
                    row.operation, row.side
                )
            }));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: [&str; 0] = [];

    fn measured(operation: &str, instructions: f64) -> Measured {
        Measured {
            operation: operation.to_owned(),
            side: "client".to_owned(),
            cost: Cost { instructions, locked: 0.1254, ..Cost::default() },
            operations: 1,
            executed: Vec::new(),
        }
    }

    fn ledger(instructions: f64) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.update(&[measured("call", instructions)], true, None, "2026-01-01").unwrap();
        ledger
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut ledger = ledger(1234.56);
        ledger.row[0].budget = Some(600.0);
        ledger.row[0].over = Some("a \"quoted\" reason".to_owned());
        let again: Ledger = toml::from_str(&ledger.text()).unwrap();
        assert_eq!(again.row, ledger.row);
        assert_eq!((again.row[0].instructions, again.row[0].locked), (1234.6, 0.125));
        assert!(toml::from_str::<Ledger>(&ledger.text().replace("budget", "budgt")).is_err());
    }

    #[test]
    fn an_update_keeps_budgets_and_dates_what_it_changes() {
        let mut ledger = ledger(1000.0);
        ledger.row[0].budget = Some(600.0);
        ledger.row[0].over = Some("to be cut".to_owned());
        ledger.update(&[measured("call", 1000.04)], true, None, "2026-02-02").unwrap();
        assert_eq!((&*ledger.row[0].date, &*ledger.row[0].changed_by), ("2026-01-01", "the first figures"));
        assert!(ledger.update(&[measured("call", 700.0)], true, None, "2026-02-02").is_err(), "nobody says why");
        ledger.update(&[measured("call", 700.0)], true, Some("less"), "2026-02-02").unwrap();
        let row = &ledger.row[0];
        assert_eq!((row.instructions, row.budget, row.over.as_deref()), (700.0, Some(600.0), Some("to be cut")));
        assert_eq!((&*row.date, &*row.changed_by), ("2026-02-02", "less"));
        ledger.update(&[measured("call", 600.0)], true, Some("less still"), "2026-02-03").unwrap();
        assert_eq!(ledger.row[0].over, None, "it keeps its budget now");
    }

    #[test]
    fn only_an_update_of_all_lets_lines_go() {
        let mut ledger = ledger(1000.0);
        ledger.update(&[measured("push", 50.0)], false, None, "2026-02-02").unwrap();
        assert_eq!(ledger.row.len(), 2);
        assert_eq!(ledger.check(&[measured("push", 50.0)], false), CLEAN);
        assert_eq!(ledger.check(&[measured("push", 50.0)], true).len(), 1);
        ledger.update(&[measured("push", 50.0)], true, None, "2026-02-02").unwrap();
        assert_eq!(ledger.row.len(), 1);
    }

    #[test]
    fn figures_out_of_date_in_either_direction_are_found() {
        let ledger = ledger(1000.0);
        for (now, findings) in [(1000.0, 0), (1020.0, 0), (1021.0, 1), (981.0, 0), (979.0, 1)] {
            assert_eq!(ledger.check(&[measured("call", now)], true).len(), findings, "{now}");
        }
        assert_eq!(ledger.check(&[measured("call", 1000.0), measured("push", 1.0)], true).len(), 1, "a new one");
    }

    #[test]
    fn a_budget_is_kept_or_a_reason_given_and_no_reason_stays_without_need() {
        let mut ledger = ledger(1000.0);
        let findings = |ledger: &Ledger| ledger.check(&[measured("call", 1000.0)], true).len();
        for (budget, over, expected) in [
            (None, None, 0),
            (Some(1000.0), None, 0),
            (Some(999.9), None, 1),
            (Some(999.9), Some(" "), 1),
            (Some(999.9), Some("to be cut"), 0),
            (Some(1000.0), Some("to be cut"), 1),
        ] {
            ledger.row[0].budget = budget;
            ledger.row[0].over = over.map(str::to_owned);
            assert_eq!(findings(&ledger), expected, "{budget:?}, {over:?}");
        }
    }

    #[test]
    fn the_ledger_in_the_tree_can_be_read() {
        let root = crate::process::workspace_root();
        let ledger = Ledger::read(&root).unwrap();
        assert_eq!(std::fs::read_to_string(root.join(FILE)).unwrap(), ledger.text(), "as it would be written");
    }
}
