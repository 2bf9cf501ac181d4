//! The packet ring by itself, and a packet into a link.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use sinew_cost::{Count, Operation, operation};
use sinew_fabric::{PacketPort, PacketRx, PacketTx, RxBurst, TxData, TxPacket};
use sinew_mem::Region;
use sinew_mem::ring::{self, Consumer, INLINE_MAX, Producer, Taken, Words};
use sinew_shm::Hub;

const OPERATIONS: &[Operation] = &[
    operation("packet of 56 B into a link", &["sender"], link_push),
    operation("ring push", &["producer", "producer, for each burst"], push),
    operation("ring take in place", &["consumer", "consumer, for each burst"], take_in_place),
    operation("ring take with copy out", &["consumer"], take_with_copy),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

/// Packets of a burst: enough for the cost per burst, which has rows of its own, to be small beside that of packets.
const BURST: usize = 32;
/// Lines of the ring. The rounds wrap around often enough for the cost of wrapping to have its long-run share.
const LINES: usize = 256;
const ROUNDS: usize = 256;
const WARM_UP: usize = 128;

/// A header and 32 bytes; the optimiser knows neither the bytes nor their number.
fn packet() -> Vec<u8> {
    black_box((1..=56).collect())
}

fn link_push(count: &mut Count) -> anyhow::Result<()> {
    let hub = Hub::new();
    let mut receiver = hub.port("receiver?arena=16777216")?;
    let mut sender = hub.port("?arena=16777216")?;
    let to = sender.resolve(&receiver.address())?;
    let packet = packet();
    let mut now_ns = 0;
    count.rounds(WARM_UP, ROUNDS, |count| {
        let (_, tx) = sender.split();
        let one = TxPacket { to, head: &packet, data: TxData::None };
        let sender = &mut *tx;
        count.step("sender", BURST, move || {
            for _ in 0..BURST {
                sender.push(one);
            }
        });
        tx.submit();
        now_ns += 1_000;
        let (rx, _) = receiver.split();
        let mut burst = RxBurst::new(now_ns);
        rx.receive(&mut burst);
        // The first packets wait until the receiver has read its letters.
        ensure!(now_ns < 10_000 || burst.packets.len() == BURST, "a burst of {}", burst.packets.len());
        Ok(())
    })
}

fn push(count: &mut Count) -> anyhow::Result<()> {
    let (mut producer, mut consumer) = ring::pair(LINES)?;
    let packet = packet();
    count.rounds(WARM_UP, ROUNDS, |count| {
        let pushed = count.step("producer", BURST, || (0..BURST).all(|_| producer.push(&packet, &[]).is_ok()));
        count.step("producer, for each burst", 1, || producer.submit());
        ensure!(pushed && consumer.receive(BURST + 1, |_| ()) == BURST);
        Ok(())
    })
}

/// Takes bursts as a port does: packet by packet, and then returns all their lines at once.
fn take(count: &mut Count, trusted: bool, mut see: impl FnMut(&Consumer, &Taken, usize)) -> anyhow::Result<()> {
    let region = Arc::new(Region::private(ring::bytes_for(LINES))?);
    let words = Words::of_region(&region, 0, ring::bytes_for(LINES)).context("the region was made for the ring")?;
    // SAFETY: fresh memory that only these two reach, one producer and one consumer, both of this thread.
    let ends = unsafe { (Producer::new(words.clone(), LINES), Consumer::new(words, LINES, trusted)) };
    let (Some(mut producer), Some(mut consumer)) = ends else { bail!("the ring has a bad length") };
    let packet = packet();
    count.rounds(WARM_UP, ROUNDS, |count| {
        for _ in 0..BURST {
            producer.push(&packet, &[])?;
        }
        producer.submit();
        let taken = count.step("consumer", BURST, || {
            let mut packets = 0;
            while packets < BURST
                && let Some(taken) = consumer.take()
            {
                see(&consumer, &taken, packets);
                packets += 1;
            }
            packets
        });
        // SAFETY: `see` kept no slice of a packet.
        count.step("consumer, for each burst", 1, || unsafe { consumer.give_back() });
        ensure!(taken == BURST && consumer.is_empty(), "{taken} packets");
        Ok(())
    })
}

fn take_in_place(count: &mut Count) -> anyhow::Result<()> {
    take(count, true, |consumer, taken, _| {
        // SAFETY: the ring is trusted, the packet was just taken, and the slice ends here.
        let bytes: &[u8] = unsafe { consumer.bytes_in_place(taken) };
        black_box(bytes);
    })
}

fn take_with_copy(count: &mut Count) -> anyhow::Result<()> {
    let mut copies = [[0u8; INLINE_MAX]; BURST];
    take(count, false, |consumer, taken, number| {
        let copy = &mut copies[number];
        // SAFETY: a packet's bytes in the ring, rounded up, are at most INLINE_MAX, the length of `copy`.
        unsafe { consumer.copy_out(taken, copy.as_mut_ptr()) };
        black_box(&copy[..taken.len()]);
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
