//! Counters of a NIC.

/// Counters of a modelled NIC so far. Transactions are those of PCI Express; lines have 64 bytes, as processors'
/// counters count them (atc16 2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicStats {
    /// Lines that cores wrote by MMIO.
    pub mmio_lines: u64,
    /// Doorbells that cores rang.
    pub doorbells: u64,
    /// DMA reads.
    pub dma_reads: u64,
    /// Lines that DMA reads brought.
    pub dma_read_lines: u64,
    /// DMA writes.
    pub dma_writes: u64,
    /// Lines that DMA writes wrote.
    pub dma_write_lines: u64,
    /// Bytes to the NIC, headers included.
    pub down_bytes: u64,
    /// Bytes from the NIC, headers included.
    pub up_bytes: u64,
    /// Requests of its host that it sent.
    pub requests: u64,
    /// Packets of requests that it received from others.
    pub requests_received: u64,
    /// Work queue elements that it had to fetch again, evicted by newer ones.
    pub wqe_misses: u64,
    /// Queue pairs whose state it had to fetch for a request of its host.
    pub requester_misses: u64,
    /// Queue pairs whose state it had to fetch for a request of others.
    pub responder_misses: u64,
    /// Addresses of pages that it had to fetch.
    pub translation_misses: u64,
    /// Requests that it retransmitted.
    pub retransmissions: u64,
    /// Requests of others for which no receive was posted: refused over RC, and dropped over UC and UD.
    pub not_ready: u64,
    /// Packets that it dropped: damaged, for no queue pair, of an earlier connection, or out of order.
    pub dropped: u64,
}

impl NicStats {
    /// The difference from the earlier counters `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            mmio_lines: self.mmio_lines - before.mmio_lines,
            doorbells: self.doorbells - before.doorbells,
            dma_reads: self.dma_reads - before.dma_reads,
            dma_read_lines: self.dma_read_lines - before.dma_read_lines,
            dma_writes: self.dma_writes - before.dma_writes,
            dma_write_lines: self.dma_write_lines - before.dma_write_lines,
            down_bytes: self.down_bytes - before.down_bytes,
            up_bytes: self.up_bytes - before.up_bytes,
            requests: self.requests - before.requests,
            requests_received: self.requests_received - before.requests_received,
            wqe_misses: self.wqe_misses - before.wqe_misses,
            requester_misses: self.requester_misses - before.requester_misses,
            responder_misses: self.responder_misses - before.responder_misses,
            translation_misses: self.translation_misses - before.translation_misses,
            retransmissions: self.retransmissions - before.retransmissions,
            not_ready: self.not_ready - before.not_ready,
            dropped: self.dropped - before.dropped,
        }
    }
}

/// Share of the time for which each part of a NIC has been busy, from 0 to 1: the greatest is the bottleneck.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NicUse {
    /// Its requesters, on average.
    pub requesters: f64,
    /// Its responders, on average.
    pub responders: f64,
    /// The bus to the NIC.
    pub pcie_down: f64,
    /// The bus from the NIC.
    pub pcie_up: f64,
    /// The link to others.
    pub transmit: f64,
    /// The link from others.
    pub receive: f64,
}
