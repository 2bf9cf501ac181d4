//! Keys on the command line and in output: text, or any bytes as hexadecimal digits.

use std::fmt::Write;

use anyhow::anyhow;

use crate::Usage;

/// Form of keys.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct KeyForm {
    /// Take and print keys, and print the values beside them, as hexadecimal digits, for keys that are not text
    #[arg(long)]
    hex: bool,
}

impl KeyForm {
    /// Parses a key, a prefix of keys or a bound.
    ///
    /// # Errors
    ///
    /// A wrong usage, which names the text.
    pub fn parse(self, text: &str) -> anyhow::Result<Vec<u8>> {
        if !self.hex {
            return Ok(text.as_bytes().to_vec());
        }
        let digits: Option<Vec<u8>> = text.bytes().map(digit).collect();
        let pairs = digits.filter(|digits| digits.len().is_multiple_of(2));
        let pairs = pairs.ok_or_else(|| {
            Usage::of(anyhow!("`{text}`: with --hex, a key has two hexadecimal digits for each byte, as in 00ff"))
        })?;
        Ok(pairs.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
    }

    /// Bytes as they are printed in a line.
    pub fn line_bytes(self, bytes: &[u8]) -> Vec<u8> {
        if self.hex { to_hex(bytes).into_bytes() } else { bytes.to_vec() }
    }

    /// Bytes as text. Without --hex, what is not UTF-8 is replaced by U+FFFD.
    pub fn text(self, bytes: &[u8]) -> String {
        if self.hex { to_hex(bytes) } else { String::from_utf8_lossy(bytes).into_owned() }
    }
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_shown_in_both_forms() {
        let (text, hex) = (KeyForm { hex: false }, KeyForm { hex: true });
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&b""[..], b"a", b"\x00\xff\x80", &all] {
            assert_eq!(hex.parse(&hex.text(bytes)).unwrap(), bytes);
            assert_eq!(hex.line_bytes(bytes), hex.text(bytes).into_bytes());
            assert_eq!(text.line_bytes(bytes), bytes);
        }
        assert_eq!(hex.parse("00fF").unwrap(), [0, 255]);
        assert_eq!((text.parse("00ff").unwrap(), text.text(b"00ff")), (b"00ff".to_vec(), "00ff".to_owned()));
    }

    #[test]
    fn what_is_not_hexadecimal_is_refused() {
        for text in ["0", "0g", "0x00", " 00", "+1", "é0", "000"] {
            assert!(KeyForm { hex: true }.parse(text).is_err(), "{text}");
        }
    }
}
