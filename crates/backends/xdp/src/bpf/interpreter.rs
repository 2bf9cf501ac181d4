//! An interpreter that executes a program's bytes as the kernel would, slowly and with every access checked.

use std::collections::HashMap;

use super::KEY_LEN;

/// Decision of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    /// The socket's index.
    Redirect(u32),
}

/// Contents of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Nothing,
    Number(u64),
    /// Pointer to the description of the frame.
    Context,
    /// Pointer into the frame.
    Data(i64),
    DataEnd,
    /// Pointer into the stack, relative to its end.
    Stack(i64),
    Map(i32),
    /// Pointer to the value of a key.
    Found(u32),
}

pub(super) struct Machine<'a> {
    pub places: &'a HashMap<[u8; KEY_LEN], u32>,
    pub places_fd: i32,
    pub sockets_fd: i32,
    pub frame: &'a [u8],
    pub queue: u32,
}

impl Machine<'_> {
    /// Runs a program on the frame.
    ///
    /// # Panics
    ///
    /// When the program does something that the verifier would refuse.
    pub fn run(&self, program: &[u8]) -> Verdict {
        use Value::*;
        let mut registers = [Nothing; 11];
        (registers[1], registers[10]) = (Context, Stack(0));
        let mut stack = [None::<u8>; 512];
        // Bytes of the frame whose presence the program has checked.
        let mut checked_len = 0i64;
        let mut at = 0;
        for _ in 0..10_000 {
            let bytes: [u8; 8] = program[at * 8..at * 8 + 8].try_into().unwrap();
            let (to, from) = (usize::from(bytes[1] & 15), usize::from(bytes[1] >> 4));
            let offset = i64::from(i16::from_le_bytes([bytes[2], bytes[3]]));
            let number = i32::from_le_bytes(bytes[4..8].try_into().unwrap());
            let size = match bytes[0] & 0x18 {
                0x00 => 4,
                0x08 => 2,
                0x10 => 1,
                _ => 8,
            };
            at += 1;
            match bytes[0] {
                0x18 => {
                    assert_eq!(from, 1, "only maps are loaded");
                    registers[to] = Map(number);
                    at += 1;
                }
                0x61 | 0x69 | 0x71 => {
                    registers[to] = match registers[from] {
                        Context => match offset {
                            0 => Data(0),
                            4 => DataEnd,
                            16 => Number(self.queue.into()),
                            _ => panic!("an unknown field of the context"),
                        },
                        Data(base) => {
                            let start = base + offset;
                            assert!(start >= 0 && start + size <= checked_len, "{start} + {size} beyond {checked_len}");
                            let mut value = [0; 8];
                            let range = start as usize..(start + size) as usize;
                            value[..size as usize].copy_from_slice(&self.frame[range]);
                            Number(u64::from_le_bytes(value))
                        }
                        Found(value) => {
                            assert_eq!((offset, size), (0, 4));
                            Number(value.into())
                        }
                        other => panic!("a load from {other:?}"),
                    }
                }
                0x62 | 0x6a | 0x72 | 0x63 | 0x6b | 0x73 => {
                    let Stack(base) = registers[to] else { panic!("a store outside the stack") };
                    let value = match (bytes[0] & 1, registers[from]) {
                        (0, _) => number as i64 as u64,
                        (_, Number(value)) => value,
                        (_, other) => panic!("a store of {other:?}"),
                    };
                    let start = base + offset + 512;
                    assert!(start >= 0 && start + size <= 512 && start % size == 0, "a store at {start} of the stack");
                    for (index, byte) in value.to_le_bytes()[..size as usize].iter().enumerate() {
                        stack[start as usize + index] = Some(*byte);
                    }
                }
                0x07 => {
                    registers[to] = match registers[to] {
                        Number(value) => Number(value.wrapping_add(number as i64 as u64)),
                        Data(base) => Data(base + i64::from(number)),
                        Stack(base) => Stack(base + i64::from(number)),
                        other => panic!("an addition to {other:?}"),
                    }
                }
                0x0f | 0x57 | 0x67 => {
                    let Number(value) = registers[to] else { panic!("arithmetic on {:?}", registers[to]) };
                    registers[to] = Number(match (bytes[0], registers[from]) {
                        (0x0f, Number(other)) => value.wrapping_add(other),
                        (0x57, _) => value & number as i64 as u64,
                        (0x67, _) => value << number,
                        (_, other) => panic!("an addition of {other:?}"),
                    });
                }
                0xb7 => registers[to] = Number(number as i64 as u64),
                0xbf => {
                    assert_ne!(registers[from], Nothing);
                    registers[to] = registers[from];
                }
                0x05 => at += offset as usize,
                0x15 | 0x25 | 0x55 => {
                    let value = match registers[to] {
                        Number(value) => value,
                        Found(_) if number == 0 => 1,
                        other => panic!("a comparison of {other:?}"),
                    };
                    let other = number as i64 as u64;
                    let is_taken = match bytes[0] {
                        0x15 => value == other,
                        0x25 => value > other,
                        _ => value != other,
                    };
                    at += if is_taken { offset as usize } else { 0 };
                }
                0x2d => {
                    let (Data(base), DataEnd) = (registers[to], registers[from]) else {
                        panic!("an unknown comparison")
                    };
                    if base > self.frame.len() as i64 {
                        at += offset as usize;
                    } else {
                        checked_len = checked_len.max(base);
                    }
                }
                0x85 => {
                    let result = match (number, registers[1], registers[2]) {
                        (1, Map(fd), Stack(base)) if fd == self.places_fd => {
                            let start = (base + 512) as usize;
                            let key = stack[start..start + KEY_LEN].iter().map(|byte| byte.expect("it was written"));
                            let key: [u8; KEY_LEN] = key.collect::<Vec<_>>().try_into().unwrap();
                            self.places.get(&key).map_or(Number(0), |&slot| Found(slot))
                        }
                        (51, Map(fd), Number(index)) if fd == self.sockets_fd => {
                            assert_eq!(registers[3], Number(2), "without a socket the frame is the kernel's");
                            assert_eq!(program[at * 8], 0x95, "the redirection is the verdict");
                            return Verdict::Redirect(index as u32);
                        }
                        other => panic!("a call {other:?}"),
                    };
                    registers[..6].fill(Nothing);
                    registers[0] = result;
                }
                0x95 => {
                    assert_eq!(registers[0], Number(2));
                    return Verdict::Pass;
                }
                code => panic!("an unknown instruction {code:#x}"),
            }
        }
        panic!("the program does not end");
    }
}
