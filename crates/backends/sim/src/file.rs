//! What is wrong with files that people write in TOML, and where.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde_spanned::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong with a file that somebody wrote, a topology's or another of its kind: one problem at least, by their lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError(Vec<Problem>);

/// Something that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub problem: String,
}

/// The fields that a table of a file has.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    /// The table's name; none is the file itself, whose tables are among its fields.
    pub table: &'a str,
    /// Fields that it must have.
    pub required: &'a [&'a str],
    /// Fields that it may have.
    pub optional: &'a [&'a str],
}

/// Characters of a text of a file that an error repeats.
const REPEATED_MAX: usize = 40;

/// As much of a text of a file as an error repeats.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(REPEATED_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { line, problem }) in self.0.iter().enumerate() {
            let separator = if index > 0 { "\n  " } else { "" };
            write!(f, "{separator}line {line}: {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileError {}

impl FileError {
    /// An error in a line. What a terminal would obey is escaped: the problem may quote the file.
    pub fn new(line: usize, problem: &str) -> Self {
        let escaped =
            |char: char| if is_printable(char) { char.to_string() } else { char.escape_unicode().to_string() };
        Self(vec![Problem { line, problem: problem.chars().map(escaped).collect() }])
    }

    /// What is wrong, by line.
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }

    /// An error at a place of a text.
    pub(crate) fn in_text(text: &str, at: usize, problem: &str) -> Self {
        Self::new(line_of(text, at), problem)
    }

    /// The error of all problems, by line, if there are any.
    pub(crate) fn of(mut problems: Vec<Problem>) -> Result<(), Self> {
        problems.sort_by_key(|problem| problem.line);
        if problems.is_empty() { Ok(()) } else { Err(Self(problems)) }
    }

    /// Reads TOML, whatever it means.
    pub(crate) fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Self> {
        DeTable::parse(text).map_err(|error| Self::of_toml(text, &error))
    }

    /// Reads TOML. Fields that are missing, or that nobody knows, in any of the tables are told all at once.
    ///
    /// # Errors
    ///
    /// What the TOML, or its meaning for a `T`, is wrong about.
    pub fn read<T: DeserializeOwned>(text: &str, tables: &[Fields<'_>]) -> Result<T, Self> {
        let file = Self::parse(text)?;
        let mut problems = Vec::new();
        for fields in tables {
            if fields.table.is_empty() {
                fields.check(text, 0, file.get_ref(), &mut problems);
                continue;
            }
            if let Some(entry) = file.get_ref().get(fields.table) {
                fields.check_all(text, entry.span().start, entry.get_ref(), &mut problems);
            }
        }
        Self::of(problems)?;
        toml::from_str(text).map_err(|error| Self::of_toml(text, &error))
    }

    fn of_toml(text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map_or(0, |span| span.start);
        let line = line_of(text, at);
        let field =
            text.lines().nth(line - 1).and_then(|line| line.split_once('=')).map_or("", |(field, _)| field.trim());
        let message = error.message();
        // Others name it themselves.
        let is_silent = ["invalid ", "duplicate "].iter().any(|begin| message.starts_with(begin));
        if !is_silent || message.contains(field) {
            Self::new(line, message)
        } else {
            Self::new(line, &format!("{field}: {message}"))
        }
    }

    /// Refuses names that cannot be shown as they are.
    ///
    /// # Errors
    ///
    /// It is empty, long, or has characters that control a terminal.
    pub fn check_name(text: &str, entry: &Range<usize>, name: &str) -> Result<(), Self> {
        let (shown, expected) = match name.trim() {
            "" => ("empty", "a name"),
            _ if name.len() > NAME_LEN_MAX => ("so long", "100 bytes at most"),
            _ if !name.chars().all(is_printable) => (name, "characters that can be shown"),
            _ => return Ok(()),
        };
        Err(Self::at(text, entry, "name", format!("name cannot be {shown}: {expected}")))
    }

    /// An error about a field of an entry that begins at `entry` (the range of a TOML table is its header alone): in the line where
    /// the field stands; else in the entry's first.
    pub fn at(text: &str, entry: &Range<usize>, field: &str, problem: String) -> Self {
        let mut at = entry.start;
        for (index, line) in text.get(at..).unwrap_or_default().split_inclusive('\n').enumerate() {
            if index > 0 && line.starts_with('[') {
                break;
            }
            let is_it = line.trim_start().strip_prefix(field).is_some_and(|rest| rest.trim_start().starts_with('='));
            if is_it || line.contains('{') && line.contains(field) {
                return Self::new(line_of(text, at), &problem);
            }
            at += line.len();
        }
        Self::new(line_of(text, entry.start), &problem)
    }
}

impl Fields<'_> {
    /// Looks at a table, or at all tables of an array.
    fn check_all(&self, text: &str, at: usize, entry: &DeValue<'_>, problems: &mut Vec<Problem>) {
        match entry {
            DeValue::Table(table) => self.check(text, at, table, problems),
            DeValue::Array(entries) => {
                for entry in entries.iter() {
                    self.check_all(text, entry.span().start, entry.get_ref(), problems);
                }
            }
            // Another type is told when its meaning is asked for.
            _ => {}
        }
    }

    /// Looks at a table that begins there.
    pub(crate) fn check(&self, text: &str, at: usize, table: &DeTable<'_>, problems: &mut Vec<Problem>) {
        let known = || self.required.iter().chain(self.optional);
        let quoted = |names: &[&&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        for key in table.keys() {
            let name: &str = key.get_ref();
            if known().all(|known| *known != name) {
                let all = quoted(&known().collect::<Vec<_>>());
                let problem = format!("unknown field `{name}`, expected one of {all}");
                problems.extend(FileError::new(line_of(text, key.span().start), &problem).0);
            }
        }
        let missing: Vec<&&str> = self.required.iter().filter(|name| !table.contains_key(**name)).collect();
        if !missing.is_empty() {
            let (of, s) = (if self.table.is_empty() { "" } else { " of " }, if missing.len() > 1 { "s" } else { "" });
            let problem = format!("missing field{s} {}{of}{}", quoted(&missing), self.table);
            problems.push(Problem { line: line_of(text, at), problem });
        }
    }
}

/// Whether a character can be shown: no terminal obeys it, and it does not turn the direction of others.
fn is_printable(char: char) -> bool {
    let is_format =
        matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !char.is_control() && !is_format
}

/// Bytes of a name.
const NAME_LEN_MAX: usize = 100;

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}
