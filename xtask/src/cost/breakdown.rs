//! Breaks an operation's instructions down by function and by line.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;

use super::callgrind::Executed;
use super::disassembly::Special;
use super::measure::{Measured, Programs};

/// A function, possibly inlined, and a line in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame {
    function: String,
    file: String,
    line: String,
}

impl Frame {
    /// Name and file. The name of an inlined function is only its last part, so the file tells such functions apart.
    fn named(&self) -> String {
        format!("{} ({})", self.function, self.file)
    }
}

/// The frames of each address, innermost first.
type Frames = HashMap<u64, Vec<Frame>>;

/// Executions of a function's instructions.
#[derive(Default)]
struct Sums {
    own: u64,
    with_inlined: u64,
    locked: u64,
    system_calls: u64,
}

/// Lists instructions by function. Code inlined into it from outside the project (the standard library, other crates)
/// counts as the function's own; the second figure also includes code inlined from the project.
pub fn by_function(programs: &Programs, row: &Measured, top: usize) -> anyhow::Result<String> {
    let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
    for_each_executed(programs, row, |one, frames| {
        let own = frames.first().map_or_else(|| one.function.clone(), Frame::named);
        let sum = sums.entry(own).or_default();
        sum.own += one.times;
        match one.special {
            Some(Special::Locked) => sum.locked += one.times,
            Some(Special::SystemCall) => sum.system_calls += one.times,
            _ => {}
        }
        if frames.is_empty() {
            sum.with_inlined += one.times;
        }
        for (at, frame) in frames.iter().enumerate() {
            // A function inlined into itself counts once.
            if frames[..at].iter().all(|inner| inner.named() != frame.named()) {
                sums.entry(frame.named()).or_default().with_inlined += one.times;
            }
        }
    })?;
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(a, a_sums), (b, b_sums)| {
        (b_sums.own, b_sums.with_inlined, a).cmp(&(a_sums.own, a_sums.with_inlined, b))
    });
    let mut text =
        format!("\n{}, {}: instructions by function\n{:>9} {:>12}\n", row.operation, row.side, "own", "with inlined");
    let per = |times: u64| times as f64 / row.operations as f64;
    for (at, (function, sum)) in sums.iter().enumerate() {
        let mut special_counts = String::new();
        for (times, what) in [(sum.locked, "locked"), (sum.system_calls, "system calls")] {
            if times > 0 {
                _ = write!(special_counts, ", {:.3} {what}", per(times));
            }
        }
        // Functions with locked instructions or system calls are always shown.
        if at < top || !special_counts.is_empty() {
            _ = writeln!(text, "{:9.2} {:12.2}  {function}{special_counts}", per(sum.own), per(sum.with_inlined));
        }
    }
    Ok(text)
}

/// Lists instructions by the project's lines; code of other crates counts for the line that it was inlined into.
pub fn by_line(programs: &Programs, row: &Measured, top: usize) -> anyhow::Result<String> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for_each_executed(programs, row, |one, frames| {
        let place = match frames.first() {
            Some(own) => format!("{}:{} {}", own.file, own.line, own.function),
            None => one.function.clone(),
        };
        *sums.entry(place).or_default() += one.times;
    })?;
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(a, a_sum), (b, b_sum)| (b_sum, a).cmp(&(a_sum, b)));
    let mut text = format!("\n{}, {}: instructions by line\n", row.operation, row.side);
    for (place, sum) in sums.iter().take(top) {
        _ = writeln!(text, "{:9.2}  {place}", *sum as f64 / row.operations as f64);
    }
    Ok(text)
}

/// Calls `see` with each executed instruction and those of its frames that are the project's.
fn for_each_executed(
    programs: &Programs,
    row: &Measured,
    mut see: impl FnMut(&Executed, &[Frame]),
) -> anyhow::Result<()> {
    let mut by_object: BTreeMap<&str, Vec<&Executed>> = BTreeMap::new();
    for one in &row.executed {
        by_object.entry(&one.place.object).or_default().push(one);
    }
    for (object, executed) in by_object {
        let addresses: Vec<u64> = executed.iter().map(|one| one.place.address).collect();
        let frames = own_frames(addr2line(object, &addresses)?, &programs.root);
        for one in executed {
            see(one, frames.get(&one.place.address).map_or(&[], Vec::as_slice));
        }
    }
    Ok(())
}

/// Asks addr2line for the functions and lines of instructions.
fn addr2line(object: &str, addresses: &[u64]) -> anyhow::Result<Frames> {
    let mut child = Command::new("addr2line")
        .args(["--addresses", "--functions", "--inlines", "--demangle", "--exe", object])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start addr2line")?;
    let mut questions = child.stdin.take().context("it has a standard input")?;
    let text: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    // addr2line answers while it reads, so another thread writes to it.
    let asking = std::thread::spawn(move || questions.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    asking.join().map_err(|_| anyhow::anyhow!("asking addr2line failed"))??;
    Ok(read(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads answers: for each address a line with it, then two lines for each frame: the function, and the file and line.
fn read(answers: &str) -> Frames {
    let mut frames = Frames::new();
    let mut lines = answers.lines();
    let mut current = None;
    while let Some(line) = lines.next() {
        if let Some(address) = line.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            current = Some(frames.entry(address).or_default());
            continue;
        }
        let (Some(current), Some(place)) = (current.as_mut(), lines.next()) else { break };
        // `file:line`, possibly followed by ` (discriminator 2)`.
        let place = place.split(" (").next().unwrap_or(place);
        let (file, line_of) = place.rsplit_once(':').unwrap_or((place, "?"));
        current.push(Frame { function: short(line), file: file.to_owned(), line: line_of.to_owned() });
    }
    frames
}

/// Keeps the frames whose files are the project's, with their paths from its root.
fn own_frames(mut frames: Frames, root: &Path) -> Frames {
    let root = format!("{}/", root.display());
    for of_address in frames.values_mut() {
        of_address.retain_mut(|frame| {
            let own = frame.file.strip_prefix(&root).map(str::to_owned);
            own.map(|own| frame.file = own).is_some()
        });
    }
    frames
}

/// Returns a function's name without the hash at its end.
fn short(function: &str) -> String {
    let hash = function.rfind("::h").filter(|at| {
        let digits = &function[at + 3..];
        digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    });
    function[..hash.unwrap_or(function.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: &str = "0x0000000000001139\ncore::ptr::write::h0123456789abcdef\n/rustc/1/library/core/src/ptr/mod.rs:7\n\
        sinew_mem::ring::Producer::push\n/w/crates/mem/src/ring.rs:12 (discriminator 2)\n\
        sinew_shm::tx::push\n/w/crates/backends/shm/src/tx.rs:30\n0x0000000000001140\n??\n??:0\n";

    #[test]
    fn frames_are_read_innermost_first_and_only_the_projects_are_kept() {
        let frames = read(ANSWERS);
        let functions: Vec<&str> = frames[&0x1139].iter().map(|frame| &*frame.function).collect();
        assert_eq!(functions, ["core::ptr::write", "sinew_mem::ring::Producer::push", "sinew_shm::tx::push"]);
        let own = own_frames(frames, Path::new("/w"));
        let expected = Frame {
            function: "sinew_mem::ring::Producer::push".to_owned(),
            file: "crates/mem/src/ring.rs".to_owned(),
            line: "12".to_owned(),
        };
        assert_eq!((own[&0x1139].len(), &own[&0x1139][0]), (2, &expected));
        assert!(own[&0x1140].is_empty());
    }

    #[test]
    fn only_a_hash_is_taken_from_a_name() {
        assert_eq!(short("a::b::h0123456789abcdef"), "a::b");
        assert_eq!(short("a::hash"), "a::hash");
        assert_eq!(short("memcpy"), "memcpy");
    }
}
