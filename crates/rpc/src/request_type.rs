//! What requests ask for.

/// What a request asks for: the number under which the server registered a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestType(u16);

impl RequestType {
    /// The type with this number.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }
}
