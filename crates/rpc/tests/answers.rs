//! Clients that send arbitrary requests, and handlers that do anything a handler may: each answer is to the call whose
//! number it bears, and in the end nothing counts for a peer.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;

use common::handmade::*;
use common::*;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{Generator, SeededGenerator};
use sinew_rpc::{Config, DeferredCall, Nexus, RequestType};
use sinew_wire::Kind;
use sinew_wire::management::session_end;

thread_local! {
    static HELD: RefCell<Vec<DeferredCall>> = const { RefCell::new(Vec::new()) };
}

fn nexus(pool: std::sync::Arc<ManualPool>) -> Nexus {
    Nexus::builder()
        .config(Config { stalled_request_ns: 50_000_000, ..Config::default() })
        .workers(pool)
        .handle(RequestType::new(1), |call| {
            let request = call.request();
            match request[0] {
                0 => call.reply(request),
                1 => panic!("before"),
                2 => {
                    call.reply(request);
                    panic!("after");
                }
                3 => drop(call),
                4 => std::mem::forget(call),
                5 => {
                    if let Ok(call) = call.defer() {
                        HELD.with_borrow_mut(|held| held.push(call));
                    }
                }
                6 => call.reply_with(request.len(), |to| to.copy_from_slice(request)),
                7 => call.reply_with(request.len(), |to| {
                    to.fill(0xEE);
                    panic!("within")
                }),
                8 => {
                    let mut buffer = call.alloc(request.len()).unwrap();
                    buffer.fill(request).unwrap();
                    call.reply_buffer(buffer);
                }
                9 => call.reply(&[request, &[0; 300]].concat()),
                _ => call.reply(&request[..16]),
            }
        })
        .handle_burst(RequestType::new(2), |calls| {
            for index in (0..calls.len()).rev() {
                let request = calls.request(index);
                match request[0] {
                    1 => panic!("burst"),
                    3 => {}
                    5 => {
                        if let Ok(call) = calls.defer(index) {
                            HELD.with_borrow_mut(|held| held.push(call));
                        }
                    }
                    _ => calls.reply(index, request),
                }
            }
        })
        .handle_worker(RequestType::new(3), |call| {
            let reply = call.request().to_vec();
            match reply[0] {
                1 => panic!("worker"),
                2 => call.reply_in_place(),
                3 => drop(call),
                _ => call.reply(&reply),
            }
        })
        .build()
        .unwrap()
}

struct Model {
    client: HandClient,
    id: u16,
    last: [u64; 8],
    epoch: u8,
    cookie: sinew_wire::management::Cookie,
}

#[test]
fn answers_are_to_the_calls_whose_numbers_they_bear() {
    let mut answered = 0;
    for seed in 0..20 {
        let world = World::new();
        let mut rng = SeededGenerator::new(seed);
        let mut random = move |n: u64| rng.next_u64() % n;
        let nexus = nexus(std::sync::Arc::clone(&world.pool));
        let port = LoopbackConfig { arena_bytes: 1 << 20, ..LoopbackConfig::default() };
        let mut server = world.endpoint_with("server", &nexus, seed, port);
        let mut next_id = 0u16;
        let mut keys = BTreeMap::new();
        let mut open = |server: &mut _, keys: &mut BTreeMap<_, _>, number: u32| {
            let first = HandClient::new(&world, number);
            let mut client = first.sibling(&world, u64::from(next_id));
            let cookie = client.challenged(server, SMALL);
            client.send_management(&client.connect_packet(SMALL, cookie));
            let answers: Vec<_> = client.turn(server);
            let Some((header, body)) = answers.iter().find(|(h, _)| h.kind == Kind::Accept) else {
                panic!("{answers:?}")
            };
            client.accepted(header, body);
            let id = next_id;
            next_id += 1;
            keys.insert(client.key.0, id);
            Model { client, id, last: std::array::from_fn(|slot| slot as u64), epoch: 0, cookie }
        };
        let mut models: Vec<_> = (0..3).map(|n| open(&mut server, &mut keys, n % 2)).collect();
        for _turn in 0..300 {
            world.network.start_tap();
            world.network.take_tapped();
            for _ in 0..random(14) {
                let which = random(3) as usize;
                let model = &mut models[which];
                let slot = random(8) as usize;
                let number = match random(8) {
                    0 => model.last[slot],
                    1 => model.last[slot].saturating_sub(8),
                    2 => model.last[slot] + 8 * random(5),
                    _ => model.last[slot] + 8,
                };
                model.last[slot] = model.last[slot].max(number);
                let len = [16, 17, 40, 64, 65, 99, 100, 101, 200, 250][random(10) as usize];
                let mut message = vec![random(11) as u8];
                message.extend(model.id.to_le_bytes());
                message.extend(number.to_le_bytes());
                message.push(model.epoch);
                message.resize(len, 7);
                model.client.request_type = RequestType::new(1 + random(3) as u16);
                if random(30) == 0 {
                    model.client.request_for_response(number, 1, 1 + random(3) as u32);
                }
                for packet in 0..len.div_ceil(100) {
                    if random(20) > 0 {
                        model.client.request(number, packet as u16, &message);
                    }
                }
                if random(40) == 0 {
                    // Disconnect, and open another session in its place, in the same burst.
                    let end = session_end(Kind::Disconnect, model.client.server_key, model.client.key);
                    model.client.send_management(&end);
                    let again = model.client.connect_packet(SMALL, model.cookie);
                    model.client.send_management(&again);
                    model.last = std::array::from_fn(|slot| slot as u64);
                    model.epoch += 1;
                }
            }
            if random(3) == 0 {
                world.pool.run_all();
            }
            if random(3) == 0 {
                let held = HELD.take();
                for call in held {
                    match random(4) {
                        0 => drop(call),
                        1 => {
                            let reply = call.request().to_vec();
                            call.reply(&reply);
                        }
                        2 => HELD.with_borrow_mut(|held| held.push(call)),
                        _ => call.reply_in_place(),
                    }
                }
            }
            server.turn();
            for packet in world.network.take_tapped() {
                let (header, body) = parse(&packet.bytes);
                let Some(&id) = keys.get(&header.session.0) else { continue };
                if header.kind == Kind::Accept {
                    let model = models.iter_mut().find(|m| m.id == id).unwrap();
                    model.client.accepted(&header, &body);
                    continue;
                }
                if header.kind != Kind::Response || header.packet_number != 0 {
                    continue;
                }
                answered += 1;
                assert_eq!(u16::from_le_bytes([body[1], body[2]]), id, "seed {seed}");
                assert_eq!(u64::from_le_bytes(body[3..11].try_into().unwrap()), header.request_number, "seed {seed}");
                let model = models.iter().find(|m| m.id == id).unwrap();
                assert_eq!(body[11], model.epoch, "seed {seed}");
                assert!(body[0] != 7 || header.message_len != 0xEE);
            }
            world.clock.advance(random(20) * 1_000_000);
        }
        HELD.take();
        world.pool.run_all();
        server.turn();
        // In the end everything has been given back.
        for model in &models {
            model.client.send_management(&session_end(Kind::Disconnect, model.client.server_key, model.client.key));
        }
        server.turn();
        assert_eq!(server.sessions(), 0);
        drop(server.alloc(500_000).unwrap());
        // Nothing counts for a peer any more: it can have its whole share.
        let len = (1..524_288).rev().step_by(8).find(|&len| sinew_mem::Arena::block_len(len, 1448) <= 524_288).unwrap();
        for number in [0, 1] {
            let mut client = HandClient::new(&world, number).sibling(&world, 60_000);
            client.open(&mut server, OFFER).unwrap();
            client.request_type = RequestType::new(1);
            let mut message = vec![10; len];
            message[1] = 0;
            let mut answers = Vec::new();
            for packet in 0..len.div_ceil(1448) {
                client.request(8, packet as u16, &message);
                if packet % 32 == 31 {
                    client.turn(&mut server);
                }
            }
            answers.extend(client.turn(&mut server));
            assert_eq!(answers.last().unwrap().0.kind, Kind::Response, "seed {seed}: {answers:?}");
        }
    }
    assert!(answered > 10_000, "{answered}");
}
