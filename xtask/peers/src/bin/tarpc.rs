//! tarpc: bincode over loopback TCP.
#![forbid(unsafe_code)]

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use peers::{AnyError, MESSAGE_LEN_MAX, RESPONSE_LEN, System};
use serde_bytes::ByteBuf;
use tarpc::serde_transport::tcp;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, context};

#[tarpc::service]
trait Echo {
    async fn echo(data: ByteBuf) -> ByteBuf;
}

#[derive(Clone)]
struct EchoServer;

impl Echo for EchoServer {
    async fn echo(self, _: context::Context, data: ByteBuf) -> ByteBuf {
        ByteBuf::from(&data[..data.len().min(RESPONSE_LEN)])
    }
}

struct Tarpc;

impl System for Tarpc {
    type Client = EchoClient;

    async fn serve(bound: mpsc::Sender<SocketAddr>) -> Result<(), AnyError> {
        use futures::StreamExt;
        let mut incoming = tcp::listen("127.0.0.1:0", Bincode::default).await?;
        incoming.config_mut().max_frame_length(MESSAGE_LEN_MAX);
        bound.send(incoming.local_addr())?;
        while let Some(transport) = incoming.next().await {
            let transport = transport?;
            transport.get_ref().set_nodelay(true)?;
            // Serves connections one after another, since only one is measured.
            let calls = BaseChannel::with_defaults(transport).execute(EchoServer.serve());
            calls.for_each_concurrent(None, |call| call).await;
        }
        Ok(())
    }

    async fn connect(to: SocketAddr) -> Result<Self::Client, AnyError> {
        let mut connect = tcp::connect(to, Bincode::default);
        connect.config_mut().max_frame_length(MESSAGE_LEN_MAX);
        let transport = connect.await?;
        transport.get_ref().set_nodelay(true)?;
        let mut config = client::Config::default();
        config.max_in_flight_requests = 4096;
        config.pending_request_buffer = 4096;
        Ok(EchoClient::new(config, transport).spawn())
    }

    fn call(client: &mut Self::Client, request: Bytes) -> Pin<Box<dyn Future<Output = Result<Bytes, AnyError>> + '_>> {
        Box::pin(async move {
            let mut context = context::current();
            context.deadline = Instant::now() + Duration::from_secs(60);
            let response = client.echo(context, ByteBuf::from(&request[..])).await?;
            Ok(response.into_vec().into())
        })
    }
}

fn main() -> anyhow::Result<()> {
    peers::main::<Tarpc>()
}
