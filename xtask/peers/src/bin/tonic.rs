//! tonic: gRPC over HTTP/2 on loopback TCP. The service is written by hand, so that no protoc is needed.
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::uri::PathAndQuery;
use peers::{AnyError, MESSAGE_LEN_MAX, RESPONSE_LEN, System};
use tonic::body::Body;
use tonic::client::Grpc as ClientGrpc;
use tonic::server::{Grpc as ServerGrpc, NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic_prost::ProstCodec;

const METHOD: &str = "/peers.Echo/Echo";

#[derive(Clone, PartialEq, prost::Message)]
struct Message {
    #[prost(bytes = "bytes", tag = "1")]
    data: Bytes,
}

type Codec = ProstCodec<Message, Message>;

/// The service that protoc would generate.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "peers.Echo";
}

impl UnaryService<Message> for Echo {
    type Response = Message;
    type Future = Ready<Result<tonic::Response<Message>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<Message>) -> Self::Future {
        let data = request.into_inner().data;
        let answer = Bytes::copy_from_slice(&data[..data.len().min(RESPONSE_LEN)]);
        ready(Ok(tonic::Response::new(Message { data: answer })))
    }
}

impl tower_service::Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = ServerGrpc::new(Codec::default()).apply_max_message_size_config(Some(MESSAGE_LEN_MAX), None);
            Ok(grpc.unary(Echo, request).await)
        })
    }
}

struct Tonic;

impl System for Tonic {
    type Client = ClientGrpc<Channel>;

    async fn serve(bound: mpsc::Sender<SocketAddr>) -> Result<(), AnyError> {
        let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
        bound.send(incoming.local_addr()?)?;
        // Windows are as large as a message; the default of 64 KB would limit the bandwidth measured.
        let server = Server::builder()
            .initial_stream_window_size(MESSAGE_LEN_MAX as u32)
            .initial_connection_window_size(MESSAGE_LEN_MAX as u32);
        server.max_concurrent_streams(4096).serve_with_incoming(Echo, incoming).await?;
        Ok(())
    }

    async fn connect(to: SocketAddr) -> Result<Self::Client, AnyError> {
        let endpoint = Endpoint::from_shared(format!("http://{to}"))?.tcp_nodelay(true);
        Ok(ClientGrpc::new(endpoint.connect().await?))
    }

    fn call(client: &mut Self::Client, request: Bytes) -> Pin<Box<dyn Future<Output = Result<Bytes, AnyError>> + '_>> {
        Box::pin(async move {
            client.ready().await?;
            let request = tonic::Request::new(Message { data: request });
            let response = client.unary(request, PathAndQuery::from_static(METHOD), Codec::default()).await?;
            Ok(response.into_inner().data)
        })
    }
}

fn main() -> anyhow::Result<()> {
    peers::main::<Tonic>()
}
