//! Result of a blocking call.

use std::fmt;
use std::ops::Deref;

use sinew_mem::MessageBuffer;

/// A response, as [`crate::Rpc::call`] returns it: bytes by `Deref`, readable text by `Display`.
#[derive(Debug)]
pub struct Reply(pub(crate) MessageBuffer);

impl Deref for Reply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}
