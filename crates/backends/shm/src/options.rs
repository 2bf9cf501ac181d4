//! The options of a `shm://` address.

use sinew_fabric::{Address, AddressError};
use sinew_mem::ring;

/// Packets of one sender that can wait at a port, unless the address says otherwise.
pub const RING_PACKETS_DEFAULT: usize = 2047;
/// The most packets that `?ring=` may ask for. Such a ring takes some 128 MB for each sender.
pub const RING_PACKETS_MAX: usize = (1 << 19) - 1;
/// Bytes of address space of a port's arena, unless the address says otherwise. It uses memory only where it is used.
pub const ARENA_BYTES_DEFAULT: usize = 4 << 30;
/// The smallest arena, in bytes.
pub const ARENA_BYTES_MIN: usize = 1 << 20;
/// The largest arena, in bytes.
pub const ARENA_BYTES_MAX: usize = 1 << 40;

/// The most lines of a ring, whether ours or a peer's.
pub(crate) const RING_LINES_MAX: usize = ring::lines_for(RING_PACKETS_MAX);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Lines of each ring that leads to this port.
    pub ring_lines: usize,
    pub arena_bytes: usize,
}

impl Options {
    pub fn of(address: &Address) -> Result<Self, AddressError> {
        address.check_options(&["ring", "arena"])?;
        let packets = number(address, "ring", RING_PACKETS_DEFAULT, 1, RING_PACKETS_MAX)?;
        let arena = number(address, "arena", ARENA_BYTES_DEFAULT, ARENA_BYTES_MIN, ARENA_BYTES_MAX)?;
        Ok(Self { ring_lines: ring::lines_for(packets), arena_bytes: arena.next_multiple_of(4096) })
    }
}

pub(crate) fn number(
    address: &Address,
    name: &str,
    default: usize,
    min: usize,
    max: usize,
) -> Result<usize, AddressError> {
    let expected = format!("it is a whole number from {min} to {max}");
    match address.parsed_option::<usize>(name, &expected)? {
        None => Ok(default),
        Some(value) if (min..=max).contains(&value) => Ok(value),
        Some(value) => Err(AddressError::BadValue {
            address: address.to_string(),
            option: name.to_owned(),
            value: value.to_string(),
            expected,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Options, AddressError> {
        Options::of(&text.parse().unwrap())
    }

    #[test]
    fn a_ring_holds_as_many_packets_as_were_asked_for() {
        for packets in [1, 2, 100, 2047, 2048, 20_000, RING_PACKETS_MAX] {
            let options = of(&format!("shm://x?ring={packets}")).unwrap();
            assert!(ring::valid_lines(options.ring_lines));
            assert!(ring::packets_for(options.ring_lines) >= packets);
        }
        assert_eq!(of("shm://").unwrap().ring_lines, 8192);
    }

    #[test]
    fn both_sides_of_every_limit() {
        for (text, good) in [
            ("shm://x?ring=0", false),
            ("shm://x?ring=1", true),
            ("shm://x?ring=524287", true),
            ("shm://x?ring=524288", false),
            ("shm://x?ring=many", false),
            ("shm://x?arena=1048575", false),
            ("shm://x?arena=1048576", true),
            ("shm://x?arena=1099511627776", true),
            ("shm://x?arena=1099511627777", false),
            ("shm://x?rings=8", false),
        ] {
            assert_eq!(of(text).is_ok(), good, "{text}");
        }
    }
}
