//! The ways to fetch an object that the paper compares (apnet19 2.2, 4.1).

/// Messages of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMethod {
    /// READs, each of which depends on the one before: of 8 bytes each, except for the last, which is of the object.
    Read {
        /// Number of READs.
        accesses: usize,
    },
    /// A request by WRITE over UC and an answer by SEND over UD: a compound read.
    WriteSend,
    /// A request and an answer by SEND over UD.
    SendSend,
}

/// Way in which processes notice completions and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// They sleep until a completion interrupts.
    Interrupts,
    /// The client polls its completion queue, and the server its memory.
    Polling,
    /// The client polls the memory to which an unsignaled READ brings the object.
    PollingTargets,
}

/// A way as the paper's figures name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedMethod {
    /// Name in the figures.
    pub name: &'static str,
    /// Part of rows' names.
    pub id: &'static str,
    /// Messages of a get.
    pub method: AccessMethod,
    /// Way in which they are noticed.
    pub notice: Notice,
}

const fn read_method(name: &'static str, id: &'static str, accesses: usize, notice: Notice) -> NamedMethod {
    NamedMethod { name, id, method: AccessMethod::Read { accesses }, notice }
}

/// A READ whose completion interrupts.
pub const READ_INTR: NamedMethod = read_method("READ-Intr", "read_intr", 1, Notice::Interrupts);
/// Two dependent READs whose completions interrupt.
pub const READ_INTR_2: NamedMethod = read_method("READ-Intr-2", "read_intr_2", 2, Notice::Interrupts);
/// Three dependent READs whose completions interrupt.
pub const READ_INTR_3: NamedMethod = read_method("READ-Intr-3", "read_intr_3", 3, Notice::Interrupts);
/// Four dependent READs whose completions interrupt.
pub const READ_INTR_4: NamedMethod = read_method("READ-Intr-4", "read_intr_4", 4, Notice::Interrupts);
/// A READ whose target is polled.
pub const READ_POLL: NamedMethod = read_method("READ-Poll", "read_poll", 1, Notice::PollingTargets);
/// A READ whose completion is polled.
pub const READ_SIG: NamedMethod = read_method("READ-Sig", "read_sig", 1, Notice::Polling);
/// A compound read with polling on both sides.
pub const WRITE_SEND: NamedMethod =
    NamedMethod { name: "WRITE/SEND-Poll", id: "write_send", method: AccessMethod::WriteSend, notice: Notice::Polling };
/// A compound read with sleeping on both sides.
pub const SEND_SEND: NamedMethod =
    NamedMethod { name: "SEND/SEND-Intr", id: "send_send", method: AccessMethod::SendSend, notice: Notice::Interrupts };

/// Kinds in Figures 1 and 3.
pub const LATENCY: [NamedMethod; 5] = [READ_INTR, READ_POLL, READ_SIG, WRITE_SEND, SEND_SEND];
/// Kinds in Figures 2 and 4.
pub const THROUGHPUT: [NamedMethod; 7] =
    [READ_INTR, READ_POLL, READ_INTR_2, READ_INTR_3, READ_INTR_4, WRITE_SEND, SEND_SEND];
/// Sizes of objects, in bytes.
pub const SIZES: [usize; 6] = [16, 64, 128, 256, 1024, 4096];
