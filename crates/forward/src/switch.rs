//! A layer-2 switch (nsdi15 4): a frame goes to the port behind which its destination is, found in a cuckoo table.
//! Stations are given in a file, or learnt from the frames that they send.

use arrayvec::ArrayVec;
use sinew_fabric::MAX_BURST;
use sinew_fabric::frames::{ETHERNET_HEADER_LEN, LentFrame, MacAddress};
use sinew_store::lookup::mac::{MacError, MacTable};

use crate::burst::{Application, Fate, Fates, Outbox};
use crate::counters::{Counters, Reason};
use crate::form::{Form, look_up};
use crate::headers;
use crate::routes::{LineError, lines, position_of_name};

/// Time for which learnt stations are kept, in nanoseconds. All are forgotten at once, and learnt again from the next
/// frames.
pub const LEARNT_NS: u64 = 300_000_000_000;
/// First five bytes of the addresses that no bridge forwards (802.1D 7.12.6); the last byte is 0 to 15.
const BRIDGE_GROUP_PREFIX: [u8; 5] = [1, 0x80, 0xC2, 0, 0];
/// Bit of a table value that marks a learnt station.
const LEARNT_BIT: u16 = 1 << 15;

/// Stations known beforehand, each with its port.
pub type Stations = Vec<(MacAddress, u16)>;

/// Reads stations, one per line: `02:00:00:00:00:01 dev lan`.
///
/// # Errors
///
/// The first line that is wrong: not a station's address, an unknown port, or a station that was given before.
pub fn parse<'a>(text: &str, ports: impl Iterator<Item = &'a str> + Clone) -> Result<Stations, LineError> {
    let mut stations = Stations::new();
    let mut seen = std::collections::HashMap::new();
    for (line, words) in lines(text) {
        let wrong = |problem: String| LineError { line, problem };
        let &[address, "dev", port] = &words[..] else {
            return Err(wrong("write ADDRESS dev INTERFACE, as 02:00:00:00:00:01 dev lan".to_owned()));
        };
        let mac = parse_mac(address).ok_or_else(|| wrong(format!("`{address}` is no Ethernet address")))?;
        if !mac.is_unicast() || mac == MacAddress::default() {
            return Err(wrong(format!("{mac} is no station's address, so no port has it")));
        }
        let port = position_of_name(port, ports.clone()).map_err(wrong)?;
        if let Some(first) = seen.insert(mac, line) {
            return Err(wrong(format!("{mac} stands in line {first} already")));
        }
        stations.push((mac, port));
    }
    Ok(stations)
}

/// Reads an Ethernet address in the usual notation, `02:00:00:00:00:01`; `-` is accepted for `:`.
pub fn parse_mac(text: &str) -> Option<MacAddress> {
    let mut bytes = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut bytes {
        let part =
            parts.next().filter(|part| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(MacAddress(bytes))
}

/// The switch; see the [module](self).
#[derive(Debug)]
pub struct Switch {
    table: MacTable,
    capacity: usize,
    learns: bool,
    /// Learnt stations, to be forgotten together.
    learnt_stations: Vec<MacAddress>,
    forget_ns: Option<u64>,
    form: Form,
    counters: Counters,
}

impl Switch {
    /// A switch that knows these stations. `capacity` bounds them together with those that it learns, and is raised to
    /// their number if lower. `seed` seeds the hash of its table.
    ///
    /// # Errors
    ///
    /// As [`MacTable::new`] and [`MacTable::insert`].
    pub fn new(stations: &Stations, capacity: usize, learns: bool, form: Form, seed: u64) -> Result<Self, MacError> {
        let capacity = capacity.max(stations.len());
        let mut table = MacTable::new(capacity, seed)?;
        for (mac, port) in stations {
            table.insert(mac.0, port & !LEARNT_BIT)?;
        }
        let counters = Counters::default();
        Ok(Self { table, capacity, learns, learnt_stations: Vec::new(), forget_ns: None, form, counters })
    }

    /// Takes over another switch's stations and settings; stations learnt here are forgotten. Returns the previous
    /// state, with counters at zero.
    pub fn install(&mut self, other: Self) -> Self {
        let counters = std::mem::take(&mut self.counters);
        std::mem::replace(self, Self { counters, ..other })
    }

    /// Number of stations known.
    pub fn stations(&self) -> usize {
        self.table.len()
    }

    /// Learns that a station is behind a port, unless that is known already.
    #[inline]
    fn learn(&mut self, mac: MacAddress, from: u16, known: Option<u16>, now_ns: u64) {
        // A station given beforehand does not move.
        if known.is_some_and(|known| known & LEARNT_BIT == 0 || known == from | LEARNT_BIT) {
            return;
        }
        self.learn_new(mac, from, known.is_none(), now_ns);
    }

    #[cold]
    fn learn_new(&mut self, mac: MacAddress, from: u16, is_new: bool, now_ns: u64) {
        if is_new && self.table.len() >= self.capacity {
            self.forget_learnt();
        }
        // Frames for a station that found no room are flooded. The station may already be in the table from an earlier
        // frame of this burst, so it goes on the list only if it is new there.
        if matches!(self.table.insert(mac.0, from | LEARNT_BIT), Ok(None)) {
            self.learnt_stations.push(mac);
            self.forget_ns.get_or_insert(now_ns.saturating_add(LEARNT_NS));
        }
    }

    fn forget_learnt(&mut self) {
        for mac in self.learnt_stations.drain(..) {
            self.table.remove(mac.0);
        }
        self.forget_ns = None;
    }
}

impl Application for Switch {
    fn process<L: LentFrame>(&mut self, from: u16, now_ns: u64, frames: &mut [L], fates: &mut Fates, _: &mut Outbox) {
        let mut addresses = ArrayVec::<[u8; 6], MAX_BURST>::new();
        let mut sources = ArrayVec::<[u8; 6], MAX_BURST>::new();
        let mut frame_indices = ArrayVec::<u8, MAX_BURST>::new();
        fates.clear();
        self.counters.received += frames.len() as u64;
        for (at, frame) in (0..).zip(frames.iter()) {
            let bytes = frame.bytes();
            fates.push(Fate::Drop);
            if bytes.len() < ETHERNET_HEADER_LEN {
                self.counters.drop(Reason::Truncated);
                continue;
            }
            let (to, source) = (headers::destination(bytes), headers::source(bytes));
            if !source.is_unicast() || source == MacAddress::default() {
                self.counters.drop(Reason::Station);
                continue;
            }
            if to.0[..5] == BRIDGE_GROUP_PREFIX && to.0[5] < 16 {
                self.counters.drop(Reason::Destination);
                continue;
            }
            addresses.push(to.0);
            sources.push(source.0);
            frame_indices.push(at);
        }
        let mut ports = [None; MAX_BURST];
        if self.learns {
            look_up!(self.table, self.form, &sources, &mut ports[..sources.len()]);
            for (source, port) in sources.iter().zip(ports) {
                self.learn(MacAddress(*source), from, port, now_ns);
            }
        }
        look_up!(self.table, self.form, &addresses, &mut ports[..addresses.len()]);
        for ((at, to), port) in frame_indices.iter().zip(&addresses).zip(ports) {
            let to = MacAddress(*to);
            fates[usize::from(*at)] = match port.map(|port| port & !LEARNT_BIT) {
                Some(port) if port == from => {
                    self.counters.drop(Reason::Station);
                    continue;
                }
                Some(port) if to.is_unicast() => Fate::Forward(port),
                _ => Fate::Flood,
            };
            self.counters.forwarded += 1;
        }
    }

    fn tick(&mut self, now_ns: u64, _: &mut Outbox) {
        if self.forget_ns.is_some_and(|forget_ns| now_ns >= forget_ns) {
            self.forget_learnt();
        }
    }

    fn next_ns(&self) -> Option<u64> {
        self.forget_ns
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
    fn stations_are_read_line_by_line_and_what_is_wrong_is_named() {
        let ports = ["a", "b"];
        let read = |text: &str| parse(text, ports.into_iter());
        let stations = read("# two\n02:00:00:00:00:01 dev a\n\n02-00-00-00-00-FF dev b # it\n").unwrap();
        assert_eq!(stations, [(MacAddress([2, 0, 0, 0, 0, 1]), 0), (MacAddress([2, 0, 0, 0, 0, 0xFF]), 1)]);
        for (text, problem) in [
            ("02:00:00:00:01 dev a", "no Ethernet address"),
            ("02:00:00:00:00:00:01 dev a", "no Ethernet address"),
            ("2:0:0:0:0:1 dev a", "no Ethernet address"),
            ("03:00:00:00:00:01 dev a", "no station's address"),
            ("00:00:00:00:00:00 dev a", "no station's address"),
            ("02:00:00:00:00:01 dev c", "no interface called c"),
            ("02:00:00:00:00:01 a", "write ADDRESS dev"),
            ("02:00:00:00:00:09 dev b", "stands in line 1"),
        ] {
            let error = read(&format!("02:00:00:00:00:09 dev a\n{text}")).unwrap_err();
            assert!(error.line == 2 && error.problem.contains(problem), "{text}: {error}");
        }
    }
}
