//! An ext-proc stream in memory: what a data plane sends, all at once, and what it gets.

use bytes::{Buf, Bytes};
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingResponse;
use futures::{FutureExt, stream};
use http::Request;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use prost::Message;
use stator_epp::exchange::{Director, Interest, Refusal, RequestHead, RoutedRequest, Watch};
use stator_epp::ext_proc::{ExtProc, ExtProcSettings, SERVICE};
use stator_epp::headers::Headers;
use std::sync::Arc;
use tonic::Status;
use tonic::body::Body;

/// Bytes before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Frames that an answer may have: far more than what comes gives reason for.
const FRAMES_MAX: usize = 100_000;

/// What a director does with every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// Answers with a refusal.
    pub(crate) refuses: bool,
    /// What of the answer is followed; what comes is passed on.
    pub(crate) interest: Interest,
}

/// What came of a stream.
pub(crate) struct Outcome {
    /// The gRPC status that ended it.
    pub(crate) status: i32,
    /// The messages before.
    pub(crate) answers: Vec<ProcessingResponse>,
}

/// Runs a stream on which all of `chunks` came before it was closed.
pub(crate) fn answered(script: Script, settings: ExtProcSettings, chunks: Vec<Bytes>) -> Outcome {
    let chunks = chunks.into_iter().map(|chunk| Ok::<_, Status>(Frame::data(chunk)));
    let body = Body::new(StreamBody::new(stream::iter(chunks)));
    let uri = format!("http://picker/{SERVICE}/Process");
    let request = Request::post(uri).body(body).expect("it is an address");
    let service = ExtProc::new(Arc::new(script), settings, None);
    let mut body = service.answer(request).into_body();
    let mut bytes = Vec::new();
    for _ in 0..FRAMES_MAX {
        let frame = body.frame().now_or_never().expect("all came: nothing is to be waited for");
        match frame.expect("trailers come first").expect("it cannot fail").into_data() {
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => {
                let trailers = frame.into_trailers().expect("there is no third kind");
                let status = trailers["grpc-status"].to_str().expect("it is a number");
                let status = status.parse().expect("it is a number");
                return Outcome { status, answers: messages(&bytes) };
            }
        }
    }
    panic!("the stream goes on for ever");
}

/// A message as it stands on a stream.
pub(crate) fn framed(message: &impl Message) -> Vec<u8> {
    let length = u32::try_from(message.encoded_len()).expect("inputs are small").to_be_bytes();
    [&[0][..], &length, &message.encode_to_vec()].concat()
}

fn messages(mut bytes: &[u8]) -> Vec<ProcessingResponse> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        assert!(bytes.len() >= PREFIX_BYTES && bytes.get_u8() == 0);
        let length = bytes.get_u32() as usize;
        let (message, rest) = bytes.split_at(length);
        messages.push(ProcessingResponse::decode(message).expect("what is sent can be read"));
        bytes = rest;
    }
    messages
}

impl Director for Script {
    type Watch = Pass;

    async fn route(
        &self,
        _: RequestHead,
        body: Option<Vec<Bytes>>,
    ) -> Result<RoutedRequest<Pass>, Refusal> {
        if self.refuses {
            let message = "no \"room\"\n".to_owned();
            let reason = Some("x");
            return Err(Refusal { status: 503, message, reason, retry_after: None, body: None });
        }
        Ok(RoutedRequest {
            endpoints: vec![([10, 0, 0, 1], 8000).into()],
            set_headers: vec![("x-a", "b".to_owned())],
            body: body.unwrap_or_default(),
            scores: Vec::new(),
            watch: Pass(self.interest),
        })
    }

    fn unasked(&self) -> Pass {
        Pass(self.interest)
    }
}

/// Lets an answer pass as it came.
pub(crate) struct Pass(Interest);

impl Watch for Pass {
    fn interest(&self) -> Interest {
        self.0
    }

    fn headers(&mut self, _: u16, _: &Headers, _: Option<&str>) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn body(&mut self, piece: Bytes, _: bool, out: &mut Vec<Bytes>) {
        out.push(piece);
    }

    fn end(&mut self) -> Vec<(String, String, f64)> {
        Vec::new()
    }
}
