//! Fields of protobuf messages: numbers and strings of bytes, which is all that etcd's messages here have.

/// Wire type of numbers, and of strings of bytes.
const VARINT: u64 = 0;
const BYTES: u64 = 2;

fn put_varint(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push(number as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, later) = rest.split_first()?;
        *rest = later;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Appends a field of bytes.
pub fn put_bytes(message: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(message, field << 3 | BYTES);
    put_varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The value of a field, if the message is well-formed up to it and has it.
fn find(mut rest: &[u8], field: u64) -> Option<Value<'_>> {
    loop {
        let tag = take_varint(&mut rest)?;
        let value = match tag & 7 {
            VARINT => Value::Number(take_varint(&mut rest)?),
            BYTES => {
                let len = usize::try_from(take_varint(&mut rest)?).ok()?;
                let (bytes, later) = rest.split_at_checked(len)?;
                rest = later;
                Value::Bytes(bytes)
            }
            _ => return None,
        };
        if tag >> 3 == field {
            return Some(value);
        }
    }
}

/// A field that is a number. One that is 0 is left out of a message, and not found.
pub fn number(message: &[u8], field: u64) -> Option<u64> {
    if let Some(Value::Number(number)) = find(message, field) { Some(number) } else { None }
}

/// A field that is bytes, such as a message.
pub fn bytes(message: &[u8], field: u64) -> Option<&[u8]> {
    if let Some(Value::Bytes(bytes)) = find(message, field) { Some(bytes) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_numbers() {
        let mut message = Vec::new();
        put_bytes(&mut message, 1, &[7; 200]);
        put_bytes(&mut message, 2, b"");
        message.extend([0x18, 0x96, 0x01]);
        assert_eq!(&message[..3], [0x0a, 0xc8, 0x01], "the encoding of protobuf's documentation");
        assert_eq!((bytes(&message, 1), bytes(&message, 2)), (Some(&[7; 200][..]), Some(&b""[..])));
        assert_eq!((number(&message, 3), number(&message, 1), number(&message, 4)), (Some(150), None, None));
    }

    #[test]
    fn a_message_that_ends_early_or_never_has_no_fields() {
        for message in
            [&[0x0a, 5, 1][..], &[0x18], &[0xff; 20], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]]
        {
            assert_eq!(find(message, 1), None, "{message:?}");
        }
    }
}
