//! `sinew model`: traffic on PCI Express, expected counters, and profiles of NICs.

mod common;

use common::{Folder, complaint, results, shown, sinew};
use serde_json::Value;
use sinew_sim::nic::Profile;

const REFERENCE: &str = include_str!("../../docs/nics.md");

/// Returns the result with this name.
fn named<'a>(results: &'a [Value], name: &str) -> &'a Value {
    let found = results.iter().find(|result| result["details"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {results:?}"))
}

#[test]
fn sums_and_limits_are_those_of_the_paper() {
    let shown = shown("model pcie --verb write --transport uc --payload 29 --batch 10");
    for part in ["175 M/s", "13443 MB/s", "105 M/s", "a WQE of 65 B, 2 lines", "1800 B", "1534 B"] {
        assert!(shown.contains(part), "no {part} in\n{shown}");
    }
    let all = results(&mut sinew(&[
        "model",
        "pcie",
        "--verb",
        "write",
        "--transport",
        "uc",
        "--payload",
        "29",
        "--batch",
        "10",
        "--json",
    ]));
    assert_eq!(named(&all, "requester")["details"]["bytes_to_nic"], 1534);
    assert_eq!(named(&all, "responder")["details"]["dma_writes"], 10);
    assert_eq!(named(&all, "mmio_lines")["figure"], 175.04);
    assert_eq!(named(&all, "requester")["details"]["steps"][0]["bytes_to_nic"], 34);
}

#[test]
fn header_only_sends_and_receives_leave_out_what_figures_5_and_6_say() {
    let all = |more: &[&str]| {
        let details = |name: &str, all: &[Value]| named(all, name)["details"].clone();
        let all = results(sinew(&["model", "pcie", "--batch", "16", "--json"]).args(more));
        (details("requester", &all), details("responder", &all))
    };
    let ((inline, regular), (short, alone)) = (all(&[]), all(&["--header-only"]));
    assert_eq!((&inline["lines_read"], &short["lines_read"]), (&32.into(), &16.into()));
    assert_eq!((&regular["dma_writes"], &alone["dma_writes"]), (&32.into(), &16.into()));
    let memory = all(&["--no-inline", "--signaled", "16"]).0;
    assert_eq!((&memory["dma_reads"], &memory["dma_writes"]), (&17.into(), &16.into()));
}

#[test]
fn what_counters_show_beyond_what_is_expected_is_told_as_misses() {
    let shown = shown("model verbs --verb read --payload 8 --rate 40 --counted-reads 60");
    assert!(shown.contains("60.0 M/s counted, 0.00 M/s expected; 1.50 more a"), "{shown}");
    let args =
        ["model", "verbs", "--verb", "write", "--transport", "uc", "--rate", "30", "--at", "responder", "--json"];
    let all = results(sinew(&args).args(["--counted-writes", "33"]));
    let written = all.iter().find(|it| it["details"]["counted"] == 33.0).unwrap();
    assert_eq!((&written["figure"], &written["details"]["counter"]), (&30.0.into(), &"PCIeItoM".into()));
    assert_eq!(written["details"]["missed_per_request"], 0.1);
    assert!(self::shown("model verbs --rate 10").contains("fetch-and-add over"));
}

#[test]
fn every_nic_is_listed_and_tells_where_its_figures_are_from() {
    let listed: Value = serde_json::from_str(&shown("model nics --json")).unwrap();
    let nics = listed["nics"].as_array().unwrap();
    assert!(nics.len() >= 10);
    for nic in nics {
        let name = nic["name"].as_str().unwrap();
        assert!(shown("model nics").contains(name), "{name}");
        let shown = shown(&format!("model nics {name}"));
        assert!(shown.contains("packet_ns") && shown.contains("estimate: "), "{shown}");
        for parameter in nic["parameters"].as_array().unwrap() {
            assert!(parameter["source"].as_str().is_some_and(|source| !source.is_empty()), "{name}: {parameter}");
        }
    }
}

#[test]
fn a_file_of_ones_own_is_based_on_another_and_its_mistakes_are_told_with_their_lines() {
    let folder = Folder::new();
    let file = folder.0.join("mine.toml").display().to_string();
    let head = "name = \"mine\"\ntitle = \"Mine\"\nis_validated = false\nbased_on = \"cx3\"\n[pcie]\n";
    std::fs::write(&file, format!("{head}lanes = {{ value = 4, source = \"lspci\" }}\n")).unwrap();
    let mine = shown(&format!("model pcie --nic {file}"));
    assert!(mine.contains("mine: Mine") && mine.contains("PCIe 3.0 x4"), "{mine}");
    std::fs::write(&file, format!("{head}lanes = {{ value = 3, source = \"lspci\" }}\nlane = 3\n")).unwrap();
    let error = complaint(&format!("model pcie --nic {file}"));
    for part in ["mine.toml: line 6: pcie.lanes cannot be 3: 1, 2, 4, 8, 16 or 32", "line 7: unknown field `lane`"] {
        assert!(error.contains(part), "no {part} in {error}");
    }
    std::fs::write(&file, shown("model nics cx3 --file")).unwrap();
    assert!(shown("model nics cx3 --file").starts_with("# ConnectX-3"));
    assert_eq!(shown(&format!("model nics {file}")), shown("model nics cx3"));
}

#[test]
fn the_reference_names_every_field_and_its_example_is_one() {
    for parameter in Profile::built_in("cx3").unwrap().sources() {
        let field = parameter.path.split('.').next_back().unwrap();
        assert!(REFERENCE.contains(&format!("`{field}`")), "docs/nics.md does not name {field}");
    }
    let example = REFERENCE.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(Profile::read(example).unwrap().name, "mine");
}

#[test]
fn what_no_nic_could_be_asked_for_is_wrong_usage() {
    for (args, part) in [
        ("model pcie --verb read --transport uc", "UC cannot carry a READ"),
        ("model pcie --verb write --transport ud", "UD cannot carry a WRITE"),
        ("model pcie --payload 8K", "more than a datagram carries"),
        ("model pcie --inline --payload 300", "up to 256 B"),
        ("model pcie --header-only --payload 5", "up to 4 B"),
        ("model pcie --verb read --inline", "cannot have 32 B inline"),
        ("model pcie --verb fetch-add --payload 4", "it is 8 B"),
        ("model pcie --inline-receive", "completions cannot hold"),
        ("model pcie --batch 0", "a batch cannot have 0 requests"),
        ("model pcie --batch 2 --signaled 3", "cannot be signaled"),
        ("model pcie --place 64", "0..64"),
        ("model pcie --nic cx2", "there is no NIC `cx2`"),
        ("model pcie --nic cx2.toml", "reading cx2.toml: No such file"),
        ("model verbs --rate 0", "from 0.000001"),
        ("model verbs --rate nan", "from 0.000001"),
        ("model verbs --counted-reads 1", "--verb"),
        ("model verbs --batch 16", "as in --verb send --batch 16"),
        ("model nics cx2 --file", "built in"),
        ("model nics --file", "NIC"),
    ] {
        let complaint = complaint(args);
        assert!(complaint.contains(part), "{args}: no `{part}` in {complaint}");
    }
}

#[test]
fn no_line_is_longer_than_a_terminal_is_wide() {
    for args in [
        "model pcie",
        "model pcie --nic cx7 --verb read --payload 1M --batch 1K",
        "model pcie --nic cx3 --batch 16 --inline-receive --signaled 1",
        "model pcie --verb compare-swap",
        "model verbs --rate 1234",
        "model verbs --verb write-imm --batch 32 --rate 150 --counted-reads 1 --counted-writes 1000",
        "model nics",
        "model nics cx3",
        "model nics cx7",
    ] {
        let shown = shown(args);
        let long: Vec<&str> = shown.lines().filter(|line| line.chars().count() > 80).collect();
        assert_eq!(long, Vec::<&str>::new(), "{args}");
    }
}
