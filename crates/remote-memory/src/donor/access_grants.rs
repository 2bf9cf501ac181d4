//! Access to a donor's memory that callers hold at present.

use std::collections::HashMap;

use sinew_fabric::Generator;

/// Holder of an access: a volume, and the client and lane; `None` stands for the volume's writer.
pub(super) type Holder = (u64, Option<(u64, u8)>);

enum HeldAccess<L> {
    /// Used without the donor's help, until it is dropped.
    Verbs(#[allow(dead_code, reason = "dropping it ends it")] L),
    /// Calls with this token are answered.
    Calls(u64),
}

/// All access given out and not yet ended.
pub(super) struct AccessGrants<L> {
    grants: HashMap<Holder, HeldAccess<L>>,
    /// The volume that calls with a token may access.
    tokens: HashMap<u64, u64>,
}

impl<L> AccessGrants<L> {
    pub fn new() -> Self {
        Self { grants: HashMap::new(), tokens: HashMap::new() }
    }

    pub fn grant(&mut self, to: Holder, grant: L) {
        self.revoke(to);
        self.grants.insert(to, HeldAccess::Verbs(grant));
    }

    /// Gives access by calls, and returns its token, which nobody can guess and which is never 0.
    pub fn grant_token(&mut self, to: Holder, random: &mut dyn Generator) -> u64 {
        self.revoke(to);
        let mut token = random.next_u64();
        while token == 0 || self.tokens.contains_key(&token) {
            token = random.next_u64();
        }
        self.tokens.insert(token, to.0);
        self.grants.insert(to, HeldAccess::Calls(token));
        token
    }

    pub fn revoke(&mut self, holder: Holder) {
        if let Some(HeldAccess::Calls(token)) = self.grants.remove(&holder) {
            self.tokens.remove(&token);
        }
    }

    /// Ends every access for which `keeps` is false.
    pub fn retain(&mut self, keeps: impl Fn(Holder) -> bool) {
        let ended: Vec<Holder> = self.grants.keys().copied().filter(|whose| !keeps(*whose)).collect();
        ended.into_iter().for_each(|whose| self.revoke(whose));
    }

    /// Returns the volume whose slabs calls with this token may read and write.
    pub fn volume_of(&self, token: u64) -> Option<u64> {
        self.tokens.get(&token).copied()
    }
}

#[cfg(test)]
mod tests {
    use sinew_fabric::SeededGenerator;

    use super::*;

    #[test]
    fn a_token_is_good_until_its_lending_ends_or_is_given_anew() {
        let mut random = SeededGenerator::new(1);
        let mut grants = AccessGrants::<()>::new();
        let [writer, first, second, other] = [(1, None), (1, Some((5, 0))), (1, Some((6, 0))), (2, Some((5, 0)))];
        let mut token = |grants: &mut AccessGrants<()>, to| grants.grant_token(to, &mut random);
        let all = [writer, first, second, other].map(|to| token(&mut grants, to));
        assert_eq!(all.map(|token| grants.volume_of(token)), [Some(1), Some(1), Some(1), Some(2)]);
        grants.revoke(first);
        assert_eq!(grants.volume_of(all[1]), None);
        let again = token(&mut grants, second);
        assert_eq!([all[2], again, 0].map(|token| grants.volume_of(token)), [None, Some(1), None]);
        grants.grant(second, ());
        assert_eq!(grants.volume_of(again), None, "it is reached another way");
        grants.retain(|(volume, _)| volume != 1);
        assert_eq!(all.map(|token| grants.volume_of(token)), [None, None, None, Some(2)]);
        assert_eq!((grants.grants.len(), grants.tokens.len()), (1, 1));
    }
}
