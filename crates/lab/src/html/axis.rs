//! Axes: the places of their marks, and the marks' labels.

/// Marks of an axis from 0 to at least `most`: about five, at round numbers. The last is the end of the axis.
pub fn marks(most: f64) -> Vec<f64> {
    if !(most.is_finite() && most > 0.0) {
        return vec![0.0, 1.0];
    }
    let rough = (most / 5.0).max(f64::MIN_POSITIVE);
    let magnitude = 10f64.powi(rough.log10().floor() as i32);
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * magnitude).into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(rough);
    let count = (most / step - 1e-9).ceil().max(1.0);
    if !(step.is_normal() && (count * step).is_finite()) {
        return vec![0.0, most];
    }
    (0..=count as u32).map(|mark| f64::from(mark) * step).collect()
}

/// The number at a mark, with no more digits than it needs.
pub fn label(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value.abs() >= 1e7 || value.abs() < 1e-3 => format!("{value:.1e}"),
        value => {
            let text = format!("{value:.3}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

/// A part of a length for CSS, from 0 to 100 %.
pub fn percent(part: f64) -> String {
    let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
    format!("{:.2}%", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_the_last_is_not_below_what_is_shown() {
        assert_eq!(marks(24.9), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!(marks(25.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!(marks(0.92), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(marks(1060.0), [0.0, 250.0, 500.0, 750.0, 1000.0, 1250.0]);
        for most in [f64::NAN, f64::INFINITY, 0.0, -1.0, f64::MIN_POSITIVE, 1e-300, 1e300, f64::MAX] {
            let marks = marks(most);
            assert!(
                marks.len() >= 2 && marks.len() < 12 && marks.iter().all(|mark| mark.is_finite()),
                "{most}: {marks:?}"
            );
        }
    }

    #[test]
    fn a_label_has_no_more_digits_than_it_needs() {
        assert_eq!([0.0, 0.6000000000000001, 2.5, 1250.0, 1e9].map(label), ["0", "0.6", "2.5", "1250", "1.0e9"]);
        assert_eq!([f64::NAN, -1.0, 0.5, 7.0].map(percent), ["0.00%", "0.00%", "50.00%", "100.00%"]);
    }
}
