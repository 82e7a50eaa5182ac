//! Streams end, whatever comes on them.

use super::*;
use crate::exchange::{Interest, RequestHead, Watch};
use crate::ext_proc::ExtProcSettings;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest, ProtocolConfiguration,
};
use futures::stream;
use http_body_util::StreamBody;
use hyper::body::Body as _;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use std::task::Waker;

/// Sends every request to one place and passes every answer on.
struct Anywhere;

impl Director for Anywhere {
    type Watch = Pass;

    async fn route(
        &self,
        _: RequestHead,
        body: Option<Vec<Bytes>>,
    ) -> Result<RoutedRequest<Pass>, Refusal> {
        let endpoints = vec!["10.0.0.1:8000".parse().expect("it is an address")];
        let body = body.unwrap_or_default();
        Ok(RoutedRequest {
            endpoints,
            set_headers: Vec::new(),
            body,
            scores: Vec::new(),
            watch: Pass,
        })
    }

    fn unasked(&self) -> Pass {
        Pass
    }
}

struct Pass;

impl Watch for Pass {
    fn interest(&self) -> Interest {
        Interest::Body
    }

    fn headers(
        &mut self,
        _: u16,
        _: &crate::headers::Headers,
        _: Option<&str>,
    ) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn body(&mut self, piece: Bytes, _: bool, out: &mut Vec<Bytes>) {
        out.push(piece);
    }

    fn end(&mut self) -> Vec<(String, String, f64)> {
        Vec::new()
    }
}

/// Runs a stream on which all of `chunks` came; hands back the status it ends with.
fn run(chunks: Vec<Bytes>) -> String {
    let chunks = chunks.into_iter().map(|chunk| Ok::<_, Status>(Frame::data(chunk)));
    let body = tonic::body::Body::new(StreamBody::new(stream::iter(chunks)));
    let settings = Arc::new(ExtProcSettings::default());
    let frames = Frames::new(body, settings.max_message_bytes);
    let machine = Machine::new(settings, Arc::default());
    let mut session = Session::new(Arc::new(Anywhere), machine, frames, None);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..100_000 {
        match Pin::new(&mut session).poll_frame(&mut cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Ok(trailers) = frame.into_trailers() {
                    let status = trailers["grpc-status"].to_str().expect("it is a number");
                    assert!(session.is_end_stream());
                    return status.to_owned();
                }
            }
            other => panic!("everything came, and the stream does not end: {other:?}"),
        }
    }
    panic!("the stream goes on for ever");
}

fn request() -> impl Strategy<Value = Request> {
    let end = || prop::bool::weighted(0.3);
    let body = move || {
        (prop_oneof![0..9_usize, 0..100_000_usize], end()).prop_map(|(size, end_of_stream)| {
            HttpBody { body: vec![7; size], end_of_stream, ..HttpBody::default() }
        })
    };
    let head =
        move || end().prop_map(|end_of_stream| HttpHeaders { end_of_stream, ..Default::default() });
    prop_oneof![
        head().prop_map(Request::RequestHeaders),
        body().prop_map(Request::RequestBody),
        Just(Request::RequestTrailers(HttpTrailers::default())),
        head().prop_map(Request::ResponseHeaders),
        body().prop_map(Request::ResponseBody),
        Just(Request::ResponseTrailers(HttpTrailers::default())),
    ]
}

fn framed(message: &ProcessingRequest) -> Bytes {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).expect("tests are small").to_be_bytes();
    [&[0][..], &length, &bytes].concat().into()
}

proptest! {
    #[test]
    fn any_messages_end_with_a_status(
        requests in vec(request(), 0..12),
        modes in proptest::option::of((0..6_i32, 0..6_i32, any::<bool>())),
    ) {
        let mut config = modes.map(|(request, response, eager)| ProtocolConfiguration {
            request_body_mode: request,
            response_body_mode: response,
            send_body_without_waiting_for_header_response: eager,
        });
        let messages = requests.into_iter().map(|request| ProcessingRequest {
            request: Some(request),
            protocol_config: config.take(),
            ..ProcessingRequest::default()
        });
        let status = run(messages.map(|message| framed(&message)).collect());
        // Done, an invalid argument, or not implemented.
        prop_assert!(["0", "3", "12"].contains(&status.as_str()), "status {status}");
    }

    #[test]
    fn any_bytes_end_with_a_status(chunks in vec(vec(any::<u8>(), 0..50), 0..9)) {
        let status = run(chunks.into_iter().map(Bytes::from).collect());
        // As above, or too large a message.
        prop_assert!(["0", "3", "8", "12"].contains(&status.as_str()), "status {status}");
    }
}
