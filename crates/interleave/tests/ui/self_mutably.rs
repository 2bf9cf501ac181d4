use sinew_interleave::interleave;

struct Words([u64; 4]);

impl Words {
    #[interleave(batch = all, width = 4)]
    fn one(&mut self, #[each] at: usize) -> u64 {
        fetch!(&self.0[at]);
        self.0[at]
    }
}

fn main() {}
