//! Volumes on donors in processes of their own, which are killed.

mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/nbd.rs"]
mod nbd;

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use common::{Folder, PATIENCE, Process, Server, run, sinew, text, unique};
use device::rdma_device;
use nbd::Client;
use rustix::process::Signal;

const PAGE: usize = 4096;
const LEN: usize = 16 << 20;

fn donor(fabric: &str) -> Server {
    let address = match fabric {
        "shm" => format!("shm://{}", unique("donor")),
        _ => format!("{fabric}://127.0.0.1:0"),
    };
    // Over RDMA, other hosts could reach it.
    let open: &[&str] = if fabric == "ibverbs" { &["--open"] } else { &[] };
    Server::of(sinew(&["serve", "memory", &address, "--child", "--memory", "40M"]).args(open))
}

/// A block device on a volume, whose output is read.
struct Device {
    process: Process,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    socket: PathBuf,
}

impl Device {
    fn start(folder: &Folder, donors: &[String], more: &[&str]) -> Self {
        let socket = folder.0.join("socket");
        let at = format!("unix:{}", socket.display());
        let mut command = sinew(&["serve", "block", "--json", "--at", &at]);
        command.args(donors).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Process(command.spawn().unwrap());
        let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let Some(serving) = lines.next() else { panic!("it did not begin: {}", stderr_of(&mut process.0)) };
        assert!(serving.unwrap().contains("serving"));
        Self { process, lines, socket }
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket)
    }

    /// Ends it as Ctrl-C does. Returns its counters and its complaints.
    fn end(mut self) -> (serde_json::Value, String) {
        self.process.signal(Signal::INT);
        let line = self.lines.next().expect("it says what it did").unwrap();
        let end: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(self.process.wait().success());
        (end["counters"].clone(), stderr_of(&mut self.process.0))
    }
}

fn stderr_of(child: &mut Child) -> String {
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    stderr
}

/// Lines as they come, for which one can wait with a time-out.
fn lines_of(stderr: impl Read + Send + 'static) -> std::sync::mpsc::Receiver<String> {
    let (line, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(stderr).lines().map_while(Result::ok).try_for_each(|text| line.send(text))
    });
    lines
}

/// The byte last written to each page.
struct Shadow(Vec<u8>);

impl Shadow {
    fn write(&mut self, client: &mut Client, page: usize) {
        self.0[page] = self.0[page].wrapping_add(1);
        client.write((page * PAGE) as u64, &[self.0[page]; PAGE]).unwrap();
    }

    fn check(&self, client: &mut Client) {
        for (first, shadows) in self.0.chunks(64).enumerate() {
            let bytes = client.read((first * 64 * PAGE) as u64, shadows.len() * PAGE).unwrap();
            for (page, (bytes, shadow)) in bytes.chunks(PAGE).zip(shadows).enumerate() {
                assert!(bytes.iter().all(|byte| byte == shadow), "page {}", first * 64 + page);
            }
        }
    }
}

fn survives(fabric: &str) {
    let folder = Folder::new();
    let mut donors: Vec<Server> = (0..3).map(|_| donor(fabric)).collect();
    let addresses: Vec<String> = donors.iter().map(|donor| donor.address.clone()).collect();
    let device = Device::start(&folder, &addresses, &["--size", "16M"]);
    let mut client = device.client();
    assert_eq!(client.len, LEN as u64);
    let mut shadow = Shadow(vec![0; LEN / PAGE]);
    for page in 0..LEN / PAGE {
        if page % 3 != 0 {
            shadow.write(&mut client, page);
        }
    }
    shadow.check(&mut client);
    let victim = donors.remove(1);
    victim.process.signal(Signal::KILL);
    for page in 0..LEN / PAGE {
        if page % 2 == 0 {
            shadow.write(&mut client, page);
        }
    }
    shadow.check(&mut client);
    client.flush().unwrap();
    drop(client);
    let (counters, stderr) = device.end();
    assert_eq!(counters["volume"]["donors_lost"], 1, "{counters}");
    // It reports the lost donor, and possibly that all copies are there again: with two donors left, copies may have
    // been missing for some milliseconds only.
    assert!(stderr.contains(&addresses[1]) && stderr.lines().count() <= 2, "{stderr}");
    // The next server finds everything, with one donor away.
    let device = Device::start(&folder, &addresses, &[]);
    let mut client = device.client();
    shadow.check(&mut client);
    (0..40).for_each(|page| shadow.write(&mut client, page));
    drop(device);
    // The previous server was killed while it had clients.
    let device = Device::start(&folder, &addresses, &["--copies", "2"]);
    shadow.check(&mut device.client());
    device.end();
}

#[test]
fn a_device_in_shared_memory_survives_a_donor_and_its_server() {
    survives("shm");
}

#[test]
fn a_device_over_udp_survives_a_donor_and_its_server() {
    survives("udp");
}

#[test]
fn a_device_over_rdma_survives_a_donor_and_its_server() {
    if rdma_device().is_some() {
        survives("ibverbs");
    }
}

#[test]
fn what_all_donors_took_along_is_read_from_the_last_copy_of_that_volume_alone() {
    let folder = Folder::new();
    let donors: Vec<Server> = (0..3).map(|_| donor("shm")).collect();
    let addresses: Vec<String> = donors.iter().map(|donor| donor.address.clone()).collect();
    let file = folder.0.join("last copy");
    let path = file.to_str().unwrap();
    let mut device = Device::start(&folder, &addresses, &["--size", "16M", "--last-copy", path]);
    let words = lines_of(device.process.0.stderr.take().unwrap());
    while !words.recv_timeout(PATIENCE).unwrap().contains("the last copy has all of the volume") {}
    let mut client = device.client();
    let mut shadow = Shadow(vec![0; LEN / PAGE]);
    (0..LEN / PAGE).filter(|page| page % 3 != 0).for_each(|page| shadow.write(&mut client, page));
    donors.iter().for_each(|donor| donor.process.signal(Signal::KILL));
    shadow.check(&mut client);
    assert_eq!(client.write(0, &[1; PAGE]), Err(5), "nobody has it but this host");
    shadow.check(&mut client);
    while !words.recv_timeout(PATIENCE).unwrap().contains("is read from the last copy") {}
    drop(client);
    device.process.signal(Signal::INT);
    let line = device.lines.next().expect("it says what it did").unwrap();
    let end: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(end["counters"]["last_copy"]["reads"].as_u64() > Some(0), "{end}");
    device.process.wait();
    // The file is the device, for anyone who has to do without donors.
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.len(), LEN + PAGE);
    assert!(bytes.chunks(PAGE).zip(&shadow.0).all(|(page, shadow)| page.iter().all(|byte| byte == shadow)));
    // No new volume takes the file for its own last copy.
    let fresh: Vec<Server> = (0..3).map(|_| self::donor("shm")).collect();
    let at = format!("unix:{}", folder.0.join("other").display());
    // The first attempt creates the volume, and the second finds it.
    for _ in 0..2 {
        let mut command = sinew(&["serve", "block", "--at", &at]);
        command.args(fresh.iter().map(|donor| &donor.address)).args(["--size", "16M", "--last-copy", path]);
        let refused = run(&mut command);
        assert!(!refused.status.success());
        assert!(text(&refused.stderr).contains("is the last copy of another volume of the same name"), "{refused:?}");
        assert_eq!(std::fs::read(&file).unwrap(), bytes);
    }
}

#[test]
fn copies_that_a_donor_took_along_are_rebuilt_at_another() {
    let folder = Folder::new();
    let mut donors: Vec<Server> = (0..4).map(|_| donor("shm")).collect();
    let addresses: Vec<String> = donors.iter().map(|donor| donor.address.clone()).collect();
    let mut device = Device::start(&folder, &addresses, &["--size", "16M"]);
    let mut client = device.client();
    let mut shadow = Shadow(vec![0; LEN / PAGE]);
    (0..1000).for_each(|page| shadow.write(&mut client, page * 4));
    let words = lines_of(device.process.0.stderr.take().unwrap());
    // Two of four donors are killed, one after the other. Without new copies, that would lose data. The two that remain
    // hold all of it, but a third loss would leave too few voters.
    for (victim, reported) in [(0, "is whole again"), (1, "has all its copies, but")] {
        donors.remove(0).process.signal(Signal::KILL);
        // A write notices the loss.
        (0..100).for_each(|page| shadow.write(&mut client, page * 40 + victim));
        while !words.recv_timeout(PATIENCE).unwrap().contains(reported) {}
        shadow.check(&mut client);
    }
    drop(client);
    device.process.signal(Signal::INT);
    assert!(device.process.wait().success());
}

/// Writes all of the device again and again, in long requests, until a write fails.
fn write_until_it_fails(socket: PathBuf, byte: u8) -> std::thread::JoinHandle<()> {
    const LONG: usize = 1 << 20;
    let mut client = Client::connect(&socket);
    std::thread::spawn(move || {
        let bytes = vec![byte; LONG];
        let mut at = (0..LEN / LONG).cycle().map(|index| (index * LONG) as u64);
        while client.write(at.next().unwrap(), &bytes).is_ok() {}
    })
}

#[test]
fn what_a_writer_that_was_stopped_amid_its_writes_still_writes_never_appears() {
    const ROUNDS: u8 = 12;
    let folders: Vec<Folder> = (0..=ROUNDS).map(|_| Folder::new()).collect();
    let donors: Vec<Server> = (0..3).map(|_| donor("shm")).collect();
    let addresses: Vec<String> = donors.iter().map(|donor| donor.address.clone()).collect();
    let mut device = Device::start(&folders[0], &addresses, &["--size", "16M"]);
    for (round, folder) in (1..=ROUNDS).zip(&folders[1..]) {
        // The thread that copies is stopped wherever it is.
        let writer = write_until_it_fails(device.socket.clone(), 2 * round);
        std::thread::sleep(std::time::Duration::from_micros(3_000 + 7_310 * u64::from(round % 5)));
        device.process.signal(Signal::STOP);
        let stopped = std::mem::replace(&mut device, Device::start(folder, &addresses, &["--force"]));
        let mut client = device.client();
        let mut shadow = Shadow(vec![2 * round; LEN / PAGE]);
        (0..LEN / PAGE).for_each(|page| shadow.write(&mut client, page));
        stopped.process.signal(Signal::CONT);
        writer.join().unwrap();
        shadow.check(&mut client);
        drop(stopped);
        client.flush().unwrap();
    }
    let (counters, stderr) = device.end();
    assert_eq!(
        (&counters["volume"]["status"], &counters["volume"]["bad_pages"]),
        (&"whole".into(), &0.into()),
        "{stderr}"
    );
}

#[test]
fn a_volume_is_not_taken_from_a_writer_that_lives_and_is_from_one_that_is_silent() {
    let [first, second] = [Folder::new(), Folder::new()];
    let donors: Vec<Server> = (0..3).map(|_| donor("shm")).collect();
    let addresses: Vec<String> = donors.iter().map(|donor| donor.address.clone()).collect();
    let mut device = Device::start(&first, &addresses, &["--size", "16M"]);
    let at = format!("unix:{}", second.0.join("socket").display());
    for (command, more) in [("block", &["--at", &at][..]), ("fsck", &[][..])] {
        let mut command = sinew(if command == "fsck" { &["fsck"] } else { &["serve", "block"] });
        let output = run(command.args(&addresses).args(more));
        let stderr = text(&output.stderr);
        assert!(
            output.status.code() == Some(1) && stderr.contains("is alive") && stderr.contains("--force"),
            "{stderr}"
        );
    }
    let mut client = device.client();
    client.write(0, &[1; PAGE]).unwrap();
    device.process.signal(Signal::STOP);
    let next = Device::start(&second, &addresses, &[]);
    let mut client = next.client();
    assert_eq!(client.read(0, PAGE).unwrap(), [1; PAGE]);
    client.write(0, &[2; PAGE]).unwrap();
    device.process.signal(Signal::CONT);
    // The stopped writer finds out by itself.
    let words = lines_of(device.process.0.stderr.take().unwrap());
    while !words.recv_timeout(PATIENCE).unwrap().contains("another writer has taken the store over") {}
    assert_eq!((device.client().read(0, PAGE), client.read(0, PAGE).unwrap()[0]), (Err(5), 2));
}

#[test]
fn what_cannot_be_is_told_with_what_helps() {
    let folder = Folder::new();
    let at = format!("unix:{}", folder.0.join("socket").display());
    let serve = |donors: &[&str], more: &[&str]| {
        let output = run(sinew(&["serve", "block", "--at", &at]).args(donors).args(more));
        (output.status.code(), text(&output.stderr))
    };
    for (donors, more, why) in [
        (&["shm://a"][..], &["--size", "16M"][..], "--copies 2: each copy needs a donor of its own"),
        (&["shm://a", "udp://b:1"], &["--size", "16M"], "on one fabric"),
        (&["shm://a", "shm://a"], &["--size", "16M"], "named twice"),
        (&["shm://a", "shm://b"], &["--size", "17"], "whole blocks"),
        (&["shm://a", "shm://b"], &["--memory", "1M"], "cannot be used with"),
        (&["nowhere"], &["--size", "16M"], "nowhere"),
    ] {
        let (code, stderr) = serve(donors, more);
        assert!(code == Some(2) && stderr.contains(why), "{donors:?} {more:?}: {code:?} {stderr}");
    }
    let donors: Vec<Server> = (0..2).map(|_| donor("shm")).collect();
    let [first, second] = [&*donors[0].address, &*donors[1].address];
    let nobody = format!("shm://{}", unique("nobody"));
    for (donors, more, why) in [
        (&[first, second][..], &[][..], "--size BYTES makes it"),
        (&[first, second, &nobody], &["--size", "16M"], "made only when all of them answer"),
        (&[first, second], &["--size", "1G"], "do not fit"),
    ] {
        let (code, stderr) = serve(donors, more);
        assert!(code == Some(1) && stderr.contains(why), "{donors:?} {more:?}: {code:?} {stderr}");
    }
    let device = Device::start(&folder, &[first.to_owned(), second.to_owned()], &["--size", "16M", "--copies", "1"]);
    let (_, stderr) = device.end();
    assert!(stderr.contains("each page has one copy") && stderr.contains("with three donors"), "{stderr}");
    let (code, stderr) = serve(&[first, second], &["--size", "8M"]);
    assert!(code == Some(1) && stderr.contains("leave --size out"), "{stderr}");
}

#[test]
fn a_donor_that_others_reach_has_a_key_and_gives_nothing_without_it() {
    let folder = Folder::new();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let [short, key, other] = [file("short", &[7; 15]), file("key", &[7; 16]), file("other", &[9; 16])];
    let give = |address: &str, more: &[&str]| {
        let output = run(sinew(&["serve", "memory", address, "--memory", "40M"]).args(more));
        (output.status.code(), text(&output.stderr))
    };
    let (code, stderr) = give("udp://0.0.0.0:0", &[]);
    assert!(code == Some(2) && stderr.contains("--key-file") && stderr.contains("--open"), "{code:?} {stderr}");
    let (code, stderr) = give("udp://0.0.0.0:0", &["--key-file", &short]);
    assert!(code == Some(1) && stderr.contains("a key has at least 16"), "{code:?} {stderr}");
    let donors: Vec<Server> = (0..2)
        .map(|_| {
            let args = ["serve", "memory", "udp://127.0.0.1:0", "--child", "--memory", "40M", "--key-file", &key];
            Server::of(&mut sinew(&args))
        })
        .collect();
    let addresses: Vec<String> = donors.iter().map(|donor| donor.address.clone()).collect();
    let at = format!("unix:{}", folder.0.join("socket").display());
    for (more, why) in
        [(&[][..], "it wants a key, and none was given"), (&["--key-file", &other], "it has another key")]
    {
        let output = run(sinew(&["serve", "block", "--at", &at, "--size", "16M"]).args(&addresses).args(more));
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(1) && stderr.contains(why) && stderr.contains(&addresses[0]), "{stderr}");
    }
    let device = Device::start(&folder, &addresses, &["--size", "16M", "--key-file", &key]);
    let mut client = device.client();
    client.write(0, &[1; PAGE]).unwrap();
    assert_eq!(client.read(0, PAGE).unwrap(), [1; PAGE]);
}

#[test]
fn a_check_says_whether_anything_is_wrong() {
    let folder = Folder::new();
    let mut donors: Vec<Server> = (0..3).map(|_| donor("shm")).collect();
    let addresses: Vec<String> = donors.iter().map(|donor| donor.address.clone()).collect();
    let check = |more: &[&str]| {
        let output = run(sinew(&["fsck"]).args(&addresses).args(more));
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, _, stderr) = check(&[]);
    assert!(code == Some(1) && stderr.contains("no donor knows the volume \"volume\""), "{stderr}");
    let nobody = format!("shm://{}", unique("nobody"));
    let (code, _, stderr) = check(&[&*nobody]);
    let expected = format!("no donor that answers knows the volume \"volume\", and these do not answer: {nobody}");
    assert!(code == Some(1) && stderr.contains(&expected), "{stderr}");
    let output = run(&mut sinew(&["fsck", &*nobody]));
    let stderr = text(&output.stderr);
    let expected = format!("no donor answers: {nobody}: no server at");
    assert!(output.status.code() == Some(1) && stderr.contains(&expected), "{stderr}");
    assert!(stderr.contains("`sinew serve memory ADDRESS` starts a donor"), "{stderr}");
    let device = Device::start(&folder, &addresses, &["--size", "16M"]);
    let mut client = device.client();
    (0..500).for_each(|page| client.write(page * 3 * PAGE as u64, &[1; PAGE]).unwrap());
    drop(client);
    device.end();
    let (code, shown, stderr) = check(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (code, &json["clean"], &json["pages"], &json["good"]),
        (Some(0), &true.into(), &500.into(), &1000.into()),
        "{stderr}"
    );
    assert_eq!(check(&[]).0, Some(0));
    let victim = donors.remove(2);
    victim.process.signal(Signal::KILL);
    drop(victim);
    let (code, shown, stderr) = check(&[]);
    assert!(code == Some(5) && shown.contains(&format!("Gone: {}", addresses[2])), "{code:?} {shown} {stderr}");
    assert!(shown.contains("Something is wrong."), "{shown}");
    // The next server mends it.
    let mut device = Device::start(&folder, &addresses, &[]);
    let words = lines_of(device.process.0.stderr.take().unwrap());
    while !words.recv_timeout(PATIENCE).unwrap().contains("has all its copies") {}
    device.process.signal(Signal::INT);
    assert!(device.process.wait().success());
    let (code, shown, _) = check(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((code, &json["good"], &json["degraded"]), (Some(0), &1000.into(), &0.into()), "{json}");
}

#[test]
fn a_donor_that_is_asked_for_its_memory_back_serves_while_it_is_needed() {
    let folder = Folder::new();
    let address = format!("shm://{}", unique("donor"));
    // As a user starts it. It has more memory than the other donor, so it is the one of the two that votes.
    let mut command = sinew(&["serve", "memory", &address, "--memory", "48M", "--json"]);
    let mut leaving = Process(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let serving = BufReader::new(leaving.0.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(serving.contains("serving"), "{serving}");
    let words = lines_of(leaving.0.stderr.take().unwrap());
    let other = donor("shm");
    let addresses = [address, other.address.clone()];
    let device = Device::start(&folder, &addresses, &["--size", "16M"]);
    let mut client = device.client();
    let mut shadow = Shadow(vec![0; LEN / PAGE]);
    (0..LEN / PAGE).for_each(|page| shadow.write(&mut client, page));
    leaving.signal(Signal::USR1);
    while !words.recv_timeout(PATIENCE).unwrap().contains("nothing more is lent") {}
    // There is no other donor to which its copies could go. So it stays, and the other one may die.
    std::thread::sleep(std::time::Duration::from_secs(1));
    other.process.signal(Signal::KILL);
    (0..LEN / PAGE).step_by(7).for_each(|page| shadow.write(&mut client, page));
    shadow.check(&mut client);
    assert!(leaving.0.try_wait().unwrap().is_none(), "it ended with the only copies");
    drop(client);
    device.end();
    leaving.signal(Signal::INT);
    assert!(leaving.wait().success());
    assert!(words.iter().all(|line| !line.contains("in use any more")));
}

#[test]
fn a_donor_that_is_asked_for_its_memory_back_ends_when_volumes_have_moved() {
    let folder = Folder::new();
    let mut donors: Vec<Server> = (0..4).map(|_| donor("shm")).collect();
    let addresses: Vec<String> = donors.iter().map(|donor| donor.address.clone()).collect();
    let device = Device::start(&folder, &addresses, &["--size", "16M"]);
    let mut client = device.client();
    let mut shadow = Shadow(vec![0; LEN / PAGE]);
    (0..LEN / PAGE).for_each(|page| shadow.write(&mut client, page));
    for _ in 0..2 {
        let mut leaving = donors.remove(0);
        leaving.process.signal(Signal::USR1);
        let mut page = 0;
        while leaving.process.0.try_wait().unwrap().is_none() {
            page = (page + 17) % (LEN / PAGE);
            shadow.write(&mut client, page);
        }
        assert!(leaving.process.wait().success());
        shadow.check(&mut client);
    }
    drop(client);
    let (counters, stderr) = device.end();
    assert_eq!((&counters["volume"]["status"], &counters["volume"]["why"]), (&"whole".into(), &().into()), "{stderr}");
    assert!(counters["volume"]["copies_made"].as_u64() > Some(0), "{counters}");
    // A donor that has given nothing ends at once.
    let mut idle = donor("udp");
    idle.process.signal(Signal::USR1);
    assert!(idle.process.wait().success());
}

/// What `sinew memory volumes` lists.
fn volumes(donors: &[String]) -> Vec<serde_json::Value> {
    let output = run(sinew(&["memory", "volumes", "--json", "--volume", "disk"]).args(donors));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["unanswered"], serde_json::json!([]));
    list["volumes"].as_array().unwrap().clone()
}

fn remove(donors: &[String], more: &[&str]) -> (Option<i32>, String, String) {
    let output = run(sinew(&["memory", "remove", "--json"]).args(donors).args(more));
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_volume_is_removed_with_all_its_memory_and_not_from_a_writer_that_lives() {
    let folder = Folder::new();
    let donors: Vec<Server> = (0..3).map(|_| donor("shm")).collect();
    let addresses: Vec<String> = donors.iter().map(|donor| donor.address.clone()).collect();
    assert_eq!(volumes(&addresses), [] as [serde_json::Value; 0]);
    // The donors have room for one such volume, with its two copies.
    let device = Device::start(&folder, &addresses, &["--size", "40M", "--volume", "disk"]);
    let mut client = device.client();
    (0..40 << 20).step_by(1 << 20).for_each(|at| client.write(at, &[7; 1 << 20]).unwrap());
    drop(client);
    let [listed] = &volumes(&addresses)[..] else { panic!("it is the only one") };
    assert_eq!((&listed["name"], &listed["recorded"], &listed["in_use"]), (&"disk".into(), &true.into(), &true.into()));
    let bytes = listed["bytes"].as_u64().unwrap();
    assert!(bytes > 80 << 20 && listed["donors"].as_array().unwrap().len() == 3, "{listed}");
    let (status, _, why) = remove(&addresses, &["--volume", "disk"]);
    assert!(status == Some(1) && why.contains("is alive") && why.contains("--force"), "{why}");
    device.end();
    assert_eq!(volumes(&addresses)[0]["in_use"], false);
    let at = format!("unix:{}", folder.0.join("other").display());
    let serve = ["serve", "block", "--at", &at, "--size", "40M", "--volume", "other"];
    let full = text(&run(sinew(&serve).args(&addresses)).stderr);
    assert!(full.contains("do not fit") && full.contains("sinew memory volumes"), "{full}");
    let (status, out, why) = remove(&addresses, &["--volume", "disk"]);
    assert_eq!(status, Some(0), "{why}");
    let removed: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&removed["name"], &removed["left"]), (&"disk".into(), &serde_json::Value::Null));
    assert_eq!(removed["bytes"], bytes);
    assert_eq!(volumes(&addresses), [] as [serde_json::Value; 0]);
    // The memory is lent again, and holds nothing of the volume that had it.
    let device = Device::start(&folder, &addresses, &["--size", "40M", "--volume", "other"]);
    assert!(device.client().read(0, 4 << 20).unwrap().iter().all(|byte| *byte == 0));
    let id = volumes(&addresses)[0]["id"].as_str().unwrap().to_owned();
    device.process.signal(Signal::KILL);
    let (status, _, why) = remove(&addresses, &["--id", &id, "--force"]);
    assert_eq!((status, volumes(&addresses).len()), (Some(0), 0), "{why}");
    let (status, _, why) = remove(&addresses, &["--volume", "nothing"]);
    assert!(status == Some(1) && why.contains("no donor has a record"), "{why}");
}

#[test]
fn what_a_file_service_had_is_removed_by_its_id_once_the_service_is_gone() {
    let folder = Folder::new();
    let donors: Vec<Server> = (0..2).map(|_| donor("shm")).collect();
    let addresses: Vec<String> = donors.iter().map(|donor| donor.address.clone()).collect();
    let address = format!("shm://{}", unique("files"));
    let data = folder.0.join("data").display().to_string();
    let mut command = sinew(&["serve", "files", &address, "--child", "--copies", "2", "--data", &data]);
    let service = Server::of(command.args(addresses.iter().flat_map(|donor| ["--donor", donor])));
    let listed = |in_use: bool| volumes(&addresses).first().filter(|listed| listed["in_use"] == in_use).cloned();
    common::eventually("the service has memory", || listed(true).is_some());
    let listed_now = listed(true).unwrap();
    let id = listed_now["id"].as_str().unwrap();
    assert_eq!((&listed_now["recorded"], &listed_now["name"]), (&false.into(), &serde_json::Value::Null));
    let (status, _, why) = remove(&addresses, &["--id", id]);
    assert!(status == Some(1) && why.contains("is alive"), "{why}");
    drop(service);
    assert!(listed(false).is_some());
    let (status, out, why) = remove(&addresses, &["--id", id]);
    assert!(status == Some(0) && out.contains(&listed_now["bytes"].to_string()), "{out} {why}");
    assert_eq!(volumes(&addresses), [] as [serde_json::Value; 0]);
}
