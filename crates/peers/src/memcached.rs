//! memcached, with one thread.

use crate::server::{Missing, Place, Server, port, socket, version};

/// Starts memcached with so much memory for items, and waits until it listens. Returns it, and its name with the
/// version.
///
/// # Errors
///
/// [`Missing`], or it does not start.
pub fn start(place: Place, memory_mb: usize) -> anyhow::Result<(Server, String)> {
    Missing::check("memcached", "memcached")?;
    let address = place.address("memcached")?;
    let mut command = place.command("memcached");
    command.args(["-u", "root", "-U", "0", "-t", "1", "-m", &memory_mb.to_string()]);
    match socket(&address) {
        Some(socket) => command.arg("-s").arg(socket),
        None => command.args(["-l", "127.0.0.1", "-p", port(&address)]),
    };
    let mut server = Server::start(command, &address)?;
    server.wait_until_it_listens()?;
    Ok((server, version("memcached", "-V")?))
}
