//! Reads topologies from TOML files.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use serde_spanned::Spanned;

use crate::file::{Fields, FileError};
use crate::routes::check_reachable;
use crate::topology::{
    Buffer, Ecn, HostId, HostSpec, LinkSpec, NodeId, Pause, SwitchId, SwitchSpec, Topology, TopologyError,
};

/// The most nodes and links that a file may ask for.
const COUNT_MAX: usize = 10_000;

// Defaults of optional fields, as in `topologies/cx4.toml`, which has their sources.
const FRAME_BYTES: usize = 66;
const SWITCH_LATENCY_NS: u64 = 400;
const ALPHA: f64 = 8.0;
const BUFFER: Buffer = Buffer::Shared { bytes: 12_000_000, alpha: ALPHA };
const ECN: Ecn = Ecn { min_bytes: 5_000, max_bytes: 200_000, probability: 0.01 };
const HOST_LATENCY_NS: u64 = 584;
const HOST_DELAY_NS: u64 = 25;
const LINK_DELAY_NS: u64 = 50;
const MTU: usize = 982;

/// The fields of a topology. All missing ones are reported at once.
const FIELDS: [Fields; 4] = [
    Fields { table: "", required: &[], optional: &["frame_bytes", "switch", "host", "link"] },
    Fields { table: "switch", required: &["name"], optional: &["count", "latency_ns", "buffer", "ecn", "pause"] },
    Fields {
        table: "host",
        required: &["name", "switches", "rate_gbps"],
        optional: &["count", "delay_ns", "mtu", "transmit_latency_ns", "receive_latency_ns"],
    },
    Fields { table: "link", required: &["from", "to", "rate_gbps"], optional: &["count", "delay_ns", "mtu"] },
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    frame_bytes: Option<usize>,
    #[serde(default)]
    switch: Vec<Spanned<SwitchEntry>>,
    #[serde(default)]
    host: Vec<Spanned<HostEntry>>,
    #[serde(default)]
    link: Vec<Spanned<LinkEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchEntry {
    name: String,
    count: Option<usize>,
    latency_ns: Option<u64>,
    buffer: Option<BufferEntry>,
    ecn: Option<EcnEntry>,
    pause: Option<PauseEntry>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(
    deny_unknown_fields,
    untagged,
    expecting = "a buffer is { shared_bytes = ..., alpha = ... } or { per_port_bytes = ... }"
)]
enum BufferEntry {
    Shared { shared_bytes: u64, alpha: Option<f64> },
    PerPort { per_port_bytes: u64 },
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct EcnEntry {
    min_bytes: Option<u64>,
    max_bytes: Option<u64>,
    probability: Option<f64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseEntry {
    off_bytes: u64,
    on_bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    count: Option<usize>,
    /// The switches that these hosts are joined to, in turn.
    switches: Names,
    rate_gbps: f64,
    delay_ns: Option<u64>,
    mtu: Option<usize>,
    transmit_latency_ns: Option<u64>,
    receive_latency_ns: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    /// Each node of `from` is joined to each of `to`.
    from: Names,
    to: Names,
    count: Option<usize>,
    rate_gbps: f64,
    delay_ns: Option<u64>,
    mtu: Option<usize>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged, expecting = "a name or a list of names")]
enum Names {
    One(String),
    Several(Vec<String>),
}

impl Names {
    fn all(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }
}

/// Reads a file, and remembers where each node stands in it.
struct TopologyReader<'a> {
    text: &'a str,
    topology: Topology,
    nodes: BTreeMap<String, NodeId>,
    /// The entry of each node, by the node's name.
    places: BTreeMap<String, Range<usize>>,
    /// The largest `mtu` of a host's link so far.
    mtu_of_hosts: usize,
}

impl Topology {
    /// Built-in topologies: their names, and their files, which have sources and comments.
    pub const BUILT_IN: [(&str, &str); 2] =
        [("cx4", include_str!("../topologies/cx4.toml")), ("cx5", include_str!("../topologies/cx5.toml"))];

    /// A cluster of nsdi19: a hundred hosts in five racks. `topologies/cx4.toml` has its sources and calibrations.
    pub fn cx4() -> Self {
        Self::parse(Self::BUILT_IN[0].1).expect("a test reads it")
    }

    /// Two hosts of another cluster of nsdi19, at an InfiniBand switch. `topologies/cx5.toml` has its sources and
    /// calibrations.
    pub fn cx5() -> Self {
        Self::parse(Self::BUILT_IN[1].1).expect("a test reads it")
    }

    /// Reads a topology: `docs/topologies.md` describes the format, and `topologies/cx4.toml` is an example.
    ///
    /// # Errors
    ///
    /// [`FileError`], with the line, and the field if the problem is in one.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let file: File = FileError::read(text, &FIELDS)?;
        let topology = Self { frame_bytes: file.frame_bytes.unwrap_or(FRAME_BYTES), ..Self::default() };
        let mut reader =
            TopologyReader { text, topology, nodes: BTreeMap::new(), places: BTreeMap::new(), mtu_of_hosts: 0 };
        file.switch.iter().try_for_each(|entry| reader.switch(entry))?;
        file.host.iter().try_for_each(|entry| reader.host(entry))?;
        file.link.iter().try_for_each(|entry| reader.links(entry))?;
        reader.topology.check().map_err(|error| reader.locate(&error))?;
        check_reachable(&reader.topology).map_err(|error| reader.locate(&error))?;
        Ok(reader.topology)
    }
}

/// Appends a node's number to its name if the entry has a `count`.
fn numbered(name: &str, count: Option<usize>, index: usize) -> String {
    if count.is_some() { format!("{name}{index}") } else { name.to_owned() }
}

impl TopologyReader<'_> {
    fn error(&self, entry: &Range<usize>, field: &str, problem: String) -> FileError {
        FileError::at(self.text, entry, field, problem)
    }

    fn count(&self, entry: &Range<usize>, count: Option<usize>, so_far: usize) -> Result<usize, FileError> {
        let count = count.unwrap_or(1);
        if count == 0 || so_far.saturating_add(count) > COUNT_MAX {
            let problem = format!("count cannot be {count}: at least 1, and at most {COUNT_MAX} in all");
            return Err(self.error(entry, "count", problem));
        }
        Ok(count)
    }

    fn add(&mut self, name: &str, node: NodeId, entry: &Range<usize>) -> Result<(), FileError> {
        if self.nodes.insert(name.to_owned(), node).is_some() {
            return Err(self.error(entry, "name", TopologyError::SameName { name: name.to_owned() }.to_string()));
        }
        self.places.insert(name.to_owned(), entry.clone());
        Ok(())
    }

    fn find(&self, name: &str, entry: &Range<usize>, field: &str) -> Result<NodeId, FileError> {
        self.nodes.get(name).copied().ok_or_else(|| {
            self.error(
                entry,
                field,
                format!("{field}: there is no node named `{name}`; nodes come before the links to them"),
            )
        })
    }

    fn switch(&mut self, entry: &Spanned<SwitchEntry>) -> Result<(), FileError> {
        let (span, entry) = (entry.span(), entry.get_ref());
        FileError::check_name(self.text, &span, &entry.name)?;
        for index in 0..self.count(&span, entry.count, self.topology.switches.len())? {
            let name = numbered(&entry.name, entry.count, index);
            self.add(&name, NodeId::Switch(SwitchId(self.topology.switches.len())), &span)?;
            self.topology.switch(SwitchSpec {
                name,
                latency_ns: entry.latency_ns.unwrap_or(SWITCH_LATENCY_NS),
                buffer: match entry.buffer {
                    None => BUFFER,
                    Some(BufferEntry::Shared { shared_bytes, alpha }) => {
                        Buffer::Shared { bytes: shared_bytes, alpha: alpha.unwrap_or(ALPHA) }
                    }
                    Some(BufferEntry::PerPort { per_port_bytes }) => Buffer::PerPort { bytes: per_port_bytes },
                },
                ecn: entry.ecn.map(|EcnEntry { min_bytes, max_bytes, probability }| Ecn {
                    min_bytes: min_bytes.unwrap_or(ECN.min_bytes),
                    max_bytes: max_bytes.unwrap_or(ECN.max_bytes),
                    probability: probability.unwrap_or(ECN.probability),
                }),
                pause: entry.pause.map(|PauseEntry { off_bytes, on_bytes }| Pause { off_bytes, on_bytes }),
            });
        }
        Ok(())
    }

    fn host(&mut self, entry: &Spanned<HostEntry>) -> Result<(), FileError> {
        let (span, entry) = (entry.span(), entry.get_ref());
        FileError::check_name(self.text, &span, &entry.name)?;
        let switches = entry.switches.all();
        if switches.is_empty() {
            return Err(self.error(&span, "switches", "switches: a host needs at least one".to_owned()));
        }
        for index in 0..self.count(&span, entry.count, self.topology.hosts.len())? {
            let name = &switches[index % switches.len()];
            let switch = self.find(name, &span, "switches")?;
            if let NodeId::Host(_) = switch {
                return Err(self.error(&span, "switches", format!("switches: `{name}` is a host")));
            }
            let name = numbered(&entry.name, entry.count, index);
            let host = NodeId::Host(HostId(self.topology.hosts.len()));
            self.add(&name, host, &span)?;
            self.topology.host(HostSpec {
                name,
                transmit_latency_ns: entry.transmit_latency_ns.unwrap_or(HOST_LATENCY_NS),
                receive_latency_ns: entry.receive_latency_ns.unwrap_or(HOST_LATENCY_NS),
            });
            let rate_gbps = entry.rate_gbps;
            let (delay_ns, mtu) = (entry.delay_ns.unwrap_or(HOST_DELAY_NS), entry.mtu.unwrap_or(MTU));
            self.link(LinkSpec { ends: [host, switch], rate_gbps, delay_ns, mtu }, &span)?;
        }
        Ok(())
    }

    fn links(&mut self, entry: &Spanned<LinkEntry>) -> Result<(), FileError> {
        let (span, entry) = (entry.span(), entry.get_ref());
        let rate_gbps = entry.rate_gbps;
        let (delay_ns, mtu) =
            (entry.delay_ns.unwrap_or(LINK_DELAY_NS), entry.mtu.unwrap_or(self.mtu_of_hosts.max(MTU)));
        for (field, names) in [("from", &entry.from), ("to", &entry.to)] {
            if names.all().is_empty() {
                return Err(self.error(&span, field, format!("{field} cannot be an empty list: at least one name")));
            }
        }
        for from in entry.from.all() {
            for to in entry.to.all() {
                let ends = [self.find(from, &span, "from")?, self.find(to, &span, "to")?];
                for _ in 0..self.count(&span, entry.count, self.topology.links.len())? {
                    self.link(LinkSpec { ends, rate_gbps, delay_ns, mtu }, &span)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a link. Links are checked one by one as they are read, since several can have the same ends.
    fn link(&mut self, link: LinkSpec, entry: &Range<usize>) -> Result<(), FileError> {
        if link.is_hosts() {
            self.mtu_of_hosts = self.mtu_of_hosts.max(link.mtu);
        }
        self.topology.check_link(self.topology.links.len(), &link, self.mtu_of_hosts).map_err(|error| match error {
            TopologyError::Field { field, .. } => self.error(entry, field, error.to_string()),
            _ => self.error(entry, "from", error.to_string()),
        })?;
        self.topology.link(link);
        Ok(())
    }

    /// Finds the line of an error that was found after the whole file was read.
    fn locate(&self, error: &TopologyError) -> FileError {
        let whole = 0..self.text.len();
        match error {
            TopologyError::Field { place, field, .. } => {
                let entry = self.places.get(place).unwrap_or(&whole);
                self.error(entry, field, error.to_string())
            }
            TopologyError::NoWay { to, .. } => {
                let entry = self.places.get(to).unwrap_or(&whole);
                self.error(entry, "switches", error.to_string())
            }
            TopologyError::SameName { .. } | TopologyError::Ends { .. } => FileError::new(1, &error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Problem;

    const SMALL: &str = r#"frame_bytes = 66

[[switch]]
name = "tor"
count = 2
latency_ns = 300
buffer = { shared_bytes = 1000, alpha = 1.0 }

[[host]]
name = "node"
count = 5
switches = ["tor0", "tor1"]
rate_gbps = 10.0
delay_ns = 100
mtu = 1500
transmit_latency_ns = 1
receive_latency_ns = 2

[[link]]
from = "tor0"
to = "tor1"
count = 3
rate_gbps = 40.0
delay_ns = 5
mtu = 1500
"#;

    #[test]
    fn nodes_are_numbered_and_dealt_out() {
        let topology = Topology::parse(SMALL).unwrap();
        let names: Vec<&str> = topology.hosts.iter().map(|host| &*host.name).collect();
        assert_eq!(names, ["node0", "node1", "node2", "node3", "node4"]);
        assert_eq!(topology.links.len(), 5 + 3);
        let of = |link: usize| topology.links[link].ends;
        assert_eq!(of(3), [NodeId::Host(HostId(3)), NodeId::Switch(SwitchId(1))]);
        assert_eq!(of(7), [NodeId::Switch(SwitchId(0)), NodeId::Switch(SwitchId(1))]);
    }

    #[test]
    fn the_clusters_of_the_paper_have_their_parts() {
        let topology = Topology::cx4();
        assert_eq!((topology.hosts.len(), topology.switches.len(), topology.links.len()), (100, 6, 100 + 25));
        let network = crate::Network::new(topology, 1).unwrap();
        assert_eq!(network.topology().find_host("node99"), Some(HostId(99)));
        let topology = Topology::cx5();
        assert_eq!((topology.hosts.len(), topology.switches.len(), topology.links.len()), (2, 1, 2));
        crate::Network::new(topology, 1).unwrap();
    }

    #[test]
    fn errors_name_the_line_and_the_field() {
        let error = |from: &str, to: &str| {
            assert!(SMALL.contains(from), "{from}");
            Topology::parse(&SMALL.replacen(from, to, 1)).unwrap_err().to_string()
        };
        assert_eq!(
            error("rate_gbps = 10.0", "rate_gbps = 0.0"),
            "line 13: the link of node0 and tor0: rate_gbps cannot be 0: 0.00001 to 4000"
        );
        assert_eq!(
            error("rate_gbps = 40.0", "rate_gbps = -1.0"),
            "line 23: the link of tor0 and tor1: rate_gbps cannot be -1: 0.00001 to 4000"
        );
        assert_eq!(error("alpha = 1.0", "alpha = 0.0"), "line 7: tor0: alpha cannot be 0: a number above 0");
        assert_eq!(
            error("to = \"tor1\"", "to = \"tor7\""),
            "line 21: to: there is no node named `tor7`; nodes come before the links to them"
        );
        assert!(error("delay_ns = 5", "delay_ns = -5").starts_with("line 24: delay_ns: invalid value"));
        assert!(error("delay_ns = 5", "delai_ns = 5").starts_with("line 24: unknown field `delai_ns`"));
        assert!(error("mtu = 1500", "mtu = 15").starts_with("line 15: the link of node0 and tor0: mtu cannot be 15"));
        assert_eq!(
            error("delay_ns = 5\nmtu = 1500", "delay_ns = 5\nmtu = 1499"),
            "line 25: the link of tor0 and tor1: mtu cannot be 1499: at least the largest mtu of a host's link"
        );
        // Of two entries with the same ends, the wrong one is named.
        let link = &SMALL[SMALL.find("[[link]]").unwrap()..];
        let twice = format!("{}\n{link}", SMALL.replacen("rate_gbps = 40.0", "rate_gbps = 0", 1));
        let twice = Topology::parse(&twice).unwrap_err().to_string();
        assert_eq!(twice, "line 23: the link of tor0 and tor1: rate_gbps cannot be 0: 0.00001 to 4000");
        assert!(error("count = 5", "count = 0").starts_with("line 11: count cannot be 0"));
        assert!(error("count = 5", "count = 99999999999").starts_with("line 11: count cannot be 99999999999"));
        assert!(
            error("name = \"node\"\ncount = 5", "name = \"tor0\"")
                .starts_with("line 10: there are two nodes named `tor0`")
        );
        assert_eq!(error("to = \"tor1\"", "to = \"tor0\""), "line 20: link 5 joins tor0 and tor0: they are one node");
        assert!(error("frame_bytes = 66", "frame_bytes = \"x\"").starts_with("line 1: "));
        let apart = SMALL.split_once("[[link]]").unwrap().0;
        let error = Topology::parse(apart).unwrap_err().to_string();
        assert_eq!(error, "line 12: there is no way from node0 to node1; join them with links");
    }

    #[test]
    fn all_fields_that_are_missing_or_unknown_are_told_at_once() {
        let text = "frame_byte = 1\n[[switch]]\nlatency = 3\n\n[[host]]\nname = \"a\"\nrate_gbps = 1\n[[host]]\n";
        let error = Topology::parse(text).unwrap_err();
        let lines: Vec<usize> = error.problems().iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [1, 2, 3, 5, 8]);
        let text = error.to_string();
        for part in [
            "line 1: unknown field `frame_byte`, expected one of `frame_bytes`, `switch`, `host`, `link`\n",
            "  line 2: missing field `name` of switch\n",
            "  line 3: unknown field `latency`, expected one of `name`, `count`, `latency_ns`, ",
            "  line 5: missing field `switches` of host\n",
            "  line 8: missing fields `name`, `switches`, `rate_gbps` of host",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn what_a_file_leaves_out_is_as_in_the_cluster_of_the_paper() {
        let text = r#"[[switch]]
name = "tor"
count = 2
ecn = {}
[[host]]
name = "node"
count = 2
switches = ["tor0", "tor1"]
rate_gbps = 25
[[link]]
from = "tor0"
to = "tor1"
rate_gbps = 100
"#;
        let (found, cx4) = (Topology::parse(text).unwrap(), Topology::cx4());
        assert_eq!(found.frame_bytes, cx4.frame_bytes);
        assert_eq!(found.switches[0], SwitchSpec { name: "tor0".to_owned(), ..cx4.switches[0].clone() });
        assert_eq!(found.hosts[0], cx4.hosts[0]);
        assert_eq!(LinkSpec { ends: cx4.links[0].ends, ..found.links[0] }, cx4.links[0]);
        assert_eq!(LinkSpec { ends: cx4.links[100].ends, ..found.links[2] }, cx4.links[100]);
        // A link between switches takes the largest packets that hosts send.
        let large = Topology::parse(&text.replacen("rate_gbps = 25", "rate_gbps = 25\nmtu = 8958", 1)).unwrap();
        assert_eq!(large.links[2].mtu, 8_958);
    }

    #[test]
    fn the_examples_of_the_reference_are_topologies() {
        let reference = include_str!("../../../../docs/topologies.md");
        let examples: Vec<&str> =
            reference.split("```toml\n").skip(1).map(|part| part.split("```").next().unwrap()).collect();
        assert!(examples.len() >= 2);
        for example in examples {
            crate::Network::new(Topology::parse(example).expect(example), 1).unwrap();
        }
        // And it names every field.
        for fields in FIELDS {
            for field in fields.required.iter().chain(fields.optional) {
                assert!(
                    reference.contains(&format!("`{field}`")) || reference.contains(&format!("[[{field}]]")),
                    "{field}"
                );
            }
        }
    }

    const SECOND_HOST: &str = r#"[[host]]
name = "more"
rate_gbps = 1
mtu = 1500
switches = "node0"
delay_ns = 1
transmit_latency_ns = 1
receive_latency_ns = 1
[[link]]"#;

    #[test]
    fn whatever_is_wrong_its_line_and_its_field_are_named() {
        for (from, to, line, part) in [
            ("frame_bytes = 66", "frame_bytes = 10001", 1, "frame_bytes cannot be 10001"),
            ("frame_bytes = 66", "frame_bytes = 66\nwhat = 1", 2, "unknown field `what`"),
            ("latency_ns = 300", "latency_ns = 1000000001", 6, "latency_ns cannot be 1000000001"),
            ("latency_ns = 300", "latency_ns = 99999999999999999999", 6, ""),
            ("shared_bytes = 1000", "shared_bytes = 0", 7, "shared_bytes cannot be 0"),
            ("shared_bytes = 1000", "shared_bytes = -1", 7, "buffer"),
            ("alpha = 1.0 }", "alpha = 1.0, beta = 1 }", 7, "buffer"),
            ("alpha = 1.0", "alpha = nan", 7, "alpha cannot be NaN"),
            ("alpha = 1.0", "alpha = inf", 7, "alpha cannot be inf"),
            ("alpha = 1.0 }", "alpha = 1.0 }\necn = { min_bytes = 2, max_bytes = 1, probability = 1 }", 8, "min_bytes"),
            (
                "alpha = 1.0 }",
                "alpha = 1.0 }\necn = { min_bytes = 1, max_bytes = 2, probability = nan }",
                8,
                "probability",
            ),
            (
                "alpha = 1.0 }",
                "alpha = 1.0 }\necn = { min_bytes = 1, max_bytes = 2, probability = 1.1 }",
                8,
                "probability",
            ),
            ("alpha = 1.0 }", "alpha = 1.0 }\npause = { off_bytes = 2, on_bytes = 2 }", 8, "on_bytes cannot be 2"),
            ("alpha = 1.0 }", "alpha = 1.0 }\npause = { off_bytes = 2, on_byte = 2 }", 8, "unknown field `on_byte`"),
            ("switches = [\"tor0\", \"tor1\"]", "switches = []", 12, "switches"),
            ("switches = [\"tor0\", \"tor1\"]", "switches = \"node0\"", 12, "switches: there is no node named `node0`"),
            ("[[link]]", SECOND_HOST, 23, "switches: `node0` is a host"),
            ("switches = [\"tor0\", \"tor1\"]", "switches = 7", 12, "a name or a list of names"),
            ("rate_gbps = 10.0", "rate_gbps = nan", 13, "rate_gbps cannot be NaN"),
            ("rate_gbps = 10.0", "rate_gbps = inf", 13, "rate_gbps cannot be inf"),
            ("rate_gbps = 10.0", "rate_gbps = 1e300", 13, "rate_gbps cannot be"),
            ("rate_gbps = 10.0", "rate_gbps = \"fast\"", 13, "rate_gbps: invalid type"),
            ("delay_ns = 100", "delay_ns = 1000000001", 14, "delay_ns cannot be 1000000001"),
            ("mtu = 1500", "mtu = 1048577", 15, "mtu cannot be 1048577"),
            ("transmit_latency_ns = 1", "transmit_latency_ns = 1000000001", 16, "transmit_latency_ns cannot be"),
            ("receive_latency_ns = 2", "receive_latency_ns = 1000000001", 17, "receive_latency_ns cannot be"),
            ("receive_latency_ns = 2", "receive_latency_ns = -2", 17, "receive_latency_ns: invalid value"),
            ("from = \"tor0\"", "from = \"tor9\"", 20, "no node named `tor9`"),
            ("from = \"tor0\"", "from = []", 20, "from cannot be an empty list"),
            ("count = 3", "count = 10001", 22, "count cannot be 10001"),
            ("name = \"node\"", "name = \"\"", 10, "name cannot be empty"),
            ("name = \"node\"", "name = \"\\u001b[2Jnode\"", 10, "name cannot be \\u{1b}[2Jnode: "),
            ("name = \"tor\"", "name = \"a\\nb\"", 4, "name cannot be a\\u{a}b: "),
            ("from = \"tor0\"", "from = \"\\u202etor\"", 20, "no node named `\\u{202e}tor`"),
            ("count = 3", "\"\\u001b[2J\" = 3", 22, "unknown field `\\u{1b}[2J`"),
        ] {
            assert!(SMALL.contains(from), "{from}");
            let error = Topology::parse(&SMALL.replacen(from, to, 1)).expect_err(to);
            let [Problem { line: problem_line, problem }] = error.problems() else { panic!("{to}: {error}") };
            assert!(*problem_line == line && problem.contains(part), "{to}: {error}");
            assert!(!error.to_string().contains(char::is_control), "{to}: {error:?}");
        }
        let long = SMALL.replacen("\"node\"", &format!("\"{}\"", "n".repeat(101)), 1);
        assert!(Topology::parse(&long).unwrap_err().to_string().starts_with("line 10: name cannot be that long"));
    }
}
