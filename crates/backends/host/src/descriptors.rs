//! How many clients the system lets this process have: descriptors, and places in front of a listening socket.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Allows this process as many open descriptors as the system lets it have. Returns how many these are; none when there is
/// no limit.
///
/// Processes begin with few, for the sake of programs with `select`.
///
/// # Errors
///
/// What the system says; the limit is as it was then.
pub fn raise_descriptor_limit() -> io::Result<Option<u64>> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    }
    Ok(maximum)
}

/// Has up to `clients` wait in front of a listening socket until they are accepted, where the system allows so many. Those for
/// whom there is no place try again a second later.
///
/// # Errors
///
/// What the system says: it is no listening socket.
pub fn lengthen_backlog(listener: impl AsFd, clients: u16) -> io::Result<()> {
    Ok(rustix::net::listen(listener, clients.into())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_the_system_allows() {
        let before = getrlimit(Resource::Nofile);
        // Other tests go on meanwhile.
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
