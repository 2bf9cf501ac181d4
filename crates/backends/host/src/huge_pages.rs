//! Moves memory that is already in use to huge pages.

use std::io;
use std::ops::Range;

/// Bytes of a huge page on machines whose pages have [`PAGE`] bytes.
const HUGE_PAGE: usize = 2 << 20;
/// Bytes of an ordinary page.
const PAGE: usize = 4096;
/// Eighths of a huge page that must be in use already. The unused rest costs memory from then on.
const EIGHTHS_IN_USE: usize = 7;

/// Moves this process's memory from small pages to huge ones, wherever at least seven eighths of a huge page are in
/// use. A program that accesses gigabytes at random then misses only in the caches, and no longer in the TLB as well.
/// Returns the bytes that it asked the kernel to move.
///
/// Call it once the program has set up the data that it will work on. It takes about a second for each few gigabytes,
/// and may need a seventh more memory. It changes nothing where the system has no huge pages or may not use them
/// (`never` in `/sys/kernel/mm/transparent_hugepage/enabled`), is older than Linux 6.1, or has pages of another size
/// than 4 KiB.
///
/// # Errors
///
/// The error of reading `/proc/self/maps`.
pub fn collapse_to_huge_pages() -> io::Result<usize> {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    // SAFETY: the call reads a setting and touches no memory of ours.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    if setting.is_empty() || setting.contains("[never]") || page != PAGE as libc::c_long {
        return Ok(0);
    }
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut collapsed = 0;
    for mapping in maps.lines().filter_map(private_memory) {
        for range in in_use(mapping.start, &residents(&mapping)) {
            // SAFETY: the call moves the contents of pages to other physical memory. It changes no byte, so it does not
            // matter who uses the range, or how.
            unsafe { libc::madvise(std::ptr::without_provenance_mut(range.start), range.len(), libc::MADV_COLLAPSE) };
            collapsed += range.len();
        }
    }
    Ok(collapsed)
}

/// The whole huge pages within a mapping, from its line in `/proc/self/maps`, if the process can write it, shares it
/// with nobody, and did not map it from a file.
fn private_memory(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions, inode) = (fields.next()?, fields.next()?, fields.nth(2)?);
    let is_ours = permissions == "rw-p" && inode == "0" && fields.next().is_none_or(|name| name == "[heap]");
    let (start, end) = range.split_once('-')?;
    let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16));
    let (start, end) = (start.ok()?.next_multiple_of(HUGE_PAGE), end.ok()? & !(HUGE_PAGE - 1));
    (is_ours && start < end).then_some(start..end)
}

/// Returns a byte for each page of a range, whose lowest bit says whether the page is in memory; empty if the system
/// does not report it.
fn residents(range: &Range<usize>) -> Vec<u8> {
    let mut residents = vec![0; range.len() / PAGE];
    // SAFETY: the call writes one byte for each page of the range, and `residents` has exactly as many. It only
    // inspects the range itself.
    let status = unsafe {
        libc::mincore(std::ptr::without_provenance_mut(range.start), range.len(), residents.as_mut_ptr().cast())
    };
    if status == 0 { residents } else { Vec::new() }
}

/// Runs of adjacent huge pages, from address `start` on, of which at least [`EIGHTHS_IN_USE`] eighths are in use.
fn in_use(start: usize, residents: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, pages) in residents.chunks_exact(HUGE_PAGE / PAGE).enumerate() {
        let resident = pages.iter().filter(|page| **page & 1 != 0).count();
        if resident < pages.len() / 8 * EIGHTHS_IN_USE {
            continue;
        }
        let begins = start + at * HUGE_PAGE;
        match runs.last_mut() {
            Some(run) if run.end == begins => run.end += HUGE_PAGE,
            _ => runs.push(begins..begins + HUGE_PAGE),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_its_contents() {
        let numbers: Vec<u64> = (0..2 * HUGE_PAGE as u64).collect();
        // 0 where the system has no huge pages or may not use them.
        assert!(matches!(collapse_to_huge_pages().unwrap(), 0 | 0x80_0000..), "most of it is in use");
        assert!(numbers.iter().enumerate().all(|(at, number)| at as u64 == *number));
    }

    #[test]
    fn only_private_memory_with_room_for_a_huge_page_is_gathered() {
        let at = |start, end, rest: &str| private_memory(&format!("{start}-{end} {rest}"));
        assert_eq!(at("600000", "c12000", "rw-p 00000000 00:00 0 [heap]"), Some(0x60_0000..0xc0_0000));
        assert_eq!(at("5ff000", "a00000", "rw-p 00000000 00:00 0 "), Some(0x60_0000..0xa0_0000));
        assert_eq!(at("601000", "9ff000", "rw-p 00000000 00:00 0 "), None);
        assert_eq!(at("600000", "c12000", "r--p 00000000 00:00 0 "), None);
        assert_eq!(at("600000", "c12000", "rw-s 00000000 00:01 7 /memfd:arena (deleted)"), None);
        assert_eq!(at("600000", "c12000", "rw-p 00000000 00:00 0 [stack]"), None);
        assert_eq!(private_memory("nothing"), None);
    }

    #[test]
    fn what_is_hardly_used_stays_as_it_is() {
        let pages = |used: usize| (0..HUGE_PAGE / PAGE).map(move |page| u8::from(page < used));
        let residents: Vec<u8> = [447, 448, 512, 0, 500].into_iter().flat_map(pages).collect();
        assert_eq!(in_use(0, &residents), [HUGE_PAGE..3 * HUGE_PAGE, 4 * HUGE_PAGE..5 * HUGE_PAGE]);
        assert_eq!(in_use(0, &[]), []);
    }
}
