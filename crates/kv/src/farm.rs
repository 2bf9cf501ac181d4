//! FaRM's store (nsdi14; sigcomm14 2.3 and 5.1.2): a hopscotch table with values in its slots, or elsewhere. A GET
//! takes about one READ of a neighbourhood, and one of the value if that lies elsewhere; a PUT is a message.
//!
//! Client and owner are those of [`crate::one_sided`].

use sinew_store::hopscotch::{Layout, Values};

use crate::one_sided::{self, Emulation};

/// Slots of a neighbourhood, as in the paper.
pub const NEIGHBOURHOOD: u32 = 6;
/// Bytes of a pointer when the design is emulated.
const POINTER_LEN: u32 = 8;

/// A client of a FaRM store.
pub type FarmClient<D> = one_sided::OneSidedClient<D, Layout>;

/// Layout of a table for `items` items, seven tenths full when it holds them all.
pub fn layout(items: u32, key_len_max: u32, value_len_max: u32, is_inline: bool, seed: u64) -> Layout {
    let buckets = (u64::from(items) * 10 / 7 + 64).min(1 << 30) as u32;
    let extent = u64::from(value_len_max).next_multiple_of(8).max(8);
    let bytes = (extent + extent / 8).next_multiple_of(8) * (u64::from(items) + 1024);
    let values = if is_inline { Values::Inline } else { Values::OutOfLine(bytes.min(8 << 32)) };
    let overflow_blocks = (buckets / 64).max(8);
    Layout { buckets, neighbourhood: NEIGHBOURHOOD, overflow_blocks, key_len_max, value_len_max, values, seed }
}

/// Emulates FaRM: inline (FaRM-em), one READ of six keys and values; otherwise (FaRM-em-VAR), one READ of six keys and
/// pointers, and one of the value.
pub fn emulation(items: u32, key_len: u32, value_len: u32, is_inline: bool) -> Emulation {
    let slot_len = key_len + if is_inline { value_len } else { POINTER_LEN };
    let out_of_line_len = if is_inline { 0 } else { value_len.max(1) };
    let words = (u64::from(items) * u64::from(slot_len + out_of_line_len) / 8).max(1 << 16);
    Emulation { words, probe_len: NEIGHBOURHOOD * slot_len, second_probes_of_ten: 0, value_len: out_of_line_len }
}
