//! The rules for source files.

use super::{
    COMMENT_COLUMNS_MAX, File, LINES_MAX, LONG_FILES, RAW_ATOMICS, UNSAFE_FILES, UNSAFE_FOLDERS, VIRTUAL_TIME_CRATES,
    WITHOUT_HEAD, excepted,
};

/// A rule, which returns its findings in one file.
pub type Rule = fn(&File) -> Vec<String>;

/// Every rule.
pub const RULES: &[Rule] = &[
    files_hold_one_idea,
    nothing_is_unfinished,
    unsafe_code_argues,
    unsafe_code_stays_in_its_folders,
    atomics_come_from_the_facade,
    virtual_time_is_not_broken,
    the_seam_names_the_system_once,
    tests_read_as_facts,
    comments_fit,
    files_say_what_they_hold,
    hot_functions_are_documented,
    modules_have_one_style,
];

// Written in pieces, so that a search for unfinished work does not find this list.
const UNFINISHED: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("db", "g!("),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("#[ig", "nore"),
];

/// Functions that the test harness starts, but that test nothing by themselves.
const NO_TESTS: &[&str] = &["child"];

/// Most lines from an unsafe block up to its argument.
const SAFETY_WITHIN_LINES: usize = 8;

/// Words that code in virtual time may not use, and what it does instead.
const REAL_TIME: &[(&str, &str)] = &[
    ("Instant::now", "it is handed a clock (`fabric::Clock`)"),
    ("SystemTime", "it is handed a clock (`fabric::Clock`)"),
    ("thread::spawn", "it is handed a worker pool (`fabric::WorkerPool`)"),
    ("thread::sleep", "only a port's `wait` blocks"),
    ("RandomState", "it is handed a generator (`fabric::Generator`)"),
];

fn finding(file: &File, line: usize, what: impl std::fmt::Display) -> String {
    format!("{}:{line}: {what}", file.path)
}

fn files_hold_one_idea(file: &File) -> Vec<String> {
    let lines = file.text.lines().count();
    if lines <= LINES_MAX || excepted(&file.path, LONG_FILES) {
        return Vec::new();
    }
    vec![finding(file, lines, format!("{lines} lines, more than {LINES_MAX}: split it, or list it in LONG_FILES"))]
}

/// Functions that every packet passes through, which must be documented.
const HOT_FUNCTIONS: &[&str] = &["on_request", "on_response"];

fn comments_fit(file: &File) -> Vec<String> {
    let is_long = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > COMMENT_COLUMNS_MAX;
    let long = file.lines().filter(|(_, line)| is_long(line));
    long.map(|(number, _)| finding(file, number, format!("a comment of more than {COMMENT_COLUMNS_MAX} columns")))
        .collect()
}

fn files_say_what_they_hold(file: &File) -> Vec<String> {
    if excepted(&file.path, WITHOUT_HEAD) {
        return Vec::new();
    }
    let first = file.lines().find(|(_, line)| !line.trim().is_empty() && !line.starts_with("#!"));
    match first {
        Some((_, line)) if line.starts_with("//!") => Vec::new(),
        _ => vec![finding(file, 1, "the file does not begin with a `//!` that says what it holds")],
    }
}

fn hot_functions_are_documented(file: &File) -> Vec<String> {
    let mut findings = Vec::new();
    let mut is_documented = false;
    for (number, line) in file.lines() {
        let line = line.trim_start();
        if line.starts_with("///") {
            is_documented = true;
        } else if !line.starts_with("#[") {
            let hot = HOT_FUNCTIONS.iter().find(|name| contains_word(line, &format!("fn {name}")));
            if let (Some(name), false) = (hot, is_documented) {
                findings.push(finding(
                    file,
                    number,
                    format!("`{name}` is on the path of every packet and has no doc comment"),
                ));
            }
            is_documented = false;
        }
    }
    findings
}

/// `name.rs` beside the folder `name`. In the folders of integration tests `name/mod.rs` keeps a module from being a
/// test program.
fn modules_have_one_style(file: &File) -> Vec<String> {
    if !file.path.ends_with("/mod.rs") || file.path.contains("/tests/") {
        return Vec::new();
    }
    vec![finding(file, 1, "a module in a folder of its own lies beside the folder, as `name.rs`")]
}

fn nothing_is_unfinished(file: &File) -> Vec<String> {
    let unfinished = |line: &str| UNFINISHED.iter().copied().find(|mark| contains_word(line, mark));
    file.lines().filter_map(|(number, line)| Some(finding(file, number, format!("`{}`", unfinished(line)?)))).collect()
}

fn unsafe_code_argues(file: &File) -> Vec<String> {
    let mut findings = Vec::new();
    let mut argued_at = None;
    for (number, line) in file.lines() {
        if line.contains("SAFETY") {
            argued_at = Some(number);
        }
        let code = super::code_of(line);
        let block = starts_with_word(code, "unsafe {") || starts_with_word(code, "unsafe impl");
        if block && argued_at.is_none_or(|at| number - at > SAFETY_WITHIN_LINES) {
            findings.push(finding(file, number, "unsafe code without a `// SAFETY:` close above that argues for it"));
        }
    }
    findings
}

fn unsafe_code_stays_in_its_folders(file: &File) -> Vec<String> {
    if excepted(&file.path, UNSAFE_FOLDERS) || excepted(&file.path, UNSAFE_FILES) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let root = file.path.ends_with("/src/lib.rs") || file.path.ends_with("/src/main.rs");
    if root && !file.text.lines().any(|line| line == "#![forbid(unsafe_code)]") {
        findings.push(finding(file, 1, "a crate's root must say `#![forbid(unsafe_code)]`"));
    }
    for (number, line) in file.lines() {
        let code = super::code_of(line);
        if ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"].iter().any(|form| starts_with_word(code, form)) {
            findings.push(finding(
                file,
                number,
                "unsafe code outside its folders and files (UNSAFE_FOLDERS, UNSAFE_FILES)",
            ));
        }
    }
    findings
}

fn atomics_come_from_the_facade(file: &File) -> Vec<String> {
    if excepted(&file.path, RAW_ATOMICS) {
        return Vec::new();
    }
    // `Ordering` alone is harmless: it is the same type in the facade.
    let paths = ["std::sync::atomic", "core::sync::atomic"];
    let raw = |code: &str| {
        paths.iter().any(|path| code.contains(path)) && (code.contains("Atomic") || code.contains("atomic;"))
    };
    let lines = file.shipped_code().filter(|(_, code)| raw(code));
    lines
        .map(|(number, _)| finding(file, number, "atomics come from `sinew_mem::atomic`, so that loom can stand in"))
        .collect()
}

fn virtual_time_is_not_broken(file: &File) -> Vec<String> {
    if !VIRTUAL_TIME_CRATES.iter().any(|folder| file.path.starts_with(folder)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, code) in file.shipped_code() {
        for (word, instead) in REAL_TIME.iter().filter(|(word, _)| contains_word(code, word)) {
            findings.push(finding(file, number, format!("`{word}` in a crate that runs in virtual time: {instead}")));
        }
    }
    findings
}

/// Lets the fabric crate call the system in `readiness` alone: threads sleep the same way for all fabrics, and all else
/// that the system does belongs to a backend.
fn the_seam_names_the_system_once(file: &File) -> Vec<String> {
    if !file.path.starts_with("crates/fabric/src/") || file.path == "crates/fabric/src/readiness.rs" {
        return Vec::new();
    }
    let named = file.shipped_code().filter(|(_, code)| contains_word(code, "rustix"));
    named.map(|(number, _)| finding(file, number, "only `readiness` may use `rustix` in this crate")).collect()
}

fn tests_read_as_facts(file: &File) -> Vec<String> {
    let mut findings = Vec::new();
    let mut is_test = false;
    let mut module = "";
    for (number, line) in file.lines() {
        let line = line.trim();
        if line.starts_with("#[test]") {
            is_test = true;
        } else if let Some(name) = name_after(line, "mod ") {
            module = if line.ends_with('{') && name != "tests" { name } else { module };
        } else if let Some(name) = name_after(line, "fn ") {
            if is_test
                && !NO_TESTS.contains(&name)
                && let Some(why) = why_not_a_fact(module, name)
            {
                findings.push(finding(file, number, format!("the test `{name}` does not read as a fact: {why}")));
            }
            is_test = false;
        }
    }
    findings
}

/// Name of the item of this kind that a line declares; `None` for a name that a macro fills in.
fn name_after<'a>(line: &'a str, item: &str) -> Option<&'a str> {
    let rest = line.strip_prefix("pub ").unwrap_or(line).strip_prefix(item)?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// Reason why a name does not read as a fact; a module may begin the sentence.
fn why_not_a_fact(module: &str, name: &str) -> Option<&'static str> {
    if name.chars().any(char::is_uppercase) {
        return Some("names are in snake case");
    }
    if name.starts_with("test_") || name.starts_with("it_") {
        return Some("its first word carries no meaning");
    }
    let words = module.split('_').chain(name.split('_')).filter(|word| !word.is_empty());
    (words.count() < 2).then_some("say what holds")
}

/// Whether a line holds this text as whole words.
fn contains_word(line: &str, text: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(text).any(|(at, _)| {
        let before = text.starts_with(in_word) && line[..at].ends_with(in_word);
        let after = text.ends_with(in_word) && line[at + text.len()..].starts_with(in_word);
        !before && !after
    })
}

/// As [`contains_word`], but false if a string on the line begins with the text.
fn starts_with_word(code: &str, text: &str) -> bool {
    contains_word(code, text) && !code.contains(&format!("\"{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    #[test]
    fn a_file_of_800_lines_is_accepted_and_one_more_is_not() {
        assert!(files_hold_one_idea(&file("a.rs", &"\n".repeat(LINES_MAX))).is_empty());
        assert_eq!(files_hold_one_idea(&file("a.rs", &"\n".repeat(LINES_MAX + 1))).len(), 1);
    }

    #[test]
    fn a_comment_of_120_columns_is_accepted_and_one_more_is_not() {
        let of = |columns: usize| format!("//! Head.\n    // {}", "x".repeat(columns - 7));
        assert!(comments_fit(&file("a.rs", &of(COMMENT_COLUMNS_MAX))).is_empty());
        assert_eq!(comments_fit(&file("a.rs", &of(COMMENT_COLUMNS_MAX + 1))).len(), 1);
        assert!(comments_fit(&file("a.rs", &format!("let a = \"{}\";", "x".repeat(200)))).is_empty());
    }

    #[test]
    fn a_file_begins_with_what_it_holds() {
        for (text, found) in [("//! A.\n", 0), ("#![forbid(a)]\n\n//! A.\n", 0), ("use a;\n//! A.\n", 1), ("", 1)] {
            assert_eq!(files_say_what_they_hold(&file("a.rs", text)).len(), found, "{text}");
        }
    }

    #[test]
    fn hot_functions_need_a_doc_comment() {
        let of =
            |before: &str| file("a.rs", &format!("{before}    pub(crate) fn {}(&mut self) {{}}\n", HOT_FUNCTIONS[0]));
        assert_eq!(hot_functions_are_documented(&of("")).len(), 1);
        assert_eq!(hot_functions_are_documented(&of("    /// Takes one.\n    fn other() {}\n")).len(), 1);
        assert!(hot_functions_are_documented(&of("    /// Takes one.\n    #[inline]\n")).is_empty());
        assert!(hot_functions_are_documented(&file("a.rs", "fn on_request_for_response() {}")).is_empty());
    }

    #[test]
    fn modules_lie_beside_their_folders() {
        assert_eq!(modules_have_one_style(&file("crates/kv/src/cache/mod.rs", "")).len(), 1);
        assert!(modules_have_one_style(&file("crates/kv/tests/common/mod.rs", "")).is_empty());
        assert!(modules_have_one_style(&file("crates/kv/src/cache.rs", "")).is_empty());
    }

    #[test]
    fn every_mark_of_unfinished_work_is_found() {
        for mark in UNFINISHED {
            assert_eq!(nothing_is_unfinished(&file("a.rs", &format!("    {mark} later"))).len(), 1, "{mark}");
        }
        assert!(nothing_is_unfinished(&file("a.rs", concat!("let hex = 0x", "X", "XX_1;"))).is_empty());
    }

    #[test]
    fn unsafe_code_needs_an_argument_close_above() {
        let block = concat!("let word = un", "safe { read() };");
        let near = format!("// SAFETY: ours.\n{}{block}", "\n".repeat(SAFETY_WITHIN_LINES - 1));
        assert!(unsafe_code_argues(&file("a.rs", &near)).is_empty());
        let far = format!("// SAFETY: ours.\n{}{block}", "\n".repeat(SAFETY_WITHIN_LINES));
        assert_eq!(unsafe_code_argues(&file("a.rs", &far)).len(), 1);
        assert_eq!(unsafe_code_argues(&file("a.rs", block)).len(), 1);
        assert!(unsafe_code_argues(&file("a.rs", "// unsafe { in prose }")).is_empty());
    }

    #[test]
    fn unsafe_code_is_found_outside_its_folders_only() {
        let text = "#![forbid(unsafe_code)]\n// SAFETY: none.\nunsafe { read() }\n";
        assert_eq!(unsafe_code_stays_in_its_folders(&file("crates/rpc/src/lib.rs", text)).len(), 1);
        assert!(unsafe_code_stays_in_its_folders(&file("crates/mem/src/lib.rs", text)).is_empty());
        assert_eq!(unsafe_code_stays_in_its_folders(&file("crates/rpc/src/lib.rs", "")).len(), 1);
        assert!(unsafe_code_stays_in_its_folders(&file("crates/rpc/src/core.rs", "")).is_empty());
    }

    #[test]
    fn raw_atomics_are_found_outside_the_facade_and_tests() {
        let text = "use std::sync::atomic::AtomicU64;\n";
        assert_eq!(atomics_come_from_the_facade(&file("crates/rpc/src/core.rs", text)).len(), 1);
        assert!(atomics_come_from_the_facade(&file("crates/mem/src/atomic.rs", text)).is_empty());
        let in_tests = format!("#[cfg(test)]\nmod tests {{\n{text}}}\n");
        assert!(atomics_come_from_the_facade(&file("crates/rpc/src/core.rs", &in_tests)).is_empty());
        let order = "use std::sync::atomic::Ordering;\n";
        assert!(atomics_come_from_the_facade(&file("crates/rpc/src/core.rs", order)).is_empty());
    }

    #[test]
    fn a_clock_is_handed_in_where_time_is_virtual() {
        let text = "let now = Instant::now();\n";
        assert_eq!(virtual_time_is_not_broken(&file("crates/rpc/src/core.rs", text)).len(), 1);
        assert!(virtual_time_is_not_broken(&file("crates/backends/host/src/clock.rs", text)).is_empty());
        assert!(virtual_time_is_not_broken(&file("crates/rpc/tests/calls.rs", text)).is_empty());
    }

    #[test]
    fn the_system_is_found_in_the_seam_outside_its_place() {
        let text = "use rustix::event::poll;\n";
        assert_eq!(the_seam_names_the_system_once(&file("crates/fabric/src/port.rs", text)).len(), 1);
        for allowed in ["crates/fabric/src/readiness.rs", "crates/backends/udp/src/sys.rs"] {
            assert!(the_seam_names_the_system_once(&file(allowed, text)).is_empty());
        }
    }

    #[test]
    fn names_of_tests_say_what_holds() {
        for name in ["test_reads_a_header", "works", "readsTheHeader_as_it_is"] {
            let text = format!("#[test]\nfn {name}() {{}}\n");
            assert_eq!(tests_read_as_facts(&file("a.rs", &text)).len(), 1, "{name}");
        }
        let module = "mod the_suite_notices {\n#[test]\nfn loss() {}\n}\n";
        assert!(tests_read_as_facts(&file("a.rs", module)).is_empty());
        assert!(tests_read_as_facts(&file("a.rs", "#[test]\nfn $fact() {}\n")).is_empty());
        let text = "#[test]\n#[should_panic]\nfn lost_credit_return_is_recovered_by_rto() {}\nfn helper() {}\n";
        assert!(tests_read_as_facts(&file("a.rs", text)).is_empty());
    }
}
