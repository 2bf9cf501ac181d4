//! How a figure is written.

/// A figure with about three digits, two below one.
pub fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 || v == 0.0 => 2,
        v => (1.0 - v.log10().floor()).min(9.0) as usize,
    };
    format!("{value:.decimals$}")
}
