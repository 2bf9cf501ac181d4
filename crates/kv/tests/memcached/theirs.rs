//! The other side of the comparison: memcached itself, if it is installed.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub struct Memcached {
    child: Child,
    folder: PathBuf,
}

impl Memcached {
    /// Starts memcached, or returns the reason why it cannot: none is installed, or not the version that we imitate.
    pub fn start(name: &str) -> Result<Self, String> {
        let version = Command::new("memcached").arg("-V").output().map_err(|error| format!("no memcached: {error}"))?;
        let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
        if version != "memcached 1.6.18" {
            return Err(format!("no memcached 1.6.18, but {version}"));
        }
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("sinew-kv-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("socket");
        let mut command = Command::new("memcached");
        // memcached refuses to run as root unless told to.
        command.args(["-u", "root", "-U", "0", "-t", "1", "-s"]).arg(&socket);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|error| error.to_string())?;
        let memcached = Self { child, folder };
        let deadline = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < deadline, "memcached does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(memcached)
    }

    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.join("socket")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    /// Returns the answers to these pieces, sent over one connection.
    pub fn answer(&self, pieces: &[&[u8]]) -> Vec<u8> {
        let mut stream = self.connect();
        let mut reader = stream.try_clone().unwrap();
        // Read in parallel, since the answers may exceed the connection's buffers.
        let reading = std::thread::spawn(move || {
            let mut answer = Vec::new();
            match reader.read_to_end(&mut answer) {
                Ok(_) => answer,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => answer,
                Err(error) => panic!("{error} after {} bytes", answer.len()),
            }
        });
        for (at, piece) in pieces.iter().enumerate() {
            if at > 0 {
                // Otherwise the pieces would be read as one.
                std::thread::sleep(Duration::from_millis(1));
            }
            if stream.write_all(piece).is_err() {
                // memcached closed the connection.
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Write);
        reading.join().unwrap()
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
