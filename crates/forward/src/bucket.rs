//! A token bucket: bounds the long-run rate and the burst.

#[derive(Debug)]
pub(crate) struct Bucket {
    per_s: u64,
    /// Tokens, in billionths of one.
    tokens: u64,
    tokens_max: u64,
    filled_ns: u64,
}

const TOKEN: u64 = 1_000_000_000;

impl Bucket {
    /// A full bucket.
    pub fn new(per_s: u32, at_once: u32) -> Self {
        let tokens_max = u64::from(at_once) * TOKEN;
        Self { per_s: per_s.into(), tokens: tokens_max, tokens_max, filled_ns: 0 }
    }

    /// Takes a token; false if there is none.
    pub fn take(&mut self, now_ns: u64) -> bool {
        let passed_ns = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        self.tokens = self.tokens.saturating_add(passed_ns.saturating_mul(self.per_s)).min(self.tokens_max);
        if self.tokens < TOKEN {
            return false;
        }
        self.tokens -= TOKEN;
        true
    }

    /// When the next token is there, after [`Self::take`] found none.
    pub fn next_ns(&self, now_ns: u64) -> u64 {
        let missing = TOKEN.saturating_sub(self.tokens);
        now_ns.saturating_add(missing.div_ceil(self.per_s.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_at_once_and_so_many_a_second() {
        let mut bucket = Bucket::new(10, 3);
        let take = |bucket: &mut Bucket, now_ns| (0..100).filter(|_| bucket.take(now_ns)).count();
        assert_eq!(take(&mut bucket, 5), 3);
        assert_eq!(bucket.next_ns(5), 5 + 100_000_000);
        assert_eq!(take(&mut bucket, 4 + 100_000_000), 0);
        assert_eq!(take(&mut bucket, 5 + 100_000_000), 1);
        assert_eq!(take(&mut bucket, u64::MAX), 3);
        assert_eq!(take(&mut bucket, 0), 0, "a time in the past brings none");
    }
}
