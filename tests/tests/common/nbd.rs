//! An NBD client with one request at a time.
#![allow(dead_code)] // Each test program uses some of it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::common::PATIENCE;

/// A client past its handshake.
pub struct Client {
    socket: UnixStream,
    cookie: u64,
    /// Bytes of the device.
    pub len: u64,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        let mut socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
        // Flags, and the option that opens the default export.
        socket.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        let mut export = [0; 10];
        socket.read_exact(&mut export).unwrap();
        let len = u64::from_be_bytes(*export.first_chunk().unwrap());
        Self { socket, cookie: 0, len }
    }

    fn request(&mut self, kind: u16, at: u64, len: usize, data: &[u8]) -> Result<(), u32> {
        self.try_request(kind, at, len, data).unwrap()
    }

    /// As [`Self::request`], but returns an error if the server is gone.
    fn try_request(&mut self, kind: u16, at: u64, len: usize, data: &[u8]) -> io::Result<Result<(), u32>> {
        self.cookie += 1;
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend([0, 0]);
        request.extend(kind.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(at.to_be_bytes());
        request.extend((len as u32).to_be_bytes());
        request.extend(data);
        self.socket.write_all(&request)?;
        let mut reply = [0; 16];
        self.socket.read_exact(&mut reply)?;
        assert_eq!(
            (reply[..4].to_vec(), reply[8..].to_vec()),
            (vec![0x67, 0x44, 0x66, 0x98], self.cookie.to_be_bytes().to_vec())
        );
        Ok(match u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]) {
            0 => Ok(()),
            error => Err(error),
        })
    }

    /// Reads from a server that may vanish at any time.
    pub fn try_read(&mut self, at: u64, len: usize) -> io::Result<Result<Vec<u8>, u32>> {
        if let Err(error) = self.try_request(0, at, len, &[])? {
            return Ok(Err(error));
        }
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes)?;
        Ok(Ok(bytes))
    }

    /// Writes to a server that may vanish at any time.
    pub fn try_write(&mut self, at: u64, data: &[u8]) -> io::Result<Result<(), u32>> {
        self.try_request(1, at, data.len(), data)
    }

    pub fn read(&mut self, at: u64, len: usize) -> Result<Vec<u8>, u32> {
        self.request(0, at, len, &[])?;
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes).unwrap();
        Ok(bytes)
    }

    pub fn write(&mut self, at: u64, data: &[u8]) -> Result<(), u32> {
        self.request(1, at, data.len(), data)
    }

    pub fn flush(&mut self) -> Result<(), u32> {
        self.request(3, 0, 0, &[])
    }
}
