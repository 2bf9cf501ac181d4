//! Distributions of the lengths of messages.

use sinew_harness::units::counted;
use sinew_sim::FileError;

/// Most points of a curve.
const POINTS_MAX: usize = 100_000;
/// Most characters of a word that an error quotes.
const QUOTED_MAX: usize = 20;

/// Lengths of messages, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// One length.
    Fixed(usize),
    /// All lengths from the first to the second, equally often.
    Uniform(usize, usize),
    /// These lengths, with these weights.
    Mixed(Vec<(usize, f64)>),
    /// The distribution in a file.
    Curve(Curve),
}

impl Sizes {
    /// The shortest and the longest length.
    pub fn bounds(&self) -> (usize, usize) {
        match self {
            Self::Fixed(len) => (*len, *len),
            Self::Uniform(from, to) => (*from, *to),
            Self::Mixed(lens) => {
                let lens = || lens.iter().map(|(len, _)| *len);
                (lens().min().unwrap_or(0), lens().max().unwrap_or(0))
            }
            Self::Curve(curve) => curve.bounds(),
        }
    }

    /// Draws a length. `chance` is a random number from 0 to 1.
    pub(super) fn draw(&self, chance: f64) -> usize {
        match self {
            Self::Fixed(len) => *len,
            Self::Uniform(from, to) => from + (chance * (to - from + 1) as f64) as usize,
            Self::Mixed(lens) => {
                let mut rest = chance * lens.iter().map(|(_, weight)| weight).sum::<f64>();
                let found = lens.iter().find(|(_, weight)| {
                    rest -= weight;
                    rest < 0.0
                });
                found.or(lens.last()).map_or(0, |(len, _)| *len)
            }
            Self::Curve(curve) => curve.draw(chance),
        }
    }
}

/// A distribution given by points; between two points, all lengths are equally likely.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Vec<(usize, f64)>);

impl Curve {
    /// Reads lines with a length in bytes and the percentage of all messages that are no longer, separated by spaces or
    /// a comma; the last percentage is 100. A `#` begins a comment. The first line's percentage of messages have
    /// exactly its length.
    ///
    /// # Errors
    ///
    /// [`FileError`], with the line.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let mut points: Vec<(usize, f64)> = Vec::new();
        let mut last_line = 1;
        for (index, line) in text.lines().enumerate() {
            let (line, number) = (line.split('#').next().unwrap_or_default(), index + 1);
            let error = |problem: String| Err(FileError::new(number, &problem));
            let words: Vec<&str> =
                line.split(|char: char| char.is_whitespace() || char == ',').filter(|word| !word.is_empty()).collect();
            let (bytes, percent) = match words[..] {
                [] => continue,
                [bytes, percent] => (bytes, percent),
                _ => return error("BYTES PERCENT is expected, such as 4096 50".to_owned()),
            };
            let Ok(len) = bytes.parse::<usize>() else {
                return error(format!("`{}` is no number of bytes", quoted(bytes)));
            };
            let Some(percent) = percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent)) else {
                return error(format!("`{}` is no percentage: 0 to 100", quoted(percent)));
            };
            if let Some((before, percent_before)) = points.last() {
                if len < *before {
                    return error(format!("{} after {before}: lengths rise, or stay the same", counted(len, "byte")));
                }
                if percent < *percent_before {
                    let what = "a percentage counts all messages that are no longer, so it cannot fall";
                    return error(format!("{percent} percent after {percent_before}: {what}"));
                }
            }
            if points.len() == POINTS_MAX {
                return error(format!("a distribution has {POINTS_MAX} points at most"));
            }
            points.push((len, percent));
            last_line = number;
        }
        match points.last() {
            None => Err(FileError::new(1, "there is no point: write lines of BYTES PERCENT, the last of 100 percent")),
            Some((_, percent)) if *percent < 100.0 => {
                let problem = "it must be 100, since no message is longer than the longest";
                Err(FileError::new(last_line, &format!("the last percentage is {percent}: {problem}")))
            }
            Some(_) => Ok(Self(points)),
        }
    }

    fn bounds(&self) -> (usize, usize) {
        let len = |point: Option<&(usize, f64)>| point.map_or(0, |(len, _)| *len);
        (len(self.0.first()), len(self.0.last()))
    }

    fn draw(&self, chance: f64) -> usize {
        let target = chance * 100.0;
        let at = self.0.partition_point(|(_, percent)| *percent <= target);
        match (at.checked_sub(1).map(|before| self.0[before]), self.0.get(at)) {
            (None, Some((len, _))) => *len,
            (Some((len, _)), None) => len,
            (Some((from, percent)), Some((to, next))) => {
                from + ((target - percent) / (next - percent) * (to - from) as f64).round() as usize
            }
            (None, None) => 0,
        }
    }
}

/// A word, of which only the beginning is kept if it is long.
fn quoted(word: &str) -> String {
    let begin: String = word.chars().take(QUOTED_MAX).collect();
    if begin.len() < word.len() { format!("{begin}...") } else { begin }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_drawn_as_often_as_was_asked_for() {
        let count = |sizes: &Sizes, len: usize| {
            (0..1000).filter(|number| sizes.draw(f64::from(*number) / 1000.0) == len).count()
        };
        assert_eq!(count(&Sizes::Fixed(7), 7), 1000);
        let uniform = Sizes::Uniform(10, 13);
        assert_eq!([9, 10, 11, 12, 13, 14].map(|len| count(&uniform, len)), [0, 250, 250, 250, 250, 0]);
        let mixed = Sizes::Mixed(vec![(32, 3.0), (1000, 1.0)]);
        assert_eq!([32, 1000].map(|len| count(&mixed, len)), [750, 250]);
        assert_eq!((uniform.bounds(), mixed.bounds()), ((10, 13), (32, 1000)));
    }

    #[test]
    fn lengths_between_the_points_of_a_curve_are_as_likely_as_others_there() {
        let curve =
            Curve::parse("# bytes percent\n100, 20\n\n200 60  # half of the rest\n200\t80\n1200 100\n").unwrap();
        assert_eq!(curve.bounds(), (100, 1200));
        let at = |percent: f64| curve.draw(percent / 100.0);
        assert_eq!([0.0, 19.9].map(at), [100, 100]);
        assert_eq!([20.0, 40.0, 59.9].map(at), [100, 150, 200]);
        assert_eq!([60.0, 79.9].map(at), [200, 200]);
        assert_eq!([80.0, 90.0, 100.0].map(at), [200, 700, 1200]);
        assert_eq!(Curve::parse("7 100").unwrap().draw(0.5), 7);
    }

    #[test]
    fn a_curve_that_makes_no_sense_is_refused_with_its_line() {
        for (text, error) in [
            ("", "line 1: there is no point: write lines of BYTES PERCENT, the last of 100 percent"),
            ("# nothing\n", "line 1: there is no point: write lines of BYTES PERCENT, the last of 100 percent"),
            (
                "1 50\n2 99",
                "line 2: the last percentage is 99: it must be 100, since no message is longer than the longest",
            ),
            ("1 50\n0 100", "line 2: 0 bytes after 1: lengths rise, or stay the same"),
            (
                "1 50\n2 40\n3 100",
                "line 2: 40 percent after 50: a percentage counts all messages that are no longer, so it cannot fall",
            ),
            ("1 nan", "line 1: `nan` is no percentage: 0 to 100"),
            ("1 101", "line 1: `101` is no percentage: 0 to 100"),
            ("1 -1", "line 1: `-1` is no percentage: 0 to 100"),
            ("-1 100", "line 1: `-1` is no number of bytes"),
            ("1.5 100", "line 1: `1.5` is no number of bytes"),
            ("1", "line 1: BYTES PERCENT is expected, such as 4096 50"),
            ("1 2 3", "line 1: BYTES PERCENT is expected, such as 4096 50"),
            ("99999999999999999999999 100", "line 1: `99999999999999999999...` is no number of bytes"),
            ("\u{1b}[2J 100", "line 1: `\\u{1b}[2J` is no number of bytes"),
        ] {
            assert_eq!(Curve::parse(text).unwrap_err().to_string(), error, "{text:?}");
        }
        let long = "1 0\n".repeat(100_001);
        assert!(
            Curve::parse(&long).unwrap_err().to_string().starts_with("line 100001: a distribution has 100000 points")
        );
    }
}
