//! A client that keeps fewer requests in flight than it could.

use sinew_harness::load::store::StoreClient;
use sinew_kv::one_sided::Outcome;

/// A client with one window shared by all servers.
pub struct Windowed<A> {
    /// The client.
    pub client: A,
    /// Maximum number of requests in flight.
    pub window: usize,
}

impl<A: StoreClient> StoreClient for Windowed<A> {
    fn has_room(&self, key: &[u8], is_get: bool) -> bool {
        self.client.in_flight() < self.window && self.client.has_room(key, is_get)
    }

    fn in_flight(&self) -> usize {
        self.client.in_flight()
    }

    fn ask(&mut self, tag: u64, key: &[u8], value: Option<&[u8]>, now_ns: u64) -> anyhow::Result<()> {
        self.client.ask(tag, key, value, now_ns)
    }

    fn flush(&mut self) {
        self.client.flush();
    }

    fn poll(&mut self, now_ns: u64, take: impl FnMut(Outcome<'_>)) -> anyhow::Result<usize> {
        self.client.poll(now_ns, take)
    }
}
