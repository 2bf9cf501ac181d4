//! Keys in base64, as memcached reads and writes them: characters outside the alphabet are skipped.

use arrayvec::ArrayVec;

/// Longest key in a command, in bytes.
pub const KEY_LEN_MAX: usize = 250;
/// Longest key decoded from base64, in bytes.
const DECODED_LEN_MAX: usize = KEY_LEN_MAX / 4 * 3;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn sextet(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => 0,
        _ => return None,
    })
}

/// Decodes `text`, which has at most [`KEY_LEN_MAX`] bytes; `None` if it is not valid.
pub fn decode(text: &[u8]) -> Option<ArrayVec<u8, DECODED_LEN_MAX>> {
    let known = || text.iter().filter_map(|byte| Some((*byte, sextet(*byte)?)));
    if text.len() > KEY_LEN_MAX || known().count() % 4 != 0 {
        return None;
    }
    let mut decoded = ArrayVec::new();
    let mut block = ArrayVec::<u8, 4>::new();
    let mut padding = 0;
    for (byte, sextet) in known() {
        padding += usize::from(byte == b'=');
        block.push(sextet);
        if let [a, b, c, d] = block[..] {
            decoded.extend([a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d]);
            block.clear();
            if padding > 0 {
                if padding > 2 {
                    return None;
                }
                decoded.truncate(decoded.len() - padding);
                break;
            }
        }
    }
    (!decoded.is_empty()).then_some(decoded)
}

/// Appends `bytes` in base64.
pub fn push_encoded(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.chunks(3) {
        let [a, b, c] = std::array::from_fn(|at| chunk.get(at).copied().unwrap_or(0));
        let sextets = [a >> 2, (a << 4 | b >> 4) & 63, (b << 2 | c >> 6) & 63, c & 63];
        for (at, sextet) in sextets.into_iter().enumerate() {
            out.push(if at <= chunk.len() { ALPHABET[usize::from(sextet)] } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_decodes_to_itself() {
        for len in 1..=DECODED_LEN_MAX {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 37 + len) as u8).collect();
            let mut text = Vec::new();
            push_encoded(&mut text, &bytes);
            assert_eq!(decode(&text).unwrap()[..], bytes);
        }
        let mut text = Vec::new();
        push_encoded(&mut text, b"any carnal pleas");
        assert_eq!(text, b"YW55IGNhcm5hbCBwbGVhcw==");
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in [&b""[..], b"abc", b"a===", b"====", b"!!!!", &[b'a'; 252]] {
            assert_eq!(decode(text), None, "{text:?}");
        }
        assert_eq!(decode(b"Y!W J\xffj").unwrap()[..], *b"abc");
    }
}
