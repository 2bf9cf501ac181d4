//! Faults through userfaultfd: far memory's handler compared with a bare one that copies a constant page.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl as codes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::mm::{Advice, MapFlags, ProtFlags, UserfaultfdFlags, madvise, mmap_anonymous, userfaultfd};
use sinew_far_memory::{FarMapping, Handler, MapOptions, Options, PAGE};

use super::{LOCAL, PAGES, PER_PAGE, SLICE, Shuffled, Watch, each_ns, print_spread, ram, ratio};

/// A mapping with a bare handler: it waits for a fault, copies a constant page, and waits again. It never evicts.
struct BareUffd {
    start: usize,
    fd: OwnedFd,
}

fn update<const CODE: Opcode, T>(fd: impl AsFd, value: &mut T) -> rustix::io::Result<()> {
    // SAFETY: called below with the request's own struct, on a mapping of this program's that nobody else uses.
    unsafe { ioctl(fd, Updater::<CODE, T>::new(value)) }
}

impl BareUffd {
    fn new() -> rustix::io::Result<Self> {
        let only = UserfaultfdFlags::from_bits_retain(sys::UFFD_USER_MODE_ONLY);
        // SAFETY: the descriptor handles the faults of the mapping made below, and no others.
        let fd = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | only) }?;
        let mut api = sys::uffdio_api { api: u64::from(sys::UFFD_API), features: 0, ioctls: 0 };
        update::<{ codes::UFFDIO_API as Opcode }, _>(&fd, &mut api)?;
        let len = PAGES * PAGE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the mapping; the advice against huge pages affects no bytes.
        let start = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let start = mmap_anonymous(std::ptr::null_mut(), len, protection, flags)?;
            madvise(start, len, Advice::LinuxNoHugepage)?;
            start.expose_provenance()
        };
        let range = sys::uffdio_range { start: start as u64, len: len as u64 };
        let mode = u64::from(sys::UFFDIO_REGISTER_MODE_MISSING);
        let mut register = sys::uffdio_register { range, mode, ioctls: 0 };
        update::<{ codes::UFFDIO_REGISTER as Opcode }, _>(&fd, &mut register)?;
        Ok(Self { start, fd })
    }

    /// Sleeps between faults, or polls for them continuously while `awake` is set.
    fn serve(&self, stop: &AtomicBool, awake: &AtomicBool) {
        let page = [1u64; PER_PAGE];
        while !stop.load(Ordering::Relaxed) {
            if !awake.load(Ordering::Relaxed) {
                let timeout = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout));
            }
            let mut message = [0; 32];
            if rustix::io::read(&self.fd, &mut message).is_err() {
                continue;
            }
            let address = u64::from_ne_bytes(std::array::from_fn(|at| message[16 + at]));
            let mut copy = sys::uffdio_copy {
                dst: address & !(PAGE as u64 - 1),
                src: page.as_ptr().expose_provenance() as u64,
                len: PAGE as u64,
                mode: 0,
                copy: 0,
            };
            update::<{ codes::UFFDIO_COPY as Opcode }, _>(&self.fd, &mut copy).unwrap();
        }
    }

    fn word(&self, page: usize) -> u64 {
        let at = std::ptr::with_exposed_provenance::<AtomicU64>(self.start + page * PAGE);
        // SAFETY: mapped for as long as the program runs, and aligned to a page.
        unsafe { &*at }.load(Ordering::Relaxed)
    }

    fn forget(&self) {
        let start = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: nobody has references into the mapping.
        unsafe { madvise(start, PAGES * PAGE, Advice::LinuxDontNeed) }.unwrap();
    }
}

fn mapping(options: Options) -> Option<(FarMapping, sinew_far_memory::Control, thread::JoinHandle<()>)> {
    let map = MapOptions { user_mode_only: true, ..MapOptions::default() };
    let mapping = FarMapping::new(PAGES as u64, map).map_err(|error| println!("{error}")).ok()?;
    let (sender, receiver) = mpsc::channel();
    let handler_mapping = mapping.clone();
    let thread = thread::spawn(move || {
        let mut handler = Handler::new(&handler_mapping, ram(), options, Watch::start()).unwrap();
        sender.send(handler.control()).unwrap();
        handler.run(|error| println!("{error}")).unwrap();
    });
    let control = receiver.recv().unwrap();
    Some((mapping, control, thread))
}

pub fn run(repetitions: usize) {
    // Few local pages, so that hardly any is still local from the last round.
    let plain = Options { ahead_pages: 0, ..Options::with_local_pages(LOCAL / 4) };
    let (Ok(bare), Some(far), Some(written), Some(ahead)) =
        (BareUffd::new(), mapping(plain.clone()), mapping(plain), mapping(Options::with_local_pages(LOCAL)))
    else {
        println!("no userfaultfd here");
        return;
    };
    let (stop, awake) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut pages = Shuffled::new(2);
    let [mut of_bare, mut of_spinning, mut of_far, mut of_store, mut gb_s] = [const { Vec::new() }; 5];
    thread::scope(|scope| {
        scope.spawn(|| bare.serve(&stop, &awake));
        let mut window = 0;
        for repetition in 0..repetitions {
            let slice = pages.slice();
            if (repetition * SLICE).is_multiple_of(PAGES) {
                bare.forget();
            }
            let touch = |pages: &[usize]| {
                each_ns(pages.len(), || pages.iter().for_each(|page| assert_eq!(bare.word(*page), 1))) / 1e3
            };
            let (asleep, spinning) = slice.split_at(SLICE / 2);
            of_bare.push(touch(asleep));
            awake.store(true, Ordering::Relaxed);
            thread::sleep(std::time::Duration::from_millis(2));
            of_spinning.push(touch(spinning));
            awake.store(false, Ordering::Relaxed);
            let words = far.0.words();
            let word = |page: usize| words[page * PER_PAGE + 1].load(Ordering::Relaxed);
            let touch = || slice.iter().for_each(|page| assert_eq!(word(*page), (page * PER_PAGE) as u64 + 1));
            of_far.push(each_ns(slice.len(), touch) / 1e3);
            let words = written.0.words();
            let touch = || {
                for page in slice {
                    words[page * PER_PAGE].store((page * PER_PAGE) as u64, Ordering::Relaxed);
                }
            };
            of_store.push(each_ns(slice.len(), touch) / 1e3);
            let range = window * 1024 * PER_PAGE..(window + 1) * 1024 * PER_PAGE;
            window = (window + 3) % (PAGES / 1024);
            let all = range.clone().map(|word| word as u64).sum::<u64>();
            let words = &ahead.0.words()[range];
            gb_s.push(
                1.0 / each_ns(1024 * PAGE, || {
                    assert_eq!(words.iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>(), all);
                }),
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("mappings, {PAGES} pages, {LOCAL} local, a thread that touches them and a handler thread:");
    print_spread("  a fault, a bare handler that copies a constant page", "us", &of_bare);
    print_spread("  a fault, far memory: read, copied, and another page is evicted", "us", &of_far);
    ratio("    over the bare handler (1.3 asked)", &of_far, &of_bare);
    print_spread("  a fault, the bare handler without ever sleeping", "us", &of_spinning);
    ratio("    over that handler", &of_far, &of_spinning);
    print_spread("  a fault by a store, and another page is written back", "us", &of_store);
    print_spread("  a sequential reader (1 asked)", "GB/s", &gb_s);
    for (_, control, thread) in [far, written, ahead] {
        control.stop();
        thread.join().unwrap();
    }
}
