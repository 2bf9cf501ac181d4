//! Requests of HERD.

use anyhow::{Context, ensure};
use sinew_cost::{Count, Operation, device, operation};
use sinew_fabric::verbs::Device;
use sinew_herd::{
    Answer, Client, ClientConfig, Layout, Request, Response, Server, ServerConfig, Service, Worker, WorkerConfig,
};

const OPERATIONS: &[Operation] = &[
    operation("HERD request of 32 B in batches of 8", &["client", "worker"], |count| requests(count, 8)),
    operation("HERD request of 32 B in batches of 32", &["client"], |count| requests(count, 32)),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const LEN: usize = 32;
/// Requests of one client that a worker takes in a turn.
const TURN: usize = 8;
/// Most polls that a client makes for a batch's answers.
const POLLS_MAX: usize = 4;
const ROUNDS: usize = 1024;
/// Turns of the worker that find nothing, after each of the first rounds.
const IDLE_TURNS: usize = 1000;

struct Echo;

impl Service for Echo {
    type Job = ();

    fn prefetch(&mut self, _: &Request<'_>) {}

    fn advance(&mut self, _: &Request<'_>, (): &mut ()) {}

    fn execute(&mut self, request: &Request<'_>, (): (), response: &mut Response<'_>) {
        response.kind = request.kind;
        if let Some(body) = response.body(request.body.len()) {
            sinew_mem::copy_small(body, request.body);
        }
    }
}

fn requests(count: &mut Count, batch: usize) -> anyhow::Result<()> {
    let layout = Layout { workers: 1, clients: 1, window: 2 * batch, request_len_max: 1000, response_len_max: 1000 };
    let device = device()?;
    let domain = device.protection_domain()?;
    let (mut server, seeds) = Server::new(&device, &ServerConfig { layout, seed: 1 })?;
    let seed = seeds.into_iter().next().context("there is one worker")?;
    let mut worker = Worker::new(seed, &WorkerConfig::herd_opt(), Echo)?;
    let (joining, hello) = Client::prepare(&device, &domain, &ClientConfig::new(layout))?;
    let (_, welcome) = server.admit(&hello)?;
    let mut client = joining.join(&welcome)?;
    // The worker hears of its client.
    (0..IDLE_TURNS as u64).for_each(|now_ns| _ = worker.turn(now_ns));
    let (mut now_ns, mut asked) = (IDLE_TURNS as u64, 0);
    let mut round = 0;
    count.rounds(ROUNDS, ROUNDS, |count| {
        let body = std::hint::black_box([7; LEN]);
        let expected = if round == 0 { 0 } else { batch };
        let answered = count.step("client", batch, || {
            let (mut good, mut answered) = (true, 0);
            // A poll that finds completions of requests does not look for packets.
            for _ in 0..POLLS_MAX {
                if answered < expected {
                    let check = |answer: Answer<'_>| {
                        if answer.body.as_array() != Some(&body) {
                            good = false;
                        }
                    };
                    answered += client.poll(now_ns, check).ok().filter(|_| good)?;
                }
            }
            for _ in 0..batch {
                client.request(0, asked, 1, &body, now_ns).ok()?;
                asked += 1;
            }
            client.flush();
            Some(answered)
        });
        let answered = answered.context("a request failed")?;
        ensure!(answered == expected, "{answered} answers in round {round}");
        for _ in 0..batch / TURN {
            let executed = count.step("worker", TURN, || worker.turn(now_ns));
            ensure!(executed == TURN, "{executed} requests");
        }
        round += 1;
        if round < ROUNDS / 8 {
            // The ports of both complete their link when they look at their sockets, which they do rarely.
            (0..IDLE_TURNS).for_each(|_| _ = worker.turn(now_ns));
        }
        now_ns += 100 * batch as u64;
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
