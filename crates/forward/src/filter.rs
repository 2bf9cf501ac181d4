//! Finding patterns in packets (nsdi15 5): a packet's header chooses automata, and its payload goes through them. Large
//! batches are sorted, by automaton and then by length, and several payloads are walked at once.
//!
//! ```
//! use sinew_forward::filter::Filter;
//! use sinew_forward::headers::{ipv4, protocol};
//! use sinew_forward::rules;
//!
//! let rules = rules::parse("alert udp any any -> any 53 (content:\"evil\"; nocase; sid:7;)")?;
//! let mut filter = Filter::new(&rules)?;
//! let udp = [&[0, 9, 0, 53, 0, 19, 0, 0][..], b"more Evil!!"].concat();
//! let header = ipv4::header([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol::UDP, 64, udp.len());
//! let packet = [&header[..], &udp].concat();
//! let mut found = Vec::new();
//! filter.scan(&[&packet], |packet, alert| found.push((packet, rules[alert.content].line, alert.end)));
//! assert_eq!(found, [(0, 1, 9)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, HashMap};

use sinew_store::lookup::patterns::{Automaton, Job, Pattern, PatternError, scan_in_order};

use crate::headers::ipv4::{self, Ipv4};
use crate::headers::ipv6::Ipv6;
use crate::headers::protocol;
use crate::routes::LineError;
use crate::rules::{Content, Ports};

/// Packets worth gathering before a [scan](Filter::scan) (nsdi15 5).
pub const BATCH: usize = 8192;

/// A pattern found in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alert {
    /// Index of the pattern among the contents that the filter was made from.
    pub content: usize,
    /// Offset in the payload at which the pattern ends.
    pub end: usize,
}

/// Automata, and the choice of automata for each packet.
#[derive(Debug)]
pub struct Filter {
    automata: Vec<AutomatonGroup>,
    /// Automaton for each protocol (`None` is any) and port.
    groups: HashMap<(Option<u8>, Ports), u32>,
    /// Jobs of the current batch in the order of the scan: automaton and index of the text. Kept for its memory.
    order: Vec<(u32, u32)>,
}

#[derive(Debug)]
struct AutomatonGroup {
    automaton: Automaton,
    /// For each of the automaton's patterns, its index among all contents.
    contents: Vec<usize>,
}

/// A packet's payload, with the protocol and ports that choose its automata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload<'a> {
    /// The IP protocol.
    pub protocol: u8,
    /// The source and destination ports, for TCP and UDP.
    pub ports: Option<(u16, u16)>,
    /// The bytes behind the transport header for TCP and UDP, behind the IP header otherwise.
    pub bytes: &'a [u8],
}

impl<'a> Payload<'a> {
    /// The payload of an IP packet. `None` if the packet is malformed, or the header with its ports cannot be read.
    pub fn read(packet: &'a [u8]) -> Option<Self> {
        let (protocol, bytes) = match packet.first()? >> 4 {
            4 => {
                let read = Ipv4::read(packet).ok()?;
                if read.fragment & ipv4::OFFSET != 0 {
                    return None;
                }
                (read.protocol, &packet[read.header_len..read.total_len])
            }
            _ => {
                let read = Ipv6::read(packet).ok()?;
                let upper = read.upper(packet).ok()?;
                (upper.protocol, &packet[upper.at..read.total_len])
            }
        };
        let (header_len, upper_len_min) = match protocol {
            protocol::TCP => (usize::from(*bytes.get(12)? >> 4) * 4, 20),
            protocol::UDP => (8, 8),
            _ => return Some(Self { protocol, ports: None, bytes }),
        };
        if header_len < upper_len_min || bytes.len() < header_len {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        Some(Self { protocol, ports: Some((port(0), port(2))), bytes: &bytes[header_len..] })
    }
}

impl Filter {
    /// A filter for these contents: one automaton for each combination of protocol and port among them.
    ///
    /// # Errors
    ///
    /// The line of a content whose automaton would be too large.
    pub fn new(contents: &[Content]) -> Result<Self, LineError> {
        let mut by_group = BTreeMap::<_, Vec<usize>>::new();
        for (number, content) in contents.iter().enumerate() {
            by_group.entry((content.protocol, content.ports)).or_default().push(number);
        }
        let (mut automata, mut groups) = (Vec::new(), HashMap::new());
        for (key, numbers) in by_group {
            let patterns = numbers.iter().map(|number| contents[*number].pattern.clone());
            let wrong = |error: PatternError| {
                let line = numbers.last().map_or(0, |number| contents[*number].line);
                LineError { line, problem: error.to_string() }
            };
            let automaton = Automaton::new(patterns).map_err(wrong)?;
            groups.insert(key, automata.len() as u32);
            automata.push(AutomatonGroup { automaton, contents: numbers });
        }
        Ok(Self { automata, groups, order: Vec::new() })
    }

    /// A filter over these groups of patterns, which [`Self::scan_assigned`] chooses by index. A content's index counts
    /// through all groups.
    ///
    /// # Errors
    ///
    /// As [`Automaton::new`].
    pub fn of_groups(groups: impl IntoIterator<Item = Vec<Pattern>>) -> Result<Self, PatternError> {
        let mut next = 0;
        let group = |patterns: Vec<Pattern>| {
            let contents = (next..next + patterns.len()).collect();
            next += patterns.len();
            Ok(AutomatonGroup { automaton: Automaton::new(patterns)?, contents })
        };
        let automata = groups.into_iter().map(group).collect::<Result<_, _>>()?;
        Ok(Self { automata, groups: HashMap::new(), order: Vec::new() })
    }

    /// Number of automata, of their states, and of the bytes of their tables.
    pub fn size(&self) -> (usize, usize, usize) {
        let sum = |of: fn(&Automaton) -> usize| self.automata.iter().map(|group| of(&group.automaton)).sum();
        (self.automata.len(), sum(Automaton::states), sum(Automaton::bytes))
    }

    /// The automata that a payload goes through: those for its ports and those for any port.
    fn automata_for(&self, payload: &Payload<'_>) -> impl Iterator<Item = u32> {
        let group_of = |protocol| {
            let ports = payload.ports.map(|(from, to)| [Ports::From(from), Ports::To(to)]);
            let ports = ports.into_iter().flatten().chain([Ports::Any]);
            ports.filter_map(move |ports| self.groups.get(&(protocol, ports)).copied())
        };
        group_of(Some(payload.protocol)).chain(group_of(None))
    }

    /// Finds the patterns in the payloads of IP packets, and hands each hit to `found` with the packet's index, in no
    /// particular order. Packets whose payload cannot be read are skipped.
    pub fn scan(&mut self, packets: &[&[u8]], found: impl FnMut(usize, Alert)) {
        let payloads: Vec<Option<Payload<'_>>> = packets.iter().map(|packet| Payload::read(packet)).collect();
        let chosen = payloads.iter().zip(0..).filter_map(|(payload, number)| Some((payload.as_ref()?, number)));
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(
            chosen.flat_map(|(payload, number)| self.automata_for(payload).map(move |automaton| (automaton, number))),
        );
        let text = |number: u32| payloads[number as usize].map_or(&[][..], |payload| payload.bytes);
        self.scan_sorted(&mut order, text, found);
        self.order = order;
    }

    /// As [`Self::scan`], packet by packet without sorting: the baseline.
    pub fn scan_plain(&self, packets: &[&[u8]], mut found: impl FnMut(usize, Alert)) {
        for (number, packet) in packets.iter().enumerate() {
            let Some(payload) = Payload::read(packet) else { continue };
            for automaton in self.automata_for(&payload) {
                self.scan_one(automaton, payload.bytes, |alert| found(number, alert));
            }
        }
    }

    /// Finds the patterns of one automaton in one text.
    ///
    /// # Panics
    ///
    /// When there is no such automaton.
    #[inline]
    pub fn scan_one(&self, automaton: u32, text: &[u8], mut found: impl FnMut(Alert)) {
        let AutomatonGroup { automaton, contents } = &self.automata[automaton as usize];
        automaton.scan(text, |hit| found(Alert { content: contents[hit.pattern as usize], end: hit.end as usize }));
    }

    /// Finds patterns in texts, each given with its automaton. The texts are sorted by automaton and then by length if
    /// `is_sorted`, and stay in their order otherwise.
    ///
    /// # Panics
    ///
    /// When there is no such automaton.
    pub fn scan_assigned(&mut self, texts: &[(u32, &[u8])], is_sorted: bool, found: impl FnMut(usize, Alert)) {
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(texts.iter().zip(0..).map(|((automaton, _), number)| (*automaton, number)));
        let text = |number: u32| texts[number as usize].1;
        if is_sorted {
            self.scan_sorted(&mut order, text, found);
        } else {
            self.scan_interleaved(&order, text, found);
        }
        self.order = order;
    }

    /// Sorts jobs by automaton, the longest texts first, and runs them.
    fn scan_sorted<'a>(
        &self,
        order: &mut [(u32, u32)],
        text: impl Fn(u32) -> &'a [u8],
        found: impl FnMut(usize, Alert),
    ) {
        order.sort_unstable_by_key(|(automaton, number)| (*automaton, std::cmp::Reverse(text(*number).len())));
        self.scan_interleaved(order, text, found);
    }

    fn scan_interleaved<'a>(
        &self,
        order: &[(u32, u32)],
        text: impl Fn(u32) -> &'a [u8],
        mut found: impl FnMut(usize, Alert),
    ) {
        let job = |(automaton, number): &(u32, u32)| Job {
            automaton: &self.automata[*automaton as usize].automaton,
            text: text(*number),
        };
        let jobs: Vec<Job<'_>> = order.iter().map(job).collect();
        scan_in_order(&jobs, 0..jobs.len(), |at, hit| {
            let (automaton, number) = order[at];
            let content = self.automata[automaton as usize].contents[hit.pattern as usize];
            found(number as usize, Alert { content, end: hit.end as usize });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    fn packet(protocol: u8, ports: (u16, u16), text: &[u8]) -> Vec<u8> {
        let mut upper = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
        upper.resize(if protocol == 6 { 20 } else { 8 }, 0x50);
        upper.extend(text);
        [&ipv4::header([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol, 64, upper.len())[..], &upper].concat()
    }

    #[test]
    fn a_packet_goes_through_the_automata_of_its_ports_and_those_of_all() {
        let text = "alert tcp any any -> any 80 (content:\"web\";)
alert tcp any 80 -> any any (content:\"from\";)
alert tcp any any -> any any (content:\"any\";)
alert udp any any -> any 80 (content:\"web\";)
alert ip any any -> any any (content:\"IP\"; nocase;)";
        let rules = rules::parse(text).unwrap();
        let mut filter = Filter::new(&rules).unwrap();
        let all = b"web from any ip";
        let packets = [
            packet(6, (1, 80), all),
            packet(6, (80, 1), all),
            packet(17, (1, 80), all),
            packet(1, (1, 80), all),
            packet(6, (1, 80), b""),
            packet(6, (1, 80), all)[..30].to_vec(),
        ];
        let packets: Vec<&[u8]> = packets.iter().map(|packet| &**packet).collect();
        let mut found = Vec::new();
        filter.scan(&packets, |packet, alert| found.push((packet, rules[alert.content].line)));
        found.sort_unstable();
        assert_eq!(found, [(0, 1), (0, 3), (0, 5), (1, 2), (1, 3), (1, 5), (2, 4), (2, 5), (3, 5)]);
        let mut plain = Vec::new();
        filter.scan_plain(&packets, |packet, alert| plain.push((packet, rules[alert.content].line)));
        plain.sort_unstable();
        assert_eq!(plain, found);
    }
}
