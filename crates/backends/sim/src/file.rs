//! Errors in users' TOML files, with line numbers.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde_spanned::Spanned;
use toml::de::{DeTable, DeValue};

/// The problems of a topology file or another of its kind, by line; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError(Vec<Problem>);

/// A problem in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// Description of the problem.
    pub problem: String,
}

/// The fields that a table of a file has.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    /// The table's name. An empty name is the file itself, whose tables are among its fields.
    pub table: &'a str,
    /// Fields that it must have.
    pub required: &'a [&'a str],
    /// Fields that it may have.
    pub optional: &'a [&'a str],
}

/// Most characters of a file's text that an error quotes.
const REPEATED_MAX: usize = 40;

/// Cuts a text of a file to the length that an error quotes.
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
    /// An error in a line. Characters that control a terminal are escaped, since the problem may quote the file.
    pub fn new(line: usize, problem: &str) -> Self {
        let escaped =
            |char: char| if is_printable(char) { char.to_string() } else { char.escape_unicode().to_string() };
        Self(vec![Problem { line, problem: problem.chars().map(escaped).collect() }])
    }

    /// The problems, by line.
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }

    /// An error at byte `at` of a text.
    pub(crate) fn in_text(text: &str, at: usize, problem: &str) -> Self {
        Self::new(line_of(text, at), problem)
    }

    /// Returns all problems as one error, by line, if there are any.
    pub(crate) fn of(mut problems: Vec<Problem>) -> Result<(), Self> {
        problems.sort_by_key(|problem| problem.line);
        if problems.is_empty() { Ok(()) } else { Err(Self(problems)) }
    }

    /// Parses TOML without interpreting it.
    pub(crate) fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Self> {
        DeTable::parse(text).map_err(|error| Self::of_toml(text, &error))
    }

    /// Reads TOML. All missing and all unknown fields of the tables are reported at once.
    ///
    /// # Errors
    ///
    /// [`FileError`]: the text is no TOML, or is no `T`.
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
        let offset = error.span().map_or(0, |span| span.start);
        let line = line_of(text, offset);
        let field =
            text.lines().nth(line - 1).and_then(|line| line.split_once('=')).map_or("", |(field, _)| field.trim());
        let message = error.message();
        // Other messages name the field themselves.
        let has_no_position = ["invalid ", "duplicate "].iter().any(|begin| message.starts_with(begin));
        if !has_no_position || message.contains(field) {
            Self::new(line, message)
        } else {
            Self::new(line, &format!("{field}: {message}"))
        }
    }

    /// Refuses names that cannot be shown as they are.
    ///
    /// # Errors
    ///
    /// The name is empty, longer than 100 bytes, or has characters that control a terminal.
    pub fn check_name(text: &str, entry: &Range<usize>, name: &str) -> Result<(), Self> {
        let (shown, expected) = match name.trim() {
            "" => ("empty", "a name"),
            _ if name.len() > NAME_LEN_MAX => ("that long", "at most 100 bytes"),
            _ if !name.chars().all(is_printable) => (name, "characters that can be shown"),
            _ => return Ok(()),
        };
        Err(Self::at(text, entry, "name", format!("name cannot be {shown}: {expected}")))
    }

    /// An error about a field of an entry that begins at `entry` (the range of a TOML table is its header alone). It
    /// names the field's line, or the entry's first line where the field is not found.
    pub fn at(text: &str, entry: &Range<usize>, field: &str, problem: String) -> Self {
        let mut at = entry.start;
        for (index, line) in text.get(at..).unwrap_or_default().split_inclusive('\n').enumerate() {
            if index > 0 && line.starts_with('[') {
                break;
            }
            let is_entry = line.trim_start().strip_prefix(field).is_some_and(|rest| rest.trim_start().starts_with('='));
            if is_entry || line.contains('{') && line.contains(field) {
                return Self::new(line_of(text, at), &problem);
            }
            at += line.len();
        }
        Self::new(line_of(text, entry.start), &problem)
    }
}

impl Fields<'_> {
    /// Checks a table, or all tables of an array.
    fn check_all(&self, text: &str, at: usize, entry: &DeValue<'_>, problems: &mut Vec<Problem>) {
        match entry {
            DeValue::Table(table) => self.check(text, at, table, problems),
            DeValue::Array(entries) => {
                for entry in entries.iter() {
                    self.check_all(text, entry.span().start, entry.get_ref(), problems);
                }
            }
            // Any other type is reported when the file is deserialized.
            _ => {}
        }
    }

    /// Checks a table that begins at byte `at`.
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

/// Whether a character can be shown: it does not control a terminal, nor change the direction of text.
fn is_printable(char: char) -> bool {
    let is_format =
        matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !char.is_control() && !is_format
}

/// Most bytes of a name.
const NAME_LEN_MAX: usize = 100;

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}
