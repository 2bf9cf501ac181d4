//! `sinew advise`: which design suits a workload on a NIC.

mod common;

use common::{Folder, complaint, results, shown, sinew};

const REFERENCE: &str = include_str!("../../docs/advise.md");

#[test]
fn the_best_is_recommended_with_sections_and_fits_a_terminal() {
    let shown = shown("advise reads --nic cx3");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in
        ["Recommended: one READ", "(sigcomm14 3.2.1, apnet19 4.1)", "clients poll", "Confidence in the model: compared"]
    {
        assert!(words.contains(part), "no {part} in\n{shown}");
    }
}

#[test]
fn programs_read_ranks_and_settings_of_the_one_schema() {
    let all = results(&mut sinew(&["advise", "reads", "--nic", "cx6-dx", "--json"]));
    let ranks: Vec<_> = all.iter().map(|result| result["details"]["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, (1..=all.len() as u64).collect::<Vec<_>>());
    let best = &all[0];
    assert_eq!((&best["unit"], &best["details"]["confidence"]), (&"ns".into(), &"not compared".into()));
    assert_eq!(best["details"]["settings"]["client_wait"], "polling");
    assert!(best["figure"].as_f64().unwrap() <= all[1]["figure"].as_f64().unwrap());
}

#[test]
fn a_workload_may_be_a_file_whose_mistakes_are_told_with_their_lines() {
    let folder = Folder::new();
    let file = folder.0.join("mine.toml").display().to_string();
    std::fs::write(&file, "kind = \"reads\"\nobject_bytes = 32\n").unwrap();
    assert!(shown(&format!("advise --workload {file} --nic cx3")).contains("reads of 32 B"));
    std::fs::write(&file, "kind = \"reads\"\nobject_bytes = 0\n").unwrap();
    let error = complaint(&format!("advise --workload {file} --nic cx3"));
    assert!(error.contains("mine.toml: line 2: object_bytes cannot be 0: 1 to 1048576"), "{error}");
}

#[test]
fn wrong_usage_is_answered_with_an_example() {
    for (args, part) in [
        ("advise cache --nic cx2", "there is no NIC `cx2`"),
        ("advise cache --nic cx3 --object 8", "as in --object 64"),
        ("advise cache --nic cx3 --read-share 95", "as in --read-share 0.95"),
        ("advise reads --nic cx3 --accesses 9", "1 to 8 for reads"),
        ("advise --nic cx3", "<KIND>"),
        ("advise queue --nic cx3", "cache, sequencer, locks, reads"),
    ] {
        let stderr = complaint(args);
        assert!(stderr.contains(part), "no {part} in {stderr}");
    }
}

#[test]
fn the_reference_names_every_field_of_a_workload() {
    let fields =
        ["kind", "object_bytes", "accesses", "read_share", "peers", "locks", "client_cpu", "server_cpu", "goal"];
    for field in fields.into_iter().chain(["bulk", "batches"]) {
        assert!(REFERENCE.contains(&format!("`{field}`")), "docs/advise.md does not name {field}");
    }
}
