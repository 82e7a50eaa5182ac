//! Messages of a data plane in any order, size and mode end with a status, and in full duplex
//! both bodies arrive as they were sent.
//!
//! An input is three bytes for the stream, then two for each message.

use crate::cut;
use crate::stream::{Script, answered, framed};
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyResponse, HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest, ProcessingResponse,
    ProtocolConfiguration,
};
use stator_epp::exchange::Interest;
use stator_epp::ext_proc::{ErrorFormat, ExtProcSettings};
use std::sync::LazyLock;

/// Done, an invalid argument, or not implemented.
const STATUSES: [i32; 3] = [0, 3, 12];
/// Sizes of bodies in units of a message's second byte: some pass a chunk, some the limits.
const UNITS: [usize; 4] = [1, 16, 64, 300];
/// Messages of a stream: more would only take longer.
const MESSAGES_MAX: usize = 32;
/// Bytes of bodies, as many as the longest has behind any beginning: each is the one before plus one.
static BYTES: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..256 + 255 * UNITS[3]).map(|at| at as u8).collect());

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Some(([modes, choices, size], steps)) = input.split_first_chunk() else { return };
    let mut plane = Plane::default();
    let steps = steps.chunks_exact(2).take(MESSAGES_MAX);
    let mut requests: Vec<_> = steps.map(|step| plane.message(step)).collect();
    let config = configuration(*modes);
    let full_duplex = config.is_none();
    if let Some(first) = requests.first_mut() {
        first.protocol_config = config;
    }
    let bytes: Vec<u8> = requests.iter().flat_map(framed).collect();
    let script = script(*choices);
    let outcome = answered(script, settings(*choices), cut(&bytes, &[*size, u8::MAX]));
    assert!(STATUSES.contains(&outcome.status), "status {}", outcome.status);
    if full_duplex {
        let bodies = Bodies::of(&outcome.answers);
        check(&plane.bodies[0], &bodies.0[0]);
        check(&plane.bodies[1], &bodies.0[1]);
    }
}

/// What of a body went: its bytes, and whether its end.
#[derive(Default)]
struct Sent {
    bytes: Vec<u8>,
    end: bool,
}

/// What arrives is what was sent, as far as it went.
fn check(sent: &Sent, arrived: &Sent) {
    assert!(sent.bytes.starts_with(&arrived.bytes));
    assert!(!arrived.end || sent.end && sent.bytes.len() == arrived.bytes.len());
}

/// `None` is full duplex by default; modes that nobody knows are among the others.
fn configuration(modes: u8) -> Option<ProtocolConfiguration> {
    (modes >= 64).then(|| ProtocolConfiguration {
        request_body_mode: i32::from(modes % 6),
        response_body_mode: i32::from(modes / 6 % 6),
        send_body_without_waiting_for_header_response: modes & 1 == 1,
    })
}

fn script(choices: u8) -> Script {
    let interest = match choices & 3 {
        0 => Interest::Nothing,
        1 => Interest::Headers,
        _ => Interest::Body,
    };
    Script { refuses: choices & 4 != 0, interest }
}

fn settings(choices: u8) -> ExtProcSettings {
    let small = choices & 8 != 0;
    ExtProcSettings {
        max_body_bytes: if small { 100_000 } else { 64 << 20 },
        max_streamed_bytes: if small { 500 } else { 1 << 20 },
        error_format: if choices & 32 != 0 { ErrorFormat::OpenAi } else { ErrorFormat::Plain },
        ..ExtProcSettings::default()
    }
}

/// A data plane, and what it has sent of the two bodies up to the end of each.
#[derive(Default)]
struct Plane {
    bodies: [Sent; 2],
    /// The first byte of the next body.
    next: u8,
}

impl Plane {
    fn message(&mut self, step: &[u8]) -> ProcessingRequest {
        let (kind, size) = (step[0], step[1]);
        let end = kind & 8 != 0;
        let unit = UNITS[usize::from(kind >> 4) % UNITS.len()];
        let request = match kind & 7 {
            0 => Request::RequestHeaders(head(":path", "/v1/completions", size, end)),
            1 | 6 => Request::RequestBody(self.body(0, usize::from(size) * unit, end)),
            2 => Request::RequestTrailers(HttpTrailers::default()),
            3 => Request::ResponseHeaders(head(":status", "200", size, end)),
            4 | 7 => Request::ResponseBody(self.body(1, usize::from(size) * unit, end)),
            _ => Request::ResponseTrailers(HttpTrailers::default()),
        };
        ProcessingRequest { request: Some(request), ..ProcessingRequest::default() }
    }

    fn body(&mut self, direction: usize, length: usize, end_of_stream: bool) -> HttpBody {
        let body = BYTES[usize::from(self.next)..][..length].to_vec();
        self.next = self.next.wrapping_add(length as u8);
        let sent = &mut self.bodies[direction];
        if !sent.end {
            sent.bytes.extend_from_slice(&body);
            sent.end = end_of_stream;
        }
        HttpBody { body, end_of_stream, ..HttpBody::default() }
    }
}

/// A head with `count` further headers.
fn head(key: &str, value: &str, count: u8, end_of_stream: bool) -> HttpHeaders {
    let header = |key: String, value: String| HeaderValue {
        key,
        raw_value: value.into_bytes(),
        ..HeaderValue::default()
    };
    let mut headers = vec![header(key.to_owned(), value.to_owned())];
    headers.push(header("content-length".to_owned(), count.to_string()));
    headers.extend((0..count).map(|at| header(format!("x-{at}"), "y".repeat(at.into()))));
    let headers = Some(HeaderMap { headers });
    HttpHeaders { headers, end_of_stream, ..HttpHeaders::default() }
}

/// The two bodies as answers send them on in full duplex.
#[derive(Default)]
struct Bodies([Sent; 2]);

impl Bodies {
    fn of(answers: &[ProcessingResponse]) -> Self {
        let mut bodies = Self::default();
        for answer in answers {
            match &answer.response {
                Some(Response::RequestBody(body)) => bodies.take(0, body),
                Some(Response::ResponseBody(body)) => bodies.take(1, body),
                _ => {}
            }
        }
        bodies
    }

    fn take(&mut self, direction: usize, body: &BodyResponse) {
        let change = body.response.as_ref().and_then(|common| common.body_mutation.as_ref());
        let Some(Mutation::StreamedResponse(piece)) =
            change.and_then(|change| change.mutation.as_ref())
        else {
            panic!("in full duplex bodies are sent on");
        };
        let sent = &mut self.0[direction];
        assert!(!sent.end, "nothing follows the end");
        sent.bytes.extend_from_slice(&piece.body);
        sent.end = piece.end_of_stream;
    }
}
