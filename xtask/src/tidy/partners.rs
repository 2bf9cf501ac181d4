//! Atomics name their partners, and the partners exist.

use std::collections::HashSet;

use super::File;

/// Finds comments that name as a partner a function or type that the project does not define.
pub fn check(files: &[File]) -> Vec<String> {
    let sources = || files.iter().filter(|file| file.path.ends_with(".rs"));
    let defined: HashSet<&str> = sources().flat_map(|file| file.text.lines()).filter_map(defined_name).collect();
    let mut findings = Vec::new();
    for file in sources() {
        for (number, names) in partners(file) {
            let missing = names.iter().flat_map(|name| name.split("::")).filter(|name| !defined.contains(name));
            let unknown = |name| format!("{}:{number}: the partner `{name}` is not defined anywhere", file.path);
            findings.extend(missing.map(unknown));
        }
    }
    findings
}

/// The name of the function, type or constant that a line defines.
fn defined_name(line: &str) -> Option<&str> {
    let mut words = line.trim_start().split([' ', '<', '(', ':', '{', ';', '=']).filter(|word| !word.is_empty());
    let is_definition =
        |word: &str| ["fn", "struct", "enum", "trait", "mod", "const", "static", "type"].contains(&word);
    let is_before = |word: &str| {
        ["pub", "unsafe", "const", "async", "extern", "macro_rules!"].contains(&word) || word.ends_with(')')
    };
    let mut word = words.next()?;
    loop {
        let next = words.next()?;
        if is_definition(word) && !is_definition(next) {
            return Some(next);
        }
        if !is_before(word) && !["crate", "super", "in"].contains(&word) {
            return None;
        }
        word = next;
    }
}

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']).trim())
}

/// Lines of comments that name partners, with the names in backticks up to the sentence's end.
fn partners(file: &File) -> Vec<(usize, Vec<String>)> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(begin) = comment(line).and_then(|text| text.split_once("Partner").map(|(_, rest)| rest)) else {
            continue;
        };
        let Some(begin) = begin.strip_prefix('s').unwrap_or(begin).strip_prefix(':') else { continue };
        let mut sentence = begin.to_owned();
        let mut later = lines[index + 1..].iter();
        while !sentence.trim_end().ends_with('.')
            && !sentence.contains(". ")
            && let Some(text) = later.next().and_then(|line| comment(line))
        {
            sentence = format!("{sentence} {text}");
        }
        let sentence = sentence.split_once(". ").map_or(sentence.as_str(), |(first, _)| first);
        let names = sentence.split('`').skip(1).step_by(2).map(|name| name.trim_end_matches("()").to_owned());
        found.push((index + 1, names.collect()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> File {
        File { path: "crates/mem/src/a.rs".into(), text: text.into() }
    }

    #[test]
    fn a_partner_that_moved_is_found_and_one_that_exists_is_not() {
        let there = file("    pub(crate) const fn set(&self) {}\n    struct Doorbell {\n    pub async fn ring() {}\n");
        let good =
            file("// Acquire. Partners: the release in `Doorbell::set`, and\n// `ring`. Not `this`.\nlet a = 1;");
        assert_eq!(check(&[good, there]), [""; 0]);
        let bad = file("// Release. Partner: the load in\n// `Gone::take`.\nfn take() {}\n");
        assert_eq!(check(&[bad]), ["crates/mem/src/a.rs:1: the partner `Gone` is not defined anywhere"]);
    }

    #[test]
    fn definitions_are_read_whatever_stands_before_them() {
        let named = [
            ("pub(super) fn a<T>(b: T) {", Some("a")),
            ("    async fn b() {}", Some("b")),
            ("pub struct C<'a> {", Some("C")),
            ("const fn d() {}", Some("d")),
            ("pub const E: usize = 1;", Some("E")),
            ("macro_rules! f {", None),
            ("let g = fn_of(1);", None),
            ("use h::i;", None),
        ];
        for (line, name) in named {
            assert_eq!(defined_name(line), name, "{line}");
        }
    }
}
