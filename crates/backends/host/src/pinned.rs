//! Memory whose pages are kept from being swapped out.

use std::io;

/// Guard that keeps the pages of a slice in memory until it is dropped. A driver does the same first when memory is
/// registered with a NIC.
///
/// The system does not count pins: of two that overlap, the first to be dropped unpins the pages of both.
#[derive(Debug)]
pub struct Pinned<'a> {
    bytes: &'a [u8],
}

/// Brings the pages of these bytes into memory and keeps them there.
///
/// # Errors
///
/// The error of `mlock`: usually that the process may pin no more (`ulimit -l`).
pub fn pin_pages(bytes: &[u8]) -> io::Result<Pinned<'_>> {
    if bytes.is_empty() {
        return Ok(Pinned { bytes });
    }
    // SAFETY: the call moves pages and changes nothing that they hold; the range is that of a live slice.
    if unsafe { libc::mlock(bytes.as_ptr().cast(), bytes.len()) } == 0 {
        Ok(Pinned { bytes })
    } else {
        Err(io::Error::last_os_error())
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // SAFETY: as for `mlock`: the slice is still borrowed. A range that is no longer pinned is left unchanged.
        unsafe { libc::munlock(self.bytes.as_ptr().cast(), self.bytes.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pinned KiB of the mapping that holds an address.
    fn locked_kib(address: usize) -> Option<u64> {
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let mut contains = false;
        for line in maps.lines() {
            let range = line.split_ascii_whitespace().next().and_then(|first| first.split_once('-'));
            if let Some((start, end)) = range
                && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
            {
                contains = (start..end).contains(&address);
            }
            if let Some(locked) = line.strip_prefix("Locked:").filter(|_| contains) {
                return locked.split_ascii_whitespace().next()?.parse().ok();
            }
        }
        None
    }

    #[test]
    fn pages_are_pinned_until_it_goes() {
        let bytes = vec![1u8; 64 << 10];
        let locked = || locked_kib(bytes.as_ptr() as usize + 8192);
        let Ok(pinned) = pin_pages(&bytes) else { return };
        // The kernel splits the pinned pages off as a mapping of their own.
        assert!(locked().is_none_or(|kib| kib >= 60), "{:?}", locked());
        drop(pinned);
        assert!(locked().is_none_or(|kib| kib == 0), "{:?}", locked());
        assert_eq!(pin_pages(&[]).map(|_| ()).ok(), Some(()));
    }
}
