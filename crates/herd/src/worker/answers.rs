//! The last answer of each slot, kept until the slot's next request is executed.

use crate::layout::{ANSWER_HEAD_LEN, Layout};

/// The request to which a kept answer belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerRecord {
    /// Number of the request.
    pub sequence: u32,
    /// Latest of its attempts that was answered.
    pub attempt: u8,
    /// Length of the answer with its head, in bytes; 0 if there is no answer.
    pub len: u32,
}

/// Place of a kept answer with its head.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptAnswer {
    pub start: usize,
    pub len: usize,
}

/// The kept answers, by client and slot.
pub struct Answers {
    records: Vec<AnswerRecord>,
    bytes: Vec<u8>,
    window: usize,
    stride: usize,
    /// Length of the longest answer with its head, for which its client has room: at most the stride.
    answer_len_max: usize,
}

impl Answers {
    pub fn new(layout: &Layout) -> Self {
        let (window, stride) = (layout.window, layout.answer_stride());
        let slots = layout.clients * window;
        Self {
            records: vec![AnswerRecord::default(); slots],
            // Zeroed memory costs nothing until it is used.
            bytes: vec![0; slots * stride],
            window,
            stride,
            answer_len_max: layout.response_len_max + ANSWER_HEAD_LEN,
        }
    }

    /// Returns the record of a slot's answer, and the room for its bytes with its start.
    #[inline(always)]
    pub fn get_mut(&mut self, client: u32, slot: usize) -> (&mut AnswerRecord, usize, &mut [u8]) {
        let index = client as usize * self.window + slot;
        let start = index * self.stride;
        (&mut self.records[index], start, &mut self.bytes[start..][..self.answer_len_max])
    }

    /// The bytes of a kept answer, with its head.
    #[inline(always)]
    pub fn get(&self, KeptAnswer { start, len }: KeptAnswer) -> &[u8] {
        &self.bytes[start..][..len]
    }

    /// Discards the answers to a client.
    pub fn forget(&mut self, client: u32) {
        self.records[client as usize * self.window..][..self.window].fill(AnswerRecord::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_room_that_its_client_has() {
        for response_len_max in [0, 1, 55, 56, 57, 1016, 65_527] {
            let layout = Layout { workers: 1, clients: 2, window: 2, request_len_max: 8, response_len_max };
            let mut answers = Answers::new(&layout);
            let starts = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(client, slot)| {
                let (_, start, room) = answers.get_mut(client, slot);
                assert_eq!(room.len(), response_len_max + ANSWER_HEAD_LEN);
                start
            });
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= response_len_max + ANSWER_HEAD_LEN));
        }
    }
}
