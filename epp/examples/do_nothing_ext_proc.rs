//! An ext-proc server that lets everything pass: the floor that the endpoint picker is measured
//! against. It answers every message at once, the way the usual libraries make it easy, and
//! knows full duplex only.
//!
//! `cargo run --release -p stator-epp --example do_nothing_ext_proc -- --destination 127.0.0.1:8000`

use clap::Parser;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpBody,
    ProcessingRequest, ProcessingResponse, StreamedBodyResponse, TrailersResponse,
};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::net::SocketAddr;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// Answers every message of a data plane with as little as it takes.
#[derive(Clone, Debug, Parser)]
struct Options {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:9002")]
    listen: SocketAddr,
    /// The endpoint that requests go to; without it the data plane's own route holds.
    #[arg(long)]
    destination: Option<SocketAddr>,
    /// Whether to end the stream with the request, so that the answer passes by itself.
    #[arg(long)]
    close_early: bool,
}

#[tonic::async_trait]
impl ExternalProcessor for Options {
    type ProcessStream = BoxStream<'static, Result<ProcessingResponse, Status>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let options = self.clone();
        let answers = request.into_inner().scan(false, move |closed, message| {
            if *closed {
                return std::future::ready(None);
            }
            let answer = message.map(|message| {
                *closed = options.close_early && ends_request(&message);
                answer(message, options.destination)
            });
            std::future::ready(Some(answer))
        });
        Ok(Response::new(answers.boxed()))
    }
}

fn ends_request(message: &ProcessingRequest) -> bool {
    match &message.request {
        Some(Message::RequestHeaders(head)) => head.end_of_stream,
        Some(Message::RequestBody(body)) => body.end_of_stream,
        Some(Message::RequestTrailers(_)) => true,
        _ => false,
    }
}

fn answer(message: ProcessingRequest, destination: Option<SocketAddr>) -> ProcessingResponse {
    let response = message.request.map(|message| match message {
        Message::RequestHeaders(_) => Answer::RequestHeaders(head(destination)),
        Message::ResponseHeaders(_) => Answer::ResponseHeaders(HeadersResponse::default()),
        Message::RequestBody(body) => Answer::RequestBody(echo(body)),
        Message::ResponseBody(body) => Answer::ResponseBody(echo(body)),
        Message::RequestTrailers(_) => Answer::RequestTrailers(TrailersResponse::default()),
        Message::ResponseTrailers(_) => Answer::ResponseTrailers(TrailersResponse::default()),
    });
    ProcessingResponse { response, ..ProcessingResponse::default() }
}

fn head(destination: Option<SocketAddr>) -> HeadersResponse {
    let set = destination.map(|destination| HeaderValueOption {
        header: Some(HeaderValue {
            key: "x-gateway-destination-endpoint".to_owned(),
            raw_value: destination.to_string().into_bytes(),
            ..HeaderValue::default()
        }),
        append_action: 2,
        ..HeaderValueOption::default()
    });
    let change = CommonResponse {
        clear_route_cache: set.is_some(),
        header_mutation: set
            .map(|set| HeaderMutation { set_headers: vec![set], ..HeaderMutation::default() }),
        ..CommonResponse::default()
    };
    HeadersResponse { response: Some(change) }
}

fn echo(body: HttpBody) -> BodyResponse {
    let HttpBody { body, end_of_stream, .. } = body;
    let chunk = StreamedBodyResponse { body, end_of_stream, ..StreamedBodyResponse::default() };
    let change = BodyMutation { mutation: Some(Mutation::StreamedResponse(chunk)) };
    let body_mutation = Some(change);
    BodyResponse { response: Some(CommonResponse { body_mutation, ..CommonResponse::default() }) }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    Server::builder()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(16 << 20)
        .max_concurrent_streams(100_000)
        .add_service(ExternalProcessorServer::new(options.clone()))
        .serve(options.listen)
        .await?;
    Ok(())
}
