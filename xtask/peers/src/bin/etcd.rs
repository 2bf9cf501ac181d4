//! An etcd client that puts random keys at the leader, a fixed number at a time, over one connection. The messages are
//! written by hand, so that no protoc is needed; Debian does not package etcd's own benchmark.
#![forbid(unsafe_code)]

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Parser;
use http::uri::PathAndQuery;
use serde_json::json;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

#[derive(Debug, Parser)]
struct Args {
    /// The members' addresses.
    #[arg(long, value_delimiter = ',', required = true)]
    at: Vec<String>,
    /// PUTs in flight.
    #[arg(long, default_value_t = 1)]
    in_flight: usize,
    /// Length of the measurement, in seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 64)]
    value_len: usize,
    /// Number of keys, of 16 bytes each.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Header {
    #[prost(uint64, tag = "2")]
    member: u64,
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, tag = "1")]
    header: Option<Header>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {
    #[prost(message, tag = "1")]
    header: Option<Header>,
}

type Client = Grpc<Channel>;

async fn status(client: &mut Client) -> anyhow::Result<StatusResponse> {
    client.ready().await?;
    let path = PathAndQuery::from_static("/etcdserverpb.Maintenance/Status");
    let codec = ProstCodec::<StatusRequest, StatusResponse>::default();
    Ok(client.unary(tonic::Request::new(StatusRequest {}), path, codec).await?.into_inner())
}

async fn put(client: &mut Client, key: Bytes, value: Bytes) -> anyhow::Result<i64> {
    client.ready().await?;
    let path = PathAndQuery::from_static("/etcdserverpb.KV/Put");
    let codec = ProstCodec::<PutRequest, PutResponse>::default();
    let answer = client.unary(tonic::Request::new(PutRequest { key, value }), path, codec).await?.into_inner();
    Ok(answer.header.context("a PUT was answered without a header")?.revision)
}

/// Connects to the leader.
async fn leader(addresses: &[String]) -> anyhow::Result<Client> {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        for address in addresses {
            let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
            let Ok(channel) = endpoint.connect().await else { continue };
            let mut client = Client::new(channel);
            let Ok(status) = status(&mut client).await else { continue };
            if status.leader != 0 && status.header.is_some_and(|header| header.member == status.leader) {
                return Ok(client);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("there is no leader at {}", addresses.join(", "))
}

async fn measure(args: Args) -> anyhow::Result<serde_json::Value> {
    let client = leader(&args.at).await?;
    let value = Bytes::from(vec![b'v'; args.value_len]);
    let args = Rc::new(args);
    let warm = Instant::now() + Duration::from_millis(300);
    let until = warm + Duration::from_secs_f64(args.seconds);
    let putters = (0..args.in_flight).map(|number| {
        let (mut client, value, args) = (client.clone(), value.clone(), Rc::clone(&args));
        tokio::task::spawn_local(async move {
            let mut word = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(number as u64 + 1);
            let (mut times_ns, mut last, mut all) = (Vec::new(), 0, 0_u64);
            loop {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                let key = Bytes::from(format!("{:016x}", word % args.keys));
                let begun = Instant::now();
                let revision = put(&mut client, key, value.clone()).await?;
                ensure!(revision > last, "revision {revision} after {last}");
                last = revision;
                all += 1;
                let now = Instant::now();
                if now >= until {
                    return anyhow::Ok((times_ns, all));
                }
                if begun >= warm {
                    times_ns.push((now - begun).as_nanos() as u64);
                }
            }
        })
    });
    let (mut times_ns, mut all) = (Vec::new(), 0);
    for putter in putters.collect::<Vec<_>>() {
        let (own_ns, own) = putter.await??;
        times_ns.extend(own_ns);
        all += own;
    }
    ensure!(!times_ns.is_empty(), "no PUT came back in time");
    times_ns.sort_unstable();
    let at = |part: f64| times_ns[(part * (times_ns.len() - 1) as f64) as usize];
    let rate = times_ns.len() as f64 / args.seconds;
    Ok(json!({ "p50_ns": at(0.5), "p99_ns": at(0.99), "rate_per_s": rate, "puts": times_ns.len(), "all_puts": all }))
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = tokio::task::LocalSet::new().block_on(&runtime, measure(args))?;
    println!("{measured}");
    Ok(())
}
