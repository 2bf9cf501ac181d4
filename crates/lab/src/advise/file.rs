//! Workload files, in TOML.

use serde::Deserialize;
use sinew_sim::{Fields, FileError, shortened};

use super::workload::{CpuLoad, Goal, Workload, WorkloadKind};
use crate::workload::place::EntryPlace;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kind: String,
    object_bytes: Option<usize>,
    accesses: Option<usize>,
    read_share: Option<f64>,
    peers: Option<usize>,
    locks: Option<usize>,
    client_cpu: Option<String>,
    server_cpu: Option<String>,
    goal: Option<String>,
    bulk: Option<bool>,
    batches: Option<bool>,
}

const FIELDS: [Fields<'static>; 1] = [Fields {
    table: "",
    required: &["kind"],
    optional: &[
        "object_bytes",
        "accesses",
        "read_share",
        "peers",
        "locks",
        "client_cpu",
        "server_cpu",
        "goal",
        "bulk",
        "batches",
    ],
}];

/// The value that has the given name.
fn one_of<T: Copy>(place: &EntryPlace<'_>, field: &str, given: &str, all: &[(T, &str)]) -> Result<T, FileError> {
    let found = all.iter().find(|(_, name)| *name == given).map(|(it, _)| *it);
    let names: Vec<&str> = all.iter().map(|(_, name)| *name).collect();
    found.ok_or_else(|| {
        let (given, names_text) = (shortened(given), names.join(", "));
        let problem = format!("{field} cannot be \"{given}\": one of {names_text}, as {field} = \"{}\"", names[0]);
        place.error(field, problem)
    })
}

impl Workload {
    /// Parses a workload file (`docs/advise.md`). A field that it leaves out has the usual value of its kind.
    ///
    /// # Errors
    ///
    /// [`FileError`], with the line, and the field if one is to blame.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let file: File = FileError::read(text, &FIELDS)?;
        let place = EntryPlace { text, entry: 0..0 };
        let kind = one_of(&place, "kind", &file.kind, &WorkloadKind::ALL.map(|kind| (kind, kind.name())))?;
        let usual = Self::of(kind);
        let load = |field, given: &Option<String>| match given {
            Some(given) => one_of(&place, field, given, &CpuLoad::ALL.map(|load| (load, load.name()))),
            None => Ok(CpuLoad::Idle),
        };
        let goal = match &file.goal {
            Some(given) => one_of(&place, "goal", given, &Goal::ALL.map(|goal| (goal, goal.name())))?,
            None => usual.goal,
        };
        let workload = Self {
            kind,
            object_bytes: file.object_bytes.unwrap_or(usual.object_bytes),
            accesses: file.accesses.unwrap_or(usual.accesses),
            read_share: file.read_share.unwrap_or(usual.read_share),
            peers: file.peers.unwrap_or(usual.peers),
            locks: file.locks.unwrap_or(usual.locks),
            client_cpu: load("client_cpu", &file.client_cpu)?,
            server_cpu: load("server_cpu", &file.server_cpu)?,
            goal,
            bulk: file.bulk.unwrap_or(usual.bulk),
            batches: file.batches.unwrap_or(usual.batches),
        };
        match workload.problem() {
            Some((field, problem)) => Err(place.error(field, problem)),
            None => Ok(workload),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_usual_for_the_kind() {
        let all = "kind = \"reads\"\naccesses = 2\nobject_bytes = 32\ngoal = \"throughput\"\nserver_cpu = \"busy\"\nbatches = false\n";
        let workload = Workload::parse(all).unwrap();
        let expected = Workload {
            accesses: 2,
            object_bytes: 32,
            goal: Goal::Throughput,
            server_cpu: CpuLoad::Busy,
            batches: false,
            ..Workload::of(WorkloadKind::Reads)
        };
        assert_eq!(workload, expected);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_field() {
        for (text, expected) in [
            ("peers = 4\n", "line 1: missing field `kind`"),
            ("kind = \"queue\"\n", "line 1: kind cannot be \"queue\": one of cache, sequencer, locks, reads"),
            ("kind = \"cache\"\nobject_bytes = 16\n", "line 2: object_bytes cannot be 16: 17 to 1048576"),
            ("kind = \"cache\"\n\nread_share = 95\n", "line 3: read_share cannot be 95: 0 to 1, as 0.95"),
            ("kind = \"cache\"\nclient_cpu = \"full\"\n", "line 2: client_cpu cannot be \"full\": one of idle, busy"),
            ("kind = \"cache\"\nclients = 3\n", "line 2: unknown field `clients`, expected one of `kind`"),
        ] {
            let error = Workload::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
