//! The parameters of a NIC's profile: where each stands in a file and in the profile, and the values that it can have.

use toml::de::DeValue;

use super::profile::{Framing, Profile};
use super::wqe::WQE_MAX;
use crate::file::shortened;
use crate::pcie::Generation;

/// A parameter's place in the profile.
pub(super) enum Slot<'a> {
    Usize(&'a mut usize),
    U32(&'a mut u32),
    U64(&'a mut u64),
    F64(&'a mut f64),
    Generation(&'a mut Generation),
    Framing(&'a mut Framing),
}

/// Values that a parameter can have.
#[derive(Clone, Copy)]
pub(super) enum Range {
    /// A whole number from one number to another.
    Count(u64, u64),
    /// A number from one number to another.
    Real(f64, f64),
    /// One of these numbers.
    Among(&'static [u64]),
    /// A power of two up to this one.
    PowerOfTwo(u64),
    /// A framing's name.
    Name,
}

/// A parameter in a file.
pub(super) struct Field {
    pub table: &'static str,
    pub name: &'static str,
    range: Range,
    /// Whether `scale` multiplies it.
    pub is_scaled: bool,
    pub slot: fn(&mut Profile) -> Slot<'_>,
}

macro_rules! fields {
    ($($table:ident.$name:ident: $kind:ident $(($scaled:ident))? = $($place:ident).+, $range:expr;)*) => {
        &[$(Field {
            table: stringify!($table),
            name: stringify!($name),
            range: $range,
            is_scaled: {
                const MARKS: &[&str] = &[$(stringify!($scaled))?];
                !MARKS.is_empty()
            },
            slot: |profile| Slot::$kind(&mut profile.$($place).+),
        }),*]
    };
}

/// A time on a NIC or a core, in ns: at most a millisecond.
const TIME: Range = Range::Count(0, 1_000_000);
/// A unit's time in ns that cannot be 0, so that no rate is infinite.
const WORK: Range = Range::Real(0.01, 100_000.0);
/// A unit's time in ns that can be 0.
const EXTRA: Range = Range::Real(0.0, 100_000.0);
/// Entries of a NIC's cache.
const ENTRIES: Range = Range::Count(1, 1 << 30);

/// All parameters, in the order of files.
pub(super) const FIELDS: &[Field] = fields! {
    pcie.generation: Generation = pcie.link.generation, Range::Count(1, 5);
    pcie.lanes: U32 = pcie.link.lanes, Range::Among(&[1, 2, 4, 8, 16, 32]);
    pcie.completion_max: Usize = pcie.link.completion_max, Range::Among(&[64, 128, 256, 512, 1024, 2048, 4096]);
    pcie.read_latency_ns: U64 = pcie.read_latency_ns, Range::Count(1, 1_000_000);
    pcie.write_latency_ns: U64 = pcie.write_latency_ns, TIME;
    wqe.header_connected: Usize = wqe.header_connected, Range::Count(4, 256);
    wqe.header_datagram: Usize = wqe.header_datagram, Range::Count(4, 256);
    wqe.receive: Usize = wqe.receive, Range::Count(1, 1024);
    wqe.inline_max: Usize = wqe.inline_max, Range::Count(0, WQE_MAX as u64);
    wqe.inline_receive_max: Usize = wqe.inline_receive_max, Range::Count(0, 64);
    units.requesters: Usize = units.requesters, Range::Count(1, 4096);
    units.responders: Usize = units.responders, Range::Count(1, 4096);
    units.request_ns: F64 (scaled) = units.request_ns, WORK;
    units.fetched_line_ns: F64 (scaled) = units.fetched_line_ns, EXTRA;
    units.packet_ns: F64 (scaled) = units.packet_ns, WORK;
    units.dma_write_ns: F64 (scaled) = units.dma_write_ns, EXTRA;
    units.dma_read_ns: F64 (scaled) = units.dma_read_ns, EXTRA;
    units.atomic_ns: F64 (scaled) = units.atomic_ns, EXTRA;
    units.atomic_hold_ns: U64 (scaled) = units.atomic_hold_ns, TIME;
    units.atomic_locks: U32 = units.atomic_locks, Range::PowerOfTwo(1 << 20);
    units.mmio_line_ns: F64 (scaled) = units.mmio_line_ns, EXTRA;
    units.fetch_max: Usize = units.fetch_max, Range::Count(1, 1 << 20);
    units.pipeline_ns: U64 = units.pipeline_ns, TIME;
    units.reads_max: Usize = units.reads_max, Range::Count(1, 1024);
    caches.requester_states: Usize = caches.requester_states, ENTRIES;
    caches.responder_states: Usize = caches.responder_states, ENTRIES;
    caches.state_reads: Usize = caches.state_reads, Range::Count(1, 16);
    caches.wqes: Usize = caches.wqes, ENTRIES;
    caches.translations: Usize = caches.translations, ENTRIES;
    caches.page_bytes: U64 = caches.page_bytes, Range::PowerOfTwo(1 << 40);
    link.framing: Framing = link.framing, Range::Name;
    link.rate_gbps: F64 = link.rate_gbps, Range::Real(0.1, 3200.0);
    link.mtu: Usize = link.mtu, Range::Among(&[256, 512, 1024, 2048, 4096]);
    link.switch_ns: U64 = link.switch_ns, TIME;
    link.cable_ns: U64 = link.cable_ns, TIME;
    core.count: Usize = core.count, Range::Count(1, 4096);
    core.post_ns: U64 = core.post_ns, TIME;
    core.mmio_line_ns: U64 = core.mmio_line_ns, TIME;
    core.doorbell_ns: U64 = core.doorbell_ns, TIME;
    core.receive_ns: U64 = core.receive_ns, TIME;
    core.completion_ns: U64 = core.completion_ns, TIME;
    core.look_ns: U64 = core.look_ns, Range::Count(1, 1_000_000);
    core.copy_line_ns: U64 = core.copy_line_ns, TIME;
    core.memory_ns: U64 = core.memory_ns, TIME;
    core.contended_ns: U64 = core.contended_ns, TIME;
    core.interrupt_ns: U64 = core.interrupt_ns, TIME;
    core.time_slice_ns: U64 = core.time_slice_ns, Range::Count(100_000, 1_000_000_000);
    registration.call_ns: U64 = registration.call_ns, Range::Count(0, 1_000_000_000);
    registration.page_ns: U64 = registration.page_ns, TIME;
    registration.copy_bytes_per_ns: F64 = registration.copy_bytes_per_ns, Range::Real(0.01, 1000.0);
};

/// A value in a file.
pub(super) enum Value {
    Number { number: f64, text: String, is_whole: bool },
    Text(String),
}

impl Value {
    pub fn of(value: &DeValue<'_>) -> Option<Self> {
        match value {
            DeValue::Integer(integer) => {
                let number = i64::from_str_radix(integer.as_str(), integer.radix()).ok()? as f64;
                Some(Self::Number { number, text: integer.to_string(), is_whole: true })
            }
            DeValue::Float(float) => {
                let number: f64 = float.as_str().parse().ok()?;
                Some(Self::Number { number, text: float.to_string(), is_whole: false })
            }
            DeValue::String(text) => Some(Self::Text(text.to_string())),
            _ => None,
        }
    }

    /// The value as an error quotes it.
    pub fn shown(&self) -> String {
        match self {
            Self::Number { text, .. } => shortened(text),
            Self::Text(text) => format!("\"{}\"", shortened(text)),
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Number { text, .. } | Self::Text(text) => text,
        }
    }
}

impl Range {
    /// Returns the value as a number, if it is in this range.
    pub fn take(self, value: &Value) -> Option<f64> {
        let &Value::Number { number, is_whole, .. } = value else { return None };
        let is_in = match self {
            Self::Count(low, high) => is_whole && (low as f64..=high as f64).contains(&number),
            Self::Real(low, high) => (low..=high).contains(&number),
            Self::Among(all) => is_whole && all.iter().any(|one| *one as f64 == number),
            Self::PowerOfTwo(high) => {
                is_whole && (1.0..=high as f64).contains(&number) && (number as u64).is_power_of_two()
            }
            Self::Name => false,
        };
        is_in.then_some(number)
    }

    /// Description of the range.
    pub fn expected(self) -> String {
        match self {
            Self::Count(low, high) => format!("a whole number from {low} to {high}"),
            Self::Real(low, high) => format!("a number from {low} to {high}"),
            Self::Among(all) => listed(all),
            Self::PowerOfTwo(high) => format!("a power of two up to {high}"),
            Self::Name => listed(&Framing::ALL.map(Framing::name)),
        }
    }
}

/// Joins values as in `a, b or c`.
fn listed(all: &[impl ToString]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    match all.split_last() {
        Some((last, first)) if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => all.concat(),
    }
}

impl Slot<'_> {
    pub fn text(&self) -> String {
        match self {
            Self::Usize(value) => value.to_string(),
            Self::U32(value) => value.to_string(),
            Self::U64(value) => value.to_string(),
            // The product with a scale has meaningless digits.
            Self::F64(value) => ((**value * 1e4).round() / 1e4).to_string(),
            Self::Generation(value) => value.number().to_string(),
            Self::Framing(value) => value.name().to_owned(),
        }
    }

    fn set(self, number: f64) {
        match self {
            Self::Usize(value) => *value = number as usize,
            Self::U32(value) => *value = number as u32,
            Self::U64(value) => *value = number as u64,
            Self::F64(value) => *value = number,
            Self::Generation(value) => *value = Generation::ALL[number as usize - 1],
            Self::Framing(_) => {}
        }
    }
}

impl Field {
    pub fn path(&self) -> String {
        format!("{}.{}", self.table, self.name)
    }

    /// Sets the parameter in a profile.
    ///
    /// # Errors
    ///
    /// The text of an error, which quotes the value and says which values are allowed.
    pub fn set(&self, profile: &mut Profile, value: Value) -> Result<(), String> {
        let slot = (self.slot)(profile);
        let problem = || format!("{} cannot be {}: {}", self.path(), value.shown(), self.range.expected());
        if let Slot::Framing(framing) = slot {
            let name = Framing::ALL.into_iter().find(|framing| framing.name() == value.text());
            *framing = name.ok_or_else(problem)?;
            return Ok(());
        }
        slot.set(self.range.take(&value).ok_or_else(problem)?);
        Ok(())
    }

    pub fn scale(&self, profile: &mut Profile, scale: f64) {
        match (self.slot)(profile) {
            Slot::F64(value) => *value *= scale,
            Slot::U64(value) => *value = (*value as f64 * scale).round() as u64,
            _ => {}
        }
    }
}
