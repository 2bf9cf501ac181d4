//! The system's table of mounts.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount: one place at which a file system is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    /// The system's number for this mount, unique while it exists.
    pub id: u64,
    /// Device number of its file system, which may be mounted elsewhere, too.
    pub device: DeviceNumber,
}

impl std::fmt::Display for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.id, self.device)
    }
}

impl std::str::FromStr for Mounted {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (id, device) = text.split_once('@').ok_or(())?;
        Ok(Self { id: id.parse().map_err(drop)?, device: device.parse()? })
    }
}

/// Device number of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl std::fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl std::str::FromStr for DeviceNumber {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (major, minor) = text.split_once(':').ok_or(())?;
        Ok(Self { major: major.parse().map_err(drop)?, minor: minor.parse().map_err(drop)? })
    }
}

/// The mounts at a path, which must be canonical; later ones lie on top. Device numbers from `stat` would not tell: a
/// subvolume has one of its own but is no mount, and a directory that is mounted a second time has the same.
///
/// # Errors
///
/// An error of reading the table.
pub(crate) fn mounts_at(point: &Path) -> std::io::Result<Vec<Mounted>> {
    // Paths in the table are bytes, not necessarily UTF-8.
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(find(&table, point))
}

fn find(table: &[u8], point: &Path) -> Vec<Mounted> {
    let mounted = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut word = |skip: usize| std::str::from_utf8(fields.nth(skip)?).ok();
        let (id, device) = (word(0)?.parse().ok()?, word(1)?.parse().ok()?);
        (unescaped(fields.nth(1)?) == point).then_some(Mounted { id, device })
    };
    table.split(|byte| *byte == b'\n').filter_map(mounted).collect()
}

/// Decodes a path from the table, in which some bytes are written as three octal digits after a backslash.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            _ => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 0:21 / / rw,relatime - overlay overlay rw
30 22 0:40 / /mnt/a\\040b rw - fuse sinew rw
31 30 0:41 / /mnt/a\\040b rw - fuse sinew rw
32 22 0:40 / /mnt/\xff rw - fuse sinew rw
33 22 0:21 /mnt/c /mnt/c rw,relatime - overlay overlay rw
broken line
";

    #[test]
    fn mounts_are_found_by_their_path_in_order() {
        let at = |point: &[u8]| {
            let point = PathBuf::from(OsString::from_vec(point.to_vec()));
            find(TABLE, &point).iter().map(Mounted::to_string).collect::<Vec<_>>()
        };
        assert_eq!(at(b"/mnt/a b"), ["30@0:40", "31@0:41"]);
        assert_eq!(at(b"/"), ["22@0:21"]);
        assert_eq!(at(b"/mnt/\xff"), ["32@0:40"]);
        assert_eq!(at(b"/mnt/c"), ["33@0:21"], "of the same device as what is around it");
        assert_eq!(at(b"/mnt"), [""; 0]);
    }

    #[test]
    fn device_numbers_are_read_as_they_are_written() {
        let number = DeviceNumber { major: 3, minor: 70 };
        assert_eq!(number.to_string().parse(), Ok(number));
        let mounted = Mounted { id: 512, device: number };
        assert_eq!(mounted.to_string().parse(), Ok(mounted));
        assert!("512".parse::<Mounted>().is_err() && "x@3:70".parse::<Mounted>().is_err());
        assert!("3".parse::<DeviceNumber>().is_err() && "3:x".parse::<DeviceNumber>().is_err());
    }
}
