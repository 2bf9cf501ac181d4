//! The system's table of mounts.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount's file system, as `stat` tells it.
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

/// The file system that is on top at a mount point, where the path is as the system spells it.
pub(crate) fn mounted_at(point: &Path) -> Option<DeviceNumber> {
    find(&fs::read_to_string("/proc/self/mountinfo").ok()?, point)
}

fn find(table: &str, point: &Path) -> Option<DeviceNumber> {
    let lines = table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?.parse().ok()?;
        Some((device, unescaped(fields.nth(1)?)))
    });
    // Later ones lie on top.
    lines.filter(|(_, at)| at == point).map(|(device, _)| device).next_back()
}

/// A path of the table's, in which some bytes are three octal digits behind a backslash.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
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

    const TABLE: &str = "\
22 1 0:21 / / rw,relatime - overlay overlay rw
30 22 0:40 / /mnt/a\\040b rw - fuse sinew rw
31 30 0:41 / /mnt/a\\040b rw - fuse sinew rw
broken line
";

    #[test]
    fn the_mount_on_top_is_found_by_its_path() {
        let at = |point: &str| find(TABLE, Path::new(point)).map(|device| device.to_string());
        assert_eq!(at("/mnt/a b").as_deref(), Some("0:41"));
        assert_eq!(at("/").as_deref(), Some("0:21"));
        assert_eq!(at("/mnt"), None);
    }

    #[test]
    fn device_numbers_are_read_as_they_are_written() {
        let number = DeviceNumber { major: 3, minor: 70 };
        assert_eq!(number.to_string().parse(), Ok(number));
        assert!("3".parse::<DeviceNumber>().is_err() && "3:x".parse::<DeviceNumber>().is_err());
    }
}
