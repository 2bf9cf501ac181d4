//! Admission control: the limit on bytes in flight to a donor (rdmabox IV-A).

/// A policy for the bytes of requests in flight to one donor, over all threads. Requests that find the window full wait
/// in the merge queue, where they merge. One request is always admitted, however long it is. The methods are called
/// with a lock held, so they must be quick.
pub trait Admission: Send {
    /// Bytes that may be in flight now.
    fn window_bytes(&self) -> u64;

    /// Whether the window can change. A policy that returns false is asked for its window once, and told nothing.
    fn learns(&self) -> bool {
        true
    }

    /// Called when a request of `bytes` bytes has succeeded, after `latency_ns` in flight.
    fn completed(&mut self, bytes: u64, latency_ns: u64, now_ns: u64);

    /// Called when the window was full, so that requests had to wait.
    fn held_back(&mut self) {}
}

/// A policy without any limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl Admission for Unlimited {
    fn window_bytes(&self) -> u64 {
        u64::MAX
    }

    fn learns(&self) -> bool {
        false
    }

    fn completed(&mut self, _: u64, _: u64, _: u64) {}
}

/// The paper's policy: a fixed window, found by measuring where the rate is highest.
#[derive(Clone, Copy, Debug)]
pub struct StaticWindow {
    /// Bytes that may be in flight.
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

    fn learns(&self) -> bool {
        false
    }

    fn completed(&mut self, _: u64, _: u64, _: u64) {}
}

impl<A: Admission + ?Sized> Admission for Box<A> {
    fn window_bytes(&self) -> u64 {
        (**self).window_bytes()
    }

    fn learns(&self) -> bool {
        (**self).learns()
    }

    fn completed(&mut self, bytes: u64, latency_ns: u64, now_ns: u64) {
        (**self).completed(bytes, latency_ns, now_ns);
    }

    fn held_back(&mut self) {
        (**self).held_back();
    }
}
