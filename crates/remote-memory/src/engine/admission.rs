//! How many bytes may be in flight to a donor (rdmabox IV-A, admission control).

/// A policy: how many bytes of requests may be in flight to one donor, over all threads. Requests that find the window full wait in the merge queue, where they
/// merge. One request is always admitted, however long it is. It is asked with a lock held, so it is quick.
pub trait Admission: Send {
    /// Bytes that may be in flight now.
    fn window_bytes(&self) -> u64;

    /// A request is over that was in flight for `latency_ns`.
    fn completed(&mut self, bytes: u64, latency_ns: u64, now_ns: u64);

    /// The window was full, and requests had to wait for it.
    fn held_back(&mut self) {}
}

/// No window at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl Admission for Unlimited {
    fn window_bytes(&self) -> u64 {
        u64::MAX
    }

    fn completed(&mut self, _: u64, _: u64, _: u64) {}
}

/// The paper's: a window that somebody found by measuring where the rate was highest.
#[derive(Clone, Copy, Debug)]
pub struct StaticWindow {
    /// Bytes.
    pub bytes: u64,
}

impl StaticWindow {
    /// The paper's window, of 7 MB (rdmabox V-A, Figure 8).
    pub const PAPER: Self = Self { bytes: 7_000_000 };
}

impl Admission for StaticWindow {
    fn window_bytes(&self) -> u64 {
        self.bytes
    }

    fn completed(&mut self, _: u64, _: u64, _: u64) {}
}

impl<A: Admission + ?Sized> Admission for Box<A> {
    fn window_bytes(&self) -> u64 {
        (**self).window_bytes()
    }

    fn completed(&mut self, bytes: u64, latency_ns: u64, now_ns: u64) {
        (**self).completed(bytes, latency_ns, now_ns);
    }

    fn held_back(&mut self) {
        (**self).held_back();
    }
}
