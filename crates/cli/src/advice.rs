//! Advice for errors that found no server: the command that starts one. Libraries know nothing of commands.

use anyhow::anyhow;
use sinew::fabric::PortError;
use sinew::kv::{cache, ordered};
use sinew::rpc::Cause;
use sinew::rpc::ConnectError;

use crate::output;

/// Adds the command that starts a server at `address` to an error that says that there is none; returns other errors
/// unchanged.
pub fn with_start_hint(error: impl Into<anyhow::Error>, command: &str, address: &str) -> anyhow::Error {
    let error = error.into();
    if !is_no_server(&error) {
        return error;
    }
    anyhow!("{} (`{command} {}` starts one)", output::describe(&error), quoted(address))
}

/// Whether an error says that nobody serves where a server was expected.
pub fn is_no_server(error: &anyhow::Error) -> bool {
    let refused = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(sinew::Error::Connect(error)), _) | (_, Some(cache::Error::Connect(error))) => Some(error),
        _ => match error.downcast_ref() {
            Some(ordered::Error::Connect(error)) => Some(error),
            _ => error.downcast_ref(),
        },
    };
    matches!(
        refused,
        Some(
            ConnectError::Port(PortError::NotFound { .. })
                | ConnectError::Failed { cause: Cause::PeerUnreachable | Cause::PeerDied, .. }
        )
    )
}

/// Address as it is typed in a shell: quoted where needed.
pub fn quoted(address: &str) -> String {
    if address.contains(['&', '?', ';']) { format!("'{address}'") } else { address.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_that_nobody_is_there_gets_the_advice() {
        let nobody = || PortError::NotFound { address: "shm://a".into(), looked_in: "here".into() };
        let connect = || ConnectError::from(nobody());
        let dead = || ConnectError::Failed { peer: "udp://a:1".into(), cause: Cause::PeerUnreachable };
        let silent = || ConnectError::TimedOut { peer: "udp://a:1".into(), timeout_ms: 1 };
        let cases: [(anyhow::Error, bool); 7] = [
            (connect().into(), true),
            (sinew::Error::from(connect()).into(), true),
            (cache::Error::from(dead()).into(), true),
            (ordered::Error::from(dead()).into(), true),
            (anyhow::Error::from(dead()).context("opening session 1 of 1"), true),
            (silent().into(), false),
            (sinew::Error::Nowhere.into(), false),
        ];
        for (error, expected) in cases {
            let message = output::describe(&error);
            let advised = output::describe(&with_start_hint(error, "sinew serve cache", "ibverbs://a?gid=1"));
            let advice = " (`sinew serve cache 'ibverbs://a?gid=1'` starts one)";
            assert_eq!(advised, if expected { message + advice } else { message });
        }
    }
}
