//! Meaning of a packet: the fields of a [`Header`], under the names that they have in a packet of its kind.

use crate::header::{CREDIT_ALONE, Header, Kind, SessionKey};

/// The call that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallName {
    /// The session at the packet's receiver.
    pub session: SessionKey,
    /// Number of the request on its session.
    pub number: u64,
    /// Whether the packet is a retransmission, or answers one: [`Header::is_copy`].
    pub is_copy: bool,
}

/// Place of a packet's data in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Length of the whole message, in bytes.
    pub message_len: u32,
    /// Number of the packet in the message.
    pub packet: u16,
}

/// Meaning of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Data of a request of this type.
    Request {
        /// The type of the request.
        request_type: u16,
        /// Whether the message begins with [options](crate::options).
        has_options: bool,
        /// Place of the data in the message.
        part: Part,
    },
    /// Data of a response to a request, with the time for which the server kept the request ([`crate::residence`]).
    Response {
        /// The residence, encoded.
        residence: u16,
        /// Place of the data in the message.
        part: Part,
    },
    /// The server has taken packets of the request (nsdi19 5.1).
    CreditReturn {
        /// Number of packets before the first missing one, all of which were taken. With `is_alone`, this returns the
        /// credit of the last of these only, and says nothing about the others.
        taken: u16,
        /// Bit `i`: whether the packet `i` after the first missing one was taken too.
        ahead: u32,
        /// Whether this returns the credit of one packet alone, and not of those before it.
        is_alone: bool,
    },
    /// The client asks for packets of the response (nsdi19 5.1).
    RequestForResponse {
        /// The type of the request.
        request_type: u16,
        /// Number of the first packet asked for.
        first: u16,
        /// Number of packets asked for.
        count: u32,
    },
    /// The whole request has arrived, and its handler is still at work.
    InProgress,
    /// The request will get no response, for the reason that the code gives.
    CallError(u32),
    /// Packets of the session met long queues on their way to the server.
    CongestionNotice,
    /// The client no longer waits for the response.
    Cancel,
    /// The packet belongs to no call: it opens, closes or checks sessions.
    Management(Kind),
}

impl Meaning {
    /// The header of a packet with this meaning.
    #[inline]
    pub fn header(self, call: CallName) -> Header {
        let (kind, type_or_residence, message_len, packet_number) = match self {
            Self::Request { request_type, has_options, part } => {
                let kind = if has_options { Kind::RequestWithOptions } else { Kind::Request };
                (kind, request_type, part.message_len, part.packet)
            }
            Self::Response { residence, part } => (Kind::Response, residence, part.message_len, part.packet),
            Self::CreditReturn { taken, ahead, is_alone } => {
                (Kind::CreditReturn, if is_alone { CREDIT_ALONE } else { 0 }, ahead, taken.wrapping_sub(1))
            }
            Self::RequestForResponse { request_type, first, count } => {
                (Kind::RequestForResponse, request_type, count, first)
            }
            Self::InProgress => (Kind::InProgress, 0, 0, 0),
            Self::CallError(code) => (Kind::CallError, 0, code, 0),
            Self::CongestionNotice => (Kind::CongestionNotice, 0, 0, 0),
            Self::Cancel => (Kind::Cancel, 0, 0, 0),
            Self::Management(kind) => (kind, 0, 0, 0),
        };
        Header {
            kind,
            type_or_residence,
            message_len,
            session: call.session,
            request_number: call.number,
            packet_number,
            is_copy: call.is_copy,
        }
    }
}

impl Header {
    /// The call that the packet belongs to.
    #[inline]
    pub fn call(&self) -> CallName {
        CallName { session: self.session, number: self.request_number, is_copy: self.is_copy }
    }

    /// The packet's meaning.
    #[inline]
    pub fn meaning(&self) -> Meaning {
        let part = Part { message_len: self.message_len, packet: self.packet_number };
        match self.kind {
            Kind::Request | Kind::RequestWithOptions => Meaning::Request {
                request_type: self.type_or_residence,
                has_options: self.kind == Kind::RequestWithOptions,
                part,
            },
            Kind::Response => Meaning::Response { residence: self.type_or_residence, part },
            Kind::CreditReturn => Meaning::CreditReturn {
                taken: self.packet_number.wrapping_add(1),
                ahead: self.message_len,
                is_alone: self.type_or_residence == CREDIT_ALONE,
            },
            Kind::RequestForResponse => Meaning::RequestForResponse {
                request_type: self.type_or_residence,
                first: self.packet_number,
                count: self.message_len,
            },
            Kind::InProgress => Meaning::InProgress,
            Kind::CallError => Meaning::CallError(self.message_len),
            Kind::CongestionNotice => Meaning::CongestionNotice,
            Kind::Cancel => Meaning::Cancel,
            management => Meaning::Management(management),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_meaning_survives_the_header() {
        let call = CallName { session: SessionKey::new(7, 0x1234), number: 99, is_copy: true };
        let part = Part { message_len: 3000, packet: 2 };
        for meaning in [
            Meaning::Request { request_type: 5, has_options: false, part },
            Meaning::Request { request_type: 5, has_options: true, part },
            Meaning::Response { residence: 0x1FFF, part },
            Meaning::CreditReturn { taken: 0, ahead: 0b101, is_alone: false },
            Meaning::CreditReturn { taken: u16::MAX, ahead: 0, is_alone: true },
            Meaning::RequestForResponse { request_type: 5, first: 1, count: 31 },
            Meaning::InProgress,
            Meaning::CallError(4),
            Meaning::CongestionNotice,
            Meaning::Cancel,
            Meaning::Management(Kind::Ping),
        ] {
            let header = Header::read(&meaning.header(call).to_bytes()).unwrap();
            assert_eq!((header.meaning(), header.call()), (meaning, call));
        }
    }
}
