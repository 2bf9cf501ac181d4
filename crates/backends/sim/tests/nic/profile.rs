//! A NIC for tests.

use sinew_sim::nic::{Caches, Core, Framing, Link, Pcie, Profile, Registration, Units, WqeLayout};
use sinew_sim::pcie::{Generation, PcieLink};

/// Something like a ConnectX-3.
pub fn profile() -> Profile {
    Profile {
        name: "test".to_owned(),
        title: "a NIC for tests".to_owned(),
        is_validated: false,
        pcie: Pcie {
            link: PcieLink { generation: Generation::Gen3, lanes: 8, completion_max: 128 },
            read_latency_ns: 300,
            write_latency_ns: 150,
        },
        wqe: WqeLayout {
            header_connected: 36,
            header_datagram: 68,
            receive: 16,
            inline_max: 256,
            inline_receive_max: 64,
        },
        units: Units {
            requesters: 4,
            responders: 1,
            request_ns: 95.6,
            fetched_line_ns: 29.2,
            packet_ns: 11.3,
            dma_write_ns: 17.3,
            dma_read_ns: 27.2,
            atomic_ns: 10.0,
            atomic_hold_ns: 370,
            atomic_locks: 1,
            mmio_line_ns: 19.2,
            fetch_max: 4,
            pipeline_ns: 100,
            reads_max: 16,
        },
        caches: Caches {
            requester_states: 64,
            responder_states: 280,
            wqes: 256,
            translations: 1024,
            page_bytes: 2 << 20,
        },
        link: Link { framing: Framing::InfiniBand, rate_gbps: 54.54, mtu: 2048, switch_ns: 200, cable_ns: 10 },
        core: Core {
            count: 8,
            post_ns: 50,
            mmio_line_ns: 50,
            doorbell_ns: 50,
            receive_ns: 30,
            completion_ns: 20,
            look_ns: 10,
            copy_line_ns: 5,
            memory_ns: 90,
            contended_ns: 40,
            interrupt_ns: 5_000,
            time_slice_ns: 4_000_000,
        },
        registration: Registration { call_ns: 2_000, page_ns: 200, copy_bytes_per_ns: 8.0 },
    }
}
