//! Who may ask a donor: whoever has the pool's key, or, where there is none, anybody.
//!
//! A caller greets and gets a nonce, and proves itself by a keyed checksum of it (SipHash-2-4 of 128 bits). The proof holds for its session, whose packets the
//! transport keeps apart from others'; it hides nothing that is sent.

use std::collections::HashMap;
use std::hash::Hasher;

use sinew_fabric::Generator;
use siphasher::sip128::{Hasher128, SipHasher24};

use super::wire::PROOF_LEN;

/// Least bytes of a key.
pub const KEY_LEN_MIN: usize = 16;

/// A pool's key.
#[derive(Clone)]
pub struct Key([u8; 16]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Of what a key file holds; `None` when that is shorter than [`KEY_LEN_MIN`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut hasher = SipHasher24::new_with_key(b"sinew memory key");
        hasher.write(bytes);
        (bytes.len() >= KEY_LEN_MIN).then(|| Self(hasher.finish128().as_bytes()))
    }

    /// What proves that one has the key.
    pub fn proof(&self, nonce: &[u8; PROOF_LEN]) -> [u8; PROOF_LEN] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(nonce);
        hasher.finish128().as_bytes()
    }
}

enum Caller {
    Asked([u8; PROOF_LEN]),
    Known,
}

/// Callers that are known, and those that may be soon: of a donor, or of another service of the pool.
pub struct Gate<C> {
    key: Option<Key>,
    callers: HashMap<C, Caller>,
    strangers: usize,
    strangers_max: usize,
    random: Box<dyn Generator>,
}

impl<C> std::fmt::Debug for Gate<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("callers", &self.callers.len()).finish_non_exhaustive()
    }
}

impl<C: Copy + Eq + std::hash::Hash> Gate<C> {
    /// A gate that opens to who has the key, or to everybody where there is none. Callers that have greeted and proved nothing are so many at most.
    pub fn new(key: Option<Key>, strangers_max: usize, random: Box<dyn Generator>) -> Self {
        Self { key, callers: HashMap::new(), strangers: 0, strangers_max, random }
    }

    /// What nonces are drawn from.
    pub fn random(&mut self) -> &mut dyn Generator {
        &mut *self.random
    }

    /// A nonce for a caller; none where everybody may call.
    pub fn greet(&mut self, caller: C) -> Option<[u8; PROOF_LEN]> {
        self.key.as_ref()?;
        if self.strangers >= self.strangers_max {
            // Those that greeted and proved nothing have to begin again.
            self.callers.retain(|_, caller| matches!(caller, Caller::Known));
            self.strangers = 0;
        }
        let words = [self.random.next_u64(), self.random.next_u64()];
        let nonce: [u8; PROOF_LEN] = std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8]);
        match self.callers.insert(caller, Caller::Asked(nonce)) {
            Some(Caller::Asked(_)) => {}
            _ => self.strangers += 1,
        }
        Some(nonce)
    }

    /// Whether the proof is good: from then on the caller is known.
    pub fn prove(&mut self, caller: C, proof: &[u8; PROOF_LEN]) -> bool {
        let (Some(key), Some(Caller::Asked(nonce))) = (&self.key, self.callers.get(&caller)) else {
            return self.key.is_none();
        };
        // All bytes are looked at, so that the time tells nothing.
        let differs = key.proof(nonce).iter().zip(proof).fold(0, |all, (ours, theirs)| all | (ours ^ theirs));
        self.strangers = self.strangers.saturating_sub(1);
        if differs == 0 {
            self.callers.insert(caller, Caller::Known);
        } else {
            self.callers.remove(&caller);
        }
        differs == 0
    }

    /// Whether the caller may call.
    pub fn knows(&self, caller: C) -> bool {
        self.key.is_none() || matches!(self.callers.get(&caller), Some(Caller::Known))
    }

    /// The caller is gone.
    pub fn forget(&mut self, caller: C) {
        if let Some(Caller::Asked(_)) = self.callers.remove(&caller) {
            self.strangers = self.strangers.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use sinew_fabric::SeededGenerator;

    use super::*;

    fn gate(key: Option<Key>) -> Gate<u32> {
        Gate::new(key, 3, Box::new(SeededGenerator::new(1)))
    }

    #[test]
    fn whoever_has_the_key_is_let_in_and_nobody_else_is() {
        let key = Key::new(b"sixteen bytes or more").unwrap();
        let other = Key::new(b"sixteen bytes or Less").unwrap();
        let mut gate = gate(Some(key.clone()));
        assert!(!gate.knows(1) && !gate.prove(1, &[0; PROOF_LEN]));
        let nonce = gate.greet(1).unwrap();
        assert!(!gate.prove(1, &other.proof(&nonce)) && !gate.knows(1));
        assert!(!gate.prove(1, &key.proof(&nonce)), "a nonce is good for one attempt");
        let nonce = gate.greet(1).unwrap();
        assert!(!gate.prove(2, &key.proof(&nonce)), "and for its caller");
        assert!(gate.prove(1, &key.proof(&nonce)) && gate.knows(1) && !gate.knows(2));
        gate.forget(1);
        assert!(!gate.knows(1));
    }

    #[test]
    fn strangers_do_not_grow_a_donors_memory_nor_put_known_callers_out() {
        let key = Key::new(&[7; 16]).unwrap();
        let mut gate = gate(Some(key.clone()));
        let nonce = gate.greet(1000).unwrap();
        assert!(gate.prove(1000, &key.proof(&nonce)));
        (0..1000).for_each(|caller| assert!(gate.greet(caller).is_some()));
        assert!(gate.callers.len() <= 4 && gate.knows(1000));
    }

    #[test]
    fn without_a_key_everybody_is_known_and_short_keys_are_none() {
        let mut open = gate(None);
        assert!(open.greet(1).is_none() && open.knows(1));
        assert!(Key::new(&[7; 15]).is_none() && Key::new(&[7; 16]).is_some());
    }
}
