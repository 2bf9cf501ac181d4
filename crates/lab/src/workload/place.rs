//! Checks of the fields of one part of a workload's file, with errors that name its lines.

use std::ops::{Range, RangeInclusive};

use sinew_sim::FileError;

/// Longest of all times, in ms.
pub const MS_MAX: f64 = 60_000.0;

/// A part of the file, to which errors refer.
pub struct EntryPlace<'a> {
    pub text: &'a str,
    pub entry: Range<usize>,
}

impl EntryPlace<'_> {
    pub fn error(&self, field: &str, problem: String) -> FileError {
        FileError::at(self.text, &self.entry, field, problem)
    }

    pub fn need(&self, holds: bool, field: &str, value: &str, expected: &str) -> Result<(), FileError> {
        if holds { Ok(()) } else { Err(self.error(field, format!("{field} cannot be {value}: {expected}"))) }
    }

    pub fn time_ns(&self, field: &str, ms: f64, least_ms: f64) -> Result<u64, FileError> {
        let expected = format!("{least_ms} to {MS_MAX} ms");
        self.need((least_ms..=MS_MAX).contains(&ms), field, &ms.to_string(), &expected)?;
        Ok((ms * 1e6).round() as u64)
    }

    pub fn number(&self, field: &str, value: usize, bounds: RangeInclusive<usize>) -> Result<usize, FileError> {
        let expected = format!("{} to {}", bounds.start(), bounds.end());
        self.need(bounds.contains(&value), field, &value.to_string(), &expected)?;
        Ok(value)
    }
}
