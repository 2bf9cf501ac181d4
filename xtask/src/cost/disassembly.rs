//! Finds the instructions of a program that are locked, system calls, or copies.

use std::collections::HashMap;
use std::process::Command;

use crate::process;

/// Kind of an instruction that is not plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Has a lock prefix, or costs as much: an exchange with memory, a full fence.
    Locked,
    SystemCall,
    /// Copies or fills bytes, and is counted once for each repetition.
    Copy,
}

/// The special instructions of an object, by address.
pub type Specials = HashMap<u64, Special>;

/// Disassembles an object.
pub fn of(object: &str) -> anyhow::Result<Specials> {
    Ok(read(&process::output(Command::new("objdump").args(["-d", "-w", "--no-show-raw-insn", object]))?))
}

fn read(disassembly: &str) -> Specials {
    let lines = disassembly.lines().filter_map(|line| {
        let (address, instruction) = line.split_once(":\t")?;
        let address = u64::from_str_radix(address.trim_start(), 16).ok()?;
        Some((address, special(instruction)?))
    });
    lines.collect()
}

fn special(instruction: &str) -> Option<Special> {
    let mut words = instruction.split_whitespace();
    let mut is_repeated = false;
    loop {
        let word = words.next()?;
        match word {
            "lock" => return Some(Special::Locked),
            "rep" | "repz" | "repnz" => is_repeated = true,
            // Other prefixes, which change nothing here.
            "bnd" | "notrack" | "data16" | "addr32" | "cs" | "ds" | "es" | "fs" | "gs" | "ss" | "xacquire"
            | "xrelease" => {}
            "mfence" => return Some(Special::Locked),
            "syscall" | "sysenter" => return Some(Special::SystemCall),
            _ if word.starts_with("xchg") && words.next().is_some_and(|operands| operands.contains('(')) => {
                return Some(Special::Locked);
            }
            _ if is_repeated && (word.starts_with("movs") || word.starts_with("stos")) => return Some(Special::Copy),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_instructions_are_told_from_plain_ones() {
        let disassembly = "\n/w/cost:     file format elf64-x86-64\n\n0000000000001139 <step>:\n\
            \x20   1139:\tpush   %rbx\n\
            \x20   113a:\tlock xadd %rax,(%rdi)\n\
            \x20   113f:\txchg   %al,0x10(%rdi)\n\
            \x20   1142:\txchg   %ax,%ax\n\
            \x20   1144:\trep movsb %ds:(%rsi),%es:(%rdi)\n\
            \x20   1146:\tmovsbl (%rsi),%eax\n\
            \x20   1149:\tsyscall\n\
            \x20   114b:\tmfence\n\
            \x20   114e:\tcall   2000 <syscall@plt>\n\
            \x20   1153:\tcs nopw 0x0(%rax,%rax,1)\n\
            \x20   115d:\trepz ret\n";
        let mut found: Vec<_> = read(disassembly).into_iter().collect();
        found.sort_by_key(|(address, _)| *address);
        let expected = [
            (0x113a, Special::Locked),
            (0x113f, Special::Locked),
            (0x1144, Special::Copy),
            (0x1149, Special::SystemCall),
            (0x114b, Special::Locked),
        ];
        assert_eq!(found, expected);
    }
}
