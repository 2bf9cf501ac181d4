//! Reads NIC profiles from TOML files, in which every parameter has its source.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::fields::{FIELDS, Range, Value};
use super::profile::{Caches, Core, Framing, Link, Parameter, Pcie, Profile, Registration, Units, WqeLayout};
use super::wqe::WQE_MAX;
use crate::file::{Fields, FileError, Problem, shortened};
use crate::pcie::{Generation, PcieLink};

/// The tables of a file.
const TABLES: [&str; 7] = ["pcie", "wqe", "units", "caches", "link", "core", "registration"];

/// Fields of a file outside its tables.
const HEAD: [&str; 3] = ["name", "title", "is_validated"];

/// Range of `scale`: how many times as long another NIC's times may be.
const SCALE: Range = Range::Real(0.01, 100.0);

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../nics/", $name, ".toml")))),*]
    };
}

/// The built-in files, by name. A file is based only on files before it.
const FILES: [(&str, &str); 10] =
    built_in!["cx3", "cib", "cx", "cx3-susitna", "cx3-susitna-roce", "cx3-roce10", "cx4", "cx5", "cx6-dx", "cx7",];

impl Profile {
    /// Names of the built-in profiles.
    pub const BUILT_IN: [&str; FILES.len()] = {
        let mut names = [""; FILES.len()];
        let mut index = 0;
        while index < FILES.len() {
            names[index] = FILES[index].0;
            index += 1;
        }
        names
    };

    /// The file of a built-in profile, with its comments.
    pub fn built_in_file(name: &str) -> Option<&'static str> {
        FILES.into_iter().find(|(known, _)| *known == name).map(|(_, text)| text)
    }

    /// A built-in profile.
    pub fn built_in(name: &str) -> Option<Self> {
        let read = |text| Self { is_built_in: true, ..Self::read(text).expect("a test reads all built-in files") };
        Self::built_in_file(name).map(read)
    }

    /// Reads a profile in the format of the files in `nics`: each parameter is
    /// `name = { value = ..., source = "..." }`. With `based_on = "cx3"`, fields that a file leaves out are taken from
    /// there; with `scale` as well, the times of that NIC's units are multiplied by it.
    ///
    /// # Errors
    ///
    /// [`FileError`], with the line and the field of everything that is missing, unknown or impossible.
    pub fn read(text: &str) -> Result<Self, FileError> {
        let file = FileError::parse(text)?;
        let file = file.get_ref();
        let mut reader = ProfileReader { text, problems: Vec::new() };
        let base = reader.base(file);
        reader.check_fields(file, file.contains_key("based_on"));
        let mut profile = Self { is_built_in: false, ..base.clone().unwrap_or_else(blank) };
        profile.name = reader.head(file, "name").unwrap_or_default();
        profile.title = reader.head(file, "title").unwrap_or_default();
        if profile.name.contains(|char: char| char.is_whitespace()) {
            reader.problem_at(file, "name", "name cannot have spaces: it is one word, for use in options".to_owned());
        }
        if let Some((_, value)) = file.get_key_value("is_validated") {
            match value.get_ref() {
                DeValue::Boolean(is_validated) => profile.is_validated = *is_validated,
                _ => reader.problem_at(file, "is_validated", "is_validated: true or false".to_owned()),
            }
        }
        let mut sources = base.map_or_else(BTreeMap::new, |base| reader.scaled(file, &base, &mut profile));
        for field in FIELDS {
            let Some(DeValue::Table(table)) = file.get(field.table).map(|table| table.get_ref()) else { continue };
            if let Some((key, entry)) = table.get_key_value(field.name) {
                let path = field.path();
                let parameter = reader.parameter(&path, key.span().start, entry.get_ref());
                let Some((value, source)) = parameter else { continue };
                match field.set(&mut profile, value) {
                    Ok(()) => _ = sources.insert(path, source),
                    Err(problem) => reader.problem(key.span().start, problem),
                }
            }
        }
        reader.check_whole(file, &profile);
        FileError::of(reader.problems)?;
        profile.parameters = FIELDS
            .iter()
            .map(|field| {
                let (path, value) = (field.path(), (field.slot)(&mut profile).text());
                let source = sources.remove(&path).unwrap_or_default();
                Parameter { path, value, source }
            })
            .collect();
        Ok(profile)
    }
}

/// The profile that a file without a base fills in completely.
fn blank() -> Profile {
    Profile {
        name: String::new(),
        title: String::new(),
        is_validated: false,
        is_built_in: false,
        pcie: Pcie {
            link: PcieLink { generation: Generation::Gen1, lanes: 1, completion_max: 64 },
            read_latency_ns: 0,
            write_latency_ns: 0,
        },
        wqe: WqeLayout { header_connected: 4, header_datagram: 4, receive: 0, inline_max: 0, inline_receive_max: 0 },
        units: Units {
            requesters: 0,
            responders: 0,
            request_ns: 0.0,
            fetched_line_ns: 0.0,
            packet_ns: 0.0,
            dma_write_ns: 0.0,
            dma_read_ns: 0.0,
            atomic_ns: 0.0,
            atomic_hold_ns: 0,
            atomic_locks: 0,
            mmio_line_ns: 0.0,
            fetch_max: 0,
            pipeline_ns: 0,
            reads_max: 0,
        },
        caches: Caches {
            requester_states: 0,
            responder_states: 0,
            state_reads: 0,
            wqes: 0,
            translations: 0,
            page_bytes: 0,
        },
        link: Link { framing: Framing::InfiniBand, rate_gbps: 0.0, mtu: 0, switch_ns: 0, cable_ns: 0 },
        core: Core {
            count: 0,
            post_ns: 0,
            mmio_line_ns: 0,
            doorbell_ns: 0,
            receive_ns: 0,
            completion_ns: 0,
            look_ns: 0,
            copy_line_ns: 0,
            memory_ns: 0,
            contended_ns: 0,
            interrupt_ns: 0,
            time_slice_ns: 0,
            writes_elements: true,
        },
        registration: Registration { call_ns: 0, page_ns: 0, copy_bytes_per_ns: 0.0 },
        parameters: Vec::new(),
    }
}

/// Reads a file, and gathers its problems.
struct ProfileReader<'a> {
    text: &'a str,
    problems: Vec<Problem>,
}

impl ProfileReader<'_> {
    fn problem(&mut self, at: usize, problem: String) {
        self.problems.extend(FileError::in_text(self.text, at, &problem).problems().iter().cloned());
    }

    /// Adds a problem at the place of a table's field.
    fn problem_at(&mut self, table: &DeTable<'_>, name: &str, problem: String) {
        let offset = table.get_key_value(name).map_or(0, |(key, _)| key.span().start);
        self.problem(offset, problem);
    }

    /// Reports missing and unknown fields of the file and its tables. Where there is a base, only the head can be
    /// missing.
    fn check_fields(&mut self, file: &DeTable<'_>, has_base: bool) {
        let mut required = HEAD.to_vec();
        let mut optional = vec!["based_on"];
        if has_base {
            optional.extend(TABLES);
            optional.push("scale");
        } else {
            required.extend(TABLES);
        }
        self.check_table(Fields { table: "", required: &required, optional: &optional }, 0, file);
        for name in TABLES {
            let Some((key, entry)) = file.get_key_value(name) else { continue };
            let fields: Vec<&str> = FIELDS.iter().filter(|field| field.table == name).map(|field| field.name).collect();
            let (required, optional) = if has_base { (&[][..], &fields[..]) } else { (&fields[..], &[][..]) };
            match entry.get_ref() {
                DeValue::Table(table) => {
                    self.check_table(Fields { table: name, required, optional }, key.span().start, table);
                }
                _ => self.problem(key.span().start, format!("{name} is a table: [{name}], with its fields below")),
            }
        }
    }

    fn check_table(&mut self, fields: Fields<'_>, at: usize, table: &DeTable<'_>) {
        fields.check(self.text, at, table, &mut self.problems);
    }

    /// Reads a text outside the tables.
    fn head(&mut self, file: &DeTable<'_>, name: &str) -> Option<String> {
        let (key, value) = file.get_key_value(name)?;
        match value.get_ref() {
            DeValue::String(text) => {
                if let Err(error) = FileError::check_name(self.text, &key.span(), text) {
                    let problem = error.problems()[0].problem.replacen("name", name, 1);
                    self.problem(key.span().start, problem);
                }
                Some(text.to_string())
            }
            _ => {
                self.problem(key.span().start, format!("{name}: a text is needed, as in {name} = \"cx3\""));
                None
            }
        }
    }

    /// Reads the profile that the file is based on, if any.
    fn base(&mut self, file: &DeTable<'_>) -> Option<Profile> {
        let (key, value) = file.get_key_value("based_on")?;
        let Some(name) = value.get_ref().as_str() else {
            self.problem(key.span().start, "based_on: a text is needed, as in based_on = \"cx3\"".to_owned());
            return None;
        };
        let base = Profile::built_in(name);
        if base.is_none() {
            let name = shortened(name);
            let problem = format!("based_on: there is no NIC `{name}`; there are {}", Profile::BUILT_IN.join(", "));
            self.problem(key.span().start, problem);
        }
        base
    }

    /// Reads the value and the source of a parameter; `None` after reporting a problem.
    fn parameter(&mut self, path: &str, at: usize, entry: &DeValue<'_>) -> Option<(Value, String)> {
        let example = format!("{path} is {{ value = ..., source = \"...\" }}");
        let DeValue::Table(table) = entry else {
            self.problem(at, format!("{example}, not a bare value: say where it is from"));
            return None;
        };
        let before = self.problems.len();
        self.check_table(Fields { table: path, required: &["value", "source"], optional: &[] }, at, table);
        if self.problems.len() > before {
            return None;
        }
        let value = Value::of(table.get("value")?.get_ref());
        if value.is_none() {
            self.problem(at, format!("{path}: value is a number of at most 18 digits, or a text"));
        }
        let source = table.get("source")?.get_ref().as_str().unwrap_or_default().trim();
        if let Some(problem) = source_problem(source) {
            self.problem(at, format!("{path}: {problem}"));
            return None;
        }
        Some((value?, source.to_owned()))
    }

    /// Multiplies the base's parameters by `scale`, if given; returns the sources of all.
    fn scaled(&mut self, file: &DeTable<'_>, base: &Profile, profile: &mut Profile) -> BTreeMap<String, String> {
        let entry = file.get_key_value("scale");
        let parameter = entry.and_then(|(key, entry)| self.parameter("scale", key.span().start, entry.get_ref()));
        let scale = parameter.and_then(|(value, source)| {
            let scale = SCALE.take(&value);
            if scale.is_none() {
                self.problem_at(file, "scale", format!("scale cannot be {}: {}", value.shown(), SCALE.expected()));
            }
            Some((scale?, source))
        });
        let of_base = |path: &str| {
            let source = base.parameters.iter().find(|source| source.path == path).map(|source| &*source.source);
            format!("as {}: {}", base.name, source.unwrap_or_default())
        };
        FIELDS
            .iter()
            .map(|field| match &scale {
                Some((scale, source)) if field.is_scaled => {
                    field.scale(profile, *scale);
                    let separator = if source.contains(':') { "," } else { ":" };
                    (field.path(), format!("{source}{separator} times {scale} of {}", base.name))
                }
                _ => (field.path(), of_base(&field.path())),
            })
            .collect()
    }

    /// Checks fields that depend on each other.
    fn check_whole(&mut self, file: &DeTable<'_>, profile: &Profile) {
        let wqe = &profile.wqe;
        let room = wqe.inline_room();
        let mut problem = |table: &str, name: &str, problem: String| {
            let offset = match file.get(table).map(|table| table.get_ref()) {
                Some(DeValue::Table(table)) => table.get_key_value(name).map_or(0, |(key, _)| key.span().start),
                _ => 0,
            };
            self.problem(offset, problem);
        };
        if wqe.inline_max > room {
            let problem_text =
                format!("wqe.inline_max cannot be {}: elements of {WQE_MAX} B have room for {room}", wqe.inline_max);
            problem("wqe", "inline_max", problem_text);
        }
        if wqe.header_datagram < wqe.header_connected {
            let text =
                format!("wqe.header_datagram cannot be {}: datagrams name their receiver, too", wqe.header_datagram);
            problem("wqe", "header_datagram", text);
        }
    }
}

/// Most characters of a source.
const SOURCE_MAX: usize = 500;

/// The problem with a source, if it has one.
fn source_problem(source: &str) -> Option<&'static str> {
    if source.chars().any(char::is_control) {
        return Some("source cannot have control characters: it is shown on terminals");
    }
    if source.chars().count() > SOURCE_MAX {
        return Some("source is too long: 500 characters at most");
    }
    let reason = |kind: &str| source.strip_prefix(kind).map(|rest| rest.trim_start_matches(':').trim());
    let is_row =
        |row: &str| row.contains('.') && row.chars().all(|char| char.is_ascii_alphanumeric() || "._-".contains(char));
    if source.is_empty() {
        return Some(
            "source cannot be empty: a data sheet, a paper's section, an estimate with its reason, or a calibration",
        );
    }
    if reason("estimate").is_some_and(str::is_empty) {
        return Some("an estimate has a reason: \"estimate: why\"");
    }
    let names_no_rows = |kind: &str| {
        let rows = source.strip_prefix(kind).map(|rest| rest.split(':').next().unwrap_or_default());
        rows.is_some_and(|rows| !rows.split(", ").all(|row| is_row(row.trim())))
    };
    if names_no_rows("calibrated on") {
        return Some("a calibration names its rows: \"calibrated on ROW, ROW: how\"");
    }
    if names_no_rows("estimate in view of") {
        return Some("an estimate in view of rows names them: \"estimate in view of ROW, ROW: why\"");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str) -> &'static str {
        Profile::built_in_file(name).unwrap()
    }

    fn problems(text: &str) -> Vec<(usize, String)> {
        let error = Profile::read(text).unwrap_err();
        error.problems().iter().map(|problem| (problem.line, problem.problem.clone())).collect()
    }

    /// The line of a parameter in a file, and the file with another value there.
    fn with(name: &str, field: &str, value: &str) -> (usize, String) {
        let text = text(name);
        let line = text.lines().position(|line| line.starts_with(&format!("{field} = "))).unwrap();
        let lines = text.lines().enumerate();
        let of = |(index, old): (usize, &str)| match index == line {
            true => format!("{field} = {value}"),
            false => old.to_owned(),
        };
        (line + 1, lines.map(of).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn every_built_in_profile_is_read_and_every_parameter_has_its_source() {
        for name in Profile::BUILT_IN {
            let profile = Profile::read(text(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((&*profile.name, profile.sources().len()), (name, FIELDS.len()));
            for source in profile.sources() {
                assert!(!source.source.is_empty() && !source.value.is_empty(), "{name}: {source:?}");
            }
            assert!(!profile.title.is_empty());
        }
        assert_eq!(Profile::built_in("cx2"), None);
    }

    #[test]
    fn published_rates_are_what_their_calibrations_make_of_them() {
        let mops = |ns: f64, units: usize| 1e3 / ns * units as f64;
        let of = |name| Profile::built_in(name).unwrap().units;
        let (cx3, cib, cx) = (of("cx3"), of("cib"), of("cx"));
        for (model, paper) in [
            (mops(cx3.packet_ns + cx3.dma_write_ns, cx3.responders), 35.0),
            (mops(cx3.packet_ns + 2.0 * cx3.dma_write_ns, cx3.responders), 21.8),
            (mops(cx3.packet_ns + cx3.dma_read_ns, cx3.responders), 26.0),
            (mops(cx3.request_ns + cx3.fetched_line_ns, cx3.requesters), 32.1),
            (mops(cx3.request_ns + 2.0 * cx3.fetched_line_ns, cx3.requesters), 26.0),
            (mops(cx3.mmio_line_ns * 2.0, 1), 26.0),
            (mops(cx3.atomic_hold_ns as f64, 1), 2.7),
            (mops(cib.request_ns + cib.fetched_line_ns, cib.requesters), 157.0),
            (mops(cib.request_ns + 2.0 * cib.fetched_line_ns, 2), 16.6),
            (mops(cib.packet_ns + cib.dma_write_ns, cib.responders), 122.0),
            (mops(cib.packet_ns + 2.0 * cib.dma_write_ns, cib.responders), 82.0),
            (mops(cib.packet_ns + cib.atomic_ns, cib.responders), 52.0),
            (mops(cib.atomic_hold_ns as f64, 1), 2.24),
            (mops(cx.packet_ns + cx.dma_write_ns, cx.responders), 15.3),
        ] {
            assert!((model / paper - 1.0).abs() < 0.005, "{model} beside {paper}");
        }
    }

    #[test]
    fn of_256_queue_pairs_a_fifth_of_the_rate_is_left() {
        let Profile { units, caches, pcie, .. } = Profile::built_in("cx3").unwrap();
        let misses = 1.0 - caches.requester_states as f64 / 256.0;
        let miss_ns = (caches.state_reads as u64 * pcie.read_latency_ns) as f64;
        let rate = units.requesters as f64 / (units.request_ns + misses * miss_ns);
        let share = rate / (1.0 / (units.mmio_line_ns * 2.0));
        assert!((share - 0.21).abs() < 0.005, "{share}");
    }

    #[test]
    fn calibrations_are_named_by_the_profile_that_they_were_made_for() {
        let of = |name| Profile::built_in(name).unwrap().calibrations().join(" ");
        assert_eq!(
            of("cx3"),
            "cx3.atomics cx3.recv1 cx3.send0 cx3.send1 herd14.echo.ws herd14.read.in herd14.uc_out_16 \
             read.lat.cx3"
        );
        assert_eq!(
            of("cib"),
            "cib.atomics.z1 cib.atomics.z4096 cib.recv0 cib.recv1 cib.ud_send.batch_ho seq.baseline seq.core.base seq.core.batch"
        );
        assert_eq!((of("cx"), of("cx4"), of("cx5")), ("cx.recv0".into(), "read.lat.cx4".into(), "read.lat.cx5".into()));
        assert_eq!(of("cx3-roce10"), "roce.p90.ws256");
        for name in ["cx3-susitna", "cx3-susitna-roce", "cx6-dx", "cx7"] {
            assert_eq!(of(name), "", "{name}");
        }
        let in_view = |name| Profile::built_in(name).unwrap().in_view().join(" ");
        assert_eq!(
            (in_view("cx3"), in_view("cib")),
            ("cx3.read.window herd14.in_1600".into(), "seq.core.multiq".into())
        );
        assert_eq!(in_view("cx"), "", "what another was estimated by is not its own");
    }

    #[test]
    fn what_is_based_on_another_is_as_that_but_for_what_it_says() {
        let of = |name| Profile::built_in(name).unwrap();
        let (cx3, cx) = (of("cx3"), of("cx"));
        assert_eq!((cx.wqe, cx.core.post_ns, cx.core.count), (cx3.wqe, cx3.core.post_ns, 4));
        assert_eq!(cx.units.packet_ns, cx3.units.packet_ns * 2.29);
        assert_eq!((cx.units.atomic_hold_ns, cx.units.pipeline_ns), (847, cx3.units.pipeline_ns));
        let source = |path: &str| cx.sources().iter().find(|source| source.path == path).unwrap().source.clone();
        assert_eq!(source("wqe.receive"), "as cx3: atc16 Table 1");
        assert!(source("units.packet_ns").ends_with("over 15.3, times 2.29 of cx3"));
        let mine = "name = \"mine\"\ntitle = \"Mine\"\nis_validated = false\nbased_on = \"cx3\"\n";
        let mine = Profile::read(mine).unwrap();
        assert_eq!((mine.pcie, mine.is_validated), (cx3.pcie, false));
    }

    #[test]
    fn what_is_missing_or_unknown_is_told_all_at_once_with_its_line() {
        let all = problems("name = \"mine\"\n[pcie]\nlane = { value = 8, source = \"a\" }\n[units]\n[cash]\n");
        let is_told = |line: usize, part: &str| all.iter().any(|(at, problem)| *at == line && problem.contains(part));
        for (line, part) in [
            (1, "missing fields `title`, `is_validated`, `wqe`"),
            (2, "missing fields `generation`, `lanes`, `completion_max`"),
            (3, "unknown field `lane`"),
            (4, "missing fields `requesters`"),
            (5, "unknown field `cash`"),
        ] {
            assert!(is_told(line, part), "{line}: {part}: {all:?}");
        }
    }

    #[test]
    fn impossible_values_are_refused_with_their_line_and_field() {
        for (field, value) in [
            ("requesters", "0"),
            ("requesters", "4.0"),
            ("responders", "-1"),
            ("request_ns", "0"),
            ("request_ns", "nan"),
            ("packet_ns", "inf"),
            ("dma_write_ns", "-0.1"),
            ("atomic_locks", "3"),
            ("atomic_locks", "0"),
            ("fetch_max", "0"),
            ("generation", "6"),
            ("lanes", "12"),
            ("completion_max", "100"),
            ("read_latency_ns", "0"),
            ("read_latency_ns", "-1"),
            ("read_latency_ns", "99999999999999999999"),
            ("inline_max", "957"),
            ("header_datagram", "35"),
            ("rate_gbps", "0"),
            ("rate_gbps", "1e9"),
            ("mtu", "1500"),
            ("framing", "\"ethernet\""),
            ("framing", "1"),
            ("page_bytes", "4000"),
            ("look_ns", "0"),
            ("copy_bytes_per_ns", "0"),
            ("wqes", "\"many\""),
            ("count", "[8]"),
        ] {
            let (line, text) = with("cx3", field, &format!("{{ value = {value}, source = \"a test\" }}"));
            let all = problems(&text);
            assert!(all.len() == 1 && all[0].0 == line && all[0].1.contains(field), "{field} = {value}: {all:?}");
        }
        for (field, value) in [("inline_max", "956"), ("lanes", "32"), ("atomic_locks", "4096"), ("mmio_line_ns", "0")]
        {
            let (_, text) = with("cx3", field, &format!("{{ value = {value}, source = \"a test\" }}"));
            assert!(Profile::read(&text).is_ok(), "{field} = {value}");
        }
    }

    #[test]
    fn a_value_without_its_source_is_refused() {
        for (entry, part) in [
            ("8", "not a bare value"),
            ("{ value = 8 }", "missing field `source`"),
            ("{ source = \"a\" }", "missing field `value`"),
            ("{ value = 8, source = \" \" }", "source cannot be empty"),
            ("{ value = 8, source = 8 }", "source cannot be empty"),
            ("{ value = 8, source = \"estimate\" }", "an estimate has a reason"),
            ("{ value = 8, source = \"estimate: \" }", "an estimate has a reason"),
            ("{ value = 8, source = \"calibrated on\" }", "names its rows"),
            ("{ value = 8, source = \"calibrated on that paper\" }", "names its rows"),
            ("{ value = 8, source = \"estimate in view of that paper: so\" }", "names them"),
            ("{ value = 8, source = \"a\", because = \"b\" }", "unknown field `because`"),
            ("{ value = 8, source = \"a\\u001b[31m\" }", "control characters"),
        ] {
            let (line, text) = with("cx3", "lanes", entry);
            let all = problems(&text);
            assert!(all.len() == 1 && all[0].0 == line && all[0].1.contains(part), "{entry}: {all:?}");
        }
    }

    #[test]
    fn a_source_has_an_end() {
        let of = |len: usize| with("cx3", "lanes", &format!("{{ value = 8, source = \"{}\" }}", "a".repeat(len))).1;
        assert!(Profile::read(&of(500)).is_ok());
        assert!(problems(&of(501))[0].1.contains("500 characters at most"));
    }

    #[test]
    fn errors_repeat_what_was_written_and_no_more_of_it_than_fits() {
        let (_, text) = with("cx3", "count", &format!("{{ value = \"{}\", source = \"a\" }}", "8".repeat(3000)));
        let problem = &problems(&text)[0].1;
        assert!(
            problem.contains("count cannot be \"888")
                && problem.contains("8...\": a whole number")
                && problem.len() < 200
        );
    }

    #[test]
    fn only_what_is_built_in_says_so() {
        let built_in = Profile::built_in("cx3").unwrap();
        let read = Profile::read(text("cx3")).unwrap();
        assert!(built_in.is_built_in && !read.is_built_in && read.is_validated);
        let based = "name = \"mine\"\ntitle = \"Mine\"\nis_validated = true\nbased_on = \"cx3\"\n";
        assert!(!Profile::read(based).unwrap().is_built_in);
    }

    #[test]
    fn a_head_that_makes_no_sense_is_refused() {
        for (field, value, part) in [
            ("name", "\"\"", "name cannot be empty"),
            ("name", "\"two words\"", "cannot have spaces"),
            ("name", "3", "a text is needed"),
            ("title", "\"\\u001b\"", "title cannot be"),
            ("is_validated", "\"yes\"", "true or false"),
            ("based_on", "\"cx2\"", "there is no NIC `cx2`"),
            ("based_on", "3", "a text is needed"),
            ("scale", "{ value = 0, source = \"a\" }", "scale cannot be 0"),
            ("scale", "2.0", "not a bare value"),
        ] {
            let (line, text) = with("cx", field, value);
            let all = problems(&text);
            assert!(all.iter().any(|(at, text)| *at == line && text.contains(part)), "{field} = {value}: {all:?}");
        }
        assert_eq!(problems("\n[pcie")[0].0, 2);
        assert!(problems("pcie = 3\n").iter().any(|(_, problem)| problem.contains("pcie is a table")));
    }
}
