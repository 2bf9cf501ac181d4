//! Entries in flight to one member, of which a leader sends only so many bytes: the engine bounds the number of
//! messages, each of which may carry an entry of a megabyte, and asks a member that it has lost sight of for its place
//! with each heartbeat, every time by a message with the same entries.

use std::collections::VecDeque;

use raft::eraftpb::{Message, MessageType};

use super::appends;

/// Time after which entries without an answer are sent again, in ns, and time for each byte of them besides. An answer,
/// or the failure of the call, comes before that, except where they went as the answer to a call that had ended, or
/// where a member took only a part of them.
const LOST_NS: u64 = 1_000_000_000;
const LOST_NS_PER_BYTE: u64 = 2_000;
/// Time after which they are sent again, in ns, once the member has said that it lacks them.
const DROPPED_NS: u64 = 100_000_000;
/// Time after which the member is asked whether it has entries that it has not acknowledged, in ns, and time for each
/// byte of them besides: one that drops them, as on a full disk, says nothing, and all later ones wait behind them. The
/// question overtakes entries that are still on their way, and its refusal has them sent again; so it comes no earlier
/// than a call with as many bytes may take.
const ASKED_NS: u64 = 150_000_000;
const ASKED_NS_PER_BYTE: u64 = 1_000;

#[derive(Debug)]
struct Sent {
    /// Index of the entry before the first one.
    before: u64,
    last: u64,
    len: u64,
    lost_ns: u64,
    asked_ns: u64,
}

/// Messages with entries that were sent to a member and are not acknowledged.
#[derive(Debug, Default)]
pub struct Window {
    sent: VecDeque<Sent>,
    len: u64,
}

/// Whether a message brings entries.
pub fn has_entries(message: &Message) -> bool {
    message.get_msg_type() == MessageType::MsgAppend && !message.entries.is_empty()
}

impl Window {
    /// Bytes in flight.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Counts a message that is sent now, if it has entries.
    pub fn note_sent(&mut self, message: &Message, now_ns: u64) {
        let (Some(last), true) = (message.entries.last(), has_entries(message)) else { return };
        let len = appends::message_len(message);
        self.len += len;
        let lost_ns = now_ns.saturating_add(LOST_NS + LOST_NS_PER_BYTE * self.len);
        let asked_ns = now_ns.saturating_add(ASKED_NS + ASKED_NS_PER_BYTE * self.len);
        self.sent.push_back(Sent { before: message.index, last: last.index, len, lost_ns, asked_ns });
    }

    /// Index of the last entry in flight, if it is time to ask the member whether it has all up to there: by an append
    /// without entries, which it refuses if it lacks one. It is time again after as long as the first time.
    pub fn next_question(&mut self, now_ns: u64) -> Option<u64> {
        let last = self.sent.back()?.last;
        let oldest = self.sent.front_mut()?;
        if oldest.asked_ns > now_ns {
            return None;
        }
        oldest.asked_ns = now_ns.saturating_add(ASKED_NS + ASKED_NS_PER_BYTE * self.len);
        Some(last)
    }

    /// Forgets messages whose entries the member has, as it has all up to `index`.
    pub fn note_acknowledged(&mut self, index: u64) {
        while let Some(sent) = self.sent.pop_front_if(|sent| sent.last <= index) {
            self.len -= sent.len;
        }
    }

    /// Forgets all messages if the member has refused one of them, which it does if it lacks the entry before the first
    /// one, `before`. Returns whether it was one of them. If it lacks the last entry of all, it may have dropped them,
    /// as it does on a full disk, or they are still on their way: then they count as lost before long.
    pub fn note_refused(&mut self, before: u64, now_ns: u64) -> bool {
        let is_one = self.sent.iter().any(|sent| sent.before == before);
        if is_one {
            self.clear();
        } else if self.sent.back().is_some_and(|sent| sent.last == before)
            && let Some(oldest) = self.sent.front_mut()
        {
            oldest.lost_ns = oldest.lost_ns.min(now_ns.saturating_add(DROPPED_NS));
        }
        is_one
    }

    /// Forgets all messages if the oldest was lost.
    pub fn expire(&mut self, now_ns: u64) {
        if self.sent.front().is_some_and(|sent| sent.lost_ns <= now_ns) {
            self.clear();
        }
    }

    /// Forgets all messages: they failed, or the member does not take what they bring.
    pub fn clear(&mut self) {
        self.sent.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::Entry;

    use super::*;

    fn append(indices: std::ops::Range<u64>, len: usize) -> Message {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgAppend);
        let entry = |index| Entry { index, data: vec![0; len].into(), ..Entry::default() };
        message.index = indices.start.saturating_sub(1);
        message.entries = indices.map(entry).collect::<Vec<_>>().into();
        message
    }

    #[test]
    fn what_was_sent_is_in_flight_until_it_is_acknowledged_or_lost() {
        let mut window = Window::default();
        window.note_sent(&append(5..5, 0), 0);
        assert!(window.is_empty(), "it has no entries");
        window.note_sent(&append(5..7, 100), 0);
        let first = window.len();
        assert!(first >= 200);
        window.note_sent(&append(7..8, 1 << 20), 0);
        window.note_acknowledged(5);
        assert!(window.len() > 1 << 20, "a part of a message does not end it");
        window.note_acknowledged(6);
        assert_eq!(window.len(), appends::message_len(&append(7..8, 1 << 20)));
        window.expire(LOST_NS + LOST_NS_PER_BYTE * (1 << 20));
        assert!(!window.is_empty(), "there was not time enough for so many bytes");
        window.expire(LOST_NS + LOST_NS_PER_BYTE * (window.len() + first));
        assert!(window.is_empty());
        assert_eq!(window.len(), 0);
        window.note_sent(&append(7..8, 1), 0);
        assert!(!window.note_refused(5, 0) && !window.is_empty(), "that was an older message");
        assert!(!window.note_refused(7, 0) && !window.is_empty(), "it may still be on its way");
        window.expire(DROPPED_NS - 1);
        assert!(!window.is_empty());
        window.expire(DROPPED_NS);
        assert!(window.is_empty(), "it was dropped");
        window.note_sent(&append(7..8, 1), 0);
        assert!(window.note_refused(6, 0) && window.is_empty());
    }

    #[test]
    fn a_member_that_is_silent_is_asked_for_the_last_entry_long_before_the_first_is_lost() {
        let mut window = Window::default();
        assert_eq!(window.next_question(u64::MAX), None);
        (5..8).for_each(|index| window.note_sent(&append(index..index + 1, 300_000), 0));
        let due_ns = ASKED_NS + ASKED_NS_PER_BYTE * appends::message_len(&append(5..6, 300_000));
        assert_eq!(window.next_question(due_ns - 1), None);
        assert_eq!(window.next_question(due_ns), Some(7));
        assert_eq!(window.next_question(due_ns + 1), None, "not with each heartbeat");
        assert!(!window.note_refused(7, due_ns));
        window.expire(due_ns + DROPPED_NS);
        assert!(window.is_empty());
    }
}
