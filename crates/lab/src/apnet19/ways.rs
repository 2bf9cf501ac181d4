//! The ways to fetch an object that the paper compares (2.2, 4.1).

/// What crosses the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// READs, each of which the next depends on: of 8 bytes, but the last, which is of the object.
    Read {
        /// How many.
        accesses: usize,
    },
    /// A request by WRITE over UC and an answer by SEND over UD: a compound read.
    WriteSend,
    /// A request and an answer by SEND over UD.
    SendSend,
}

/// How processes learn of what happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// They sleep until a completion interrupts.
    Interrupts,
    /// The client polls its completion queue, and the server its memory.
    Polling,
    /// The client polls the memory that an unsignaled READ brings the object to.
    PollingTargets,
}

/// A way as the paper's figures name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// As figures have it.
    pub name: &'static str,
    /// In rows' names.
    pub id: &'static str,
    /// What crosses the network.
    pub way: Way,
    /// How that is noticed.
    pub notice: Notice,
}

const fn read(name: &'static str, id: &'static str, accesses: usize, notice: Notice) -> Kind {
    Kind { name, id, way: Way::Read { accesses }, notice }
}

/// A READ whose completion interrupts.
pub const READ_INTR: Kind = read("READ-Intr", "read_intr", 1, Notice::Interrupts);
/// Two dependent ones.
pub const READ_INTR_2: Kind = read("READ-Intr-2", "read_intr_2", 2, Notice::Interrupts);
/// Three.
pub const READ_INTR_3: Kind = read("READ-Intr-3", "read_intr_3", 3, Notice::Interrupts);
/// Four.
pub const READ_INTR_4: Kind = read("READ-Intr-4", "read_intr_4", 4, Notice::Interrupts);
/// A READ whose target is polled.
pub const READ_POLL: Kind = read("READ-Poll", "read_poll", 1, Notice::PollingTargets);
/// A READ whose completion is polled for.
pub const READ_SIG: Kind = read("READ-Sig", "read_sig", 1, Notice::Polling);
/// A compound read of which both sides poll.
pub const WRITE_SEND: Kind =
    Kind { name: "WRITE/SEND-Poll", id: "write_send", way: Way::WriteSend, notice: Notice::Polling };
/// A compound read of which both sides sleep.
pub const SEND_SEND: Kind =
    Kind { name: "SEND/SEND-Intr", id: "send_send", way: Way::SendSend, notice: Notice::Interrupts };

/// Those of Figures 1 and 3.
pub const LATENCY: [Kind; 5] = [READ_INTR, READ_POLL, READ_SIG, WRITE_SEND, SEND_SEND];
/// Those of Figures 2 and 4.
pub const THROUGHPUT: [Kind; 7] = [READ_INTR, READ_POLL, READ_INTR_2, READ_INTR_3, READ_INTR_4, WRITE_SEND, SEND_SEND];
/// Bytes of objects.
pub const SIZES: [usize; 6] = [16, 64, 128, 256, 1024, 4096];
