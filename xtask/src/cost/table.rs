//! Prints costs.

use std::fmt::Write;

use serde_json::json;

use super::ledger::{Ledger, Row};
use super::measure::{Cost, Measured};

/// Table of all costs, beside their budgets.
pub fn table(measured: &[Measured], ledger: &Ledger) -> String {
    let wide = measured.iter().map(|row| row.operation.len()).max().unwrap_or(0).max("operation".len());
    let mut text = format!(
        "{:wide$}  {:9} {:>12} {:>8} {:>12} {:>11} {:>7}\n",
        "operation", "side", "instructions", "locked", "system calls", "allocations", "budget"
    );
    for row in measured {
        let budget = ledger.row(&row.operation, &row.side).and_then(|line| line.budget);
        let budget = budget.map_or("-".to_owned(), |budget| format!("{budget}"));
        let Cost { instructions, locked, system_calls, allocations } = row.cost;
        _ = writeln!(
            text,
            "{:wide$}  {:9} {instructions:12.1} {locked:8.3} {system_calls:12.3} {allocations:11.3} {budget:>7}",
            row.operation, row.side
        );
    }
    text
}

/// One row as JSON, for programs.
pub fn json(row: &Measured, line: Option<&Row>) -> serde_json::Value {
    json!({
        "operation": row.operation,
        "side": row.side,
        "instructions": row.cost.instructions,
        "locked": row.cost.locked,
        "system_calls": row.cost.system_calls,
        "allocations": row.cost.allocations,
        "budget": line.and_then(|line| line.budget),
        "operations": row.operations,
    })
}

/// Describes the change in an operation's cost.
pub fn change(before: &Cost, row: &Measured) -> String {
    let (was, is) = (before.instructions, row.cost.instructions);
    let part = if was == 0.0 { 0.0 } else { (is - was) / was * 100.0 };
    format!("{}, {}: {was:.1} -> {is:.1} instructions ({:+.1}, {part:+.1} %)", row.operation, row.side, is - was)
}
