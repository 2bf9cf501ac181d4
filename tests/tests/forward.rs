//! `sinew forward run` as a process: frames through it, tables that are read again meanwhile, and its end.

mod common;

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{ChildStderr, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use common::{Folder, PATIENCE, Process, complaint, sinew, unique};
use rustix::process::Signal;
use serde_json::Value;
use sinew::fabric::frames::cable::Cable;
use sinew::fabric::frames::{FrameBurst, FramePort, FrameRx, FrameTx, LentFrame, MacAddress};
use sinew::fabric::{Address, PacketPort};
use sinew::forward::headers::arp::Arp;
use sinew::forward::headers::ipv4::{self, Ipv4};
use sinew::forward::headers::{self, ether_type, protocol};
use sinew::shm::ShmPort;
use sinew::udp::UdpPort;

const HOST: MacAddress = MacAddress([2, 0, 0, 0, 1, 1]);
const GATEWAY: MacAddress = MacAddress([2, 0, 0, 0, 2, 1]);

/// Lines of a process's output, as they come.
fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        BufReader::new(from).lines().map_while(Result::ok).try_for_each(|line| send.send(line)).ok();
    });
    receive
}

/// A forwarder in a process of its own, and the addresses of its interfaces.
struct Running {
    process: Process,
    places: Vec<Address>,
    stdout_lines: Receiver<String>,
    complained: Receiver<String>,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let mut command = sinew(&["forward", "run", "--json"]);
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr): (ChildStdout, ChildStderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (stdout_lines, complained) = (lines(stdout), lines(stderr));
        let process = Process(child);
        let first = stdout_lines
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("{:?}", complained.iter().collect::<Vec<_>>()));
        let first: Value = serde_json::from_str(&first).unwrap();
        let place = |text: &Value| text.as_str().unwrap().split_once('=').unwrap().1.parse().unwrap();
        let places = first["serving"].as_array().unwrap().iter().map(place).collect();
        Self { process, places, stdout_lines, complained }
    }

    fn cable(&self, interface: usize, mac: MacAddress) -> Cable<ShmPort> {
        Cable::to(ShmPort::open(&"shm://".parse().unwrap()).unwrap(), &self.places[interface], mac).unwrap()
    }

    /// Stops it, and returns its counters.
    fn end(mut self) -> Value {
        self.process.signal(Signal::INT);
        assert!(self.process.wait().success());
        let last = self.stdout_lines.iter().last().unwrap();
        serde_json::from_str::<Value>(&last).unwrap()["forwarder"].clone()
    }
}

fn send<P: PacketPort>(port: &mut Cable<P>, frame: &[u8]) {
    port.split().1.push(frame, &[]);
    port.split().1.submit();
}

/// Returns the frames that have arrived. If there are none, waits for up to a millisecond.
fn receive<P: PacketPort>(port: &mut Cable<P>) -> Vec<Vec<u8>> {
    let mut burst = FrameBurst::new(0);
    port.split().0.receive(&mut burst);
    let frames: Vec<_> = burst.frames.iter().map(|frame| frame.bytes().to_vec()).collect();
    drop(burst);
    if frames.is_empty() {
        port.wait(Some(1_000_000)).unwrap();
    }
    frames
}

/// Waits for a frame that `is_it` accepts.
fn expect<P: PacketPort>(port: &mut Cable<P>, what: &str, is_it: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let began = Instant::now();
    loop {
        if let Some(frame) = receive(port).into_iter().find(|frame| is_it(frame)) {
            return frame;
        }
        assert!(began.elapsed() < PATIENCE, "no {what}");
    }
}

/// Asks for the forwarder's address, which tells it who asks. Repeats the question, since frames are lost until both
/// ends of a cable are there.
fn introduce<P: PacketPort>(port: &mut Cable<P>, own: [u8; 4], asked: [u8; 4]) -> MacAddress {
    let (mac, sender, target) = (port.mac(), own.into(), asked.into());
    let question = Arp { is_request: true, sender_mac: mac.0, sender, target_mac: [0; 6], target };
    let frame = [&headers::ethernet(MacAddress::BROADCAST, mac, ether_type::ARP)[..], &question.to_bytes()].concat();
    let began = Instant::now();
    loop {
        send(port, &frame);
        for frame in receive(port) {
            if let Some(answer) = Arp::read(&frame[14..])
                && !answer.is_request
            {
                return MacAddress(answer.sender_mac);
            }
        }
        assert!(began.elapsed() < PATIENCE, "nobody has {target}");
    }
}

/// Answers a question for an address; the forwarder repeats it after a long silence. Returns whether the frame was one.
fn answers<P: PacketPort>(port: &mut Cable<P>, frame: &[u8]) -> bool {
    let Some(asked) = Arp::read(&frame[14..]).filter(|asked| asked.is_request) else { return false };
    let (sender, target, mac) = (asked.target, asked.sender, port.mac());
    let answer = Arp { is_request: false, sender_mac: mac.0, sender, target_mac: asked.sender_mac, target };
    send(
        port,
        &[&headers::ethernet(MacAddress(asked.sender_mac), mac, ether_type::ARP)[..], &answer.to_bytes()].concat(),
    );
    true
}

fn packet(to: MacAddress, destination: [u8; 4], number: u32) -> Vec<u8> {
    let header = ipv4::header(Ipv4Addr::new(10, 1, 0, 7), destination.into(), protocol::UDP, 64, 30);
    let mut payload = [0; 30];
    payload[8..12].copy_from_slice(&number.to_be_bytes());
    [&headers::ethernet(to, HOST, ether_type::IPV4)[..], &header, &payload].concat()
}

fn number_of(frame: &[u8]) -> u32 {
    assert_eq!(Ipv4::read(&frame[14..]).unwrap().ttl, 63);
    u32::from_be_bytes(frame[42..46].try_into().unwrap())
}

#[test]
fn routes_are_read_again_under_traffic_without_a_lost_frame() {
    const FRAMES: u32 = 3000;
    const WINDOW: u32 = 32;
    let folder = Folder::new();
    let routes = folder.0.join("routes");
    // Replaces the file in one step, since it may be read at any time.
    let write = |text: &str| {
        let new = folder.0.join("routes.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &routes).unwrap();
    };
    write("default via 10.2.0.9 dev wan\n");
    let lan = format!("lan=shm://{},ip=10.1.0.1/24", unique("lan"));
    let wan = format!("wan=shm://{},ip=10.2.0.1/24", unique("wan"));
    let running = Running::start(&["--interface", &lan, "--interface", &wan, "--table", routes.to_str().unwrap()]);
    let (mut host, mut gateway) = (running.cable(0, HOST), running.cable(1, GATEWAY));
    let router = introduce(&mut host, [10, 1, 0, 7], [10, 1, 0, 1]);
    introduce(&mut gateway, [10, 2, 0, 9], [10, 2, 0, 1]);
    let (mut sent, mut came, mut reloads) = (0, 0, 0);
    let began = Instant::now();
    while came < FRAMES {
        while sent < FRAMES && sent - came < WINDOW {
            host.split().1.push(&packet(router, [192, 0, 2, 1], sent), &[]);
            sent += 1;
        }
        host.split().1.submit();
        for frame in receive(&mut gateway) {
            if answers(&mut gateway, &frame) || headers::type_of(&frame) != ether_type::IPV4 {
                continue;
            }
            assert_eq!((number_of(&frame), headers::destination(&frame)), (came, GATEWAY));
            came += 1;
        }
        if came / 250 > reloads {
            reloads = came / 250;
            // The tables differ, and every third file is wrong.
            write(match reloads % 3 {
                0 => "default via 10.2.0.9 dev wan\n10.9.0.0/16 discard\n",
                1 => "192.0.0.0/8 via 10.2.0.9\n0.0.0.0/0 discard\n",
                _ => "# wrong\n10.0.0.0/33 via 10.2.0.9\n",
            });
            running.process.signal(Signal::HUP);
        }
        assert!(began.elapsed() < PATIENCE, "{came} of {FRAMES} came");
    }
    // Waits until the last table, which refuses the packets, is in use.
    write("192.0.2.0/24 discard\n");
    let began = Instant::now();
    'refused: loop {
        running.process.signal(Signal::HUP);
        send(&mut host, &packet(router, [192, 0, 2, 1], 0));
        for frame in receive(&mut host) {
            if answers(&mut host, &frame) {
                continue;
            }
            if let Ok(read) = Ipv4::read(&frame[14..]) {
                assert_eq!((read.protocol, &frame[34..36]), (protocol::ICMP, &[3, 13][..]));
                break 'refused;
            }
        }
        assert!(began.elapsed() < PATIENCE, "the last table was not taken");
    }
    write("0.0.0.0/0 via 10.2.0.9 dev dmz\n");
    running.process.signal(Signal::HUP);
    let wrong = |line: &String| {
        line.contains("the old table stays") && line.contains("routes: line 1: there is no interface called dmz")
    };
    let complaint = std::iter::from_fn(|| running.complained.recv_timeout(PATIENCE).ok()).find(wrong);
    assert!(complaint.is_some(), "a wrong file is complained of");
    let counted = running.end();
    assert!(counted["reloads"].as_u64() > Some(0) && counted["reloads_refused"].as_u64() > Some(0), "{counted}");
    assert!(counted["forwarded"].as_u64() >= Some(u64::from(FRAMES)), "{counted}");
    assert_eq!(counted["interfaces"][0]["name"], "lan");
}

#[test]
fn a_switch_has_ports_of_several_kinds() {
    let place = format!("a=shm://{}", unique("switch"));
    let running = Running::start(&["--as", "switch", "--interface", &place, "--interface", "b=udp://127.0.0.1:0"]);
    let mut a = running.cable(0, HOST);
    let b = UdpPort::open(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
    let mut b = Cable::to(b, &running.places[1], GATEWAY).unwrap();
    let frame = |to: MacAddress, from: MacAddress| [&headers::ethernet(to, from, 0x88B5)[..], &[7; 50]].concat();
    let began = Instant::now();
    // Until both ends know each other, frames are lost.
    while !receive(&mut b).contains(&frame(MacAddress::BROADCAST, HOST)) {
        send(&mut b, &frame(MacAddress::BROADCAST, GATEWAY));
        send(&mut a, &frame(MacAddress::BROADCAST, HOST));
        assert!(began.elapsed() < PATIENCE, "nothing came through");
    }
    send(&mut b, &frame(HOST, GATEWAY));
    expect(&mut a, "frame for the station", |got| got == frame(HOST, GATEWAY));
    let counted = running.end();
    assert_eq!(counted["stations"], 2, "{counted}");
}

#[test]
fn what_cannot_be_is_wrong_usage() {
    let folder = Folder::new();
    let table = folder.0.join("table");
    std::fs::write(&table, "10.0.0.0/8 via 10.2.0.9\n").unwrap();
    let with_table = format!("--interface a=shm://{},ip=10.1.0.1/24 --table {}", unique("wrong"), table.display());
    for (args, problem) in [
        ("--interface a=shm://x", "a router needs addresses"),
        ("--interface a=shm://x,ip=10.0.0.1/24 --interface a=shm://y", "two interfaces are called a"),
        ("--interface a=pigeon://x", "carries no frames"),
        ("--as switch --interface a=shm://x,ip=10.0.0.1/24", "ip= is for routers"),
        ("--as names --interface a=shm://x", "needs a --table"),
        (&with_table, "table: line 1: the next hop 10.2.0.9 is on no network of any interface"),
    ] {
        let stderr = complaint(&format!("forward run {args}"));
        assert!(stderr.contains(problem), "{args}: {stderr}");
    }
}
