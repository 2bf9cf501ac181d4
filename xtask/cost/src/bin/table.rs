//! The cache's table, in batches as its servers use it.

use anyhow::ensure;
use sinew_cost::{Count, Operation, cache_config, key_bytes, operation};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_store::cache::{Cache, Key, Put};

const OPERATIONS: &[Operation] = &[
    operation("table GET in batches of 8", &["table"], |count| table(count, true)),
    operation("table PUT in batches of 8", &["table"], |count| table(count, false)),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const BATCH: usize = 8;
const ROUNDS: usize = 1024;
const KEYS: u64 = 1 << 14;
const VALUE_LEN: usize = 32;
const NOW_S: u32 = 1;

fn table(count: &mut Count, gets: bool) -> anyhow::Result<()> {
    let mut cache = Cache::new(&cache_config(KEYS))?;
    let hasher = cache.hasher().clone();
    for number in 0..KEYS {
        cache.put(&hasher.key(&key_bytes(number)), &[number as u8; VALUE_LEN], &Put::default(), NOW_S)?;
    }
    let mut generator = SeededGenerator::new(1);
    count.rounds(ROUNDS, ROUNDS, |count| {
        let numbers: [u64; BATCH] = std::array::from_fn(|_| generator.next_u64() % KEYS);
        let bytes = numbers.map(key_bytes);
        let good = count.step("table", BATCH, || {
            let mut keys: [Key<'_>; BATCH] = std::array::from_fn(|at| {
                let key = cache.hasher().key(&bytes[at]);
                cache.prefetch_bucket(&key);
                key
            });
            keys.iter_mut().for_each(|key| cache.prefetch_item(key));
            let mut value = [0; VALUE_LEN];
            let mut good = 0;
            for (key, number) in keys.iter().zip(numbers) {
                if gets {
                    let Some(item) = cache.get(key, NOW_S).filter(|item| item.value_len() == VALUE_LEN) else {
                        continue;
                    };
                    item.copy_to(&mut value);
                    good += usize::from(value[0] == number as u8);
                } else {
                    value.fill(number as u8);
                    good += usize::from(cache.put(key, &value, &Put::default(), NOW_S).is_ok());
                }
            }
            good
        });
        ensure!(good == BATCH, "{good} of {BATCH} requests");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::OPERATIONS;

    #[test]
    fn two_runs_are_equal() {
        sinew_cost::check_that_runs_are_equal(OPERATIONS);
    }
}
