//! Request types.

/// Type of a request: the number under which the server registered a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestType(u16);

impl RequestType {
    /// Makes the type with this number.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The type's number.
    pub const fn number(self) -> u16 {
        self.0
    }
}
