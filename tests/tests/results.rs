//! Every command that measures prints results in one schema, and `docs/results.md` names all their fields.

mod common;

use common::{results, sinew};
use serde_json::Value;

const REFERENCE: &str = include_str!("../../docs/results.md");

/// Commands that measure, with options that keep them short.
const COMMANDS: [&str; 30] = [
    "rpc bench latency --seconds 0.05",
    "rpc bench rate --fabric udp --seconds 0.05",
    "rpc bench bandwidth --fabric hub --size 256K --seconds 0.05",
    "rpc bench scale --sessions 40 --seconds 0.05",
    "verbs bw --op read --sizes 16..64 --seconds 0.05",
    "verbs rate --op send --transport ud --seconds 0.05",
    "verbs lat --seconds 0.05",
    "verbs echo --form ws --window 4 --seconds 0.05",
    "kv bench table --keys 1K --seconds 0.05",
    "kv bench eviction --memory 1M --seconds 0.05",
    "kv bench rpc --keys 1K --seconds 0.05",
    "kv bench herd --keys 1K --seconds 0.05",
    "kv bench herd-opt --keys 1K --seconds 0.05",
    "kv bench pilaf --keys 1K --seconds 0.05",
    "kv bench farm --keys 1K --seconds 0.05",
    "kv bench drtm --keys 1K --get 50 --seconds 0.05",
    "kv bench memcached --keys 1K --seconds 0.05",
    "seq bench --seconds 0.05",
    "seq bench --design spec-s0 --seconds 0.05",
    "memory bench --sizes 4K,64K --memory 8M --threads 2 --seconds 0.05",
    "memory bench --op write --sizes 4K --memory 8M --order sequential --window find --seconds 0.05",
    "memory bench --sizes 4K --memory 8M --poller shared:2 --seconds 0.05",
    "memory bench --sizes 4K --memory 8M --poller retry --seconds 0.05",
    "interleave bench --entries 4K --width 8 --seconds 0.02",
    "limits --seconds 0.01",
    "lab run nsdi19-table3",
    "lab run rdmabox-fig10",
    "model pcie --batch 16",
    "model verbs --verb read --counted-reads 2",
    "advise reads --nic cx3",
];

/// Whether the reference names a field, as a word of its own.
fn is_documented(field: &str) -> bool {
    REFERENCE.split(|char: char| !char.is_alphanumeric() && char != '_').any(|word| word == field)
}

fn fields(object: &Value) -> impl Iterator<Item = &String> {
    object.as_object().into_iter().flat_map(|object| object.keys())
}

#[test]
fn every_command_prints_the_one_schema_with_fields_that_the_reference_names() {
    for command in COMMANDS {
        let args: Vec<&str> = command.split(' ').chain(["--json"]).collect();
        for result in results(&mut sinew(&args)) {
            let parts = ["percentiles", "slices", "surroundings", "setup", "details"].map(|part| &result[part]);
            let unknown: Vec<_> = fields(&result)
                .chain(parts.into_iter().flat_map(fields))
                .filter(|field| !is_documented(field))
                .collect();
            assert!(unknown.is_empty(), "{command}: docs/results.md does not name {unknown:?}");
            let bench = result["bench"].as_str().unwrap();
            assert!(command.starts_with(bench.split(' ').next().unwrap()), "{command} is {bench}");
            let has_surroundings = fields(&result["surroundings"]).next().is_some();
            // With one processor, an experiment measures nothing beside the model.
            if !command.starts_with("lab") || !result["details"]["measured"].is_null() {
                let is_computed = ["model", "advise"].iter().any(|other| command.starts_with(other));
                assert_eq!(has_surroundings, !is_computed, "{command}");
            }
        }
    }
}

#[test]
fn a_result_is_valid_only_where_it_is_known_what_others_used() {
    for seconds in ["0.01", "0.3"] {
        let mut command = sinew(&["rpc", "bench", "rate", "--no-pin", "--seconds", seconds, "--json"]);
        for result in results(&mut command) {
            let share = &result["surroundings"]["others_share"];
            assert!(share.is_number() || result["valid"] == false, "{result}");
        }
    }
}

#[test]
fn a_busy_loop_on_a_measured_processor_makes_every_result_invalid() {
    let cpus = sinew::host::available_cpus();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            sinew::host::pin_current_thread(cpus[0]).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let measured: Vec<(&str, Vec<Value>)> = COMMANDS
            .into_iter()
            // Simulations and computations measure nothing.
            .filter(|command| !["lab", "advise", "model"].iter().any(|other| command.starts_with(other)))
            .map(|command| {
                let longer = command.replace("0.05", "0.3").replace("0.01", "0.3");
                let args: Vec<&str> = longer.split(' ').chain(["--json"]).collect();
                (command, results(&mut sinew(&args)))
            })
            .collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for (command, results) in measured {
            for result in results {
                assert_eq!(result["valid"], false, "{command}: {result}");
                assert!(result["invalid_because"].to_string().contains("others used"), "{command}: {result}");
            }
        }
    });
}
