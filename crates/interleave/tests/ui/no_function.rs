use sinew_interleave::interleave;

#[interleave(batch = all, width = 4)]
struct One;

fn main() {}
