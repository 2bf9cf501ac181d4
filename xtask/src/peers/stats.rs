//! Medians, and the spread of single figures.

use serde_json::{Value, json};

/// The median, least and greatest of a few figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub figures: Vec<f64>,
}

impl Spread {
    /// Computes them from at least one figure. With an even number of figures, the median is the mean of the two in the
    /// middle.
    pub fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let (min, max) = (sorted[0], sorted[sorted.len() - 1]);
        Self { median: f64::midpoint(low, high), min, max, figures: figures.to_vec() }
    }

    /// Formats them as `median (min - max)`.
    pub fn show(&self, unit: impl Fn(f64) -> String) -> String {
        format!("{} ({} - {})", unit(self.median), unit(self.min), unit(self.max))
    }

    pub fn to_json(&self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max, "runs": self.figures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        let spread = Spread::of(&[9.0, 1.0, 2.0]);
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 9.0));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 9.0]).median, 3.0);
        assert_eq!(Spread::of(&[7.0]).median, 7.0);
    }
}
