//! Requests to the service.

use sinew_remote_memory::donor::Side;
use sinew_remote_memory::pool::AccessMethod;
use sinew_rpc::{Endpoint, Error as RpcError};

use super::error::ClientError;
use super::lane::Lane;
use super::shared::Identity;
use crate::protocol::{Answer, Caller, Envelope, Error, FILES, Message, Reply, Request, VERSION};

const MS: u64 = 1_000_000;
/// Pauses between attempts: the first, and the longest.
const PAUSE_RANGE_NS: (u64, u64) = (5 * MS, 200 * MS);

/// Outcome of one attempt to deliver a message.
pub(super) enum Attempt {
    Answered(Reply),
    /// There was no answer, so the message may or may not have arrived.
    Lost(String),
}

/// The version of a service that refuses a greeting because it speaks another.
fn other_version(reply: &Reply) -> Option<u8> {
    match reply {
        Reply::Version(version) => Some(*version),
        // To version 1, a greeting with a version is no message.
        Reply::Malformed => Some(1),
        _ => None,
    }
}

impl<E: Endpoint, A: AccessMethod> Lane<E, A> {
    /// Sends a request on behalf of a caller until it is answered, or the time-out expires.
    pub(super) fn ask(&mut self, caller: &Caller, request: Request) -> Result<Answer, ClientError> {
        self.ask_of(None, caller, request)
    }

    /// Sends a request about pages that the client reserved under the identity `reserved_as`, on behalf of the client
    /// as a whole.
    ///
    /// # Errors
    ///
    /// [`Error::NotReserved`] if the client has another number by now, or the epoch is over.
    pub(super) fn ask_about_pages(&mut self, reserved_as: &Identity, request: Request) -> Result<Answer, ClientError> {
        self.ask_of(Some((reserved_as.client, reserved_as.epoch)), &Caller::default(), request)
    }

    fn ask_of(
        &mut self,
        reserved_as: Option<(u64, u32)>,
        caller: &Caller,
        request: Request,
    ) -> Result<Answer, ClientError> {
        let sequence = if request.changes() { self.begin_change()? } else { 0 };
        let result = self.ask_numbered(reserved_as, caller, sequence, request);
        if sequence > 0 {
            self.client.sequences().end(sequence);
        }
        result
    }

    /// Sends a request on behalf of the client as a whole.
    pub(super) fn ask_as_root(&mut self, request: Request) -> Result<Answer, ClientError> {
        self.ask(&Caller::default(), request)
    }

    fn begin_change(&mut self) -> Result<u64, ClientError> {
        let until = self.now_ns() + self.client.config.service_timeout_ns;
        loop {
            let number = self.client.sequences().begin();
            if let Some(number) = number {
                return Ok(number);
            }
            if self.now_ns() > until {
                return Err(self.unreachable("too many requests have no answer".into()));
            }
            self.pause(MS);
        }
    }

    fn ask_numbered(
        &mut self,
        reserved_as: Option<(u64, u32)>,
        caller: &Caller,
        sequence: u64,
        request: Request,
    ) -> Result<Answer, ClientError> {
        let until = self.now_ns() + self.client.config.service_timeout_ns;
        // The client number under which the request was first sent.
        let mut sent_as = None;
        let mut message = None;
        let mut has_waited = false;
        let mut pause = PAUSE_RANGE_NS.0;
        loop {
            let mut identity = self.client.identity();
            if self.client.has_left() {
                return Err(self.unreachable("this client has left".into()));
            }
            if identity.joined == 0 {
                self.join(0, until)?;
                identity = self.client.identity();
            }
            if sent_as.is_some_and(|before| before != identity.client) && sequence > 0 {
                // A new client cannot ask for the outcome of the old one's request.
                return Err(ClientError::OutcomeUnknown);
            }
            if reserved_as.is_some_and(|(client, _)| client != identity.client) {
                return Err(Error::NotReserved.into());
            }
            let epoch = reserved_as.map_or(0, |(_, epoch)| epoch);
            let (client, secret) = (identity.client, identity.secret);
            let settled = self.client.sequences().settled();
            let envelope = match message.take() {
                Some(Envelope { caller, request, .. }) => {
                    Envelope { client, secret, sequence, settled, epoch, caller, request }
                }
                None => {
                    let (caller, request) = (caller.clone(), request.clone());
                    Envelope { client, secret, sequence, settled, epoch, caller, request }
                }
            };
            let ask = Message::Request(envelope);
            let attempt = self.attempt(&ask, until)?;
            if let Message::Request(envelope) = ask {
                message = Some(envelope);
            }
            let why = match attempt {
                Attempt::Answered(Reply::Answer(answer)) => return Ok(answer),
                Attempt::Answered(Reply::Refused(Error::Rejoin)) => {
                    self.join(identity.joined, until)?;
                    continue;
                }
                Attempt::Answered(Reply::Refused(Error::Grace)) => "it waits for other clients to come back".to_owned(),
                // The client may be joining, and has its handles once it has joined.
                Attempt::Answered(Reply::Refused(Error::BadHandle)) if sequence == 0 && !has_waited => {
                    has_waited = true;
                    let client = std::sync::Arc::clone(&self.client);
                    drop(client.joining.lock());
                    continue;
                }
                Attempt::Answered(Reply::Refused(error)) => return Err(error.into()),
                Attempt::Answered(Reply::NotAdmitted) => {
                    self.close_session();
                    "it does not know the session any more".to_owned()
                }
                Attempt::Answered(_) => return Err(ClientError::UnexpectedAnswer),
                Attempt::Lost(why) => {
                    sent_as = sent_as.or(Some(identity.client));
                    why
                }
            };
            if self.now_ns() + pause > until {
                return Err(self.unreachable(why));
            }
            self.pause(pause);
            pause = (2 * pause).min(PAUSE_RANGE_NS.1);
        }
    }

    /// Sends a message once, over a session that the service has admitted. Opens the session first if there is none.
    pub(super) fn attempt(&mut self, message: &Message, until: u64) -> Result<Attempt, ClientError> {
        if let Err(why) = self.connect(until)? {
            return Ok(Attempt::Lost(why));
        }
        Ok(match self.send(message) {
            Ok(reply) => {
                let now_ns = self.now_ns();
                self.client.note_answer(now_ns);
                Attempt::Answered(reply)
            }
            Err(why) => {
                self.close_session();
                Attempt::Lost(why)
            }
        })
    }

    /// Opens a session and has the service admit it. The inner error is a reason for which another attempt may succeed.
    fn connect(&mut self, until: u64) -> Result<Result<(), String>, ClientError> {
        self.drain_events();
        if self.session.is_some() {
            return Ok(Ok(()));
        }
        if self.now_ns() > until {
            return Ok(Err("there is no time left".into()));
        }
        let address = self.client.service.to_string();
        let session = match self.rpc.connect(&address) {
            Ok(session) => session,
            Err(error) => return Ok(Err(error.to_string())),
        };
        self.session = Some(session);
        let not_admitted = |why| Err(ClientError::NotAdmitted { address: address.clone(), why });
        let mut reply = self.send(&Message::Greet(VERSION));
        if let Ok(reply) = &reply
            && let Some(theirs) = other_version(reply)
        {
            self.close_session();
            return Err(ClientError::Version { address, theirs, ours: VERSION });
        }
        if let Ok(Reply::Nonce(nonce)) = reply {
            let Some(key) = &self.client.config.key else {
                self.close_session();
                return not_admitted("give it with --key-file");
            };
            reply = self.send(&Message::Prove(key.proof(Side::Caller, None, &nonce)));
            if let Ok(Reply::NotAdmitted) = reply {
                self.close_session();
                return not_admitted("the key that was given is not the service's");
            }
        }
        Ok(match reply {
            Ok(Reply::Welcome) => Ok(()),
            Ok(_) => {
                self.close_session();
                return Err(ClientError::UnexpectedAnswer);
            }
            Err(why) => {
                self.close_session();
                Err(why)
            }
        })
    }

    fn send(&mut self, message: &Message) -> Result<Reply, String> {
        let Some(session) = self.session else { return Err("there is no session".into()) };
        let timeout_ns = self.client.config.attempt_timeout_ns;
        let sent: Result<_, RpcError> = self.rpc.call_within(session, FILES, &message.to_bytes(), timeout_ns);
        let reply = sent.map_err(|error| error.to_string())?;
        Reply::read(&reply).map_err(|error| error.to_string())
    }

    /// Takes note of a session that ended while no request was in progress.
    fn drain_events(&mut self) {
        self.rpc.turn();
        while let Some(event) = self.rpc.poll_event() {
            if Some(event.session()) == self.session && !matches!(event, sinew_rpc::SessionEvent::Connected(_)) {
                self.session = None;
            }
        }
    }

    fn close_session(&mut self) {
        if let Some(session) = self.session.take() {
            self.rpc.disconnect(session);
        }
    }

    pub(super) fn unreachable(&self, why: String) -> ClientError {
        ClientError::Unreachable { address: self.client.service.to_string(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_refused_by_services_of_other_versions_only() {
        assert_eq!(other_version(&Reply::Version(9)), Some(9));
        assert_eq!(other_version(&Reply::Malformed), Some(1));
        let admits = [Reply::Welcome, Reply::Nonce([7; sinew_remote_memory::donor::PROOF_LEN]), Reply::NotAdmitted];
        assert!(admits.iter().all(|reply| other_version(reply).is_none()));
    }
}
