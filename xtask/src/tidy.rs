//! Checks the style rules that rustfmt and clippy do not cover.
//!
//! A rule is a function from a file to findings ([`rules`]); the exceptions stand in tables here, each with its reason.

mod modules;
mod partners;
mod rules;
mod words;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::process;
use words::Words;

/// Most lines in a source file; a longer one no longer holds one idea.
const LINES_MAX: usize = 800;

/// Most columns of a line of comment, as rustfmt allows code.
const COMMENT_COLUMNS_MAX: usize = 120;

/// Files without a `//!`: their compiler errors are compared line by line.
const WITHOUT_HEAD: Exceptions = &[("crates/interleave/tests/ui/", "programs that must not compile")];

/// Files that may be longer.
const LONG_FILES: Exceptions = &[];

/// Folders that may hold unsafe code. Every crate outside them forbids it.
const UNSAFE_FOLDERS: Exceptions = &[
    ("crates/mem/", "buffers, mappings and rings"),
    ("crates/interleave/src/", "prefetching, and lookups that stay where they are"),
    ("crates/backends/host/", "pinning and signals are system calls"),
    ("crates/backends/ibverbs/", "a C library, and devices that write memory"),
    ("crates/backends/shm/", "memory that other processes map"),
    ("crates/backends/udp/", "system calls on bursts"),
    ("crates/backends/xdp/", "rings and frames that the kernel shares"),
    ("crates/far-memory/", "pages that appear and go under plain loads and stores"),
];

/// Files outside those folders that may hold unsafe code.
const UNSAFE_FILES: Exceptions = &[
    ("crates/rpc/tests/allocations.rs", "a counting allocator is an unsafe trait"),
    ("crates/mem/tests/", "tests of the crate's own unsafe functions"),
    ("tests/tests/killing/own_files.rs", "giving a process its own table of open files is an unsafe call"),
    ("tests/tests/mounts/mapping.rs", "mapping a file is an unsafe call"),
    ("tests/tests/paging_allocations.rs", "a counting allocator is an unsafe trait"),
    ("xtask/cost/", "a counting allocator is an unsafe trait, and entries are taken from rings as ports take them"),
];

/// Places, beside tests, where atomics come from the standard library rather than from `sinew_mem::atomic`.
const RAW_ATOMICS: Exceptions = &[
    ("crates/mem/", "the facade itself, and copies out of shared memory"),
    ("crates/backends/host/", "flags of signal handlers and pools; loom knows neither"),
    ("crates/backends/shm/", "flags between threads and words of mapped memory; the rings that loom checks are in mem"),
    ("crates/cli/", "stop flags and counters of a program; nothing depends on their order"),
    ("crates/harness/", "stop flags of measuring threads, and the cache line that they pass to and fro"),
    ("crates/peers/", "a number for the name of a folder"),
    ("xtask/", "not library code"),
];

/// Crates that run in virtual time: they are handed their clock, randomness and threads.
const VIRTUAL_TIME_CRATES: &[&str] = &[
    "crates/wire/",
    "crates/mem/",
    "crates/fabric/",
    "crates/forward/",
    "crates/herd/",
    "crates/kv/",
    "crates/remote-fs/",
    "crates/remote-memory/",
    "crates/replica/",
    "crates/rpc/",
    "crates/sequencer/",
    "crates/store/",
];

/// Crates whose modules may form cycles. In all others, only a module and its submodules may use each other.
const WITH_CYCLES: Exceptions = &[("crates/kv/", "a session and its commands, clients and owners name each other")];

/// Folders that hold no source of this project.
const SKIPPED: &[&str] = &[".git", "target", "corpus", "artifacts", "proptest-regressions"];

/// Paths (a folder ends in `/`), each with the reason why the rule does not hold there.
type Exceptions = &'static [(&'static str, &'static str)];

fn excepted(path: &str, exceptions: Exceptions) -> bool {
    exceptions.iter().any(|(place, _)| path == *place || (place.ends_with('/') && path.starts_with(place)))
}

/// One file of the project.
struct File {
    /// Path from the workspace's root, with `/`.
    path: String,
    text: String,
}

impl File {
    /// Whether the whole file is code that ships in no program: tests, suites of tests, benches, examples.
    fn is_test(&self) -> bool {
        let mut folders: Vec<&str> = self.path.split('/').collect();
        let name = folders.pop().unwrap_or_default();
        let folder = |folder: &&str| ["tests", "benches", "examples", "conformance"].contains(folder);
        folders.iter().any(folder) || name == "tests.rs"
    }

    /// The lines with their numbers from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Numbered lines of code that ships: without comments, and without the module of tests at the file's end.
    fn shipped_code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines: Vec<&str> = self.text.lines().collect();
        let opens_tests = |pair: &[&str]| is_test_attribute(pair[0].trim()) && pair[1].trim().ends_with('{');
        let shipped = if self.is_test() { 0 } else { lines.windows(2).position(opens_tests).unwrap_or(lines.len()) };
        lines.into_iter().take(shipped).enumerate().map(|(index, line)| (index + 1, code_of(line)))
    }
}

/// Whether a line is the attribute before a module of tests.
fn is_test_attribute(line: &str) -> bool {
    line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test")
}

/// A line without its comment. A `//` inside a string counts as a comment unless it follows a colon, as in addresses.
fn code_of(line: &str) -> &str {
    let mut from = 0;
    while let Some(at) = line[from..].find("//").map(|at| from + at) {
        if at == 0 || line.as_bytes()[at - 1] != b':' {
            return &line[..at];
        }
        from = at + 2;
    }
    line
}

/// Checks every file of the working tree.
pub fn run() -> anyhow::Result<()> {
    let files = read_all()?;
    let words = Words::read()?;
    let findings = check(&files, &words);
    if !findings.is_empty() {
        bail!("the tree is not tidy:\n  {}", findings.join("\n  "));
    }
    println!("tidy: {} files", files.len());
    Ok(())
}

fn check(files: &[File], words: &Words) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files {
        findings.extend(words.check(file));
        if file.path.ends_with(".rs") {
            for rule in rules::RULES {
                findings.extend(rule(file));
            }
        }
    }
    for root in files.iter().map(|file| file.path.as_str()).filter(|path| is_crate_root(path)) {
        findings.extend(modules::check(files, root));
    }
    findings.extend(partners::check(files));
    findings
}

/// Whether a path is the root of a crate that is searched for cycles of modules.
fn is_crate_root(path: &str) -> bool {
    path.starts_with("crates/") && path.ends_with("/src/lib.rs") && !excepted(path, WITH_CYCLES)
}

/// Reads the Rust and Markdown files of the working tree.
fn read_all() -> anyhow::Result<Vec<File>> {
    let root = process::workspace_root();
    let mut paths = Vec::new();
    collect(&root, &["rs", "md"], &mut paths)?;
    paths.sort();
    let files = paths.into_iter().map(|path| {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let path = path.strip_prefix(&root)?.to_string_lossy().replace('\\', "/");
        Ok(File { path, text })
    });
    files.collect()
}

/// Returns the Rust files below a folder.
pub fn rust_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    collect(folder, &["rs"], &mut paths)?;
    paths.sort();
    Ok(paths)
}

fn collect(folder: &Path, extensions: &[&str], paths: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if !SKIPPED.contains(&&*name) && !name.starts_with("target-") {
                collect(&path, extensions, paths)?;
            }
        } else if path.extension().is_some_and(|found| extensions.iter().any(|wanted| found == *wanted)) {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: [&str; 0] = [];

    #[test]
    fn comments_are_not_code_and_addresses_are_not_comments() {
        assert_eq!(code_of("let a = 1; // one"), "let a = 1; ");
        assert_eq!(code_of("open(\"udp://host\") // where"), "open(\"udp://host\") ");
        assert_eq!(code_of("/// doc"), "");
    }

    #[test]
    fn shipped_code_ends_where_tests_begin() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n}\n";
        let file = |path: &str| File { path: path.into(), text: text.into() };
        assert_eq!(file("crates/rpc/src/lib.rs").shipped_code().count(), 1);
        let elsewhere =
            File { path: "crates/rpc/src/lib.rs".into(), text: "#[cfg(test)]\nmod tests;\nfn a() {}\n".into() };
        assert_eq!(elsewhere.shipped_code().count(), 3);
        assert_eq!(file("crates/rpc/src/core/tests.rs").shipped_code().count(), 0);
        assert_eq!(file("tests/tests/tour.rs").shipped_code().count(), 0);
    }

    #[test]
    fn exceptions_name_what_exists() {
        let root = process::workspace_root();
        for (place, reason) in
            [WITHOUT_HEAD, LONG_FILES, UNSAFE_FOLDERS, UNSAFE_FILES, RAW_ATOMICS, WITH_CYCLES].concat()
        {
            assert!(root.join(place).exists(), "{place} is gone");
            assert!(!reason.is_empty(), "{place} has no reason");
        }
    }

    #[test]
    fn cycles_are_looked_for_in_every_library_that_has_no_exception() {
        let roots: Vec<String> =
            read_all().unwrap().into_iter().map(|file| file.path).filter(|path| is_crate_root(path)).collect();
        for name in ["backends/ibverbs", "backends/shm", "backends/udp", "fabric", "mem", "rpc"] {
            assert!(roots.contains(&format!("crates/{name}/src/lib.rs")), "{name} is not among {roots:?}");
        }
        let (cycle, alone) = (("a", "//! A.\nuse crate::b::B;"), ("b", "//! B.\nuse crate::a::A;"));
        let file = |krate: &str, (name, text): (&str, &str)| File {
            path: format!("{krate}/src/{name}.rs"),
            text: text.into(),
        };
        for (krate, found) in [("crates/new", 1), ("crates/kv", 0)] {
            let files = [("lib", "//! Lib.\n#![forbid(unsafe_code)]\nmod a; mod b;"), cycle, alone]
                .map(|text| file(krate, text));
            assert_eq!(check(&files, &Words::read().unwrap()).len(), found, "{krate}");
        }
    }

    #[test]
    fn crates_that_are_excepted_have_cycles() {
        let files = read_all().unwrap();
        for (place, _) in WITH_CYCLES {
            let findings = modules::check(&files, &format!("{place}src/lib.rs"));
            assert!(!findings.is_empty(), "{place} has no cycles any more: take it off WITH_CYCLES");
        }
    }

    #[test]
    fn the_tree_is_tidy() {
        assert_eq!(check(&read_all().unwrap(), &Words::read().unwrap()), CLEAN);
    }
}
