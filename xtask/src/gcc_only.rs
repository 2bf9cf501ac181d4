//! Checks the promise that a user needs Rust and gcc, and nothing else.
//!
//! There are two proofs. The build graph holds no crate that looks for a tool or a system library. And a build from
//! scratch, with a path on which only Rust, gcc and its linker can be found, links a program that runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::metadata::{Kind, Metadata, Package};
use crate::process;

/// Crates that need more than Rust and gcc, or exist to look for it.
const BANNED: &[&str] = &[
    "autotools",
    "bindgen",
    "clang-sys",
    "cmake",
    "llvm-sys",
    "openssl-sys",
    "pkg-config",
    "prost-build",
    "protobuf-src",
    "protoc-bin-vendored",
    "system-deps",
    "tonic-build",
    "vcpkg",
];

/// Exceptions: a banned crate, the one crate that may depend on it, and why it looks for nothing in this build. A
/// banned crate that any other crate depends on is still refused, and if it did look for something, the cold build
/// would fail.
const UNUSED: &[(&str, &str, &str)] = &[(
    "pkg-config",
    "fuser",
    "its build script looks for libfuse on other systems than Linux, or with features that are off",
)];

/// Crates whose manifest has `links`, although they link nothing from the system.
const LINKS_NOTHING: &[(&str, &str)] = &[
    ("rayon-core", "the key only keeps two versions out of one program"),
    ("prettyplease", "the key only keeps two versions out of one program"),
    ("wasm-bindgen-shared", "the key only keeps two versions out of one program"),
];

/// Tools that a machine with gcc has. The compiler's driver finds its own parts by itself.
const TOOLS: &[&str] = &["gcc", "cc", "ld", "as", "ar"];

/// Libraries that are part of every Linux with glibc.
const SYSTEM_LIBRARIES: &[&str] =
    &["linux-vdso", "libc.", "libm.", "libgcc_s.", "libpthread.", "libdl.", "librt.", "ld-linux", "/ld-linux", "/lib"];

/// Arguments of `cargo xtask gcc-only`.
#[derive(clap::Args)]
pub struct Args {
    /// Keep the build, in the target folder, if there is no release build there yet.
    #[arg(long)]
    keep: bool,
}

/// Checks the graph, then builds.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let metadata = Metadata::of_build()?;
    let graph = metadata.default_build()?;
    let findings = check(&graph);
    if !findings.is_empty() {
        bail!("the default build needs more than Rust and gcc:\n  {}", findings.join("\n  "));
    }
    println!(
        "gcc-only: {} crates in the default build, none of which looks for a tool or a system library",
        graph.len()
    );

    let scratch = process::target_dir().join("gcc-only");
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch).with_context(|| format!("cannot clear {}", scratch.display()))?;
    }
    let path = scratch.join("path");
    fill_path(&path)?;
    let started = Instant::now();
    let is_kept = args.keep && !process::target_dir().join("release").exists();
    let target = if is_kept { process::target_dir() } else { scratch.join("target") };
    process::run(&mut build(&path, &target)?)?;
    println!("gcc-only: cold build in {:.0} s", started.elapsed().as_secs_f64());

    let program = target.join("release/sinew");
    process::output(Command::new(&program).arg("--help").env("PATH", &path).stdin(std::process::Stdio::null()))
        .context("the program that was built does not run")?;
    let foreign = foreign_libraries(&program);
    if !foreign.is_empty() {
        bail!("{} needs libraries that not every system has: {}", program.display(), foreign.join(", "));
    }
    println!("gcc-only: the program runs and needs the C library only");
    std::fs::remove_dir_all(&scratch).with_context(|| format!("cannot clear {}", scratch.display()))
}

fn check(graph: &[&Package]) -> Vec<String> {
    let mut findings = Vec::new();
    for package in graph {
        let named = format!("{} {}", package.name, package.version);
        if BANNED.contains(&package.name.as_str()) && !is_unused(graph, &package.name) {
            findings.push(format!("{named} is banned: it needs more than Rust and gcc"));
        }
        if let Some(library) = &package.links
            && !LINKS_NOTHING.iter().any(|(name, _)| *name == package.name)
        {
            findings.push(format!(
                "{named} links `{library}`: if that comes from the system find another crate; if it is only a key, list \
                 it with the reason in LINKS_NOTHING (xtask/src/gcc_only.rs)"
            ));
        }
    }
    findings
}

/// Whether every crate that depends on this one is listed as not using it.
fn is_unused(graph: &[&Package], name: &str) -> bool {
    let has_it = |package: &&&Package| {
        package.dependencies.iter().any(|dependency| dependency.name == name && dependency.kind != Kind::Dev)
    };
    let mut users = graph.iter().filter(has_it).peekable();
    let is_known = |user: &&Package| UNUSED.iter().any(|(of, by, _)| *of == name && *by == user.name);
    users.peek().is_some() && users.all(is_known)
}

/// Makes a folder that holds Rust, gcc and nothing else.
fn fill_path(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path)?;
    let sysroot = process::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let rust = PathBuf::from(sysroot.trim()).join("bin");
    for tool in ["cargo", "rustc"] {
        std::os::unix::fs::symlink(rust.join(tool), path.join(tool))?;
    }
    for tool in TOOLS {
        let found = find_on_path(tool).with_context(|| format!("there is no {tool} here: install gcc and binutils"))?;
        std::os::unix::fs::symlink(found, path.join(tool))?;
    }
    Ok(())
}

fn find_on_path(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(tool)).find(|candidate| candidate.is_file())
}

fn build(path: &Path, target: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(path.join("cargo"));
    command.current_dir(process::workspace_root()).stdin(std::process::Stdio::null());
    command.args(["build", "--release", "--locked"]);
    // The environment is empty, save for where cargo keeps its crates and how it reaches the network.
    let kept = |name: &str| {
        let upper = name.to_uppercase();
        ["HOME", "CARGO_HOME", "RUSTUP_HOME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"].contains(&name)
            || upper.ends_with("_PROXY")
            || upper.starts_with("CARGO_HTTP_")
            || upper.starts_with("CARGO_NET_")
            || upper.starts_with("CARGO_SOURCE_")
            || upper.starts_with("CARGO_REGISTR")
    };
    let environment: Vec<_> = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(kept)).collect();
    command.env_clear().envs(environment).env("PATH", path).env("CARGO_TARGET_DIR", target);
    Ok(command)
}

/// Returns a program's shared libraries other than the C library's own; none where there is no `ldd` to ask.
fn foreign_libraries(program: &Path) -> Vec<String> {
    let Ok(output) = Command::new("ldd").arg(program).output() else { return Vec::new() };
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = lines.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| !SYSTEM_LIBRARIES.iter().any(|known| name.starts_with(known))).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A program that uses `tool` in the given way.
    fn graph(name: &str, kind: Option<&str>, links: Option<&str>) -> Metadata {
        serde_json::from_value(json!({
            "packages": [
                { "id": "app", "name": "app", "version": "1.0.0", "links": null },
                { "id": "tool", "name": name, "version": "2.0.0", "links": links },
            ],
            "workspace_members": ["app"],
            "workspace_default_members": ["app"],
            "resolve": { "nodes": [
                { "id": "app", "deps": [{ "pkg": "tool", "dep_kinds": [{ "kind": kind }] }] },
                { "id": "tool", "deps": [] },
            ] },
        }))
        .unwrap()
    }

    #[test]
    fn a_build_dependency_on_a_foreign_tool_is_found_and_one_of_tests_is_not() {
        let metadata = graph("bindgen", Some("build"), None);
        let findings = check(&metadata.default_build().unwrap());
        assert!(findings.len() == 1 && findings[0].starts_with("bindgen 2.0.0"), "{findings:?}");
        let metadata = graph("bindgen", Some("dev"), None);
        assert!(check(&metadata.default_build().unwrap()).is_empty());
    }

    #[test]
    fn a_crate_that_is_compiled_and_not_used_is_let_in_with_its_one_user_alone() {
        let with_users = |users: &[&str]| {
            let dependencies = json!([{ "name": "pkg-config", "kind": "build" }]);
            let user = |name: &&str| json!({ "id": name, "name": name, "version": "1.0.0", "links": null, "dependencies": dependencies });
            let tool = json!({ "id": "tool", "name": "pkg-config", "version": "2.0.0", "links": null });
            let packages: Vec<Package> =
                users.iter().map(user).chain([tool]).map(|package| serde_json::from_value(package).unwrap()).collect();
            check(&packages.iter().collect::<Vec<_>>()).len()
        };
        assert_eq!((with_users(&["fuser"]), with_users(&["fuser", "other"]), with_users(&["other"])), (0, 1, 1));
    }

    #[test]
    fn a_system_library_is_found_and_a_mere_key_is_not() {
        let metadata = graph("libz-sys", None, Some("z"));
        let findings = check(&metadata.default_build().unwrap());
        assert!(findings.len() == 1 && findings[0].contains("links `z`"), "{findings:?}");
        let metadata = graph("rayon-core", None, Some("rayon-core"));
        assert!(check(&metadata.default_build().unwrap()).is_empty());
    }
}
