//! Processors that a thread may use, and pinning a thread to one.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors that this thread may run on, in ascending order. Never empty.
///
/// Where the system does not say, this is processor 0 alone.
pub fn available_cpus() -> Vec<usize> {
    let cpus: Vec<usize> = match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => Vec::new(),
    };
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Pins the calling thread to one processor.
///
/// # Errors
///
/// `InvalidInput` when there is no such processor or the thread may not use it, else the error of `sched_setaffinity`.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("there is no processor {cpu}: the largest number is {}", CpuSet::MAX_CPU - 1),
        ));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| match error {
        rustix::io::Errno::INVAL => io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("this thread cannot run on processor {cpu}: available are {:?}", available_cpus()),
        ),
        other => other.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_processor() {
        let cpu = *available_cpus().last().unwrap();
        // A thread of its own is pinned, since the test runner's threads serve other tests.
        let left = std::thread::spawn(move || {
            pin_current_thread(cpu).unwrap();
            available_cpus()
        });
        assert_eq!(left.join().unwrap(), [cpu]);
    }

    #[test]
    fn a_processor_that_is_not_there_is_named() {
        for cpu in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            if available_cpus().contains(&cpu) {
                continue;
            }
            let error = pin_current_thread(cpu).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(&cpu.to_string()), "{error}");
        }
    }
}
