use sinew_interleave::interleave;

#[interleave(batch = all, width = 4)]
fn one(words: &[u64], #[each] at: usize) -> u64 {
    words[at]
}

fn main() {}
