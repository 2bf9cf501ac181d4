//! Gives a device's memory to other processes: a thread of the device answers on a socket under the device's name.
//!
//! A client connects, and is given descriptors of the directory and of the exposed memory. From then on it asks for
//! seats, one for each of its threads. The connection stays open: when it ends, the client is gone, and its seats are
//! free. The device's thread takes part in no operation.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use sinew_fabric::verbs::VerbsError;
use sinew_mem::{Access, SharedMemory};

use super::address::{Home, memory_name};
use super::directory::{DIRECTORY_BYTES, Directory};
use super::life;
use super::memory::{DeviceMemory, system, whole};
use crate::hello;
use crate::link::{map_peer, wake_event};
use crate::names::{self, Name};

const MAGIC: u32 = u32::from_le_bytes(*b"SNWV");
const VERSION: u16 = 1;
const MESSAGE_BYTES: usize = 32;
/// Most processes that can hold one device's memory.
const CLIENTS_MAX: usize = 1024;
/// Time for which a client waits for an answer.
const ANSWER_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// Time for which nobody is accepted after a lack of descriptors.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Messages of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceMessage {
    /// The first message of a client.
    Hello,
    /// The answer to it, with two descriptors.
    Welcome { incarnation: u64, exposed_bytes: u64 },
    /// A client asks for a seat.
    WantSeat,
    /// The answer: a seat.
    Seat(u32),
    /// The other answer: there is no seat left.
    NoSeat,
}

impl DeviceMessage {
    fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let (kind, words) = match self {
            Self::Hello => (1u16, [0, 0]),
            Self::Welcome { incarnation, exposed_bytes } => (2, [incarnation, exposed_bytes]),
            Self::WantSeat => (3, [0, 0]),
            Self::Seat(seat) => (4, [u64::from(seat), 0]),
            Self::NoSeat => (5, [0, 0]),
        };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&words[0].to_le_bytes());
        bytes[16..24].copy_from_slice(&words[1].to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
        let word = |offset: usize| Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?));
        if bytes[..4] != MAGIC.to_le_bytes() || bytes[4..6] != VERSION.to_le_bytes() {
            return None;
        }
        Some(match u16::from_le_bytes([bytes[6], bytes[7]]) {
            1 => Self::Hello,
            2 => Self::Welcome { incarnation: word(8)?, exposed_bytes: word(16)? },
            3 => Self::WantSeat,
            4 => Self::Seat(u32::try_from(word(8)?).ok()?),
            5 => Self::NoSeat,
            _ => return None,
        })
    }
}

/// The thread of a device. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to answer for `memory` under the name of `device`.
    pub fn start(memory: &Arc<DeviceMemory>, incarnation: u64, device: &str) -> Result<Self, VerbsError> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let stop =
            Arc::new(rustix::event::eventfd(0, flags).map_err(|error| system("making an eventfd", error.into()))?);
        let name = memory_name(device);
        // Nobody resolves this name as that of a port, so the lines mean nothing.
        let lines = sinew_mem::ring::lines_for(1);
        let name = Name::claim(&format!("shm://{device}"), &name, lines)
            .map_err(|error| VerbsError::Device(error.to_string()))?;
        let (lives, living) = mpsc::channel();
        let (memory, stopped) = (Arc::clone(memory), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("sinew-verbs".to_owned()).spawn(move || {
            // SAFETY: the watch is dropped below, before `memory` is.
            let watch = unsafe { life::RobustWord::new(memory.directory.life_futex()) };
            if watch.is_none() {
                memory.directory.set_life(life::SAME_PROCESS);
            }
            let _ = lives.send(());
            ServerLoop { memory: &memory, incarnation, name, clients: Vec::new(), paused: false }.run(&stopped);
            memory.directory.set_life(0);
            drop(watch);
        });
        let thread = thread.map_err(|error| system("starting the thread of a device", error))?;
        let server = Self { stop, thread: Some(thread) };
        // The word must be set before anybody can read it.
        living.recv().map_err(|error| system("starting the thread of a device", std::io::Error::other(error)))?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        wake_event(&self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A process that holds the memory.
struct SeatHolder {
    socket: OwnedFd,
    /// Another sign of its end: a child that it forked can hold its end of the socket open.
    process: Option<OwnedFd>,
    seats: Vec<u32>,
}

struct ServerLoop<'a> {
    memory: &'a DeviceMemory,
    incarnation: u64,
    name: Name,
    clients: Vec<SeatHolder>,
    /// Accepting is paused, as there was no descriptor for a client.
    paused: bool,
}

impl ServerLoop<'_> {
    fn run(mut self, stop: &OwnedFd) {
        loop {
            let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
            fds.push(PollFd::new(&self.name.listener, if self.paused { PollFlags::empty() } else { PollFlags::IN }));
            for client in &self.clients {
                fds.push(PollFd::new(&client.socket, PollFlags::IN));
                fds.push(match &client.process {
                    Some(process) => PollFd::new(process, PollFlags::IN),
                    None => PollFd::new(&client.socket, PollFlags::empty()),
                });
            }
            let timeout = self.paused.then_some(&ACCEPT_PAUSE);
            match rustix::event::poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                // The kernel is out of memory for the moment.
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if ready[0] {
                break;
            }
            self.paused = false;
            for index in (0..self.clients.len()).rev() {
                let (readable, died) =
                    (ready[2 + 2 * index], ready[3 + 2 * index] && self.clients[index].process.is_some());
                if died || (readable && !self.answer(index)) {
                    let client = self.clients.swap_remove(index);
                    self.memory.give_back_seats(client.seats);
                }
            }
            if ready[1] {
                self.accept();
            }
        }
        // The memory lives on until the remaining clients unmap it.
        for client in self.clients {
            self.memory.give_back_seats(client.seats);
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.name.listener, flags) {
            Ok(socket) => {
                if names::is_own(&socket) && self.clients.len() < CLIENTS_MAX {
                    let process = rustix::net::sockopt::socket_peercred(&socket).ok().and_then(|peer| {
                        let flags = rustix::process::PidfdFlags::empty();
                        // Our own process needs no watching: its end is also ours.
                        (peer.pid != rustix::process::getpid())
                            .then(|| rustix::process::pidfd_open(peer.pid, flags).ok())?
                    });
                    self.clients.push(SeatHolder { socket, process, seats: Vec::new() });
                }
            }
            Err(Errno::INTR | Errno::CONNABORTED | Errno::AGAIN) => {}
            Err(_) => self.paused = true,
        }
    }

    /// Answers a message of a client. Returns false when the client is to be dropped.
    fn answer(&mut self, index: usize) -> bool {
        let client = &mut self.clients[index];
        // The buffer is one byte longer than a message, so that a truncated message is recognised as too long.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let message = match hello::receive_bytes(&client.socket, &mut bytes) {
            Ok((len, fds)) if fds.is_empty() => DeviceMessage::from_bytes(&bytes[..len]),
            Err(Errno::AGAIN | Errno::INTR) => return true,
            _ => None,
        };
        let memory = self.memory;
        let sent = match message {
            Some(DeviceMessage::Hello) => {
                let exposed_bytes = memory.exposed.len() as u64;
                let welcome = DeviceMessage::Welcome { incarnation: self.incarnation, exposed_bytes };
                let fds = [memory.directory_fd.as_fd(), memory.exposed_fd.as_fd()];
                hello::send(&client.socket, &welcome.to_bytes(), &fds)
            }
            Some(DeviceMessage::WantSeat) => {
                let seat = memory.take_seat();
                client.seats.extend(seat);
                hello::send(&client.socket, &seat.map_or(DeviceMessage::NoSeat, DeviceMessage::Seat).to_bytes(), &[])
            }
            _ => return false,
        };
        sent.is_ok()
    }
}

/// Our connection to the thread of another process's device.
#[derive(Debug)]
pub(crate) struct Client {
    socket: std::sync::Mutex<OwnedFd>,
    device: String,
}

impl Client {
    /// Asks the device of `home` for its memory: the directory, and the exposed memory.
    pub fn connect(home: &Home) -> Result<(Self, Directory, SharedMemory), VerbsError> {
        let address = format!("shm://{}", home.device);
        let unreachable = |error| VerbsError::Address(format!("its device cannot be reached: {error}"));
        let connection = names::connect(&address, &memory_name(&home.device)).map_err(unreachable)?;
        let client = Self { socket: connection.socket.into(), device: home.device.clone() };
        let (answer, fds) = client.query(DeviceMessage::Hello)?;
        let (DeviceMessage::Welcome { incarnation, exposed_bytes }, [directory, exposed]) = (answer, &fds[..]) else {
            return Err(client.unexpected_answer());
        };
        if incarnation != home.incarnation {
            return Err(VerbsError::Address(format!("{address} was reopened after the address was given out")));
        }
        let map = |fd, bytes| {
            map_peer(fd, bytes, Access::ReadWrite)
                .map_err(|error| system(&format!("mapping the memory of {address}"), error))
        };
        let directory =
            Directory::new(whole(map(directory, DIRECTORY_BYTES)?)?).ok_or_else(|| client.unexpected_answer())?;
        let exposed_bytes = usize::try_from(exposed_bytes).map_err(|_| client.unexpected_answer())?;
        let exposed = whole(map(exposed, exposed_bytes)?)?;
        Ok((client, directory, exposed))
    }

    /// Asks for a seat; `None` when there is none left.
    pub fn seat(&self) -> Result<Option<u32>, VerbsError> {
        match self.query(DeviceMessage::WantSeat)?.0 {
            DeviceMessage::Seat(seat) if (seat as usize) < super::directory::SEATS_MAX => Ok(Some(seat)),
            DeviceMessage::NoSeat => Ok(None),
            _ => Err(self.unexpected_answer()),
        }
    }

    fn unexpected_answer(&self) -> VerbsError {
        VerbsError::Address(format!("shm://{} sent an invalid answer", self.device))
    }

    fn query(&self, request: DeviceMessage) -> Result<(DeviceMessage, Vec<OwnedFd>), VerbsError> {
        let device = &self.device;
        // The lock is held until the answer is there, so that each question gets its own.
        let socket = self.socket.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let gone = |error: std::io::Error| VerbsError::Address(format!("its device shm://{device} is gone: {error}"));
        hello::send(&*socket, &request.to_bytes(), &[]).map_err(gone)?;
        let mut bytes = [0; MESSAGE_BYTES + 1];
        loop {
            match rustix::event::poll(&mut [PollFd::new(&*socket, PollFlags::IN)], Some(&ANSWER_TIMEOUT)) {
                Ok(0) => {
                    return Err(VerbsError::Address(format!(
                        "its device shm://{device} does not answer: check whether its process is stopped"
                    )));
                }
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(gone(error.into())),
            }
            return match hello::receive_bytes(&*socket, &mut bytes) {
                Ok((0, _)) => Err(gone(std::io::ErrorKind::ConnectionReset.into())),
                Ok((len, fds)) => {
                    Ok((DeviceMessage::from_bytes(&bytes[..len]).ok_or_else(|| self.unexpected_answer())?, fds))
                }
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(error) => Err(gone(error.into())),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_they_were_written_and_others_are_none() {
        for message in [
            DeviceMessage::Hello,
            DeviceMessage::Welcome { incarnation: 7, exposed_bytes: u64::MAX },
            DeviceMessage::WantSeat,
            DeviceMessage::Seat(9),
            DeviceMessage::NoSeat,
        ] {
            assert_eq!(DeviceMessage::from_bytes(&message.to_bytes()), Some(message));
        }
        let good = DeviceMessage::Seat(1).to_bytes();
        assert!(DeviceMessage::from_bytes(&good[..31]).is_none());
        for (offset, byte) in [(0, 0), (4, 9), (6, 9), (13, 1)] {
            let mut bad = good;
            bad[offset] = byte;
            assert!(DeviceMessage::from_bytes(&bad).is_none(), "{offset}");
        }
    }
}
