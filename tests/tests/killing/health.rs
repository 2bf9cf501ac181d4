//! The state of a file system's copies, from what its service prints.

use std::time::{Duration, Instant};

/// Time for which a change of a donor or of the service may go unnoticed.
const SETTLE: Duration = Duration::from_millis(3500);

/// State of the files, as far as the service has reported it.
pub struct Health {
    is_whole: bool,
    are_all_there: bool,
    settled: Instant,
}

impl Health {
    /// State when a service starts: it prints what it lacks, and nothing if it lacks nothing.
    pub fn new() -> Self {
        Self { is_whole: true, are_all_there: true, settled: Instant::now() + SETTLE }
    }

    /// Notes that something has happened that the service will report.
    pub fn unsettle(&mut self) {
        self.settled = Instant::now() + SETTLE;
    }

    /// Takes a line that the service printed. Returns whether data is lost.
    pub fn read_line(&mut self, line: &str) -> bool {
        if let Some((ready, all)) =
            line.strip_prefix("donors that answer: ").and_then(|counts| counts.split_once(" of "))
        {
            self.are_all_there = ready == all;
        }
        if line.contains(" a copy, which is rebuilt") {
            self.is_whole = false;
        }
        if line.contains("have all their copies") {
            self.is_whole = true;
        }
        line.contains("at no donor any more")
    }

    /// Whether a donor may be killed, because every page has all its copies.
    pub fn is_good(&self) -> bool {
        self.is_whole && self.are_all_there && self.settled <= Instant::now()
    }
}

#[test]
fn what_a_service_says_tells_whether_files_are_whole() {
    let mut health = Health::new();
    health.settled = Instant::now();
    assert!(health.is_good());
    assert!(!health.read_line("donors that answer: 3 of 4") && !health.is_good());
    assert!(!health.read_line("2 segments lack a copy, which is rebuilt where donors have room") && !health.is_good());
    assert!(!health.read_line("donors that answer: 4 of 4") && !health.is_good());
    assert!(!health.read_line("all files have all their copies") && health.is_good());
    assert!(health.read_line("1 segment is at no donor any more: files with data there cannot be read"));
}
