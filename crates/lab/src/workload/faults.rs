//! Faults of links during a workload.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use serde_spanned::Spanned;
use sinew_harness::units::counted;
use sinew_sim::{Fields, FileError, LinkFaults, LinkId, Network, Topology};

use super::place::EntryPlace;

/// Most entries in a file.
const FAULTS_MAX: usize = 1000;
/// Longest time that a packet is held up (`REORDERING_US_MAX`), and the default, in us.
const REORDERING_US_MAX: f64 = 1e6;
const REORDERING_US: f64 = 10.0;

/// A fault of some links, for a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Its name in reports.
    pub name: String,
    /// Directions of links: from the first end to the second (0), or the reverse (1).
    pub lanes: Vec<(LinkId, usize)>,
    /// Its beginning, in ns since all sessions were open.
    pub start_ns: u64,
    /// Its end, in ns since all sessions were open.
    pub stop_ns: u64,
    /// Kind of fault.
    pub kind: FaultKind,
}

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// The link carries nothing.
    Down,
    /// Some packets are lost, corrupted, duplicated or held up.
    Faults(LinkFaults),
}

/// A fault as it is written in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    link: Vec<String>,
    number: Option<usize>,
    #[serde(default)]
    one_way: bool,
    #[serde(default)]
    from_ms: f64,
    until_ms: Option<f64>,
    loss: Option<f64>,
    corruption: Option<f64>,
    duplication: Option<f64>,
    reordering: Option<f64>,
    reordering_us: Option<f64>,
}

/// Fields of the entry.
pub const FIELDS: Fields = Fields {
    table: "faults",
    required: &["link"],
    optional: &[
        "number",
        "one_way",
        "from_ms",
        "until_ms",
        "loss",
        "corruption",
        "duplication",
        "reordering",
        "reordering_us",
    ],
};

/// Reads all entries.
///
/// # Errors
///
/// [`FileError`] when there is no such link, a time or chance makes no sense, or two faults are on one link at a time.
pub fn read(text: &str, entries: &[Spanned<Entry>], topology: &Topology, end_ns: u64) -> Result<Vec<Fault>, FileError> {
    let mut taken: BTreeMap<(LinkId, usize), Vec<Range<u64>>> = BTreeMap::new();
    let mut faults = Vec::new();
    for entry in entries {
        let (place, entry) = (EntryPlace { text, entry: entry.span() }, entry.get_ref());
        if faults.len() == FAULTS_MAX {
            return Err(place.error("link", format!("there are too many faults: at most {FAULTS_MAX}")));
        }
        let fault = read_entry(&place, entry, topology, end_ns)?;
        for lane in &fault.lanes {
            let times = taken.entry(*lane).or_default();
            if times.iter().any(|other| fault.start_ns < other.end && other.start < fault.stop_ns) {
                let problem = format!("link: {}: another fault is there at that time", entry.link.join(" to "));
                return Err(place.error("link", problem));
            }
            times.push(fault.start_ns..fault.stop_ns);
        }
        faults.push(fault);
    }
    Ok(faults)
}

fn read_entry(place: &EntryPlace<'_>, entry: &Entry, topology: &Topology, end_ns: u64) -> Result<Fault, FileError> {
    let [from, to] = &entry.link[..] else {
        return Err(
            place.error("link", "link: the names of two nodes are needed, such as [\"tor0\", \"spine\"]".to_owned())
        );
    };
    let lanes = lanes(place, entry, [from, to], topology)?;
    let start_ns = place.time_ns("from_ms", entry.from_ms, 0.0)?;
    let stop_ns = entry.until_ms.map_or(Ok(end_ns), |ms| place.time_ns("until_ms", ms, 0.0))?;
    let expected = format!("before the end, at {} ms", end_ns as f64 / 1e6);
    place.need(start_ns < end_ns, "from_ms", &entry.from_ms.to_string(), &expected)?;
    place.need(start_ns < stop_ns, "until_ms", &(stop_ns as f64 / 1e6).to_string(), "later than from_ms")?;
    let kind = read_kind(place, entry)?;
    let number = entry.number.map_or_else(String::new, |number| format!(", number {number}"));
    let ends = if entry.one_way { format!("from {from} to {to}") } else { format!("of {from} and {to}") };
    let what = if kind == FaultKind::Down { "down" } else { "faulty" };
    Ok(Fault { name: format!("link {ends}{number}: {what}"), lanes, start_ns, stop_ns, kind })
}

/// Directions of links that an entry is about.
fn lanes(
    place: &EntryPlace<'_>,
    entry: &Entry,
    [from, to]: [&str; 2],
    topology: &Topology,
) -> Result<Vec<(LinkId, usize)>, FileError> {
    let links = topology.links.iter().enumerate().filter_map(|(index, link)| {
        let [a, b] = link.ends.map(|end| topology.name_of(end));
        let direction = if [&*a, &*b] == [from, to] { Some(0) } else { ([&*a, &*b] == [to, from]).then_some(1) };
        direction.map(|direction| (LinkId(index), direction))
    });
    let all: Vec<(LinkId, usize)> = links.collect();
    if all.is_empty() {
        return Err(place.error("link", format!("link: the topology has no link of `{from}` and `{to}`")));
    }
    let chosen = match entry.number {
        None => &all[..],
        Some(number) => {
            let expected = format!("of {}, counted from 0", counted(all.len(), "link"));
            place.need(number < all.len(), "number", &number.to_string(), &expected)?;
            &all[number..=number]
        }
    };
    let both = |(link, direction): &(LinkId, usize)| [(*link, *direction), (*link, 1 - direction)];
    Ok(if entry.one_way { chosen.to_vec() } else { chosen.iter().flat_map(both).collect() })
}

fn read_kind(place: &EntryPlace<'_>, entry: &Entry) -> Result<FaultKind, FileError> {
    let chances = [
        ("loss", entry.loss),
        ("corruption", entry.corruption),
        ("duplication", entry.duplication),
        ("reordering", entry.reordering),
    ];
    for (field, chance) in chances {
        let chance = chance.unwrap_or(0.0);
        place.need((0.0..=1.0).contains(&chance), field, &chance.to_string(), "0 to 1, a chance of each packet")?;
    }
    let us = entry.reordering_us.unwrap_or(REORDERING_US);
    let expected = format!("0.001 to {REORDERING_US_MAX} us");
    place.need((0.001..=REORDERING_US_MAX).contains(&us), "reordering_us", &us.to_string(), &expected)?;
    let is_alone = entry.reordering_us.is_some() && entry.reordering.is_none();
    place.need(!is_alone, "reordering_us", "alone", "reordering says how many packets are held up")?;
    if chances.iter().all(|(_, chance)| chance.is_none()) {
        return Ok(FaultKind::Down);
    }
    let [loss, corruption, duplication, reordering] = chances.map(|(_, chance)| chance.unwrap_or(0.0));
    let reordering_ns = (us * 1e3).round() as u64;
    Ok(FaultKind::Faults(LinkFaults { loss, corruption, duplication, reordering, reordering_ns }))
}

/// Beginnings and ends of faults that are still to come.
pub struct FaultPlan<'a> {
    /// For each: its time, whether it is a beginning, and the fault; the latest first.
    changes: Vec<(u64, bool, &'a Fault)>,
}

impl<'a> FaultPlan<'a> {
    /// A plan for all of these faults.
    pub fn new(faults: &'a [Fault]) -> Self {
        let both = |fault: &'a Fault| [(fault.start_ns, true, fault), (fault.stop_ns, false, fault)];
        let mut changes: Vec<_> = faults.iter().flat_map(both).collect();
        // A fault that ends when another begins ends first.
        changes.sort_by_key(|(time_ns, begins, _)| std::cmp::Reverse((*time_ns, *begins)));
        Self { changes }
    }

    /// Time of the next beginning or end, in ns since all sessions were open.
    pub fn next_ns(&self) -> Option<u64> {
        self.changes.last().map(|(time_ns, ..)| *time_ns)
    }

    /// Begins and ends the faults that are due at `now_ns`.
    pub fn apply(&mut self, network: &Network, now_ns: u64) {
        while let Some((_, begins, fault)) = self.changes.pop_if(|(time_ns, ..)| *time_ns <= now_ns) {
            for (link, direction) in fault.lanes.iter().copied() {
                match fault.kind {
                    FaultKind::Down => network.set_link_up(link, direction, !begins),
                    FaultKind::Faults(faults) => {
                        network.set_faults(link, direction, if begins { faults } else { LinkFaults::default() });
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sinew_sim::{NodeId, SwitchId};

    use super::*;
    use crate::workload::Workload;

    const BEFORE: &str = r#"duration_ms = 10
[[clients]]
name = "all"
hosts = "node1"
servers = "node0"
request_bytes = 32
response_bytes = 32
"#;

    /// A star of hosts, with another switch connected by two links.
    fn topology() -> Topology {
        let mut topology = Topology::star(3, 10.0, 100, 1500);
        let spine = sinew_sim::SwitchSpec { name: "spine".to_owned(), ..topology.switches[0].clone() };
        let spine = NodeId::Switch(topology.switch(spine));
        for _ in 0..2 {
            topology.link(sinew_sim::LinkSpec { ends: [NodeId::Switch(SwitchId(0)), spine], ..topology.links[0] });
        }
        topology
    }

    fn parse(faults: &str) -> Result<Vec<Fault>, FileError> {
        Ok(Workload::parse(&format!("{BEFORE}{faults}"), &topology())?.faults)
    }

    #[test]
    fn a_fault_is_what_the_file_says() {
        let text = r#"[[faults]]
link = ["spine", "switch"]
from_ms = 2
until_ms = 3.5
[[faults]]
link = ["switch", "spine"]
number = 1
one_way = true
until_ms = 2
loss = 0.5
reordering = 1
[[faults]]
link = ["node2", "switch"]
"#;
        let [down, faults, to_the_end] = &parse(text).unwrap()[..] else { panic!("three faults") };
        assert_eq!((down.start_ns, down.stop_ns, down.kind), (2_000_000, 3_500_000, FaultKind::Down));
        // The fault is given from the spine, and the links were made the other way round.
        assert_eq!(down.lanes, [(LinkId(3), 1), (LinkId(3), 0), (LinkId(4), 1), (LinkId(4), 0)]);
        assert_eq!(down.name, "link of spine and switch: down");
        assert_eq!((faults.start_ns, faults.stop_ns, &faults.lanes[..]), (0, 2_000_000, &[(LinkId(4), 0)][..]));
        assert_eq!(faults.name, "link from switch to spine, number 1: faulty");
        let expected = LinkFaults { loss: 0.5, reordering: 1.0, reordering_ns: 10_000, ..LinkFaults::default() };
        assert_eq!(faults.kind, FaultKind::Faults(expected));
        assert_eq!((to_the_end.stop_ns, to_the_end.lanes.len()), (10_000_000, 2));
    }

    #[test]
    fn a_fault_that_makes_no_sense_is_refused_with_its_line_and_its_field() {
        let text = "[[faults]]\nlink = [\"node0\", \"switch\"]\nfrom_ms = 1\nuntil_ms = 2\n";
        for (from, to, expected) in [
            ("\"node0\"", "\"node7\"", "line 9: link: the topology has no link of `node7` and `switch`"),
            ("\"switch\"", "\"node1\"", "line 9: link: the topology has no link of `node0` and `node1`"),
            ("\"switch\"]", "\"switch\", \"spine\"]", "line 9: link: the names of two nodes are needed"),
            ("link =", "links =", "line 8: missing field `link` of faults\n  line 9: unknown field `links`, "),
            ("from_ms = 1", "from_ms = 10", "line 10: from_ms cannot be 10: before the end, at 10 ms"),
            ("from_ms = 1", "from_ms = nan", "line 10: from_ms cannot be NaN"),
            ("until_ms = 2", "until_ms = 1", "line 11: until_ms cannot be 1: later than from_ms"),
            ("until_ms = 2", "until_ms = -1", "line 11: until_ms cannot be -1"),
            ("until_ms = 2", "number = 1", "line 11: number cannot be 1: of 1 link, counted from 0"),
            ("until_ms = 2", "number = -1", "line 11: number: invalid value"),
            ("until_ms = 2", "loss = 1.1", "line 11: loss cannot be 1.1: 0 to 1"),
            ("until_ms = 2", "corruption = nan", "line 11: corruption cannot be NaN"),
            ("until_ms = 2", "duplication = -1", "line 11: duplication cannot be -1"),
            ("until_ms = 2", "reordering = 1\nreordering_us = inf", "line 12: reordering_us cannot be inf"),
            ("until_ms = 2", "reordering_us = 5", "line 11: reordering_us cannot be alone"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = parse(&text.replacen(from, to, 1)).expect_err(to).to_string();
            assert!(error.starts_with(expected), "{to}: {error}");
        }
        let twice = format!("{text}{}", text.replace("from_ms = 1", "from_ms = 1.5"));
        let error = parse(&twice).unwrap_err().to_string();
        assert_eq!(error, "line 13: link: node0 to switch: another fault is there at that time");
        parse(&format!("{text}{}", text.replace("= 2", "= 3").replace("from_ms = 1", "from_ms = 2"))).unwrap();
    }
}
