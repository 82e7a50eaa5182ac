//! What is written by hand means the same as what the generated types read and write.

use super::decode::WireError;
use super::{Sink, decode, encode};
use crate::ext_proc::message::{
    BodyChange, Direction, HeadChange, HeadFields, Immediate, Incoming, MetaValue, Metadatum,
    Outgoing, Part, PartAnswer,
};
use crate::ext_proc::settings::{BodyMode, Modes};
use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::ext_proc::v3 as pb;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use pb::processing_request::Request;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use stator_epp_scheduler::{Subset, SubsetEntry};

#[derive(Default)]
struct Buffer {
    length: usize,
    bytes: Vec<u8>,
}

impl Sink for Buffer {
    fn message(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        self.length = self.bytes.len() - before;
    }

    fn begin(&mut self, length: usize) {
        self.length = length;
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn piece(&mut self, piece: Bytes) {
        self.bytes.extend_from_slice(&piece);
    }
}

fn read(message: &pb::ProcessingRequest) -> Incoming {
    decode(&message.encode_to_vec().into()).expect("generated types write what can be read")
}

fn written(message: Outgoing) -> pb::ProcessingResponse {
    let mut buffer = Buffer::default();
    encode(message, &mut buffer);
    assert_eq!(buffer.length, buffer.bytes.len(), "the length that was announced");
    pb::ProcessingResponse::decode(buffer.bytes.as_slice()).expect("it is a response")
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Request), Just(Direction::Response)]
}

fn header() -> impl Strategy<Value = core::HeaderValue> {
    let name = prop_oneof!["[a-zA-Z0-9-]{1,20}", ":[a-z]{1,8}", Just(":path".to_owned())];
    (name, "[ -~]{0,20}", vec(any::<u8>(), 0..20))
        .prop_map(|(key, value, raw_value)| core::HeaderValue { key, value, raw_value })
}

fn headers() -> impl Strategy<Value = pb::HttpHeaders> {
    (vec(header(), 0..20), any::<bool>()).prop_map(|(headers, end_of_stream)| pb::HttpHeaders {
        headers: Some(core::HeaderMap { headers }),
        end_of_stream,
        ..pb::HttpHeaders::default()
    })
}

fn body() -> impl Strategy<Value = pb::HttpBody> {
    let bytes = prop_oneof![vec(any::<u8>(), 0..300), (0..70_000_usize).prop_map(|n| vec![7; n])];
    (bytes, any::<bool>(), any::<bool>()).prop_map(|(body, end_of_stream, drain_complete)| {
        pb::HttpBody { body, end_of_stream, drain_complete, ..pb::HttpBody::default() }
    })
}

fn part() -> impl Strategy<Value = Request> {
    let trailers = || Just(pb::HttpTrailers::default());
    prop_oneof![
        headers().prop_map(Request::RequestHeaders),
        headers().prop_map(Request::ResponseHeaders),
        body().prop_map(Request::RequestBody),
        body().prop_map(Request::ResponseBody),
        trailers().prop_map(Request::RequestTrailers),
        trailers().prop_map(Request::ResponseTrailers),
    ]
}

prop_compose! {
    fn request()(
        request in proptest::option::of(part()),
        observability_mode in any::<bool>(),
        modes in proptest::option::of((0..6_i32, 0..6_i32, any::<bool>())),
        attributes in vec("[a-z]{0,9}", 0..3),
    ) -> pb::ProcessingRequest {
        pb::ProcessingRequest {
            request,
            observability_mode,
            protocol_config: modes.map(|(request, response, eager)| pb::ProtocolConfiguration {
                request_body_mode: request,
                response_body_mode: response,
                send_body_without_waiting_for_header_response: eager,
            }),
            attributes: attributes.into_iter().map(|key| (key, Struct::default())).collect(),
            ..pb::ProcessingRequest::default()
        }
    }
}

/// The obvious translation of a generated message.
fn model(message: &pb::ProcessingRequest) -> Incoming {
    let headers = |direction, head: &pb::HttpHeaders| Part::Headers {
        direction,
        fields: fields(head.headers.as_ref()),
        end: head.end_of_stream,
    };
    let body = |direction, body: &pb::HttpBody| Part::Body {
        direction,
        bytes: body.body.clone().into(),
        end: body.end_of_stream,
    };
    let part = message.request.as_ref().map(|request| match request {
        Request::RequestHeaders(head) => headers(Direction::Request, head),
        Request::ResponseHeaders(head) => headers(Direction::Response, head),
        Request::RequestBody(piece) => body(Direction::Request, piece),
        Request::ResponseBody(piece) => body(Direction::Response, piece),
        Request::RequestTrailers(_) => Part::Trailers { direction: Direction::Request },
        Request::ResponseTrailers(_) => Part::Trailers { direction: Direction::Response },
    });
    let mode = |mode| match mode {
        0 => BodyMode::None,
        1 => BodyMode::Streamed,
        2 => BodyMode::Buffered,
        3 => BodyMode::BufferedPartial,
        4 => BodyMode::FullDuplex,
        other => BodyMode::Unknown(other),
    };
    let modes = message.protocol_config.as_ref().map(|config| Modes {
        request: mode(config.request_body_mode),
        response: mode(config.response_body_mode),
        eager: config.send_body_without_waiting_for_header_response,
    });
    Incoming { part, modes, observing: message.observability_mode, ..Incoming::default() }
}

fn fields(map: Option<&core::HeaderMap>) -> HeadFields {
    let mut fields = HeadFields::default();
    for header in map.iter().flat_map(|map| &map.headers) {
        let text = header.value.clone().into_bytes();
        let value = if header.raw_value.is_empty() { text } else { header.raw_value.clone() };
        fields.size_bytes += header.key.len() + value.len();
        let shown = String::from_utf8_lossy(&value).into_owned();
        match header.key.as_str() {
            ":path" => fields.path = shown,
            ":method" => fields.method = shown,
            ":status" => fields.status = shown.parse().unwrap_or(0),
            key if key.starts_with(':') => {}
            key => fields.headers.push(key, &value),
        }
    }
    fields
}

fn change() -> impl Strategy<Value = HeadChange> {
    let set = vec((prop_oneof![Just("x-a"), Just("content-length")], "[ -~]{0,200}"), 0..4);
    let remove = vec("[a-z-]{1,40}".prop_map(Into::into), 0..50);
    (set, remove, any::<bool>()).prop_map(|(set, remove, clear_route_cache)| HeadChange {
        set,
        remove,
        clear_route_cache,
    })
}

fn pieces() -> impl Strategy<Value = Vec<Bytes>> {
    vec(prop_oneof![0..100_usize, 0..40_000_usize], 0..4)
        .prop_map(|sizes| sizes.into_iter().map(|size| vec![b'x'; size].into()).collect())
}

fn body_change() -> impl Strategy<Value = BodyChange> {
    prop_oneof![
        any::<bool>().prop_map(|keep| if keep { BodyChange::Keep } else { BodyChange::Clear }),
        pieces().prop_map(BodyChange::Replace),
        (pieces(), any::<bool>()).prop_map(|(pieces, end)| BodyChange::Streamed { pieces, end }),
    ]
}

fn answer() -> impl Strategy<Value = PartAnswer> {
    prop_oneof![
        (direction(), change())
            .prop_map(|(direction, change)| PartAnswer::Headers(direction, change)),
        (direction(), change(), body_change())
            .prop_map(|(d, change, b)| PartAnswer::Body(d, change, b)),
        direction().prop_map(PartAnswer::Trailers),
        (200..600_u16, change(), vec(any::<u8>(), 0..300)).prop_map(|(status, change, body)| {
            PartAnswer::Refuse(Immediate { status, set: change.set, body })
        }),
    ]
}

fn metadata() -> impl Strategy<Value = Vec<Metadatum>> {
    let address = || "10.0.0.1:8000".parse().expect("it is an address");
    let value = prop_oneof![
        "[ -~]{0,20}".prop_map(MetaValue::Text),
        (-1e9..1e9).prop_map(MetaValue::Number),
        (0.0..1.0).prop_map(move |score| MetaValue::Scores(vec![(address(), score)])),
    ];
    vec(("[ab]", "[xy]", value), 0..4).prop_map(|entries| {
        let entry = |(namespace, key, value): (String, String, MetaValue)| Metadatum {
            namespace: namespace.into(),
            key: key.into(),
            value,
        };
        entries.into_iter().map(entry).collect()
    })
}

/// The obvious translation into a generated message.
fn response(message: &Outgoing) -> pb::ProcessingResponse {
    use pb::processing_response::Response;
    let answer = match &message.answer {
        PartAnswer::Headers(direction, change) => {
            let answer = pb::HeadersResponse { response: Some(common(change, None)) };
            match direction {
                Direction::Request => Response::RequestHeaders(answer),
                Direction::Response => Response::ResponseHeaders(answer),
            }
        }
        PartAnswer::Body(direction, change, body) => {
            let answer = pb::BodyResponse { response: Some(common(change, mutation(body))) };
            match direction {
                Direction::Request => Response::RequestBody(answer),
                Direction::Response => Response::ResponseBody(answer),
            }
        }
        PartAnswer::Trailers(Direction::Request) => Response::RequestTrailers(Default::default()),
        PartAnswer::Trailers(Direction::Response) => Response::ResponseTrailers(Default::default()),
        PartAnswer::Refuse(refusal) => {
            let status =
                envoy_types::pb::envoy::r#type::v3::HttpStatus { code: refusal.status.into() };
            let change = HeadChange { set: refusal.set.clone(), ..HeadChange::default() };
            Response::ImmediateResponse(pb::ImmediateResponse {
                status: Some(status),
                headers: common(&change, None).header_mutation,
                body: refusal.body.clone(),
                ..pb::ImmediateResponse::default()
            })
        }
    };
    pb::ProcessingResponse {
        response: Some(answer),
        dynamic_metadata: dynamic_metadata(&message.metadata),
        ..pb::ProcessingResponse::default()
    }
}

fn common(
    change: &HeadChange,
    mutation: Option<pb::body_mutation::Mutation>,
) -> pb::CommonResponse {
    let set = change.set.iter().map(|(name, value)| core::HeaderValueOption {
        header: Some(core::HeaderValue {
            key: (*name).to_owned(),
            raw_value: value.clone().into_bytes(),
            ..core::HeaderValue::default()
        }),
        append_action: 2,
        ..core::HeaderValueOption::default()
    });
    let headers = pb::HeaderMutation {
        set_headers: set.collect(),
        remove_headers: change.remove.iter().map(ToString::to_string).collect(),
    };
    pb::CommonResponse {
        header_mutation: Some(headers).filter(|headers| *headers != Default::default()),
        body_mutation: mutation.map(|mutation| pb::BodyMutation { mutation: Some(mutation) }),
        clear_route_cache: change.clear_route_cache,
        ..pb::CommonResponse::default()
    }
}

fn mutation(body: &BodyChange) -> Option<pb::body_mutation::Mutation> {
    use pb::body_mutation::Mutation;
    match body {
        BodyChange::Keep => None,
        BodyChange::Clear => Some(Mutation::ClearBody(true)),
        BodyChange::Replace(pieces) => Some(Mutation::Body(pieces.concat())),
        BodyChange::Streamed { pieces, end } => {
            let (body, end_of_stream) = (pieces.concat(), *end);
            Some(Mutation::StreamedResponse(pb::StreamedBodyResponse {
                body,
                end_of_stream,
                ..pb::StreamedBodyResponse::default()
            }))
        }
    }
}

fn dynamic_metadata(entries: &[Metadatum]) -> Option<Struct> {
    let mut metadata = Struct::default();
    for entry in entries {
        let number = |number: f64| Value { kind: Some(Kind::NumberValue(number)) };
        let value = match &entry.value {
            MetaValue::Text(text) => Value { kind: Some(Kind::StringValue(text.clone())) },
            MetaValue::Number(value) => number(*value),
            MetaValue::Scores(scores) => {
                let fields = scores.iter().map(|(at, score)| (at.to_string(), number(*score)));
                Value { kind: Some(Kind::StructValue(Struct { fields: fields.collect() })) }
            }
        };
        let empty = Value { kind: Some(Kind::StructValue(Struct::default())) };
        let namespace = metadata.fields.entry(entry.namespace.to_string()).or_insert(empty);
        let Some(Kind::StructValue(fields)) = &mut namespace.kind else { continue };
        fields.fields.insert(entry.key.to_string(), value);
    }
    Some(metadata).filter(|_| !entries.is_empty())
}

proptest! {
    #[test]
    fn messages_read_as_the_generated_types_wrote_them(message in request()) {
        prop_assert_eq!(read(&message), model(&message));
    }

    #[test]
    fn generated_types_read_what_was_written(answer in answer(), metadata in metadata()) {
        let message = Outgoing { answer, metadata };
        let expected = response(&message);
        prop_assert_eq!(written(message), expected);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes.into());
    }

    #[test]
    fn a_message_cut_short_is_refused_or_has_less(message in request(), cut in any::<prop::sample::Index>()) {
        let bytes = message.encode_to_vec();
        let _ = decode(&Bytes::copy_from_slice(&bytes[..cut.index(bytes.len() + 1)]));
    }
}

#[test]
fn a_body_is_a_slice_of_its_frame() {
    let body = pb::HttpBody { body: vec![b'x'; 1000], ..pb::HttpBody::default() };
    let message =
        pb::ProcessingRequest { request: Some(Request::RequestBody(body)), ..Default::default() };
    let frame: Bytes = message.encode_to_vec().into();
    let Ok(Incoming { part: Some(Part::Body { bytes, .. }), .. }) = decode(&frame) else {
        panic!("it is a body");
    };
    assert!(frame.as_ptr_range().contains(&bytes.as_ptr()), "not a copy");
    assert_eq!(bytes, vec![b'x'; 1000]);
}

#[test]
fn metadata_names_the_subset_and_who_served() {
    let entry = |key: &str, text: &str| Struct {
        fields: [(key.to_owned(), Value { kind: Some(Kind::StringValue(text.to_owned())) })].into(),
    };
    let mut metadata = core::Metadata::default();
    let subset = entry("x-gateway-destination-endpoint-subset", "10.0.0.1:80");
    metadata.filter_metadata.insert("envoy.lb.subset_hint".to_owned(), subset);
    let served = entry("x-gateway-destination-endpoint-served", "10.0.0.2:80");
    metadata.filter_metadata.insert("envoy.lb".to_owned(), served);
    let message = pb::ProcessingRequest { metadata_context: Some(metadata), ..Default::default() };
    let found = read(&message);
    let ip = "10.0.0.1".parse().expect("it is an address");
    assert_eq!(found.subset, Some(Subset(vec![SubsetEntry { ip, port: Some(80) }])));
    assert_eq!(found.served.as_deref(), Some("10.0.0.2:80"));
}

#[test]
fn what_is_no_message_is_refused_with_its_reason() {
    let check = |bytes: &'static [u8], error| {
        assert_eq!(decode(&Bytes::from_static(bytes)), Err(error));
    };
    check(&[0x22, 5, 0], WireError::Truncated);
    check(&[0x80], WireError::Truncated);
    check(&[0xff; 11], WireError::Overlong);
    check(&[0x02, 0], WireError::NoField);
    check(&[0x0b], WireError::WireType(3));
    // Request headers, their map, a header, whose name is one byte.
    check(&[0x12, 7, 0x0a, 5, 0x0a, 3, 0x0a, 1, 0xff], WireError::HeaderName);
}
