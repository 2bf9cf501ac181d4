//! Limits of the system on the clients of this process: open descriptors, and the backlog of a listening socket.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit on open descriptors to the most that the system allows. Returns that limit, or `None`
/// when there is none.
///
/// Processes start with a low limit, for the sake of programs that use `select`.
///
/// # Errors
///
/// The error of `setrlimit`; the limit is unchanged then.
pub fn raise_descriptor_limit() -> io::Result<Option<u64>> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    }
    Ok(maximum)
}

/// Lets up to `clients` connections wait to be accepted by a listening socket, where the system allows so long a
/// backlog. A client that finds the backlog full tries again a second later.
///
/// # Errors
///
/// The error of `listen`: `listener` is not a listening socket.
pub fn lengthen_backlog(listener: impl AsFd, clients: u16) -> io::Result<()> {
    Ok(rustix::net::listen(listener, clients.into())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_the_system_allows() {
        let before = getrlimit(Resource::Nofile);
        // One less is enough: other tests run at the same time and need descriptors.
        let lowered = Rlimit { current: Some(before.current.unwrap_or(1 << 20) - 1), ..before };
        setrlimit(Resource::Nofile, lowered).unwrap();
        assert_eq!(raise_descriptor_limit().unwrap(), before.maximum);
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
        setrlimit(Resource::Nofile, before).unwrap();
    }

    #[test]
    fn a_storm_of_clients_finds_places() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        lengthen_backlog(&listener, 1024).unwrap();
        let began = std::time::Instant::now();
        let connect = |_| std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let clients: Vec<_> = (0..300).map(connect).collect();
        assert!(began.elapsed().as_millis() < 900, "{} clients: one was turned away for a second", clients.len());
    }
}
