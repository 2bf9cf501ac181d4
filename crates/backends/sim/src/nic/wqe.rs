//! Work queue elements: their lengths, and the payloads that fit in them (atc16 2.2.2, Table 1).

use sinew_fabric::verbs::{Transport, Verb};

use super::profile::WqeLayout;
use crate::pcie;

/// Bytes of data that a header can carry: the immediate.
pub const IMMEDIATE: usize = 4;
/// Bytes of the header of an inline payload, which only elements with one have. It is the last of Table 1's headers.
const INLINE_HEADER: usize = 4;
/// Bytes of a pointer to a piece of memory, with its key.
pub(crate) const POINTER: usize = 16;
/// Bytes of an atomic's operands.
const OPERANDS: usize = 16;
/// Most bytes of an element; an assumption.
pub const WQE_MAX: usize = 1024;

/// Location of a request's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the element itself.
    Inline,
    /// In memory, to which the element points.
    Memory,
    /// In the packet's header: the 4 bytes of an immediate (header-only, atc16 3.2, 4.2.1).
    Header,
}

impl WqeLayout {
    /// Bytes of a request's element. As in Table 1, SENDs over connections are as long as WRITEs. READs and atomics
    /// point to the memory for their results, where another request has its payload.
    pub fn request_len(&self, verb: Verb, transport: Transport, source: Source, len: usize) -> usize {
        let header = if transport.is_connected() { self.header_connected } else { self.header_datagram };
        let bare = header - INLINE_HEADER;
        match (verb, source) {
            (Verb::CompareSwap | Verb::FetchAdd, _) => bare + OPERANDS + POINTER,
            (Verb::Read, _) => bare + POINTER,
            (_, Source::Header) => bare,
            (_, _) if len == 0 => bare,
            (_, Source::Inline) => header + len,
            (_, Source::Memory) => bare + POINTER,
        }
    }

    /// Lines of a request's element. Each element begins a line.
    pub fn request_lines(&self, verb: Verb, transport: Transport, source: Source, len: usize) -> usize {
        pcie::lines(self.request_len(verb, transport, source, len))
    }

    /// Whether a payload can be inline.
    pub fn can_inline(&self, verb: Verb, len: usize) -> bool {
        matches!(verb, Verb::Send | Verb::Write | Verb::WriteWithImmediate) && len <= self.inline_max
    }

    /// Bytes of the longest inline payload whose element has at most [`WQE_MAX`] bytes.
    pub fn inline_room(&self) -> usize {
        WQE_MAX.saturating_sub(self.header_connected.max(self.header_datagram))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MELLANOX: WqeLayout =
        WqeLayout { header_connected: 36, header_datagram: 68, receive: 16, inline_max: 256, inline_receive_max: 64 };

    #[test]
    fn elements_are_as_long_as_in_the_paper() {
        let len = |verb, transport, source, len| MELLANOX.request_len(verb, transport, source, len);
        assert_eq!(len(Verb::Write, Transport::Uc, Source::Inline, 28), 64);
        assert_eq!(len(Verb::Write, Transport::Rc, Source::Inline, 29), 65);
        assert_eq!(len(Verb::Send, Transport::Ud, Source::Inline, 60), 128);
        // Data in the header: one line over UD (Figure 5).
        assert_eq!(len(Verb::Send, Transport::Ud, Source::Header, 4), 64);
        assert_eq!(len(Verb::Send, Transport::Ud, Source::Inline, 0), 64);
    }

    #[test]
    fn a_pointer_is_where_an_inline_payload_would_be() {
        for (verb, transport, bytes) in [
            (Verb::Write, Transport::Rc, 48),
            (Verb::Send, Transport::Ud, 80),
            (Verb::Read, Transport::Rc, 48),
            (Verb::CompareSwap, Transport::Rc, 64),
            (Verb::FetchAdd, Transport::Rc, 64),
        ] {
            assert_eq!(MELLANOX.request_len(verb, transport, Source::Memory, 1000), bytes, "{verb:?}");
        }
    }

    #[test]
    fn lines_begin_where_the_paper_has_its_steps() {
        let lines = |transport, len| MELLANOX.request_lines(Verb::Send, transport, Source::Inline, len);
        assert_eq!([28, 29, 92, 93].map(|len| lines(Transport::Uc, len)), [1, 2, 2, 3]);
        assert_eq!([0, 1, 60, 61, 124].map(|len| lines(Transport::Ud, len)), [1, 2, 2, 3, 3]);
    }

    #[test]
    fn only_what_goes_out_can_be_inline_and_only_to_a_length() {
        assert!(MELLANOX.can_inline(Verb::Send, 256) && !MELLANOX.can_inline(Verb::Send, 257));
        assert!(!MELLANOX.can_inline(Verb::Read, 8) && !MELLANOX.can_inline(Verb::FetchAdd, 8));
        assert_eq!(MELLANOX.inline_room(), WQE_MAX - 68);
    }
}
