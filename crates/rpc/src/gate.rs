//! Access control: admits callers that have the key, or anybody where there is no key.
//!
//! A caller greets, gets a nonce, and proves that it has the key by a keyed checksum of the nonce (SipHash-2-4 with 128
//! bits). The proof admits the caller's session, whose packets the transport keeps apart from others'. Nothing is
//! encrypted.
//!
//! In the [exchange](Gate::handle_message) of bytes defined here, the answering side proves itself too: a
//! [`CallerHandshake`] greets with a nonce of its own, and the answer has a proof over both. Each proof names the side
//! that made it, so that one side's cannot be presented as the other's.

use std::collections::HashMap;
use std::hash::Hasher;

use arrayvec::ArrayVec;
use sinew_fabric::Generator;
use siphasher::sip128::{Hasher128, SipHasher24};

/// Least bytes of a key.
pub const KEY_LEN_MIN: usize = 16;
/// Bytes of a nonce, and of a proof.
pub const PROOF_LEN: usize = 16;

/// Most bytes of a message of the exchange.
const MESSAGE_LEN_MAX: usize = 1 + 2 * PROOF_LEN;
const GREET: u8 = 1;
const PROVE: u8 = 2;
const WELCOME: u8 = 3;
const CHALLENGE: u8 = 4;
const REFUSED: u8 = 5;

/// A message of the exchange.
pub type Message = ArrayVec<u8, MESSAGE_LEN_MAX>;
/// A number that is used once.
pub type Nonce = [u8; PROOF_LEN];

/// The side of a session that makes a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that opened the session.
    Caller,
    /// The side that it was opened to.
    Answerer,
}

/// A key that both sides have.
#[derive(Clone)]
pub struct Key([u8; 16]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Derives the key from the bytes of a key file; `None` for fewer than [`KEY_LEN_MIN`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut hasher = SipHasher24::new_with_key(b"sinew memory key");
        hasher.write(bytes);
        (bytes.len() >= KEY_LEN_MIN).then(|| Self(hasher.finish128().as_bytes()))
    }

    /// Proof that the side `by` has the key: over the answerer's nonce, and the caller's if it sent one.
    pub fn proof(&self, by: Side, caller: Option<&Nonce>, answerer: &Nonce) -> [u8; PROOF_LEN] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&[by as u8, u8::from(caller.is_some())]);
        hasher.write(answerer);
        hasher.write(caller.map_or(&[][..], |nonce| nonce));
        hasher.finish128().as_bytes()
    }
}

/// Whether two proofs are the same. The time taken does not depend on where they differ.
fn proofs_equal(ours: &[u8; PROOF_LEN], theirs: &[u8; PROOF_LEN]) -> bool {
    ours.iter().zip(theirs).fold(0, |all, (ours, theirs)| all | (ours ^ theirs)) == 0
}

fn draw_nonce(random: &mut dyn Generator) -> Nonce {
    let words = [random.next_u64(), random.next_u64()];
    std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8])
}

fn message(kind: u8, parts: &[&[u8; PROOF_LEN]]) -> Message {
    let mut message = Message::new();
    message.push(kind);
    parts.iter().take(2).for_each(|part| message.extend(part.iter().copied()));
    message
}

/// The caller's half of the exchange, for one session.
#[derive(Debug)]
pub struct CallerHandshake {
    key: Key,
    nonce: Nonce,
    /// Whether the answerer has proved that it has the key.
    is_answered: bool,
}

/// Result of an answer to a [`CallerHandshake`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// The caller may call.
    Welcome,
    /// The next message to send.
    Send(Message),
    /// The other side has another key or none, or its answer is malformed.
    Refused(&'static str),
}

impl CallerHandshake {
    /// A caller that has a key.
    pub fn new(key: &Key, random: &mut dyn Generator) -> Self {
        Self { key: key.clone(), nonce: draw_nonce(random), is_answered: false }
    }

    /// The first message to send.
    pub fn greeting(&self) -> Message {
        message(GREET, &[&self.nonce])
    }

    /// Takes an answer to the last message.
    pub fn handle_answer(&mut self, answer: &[u8]) -> HandshakeStep {
        const UNEXPECTED: HandshakeStep = HandshakeStep::Refused("its answer is unexpected");
        match answer.split_first() {
            // Without this check, an answerer without the key could pose as one that has it.
            Some((&WELCOME, [])) if !self.is_answered => HandshakeStep::Refused("it asks for no key"),
            Some((&WELCOME, [])) => HandshakeStep::Welcome,
            Some((&REFUSED, [])) => HandshakeStep::Refused("it has another key"),
            Some((&CHALLENGE, rest)) => {
                let (Some((nonce, theirs)), true) = (rest.split_first_chunk(), rest.len() == 2 * PROOF_LEN) else {
                    return UNEXPECTED;
                };
                let Some(theirs) = theirs.first_chunk() else { return UNEXPECTED };
                if !proofs_equal(&self.key.proof(Side::Answerer, Some(&self.nonce), nonce), theirs) {
                    return HandshakeStep::Refused("it does not have the key that it asks for");
                }
                self.is_answered = true;
                HandshakeStep::Send(message(PROVE, &[&self.key.proof(Side::Caller, Some(&self.nonce), nonce)]))
            }
            _ => UNEXPECTED,
        }
    }
}

enum CallerState {
    /// Challenged with this nonce; the second is the caller's own, if it sent one.
    Challenged(Nonce, Option<Nonce>),
    Proven,
}

/// The answerer's half: callers that have proved themselves, and those that have greeted.
pub struct Gate<C> {
    key: Option<Key>,
    callers: HashMap<C, CallerState>,
    unproven: usize,
    unproven_max: usize,
    random: Box<dyn Generator>,
}

impl<C> std::fmt::Debug for Gate<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("callers", &self.callers.len()).finish_non_exhaustive()
    }
}

impl<C: Copy + Eq + std::hash::Hash> Gate<C> {
    /// A gate that opens to callers with the key, or to everybody without one. `unproven_max` bounds the callers that
    /// have greeted and proved nothing yet.
    pub fn new(key: Option<Key>, unproven_max: usize, random: Box<dyn Generator>) -> Self {
        Self { key, callers: HashMap::new(), unproven: 0, unproven_max, random }
    }

    /// Source of the nonces.
    pub fn random(&mut self) -> &mut dyn Generator {
        &mut *self.random
    }

    /// Handles a message of a [`CallerHandshake`], and returns the answer for its caller.
    pub fn handle_message(&mut self, caller: C, bytes: &[u8]) -> Message {
        let body = bytes.split_first().and_then(|(kind, body)| Some((*kind, body.try_into().ok()?)));
        match body {
            Some((GREET, theirs)) => match self.challenge(caller, Some(theirs)) {
                None => message(WELCOME, &[]),
                Some((nonce, proof)) => message(CHALLENGE, &[&nonce, &proof]),
            },
            Some((PROVE, proof)) if self.check_proof(caller, &proof) => message(WELCOME, &[]),
            _ => message(REFUSED, &[]),
        }
    }

    /// A nonce for a caller; `None` where everybody may call.
    pub fn issue_nonce(&mut self, caller: C) -> Option<Nonce> {
        self.challenge(caller, None).map(|(nonce, _)| nonce)
    }

    fn challenge(&mut self, caller: C, theirs: Option<Nonce>) -> Option<(Nonce, [u8; PROOF_LEN])> {
        let key = self.key.clone()?;
        if self.unproven >= self.unproven_max {
            // Callers that have greeted but proved nothing must begin again.
            self.callers.retain(|_, caller| matches!(caller, CallerState::Proven));
            self.unproven = 0;
        }
        let nonce = draw_nonce(&mut *self.random);
        match self.callers.insert(caller, CallerState::Challenged(nonce, theirs)) {
            Some(CallerState::Challenged(..)) => {}
            _ => self.unproven += 1,
        }
        Some((nonce, key.proof(Side::Answerer, theirs.as_ref(), &nonce)))
    }

    /// Checks a proof, and returns whether it is good; if so, the caller is known from now on.
    pub fn check_proof(&mut self, caller: C, proof: &[u8; PROOF_LEN]) -> bool {
        let (Some(key), Some(CallerState::Challenged(nonce, theirs))) = (&self.key, self.callers.get(&caller)) else {
            return self.key.is_none();
        };
        let is_good = proofs_equal(&key.proof(Side::Caller, theirs.as_ref(), nonce), proof);
        self.unproven = self.unproven.saturating_sub(1);
        if is_good {
            self.callers.insert(caller, CallerState::Proven);
        } else {
            self.callers.remove(&caller);
        }
        is_good
    }

    /// Whether the caller may call.
    pub fn is_proven(&self, caller: C) -> bool {
        self.key.is_none() || matches!(self.callers.get(&caller), Some(CallerState::Proven))
    }

    /// Forgets a caller that is gone.
    pub fn forget(&mut self, caller: C) {
        if let Some(CallerState::Challenged(..)) = self.callers.remove(&caller) {
            self.unproven = self.unproven.saturating_sub(1);
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
        assert!(!gate.is_proven(1) && !gate.check_proof(1, &[0; PROOF_LEN]));
        let nonce = gate.issue_nonce(1).unwrap();
        assert!(!gate.check_proof(1, &other.proof(Side::Caller, None, &nonce)) && !gate.is_proven(1));
        assert!(!gate.check_proof(1, &key.proof(Side::Caller, None, &nonce)), "a nonce is good for one attempt");
        let nonce = gate.issue_nonce(1).unwrap();
        assert!(!gate.check_proof(2, &key.proof(Side::Caller, None, &nonce)), "and for its caller");
        assert!(gate.check_proof(1, &key.proof(Side::Caller, None, &nonce)) && gate.is_proven(1) && !gate.is_proven(2));
        gate.forget(1);
        assert!(!gate.is_proven(1));
    }

    #[test]
    fn strangers_do_not_grow_a_donors_memory_nor_put_known_callers_out() {
        let key = Key::new(&[7; 16]).unwrap();
        let mut gate = gate(Some(key.clone()));
        let nonce = gate.issue_nonce(1000).unwrap();
        assert!(gate.check_proof(1000, &key.proof(Side::Caller, None, &nonce)));
        (0..1000).for_each(|caller| assert!(gate.issue_nonce(caller).is_some()));
        assert!(gate.callers.len() <= 4 && gate.is_proven(1000));
    }

    #[test]
    fn without_a_key_everybody_is_known_and_short_keys_are_none() {
        let mut open = gate(None);
        assert!(open.issue_nonce(1).is_none() && open.is_proven(1));
        assert!(Key::new(&[7; 15]).is_none() && Key::new(&[7; 16]).is_some());
    }

    /// The exchange of a caller with a gate, and whether both were content.
    fn exchange(gate: &mut Gate<u32>, caller: u32, mut handshake: CallerHandshake) -> Result<(), &'static str> {
        let mut next = handshake.greeting();
        loop {
            match handshake.handle_answer(&gate.handle_message(caller, &next)) {
                HandshakeStep::Welcome => return Ok(()),
                HandshakeStep::Send(message) => next = message,
                HandshakeStep::Refused(why) => return Err(why),
            }
        }
    }

    #[test]
    fn both_sides_prove_that_they_have_the_key() {
        let (ours, other) = (Key::new(&[1; 16]).unwrap(), Key::new(&[2; 16]).unwrap());
        let mut random = SeededGenerator::new(2);
        let mut handshake = |key| CallerHandshake::new(key, &mut random);
        let mut keyed = gate(Some(ours.clone()));
        assert_eq!(exchange(&mut keyed, 1, handshake(&ours)), Ok(()));
        assert!(keyed.is_proven(1));
        assert_eq!(exchange(&mut keyed, 2, handshake(&other)), Err("it does not have the key that it asks for"));
        assert!(!keyed.is_proven(2));
        assert_eq!(
            exchange(&mut gate(None), 1, handshake(&ours)),
            Err("it asks for no key"),
            "anybody could say welcome"
        );
    }

    #[test]
    fn what_one_side_proved_is_no_proof_of_the_other() {
        let key = Key::new(&[1; 16]).unwrap();
        let (mut here, mut there) =
            (gate(Some(key.clone())), Gate::new(Some(key), 3, Box::new(SeededGenerator::new(9))));
        // One without the key is challenged here, and has the other gate answer.
        let challenge = here.handle_message(1, &message(GREET, &[&[3; PROOF_LEN]]));
        let nonce: &Nonce = challenge[1..].first_chunk().unwrap();
        let made = there.handle_message(1, &message(GREET, &[nonce]));
        let proof: &[u8; PROOF_LEN] = made[1 + PROOF_LEN..].first_chunk().unwrap();
        assert_eq!(here.handle_message(1, &message(PROVE, &[proof]))[..], [REFUSED]);
        assert!(!here.is_proven(1));
    }

    #[test]
    fn messages_of_other_shapes_are_refused() {
        let key = Key::new(&[1; 16]).unwrap();
        let mut gate = gate(Some(key.clone()));
        let mut handshake = CallerHandshake::new(&key, &mut SeededGenerator::new(1));
        for kind in 0..8 {
            for len in (0..MESSAGE_LEN_MAX + 2).filter(|len| *len != PROOF_LEN) {
                let bytes = [vec![kind], vec![0; len]].concat();
                assert_eq!(gate.handle_message(1, &bytes)[..], [REFUSED]);
                assert!(matches!(handshake.handle_answer(&bytes), HandshakeStep::Refused(_)), "{kind} {len}");
            }
        }
        assert!(
            gate.handle_message(1, &[])[..] == [REFUSED]
                && handshake.handle_answer(&[]) == HandshakeStep::Refused("its answer is unexpected")
        );
    }
}
