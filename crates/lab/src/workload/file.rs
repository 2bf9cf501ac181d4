//! Workload files, in TOML.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_spanned::Spanned;
use sinew_harness::units::counted;
use sinew_rpc::{Recovery, Timeout};
use sinew_sim::{Fields, FileError, HostId, NodeId, Topology};
use sinew_wire::{HEADER_LEN, PACKETS_MAX};

use super::place::{EntryPlace, MS_MAX};
use super::{Curve, Group, Sizes, Workload, congestion, faults};

/// Shortest time that is measured, in ms.
const MS_MIN: f64 = 0.001;
/// Shortest retransmission time-out, in us.
const TIMEOUT_US_MIN: f64 = 1.0;
const SELECTIVE_CREDITS_MAX: u16 = 64;
/// Shortest request, in bytes: a request states the length of its answer.
pub(super) const REQUEST_LEN_MIN: usize = 4;
const LEN_MAX: usize = 1 << 28;
const WINDOW_MAX: usize = 1 << 16;
const ENDPOINTS_MAX: usize = 20_000;
const SESSIONS_MAX: usize = 2_000_000;
/// Most bytes of messages in flight at a time, which the simulating machine has to hold.
const IN_FLIGHT_MAX: u64 = 8 << 30;
/// Bytes that each call takes beside its data: headers of two buffers, rounding of their sizes, and the client's
/// record.
const PER_CALL: u64 = 512;
/// Most calls that all sessions together have room for.
const SLOTS_MAX: usize = 8 * SESSIONS_MAX;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    warm_up_ms: f64,
    duration_ms: f64,
    #[serde(default = "default_credits")]
    credits: u16,
    #[serde(default = "default_slots")]
    slots: u16,
    #[serde(default)]
    recovery: RecoveryEntry,
    #[serde(default)]
    timeout: TimeoutEntry,
    #[serde(default = "default_timeout_us")]
    timeout_us: f64,
    congestion: Option<Spanned<congestion::Entry>>,
    #[serde(default)]
    clients: Vec<Spanned<GroupEntry>>,
    #[serde(default)]
    faults: Vec<Spanned<faults::Entry>>,
}

/// Fields of a workload. All missing ones are reported at once.
const FIELDS: [Fields; 4] = [
    Fields {
        table: "",
        required: &["duration_ms"],
        optional: &[
            "warm_up_ms",
            "credits",
            "slots",
            "recovery",
            "timeout",
            "timeout_us",
            "congestion",
            "clients",
            "faults",
        ],
    },
    congestion::FIELDS,
    Fields {
        table: "clients",
        required: &["name", "hosts", "servers", "request_bytes", "response_bytes"],
        optional: &["endpoints", "server_endpoints", "window", "calls_per_s", "start_ms", "stop_ms"],
    },
    faults::FIELDS,
];

fn default_credits() -> u16 {
    sinew_rpc::Config::default().credits
}

fn default_slots() -> u16 {
    sinew_rpc::Config::default().slots
}

fn default_timeout_us() -> f64 {
    sinew_rpc::Config::default().retransmit_timeout_ns as f64 / 1e3
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RecoveryEntry {
    #[default]
    GoBackN,
    Selective,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TimeoutEntry {
    #[default]
    Adaptive,
    Fixed,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupEntry {
    name: String,
    hosts: Hosts,
    #[serde(default = "one")]
    endpoints: usize,
    servers: Hosts,
    #[serde(default = "one")]
    server_endpoints: usize,
    request_bytes: SizesEntry,
    response_bytes: SizesEntry,
    #[serde(default = "one")]
    window: usize,
    calls_per_s: Option<f64>,
    #[serde(default)]
    start_ms: f64,
    stop_ms: Option<f64>,
}

fn one() -> usize {
    1
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    untagged,
    expecting = "hosts are a name, a list of names, or { from = \"NAME\", count = ... }"
)]
enum Hosts {
    One(String),
    Several(Vec<String>),
    Run { from: String, count: usize },
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    untagged,
    expecting = "a number of bytes, { from = ..., to = ... }, { file = ... }, or a list of { bytes = ..., weight = ... } is needed"
)]
enum SizesEntry {
    Fixed(usize),
    Uniform { from: usize, to: usize },
    File { file: String },
    Mixed(Vec<SizeEntry>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SizeEntry {
    bytes: usize,
    weight: f64,
}

impl Workload {
    /// Reads a workload for a topology, as `docs/workloads.md` describes it. The file must not name other files.
    ///
    /// # Errors
    ///
    /// [`FileError`], with the line, and the field if one is to blame.
    pub fn parse(text: &str, topology: &Topology) -> Result<Self, FileError> {
        Self::parse_with(text, topology, &mut |_| Err("no other file is read here".to_owned()))
    }

    /// Same as [`Self::parse`]; `read` reads the files that the workload names, or returns why it cannot.
    ///
    /// # Errors
    ///
    /// [`FileError`], with the line, and the field if one is to blame; for a file that is named, with both lines.
    pub fn parse_with(text: &str, topology: &Topology, read: ReadFile<'_>) -> Result<Self, FileError> {
        let file: File = FileError::read(text, &FIELDS)?;
        let top = EntryPlace { text, entry: 0..0 };
        let workload = Self {
            warm_up_ns: top.time_ns("warm_up_ms", file.warm_up_ms, 0.0)?,
            duration_ns: top.time_ns("duration_ms", file.duration_ms, MS_MIN)?,
            credits: file.credits,
            slots: file.slots,
            recovery: match file.recovery {
                RecoveryEntry::GoBackN => Recovery::GoBackN,
                RecoveryEntry::Selective => Recovery::SELECTIVE,
            },
            timeout: match file.timeout {
                TimeoutEntry::Adaptive => Timeout::Adaptive,
                TimeoutEntry::Fixed => Timeout::Fixed,
            },
            retransmit_timeout_ns: (file.timeout_us * 1e3).round() as u64,
            congestion: file.congestion.as_ref().map_or(Ok(None), |entry| congestion::read(text, entry))?,
            groups: Vec::new(),
            faults: Vec::new(),
        };
        top.need(file.credits > 0, "credits", "0", "a session needs one, at least")?;
        if file.recovery == RecoveryEntry::Selective {
            let (expected, most) = ("64 at most with selective retransmission", SELECTIVE_CREDITS_MAX);
            top.need(file.credits <= most, "credits", &file.credits.to_string(), expected)?;
        }
        let is_timeout = (TIMEOUT_US_MIN..=MS_MAX * 1e3).contains(&file.timeout_us);
        let expected = format!("{TIMEOUT_US_MIN} to {} us", MS_MAX * 1e3);
        top.need(is_timeout, "timeout_us", &file.timeout_us.to_string(), &expected)?;
        let is_slots = file.slots.is_power_of_two() && file.slots <= 64;
        top.need(is_slots, "slots", &file.slots.to_string(), "a power of two, 64 at most")?;
        if file.clients.is_empty() {
            return Err(FileError::new(1, "there are no clients: begin a group of them with [[clients]]"));
        }
        let mut reader = Reader { topology, workload, names: BTreeSet::new(), endpoints: 0, sessions: 0, in_flight: 0 };
        file.clients.iter().try_for_each(|entry| reader.group(text, entry, read))?;
        let faults = faults::read(text, &file.faults, topology, reader.workload.end_ns())?;
        if let Some(entry) = &file.congestion {
            congestion::check(text, entry, topology)?;
        }
        Ok(Self { faults, ..reader.workload })
    }
}

/// Reads a file that a workload names.
pub type ReadFile<'a> = &'a mut dyn FnMut(&str) -> Result<String, String>;

fn sizes_of(
    place: &EntryPlace<'_>,
    field: &str,
    entry: &SizesEntry,
    least: usize,
    read: ReadFile<'_>,
) -> Result<Sizes, FileError> {
    let len = |len: usize| place.number(field, len, least..=LEN_MAX);
    match entry {
        SizesEntry::Fixed(bytes) => Ok(Sizes::Fixed(len(*bytes)?)),
        SizesEntry::Uniform { from, to } => {
            let value = format!("from {from} to {to} bytes");
            place.need(from <= to, field, &value, "the shortest comes first")?;
            Ok(Sizes::Uniform(len(*from)?, len(*to)?))
        }
        SizesEntry::Mixed(entries) => {
            place.need(!entries.is_empty(), field, "an empty list", "a length, at least")?;
            let one = |SizeEntry { bytes, weight }: &SizeEntry| {
                let is_weight = *weight > 0.0 && *weight <= 1e9;
                place.need(is_weight, field, &format!("of weight {weight}"), "more than 0, 10^9 at most")?;
                Ok((len(*bytes)?, *weight))
            };
            Ok(Sizes::Mixed(entries.iter().map(one).collect::<Result<_, FileError>>()?))
        }
        SizesEntry::File { file } => {
            let error = |problem: &dyn std::fmt::Display| place.error(field, format!("{field}: {file}: {problem}"));
            let curve =
                Curve::parse(&read(file).map_err(|problem| error(&problem))?).map_err(|problem| error(&problem))?;
            let sizes = Sizes::Curve(curve);
            let (shortest, longest) = sizes.bounds();
            len(shortest)?;
            len(longest)?;
            Ok(sizes)
        }
    }
}

fn hosts_of(place: &EntryPlace<'_>, field: &str, hosts: &Hosts, topology: &Topology) -> Result<Vec<HostId>, FileError> {
    let find = |name: &str| {
        let found = topology.find_host(name);
        found.ok_or_else(|| place.error(field, format!("{field}: the topology has no host named `{name}`")))
    };
    match hosts {
        Hosts::One(name) => Ok(vec![find(name)?]),
        Hosts::Several(names) => {
            place.need(!names.is_empty(), field, "an empty list", "a host, at least")?;
            let hosts: Vec<HostId> = names.iter().map(|name| find(name)).collect::<Result<_, _>>()?;
            let twice = hosts.iter().zip(names).enumerate().find(|(at, (host, _))| hosts[..*at].contains(host));
            twice.map_or(Ok(hosts.clone()), |(_, (_, name))| {
                Err(place.error(field, format!("{field}: `{name}` is there twice")))
            })
        }
        Hosts::Run { from, count } => {
            let first = find(from)?.0;
            let left = topology.hosts.len() - first;
            let expected = format!("the topology has {} from {from} on", counted(left, "host"));
            place.need((1..=left).contains(count), field, &counted(*count, "host"), &expected)?;
            Ok((first..first + count).map(HostId).collect())
        }
    }
}

struct Reader<'a> {
    topology: &'a Topology,
    workload: Workload,
    names: BTreeSet<String>,
    endpoints: usize,
    sessions: usize,
    in_flight: u64,
}

/// Bytes of data that fit in a packet on any host's link.
fn data_per_packet(topology: &Topology) -> usize {
    let of_host = topology.links.iter().filter(|link| link.ends.iter().any(|end| matches!(end, NodeId::Host(_))));
    of_host.map(|link| link.mtu).min().unwrap_or(0).saturating_sub(HEADER_LEN)
}

impl Reader<'_> {
    fn group(&mut self, text: &str, entry: &Spanned<GroupEntry>, read: ReadFile<'_>) -> Result<(), FileError> {
        let (place, entry) = (EntryPlace { text, entry: entry.span() }, entry.get_ref());
        FileError::check_name(text, &place.entry, &entry.name)?;
        place.need(self.names.insert(entry.name.clone()), "name", &entry.name, "another group has that name")?;
        let end_ms = self.workload.end_ns() as f64 / 1e6;
        let stop_ms = entry.stop_ms.unwrap_or(end_ms);
        let group = Group {
            name: entry.name.clone(),
            hosts: hosts_of(&place, "hosts", &entry.hosts, self.topology)?,
            endpoints: place.number("endpoints", entry.endpoints, 1..=ENDPOINTS_MAX)?,
            servers: hosts_of(&place, "servers", &entry.servers, self.topology)?,
            server_endpoints: place.number("server_endpoints", entry.server_endpoints, 1..=ENDPOINTS_MAX)?,
            request: sizes_of(&place, "request_bytes", &entry.request_bytes, REQUEST_LEN_MIN, read)?,
            response: sizes_of(&place, "response_bytes", &entry.response_bytes, 0, read)?,
            window: place.number("window", entry.window, 1..=WINDOW_MAX)?,
            calls_per_s: entry.calls_per_s,
            start_ns: place.time_ns("start_ms", entry.start_ms, 0.0)?,
            stop_ns: entry.stop_ms.map_or(Ok(self.workload.end_ns()), |ms| place.time_ns("stop_ms", ms, 0.0))?,
        };
        if let Some(rate) = group.calls_per_s {
            place.need((1e-3..=1e9).contains(&rate), "calls_per_s", &rate.to_string(), "0.001 to 1000000000")?;
        }
        let expected = format!("before the end, at {end_ms} ms");
        place.need(entry.start_ms < end_ms, "start_ms", &entry.start_ms.to_string(), &expected)?;
        place.need(entry.start_ms < stop_ms, "stop_ms", &stop_ms.to_string(), "later than start_ms")?;
        if let [server] = group.servers[..]
            && group.hosts.contains(&server)
        {
            let name = &self.topology.hosts[server.0].name;
            let problem = format!("servers: {name} has nobody to call but itself; give its group another server");
            return Err(place.error("servers", problem));
        }
        let data = data_per_packet(self.topology);
        let most = data.saturating_mul(PACKETS_MAX);
        for (field, sizes) in [("request_bytes", &group.request), ("response_bytes", &group.response)] {
            let len = sizes.bounds().1;
            let expected = format!("{most} at most, which are {PACKETS_MAX} packets of {data} bytes");
            place.need(len <= most, field, &len.to_string(), &expected)?;
        }
        self.count(&place, &group)?;
        self.workload.groups.push(group);
        Ok(())
    }

    /// Checks that the simulating machine can hold the group, beside those before it.
    fn count(&mut self, place: &EntryPlace<'_>, group: &Group) -> Result<(), FileError> {
        let clients = group.hosts.len().saturating_mul(group.endpoints);
        let servers = group.servers.len().saturating_mul(group.server_endpoints);
        self.endpoints = self.endpoints.saturating_add(clients).saturating_add(servers);
        let expected = format!("{ENDPOINTS_MAX} in all, servers' included, at most");
        place.need(self.endpoints <= ENDPOINTS_MAX, "endpoints", &format!("{clients} in all"), &expected)?;
        self.sessions = self.sessions.saturating_add(clients.saturating_mul(group.servers.len()));
        let expected = format!("there are {SESSIONS_MAX} sessions at most");
        let endpoints = counted(clients, "endpoint");
        place.need(self.sessions <= SESSIONS_MAX, "servers", &format!("for {endpoints}"), &expected)?;
        let slots = self.sessions.saturating_mul(self.workload.slots.into());
        let slots_each = counted(self.workload.slots, "slot");
        let expected = format!("with {slots_each} each there are {SLOTS_MAX} of them at most");
        place.need(slots <= SLOTS_MAX, "servers", &format!("for {endpoints}"), &expected)?;
        let per_call = (group.request.bounds().1 + group.response.bounds().1) as u64 + PER_CALL;
        let in_flight = (clients as u64).saturating_mul(group.window as u64).saturating_mul(per_call);
        self.in_flight = self.in_flight.saturating_add(in_flight);
        let value = format!("{} for {endpoints}", group.window);
        let expected = format!("{} GB of messages would be in flight, 8 at most", self.in_flight >> 30);
        place.need(self.in_flight <= IN_FLIGHT_MAX, "window", &value, &expected)
    }
}

#[cfg(test)]
mod tests {
    use sinew_rpc::Algorithm;

    use super::*;

    const SMALL: &str = r#"warm_up_ms = 1
duration_ms = 2
credits = 8
slots = 8

[congestion]
algorithm = "timely"
low_us = 30
high_us = 300
cut = 0.5
step_mbps = 80

[[clients]]
name = "some"
hosts = { from = "node1", count = 3 }
endpoints = 2
servers = ["node0", "node4"]
request_bytes = 32
response_bytes = { from = 0, to = 64 }
window = 4
calls_per_s = 1000
start_ms = 0.5
stop_ms = 2.5

[[clients]]
name = "others"
hosts = "node0"
servers = "node1"
request_bytes = [{ bytes = 4, weight = 1 }, { bytes = 100, weight = 2.5 }]
response_bytes = 1
window = 1
"#;

    fn read(text: &str) -> Result<Workload, FileError> {
        Workload::parse(text, &Topology::star(5, 10.0, 100, 1500))
    }

    #[test]
    fn a_file_is_what_it_says() {
        let workload = read(SMALL).unwrap();
        let times = (workload.warm_up_ns, workload.duration_ns, workload.end_ns(), workload.credits);
        assert_eq!(times, (1_000_000, 2_000_000, 3_000_000, 8));
        let Algorithm::Timely(timely) = workload.congestion.unwrap().algorithm else { panic!("it is Timely") };
        assert_eq!((timely.low_ns, timely.high_ns, timely.cut), (30_000, 300_000, 0.5));
        assert_eq!((timely.step_bytes_per_s, timely.is_patched), (10e6, true));
        let original = read(&SMALL.replacen("cut = 0.5", "cut = 0.8\npatched = false", 1)).unwrap();
        let Algorithm::Timely(timely) = original.congestion.unwrap().algorithm else { panic!("it is Timely") };
        assert_eq!((timely.cut, timely.is_patched), (0.8, false));
        let timely = "\"timely\"\nlow_us = 30\nhigh_us = 300\ncut = 0.5\nstep_mbps = 80";
        let swift = SMALL.replacen(timely, "\"swift\"\npatched = true", 1);
        let error = read(&swift).unwrap_err().to_string();
        assert_eq!(error, "line 8: patched is no parameter of this algorithm");
        let [some, others] = &workload.groups[..] else { panic!("two groups") };
        assert_eq!((&some.hosts[..], &some.servers[..]), (&[1, 2, 3].map(HostId)[..], &[0, 4].map(HostId)[..]));
        assert_eq!((some.endpoints, some.server_endpoints, some.window), (2, 1, 4));
        assert_eq!((some.start_ns, some.stop_ns, some.calls_per_s), (500_000, 2_500_000, Some(1000.0)));
        assert_eq!((&some.request, &some.response), (&Sizes::Fixed(32), &Sizes::Uniform(0, 64)));
        assert_eq!((others.start_ns, others.stop_ns, others.calls_per_s), (0, 3_000_000, None));
        assert_eq!(others.request, Sizes::Mixed(vec![(4, 1.0), (100, 2.5)]));
    }

    #[test]
    fn losses_are_made_up_for_as_the_file_says() {
        let of = |lines: &str| {
            let workload = read(&SMALL.replacen("slots = 8", &format!("slots = 8\n{lines}"), 1))?;
            Ok::<_, FileError>((workload.recovery, workload.timeout, workload.retransmit_timeout_ns))
        };
        let usual = sinew_rpc::Config::default();
        assert_eq!(of("").unwrap(), (usual.recovery, usual.timeout, usual.retransmit_timeout_ns));
        let all = "recovery = \"selective\"\ntimeout = \"fixed\"\ntimeout_us = 500.5";
        assert_eq!(of(all).unwrap(), (Recovery::SELECTIVE, Timeout::Fixed, 500_500));
        assert!(of("timeout_us = 1").is_ok());
        let error = |lines| of(lines).unwrap_err().to_string();
        assert_eq!(error("timeout_us = 0.9"), "line 5: timeout_us cannot be 0.9: 1 to 60000000 us");
        assert!(error("recovery = \"luck\"").starts_with("line 5: unknown variant `luck`"));
        for (credits, is_good) in [(64, true), (65, false)] {
            let text = SMALL.replacen("credits = 8", &format!("credits = {credits}\nrecovery = \"selective\""), 1);
            assert_eq!(read(&text).is_ok(), is_good, "{credits}");
        }
    }

    const SIZES: &str = include_str!("../../workloads/sizes.txt");

    fn read_with_sizes(text: &str, topology: &Topology) -> Result<Workload, FileError> {
        Workload::parse_with(text, topology, &mut |name| match name {
            "sizes.txt" => Ok(SIZES.to_owned()),
            _ => Err("no such file".to_owned()),
        })
    }

    #[test]
    fn the_examples_are_workloads_for_the_cluster_of_the_paper() {
        let incast = Workload::parse(include_str!("../../workloads/incast.toml"), &Topology::cx4()).unwrap();
        assert_eq!(incast.groups.iter().map(|group| group.hosts.len()).collect::<Vec<_>>(), [20, 4]);
        let failure = read_with_sizes(include_str!("../../workloads/failure.toml"), &Topology::cx4()).unwrap();
        assert_eq!((failure.faults.len(), failure.groups[0].request.bounds()), (2, (64, 1 << 20)));
    }

    #[test]
    fn the_examples_of_the_reference_are_workloads_and_it_names_every_field() {
        let reference = include_str!("../../../../docs/workloads.md");
        let examples: Vec<&str> =
            reference.split("```toml\n").skip(1).map(|part| part.split("```").next().unwrap()).collect();
        assert_eq!(examples.len(), 2);
        for example in examples {
            read_with_sizes(example, &Topology::cx4()).expect(example);
        }
        for fields in FIELDS {
            for field in fields.required.iter().chain(fields.optional) {
                let tables =
                    [format!("[[{field}]]"), format!("[{field}]"), format!("`{field}`"), format!("`{field} = ")];
                assert!(tables.iter().any(|name| reference.contains(name)), "{field}");
            }
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_of_sizes_is_told_with_both_lines() {
        let text = SMALL.replacen("request_bytes = 32", "request_bytes = { file = \"sizes.txt\" }", 1);
        let topology = Topology::star(5, 10.0, 100, 1500);
        let error = |sizes: Result<&str, &str>| {
            let mut read = |_: &str| sizes.map(str::to_owned).map_err(str::to_owned);
            Workload::parse_with(&text, &topology, &mut read).unwrap_err().to_string()
        };
        assert_eq!(error(Err("no such file")), "line 18: request_bytes: sizes.txt: no such file");
        assert!(error(Ok("4 50\nx 100")).starts_with("line 18: request_bytes: sizes.txt: line 2: `x` is no number"));
        assert!(error(Ok("3 50\n5 100")).starts_with("line 18: request_bytes cannot be 3: 4 to 268435456"));
        assert!(error(Ok("4 50\n268435457 100")).starts_with("line 18: request_bytes cannot be 268435457: 4 to"));
        assert!(error(Ok("4 50\n99999999 100")).starts_with("line 18: request_bytes cannot be 99999999: "));
        assert!(read(&text).unwrap_err().to_string().starts_with("line 18: request_bytes: sizes.txt: no other file"));
    }

    #[test]
    fn dcqcn_is_refused_where_nothing_is_marked_and_warned_of_where_not_all_is() {
        let text = SMALL.replacen("\"timely\"\nlow_us = 30\nhigh_us = 300\ncut = 0.5\nstep_mbps = 80", "\"dcqcn\"", 1);
        let mut topology = Topology::star(5, 10.0, 100, 1500);
        let error = Workload::parse(&text, &topology).unwrap_err().to_string();
        assert!(error.starts_with("line 7: algorithm cannot be dcqcn here: it goes by marks"), "{error}");
        assert!(error.contains("give its switches ecn = {}, or choose timely or swift"), "{error}");
        topology.switch(sinew_sim::SwitchSpec { name: "silent".to_owned(), ..topology.switches[0].clone() });
        topology.switches[0].ecn = Some(sinew_sim::Ecn { min_bytes: 1, max_bytes: 2, probability: 1.0 });
        let workload = Workload::parse(&text, &topology).unwrap();
        let [warning] = &workload.warnings(&topology)[..] else { panic!("one warning") };
        assert!(warning.contains("silent mark nothing") && warning.contains("ecn = {}"), "{warning}");
        assert!(read(SMALL).unwrap().warnings(&topology).is_empty(), "Timely goes by round trips");
        topology.switches[1].ecn = topology.switches[0].ecn;
        assert!(workload.warnings(&topology).is_empty());
    }

    #[test]
    fn limits_hold_on_both_sides() {
        for (from, good, bad) in [
            ("warm_up_ms = 1", "warm_up_ms = 0", "warm_up_ms = -0.1"),
            ("duration_ms = 2", "duration_ms = 60000", "duration_ms = 60000.1"),
            ("credits = 8", "credits = 1", "credits = 0"),
            ("slots = 8", "slots = 64", "slots = 128"),
            ("cut = 0.5", "cut = 1", "cut = 1.01"),
            ("low_us = 30", "low_us = 299", "low_us = 300"),
            ("count = 3", "count = 4", "count = 5"),
            ("endpoints = 2", "endpoints = 1", "endpoints = 0"),
            ("request_bytes = 32", "request_bytes = 4", "request_bytes = 3"),
            // This is the most packets that a message can have, of 1,476 bytes each.
            ("request_bytes = 32", "request_bytes = 96731136", "request_bytes = 96731137"),
            ("from = 0, to = 64", "from = 64, to = 64", "from = 65, to = 64"),
            ("window = 4", "window = 65536", "window = 65537"),
            ("calls_per_s = 1000", "calls_per_s = 1e9", "calls_per_s = 1.1e9"),
            ("start_ms = 0.5", "start_ms = 2.4", "start_ms = 2.5"),
        ] {
            assert!(SMALL.contains(from), "{from}");
            assert!(read(&SMALL.replacen(from, good, 1)).is_ok(), "{good}");
            assert!(read(&SMALL.replacen(from, bad, 1)).is_err(), "{bad}");
        }
        // A window of four of the longest requests, for six endpoints, takes 2 GB; a window of 24 takes 12 GB.
        let large = SMALL.replacen("request_bytes = 32", "request_bytes = 96731136", 1);
        assert!(read(&large).is_ok());
        let error = read(&large.replacen("window = 4", "window = 24", 1)).unwrap_err().to_string();
        assert_eq!(
            error,
            "line 20: window cannot be 24 for 6 endpoints: 12 GB of messages would be in flight, 8 at most"
        );
    }

    #[test]
    fn errors_name_the_line_and_the_field() {
        let error = |from: &str, to: &str| {
            assert!(SMALL.contains(from), "{from}");
            read(&SMALL.replacen(from, to, 1)).unwrap_err().to_string()
        };
        for (from, to, expected) in [
            ("duration_ms = 2", "duration_ms = 0", "line 2: duration_ms cannot be 0: 0.001 to 60000 ms"),
            ("duration_ms = 2", "duration_ms = nan", "line 2: duration_ms cannot be NaN"),
            ("duration_ms = 2", "", "line 1: missing field `duration_ms`"),
            ("credits = 8", "credits = -8", "line 3: credits: invalid value: integer `-8`, expected u16"),
            ("credits = 8", "credits = 99999", "line 3: credits: invalid value: integer `99999`, expected u16"),
            ("credits = 8", "credit = 8", "line 3: unknown field `credit`"),
            ("algorithm = \"timely\"", "algorithm = \"luck\"", "line 7: unknown variant `luck`"),
            ("low_us = 30", "low_us = 0", "line 8: low_us cannot be 0: 0.1 to 1000000"),
            ("low_us = 30", "target_us = 30", "line 8: target_us is no parameter of this algorithm"),
            ("\"timely\"", "\"swift\"", "line 8: low_us is no parameter of this algorithm"),
            ("step_mbps = 80", "step_mbps = inf", "line 11: step_mbps cannot be inf"),
            ("name = \"others\"", "name = \"some\"", "line 26: name cannot be some: another group has that name"),
            ("name = \"some\"", "name = \" \"", "line 14: name cannot be empty"),
            ("name = \"some\"", "name = \"\\u001b[2J\"", "line 14: name cannot be \\u{1b}[2J: characters that"),
            ("\"node0\", \"node4\"", "\"\\rnode9\"", "line 17: servers: the topology has no host named `\\u{d}node9`"),
            ("warm_up_ms = 1", "warm_up_ms = -inf", "line 1: warm_up_ms cannot be -inf"),
            ("credits = 8", "timeout_us = nan", "line 3: timeout_us cannot be NaN"),
            ("slots = 8", "slots = 3", "line 4: slots cannot be 3: a power of two"),
            ("cut = 0.5", "cut = nan", "line 10: cut cannot be NaN"),
            ("cut = 0.5", "patched = 1", "line 10: patched: invalid type: integer `1`, expected a boolean"),
            ("count = 3", "count = -3", "line 15: hosts are a name"),
            ("from = 0, to = 64", "from = 0, to = 64, by = 2", "line 19: a number of bytes"),
            ("from = 0, to = 64", "from = 0, to = 268435457", "line 19: response_bytes cannot be 268435457"),
            ("weight = 2.5", "weight = inf", "line 29: request_bytes cannot be of weight inf"),
            ("window = 4", "window = 4\nwindows = 4", "line 21: unknown field `windows`"),
            ("calls_per_s = 1000", "calls_per_s = nan", "line 21: calls_per_s cannot be NaN"),
            ("stop_ms = 2.5", "stop_ms = 60001", "line 23: stop_ms cannot be 60001"),
            ("servers = \"node1\"", "servers = { from = \"node1\", count = 0 }", "line 28: servers cannot be 0 hosts"),
            ("hosts = \"node0\"", "hosts = \"node9\"", "line 27: hosts: the topology has no host named `node9`"),
            ("hosts = \"node0\"", "hosts = []", "line 27: hosts cannot be an empty list"),
            ("hosts = \"node0\"", "hosts = 3", "line 27: hosts are a name, a list of names"),
            ("count = 3", "count = 9", "line 15: hosts cannot be 9 hosts: the topology has 4 hosts from node1 on"),
            ("\"node0\", \"node4\"", "\"node0\", \"node0\"", "line 17: servers: `node0` is there twice"),
            ("servers = \"node1\"", "servers = \"node0\"", "line 28: servers: node0 has nobody to call but itself"),
            ("request_bytes = 32", "request_bytes = -1", "line 18: a number of bytes, "),
            ("weight = 1 ", "weight = 0 ", "line 29: request_bytes cannot be of weight 0"),
            ("window = 4", "window = 0", "line 20: window cannot be 0: 1 to 65536"),
            ("calls_per_s = 1000", "calls_per_s = 0", "line 21: calls_per_s cannot be 0"),
            ("calls_per_s = 1000", "calls_per_s = -1", "line 21: calls_per_s cannot be -1"),
            ("start_ms = 0.5", "start_ms = 3", "line 22: start_ms cannot be 3: before the end, at 3 ms"),
            ("stop_ms = 2.5", "stop_ms = 0.5", "line 23: stop_ms cannot be 0.5: later than start_ms"),
            ("endpoints = 2", "endpoints = 20000", "line 16: endpoints cannot be 60000 in all: 20000 in all"),
        ] {
            let found = error(from, to);
            assert!(found.starts_with(expected), "{to}: {found}");
        }
        assert!(read("duration_ms = 1").unwrap_err().to_string().starts_with("line 1: there are no clients"));
        assert!(read("what").is_err());
    }
}
