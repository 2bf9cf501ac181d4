//! Our side of the comparison: a session over a table.

use sinew_kv::memcached::protocol::{NextStep, Service, Session};
use sinew_store::cache::{Cache, CacheConfig};

/// Time of everything that happens, in seconds.
pub const NOW_S: u32 = 100;

pub struct Table {
    pub service: Service,
    pub cache: Cache,
}

impl Table {
    pub fn new() -> Self {
        let config = CacheConfig { items: 10_000, memory_bytes: 24 << 20, ..CacheConfig::default() };
        let epoch_unix_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() - 100;
        Self { service: Service::alone(epoch_unix_s), cache: Cache::new(&config).unwrap() }
    }
}

/// A client's connection.
#[derive(Default)]
pub struct Ours {
    session: Session,
    input: Vec<u8>,
    pub closed: bool,
}

impl Ours {
    /// Returns the answers to `bytes`.
    pub fn hear(&mut self, table: &mut Table, bytes: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        self.input.extend_from_slice(bytes);
        while !self.closed {
            let mut out = Vec::new();
            let ran = self.session.run(&mut table.service, &mut table.cache, NOW_S, &self.input, &mut out);
            assert!(ran.consumed <= self.input.len());
            assert!(out.len() < table.service.limits.out_len_max + table.service.limits.item_len_max + 1000);
            self.input.drain(..ran.consumed);
            answer.extend(out);
            match ran.next_step {
                NextStep::Input(len) => {
                    assert!(len > self.input.len(), "what is there is not asked for");
                    break;
                }
                NextStep::Output => {}
                NextStep::Close => self.closed = true,
                NextStep::Room(len) => panic!("there is room for {len} bytes"),
                NextStep::HandOver(_) => panic!("there is nobody else"),
            }
        }
        answer
    }
}
