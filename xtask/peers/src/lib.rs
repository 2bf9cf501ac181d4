//! Shared parts of the programs for tonic and tarpc: a server and a client thread, each with a core and a runtime of
//! its own, and three measurements, each of which prints one JSON object with the keys of `sinew rpc bench`.
#![forbid(unsafe_code)]

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::{Parser, ValueEnum};
use serde_json::json;

/// The largest message that either side accepts, in bytes.
pub const MESSAGE_LEN_MAX: usize = 64 << 20;

/// Most of a request's first bytes that its response carries.
pub const RESPONSE_LEN: usize = 32;

/// Errors of any system.
pub type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Kind of measurement.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum What {
    /// One call at a time.
    Latency,
    /// Calls per second with `--window` in flight.
    Rate,
    /// Request bytes per second.
    Bandwidth,
}

/// The programs' arguments.
#[derive(Debug, Parser)]
pub struct Args {
    what: What,
    /// Bytes of a request.
    #[arg(long, default_value_t = 32)]
    size: usize,
    /// Calls in flight, except when latency is measured.
    #[arg(long, default_value_t = 64)]
    window: usize,
    /// Length of the measurement, in seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// The server's core and the client's.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1])]
    cores: Vec<usize>,
}

/// One RPC system.
pub trait System: 'static {
    /// A connection that can carry many calls at once.
    type Client: Clone + 'static;

    /// Serves until the runtime ends; sends its address through `bound`.
    fn serve(bound: mpsc::Sender<SocketAddr>) -> impl Future<Output = Result<(), AnyError>>;

    /// Connects to the server.
    fn connect(to: SocketAddr) -> impl Future<Output = Result<Self::Client, AnyError>>;

    /// Makes one call, whose response is the first [`RESPONSE_LEN`] bytes of the request.
    fn call(client: &mut Self::Client, request: Bytes) -> Pin<Box<dyn Future<Output = Result<Bytes, AnyError>> + '_>>;
}

/// Runs a program: its server in one thread, its client in this one.
pub fn main<S: System>() -> anyhow::Result<()> {
    let args = Args::parse();
    let &[server_core, client_core] = &args.cores[..] else { bail!("--cores takes two numbers") };
    let (bound, listening) = mpsc::channel();
    std::thread::spawn(move || {
        pin(server_core);
        if let Err(error) = runtime().block_on(S::serve(bound)) {
            eprintln!("the server ended: {error}");
        }
    });
    let to = listening.recv().context("the server did not start")?;
    pin(client_core);
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime(), measure::<S>(to, &args))?;
    println!("{result}");
    Ok(())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime of one thread")
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("cannot run on core {core} alone: {error}");
    }
}

async fn measure<S: System>(to: SocketAddr, args: &Args) -> anyhow::Result<serde_json::Value> {
    let client = S::connect(to).await.map_err(anyhow::Error::from_boxed)?;
    let request: Bytes = (0..args.size).map(|index| index as u8).collect();
    // Warms up connections, pages and branch predictors.
    calls::<S>(&client, &request, 1, Duration::from_millis(300)).await?;
    let time = Duration::from_secs_f64(args.seconds);
    let window = if matches!(args.what, What::Latency) { 1 } else { args.window };
    let (mut latencies_ns, took) = calls::<S>(&client, &request, window, time).await?;
    ensure!(!latencies_ns.is_empty(), "no call came back in time");
    let per_second = latencies_ns.len() as f64 / took.as_secs_f64();
    Ok(match args.what {
        What::Latency => {
            latencies_ns.sort_unstable();
            let at = |quantile: f64| latencies_ns[(quantile * (latencies_ns.len() - 1) as f64) as usize];
            json!({ "p50_ns": at(0.5), "p99_ns": at(0.99) })
        }
        What::Rate => json!({ "rate_mops": per_second / 1e6 }),
        What::Bandwidth => json!({ "gbps": per_second * args.size as f64 * 8.0 / 1e9 }),
    })
}

/// Makes calls for `time`, `window` at once, and checks every response. Returns the time of each call in ns, and the
/// total.
async fn calls<S: System>(
    client: &S::Client,
    request: &Bytes,
    window: usize,
    time: Duration,
) -> anyhow::Result<(Vec<u64>, Duration)> {
    let started = Instant::now();
    let expected = Rc::new(request.slice(..request.len().min(RESPONSE_LEN)));
    let callers = (0..window).map(|_| {
        let (mut client, request, expected) = (client.clone(), request.clone(), Rc::clone(&expected));
        tokio::task::spawn_local(async move {
            let mut latencies_ns = Vec::new();
            while started.elapsed() < time {
                let sent = Instant::now();
                let response = S::call(&mut client, request.clone()).await.map_err(anyhow::Error::from_boxed)?;
                latencies_ns.push(sent.elapsed().as_nanos() as u64);
                ensure!(response == *expected, "a response differs from its request");
            }
            anyhow::Ok(latencies_ns)
        })
    });
    let mut all = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        all.append(&mut caller.await??);
    }
    Ok((all, started.elapsed()))
}
