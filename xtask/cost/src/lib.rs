//! The operations whose instructions `cargo xtask cost` counts, each on one thread that plays both ends in turn.
//!
//! Each family is a program of its own (`src/bin`), because the rest of a program changes what is inlined. `list` names
//! its operations; `run OPERATION SIDE` performs one and has the steps of that side counted. Every run is the same:
//! time is moved by hand, random numbers are seeded, nothing blocks, and the size of every burst is asserted. So two
//! runs print the same numbers, and under callgrind they execute the same instructions.

mod count;
mod counting;
mod ends;
mod keys;
mod verbs;

use anyhow::{Context, bail};
use serde_json::json;

pub use count::Count;
pub use ends::{CALL_NS, Ends, Rings};
pub use keys::{KEY_LEN, cache_config, key_bytes};
pub use verbs::device;

/// Performs an operation.
pub type Perform = fn(&mut Count) -> anyhow::Result<()>;

/// An operation of the ledger.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Name in the ledger.
    pub name: &'static str,
    /// Sides whose steps can be counted.
    pub sides: &'static [&'static str],
    /// Whether copies are left out, because instructions that count once a byte, or the C library, copy its bytes.
    pub without_copies: bool,
    /// Performs it, many times.
    pub perform: Perform,
}

/// Returns an operation whose copies count.
pub const fn operation(name: &'static str, sides: &'static [&'static str], perform: Perform) -> Operation {
    Operation { name, sides, without_copies: false, perform }
}

/// Runs the program of a family.
///
/// # Errors
///
/// The arguments are unknown, or an operation does not go as it should.
pub fn main(operations: &[Operation]) -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["list"] => {
            for Operation { name, sides, without_copies, .. } in operations {
                for side in *sides {
                    println!("{}", json!({ "operation": name, "side": side, "without_copies": without_copies }));
                }
            }
        }
        ["run", name, side] => {
            let operation = operations.iter().find(|operation| operation.name == name);
            let operation = operation.with_context(|| format!("there is no operation `{name}`"))?;
            let side = operation.sides.iter().find(|other| **other == side);
            let side = side.with_context(|| format!("`{name}` has the sides {}", operation.sides.join(", ")))?;
            let mut count = Count::of(side);
            (operation.perform)(&mut count)?;
            println!("{}", json!({ "operations": count.operations()?, "allocations": count.allocations() }));
        }
        _ => bail!("usage: list, or run OPERATION SIDE"),
    }
    Ok(())
}

/// Performs each operation at each side twice, as a test of the family.
///
/// # Panics
///
/// An operation fails, or its two runs differ.
pub fn check_that_runs_are_equal(operations: &[Operation]) {
    for operation in operations {
        for side in operation.sides {
            let run = || {
                let mut count = Count::of(side);
                let performed = (operation.perform)(&mut count);
                performed.and_then(|()| Ok((count.operations()?, count.allocations())))
            };
            let [first, second] =
                [run(), run()].map(|run| run.unwrap_or_else(|error| panic!("{}, {side}: {error:#}", operation.name)));
            assert_eq!(first, second, "{}, {side}", operation.name);
        }
    }
}
