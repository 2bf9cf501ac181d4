//! Requests of the stores whose clients READ: Pilaf's, FaRM's and DrTM's.

use anyhow::{Context, ensure};
use sinew_cost::{Count, Operation, device, key_bytes, operation};
use sinew_fabric::verbs::Device;
use sinew_herd::{Service, Worker, WorkerConfig};
use sinew_kv::one_sided::{ChangeService, ClientConfig, Joining, OneSidedClient, Outcome, Owner, OwnerConfig, Status};
use sinew_kv::{drtm, farm, pilaf};
use sinew_mem::SharedMemory;
use sinew_shm::verbs::ShmDevice;
use sinew_store::cuckoo::CuckooTable;
use sinew_store::hopscotch::HopscotchTable;
use sinew_store::locked::LockedTable;
use sinew_store::remote::{Index, Table, TableError};

const OPERATIONS: &[Operation] = &[
    operation("GET of Pilaf's store, 8 in flight", &["client"], |count| gets(count, &mut pilaf_store()?)),
    operation("PUT of Pilaf's store in batches of 8", &["client", "owner"], |count| puts(count, pilaf_store()?)),
    operation("GET of FaRM's store, 8 in flight", &["client"], |count| gets(count, &mut farm_store()?)),
    operation("PUT of FaRM's store in batches of 8", &["client", "owner"], |count| puts(count, farm_store()?)),
    operation("GET of DrTM's store, 8 in flight", &["client"], |count| locked_requests(count, true)),
    operation("PUT of DrTM's store, 8 in flight", &["client"], |count| locked_requests(count, false)),
    operation("PUT of a new item of DrTM's store in batches of 8", &["client", "owner"], inserts),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const BATCH: usize = 8;
const KEYS: u64 = 4096;
const KEY_LEN: usize = 16;
const VALUE: [u8; 32] = [7; 32];
const ROUNDS: usize = 512;
/// Requests of a step in which as many are in flight as fit into the window.
const REQUESTS_OF_STEP: usize = 32 * BATCH;
const STEPS: usize = 16;
/// Most polls for the answers of a batch, or for one request of a step.
const POLLS_MAX: usize = 16;
/// Turns of the owner that find nothing, after each of the first rounds: the ports of both complete their link when
/// they look at their sockets, which they do rarely.
const IDLE_TURNS: usize = 1000;
const REQUEST_NS: u64 = 100;

/// All keys in turn: neighbours do not lie side by side.
fn key(turn: u64) -> [u8; KEY_LEN] {
    key_bytes(turn.wrapping_mul(1_237) % KEYS)
}

/// The keys of the next requests.
fn keys<const COUNT: usize>(turn: u64) -> [[u8; KEY_LEN]; COUNT] {
    std::array::from_fn(|nth| key(turn + nth as u64))
}

/// Configuration of a store's owner and of its client.
fn limits(read_len_max: usize) -> (OwnerConfig, ClientConfig) {
    let owner = OwnerConfig { clients: 1, window: 2 * BATCH, item_len_max: KEY_LEN + VALUE.len(), seed: 1 };
    (owner, ClientConfig { owner, window: BATCH, read_len_max, give_up_ns: u64::MAX })
}

/// A store whose PUTs are calls, with all keys.
struct Store<I: Index, T: Table> {
    client: OneSidedClient<ShmDevice, I>,
    worker: Worker<ShmDevice, ChangeService<T>>,
    _owner: Owner<ShmDevice>,
}

fn pilaf_store() -> anyhow::Result<Store<impl Index, CuckooTable>> {
    let layout = pilaf::layout(KEYS as u32, (KEY_LEN + VALUE.len()) as u32, 1);
    store(layout, move |memory| CuckooTable::new(layout, memory))
}

fn farm_store() -> anyhow::Result<Store<impl Index, HopscotchTable>> {
    let layout = farm::layout(KEYS as u32, KEY_LEN as u32, VALUE.len() as u32, true, 1);
    store(layout, move |memory| HopscotchTable::new(layout, memory))
}

fn store<I: Index, T: Table>(
    index: I,
    table: impl Fn(SharedMemory) -> Result<T, TableError>,
) -> anyhow::Result<Store<I, T>> {
    let device = device()?;
    let (of_owner, of_client) = limits(index.read_len_max());
    let (mut owner, seed, memory) = Owner::new(&device, &of_owner, &index)?;
    let mut table = table(memory)?;
    for number in 0..KEYS {
        table.put(&key_bytes(number), &VALUE)?;
    }
    let mut worker = Worker::new(seed, &WorkerConfig::herd_opt(), ChangeService::new(table))?;
    let (joining, hello) = Joining::prepare(&device, &device.protection_domain()?, &of_client)?;
    let client = joining.join(&owner.admit(&hello)?.1)?;
    idle(&mut worker);
    Ok(Store { client, worker, _owner: owner })
}

/// Has the worker look for news: it hears of its client.
fn idle<S: Service>(worker: &mut Worker<ShmDevice, S>) {
    (0..IDLE_TURNS).for_each(|_| _ = worker.turn(0));
}

/// Notes an answer that is not as expected.
fn check(good: &mut bool, expected: Status) -> impl FnMut(Outcome<'_>) {
    move |outcome| {
        let is_value = if expected == Status::Found { outcome.value.as_array() == Some(&VALUE) } else { true };
        if outcome.status != Some(expected) || !is_value {
            *good = false;
        }
    }
}

fn gets<I: Index, T: Table>(count: &mut Count, Store { client, .. }: &mut Store<I, T>) -> anyhow::Result<()> {
    let mut turn = 0;
    count.rounds(STEPS, STEPS, |count| {
        let keys = keys::<REQUESTS_OF_STEP>(turn);
        let done = count.step("client", REQUESTS_OF_STEP, || {
            let (mut good, mut keys, mut done) = (true, keys.iter(), 0);
            for _ in 0..REQUESTS_OF_STEP * POLLS_MAX {
                while client.has_room_to_get()
                    && let Some(key) = keys.next()
                {
                    client.get(turn, key, turn * REQUEST_NS).ok()?;
                    turn += 1;
                }
                client.flush();
                done += client.poll(turn * REQUEST_NS, check(&mut good, Status::Found)).ok().filter(|_| good)?;
                if done == REQUESTS_OF_STEP {
                    break;
                }
            }
            Some(done)
        });
        ensure!(done.context("a GET failed")? == REQUESTS_OF_STEP, "too many polls");
        Ok(())
    })
}

fn puts<I: Index, T: Table>(
    count: &mut Count,
    Store { mut client, mut worker, _owner }: Store<I, T>,
) -> anyhow::Result<()> {
    let (mut round, mut turn) = (0, 0);
    count.rounds(ROUNDS, ROUNDS, |count| {
        let (now_ns, expected) = (turn * REQUEST_NS, if round == 0 { 0 } else { BATCH });
        let keys = keys::<BATCH>(turn);
        let answered = count.step("client", BATCH, || {
            let (mut good, mut answered) = (true, 0);
            // A poll that finds completions of requests does not look for packets.
            for _ in 0..POLLS_MAX {
                if answered < expected {
                    answered += client.poll(now_ns, check(&mut good, Status::Stored)).ok().filter(|_| good)?;
                }
            }
            for key in &keys {
                client.put(turn, key, &VALUE, now_ns).ok()?;
                turn += 1;
            }
            client.flush();
            Some(answered)
        });
        let answered = answered.context("a PUT failed")?;
        let executed = count.step("owner", BATCH, || worker.turn(now_ns));
        ensure!(answered == expected, "{answered} answers in round {round}");
        ensure!(executed == BATCH, "{executed} requests");
        round += 1;
        if round < ROUNDS / 8 {
            idle(&mut worker);
        }
        Ok(())
    })
}

/// DrTM's store, whose client has seen where the keys of all items are.
struct Locked {
    client: drtm::DrtmClient<ShmDevice>,
    worker: Worker<ShmDevice, drtm::ChangeService>,
    _owner: drtm::Owner<ShmDevice>,
}

/// Makes a store with room for more items, and stores the first `items` keys.
fn locked(items: u64) -> anyhow::Result<Locked> {
    let device = device()?;
    let layout = drtm::layout(2 * KEYS as u32, KEY_LEN as u32, VALUE.len() as u32, 1);
    let (_, reads) = limits(layout.read_len_max());
    let calls = drtm::calls(&layout, 1, 2 * BATCH, 1);
    let config = drtm::OwnerConfig { calls, lease_ns: u64::MAX };
    let (mut owner, seed, memory) = drtm::Owner::new(&device, &config, &layout)?;
    let mut table = LockedTable::new(layout, memory)?;
    for number in 0..items {
        table.insert(&key_bytes(number), &VALUE)?;
    }
    let mut worker = Worker::new(seed, &WorkerConfig::herd_opt(), drtm::ChangeService::new(table))?;
    let reads = ClientConfig { owner: calls, ..reads };
    let config = drtm::ClientConfig::new(reads, 4 * KEYS as usize);
    let (joining, hello) = drtm::Joining::prepare(&device, &device.protection_domain()?, &config)?;
    let client = joining.join(&owner.admit(&hello)?.1)?;
    idle(&mut worker);
    Ok(Locked { client, worker, _owner: owner })
}

impl Locked {
    /// Makes a request for each key, as many at a time as fit into the window, and waits until all are over.
    fn request(
        client: &mut drtm::DrtmClient<ShmDevice>,
        turn: &mut u64,
        is_get: bool,
        keys: &[[u8; KEY_LEN]],
    ) -> Option<usize> {
        let (mut good, mut left, mut done) = (true, keys.iter(), 0);
        let expected = if is_get { Status::Found } else { Status::Stored };
        for _ in 0..keys.len() * POLLS_MAX {
            while client.has_room()
                && let Some(key) = left.next()
            {
                let now_ns = *turn * REQUEST_NS;
                if is_get { client.get(*turn, key, now_ns) } else { client.put(*turn, key, &VALUE, now_ns) }.ok()?;
                *turn += 1;
            }
            client.flush();
            done += client.poll(*turn * REQUEST_NS, check(&mut good, expected)).ok().filter(|_| good)?;
            if done == keys.len() {
                break;
            }
        }
        Some(done)
    }
}

fn locked_requests(count: &mut Count, is_get: bool) -> anyhow::Result<()> {
    let Locked { mut client, worker: _worker, _owner } = locked(KEYS)?;
    let mut turn = 0;
    // The client sees where the keys are.
    let all: Vec<_> = (0..KEYS).map(key).collect();
    let seen = Locked::request(&mut client, &mut turn, true, &all).context("a GET failed")?;
    ensure!(seen == KEYS as usize, "{seen} keys");
    count.rounds(STEPS, STEPS, |count| {
        let keys = keys::<REQUESTS_OF_STEP>(turn);
        let done = count.step("client", REQUESTS_OF_STEP, || Locked::request(&mut client, &mut turn, is_get, &keys));
        ensure!(done.context("a request failed")? == REQUESTS_OF_STEP, "too many polls");
        Ok(())
    })
}

/// Stores items whose keys the client has never seen, and deletes them.
fn inserts(count: &mut Count) -> anyhow::Result<()> {
    let Locked { mut client, mut worker, _owner } = locked(0)?;
    let (mut round, mut turn) = (0, 0u64);
    count.rounds(ROUNDS, ROUNDS, |count| {
        let now_ns = turn * REQUEST_NS;
        let (calls, keys) = (client.stats().calls, keys::<BATCH>(turn));
        count
            .step("client", BATCH, || {
                for key in &keys {
                    client.put(turn, key, &VALUE, now_ns).ok()?;
                    turn += 1;
                }
                client.flush();
                for _ in 0..POLLS_MAX {
                    if client.stats().calls < calls + BATCH as u64 {
                        client.poll(now_ns, |_| ()).ok()?;
                    }
                }
                Some(())
            })
            .context("a PUT failed")?;
        let executed = count.step("owner", BATCH, || worker.turn(now_ns));
        ensure!(executed == BATCH, "{executed} calls");
        let poll = |client: &mut drtm::DrtmClient<ShmDevice>, expected| {
            let (mut good, mut answered) = (true, 0);
            for _ in 0..POLLS_MAX {
                if answered < BATCH {
                    answered += client.poll(now_ns, check(&mut good, expected)).ok().filter(|_| good)?;
                }
            }
            Some(answered)
        };
        let stored = count.step("client", 0, || poll(&mut client, Status::Stored));
        ensure!(stored == Some(BATCH), "{stored:?} items in round {round}");
        // The items are deleted again, which does not count.
        for key in &keys {
            client.delete(turn, key, now_ns)?;
        }
        client.flush();
        let mut deleted = 0;
        for _ in 0..2 * POLLS_MAX {
            if deleted < BATCH {
                let mut good = true;
                deleted += client.poll(now_ns, check(&mut good, Status::Deleted))?;
                ensure!(good, "another answer to a DELETE");
                worker.turn(now_ns);
            }
        }
        ensure!(deleted == BATCH, "{deleted} items were deleted");
        round += 1;
        if round < ROUNDS / 8 {
            idle(&mut worker);
        }
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
