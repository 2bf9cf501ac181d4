//! The service of a file system in a process of its own, which is killed while clients create files.

mod common;

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use common::{Folder, PATIENCE, Server, client, eventually, run, sinew, text, unique};
use rustix::process::Signal;
use sinew::Rpc;
use sinew::rpc::SessionId;
use sinew_remote_fs::check;
use sinew_remote_fs::disk::HostDisk;
use sinew_remote_fs::protocol::{
    Access, Answer, Caller, Envelope, Error, FILES, Ino, Join, Message, OpenFile, Reply, Request, SECRET_LEN,
};

fn donor() -> Server {
    Server::of(&mut sinew(&["serve", "memory", &format!("shm://{}", unique("donor")), "--child", "--memory", "16M"]))
}

fn serve(address: &str, data: &str, donors: &[Server]) -> Server {
    let mut command = sinew(&["serve", "files", address, "--child", "--data", data]);
    for donor in donors {
        command.args(["--donor", &donor.address]);
    }
    Server::of(&mut command)
}

/// A client that goes on, whatever happens to the service.
struct Client {
    rpc: Rpc,
    address: String,
    session: Option<SessionId>,
    known: Option<(u64, [u8; SECRET_LEN])>,
    opens: Vec<OpenFile>,
    sequence: u64,
    /// Times that it has joined, the first included.
    joins: u32,
}

impl Client {
    fn new(address: &str) -> Self {
        let rpc = client(address);
        let (session, known) = (None, None);
        Self { rpc, address: address.to_owned(), session, known, opens: Vec::new(), sequence: 0, joins: 0 }
    }

    fn send(&mut self, message: &Message) -> Option<Reply> {
        let session = match self.session {
            Some(session) => session,
            None => *self.session.insert(self.rpc.connect(&self.address).ok()?),
        };
        match self.rpc.call_within(session, FILES, message.to_bytes(), 2_000_000_000) {
            Ok(answer) => Some(Reply::read(&answer).unwrap()),
            Err(_) => {
                self.session = None;
                None
            }
        }
    }

    fn join(&mut self) -> Option<()> {
        let before = self.known;
        let join = Message::Join(Join { before, opens: self.opens.clone(), locks: Vec::new() });
        let Reply::Joined(joined) = self.send(&join)? else { panic!("it lets everybody in") };
        assert_eq!(joined.is_known, before.is_some(), "a client is known over restarts");
        self.known = Some((joined.client, joined.secret));
        self.joins += 1;
        Some(())
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, Error> {
        self.sequence += u64::from(request.changes());
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "it is never answered");
            let Some((client, secret)) = self.known else {
                self.join();
                continue;
            };
            let sequence = if request.changes() { self.sequence } else { 0 };
            let (settled, caller, request) = (self.sequence, Caller::default(), request.clone());
            match self.send(&Message::Request(Envelope {
                client,
                secret,
                sequence,
                settled,
                epoch: 0,
                caller,
                request,
            })) {
                Some(Reply::Answer(answer)) => return Ok(answer),
                Some(Reply::Refused(Error::Rejoin)) => drop(self.join()),
                Some(Reply::Refused(error)) => return Err(error),
                Some(other) => panic!("{other:?}"),
                None => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn create(&mut self, name: &str) -> Result<Answer, Error> {
        let (access, handle) = (Access { read: true, write: true, execute: false }, self.sequence + 1000);
        self.ask(&Request::Create { parent: Ino::ROOT, name: name.into(), mode: 0o644, handle, access })?;
        self.ask(&Request::Close { handle })
    }

    fn names(&mut self) -> BTreeSet<String> {
        let access = Access { read: true, ..Access::default() };
        self.ask(&Request::Open { handle: 1, ino: Ino::ROOT, access }).unwrap();
        self.opens.push(OpenFile { handle: 1, ino: Ino::ROOT, access });
        let (mut names, mut after) = (BTreeSet::new(), 0);
        loop {
            let read = Request::ReadDirectory { handle: 1, after, count: 1000 };
            let Ok(Answer::Entries { entries, is_end, .. }) = self.ask(&read) else { panic!("there are entries") };
            after = entries.last().map_or(after, |entry| entry.cookie);
            for entry in entries {
                assert!(names.insert(text(&entry.name)), "{} is there twice", text(&entry.name));
            }
            if is_end {
                return names;
            }
        }
    }
}

#[test]
fn what_was_answered_is_there_after_the_service_was_killed_and_nothing_twice() {
    const KILLS: usize = 4;
    let (folder, donors) = (Folder::new(), [donor(), donor()]);
    let data = folder.0.join("data").display().to_string();
    let address = format!("shm://{}", unique("files"));
    let mut service = serve(&address, &data, &donors);
    let (stop, is_over) = std::sync::mpsc::channel::<()>();
    let is_over = std::sync::Mutex::new(is_over);
    let is_over = || !matches!(is_over.lock().unwrap().try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
    let made = thread::scope(|scope| {
        let make = |maker: usize| {
            let (address, is_over) = (&address, &is_over);
            move || {
                let (mut client, mut made) = (Client::new(address), BTreeSet::new());
                while !is_over() {
                    let (index, name) = (made.len(), format!("{maker}-{}", made.len()));
                    let answer = client.create(&name);
                    assert!(answer.is_ok(), "{name}: {answer:?}");
                    if index % 5 == 4 {
                        // The name is removed, and created again with the next sequence number.
                        client.ask(&Request::Unlink { parent: Ino::ROOT, name: name.clone().into() }).unwrap();
                        client.create(&name).unwrap();
                    }
                    made.insert(name);
                }
                assert!(client.joins > 1, "it has seen no restart");
                made
            }
        };
        let makers: Vec<_> = (0..2).map(|maker| scope.spawn(make(maker))).collect();
        for _ in 0..KILLS {
            thread::sleep(Duration::from_millis(300));
            service.process.signal(Signal::KILL);
            service.process.wait();
            service = serve(&address, &data, &donors);
        }
        thread::sleep(Duration::from_millis(300));
        drop(stop);
        makers.into_iter().flat_map(|maker| maker.join().unwrap()).collect::<BTreeSet<String>>()
    });
    assert!(made.len() > 20, "{} files", made.len());
    assert_eq!(Client::new(&address).names(), made);
    service.process.signal(Signal::INT);
    assert!(service.process.wait().success());
    let kept = check::read(HostDisk::open(data.as_ref()).unwrap()).unwrap().unwrap();
    assert_eq!(check::names(&kept, 2), []);
    assert_eq!(kept.tree.len(), made.len() as u64 + 1);
}

#[test]
fn data_that_a_service_has_are_no_other_services() {
    let (folder, donors) = (Folder::new(), [donor(), donor()]);
    let data = folder.0.join("data").display().to_string();
    let service = serve(&format!("shm://{}", unique("files")), &data, &donors);
    let mut other = sinew(&["serve", "files", &format!("shm://{}", unique("files")), "--data", &data]);
    let output = run(other.args(["--donor", &donors[0].address, "--donor", &donors[1].address]));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("in use by another process"), "{}", text(&output.stderr));
    assert_eq!(Client::new(&service.address).names(), BTreeSet::new());
}

#[test]
fn a_log_that_is_damaged_is_named_and_left_as_it_is() {
    let (folder, donors) = (Folder::new(), [donor(), donor()]);
    let data = folder.0.join("data").display().to_string();
    let address = format!("shm://{}", unique("files"));
    let mut service = serve(&address, &data, &donors);
    let mut client = Client::new(&address);
    (0..20).for_each(|index| drop(client.create(&format!("f{index}")).unwrap()));
    service.process.signal(Signal::KILL);
    service.process.wait();
    let log = folder.0.join("data/log-00000001");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    let mut again = sinew(&["serve", "files", &address, "--data", &data]);
    let output = run(again.args(["--donor", &donors[0].address, "--donor", &donors[1].address]));
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("log-00000001 is damaged at byte") && stderr.contains("truncate --size"), "{stderr}");
    assert_eq!(std::fs::read(&log).unwrap(), bytes);
    bytes[100] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    let _service = serve(&address, &data, &donors);
    eventually("it serves again", || client.names_or_none() == Some(20));
}

impl Client {
    fn names_or_none(&mut self) -> Option<usize> {
        self.opens.clear();
        let _ = self.ask(&Request::Close { handle: 1 });
        Some(self.names().len())
    }
}
