//! Clients of a volume besides its writer: which are admitted, and which were expelled.

use std::collections::BTreeMap;

use super::protocol::Refusal;

/// The clients of one volume in one epoch of its writer.
#[derive(Default)]
pub(super) struct Clients {
    /// Sessions, by client and lane.
    admitted: BTreeMap<(u64, u8), u64>,
    expelled: Expelled,
}

impl Clients {
    /// Admitted lanes of all clients.
    pub fn admitted_lanes(&self) -> usize {
        self.admitted.len()
    }

    /// Whether no client is admitted, and none is remembered.
    pub fn is_empty(&self) -> bool {
        self.admitted.is_empty() && self.expelled.lasts.is_empty()
    }

    pub fn is_admitted(&self, client: u64) -> bool {
        self.admitted.range((client, 0)..=(client, u8::MAX)).next().is_some()
    }

    pub fn has_lane(&self, client: u64, lane: u8) -> bool {
        self.admitted.contains_key(&(client, lane))
    }

    /// Whether a client has this session.
    pub fn has_session(&self, session: u64) -> bool {
        self.admitted.values().any(|of_client| *of_client == session)
    }

    /// Checks that a client may be admitted.
    pub fn check(&self, client: u64) -> Result<(), Refusal> {
        // A number between two expelled ones may have been taken for expelled although its client is here.
        if self.expelled.has(client) && !self.is_admitted(client) { Err(Refusal::Expelled { client }) } else { Ok(()) }
    }

    pub fn admit(&mut self, client: u64, lane: u8, session: u64) {
        self.admitted.insert((client, lane), session);
    }

    /// Expels a client, and returns how many lanes it had. The expelled clients are kept as at most `ranges_max` ranges
    /// of numbers.
    pub fn expel(&mut self, client: u64, ranges_max: usize) -> usize {
        let before = self.admitted.len();
        self.admitted.retain(|(of, _), _| *of != client);
        self.expelled.insert(client);
        self.expelled.shrink(ranges_max);
        before - self.admitted.len()
    }
}

/// Numbers of expelled clients, as ranges that do not touch.
///
/// A writer numbers its clients consecutively, and expels each that leaves. So there is a gap only where a client is
/// still there, or had left before the writer fenced this donor. The ranges are about as many as the clients at one
/// time, however many have left.
#[derive(Default)]
struct Expelled {
    /// The last number of each range, by its first.
    lasts: BTreeMap<u64, u64>,
}

impl Expelled {
    fn has(&self, client: u64) -> bool {
        self.lasts.range(..=client).next_back().is_some_and(|(_, last)| client <= *last)
    }

    fn insert(&mut self, client: u64) {
        if self.has(client) {
            return;
        }
        let before = self.lasts.range(..client).next_back().filter(|(_, last)| **last + 1 == client);
        let first = before.map_or(client, |(first, _)| *first);
        let behind = client.checked_add(1).and_then(|next| self.lasts.remove(&next));
        self.lasts.insert(first, behind.unwrap_or(client));
    }

    /// Closes the gaps between the lowest ranges until there are at most `ranges_max`. The numbers in such a gap count
    /// as expelled: the oldest clients that have not been admitted here must join again, under new numbers.
    fn shrink(&mut self, ranges_max: usize) {
        while self.lasts.len() > ranges_max.max(1) {
            let Some((first, _)) = self.lasts.pop_first() else { return };
            let Some((_, last)) = self.lasts.pop_first() else { return };
            self.lasts.insert(first, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const RANGES_MAX: usize = 100;

    #[test]
    fn an_old_client_is_admitted_however_many_others_have_left() {
        let mut clients = Clients::default();
        for client in 2..100_000 {
            clients.admit(client, 0, client);
            assert_eq!(clients.expel(client, RANGES_MAX), 1);
        }
        assert_eq!((clients.check(1), clients.expelled.lasts.len()), (Ok(()), 1));
        assert!([2, 50_000, 99_999].iter().all(|client| clients.check(*client).is_err()));
        assert_eq!(clients.check(100_000), Ok(()));
    }

    #[test]
    fn who_was_expelled_stays_out_and_what_is_kept_of_them_is_bounded() {
        let mut clients = Clients::default();
        let all = 10 * RANGES_MAX as u64;
        for client in 0..all {
            assert_eq!(clients.check(client), Ok(()));
            // Some are expelled before they were ever admitted.
            if client % 3 > 0 {
                clients.admit(client, 0, client + 1);
            }
            if client % 5 > 0 {
                clients.expel(client, RANGES_MAX);
                assert!(clients.check(client).is_err());
            }
            assert!(clients.expelled.lasts.len() <= RANGES_MAX);
        }
        let lowest = *clients.expelled.lasts.first_key_value().unwrap().1;
        assert!((all / 3..2 * all / 3).contains(&lowest), "{lowest}: there are twice as many gaps as may be kept");
        for client in 0..all {
            let stays = client % 3 > 0 && client % 5 == 0;
            assert_eq!(clients.is_admitted(client), stays, "client {client}");
            let may_come = stays || client % 5 == 0 && (client == 0 || client > lowest);
            assert_eq!(clients.check(client).is_ok(), may_come, "client {client}");
        }
    }

    #[test]
    fn the_first_and_the_last_number_can_be_expelled() {
        let mut clients = Clients::default();
        for client in [u64::MAX, 0, u64::MAX - 1, 0, u64::MAX] {
            clients.expel(client, RANGES_MAX);
        }
        assert!([0, u64::MAX - 1, u64::MAX].iter().all(|client| clients.check(*client).is_err()));
        assert!([1, u64::MAX - 2].iter().all(|client| clients.check(*client).is_ok()));
        clients.expel(7, 0);
        assert!([0, 7, 1 << 40, u64::MAX].iter().all(|client| clients.check(*client).is_err()), "one range is kept");
    }

    proptest! {
        #[test]
        fn expelled_numbers_are_a_set(numbers in prop::collection::vec(0u64..60, 1..80)) {
            let (mut expelled, mut model) = (Expelled::default(), BTreeSet::new());
            for number in numbers {
                expelled.insert(number);
                model.insert(number);
                prop_assert!((0..61).all(|number| expelled.has(number) == model.contains(&number)));
                let ranges: Vec<(u64, u64)> = expelled.lasts.iter().map(|(first, last)| (*first, *last)).collect();
                prop_assert!(ranges.windows(2).all(|two| two[0].1 + 1 < two[1].0), "{:?}", ranges);
            }
        }
    }
}
