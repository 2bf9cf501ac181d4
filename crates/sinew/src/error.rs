//! The error type of this crate, which covers those of the layers below.

use std::fmt;

use sinew_fabric::{AddressError, PortError};
use sinew_mem::AllocError;
use sinew_rpc::{
    CallBackError, CallError, ChannelError, ConfigError, ConnectError, EnqueueError, HandleError, NexusError, Rejected,
};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error, with a message that says what happened, to whom, and what to do.
///
/// `Debug` shows the message too, so that a `main` that returns an error prints it in words.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A session could not be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A channel could not be opened or reopened.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// A call got no response. The message says which peer, why, and whether the request may have run.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A call was refused.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// A client cannot be called.
    #[error(transparent)]
    CallBack(#[from] CallBackError),
    /// A message buffer could not be allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A closure or call that another thread handed to an endpoint had no result.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// An invalid set of handlers.
    #[error(transparent)]
    Nexus(#[from] NexusError),
    /// A configuration that cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address has a scheme that no fabric of this build has.
    #[error(
        "`{address}`: there is no fabric `{scheme}` in this build; known are {known}: write one of these before the `://`, or build \
         sinew with the feature of the fabric"
    )]
    UnknownFabric {
        /// Whole address.
        address: String,
        /// Its scheme.
        scheme: String,
        /// Schemes of this build, as a list in words.
        known: String,
    },
    /// A server without an address.
    #[error("nowhere to serve: give at least one address, for example shm://name or udp://0.0.0.0:7000")]
    Nowhere,
    /// The program of a server's endpoint ended with an error, and the server with it: see
    /// [`Server::program`](crate::Server::program).
    #[error("the program that served {address} ended with an error: {source}")]
    Program {
        /// Address that it served.
        address: String,
        /// Error that the program returned.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A serving thread panicked.
    #[error("the thread that served {address} panicked: {message}")]
    Panicked {
        /// Address that it served.
        address: String,
        /// Message of the panic.
        message: String,
    },
    /// The system refused.
    #[error("{doing}: {source}")]
    System {
        /// Activity that failed.
        doing: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another error of the RPC layer.
    #[error(transparent)]
    Rpc(sinew_rpc::Error),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Rejected> for Error {
    /// Drops the buffers; to get them back, take them from the [`Rejected`].
    fn from(rejected: Rejected) -> Self {
        Self::Enqueue(rejected.error)
    }
}

impl From<AddressError> for Error {
    fn from(error: AddressError) -> Self {
        Self::Port(error.into())
    }
}

impl From<std::io::Error> for Error {
    fn from(source: std::io::Error) -> Self {
        Self::System { doing: "waiting for packets".to_owned(), source }
    }
}

impl From<sinew_rpc::Error> for Error {
    fn from(error: sinew_rpc::Error) -> Self {
        match error {
            sinew_rpc::Error::Connect(error) => Self::Connect(error),
            sinew_rpc::Error::Call(error) => Self::Call(error),
            sinew_rpc::Error::Enqueue(error) => Self::Enqueue(error),
            sinew_rpc::Error::CallBack(error) => Self::CallBack(error),
            sinew_rpc::Error::Alloc(error) => Self::Alloc(error),
            sinew_rpc::Error::Port(error) => Self::Port(error),
            sinew_rpc::Error::Config(error) => Self::Config(error),
            sinew_rpc::Error::Channel(error) => Self::Channel(error),
            sinew_rpc::Error::Handle(error) => Self::Handle(error),
            sinew_rpc::Error::Io(source) => source.into(),
            other => Self::Rpc(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_the_message() {
        let error =
            Error::UnknownFabric { address: "pigeon://home".into(), scheme: "pigeon".into(), known: "shm, udp".into() };
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(error.to_string().contains("known are shm, udp"));
    }
}
