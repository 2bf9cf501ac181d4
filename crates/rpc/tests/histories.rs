//! A server with little memory, and clients made by hand that send arbitrary packets in any order. Whatever happened,
//! each slot keeps answering, retransmissions get the same answers, and nothing is left of sessions that ended.

mod common;

use common::handmade::*;
use common::*;
use sinew_fabric::SeededGenerator;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{Config, Recovery, RequestType, Tuning};
use sinew_wire::management::{Offer, session_end};
use sinew_wire::{Header, Kind};

const MS: u64 = 1_000_000;

/// Runs a history drawn from `seed`.
fn history(seed: u64) {
    let mut random = SeededGenerator::new(seed);
    let world = World::new();
    let likely = |random: &mut SeededGenerator| random.below(3) != 0;
    let config = Config {
        recovery: if likely(&mut random) { Recovery::GoBackN } else { Recovery::SELECTIVE },
        peer_share_percent: [50, 100, 30][random.below(3) as usize],
        stalled_request_ns: [1, 50, 1000][random.below(3) as usize] * MS,
        preallocated_response_len: [0, 10, 1472][random.below(3) as usize],
        credits: [1, 4, 32][random.below(3) as usize],
        slots: [1, 2, 8][random.below(3) as usize],
        tuning: Tuning {
            preallocated_responses: likely(&mut random),
            zero_copy_requests: likely(&mut random),
            cumulative_credits: likely(&mut random),
            batched_clock: likely(&mut random),
            ..Tuning::default()
        },
        ..Config::default()
    };
    let slots = u64::from(config.slots);
    let port = LoopbackConfig {
        arena_bytes: [200_000, 1 << 20, 8 << 20][random.below(3) as usize],
        ..LoopbackConfig::default()
    };
    let mut server = world.server(config, port);
    let offer = Offer { data_per_packet: [64, 100, 1448][random.below(3) as usize], ..OFFER };
    let mut clients: Vec<HandClient> = Vec::new();
    for peer in 0..2 {
        let first = HandClient::new(&world, peer);
        for index in 0..2 {
            let mut one = first.sibling(&world, u64::from(peer) * 10 + index);
            one.open(&mut server, offer).unwrap();
            clients.push(one);
        }
    }
    let mut next = vec![vec![0u64; slots as usize]; clients.len()];
    let types = [ECHO, ECHO, BURST, WORKER, DROP, PANIC, LONG, LONG, DEFER, DEFER, RequestType::new(99)];
    // Type and length of each slot's last request.
    let mut last = vec![vec![(ECHO, 0usize); slots as usize]; clients.len()];
    let mut opened = 100;
    let steps = 400;
    for _ in 0..steps {
        let client_index = random.below(clients.len() as u64) as usize;
        let slot = random.below(slots) as usize;
        match random.below(20) {
            0..=5 => {
                // A new request, whole or in part.
                next[client_index][slot] += 1 + random.below(2);
                let step = clients[client_index].granted.data_per_packet as usize;
                let len = match random.below(6) {
                    0 => 0,
                    1 => step,
                    2 => step + 1,
                    3 => random.below(40_000) as usize,
                    4 => random.below(2 * step as u64) as usize,
                    _ => 10,
                };
                let kind = types[random.below(types.len() as u64) as usize];
                let len = if kind == LONG { len.max(4) } else { len };
                last[client_index][slot] = (kind, len);
                let mut message = pattern(len, 3);
                if kind == LONG {
                    message[..4].copy_from_slice(&(random.below(60_000) as u32).to_le_bytes());
                }
                clients[client_index].request_type = kind;
                let number = next[client_index][slot] * slots + slot as u64;
                let packets = len.div_ceil(step).max(1) as u64;
                let upto = if random.below(3) == 0 { random.below(packets + 1) } else { packets };
                for packet in 0..upto {
                    if random.below(30) == 0 {
                        continue;
                    }
                    clients[client_index].request(number, packet as u16, &message);
                    if packet % 50 == 49 {
                        server.turn();
                    }
                }
            }
            6..=10 => {
                // A packet of the last request again.
                let (kind, len) = last[client_index][slot];
                clients[client_index].request_type = kind;
                let back = random.below(8) / 6;
                let number = next[client_index][slot].saturating_sub(back) * slots + slot as u64;
                let step = clients[client_index].granted.data_per_packet as usize;
                let packets = len.div_ceil(step).max(1) as u64;
                let packet = random.below(packets);
                let mut message = pattern(len, 3);
                if kind == LONG {
                    message[..4].copy_from_slice(&7u32.to_le_bytes());
                }
                let data = &message[(packet as usize * step).min(len)..((packet as usize + 1) * step).min(len)];
                for _ in 0..1 + random.below(10) {
                    let header = Header {
                        is_copy: random.below(2) == 0,
                        ..clients[client_index].header(number, packet as u16, len)
                    };
                    clients[client_index].send(header, data);
                }
            }
            11..=13 => {
                let number = next[client_index][slot] * slots + slot as u64;
                for _ in 0..1 + random.below(5) {
                    clients[client_index].request_for_response(
                        number,
                        random.below(50) as u16,
                        random.below(34) as u32,
                    );
                }
            }
            14 => {
                answer_kept();
            }
            15 => {
                world.pool.run_all();
            }
            16 => drop(take_kept()),
            17 => {
                world.clock.advance(random.below(40) * MS);
                for one in &clients {
                    one.ping();
                }
                server.turn();
            }
            18 if random.below(4) == 0 => {
                // Disconnect, and open another session.
                let one = &clients[client_index];
                one.send_management(&session_end(Kind::Disconnect, one.server_key, one.key));
                if random.below(2) == 0 {
                    server.turn();
                }
                opened += 1;
                let mut new = one.sibling(&world, opened);
                server.turn();
                new.open(&mut server, offer).unwrap();
                clients[client_index] = new;
                next[client_index].iter_mut().for_each(|next| *next = 0);
            }
            _ => {
                server.turn();
            }
        }
        if random.below(3) == 0 {
            server.turn();
        }
    }
    // Nothing is stuck: each slot answers a request and its retransmissions.
    for _ in 0..20 {
        server.turn();
        world.pool.run_all();
        answer_kept();
    }
    for (client_index, one) in clients.iter_mut().enumerate() {
        for (slot, next) in next[client_index].iter_mut().enumerate() {
            *next += 1;
            let number = *next * slots + slot as u64;
            one.request_type = ECHO;
            one.request(number, 0, b"still");
            let first = one.turn(&mut server);
            assert_eq!(first.len(), 1, "seed {seed}: {first:?}");
            for _ in 0..2 {
                one.request(number, 0, b"still");
                let again = one.turn(&mut server);
                assert_eq!(again.len(), 1, "seed {seed}: {again:?}");
                assert_eq!(again[0].0.kind, first[0].0.kind);
            }
            // A long request, whose first packet comes again.
            *next += 1;
            let number = *next * slots + slot as u64;
            let message = pattern(1449, 1);
            one.request(number, 0, &message);
            let first = one.turn(&mut server);
            assert_eq!(first.len(), 1, "seed {seed}: {first:?}");
            for _ in 0..2 {
                one.request(number, 0, &message);
                let again = one.turn(&mut server);
                assert_eq!(again.len(), 1, "seed {seed}: {again:?}");
                assert_eq!(again[0].0.kind, first[0].0.kind);
            }
        }
    }
    for one in &clients {
        one.send_management(&session_end(Kind::Disconnect, one.server_key, one.key));
        server.turn();
    }
    assert_nothing_is_left(&server);
}

#[test]
fn every_slot_goes_on_answering_whatever_was_sent_before() {
    (0..300).for_each(history);
}
