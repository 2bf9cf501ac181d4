//! Access that callers have to a donor's memory now.

use std::collections::HashMap;

use sinew_fabric::Generator;

/// Holder of an access: a volume, and the client and lane; `None` stands for the volume's writer.
pub(super) type Whose = (u64, Option<(u64, u8)>);

enum Held<L> {
    /// Used without the donor's help, until it is dropped.
    Verbs(#[allow(dead_code, reason = "dropping it ends it")] L),
    /// Calls with this token are answered.
    Calls(u64),
}

/// All access given out and not yet ended.
pub(super) struct Lendings<L> {
    held: HashMap<Whose, Held<L>>,
    /// The volume that calls with a token may access.
    tokens: HashMap<u64, u64>,
}

impl<L> Lendings<L> {
    pub fn new() -> Self {
        Self { held: HashMap::new(), tokens: HashMap::new() }
    }

    pub fn give(&mut self, to: Whose, lending: L) {
        self.end(to);
        self.held.insert(to, Held::Verbs(lending));
    }

    /// Gives access by calls, and returns its token, which nobody can guess and which is never 0.
    pub fn give_token(&mut self, to: Whose, random: &mut dyn Generator) -> u64 {
        self.end(to);
        let mut token = random.next_u64();
        while token == 0 || self.tokens.contains_key(&token) {
            token = random.next_u64();
        }
        self.tokens.insert(token, to.0);
        self.held.insert(to, Held::Calls(token));
        token
    }

    pub fn end(&mut self, whose: Whose) {
        if let Some(Held::Calls(token)) = self.held.remove(&whose) {
            self.tokens.remove(&token);
        }
    }

    /// Ends every access for which `stays` is false.
    pub fn retain(&mut self, stays: impl Fn(Whose) -> bool) {
        let ended: Vec<Whose> = self.held.keys().copied().filter(|whose| !stays(*whose)).collect();
        ended.into_iter().for_each(|whose| self.end(whose));
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
        let mut lendings = Lendings::<()>::new();
        let [writer, first, second, other] = [(1, None), (1, Some((5, 0))), (1, Some((6, 0))), (2, Some((5, 0)))];
        let mut token = |lendings: &mut Lendings<()>, to| lendings.give_token(to, &mut random);
        let all = [writer, first, second, other].map(|to| token(&mut lendings, to));
        assert_eq!(all.map(|token| lendings.volume_of(token)), [Some(1), Some(1), Some(1), Some(2)]);
        lendings.end(first);
        assert_eq!(lendings.volume_of(all[1]), None);
        let again = token(&mut lendings, second);
        assert_eq!([all[2], again, 0].map(|token| lendings.volume_of(token)), [None, Some(1), None]);
        lendings.give(second, ());
        assert_eq!(lendings.volume_of(again), None, "it is reached another way");
        lendings.retain(|(volume, _)| volume != 1);
        assert_eq!(all.map(|token| lendings.volume_of(token)), [None, None, None, Some(2)]);
        assert_eq!((lendings.held.len(), lendings.tokens.len()), (1, 1));
    }
}
