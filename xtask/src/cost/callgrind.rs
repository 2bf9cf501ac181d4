//! Reads what callgrind writes: the executions of each instruction.

use std::collections::HashMap;

use anyhow::{Context, bail};

use super::disassembly::Special;

/// An instruction of a program or library.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeAddress {
    /// The file that holds it.
    pub object: String,
    /// Address within the object.
    pub address: u64,
}

/// An instruction that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    pub place: CodeAddress,
    /// Function that contains it, after inlining.
    pub function: String,
    pub times: u64,
    /// Kind that the disassembly shows; `None` until that is read.
    pub special: Option<Special>,
}

/// Reads a profile with a line for each instruction and names written out (`--dump-instr=yes --compress-strings=no
/// --compress-pos=no`).
pub fn read(profile: &str) -> anyhow::Result<Vec<Executed>> {
    let (mut object, mut function) = ("", "");
    let mut executed: HashMap<CodeAddress, Executed> = HashMap::new();
    let (mut total, mut claimed) = (0, None);
    let mut is_of_callee = false;
    for line in profile.lines() {
        if let Some(address) = line.strip_prefix("0x") {
            // The line after `calls=` holds the callee's cost, which the callee's own lines count as well.
            if std::mem::take(&mut is_of_callee) {
                continue;
            }
            let mut words = address.split(' ');
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            // Between address and count is the source's line.
            let times = words.nth(1).and_then(|word| word.parse::<u64>().ok());
            let (Some(address), Some(times), None) = (address, times, words.next()) else {
                bail!("callgrind wrote a malformed line of costs: {line}");
            };
            total += times;
            let place = CodeAddress { object: object.to_owned(), address };
            executed
                .entry(place.clone())
                .or_insert_with(|| Executed { place, function: function.to_owned(), times: 0, special: None })
                .times += times;
            continue;
        }
        let Some((key, value)) = line.split_once(['=', ':']) else { continue };
        match key {
            "ob" => object = value,
            "fn" => function = value,
            "calls" => is_of_callee = true,
            "positions" if value.trim() != "instr line" => bail!("callgrind's positions are{value}"),
            "events" if value.trim() != "Ir" => bail!("callgrind's events are{value}"),
            "totals" | "summary" => {
                claimed = Some(value.trim().parse::<u64>().context("callgrind's sum is not a number")?)
            }
            _ => {}
        }
    }
    if claimed != Some(total) {
        bail!("callgrind's sum is {claimed:?} instructions, but its lines add up to {total}");
    }
    let mut executed: Vec<_> = executed.into_values().collect();
    executed.sort_by(|a, b| a.place.cmp(&b.place));
    Ok(executed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "# callgrind format\nversion: 1\npositions: instr line\nevents: Ir\nsummary: 26\n\n\
        ob=/w/cost\nfl=???\nfn=(below main)\ncob=/lib/libc.so.6\ncfi=./csu.c\ncfn=main\ncalls=1 0x27280 242 \n0x106b 0 26\n\n\
        fl=/w/ring.rs\nfn=step::{{closure}}\n0x1139 2 2\nfi=/w/words.rs\n0x1140 49 7\n\
        cob=/lib/libc.so.6\ncfi=./getc.c\ncfn=getc\ncalls=7 0x7dce0 34 \n0x1157 49 10\nfe=/w/ring.rs\n0x1139 3 7\n\n\
        ob=/lib/libc.so.6\nfl=./getc.c\nfn=getc\n0x7dce0 34 10\n\ntotals: 26\n";

    #[test]
    fn costs_of_callees_count_once_and_lines_of_one_instruction_are_added() {
        let read = read(PROFILE).unwrap();
        let seen: Vec<_> =
            read.iter().map(|one| (&*one.place.object, one.place.address, &*one.function, one.times)).collect();
        let expected = [
            ("/lib/libc.so.6", 0x7dce0, "getc", 10),
            ("/w/cost", 0x1139, "step::{{closure}}", 9),
            ("/w/cost", 0x1140, "step::{{closure}}", 7),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_profile_that_does_not_add_up_or_counts_other_things_is_refused() {
        for (from, to) in [
            ("totals: 26", "totals: 27"),
            ("totals: 26", "totals: x"),
            ("positions: instr line", "positions: line"),
            ("events: Ir", "events: Ir Dr"),
            ("0x1139 2 2", "0x1139 2"),
            ("0x1139 2 2", "0x1139 2 2 2"),
            ("0x1139 2 2", "0xg139 2 2"),
        ] {
            assert!(read(&PROFILE.replace(from, to)).is_err(), "{to}");
        }
        assert!(read("events: Ir\n").is_err(), "an end is missing");
    }
}
