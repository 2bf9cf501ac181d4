//! Forwarding of named data (nsdi15 4): an Interest leaves by the port of the longest prefix of its name, with its hop
//! limit decremented.
//!
//! There is no table of pending Interests, so Data cannot find its way back; it is counted as [`Reason::NotInterest`].

use arrayvec::ArrayVec;
use sinew_fabric::MAX_BURST;
use sinew_fabric::frames::{ETHERNET_HEADER_LEN, LentFrame};
use sinew_store::lookup::names::{Name, NameError, NameTable};

use crate::burst::{Application, Fate, Fates, Outbox};
use crate::counters::{Counters, Reason};
use crate::form::Form;
use crate::headers::{self, ether_type, ndn};
use crate::routes::{LineError, lines, position_of_name};

/// Name prefixes to forward by, each with its port and the line that it was read from.
pub type Prefixes = Vec<(Vec<u8>, u16, usize)>;

/// Reads name prefixes, one per line: `/org/example dev lan`.
///
/// # Errors
///
/// The first line that is wrong: not a name, an empty component, an unknown port, or a prefix that was given before.
pub fn parse<'a>(text: &str, ports: impl Iterator<Item = &'a str> + Clone) -> Result<Prefixes, LineError> {
    let mut prefixes = Prefixes::new();
    let mut seen = std::collections::HashMap::new();
    for (line, words) in lines(text) {
        let wrong = |problem: String| LineError { line, problem };
        let &[name, "dev", port] = &words[..] else {
            return Err(wrong("write NAME dev INTERFACE, as /org/example dev lan".to_owned()));
        };
        Name::new(name.as_bytes()).map_err(|error| wrong(format!("`{name}`: {error}")))?;
        let port = position_of_name(port, ports.clone()).map_err(wrong)?;
        if let Some(first) = seen.insert(name.to_owned(), line) {
            return Err(wrong(format!("{name} stands in line {first} already")));
        }
        prefixes.push((name.as_bytes().to_vec(), port, line));
    }
    Ok(prefixes)
}

/// The named-data forwarder; see the [module](self).
#[derive(Debug)]
pub struct NameForwarder {
    table: NameTable,
    form: Form,
    counters: Counters,
    /// Names of the current burst.
    name_bytes: Vec<u8>,
}

impl NameForwarder {
    /// A forwarder by these prefixes. `seed` seeds the hash of its table.
    ///
    /// # Errors
    ///
    /// The line of a prefix for which there is no room, or whose hash collides with another's.
    pub fn new(prefixes: &Prefixes, form: Form, seed: u64) -> Result<Self, LineError> {
        let bytes = prefixes.iter().map(|(name, ..)| 8 + name.len().next_multiple_of(8)).sum();
        let wrong = |line: usize| move |error: NameError| LineError { line, problem: error.to_string() };
        let mut table = NameTable::new(prefixes.len().max(1), bytes, seed).map_err(wrong(0))?;
        for (name, port, line) in prefixes {
            let name = Name::new(name).map_err(wrong(*line))?;
            table.insert(name, *port).map_err(wrong(*line))?;
        }
        Ok(Self::with_table(table, form))
    }

    /// A forwarder by a table whose next hops are ports.
    pub fn with_table(table: NameTable, form: Form) -> Self {
        Self { table, form, counters: Counters::default(), name_bytes: Vec::new() }
    }

    /// Takes over another forwarder's prefixes and form. Returns the previous state, with counters at zero.
    pub fn install(&mut self, other: Self) -> Self {
        let counters = std::mem::take(&mut self.counters);
        std::mem::replace(self, Self { counters, ..other })
    }

    /// Number of prefixes.
    pub fn prefixes(&self) -> usize {
        self.table.len()
    }

    fn read(frame: &[u8], names: &mut Vec<u8>) -> Result<Option<usize>, Reason> {
        if frame.len() < ETHERNET_HEADER_LEN {
            return Err(Reason::Truncated);
        }
        if headers::type_of(frame) != ether_type::NDN {
            return Err(Reason::Type);
        }
        let read = ndn::read(&frame[ETHERNET_HEADER_LEN..], names)?;
        let hop_limit_at = read.hop_limit_at.map(|at| at + ETHERNET_HEADER_LEN);
        if hop_limit_at.is_some_and(|at| frame[at] == 0) {
            return Err(Reason::TimeToLive);
        }
        Ok(hop_limit_at)
    }
}

impl Application for NameForwarder {
    fn process<L: LentFrame>(&mut self, from: u16, _: u64, frames: &mut [L], fates: &mut Fates, _: &mut Outbox) {
        let mut read = ArrayVec::<(u8, Option<usize>, usize), MAX_BURST>::new();
        fates.clear();
        self.counters.received += frames.len() as u64;
        self.name_bytes.clear();
        for (at, frame) in (0..).zip(frames.iter()) {
            fates.push(Fate::Drop);
            let before = self.name_bytes.len();
            match Self::read(frame.bytes(), &mut self.name_bytes) {
                Ok(hop_limit_at) => read.push((at, hop_limit_at, self.name_bytes.len())),
                Err(reason) => {
                    self.name_bytes.truncate(before);
                    self.counters.drop(reason);
                }
            }
        }
        let mut names = ArrayVec::<Name<'_>, MAX_BURST>::new();
        let mut name_start = 0;
        read.retain(|(_, _, end)| {
            let text = &self.name_bytes[name_start..*end];
            name_start = *end;
            let name = Name::new(text);
            if name.is_err() {
                self.counters.drop(Reason::Name);
            }
            name.map(|name| names.push(name)).is_ok()
        });
        let mut ports = [None; MAX_BURST];
        let found = &mut ports[..names.len()];
        match self.form {
            Form::Plain => names.iter().zip(found).for_each(|(name, port)| *port = self.table.get(*name)),
            Form::Interleaved(batch) => drop(self.table.get_all(batch, names.iter().copied(), found)),
            Form::Grouped => self.table.get_grouped(&names, found),
        }
        for ((at, hop_limit_at, _), port) in read.iter().zip(ports) {
            let at = usize::from(*at);
            fates[at] = match port {
                None => {
                    self.counters.drop(Reason::NoRoute);
                    continue;
                }
                Some(port) if port == from => {
                    self.counters.drop(Reason::Destination);
                    continue;
                }
                Some(port) => Fate::Forward(port),
            };
            if let Some(hop_limit_at) = hop_limit_at {
                frames[at].bytes_mut()[*hop_limit_at] -= 1;
            }
            self.counters.forwarded += 1;
        }
    }

    fn set_form(&mut self, form: Form) {
        self.form = form;
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_line_by_line_and_what_is_wrong_is_named() {
        let read = |text: &str| parse(text, ["a", "b"].into_iter());
        let prefixes = read("/org/example dev a\n/ dev b # all else\n").unwrap();
        assert_eq!(prefixes, [(b"/org/example".to_vec(), 0, 1), (b"/".to_vec(), 1, 2)]);
        for (text, problem) in [
            ("/org//example dev a", "the component at byte 5 is empty"),
            ("org dev a", "begins with `/`"),
            ("/org dev c", "no interface called c"),
            ("/org via a", "write NAME dev"),
            ("/x dev b", "stands in line 1"),
        ] {
            let error = read(&format!("/x dev a\n{text}")).unwrap_err();
            assert!(error.line == 2 && error.problem.contains(problem), "{text}: {error}");
        }
    }
}
