//! Numbers as memcached reads them: by the rules of C's `strtol` and its kin, ignoring everything after white space.

/// Returns the result of `strtoull` for the beginning of `text`: the magnitude, and whether it has a minus sign.
fn magnitude(text: &[u8]) -> Option<(u64, bool)> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let mut rest = &text[text.iter().take_while(|byte| is_space(byte)).count()..];
    let negative = rest.first() == Some(&b'-');
    if matches!(rest.first(), Some(b'-' | b'+')) {
        rest = &rest[1..];
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || rest.get(digits).is_some_and(|byte| !is_space(byte) && *byte != 0) {
        return None;
    }
    let number = rest[..digits]
        .iter()
        .try_fold(0u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))?;
    Some((number, negative))
}

/// Reads an unsigned number. A minus sign makes it wrap around; the result is refused if it then looks negative.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    let (number, negative) = magnitude(text)?;
    let number = if negative { number.wrapping_neg() } else { number };
    let looks_negative = number > i64::MAX as u64 && text.contains(&b'-');
    (!looks_negative).then_some(number)
}

/// The lower 32 bits of [`parse_u64`].
pub fn parse_u32(text: &[u8]) -> Option<u32> {
    parse_u64(text).map(|number| number as u32)
}

/// Reads a signed number, and returns its lower 32 bits.
pub fn parse_i32(text: &[u8]) -> Option<i32> {
    let (number, negative) = magnitude(text)?;
    let signed = if negative { 0i64.checked_sub_unsigned(number) } else { i64::try_from(number).ok() };
    signed.map(|number| number as i32)
}

/// Appends `number` in decimal.
#[inline(always)]
pub fn push_number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        assert_eq!(parse_u64(b"12"), Some(12));
        assert_eq!(parse_u64(b"\t +12\r\n"), Some(12));
        assert_eq!(parse_u64(b"12 34"), Some(12));
        for nothing in [&b""[..], b"-", b"x", b"12x", b"--1", b"+-1", b" ", b"1-"] {
            assert_eq!((parse_u64(nothing), parse_i32(nothing)), (None, None), "{nothing:?}");
        }
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!((parse_u64(b"-1"), parse_u64(b"-18446744073709551615")), (None, Some(1)));
        assert_eq!((parse_u32(b"4294967297"), parse_u32(b"-0")), (Some(1), Some(0)));
        assert_eq!((parse_i32(b"-1"), parse_i32(b"2147483648")), (Some(-1), Some(i32::MIN)));
        assert_eq!((parse_i32(b"9223372036854775807"), parse_i32(b"9223372036854775808")), (Some(-1), None));
        assert_eq!((parse_i32(b"-9223372036854775808"), parse_i32(b"-9223372036854775809")), (Some(0), None));
    }
}
