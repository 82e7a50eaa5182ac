//! Answers in one readable line each.

use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    CommonResponse, HeaderMutation, ProcessingResponse,
};
use envoy_types::pb::google::protobuf::Value;
use envoy_types::pb::google::protobuf::value::Kind;
use stator_protos::header::ROUTING;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// What the answer to a request's head shows when it goes to the usual endpoint and nothing is
/// changed.
pub(crate) const ROUTED: &str = "request_headers set(x-gateway-destination-endpoint=10.0.0.2:8000) strip \
                          clear_route_cache \
                          meta(envoy.lb x-gateway-destination-endpoint=10.0.0.2:8000)";

/// The same with a body of `length` bytes.
pub(crate) fn routed(length: usize) -> String {
    let length = format!("x-gateway-destination-endpoint=10.0.0.2:8000 content-length={length}");
    ROUTED.replacen("x-gateway-destination-endpoint=10.0.0.2:8000", &length, 1)
}

/// A request that goes to any endpoint with a body of `length` bytes, nothing else being set.
pub(crate) fn routed_to(endpoint: SocketAddr, length: usize) -> String {
    routed(length).replace("10.0.0.2:8000", &endpoint.to_string())
}

/// The value of a header that an answer to a head sets.
pub(crate) fn header_set(answer: &ProcessingResponse, name: &str) -> Option<String> {
    let (Some(Response::RequestHeaders(head)) | Some(Response::ResponseHeaders(head))) =
        &answer.response
    else {
        return None;
    };
    let set = &head.response.as_ref()?.header_mutation.as_ref()?.set_headers;
    let header = set.iter().filter_map(|option| option.header.as_ref());
    let found = header.filter(|header| header.key == name).map(|header| &header.raw_value);
    found.map(|value| String::from_utf8_lossy(value).into_owned()).next()
}

/// The piece of a body that an answer streams, and whether it is the last.
pub(crate) fn piece(answer: &ProcessingResponse) -> Option<(&[u8], bool)> {
    let (Some(Response::RequestBody(body)) | Some(Response::ResponseBody(body))) = &answer.response
    else {
        return None;
    };
    match body.response.as_ref()?.body_mutation.as_ref()?.mutation.as_ref()? {
        Mutation::StreamedResponse(chunk) => Some((&chunk.body, chunk.end_of_stream)),
        _ => None,
    }
}

/// `set(name=value …)`, `strip` for the removal of all routing headers that are not set, `+name`
/// for the removal of others; `"…"` is a streamed chunk, `"…".` the last one; `replace`, `clear`,
/// `meta`. A header without the action to overwrite shows a `?`.
pub(crate) fn show(answer: &ProcessingResponse) -> String {
    let mut line = match answer.response.as_ref().expect("it answers something") {
        Response::RequestHeaders(headers) => {
            format!("request_headers{}", common(&headers.response))
        }
        Response::ResponseHeaders(headers) => {
            format!("response_headers{}", common(&headers.response))
        }
        Response::RequestBody(body) => format!("request_body{}", common(&body.response)),
        Response::ResponseBody(body) => format!("response_body{}", common(&body.response)),
        Response::RequestTrailers(_) => "request_trailers".to_owned(),
        Response::ResponseTrailers(_) => "response_trailers".to_owned(),
        Response::ImmediateResponse(answer) => {
            let status = answer.status.as_ref().map_or(0, |status| status.code);
            let body = String::from_utf8_lossy(&answer.body);
            format!("immediate {status}{} {body:?}", mutation(&answer.headers))
        }
        other => format!("{other:?}"),
    };
    for (namespace, value) in answer.dynamic_metadata.iter().flat_map(|meta| sorted(&meta.fields)) {
        let Some(Kind::StructValue(entries)) = &value.kind else { continue };
        let entries: Vec<_> = sorted(&entries.fields)
            .into_iter()
            .map(|(key, value)| format!("{key}={}", plain(value)))
            .collect();
        line += &format!(" meta({namespace} {})", entries.join(" "));
    }
    line
}

fn common(response: &Option<CommonResponse>) -> String {
    let Some(response) = response else { return " without response".to_owned() };
    let mut line = mutation(&response.header_mutation);
    if response.clear_route_cache {
        line += " clear_route_cache";
    }
    let body = response.body_mutation.as_ref().and_then(|body| body.mutation.as_ref());
    match body {
        None => {}
        Some(Mutation::Body(bytes)) => line += &format!(" replace {}", quoted(bytes)),
        Some(Mutation::ClearBody(_)) => line += " clear",
        Some(Mutation::StreamedResponse(chunk)) => {
            line += &format!(" {}", quoted(&chunk.body));
            line += if chunk.end_of_stream { "." } else { "" };
        }
    }
    line
}

fn mutation(mutation: &Option<HeaderMutation>) -> String {
    let Some(mutation) = mutation else { return String::new() };
    let mut line = String::new();
    let mut names = Vec::new();
    if !mutation.set_headers.is_empty() {
        let set = mutation.set_headers.iter().map(|option| {
            let header = option.header.as_ref().expect("a header is set");
            names.push(header.key.as_str());
            let value = String::from_utf8_lossy(&header.raw_value);
            let action = if option.append_action == 2 { "" } else { "?" };
            format!("{}={value}{action}", header.key)
        });
        line += &format!(" set({})", set.collect::<Vec<_>>().join(" "));
    }
    let routing: Vec<_> = ROUTING.into_iter().filter(|name| !names.contains(name)).collect();
    let (strip, rest): (Vec<&str>, Vec<&str>) =
        mutation.remove_headers.iter().map(String::as_str).partition(|name| routing.contains(name));
    if strip.len() == routing.len() {
        line += " strip";
    } else if !strip.is_empty() {
        line += &format!(" only{strip:?}");
    }
    rest.iter().for_each(|name| line += &format!(" +{name}"));
    line
}

/// Long bodies as their length and first byte.
fn quoted(bytes: &[u8]) -> String {
    match bytes.len() {
        0..=200 => format!("{:?}", String::from_utf8_lossy(bytes)),
        long => format!("{long}x{:?}", char::from(bytes[0])),
    }
}

fn plain(value: &Value) -> String {
    match &value.kind {
        Some(Kind::StringValue(text)) => text.clone(),
        Some(Kind::NumberValue(number)) => number.to_string(),
        Some(Kind::StructValue(entries)) => {
            let entries = sorted(&entries.fields);
            let entries: Vec<_> =
                entries.iter().map(|(key, value)| format!("{key}:{}", plain(value))).collect();
            format!("{{{}}}", entries.join(" "))
        }
        other => format!("{other:?}"),
    }
}

fn sorted(fields: &std::collections::HashMap<String, Value>) -> BTreeMap<&String, &Value> {
    fields.iter().collect()
}
