//! Sizes and figures as people write and read them.

/// Reads a size in bytes: `32`, `64K`, `8M`, `1G` (powers of 1024).
pub fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.trim_end_matches(['b', 'B', 'i']).char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1usize),
    };
    let number: usize = digits.parse().map_err(|_| format!("`{text}` is no size: write 32, 64K, 8M or 1G"))?;
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` is more than this machine can address"))
}

/// Writes a size as it would be read.
pub fn size(bytes: usize) -> String {
    for (factor, unit) in [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{} {unit}", bytes / factor);
        }
    }
    format!("{bytes} B")
}

/// A time, in the unit that reads best.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e4 => format!("{:.2} us", ns / 1e3),
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns => format!("{:.1} ms", ns / 1e6),
    }
}

/// A figure with about three digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The middle value; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// A number for JSON with no more digits than mean something.
pub fn rounded(value: f64) -> f64 {
    let scale = match value.abs() {
        v if v >= 1000.0 => 1.0,
        v if v >= 10.0 => 100.0,
        _ => 10_000.0,
    };
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        for (text, bytes) in
            [("32", 32), ("0", 0), ("64K", 65536), ("8M", 8 << 20), ("8MB", 8 << 20), ("1GiB", 1 << 30)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "x", "8Q", "-1", "M", "99999999999999999999", "99999999999G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn figures_read_well() {
        assert_eq!((size(8 << 20), size(32), size(1500)), ("8 MB".into(), "32 B".into(), "1500 B".into()));
        assert_eq!((time(91.0), time(1234.0), time(52_300.0)), ("91 ns".into(), "1.23 us".into(), "52.3 us".into()));
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
