//! Congestion control in a workload's file.

use serde::Deserialize;
use serde_spanned::Spanned;
use sinew_rpc::{Algorithm, Congestion, DcqcnConfig, SwiftConfig, TimelyConfig};
use sinew_sim::{Fields, FileError, Topology};

use super::place::EntryPlace;

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Name {
    None,
    Timely,
    Swift,
    Dcqcn,
}

/// An algorithm, and parameters that differ from its defaults.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    algorithm: Name,
    low_us: Option<f64>,
    high_us: Option<f64>,
    min_rtt_us: Option<f64>,
    target_us: Option<f64>,
    scaling_us: Option<f64>,
    step_mbps: Option<f64>,
    step_packets: Option<f64>,
    cut: Option<f64>,
    cut_most: Option<f64>,
    newest: Option<f64>,
    /// Whether Timely is used in its patched form; else it is the form published first.
    patched: Option<bool>,
    rate_min_mbps: Option<f64>,
}

/// Fields of the entry.
pub const FIELDS: Fields = Fields {
    table: "congestion",
    required: &["algorithm"],
    optional: &[
        "low_us",
        "high_us",
        "min_rtt_us",
        "target_us",
        "scaling_us",
        "step_mbps",
        "step_packets",
        "cut",
        "cut_most",
        "newest",
        "patched",
        "rate_min_mbps",
    ],
};

/// Refuses an algorithm that would never learn of congestion.
///
/// # Errors
///
/// [`FileError`] when the algorithm relies on marks, and no switch marks packets.
pub fn check(text: &str, entry: &Spanned<Entry>, topology: &Topology) -> Result<(), FileError> {
    let ignores_marks =
        entry.get_ref().algorithm == Name::Dcqcn && topology.switches.iter().all(|switch| switch.ecn.is_none());
    let expected = "it goes by marks, and no switch of the topology marks packets: give its switches ecn = {}, or choose timely or swift, \
                    which go by round trips";
    EntryPlace { text, entry: entry.span() }.need(!ignores_marks, "algorithm", "dcqcn here", expected)
}

/// A field with its value, the value's bounds, the factor to the parameter's unit, and the parameter; none if the
/// algorithm lacks it.
struct Field<'a> {
    name: &'static str,
    value: Option<f64>,
    bounds: std::ops::RangeInclusive<f64>,
    unit: f64,
    to: Option<&'a mut f64>,
}

/// Reads an entry. Its rate is set later, to that of each client's link.
///
/// # Errors
///
/// [`FileError`] when a parameter makes no sense or belongs to another algorithm.
pub fn read(text: &str, entry: &Spanned<Entry>) -> Result<Option<Congestion>, FileError> {
    let (place, entry) = (EntryPlace { text, entry: entry.span() }, entry.get_ref());
    let (mut timely, mut swift, mut dcqcn) = (TimelyConfig::default(), SwiftConfig::default(), DcqcnConfig::default());
    let mut times =
        [timely.low_ns, timely.high_ns, timely.min_rtt_ns, swift.target_ns, swift.scaling_ns].map(|ns| ns as f64);
    let [low, high, min_rtt, target, scaling] = &mut times;
    let (is_timely, is_swift, is_dcqcn) =
        (entry.algorithm == Name::Timely, entry.algorithm == Name::Swift, entry.algorithm == Name::Dcqcn);
    // If several algorithms have a parameter, the chosen algorithm's is set.
    let of = |is_it: bool, to| is_it.then_some(to);
    let cut = of(is_timely, &mut timely.cut).or(of(is_swift, &mut swift.cut));
    let newest = of(is_timely, &mut timely.ewma_gain).or(of(is_dcqcn, &mut dcqcn.ewma_gain));
    let step = of(is_timely, &mut timely.step_bytes_per_s).or(of(is_dcqcn, &mut dcqcn.step_bytes_per_s));
    let least = of(is_timely, &mut timely.rate_min_bytes_per_s).or(of(is_dcqcn, &mut dcqcn.rate_min_bytes_per_s));
    let (us, mbps, part) = (0.1..=1e6, 0.001..=4e6, 1e-6..=1.0);
    let of_another = |name| place.error(name, format!("{name} is no parameter of this algorithm"));
    let field = |name, value, bounds: &std::ops::RangeInclusive<f64>, unit, to| Field {
        name,
        value,
        bounds: bounds.clone(),
        unit,
        to,
    };
    for field in [
        field("low_us", entry.low_us, &us, 1e3, of(is_timely, low)),
        field("high_us", entry.high_us, &us, 1e3, of(is_timely, high)),
        field("min_rtt_us", entry.min_rtt_us, &us, 1e3, of(is_timely, min_rtt)),
        field("target_us", entry.target_us, &us, 1e3, of(is_swift, target)),
        field("scaling_us", entry.scaling_us, &us, 1e3, of(is_swift, scaling)),
        field("step_mbps", entry.step_mbps, &mbps, 1e6 / 8.0, step),
        field("step_packets", entry.step_packets, &(1e-3..=1e3), 1.0, of(is_swift, &mut swift.step)),
        field("cut", entry.cut, &part, 1.0, cut),
        field("cut_most", entry.cut_most, &part, 1.0, of(is_swift, &mut swift.cut_most)),
        field("newest", entry.newest, &part, 1.0, newest),
        field("rate_min_mbps", entry.rate_min_mbps, &mbps, 1e6 / 8.0, least),
    ] {
        let Field { name, value: Some(value), bounds, unit, to } = field else { continue };
        let expected = format!("{} to {}", bounds.start(), bounds.end());
        place.need(bounds.contains(&value), name, &value.to_string(), &expected)?;
        *to.ok_or_else(|| of_another(name))? = value * unit;
    }
    if let Some(patched) = entry.patched {
        if !is_timely {
            return Err(of_another("patched"));
        }
        timely.is_patched = patched;
    }
    let [low, high, min_rtt, target, scaling] = times.map(|ns| ns.round() as u64);
    (timely.low_ns, timely.high_ns, timely.min_rtt_ns) = (low, high, min_rtt);
    (swift.target_ns, swift.scaling_ns) = (target, scaling);
    let field = if entry.low_us.is_some() { "low_us" } else { "high_us" };
    place.need(low < high, field, &format!("{} us", low as f64 / 1e3), "low_us is less than high_us")?;
    let algorithm = match entry.algorithm {
        Name::None => return Ok(None),
        Name::Timely => Algorithm::Timely(timely),
        Name::Swift => Algorithm::Swift(swift),
        Name::Dcqcn => Algorithm::Dcqcn(dcqcn),
    };
    Ok(Some(Congestion::new(1.0, algorithm)))
}
