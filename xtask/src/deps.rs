//! The direction of dependencies between the crates.

use anyhow::bail;

use crate::metadata::{Kind, Metadata};

/// Dependencies that one crate of the workspace may have.
struct Crate {
    name: &'static str,
    /// Crates of the workspace that it may depend on.
    uses: Uses,
    /// Outside crates that it may use although they call the system, read a clock or draw randomness.
    system: System,
}

enum System {
    All,
    Only(&'static [&'static str]),
}

enum Uses {
    Only(&'static [&'static str]),
    /// For programs and the facade, which put everything together.
    Everything,
}

const fn plain_crate(name: &'static str, uses: &'static [&'static str]) -> Crate {
    Crate { name, uses: Uses::Only(uses), system: System::Only(&[]) }
}

const fn system_crate(name: &'static str, uses: &'static [&'static str]) -> Crate {
    Crate { name, uses: Uses::Only(uses), system: System::All }
}

const fn top(name: &'static str) -> Crate {
    Crate { name, uses: Uses::Everything, system: System::All }
}

/// The arrows of ARCHITECTURE.md. A new crate gets a line here.
const CRATES: &[Crate] = &[
    plain_crate("sinew-wire", &[]),
    system_crate("sinew-mem", &[]),
    plain_crate("sinew-interleave", &["sinew-interleave-macros"]),
    plain_crate("sinew-interleave-macros", &[]),
    // `fabric::readiness` puts threads to sleep, the same way for all ports; that takes system calls.
    Crate { system: System::Only(&["rustix"]), ..plain_crate("sinew-fabric", &["sinew-mem", "sinew-wire"]) },
    plain_crate("sinew-conformance", &["sinew-fabric", "sinew-mem"]),
    system_crate("sinew-host", &["sinew-fabric", "sinew-mem", "sinew-wire"]),
    system_crate("sinew-ibverbs", &["sinew-fabric", "sinew-mem", "sinew-wire"]),
    system_crate("sinew-shm", &["sinew-fabric", "sinew-mem", "sinew-wire"]),
    plain_crate("sinew-sim", &["sinew-fabric", "sinew-mem"]),
    system_crate("sinew-udp", &["sinew-fabric", "sinew-mem", "sinew-wire"]),
    system_crate("sinew-xdp", &["sinew-fabric", "sinew-mem", "sinew-wire"]),
    plain_crate("sinew-rpc", &["sinew-fabric", "sinew-mem", "sinew-wire"]),
    plain_crate("sinew-store", &["sinew-interleave", "sinew-mem"]),
    plain_crate("sinew-forward", &["sinew-fabric", "sinew-interleave", "sinew-store", "sinew-wire"]),
    system_crate("sinew-door", &[]),
    // Only its disk on the host calls the system; the rest runs in virtual time.
    system_crate("sinew-journal", &["sinew-fabric"]),
    plain_crate("sinew-kv", &["sinew-door", "sinew-fabric", "sinew-herd", "sinew-mem", "sinew-rpc", "sinew-store"]),
    plain_crate("sinew-sequencer", &["sinew-fabric", "sinew-herd", "sinew-mem", "sinew-rpc"]),
    plain_crate("sinew-herd", &["sinew-fabric", "sinew-mem"]),
    plain_crate("sinew-replica", &["sinew-fabric", "sinew-journal", "sinew-mem", "sinew-rpc"]),
    plain_crate("sinew-remote-memory", &["sinew-fabric", "sinew-mem", "sinew-rpc"]),
    system_crate("sinew-remote-block", &["sinew-door", "sinew-fabric", "sinew-mem", "sinew-remote-memory"]),
    plain_crate("sinew-remote-fs", &["sinew-fabric", "sinew-journal", "sinew-mem", "sinew-remote-memory", "sinew-rpc"]),
    system_crate("sinew-far-memory", &["sinew-fabric", "sinew-mem", "sinew-remote-memory"]),
    system_crate("sinew-mount", &["sinew-mem", "sinew-remote-fs", "sinew-remote-memory", "sinew-rpc"]),
    // It starts programs, which are to end with it.
    system_crate("sinew-peers", &["sinew-host"]),
    top("sinew"),
    top("sinew-harness"),
    top("sinew-cli"),
    top("sinew-lab"),
    top("sinew-tests"),
    top("sinew-cost"),
    top("xtask"),
];

/// Crates that carry packets or give real time. Only the `top` crates name them.
const BACKENDS: &[&str] = &["sinew-host", "sinew-ibverbs", "sinew-shm", "sinew-sim", "sinew-udp", "sinew-xdp"];

/// Crates that any crate may use in its tests, beside those that it may use anyway.
const IN_TESTS: &[&str] = &["sinew-conformance", "sinew-fabric", "sinew-sim"];

/// Crates for tests alone: no program contains them.
const FOR_TESTS: &[&str] = &["sinew-conformance"];

/// Outside crates that call the system, read a clock or draw randomness: not for crates that run in virtual time.
const SYSTEM_CRATES: &[&str] = &[
    "libc",
    "libloading",
    "rustix",
    "nix",
    "io-uring",
    "quanta",
    "rand",
    "getrandom",
    "signal-hook",
    "ctrlc",
    "core_affinity",
];

/// Reads the workspace's manifests and fails on an arrow that points the wrong way.
pub fn run() -> anyhow::Result<()> {
    let metadata = Metadata::of_workspace()?;
    let findings = check(&metadata, CRATES);
    if !findings.is_empty() {
        bail!("dependencies point the wrong way:\n  {}", findings.join("\n  "));
    }
    println!("deps: {} crates, every arrow as listed", metadata.workspace_members.len());
    Ok(())
}

fn check(metadata: &Metadata, crates: &[Crate]) -> Vec<String> {
    let mut findings = Vec::new();
    let members: Vec<&str> = metadata.members().map(|package| package.name.as_str()).collect();
    for listed in crates.iter().filter(|listed| !members.contains(&listed.name)) {
        findings.push(format!(
            "{} is listed in CRATES (xtask/src/deps.rs) but is not a crate of the workspace",
            listed.name
        ));
    }
    for package in metadata.members() {
        let Some(listed) = crates.iter().find(|listed| listed.name == package.name) else {
            findings.push(format!(
                "{} is not listed: add it to CRATES in xtask/src/deps.rs (and to BACKENDS if it is a backend) \
                 with what it may use, as ARCHITECTURE.md says",
                package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            if let Some(why) = objection(listed, &dependency.name, dependency.kind, &members) {
                findings.push(format!("{} -> {}: {why}", package.name, dependency.name));
            }
        }
    }
    findings
}

fn objection(listed: &Crate, to: &str, kind: Kind, members: &[&str]) -> Option<String> {
    if kind != Kind::Dev && FOR_TESTS.contains(&to) {
        return Some("it is for tests only: make it a dev-dependency".into());
    }
    let Uses::Only(allowed) = listed.uses else { return None };
    if kind == Kind::Dev && (IN_TESTS.contains(&to) || to == listed.name) {
        return None;
    }
    if members.contains(&to) && !allowed.contains(&to) {
        return Some(if BACKENDS.contains(&to) {
            "only the facade, the command and the end-to-end tests name a backend".into()
        } else if allowed.is_empty() {
            "this crate may use no other crate of the workspace".into()
        } else {
            format!("it may use {} only", allowed.join(", "))
        });
    }
    let may_use = match listed.system {
        System::All => true,
        System::Only(crates) => crates.contains(&to),
    };
    if kind == Kind::Normal && !may_use && SYSTEM_CRATES.contains(&to) {
        return Some(
            "a crate that runs in virtual time may not call the system: it is handed its clock and randomness".into(),
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CLEAN: [&str; 0] = [];

    /// A workspace of `mem`, `fabric`, `shm`, `rpc` and `cli`, with further dependencies.
    fn workspace(further: &[(&str, &str, Option<&str>)]) -> Metadata {
        let names = ["sinew-mem", "sinew-fabric", "sinew-shm", "sinew-rpc", "sinew-cli"];
        let usual = [("sinew-fabric", "sinew-mem", None), ("sinew-cli", "sinew-shm", None)];
        let packages: Vec<_> = names
            .iter()
            .map(|name| {
                let arrows = usual.iter().chain(further).filter(|(from, ..)| from == name);
                let dependencies: Vec<_> = arrows.map(|(_, to, kind)| json!({ "name": to, "kind": kind })).collect();
                json!({ "id": name, "name": name, "version": "0.1.0", "dependencies": dependencies })
            })
            .collect();
        serde_json::from_value(json!({ "packages": packages, "workspace_members": names })).unwrap()
    }

    fn crates() -> Vec<Crate> {
        vec![
            system_crate("sinew-mem", &[]),
            plain_crate("sinew-fabric", &["sinew-mem"]),
            system_crate("sinew-shm", &["sinew-fabric"]),
            plain_crate("sinew-rpc", &["sinew-fabric", "sinew-mem"]),
            top("sinew-cli"),
        ]
    }

    #[test]
    fn arrows_that_point_down_are_accepted() {
        let metadata = workspace(&[
            ("sinew-rpc", "sinew-fabric", None),
            ("sinew-rpc", "sinew-fabric", Some("dev")),
            ("sinew-mem", "rustix", None),
            ("sinew-rpc", "proptest", Some("dev")),
        ]);
        assert_eq!(check(&metadata, &crates()), CLEAN);
    }

    #[test]
    fn a_backend_is_named_by_the_tops_only() {
        for kind in [None, Some("dev"), Some("build")] {
            let findings = check(&workspace(&[("sinew-rpc", "sinew-shm", kind)]), &crates());
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].starts_with("sinew-rpc -> sinew-shm: only the facade"), "{findings:?}");
        }
    }

    #[test]
    fn what_is_for_tests_is_used_by_tests_alone() {
        for from in ["sinew-rpc", "sinew-cli"] {
            let metadata = |kind| workspace(&[(from, "sinew-conformance", kind)]);
            assert_eq!(check(&metadata(Some("dev")), &crates()), CLEAN);
            let findings = check(&metadata(None), &crates());
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].contains("-> sinew-conformance: it is for tests"), "{findings:?}");
        }
    }

    #[test]
    fn an_arrow_that_points_up_is_found() {
        let findings = check(&workspace(&[("sinew-mem", "sinew-rpc", None)]), &crates());
        assert_eq!(findings, ["sinew-mem -> sinew-rpc: this crate may use no other crate of the workspace"]);
    }

    #[test]
    fn the_system_is_out_of_reach_in_virtual_time() {
        let findings = check(&workspace(&[("sinew-rpc", "libc", None)]), &crates());
        assert!(findings[0].starts_with("sinew-rpc -> libc"), "{findings:?}");
        assert!(check(&workspace(&[("sinew-rpc", "libc", Some("dev"))]), &crates()).is_empty());
    }

    #[test]
    fn a_crate_may_use_the_crates_of_the_system_that_it_lists_and_no_others() {
        let mut crates = crates();
        crates[3].system = System::Only(&["rustix"]);
        assert!(check(&workspace(&[("sinew-rpc", "rustix", None)]), &crates).is_empty());
        assert_eq!(check(&workspace(&[("sinew-rpc", "libc", None)]), &crates).len(), 1);
    }

    #[test]
    fn a_crate_without_a_line_is_told_where_it_goes_and_a_line_without_a_crate_is_told_to_go() {
        let mut fewer = crates();
        fewer.pop();
        let findings = check(&workspace(&[]), &fewer);
        assert!(findings.len() == 1 && findings[0].contains("add it to CRATES in xtask/src/deps.rs"), "{findings:?}");
        let mut more = crates();
        more.push(plain_crate("sinew-store", &[]));
        let findings = check(&workspace(&[]), &more);
        assert!(findings.len() == 1 && findings[0].starts_with("sinew-store is listed"), "{findings:?}");
    }

    #[test]
    fn this_workspace_keeps_its_arrows() {
        assert_eq!(check(&Metadata::of_workspace().unwrap(), CRATES), CLEAN);
    }
}
