//! Named ports on queue pairs, over shared memory everywhere and over an RDMA device where there is one; and services
//! on them.

mod common;
#[path = "common/device.rs"]
mod device;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use common::{ECHO, PATIENCE, Server, echo, run, sinew as command, text};
use sinew::fabric::verbs::port::{UdPort, UdPortConfig};
use sinew::fabric::verbs::{Device, ProtectionDomain};
use sinew::fabric::{Address, PortError};
use sinew::host::TcpNames;
use sinew::ibverbs::IbDevice;
use sinew::prelude::*;
use sinew::shm::verbs::ShmDevice;
use sinew_conformance::ports::{self, Expectations, Fixture};

const SCHEME: &str = "queue-pairs";
/// Emulated processors stall for seconds, and no test here kills a peer.
const PEER_TIMEOUT_MS: u64 = 30_000;

/// Returns the machine's device, and the right to use it, which one test has at a time: with a device and processors in
/// software, several tests would only wait for each other.
fn rdma_device() -> Option<(MutexGuard<'static, ()>, IbDevice)> {
    static ONE: Mutex<()> = Mutex::new(());
    let device = device::rdma_device()?;
    Some((ONE.lock().unwrap_or_else(PoisonError::into_inner), device))
}

fn open_at<D: ProtectionDomain>(device: &impl Device<Domain = D>, place: &str) -> Result<UdPort<D>, PortError> {
    let config = UdPortConfig { receive_packets: 512, send_packets: 128, arena_bytes: 32 << 20, ..Default::default() };
    UdPort::open_named(device, &config, &Address::new(SCHEME, place), Box::new(TcpNames::new(SCHEME, &[])))
}

struct Ports<D> {
    device: D,
    lossy: bool,
    began: Instant,
}

impl<D> Ports<D> {
    fn new(device: D, lossy: bool) -> Self {
        Self { device, lossy, began: Instant::now() }
    }
}

impl<D: Device> Fixture for Ports<D> {
    type Port = UdPort<D::Domain>;

    fn open(&mut self) -> Self::Port {
        open_at(&self.device, "127.0.0.1:0").expect("a port")
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        Expectations { lossy: self.lossy, reports_closed_peers: false, ..Expectations::default() }
    }

    fn absent_address(&self) -> Option<Address> {
        // The listener at a port that the system chose is gone, and nobody else is given the port in the meantime.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port of the system");
        Some(Address::new(SCHEME, &listener.local_addr().expect("its address").to_string()))
    }
}

mod over_shm {
    sinew_conformance::port_tests!(super::Ports::new(super::ShmDevice::threads().expect("a device"), false));
}

#[test]
fn a_named_queue_pair_of_a_device_is_a_packet_port() {
    let Some((_one, device)) = rdma_device() else { return };
    ports::run_all(&mut Ports::new(device, true));
}

fn config() -> Config {
    Config { peer_timeout_ns: PEER_TIMEOUT_MS * 1_000_000, ..common::config() }
}

fn client() -> Nexus {
    Nexus::builder().config(config()).build().unwrap()
}

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

/// Serves on a thread while `visit` runs, which is handed the server's address.
fn with_server<D: Device>(device: &D, place: &str, visit: impl FnOnce(&Address)) {
    let stop = AtomicBool::new(false);
    let (ready, opened) = mpsc::channel();
    std::thread::scope(|threads| {
        let server = threads.spawn(|| {
            let mut rpc = sinew::endpoint(&echo(config()), open_at(device, place).unwrap()).unwrap();
            ready.send((rpc.address(), rpc.waker())).unwrap();
            rpc.run_until(|_| stop.load(Ordering::Relaxed)).unwrap();
        });
        let (address, waker) = opened.recv_timeout(PATIENCE).unwrap();
        visit(&address);
        stop.store(true, Ordering::Relaxed);
        waker.wake();
        server.join().unwrap();
    });
}

fn serve_and_call<D: Device>(device: &D) {
    let mut rpc = sinew::endpoint(&client(), open_at(device, "").unwrap()).unwrap();
    let mut place = "127.0.0.1:0".to_owned();
    for _ in 0..2 {
        with_server(device, &place.clone(), |address| {
            let session = rpc.connect(&address.to_string()).unwrap();
            for len in [0, 1, 1_000, 5_000, 100_000, 1 << 20] {
                assert_eq!(*rpc.call(session, ECHO, message(len)).unwrap(), message(len)[..], "{len} bytes");
            }
            assert!(rpc.disconnect(session));
            address.rest().clone_into(&mut place);
        });
        // The next server is found at the same place, although its queue pair is another.
    }
    let error = rpc.connect(&Address::new(SCHEME, &place).to_string()).unwrap_err();
    assert!(error.to_string().contains(&place), "{error}");
}

#[test]
fn a_service_is_called_by_its_name_over_queue_pairs_in_shared_memory() {
    serve_and_call(&ShmDevice::threads().unwrap());
}

#[test]
fn a_service_is_called_by_its_name_over_queue_pairs_of_a_device() {
    let Some((_one, device)) = rdma_device() else { return };
    serve_and_call(&device);
}

#[test]
fn a_loop_turns_while_strangers_ask_and_say_nothing() {
    let device = ShmDevice::threads().unwrap();
    with_server(&device, "127.0.0.1:0", |address| {
        let silent_clients: Vec<_> = (0..100).map(|_| std::net::TcpStream::connect(address.rest()).unwrap()).collect();
        let mut rpc = sinew::endpoint(&client(), open_at(&device, "").unwrap()).unwrap();
        let session = rpc.connect(&address.to_string()).unwrap();
        for round in 0..100 {
            assert_eq!(*rpc.call(session, ECHO, message(round)).unwrap(), message(round)[..]);
        }
        drop(silent_clients);
    });
}

#[test]
fn the_facade_serves_and_calls_over_a_device() {
    let Some(_one) = rdma_device() else { return };
    let server = echo(config()).server().at("ibverbs://127.0.0.1:0").start().unwrap();
    let address = &server.addresses()[0];
    assert!(address.option("device").is_some(), "it says which device it took: {address}");
    // Three megabytes go there and back, possibly on emulated processors with other work.
    let patient = Nexus::builder().config(Config { call_timeout_ns: 60_000_000_000, ..config() }).build().unwrap();
    let mut rpc = Rpc::open_with(&patient, "ibverbs://").unwrap();
    let session = rpc.connect(&address.to_string()).unwrap();
    for len in [0, 1, 56, 57, 4_096, 100_000, 3 << 20] {
        assert_eq!(*rpc.call(session, ECHO, message(len)).unwrap(), message(len)[..], "{len} bytes");
    }
    // Both ends fall asleep in the meantime, and wake up.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(*rpc.call(session, ECHO, b"awake").unwrap(), b"awake"[..]);
    let reports = server.stop().unwrap();
    assert_eq!(reports[0].stats.requests_handled, 8);
}

#[test]
fn a_device_that_is_not_there_is_named_with_what_helps() {
    let error = Rpc::open("ibverbs://127.0.0.1:0?device=nosuch0").err().unwrap().to_string();
    assert!(error.contains("ibverbs cannot be used here"), "{error}");
    assert!(error.contains("sinew verbs devices"), "{error}");
}

#[test]
fn two_processes_call_over_a_device() {
    let Some(_one) = rdma_device() else { return };
    let server = Server::start_patient("ibverbs", PEER_TIMEOUT_MS);
    let mut rpc = Rpc::open_with(&client(), "ibverbs://").unwrap();
    let session = rpc.connect(&server.address).unwrap();
    assert_eq!(*rpc.call(session, ECHO, message(100_000)).unwrap(), message(100_000)[..]);
    // The benchmark is a third process, which checks every answer.
    let args = ["rpc", "bench", "rate", "--address", &server.address, "--seconds", "0.5", "--window", "8", "--json"];
    let output = run(command(&args).args(["--block", "--peer-timeout-ms", "30000"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["setup"]["fabric"], "ibverbs");
    assert!(result["details"]["calls_checked"].as_u64() > Some(0), "{result}");
}

#[test]
fn a_benchmark_of_a_device_starts_its_own_server_and_says_when_there_is_no_device() {
    let bench = ["rpc", "bench", "latency", "--fabric", "ibverbs", "--seconds", "0.5", "--block", "--json"];
    let output = run(command(&bench).args(["--options", "device=nosuch0"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("ibverbs cannot be used here"), "{}", text(&output.stderr));
    let Some(_one) = rdma_device() else { return };
    let output = run(&mut command(&bench));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (figure, limit) = (result["figure"].as_f64(), result["limit"].as_f64());
    assert!(figure > Some(0.0) && limit > Some(0.0), "{result}");
}
