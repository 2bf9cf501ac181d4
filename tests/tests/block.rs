//! `sinew serve block`, with the clients that its users have: nbdinfo, nbdcopy, qemu-io, fio and nbdfuse.

mod common;
#[path = "common/nbd.rs"]
mod nbd;

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use common::rights::{can_mount, is_on_path};
use common::{Folder, PATIENCE, Process, Server, eventually, run, sinew, text};
use nbd::Client;
use rustix::process::Signal;
use sinew_conformance::skipped;

/// Bytes of a device.
const LEN: usize = 64 << 20;

/// Serves a device from a process of its own, at a Unix socket.
fn serve(folder: &Folder) -> Server {
    let at = format!("unix:{}", folder.0.join("socket").display());
    Server::of(&mut sinew(&["serve", "block", "--child", "--memory", "64M", "--at", &at]))
}

fn uri(folder: &Folder) -> String {
    format!("nbd+unix:///?socket={}", folder.0.join("socket").display())
}

/// Whether a program is installed; if not, reports the test as skipped.
fn has(program: &str) -> bool {
    let is_here = is_on_path(program);
    if !is_here {
        skipped(format!("no {program}"));
    }
    is_here
}

fn done(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn some_bytes(path: &Path) -> Vec<u8> {
    let mut word = 1u64;
    let next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 56) as u8
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(next).take(LEN / 4).collect();
    bytes.resize(LEN, 0);
    std::fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn nbdinfo_shows_what_the_device_can() {
    if !has("nbdinfo") {
        return;
    }
    let folder = Folder::new();
    let _server = serve(&folder);
    let shown = done(Command::new("nbdinfo").arg(uri(&folder)));
    for line in [
        "structured packets",
        "export=\"memory\"",
        "67108864",
        "base:allocation",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(done(Command::new("nbdinfo").arg("--list").arg(uri(&folder))).contains("export=\"memory\""));
    let map = || done(Command::new("nbdinfo").arg("--map").arg(uri(&folder)));
    assert!(map().contains("67108864") && map().contains("hole,zero"), "{}", map());
}

#[test]
fn nbdcopy_fills_a_device_over_several_connections_and_reads_it_back() {
    if !has("nbdcopy") {
        return;
    }
    let folder = Folder::new();
    let _server = serve(&folder);
    let (there, back) = (folder.0.join("there"), folder.0.join("back"));
    let bytes = some_bytes(&there);
    done(Command::new("nbdcopy").arg("--flush").arg(&there).arg(uri(&folder)));
    done(Command::new("nbdcopy").arg(uri(&folder)).arg(&back));
    assert!(std::fs::read(back).unwrap() == bytes);
}

#[test]
fn qemu_reads_writes_zeroes_and_discards() {
    if !has("qemu-io") {
        return;
    }
    let folder = Folder::new();
    let _server = serve(&folder);
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]);
    for step in [
        "write -P 7 4k 1M",
        "read -P 7 4k 1M",
        "write -z 8k 64k",
        "read -P 0 8k 64k",
        "write -f -P 9 1 77",
        "read -P 9 1 77",
        "discard 1M 1M",
        "flush",
        "read -P 7 600k 100k",
    ] {
        command.args(["-c", step]);
    }
    let output = done(command.arg(uri(&folder)));
    assert!(!output.contains("failed") && !output.contains("Pattern"), "{output}");
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !has("fio") {
        return;
    }
    if !text(&run(Command::new("fio").arg("--enghelp")).stdout).contains("nbd") {
        return skipped("no fio with NBD");
    }
    let folder = Folder::new();
    let _server = serve(&folder);
    let mut command = Command::new("fio");
    command.current_dir(&folder.0).args(["--name=verify", "--ioengine=nbd", "--rw=randrw", "--bsrange=512-256k"]);
    command.args(["--size=64M", "--io_size=64M", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1"]);
    let output = done(command.arg(format!("--uri={}", uri(&folder))));
    assert!(output.contains("err= 0"), "{output}");
}

#[test]
fn nbdfuse_has_the_device_as_a_file() {
    if !has("nbdfuse") || !can_mount() {
        return;
    }
    let folder = Folder::new();
    let _server = serve(&folder);
    let file = folder.0.join("device");
    std::fs::write(&file, b"").unwrap();
    let mounted = Process::start(Command::new("nbdfuse").arg(&file).arg(uri(&folder)));
    eventually("the file is the device", || std::fs::metadata(&file).is_ok_and(|about| about.len() == LEN as u64));
    let device = std::fs::File::options().read(true).write(true).open(&file).unwrap();
    let (bytes, at) = (some_bytes(&folder.0.join("bytes")), 12_345);
    device.write_all_at(&bytes[..1 << 20], at).unwrap();
    device.sync_all().unwrap();
    let mut read = vec![1; (1 << 20) + 1];
    device.read_exact_at(&mut read, at).unwrap();
    assert!(read[..1 << 20] == bytes[..1 << 20] && read[1 << 20] == 0);
    drop(device);
    // Another client sees the same.
    let copy = folder.0.join("copy");
    done(Command::new("nbdcopy").arg(uri(&folder)).arg(&copy));
    assert!(std::fs::read(copy).unwrap()[at as usize..][..1 << 20] == bytes[..1 << 20]);
    mounted.signal(Signal::TERM);
    eventually("nothing is mounted", || std::fs::metadata(&file).is_ok_and(|about| about.len() == 0));
}

#[test]
fn whatever_a_client_sends_a_process_serves_the_others() {
    let folder = Folder::new();
    let server = serve(&folder);
    let path = folder.0.join("socket");
    let mut good = Client::connect(&path);
    good.write(4096, &[7; 4096]).unwrap();
    let flags = [0, 0, 0, 3];
    let option = |kind: u32, len: u32, data: &[u8]| {
        [&flags[..], b"IHAVEOPT", &kind.to_be_bytes(), &len.to_be_bytes(), data].concat()
    };
    let served = |request: &[u8]| [&option(1, 0, &[])[..], request].concat();
    let request = |magic: u32, kind: u16, at: u64, len: u32| {
        [&magic.to_be_bytes()[..], &[0, 0], &kind.to_be_bytes(), &[9; 8], &at.to_be_bytes(), &len.to_be_bytes()]
            .concat()
    };
    const MAGIC: u32 = 0x2560_9513;
    for malformed in [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(),
        vec![0xFF; 100_000],
        option(7, u32::MAX, &[]),
        option(7, 8, &[0xFF; 8]),
        option(1, 5000, &[b'n'; 5000]),
        option(1, 4, b"none"),
        served(&request(0xDEAD_BEEF, 0, 0, 1)),
        served(&request(MAGIC, 0, u64::MAX, 4096)),
        served(&request(MAGIC, 0, 0, u32::MAX)),
        served(&request(MAGIC, 99, 0, 512)),
        // These announce more than they send, and vanish.
        served(&request(MAGIC, 1, 0, 32 << 20)),
        served(&request(MAGIC, 1, 4096, 8192)),
    ] {
        let mut socket = UnixStream::connect(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // The server may close the connection before it has read everything.
        let _ = socket.write_all(&malformed);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
        assert_eq!(good.read(4096, 4096), Ok(vec![7; 4096]));
    }
    good.flush().unwrap();
    drop(server);
}

#[test]
fn a_device_at_a_port_is_for_this_host_unless_it_is_opened() {
    let server = Server::of(&mut sinew(&["serve", "block", "--child", "--memory", "1M", "--at", "127.0.0.1:0"]));
    let socket = std::net::TcpStream::connect(&server.address).unwrap();
    let mut greeting = [0; 18];
    std::io::Read::read_exact(&mut &socket, &mut greeting).unwrap();
    assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
    let output = run(&mut sinew(&["serve", "block", "--memory", "1M", "--at", "0.0.0.0:0"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("say --open"), "{output:?}");
    let opened = ["serve", "block", "--child", "--memory", "1M", "--at", "0.0.0.0:0", "--open"];
    assert!(Server::of(&mut sinew(&opened)).address.starts_with("0.0.0.0:"));
}

#[test]
fn wrong_usage_is_told_before_anything_starts() {
    for (args, why) in [
        (&["--memory", "1M", "--at", "nowhere"][..], "the port is missing"),
        (&["--memory", "1M", "--at", "unix:"], "the path of the socket is missing"),
        (&["--memory", "4", "--at", "127.0.0.1:0"], "the smallest device has 4 KB"),
        (&["--memory", "1M", "--at", "127.0.0.1:0", "--socket-mode", "700"], "is for a Unix socket"),
        (&["--at", "127.0.0.1:0"], "--memory"),
    ] {
        let output: Output = run(sinew(&["serve", "block"]).args(args));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(why), "{args:?}: {stderr}");
    }
}

/// The socket of a killed server is replaced, that of a running one is not, and a server that ends removes its own.
#[test]
fn a_socket_that_was_left_behind_is_replaced() {
    let folder = Folder::new();
    let mut server = serve(&folder);
    let at = format!("unix:{}", folder.0.join("socket").display());
    let output = run(&mut sinew(&["serve", "block", "--memory", "1M", "--at", &at]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    server.process.signal(Signal::KILL);
    server.process.wait();
    drop(server);
    assert!(folder.0.join("socket").exists());
    drop(serve(&folder));
    assert!(!folder.0.join("socket").exists());
}
