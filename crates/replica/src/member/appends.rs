//! Appends of bounded length. The engine joins all appends to a member that it makes in one turn, which may be many
//! megabytes for one that is behind.

use raft::eraftpb::{Message, MessageType};

/// Bytes counted for an entry or a message besides its data.
const OVERHEAD: usize = 32;

fn entry_len(entry: &raft::eraftpb::Entry) -> u64 {
    (entry.data.len() + entry.context.len() + OVERHEAD) as u64
}

/// Bytes of a message, approximately.
pub fn message_len(message: &Message) -> u64 {
    OVERHEAD as u64 + message.entries.iter().map(entry_len).sum::<u64>()
}

/// Makes an append name the entry before its first one, whose term `term_of` knows; `None` if that is not known any
/// more. The engine (raft 0.7, with `batch_append`) joins entries to a waiting append that has none, whatever entry
/// that one names. Receivers refuse the outcome, and the entries are late by a heartbeat.
pub fn mend(mut message: Message, term_of: impl Fn(u64) -> Option<u64>) -> Option<Message> {
    let before = message.entries.first().map_or(message.index, |first| first.index.saturating_sub(1));
    if message.get_msg_type() == MessageType::MsgAppend && message.index != before {
        (message.index, message.log_term) = (before, term_of(before)?);
    }
    Some(message)
}

/// Cuts a message into ones with up to `len_max` bytes of entries each, apart from their first entries.
pub fn split(mut message: Message, len_max: u64, mut give: impl FnMut(Message)) {
    if message.get_msg_type() == MessageType::MsgAppend && message_len(&message) > len_max {
        let entries: Vec<_> = std::mem::take(&mut message.entries).into();
        let mut part = message.clone();
        let mut len = 0;
        for entry in entries {
            if len > 0 && len + entry_len(&entry) > len_max {
                // The next one says which entry precedes its first one.
                message.index = entry.index.saturating_sub(1);
                message.log_term = part.entries.last().map_or(message.log_term, |last| last.term);
                give(std::mem::replace(&mut part, message.clone()));
                len = 0;
            }
            len += entry_len(&entry);
            part.entries.push(entry);
        }
        message = part;
    }
    give(message);
}

/// Whether only a leader sends such a message.
pub fn is_of_leader(message: &Message) -> bool {
    matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgTimeoutNow)
}

/// Number of messages that have up to `len_max` bytes in all, but at least one.
pub fn count_within(messages: &[Message], len_max: u64) -> usize {
    let mut room = len_max;
    let fits = |message: &&Message| {
        let left = room.checked_sub(message_len(message));
        room = left.unwrap_or(0);
        left.is_some()
    };
    messages.iter().take_while(fits).count().max(1).min(messages.len())
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::Entry;

    use super::*;

    fn entry(index: u64, term: u64, len: usize) -> Entry {
        Entry { index, term, data: vec![0; len].into(), ..Entry::default() }
    }

    fn append(entries: Vec<Entry>) -> Message {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgAppend);
        (message.index, message.log_term, message.commit) = (9, 3, 8);
        message.entries = entries.into();
        message
    }

    fn parts(message: Message, len_max: u64) -> Vec<(u64, u64, Vec<u64>)> {
        let mut parts = Vec::new();
        split(message, len_max, |part| {
            assert_eq!(part.commit, 8);
            parts.push((part.index, part.log_term, part.entries.iter().map(|entry| entry.index).collect()));
        });
        parts
    }

    #[test]
    fn entries_that_were_joined_to_an_append_of_another_place_get_their_own() {
        let term_of = |index| (5..20).contains(&index).then_some(index / 5);
        let mended = |message| mend(message, term_of).map(|message| (message.index, message.log_term));
        assert_eq!(mended(append(Vec::new())), Some((9, 3)));
        assert_eq!(mended(append(vec![entry(10, 3, 1)])), Some((9, 3)));
        assert_eq!(mended(append(vec![entry(7, 1, 1), entry(8, 1, 1)])), Some((6, 1)));
        assert_eq!(mended(append(vec![entry(13, 3, 1)])), Some((12, 2)));
        assert_eq!(mended(append(vec![entry(5, 1, 1)])), None);
        let heartbeat = Message { index: 4, ..Message::default() };
        assert_eq!(mended(heartbeat), Some((4, 0)));
    }

    #[test]
    fn a_long_append_is_cut_into_ones_that_follow_each_other() {
        let entries = vec![entry(10, 3, 68), entry(11, 4, 68), entry(12, 4, 500), entry(13, 5, 1)];
        assert_eq!(parts(append(entries.clone()), 10_000), [(9, 3, vec![10, 11, 12, 13])]);
        let expected = [(9, 3, vec![10, 11]), (11, 4, vec![12]), (12, 4, vec![13])];
        assert_eq!(parts(append(entries), 200), expected);
        assert_eq!(parts(append(Vec::new()), 0), [(9, 3, vec![])]);
    }

    #[test]
    fn messages_are_sent_as_far_as_their_bytes_fit() {
        let messages = [append(vec![entry(10, 3, 36)]), append(Vec::new()), append(vec![entry(11, 3, 1000)])];
        for (len_max, count) in [(0, 1), (100, 1), (131, 1), (132, 2), (1195, 2), (1196, 3), (9999, 3)] {
            assert_eq!(count_within(&messages, len_max), count, "{len_max}");
        }
        assert_eq!(count_within(&[], 5), 0);
    }
}
