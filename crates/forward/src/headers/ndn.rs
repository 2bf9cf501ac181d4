//! Interests of named data networking (NDN packet format 0.3), encoded as nested types, lengths and values.

use crate::counters::Reason;

const INTEREST: u64 = 5;
const NAME: u64 = 7;
const COMPONENT: u64 = 8;
const HOP_LIMIT: u64 = 0x22;
/// Components that a name may have.
const COMPONENTS_MAX: usize = 64;

/// An Interest that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Offset of its hop limit in the bytes that were read, if it has one.
    pub hop_limit_at: Option<usize>,
}

/// Splits off one element: its type, its value, and the bytes behind it.
fn element(bytes: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (kind, rest) = number(bytes)?;
    let (len, rest) = number(rest)?;
    let len = usize::try_from(len).ok().filter(|len| *len <= rest.len())?;
    Some((kind, &rest[..len], &rest[len..]))
}

/// Reads a number of variable length, which must be in its shortest form.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (value, rest, least) = match bytes {
        [253, a, b, rest @ ..] => (u64::from(u16::from_be_bytes([*a, *b])), rest, 253),
        [254, a, b, c, d, rest @ ..] => (u64::from(u32::from_be_bytes([*a, *b, *c, *d])), rest, 1 << 16),
        [255, a, b, c, d, e, f, g, h, rest @ ..] => {
            (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), rest, 1 << 32)
        }
        [first @ 0..=252, rest @ ..] => (u64::from(*first), rest, 0),
        _ => return None,
    };
    (value >= least).then_some((value, rest))
}

/// Reads an Interest and appends its name to `name`: a `/` before each component, with `/` and `%` escaped as in NDN's
/// URIs. A component that is not of the generic type is preceded by its type and `=`.
///
/// # Errors
///
/// [`Reason::NotInterest`] for other packets; [`Reason::Name`] when the name is missing, has an empty component, or has
/// more than 64; [`Reason::Length`] for a hop limit that is not one byte; [`Reason::Truncated`].
pub fn read(packet: &[u8], name: &mut Vec<u8>) -> Result<Interest, Reason> {
    let (kind, inside, _) = element(packet).ok_or(Reason::Truncated)?;
    if kind != INTEREST {
        return Err(Reason::NotInterest);
    }
    let (kind, mut components, mut others) = element(inside).ok_or(Reason::Truncated)?;
    if kind != NAME || components.is_empty() {
        return Err(Reason::Name);
    }
    let mut count = 0;
    while !components.is_empty() {
        let (kind, value, rest) = element(components).ok_or(Reason::Name)?;
        count += 1;
        if value.is_empty() || count > COMPONENTS_MAX || !(1..=0xFFFF).contains(&kind) {
            return Err(Reason::Name);
        }
        name.push(b'/');
        if kind != COMPONENT {
            name.extend(kind.to_string().bytes());
            name.push(b'=');
        }
        for byte in value {
            match byte {
                b'/' => name.extend(b"%2F"),
                b'%' => name.extend(b"%25"),
                byte => name.push(*byte),
            }
        }
        components = rest;
    }
    let mut hop_limit_at = None;
    while !others.is_empty() {
        let (kind, value, rest) = element(others).ok_or(Reason::Truncated)?;
        if kind == HOP_LIMIT {
            if value.len() != 1 {
                return Err(Reason::Length);
            }
            // The value is the byte before `rest`, in the same slice, so its address gives its offset.
            hop_limit_at = Some(value.as_ptr().addr() - packet.as_ptr().addr());
        }
        others = rest;
    }
    Ok(Interest { hop_limit_at })
}

/// An Interest with a hop limit, for a name of components. Each component has fewer than 253 bytes, all together fewer
/// than 65,000.
pub fn interest(components: &[&[u8]], hop_limit: u8) -> Vec<u8> {
    fn put(into: &mut Vec<u8>, kind: u64, value: &[u8]) {
        into.push(kind as u8);
        match value.len() {
            len @ 0..=252 => into.push(len as u8),
            len => {
                into.push(253);
                into.extend((len as u16).to_be_bytes());
            }
        }
        into.extend(value);
    }
    let (mut name, mut inside, mut packet) = (Vec::new(), Vec::new(), Vec::new());
    components.iter().for_each(|component| put(&mut name, COMPONENT, component));
    put(&mut inside, NAME, &name);
    // The nonce that every Interest has.
    put(&mut inside, 10, &[1, 2, 3, 4]);
    put(&mut inside, HOP_LIMIT, &[hop_limit]);
    put(&mut packet, INTEREST, &inside);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interest_is_read_with_its_name_and_its_hop_limit() {
        let packet = interest(&[b"org", b"a/b%", &[7; 250]], 9);
        let mut name = Vec::new();
        let read = read(&packet, &mut name).unwrap();
        assert_eq!(packet[read.hop_limit_at.unwrap()], 9);
        assert_eq!(name, [&b"/org/a%2Fb%25/"[..], &[7; 250]].concat());
    }

    #[test]
    fn what_is_none_is_refused_by_reason() {
        let read = |packet: &[u8]| read(packet, &mut Vec::new()).map(|_| ());
        let good = interest(&[b"org", b"x"], 9);
        assert_eq!(read(&good), Ok(()));
        for len in 0..good.len() {
            assert_eq!(read(&good[..len]), Err(Reason::Truncated));
        }
        assert_eq!(read(&interest(&[b"org", b""], 9)), Err(Reason::Name), "an empty component");
        assert_eq!(read(&interest(&[], 9)), Err(Reason::Name));
        assert_eq!(read(&interest(&[&b"x"[..]; 65], 9)), Err(Reason::Name), "too many components");
        assert_eq!(read(&[6, 2, 7, 0]), Err(Reason::NotInterest));
        assert_eq!(read(&[5, 4, 7, 253, 0, 1]), Err(Reason::Truncated), "a length that is not in its shortest form");
        assert_eq!(read(&[5, 5, 7, 3, 8, 9, 1]), Err(Reason::Name), "a component longer than the name");
        assert_eq!(read(&[5, 8, 7, 3, 8, 1, 1, 0x22, 2, 1]), Err(Reason::Truncated));
        assert_eq!(read(&[5, 9, 7, 3, 8, 1, 1, 0x22, 2, 1, 1]), Err(Reason::Length), "a hop limit of two bytes");
    }
}
