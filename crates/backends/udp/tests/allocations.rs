//! An open port allocates nothing, whatever is sent through it.

#[path = "../../../../xtask/cost/src/counting.rs"]
mod counting;

use counting::allocations;
use sinew_fabric::{PacketPort, PacketRx, PacketTx, RxBurst, TxData, TxPacket};
use sinew_udp::UdpPort;

#[test]
fn sending_and_receiving_allocate_nothing() {
    for mode in ["off", "gso", "on"] {
        let open = || UdpPort::open(&format!("udp://127.0.0.1:0?coalesce={mode}").parse().unwrap()).unwrap();
        let (mut from, mut to) = (open(), open());
        let mut others: Vec<UdpPort> = (0..3).map(|_| open()).collect();
        let peer = from.resolve(&to.address()).unwrap();
        let peers: Vec<_> = others.iter().map(|other| from.resolve(&other.address()).unwrap()).collect();
        let frozen = from.arena().alloc(60_000, 7_000).unwrap().freeze();
        let before = allocations();
        // Bursts of every kind are counted, from the very first packet on.
        for round in 0..20 {
            let tx = from.split().1;
            for number in 0..200 {
                let head = [round; 56];
                let data = match number % 4 {
                    0 => TxData::Frozen { buffer: &frozen, start: number, len: 3_000 },
                    1 => TxData::Bytes(&head),
                    _ => TxData::None,
                };
                let to = if number % 7 == 0 { peers[number % 3] } else { peer };
                tx.push(TxPacket { to, head: &head, data });
            }
            tx.submit();
            let mut got = 0;
            loop {
                let mut burst = RxBurst::new(0);
                to.split().0.receive(&mut burst);
                if burst.packets.is_empty() {
                    break;
                }
                got += burst.packets.len();
            }
            assert!(got > 0, "{mode}");
            for other in &mut others {
                let mut burst = RxBurst::new(0);
                other.split().0.receive(&mut burst);
            }
        }
        assert_eq!(allocations() - before, 0, "{mode}");
    }
}
