use sinew_interleave::interleave;

#[interleave(batch = all, width = 4)]
fn one(words: &[u64]) -> u64 {
    fetch!(&words[0]);
    words[0]
}

fn main() {}
