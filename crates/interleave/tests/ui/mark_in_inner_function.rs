use sinew_interleave::interleave;

#[interleave(batch = all, width = 4)]
fn one(words: &[u64], #[each] at: usize) -> u64 {
    fn read(words: &[u64], at: usize) -> u64 {
        fetch!(&words[at]);
        words[at]
    }
    read(words, at)
}

fn main() {}
