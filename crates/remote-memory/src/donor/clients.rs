//! Clients of a volume besides its writer: which are admitted, and which were expelled.

use std::collections::{BTreeMap, BTreeSet};

use super::protocol::Refusal;

/// Expelled clients remembered per volume, each by its number. When there are more, the lowest number becomes a floor,
/// below which no new client is admitted.
const EXPELLED_MAX: usize = 1024;

/// The clients of one volume in one epoch of its writer.
#[derive(Default)]
pub(super) struct Clients {
    /// Sessions, by client and lane.
    admitted: BTreeMap<(u64, u8), u64>,
    /// Expelled clients with numbers at or above the floor.
    expelled: BTreeSet<u64>,
    /// Clients with lower numbers stay if they are admitted, and otherwise stay out.
    floor: u64,
}

impl Clients {
    /// Admitted lanes of all clients.
    pub fn admitted_lanes(&self) -> usize {
        self.admitted.len()
    }

    /// Whether no client is admitted, and none is remembered.
    pub fn is_empty(&self) -> bool {
        self.admitted.is_empty() && self.expelled.is_empty()
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
        let is_expelled = client < self.floor || self.expelled.contains(&client);
        if is_expelled && !self.is_admitted(client) { Err(Refusal::Expelled { client }) } else { Ok(()) }
    }

    pub fn admit(&mut self, client: u64, lane: u8, session: u64) {
        self.admitted.insert((client, lane), session);
    }

    /// Expels a client, and returns how many lanes it had.
    pub fn expel(&mut self, client: u64) -> usize {
        let before = self.admitted.len();
        self.admitted.retain(|(of, _), _| *of != client);
        let removed = before - self.admitted.len();
        if client < self.floor {
            return removed;
        }
        self.expelled.insert(client);
        if self.expelled.len() > EXPELLED_MAX
            && let Some(lowest) = self.expelled.pop_first()
        {
            // A slow client below the floor must join again under a new number; an expelled one never comes back.
            self.floor = lowest + 1;
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_expelled_stays_out_and_what_is_kept_of_them_is_bounded() {
        let mut clients = Clients::default();
        for client in 0..10 * EXPELLED_MAX as u64 {
            assert_eq!(clients.check(client), Ok(()));
            // Some are expelled before they were ever admitted.
            if client % 3 > 0 {
                clients.admit(client, 0, client + 1);
            }
            if client % 5 > 0 {
                clients.expel(client);
                assert!(clients.check(client).is_err());
            }
            assert!(clients.expelled.len() <= EXPELLED_MAX);
        }
        for client in 0..10 * EXPELLED_MAX as u64 {
            let stays = client % 3 > 0 && client % 5 == 0;
            assert_eq!(clients.is_admitted(client), stays, "client {client}");
            let may_come = stays || client % 5 == 0 && client >= clients.floor;
            assert_eq!(clients.check(client).is_ok(), may_come, "client {client}");
        }
        assert!(clients.floor > 0);
    }
}
