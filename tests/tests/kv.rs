//! `sinew kv`, as its users run it.

mod common;

use common::{run, sinew, text};
use serde_json::Value;

#[test]
fn a_table_is_measured_beside_what_memory_allows() {
    for (distribution, value_size) in [("uniform", "32"), ("zipf", "100"), ("uniform", "0")] {
        let output = run(sinew(&["kv", "bench", "--design", "table", "--keys", "10K", "--seconds", "0.05", "--json"])
            .args(["--batch", "8,1", "--get", "50", "--dist", distribution, "--value-size", value_size]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        for key in ["rate_mops", "limit_mops", "ratio", "gain", "requests", "p50_ns", "p99_ns", "index_bytes"] {
            assert!(result[key].as_f64() > Some(0.0), "{key}: {result}");
        }
        // Nearly all keys have their place, and what is popular is put again when it has lost it.
        assert!(result["hit_percent"].as_f64() > Some(95.0), "{result}");
        let batches: Vec<_> = result["batches"].as_array().unwrap().iter().map(|row| row["batch"].as_u64()).collect();
        assert_eq!(batches, [Some(1), Some(8)]);
        assert_eq!(
            (&result["batch"], &result["keys"], &result["dist"]),
            (&8.into(), &10_000.into(), &distribution.into())
        );
    }
}

#[test]
fn a_missed_threshold_is_an_exit_status() {
    let args = ["kv", "bench", "--keys", "1K", "--seconds", "0.02", "--batch", "4", "--fail-if-below", "1e9"];
    let output = run(&mut sinew(&args));
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("1000 keys of 16 B"), "{}", text(&output.stdout));
}

#[test]
fn what_cannot_be_measured_is_told_before_anything_is_started() {
    for wrong in [
        ["--keys", "0"],
        ["--keys", "3G"],
        ["--get", "101"],
        ["--get", "nan"],
        ["--batch", "65"],
        ["--batch", "0"],
        ["--value-size", "5K"],
    ] {
        let output = run(sinew(&["kv", "bench"]).args(wrong));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}
