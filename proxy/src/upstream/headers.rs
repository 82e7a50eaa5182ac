//! Heads of requests on their way to engines, and of answers on their way to clients.

use super::passage::{Passage, steers};
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use stator_api::openai::ApiError;
use stator_protos::header::REQUEST_ID;

/// Tells an engine behind one port which of its ranks is meant.
const ENGINE_RANK: &str = "x-data-parallel-rank";
/// Headers of an engine's answer that tell of the engine or act on the client beyond the answer.
static ENGINES_OWN: [HeaderName; 5] = [
    header::SET_COOKIE,
    header::SERVER,
    header::VIA,
    header::ALT_SVC,
    HeaderName::from_static("x-powered-by"),
];

/// Headers that belong to one connection.
///
/// Source: RFC 9110, section 7.6.1, and what older software sends.
static HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Refuses a body that is compressed, because it cannot be screened.
///
/// # Errors
///
/// 415.
pub(crate) fn check_encoding(request: &RequestHeader) -> Result<(), ApiError> {
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    match request.headers.get_all(header::CONTENT_ENCODING).iter().all(plain) {
        true => Ok(()),
        false => Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "invalid_request_error",
            "the body must not be compressed",
        )
        .with_code("unsupported_content_encoding")),
    }
}

/// The head that goes on to an engine: the client's, as far as `passage` lets it and without what
/// belongs to its connection. With `body` it announces that body; without, one of unknown
/// length. The engine is asked not to compress, because its answer is cleaned.
pub(crate) fn onward(
    request: &RequestHeader,
    passage: &Passage,
    request_id: &HeaderValue,
    body: Option<&Bytes>,
) -> RequestHeader {
    let mut head = request.clone();
    let named: Vec<HeaderName> = named_by_connection(&request.headers).collect();
    let kept: Vec<HeaderName> =
        request.headers.keys().filter(|name| !passage.lets(name)).cloned().collect();
    let chunked = request.headers.contains_key(header::TRANSFER_ENCODING);
    // What the client says of its own connection is not true of the one to the engine.
    for name in HOP_BY_HOP.iter().chain(&named).chain(&kept).chain([&header::EXPECT]) {
        head.remove_header(name);
    }
    head.set_version(Version::HTTP_11);
    if !head.headers.contains_key(header::HOST) {
        insert(&mut head, header::HOST, HeaderValue::from_static("engine"));
    }
    match body {
        Some(body) => announce(&mut head, body, chunked),
        None => {
            head.remove_header(&header::CONTENT_LENGTH);
            insert(&mut head, header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
    insert(&mut head, HeaderName::from_static(REQUEST_ID), harmless(request_id));
    insert(&mut head, header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(key) = passage.key() {
        insert(&mut head, header::AUTHORIZATION, key.clone());
    }
    head
}

/// A request's name that no engine takes for addresses: connectors of vLLM read from it where their
/// peers are, before they look at what they are told.
///
/// Source: vLLM 0.32.0, `get_peer_zmq_from_request_id` of MoRI-IO and the P2P NCCL connector.
fn harmless(request_id: &HeaderValue) -> HeaderValue {
    let renamed = request_id.to_str().ok().filter(|id| id.contains("_addr_"));
    let renamed =
        renamed.and_then(|id| HeaderValue::from_str(&id.replace("_addr_", "-addr-")).ok());
    renamed.unwrap_or_else(|| request_id.clone())
}

/// The same head for another body.
pub(crate) fn for_body(onward: &RequestHeader, body: &Bytes) -> RequestHeader {
    let mut head = onward.clone();
    announce(&mut head, body, true);
    head
}

/// Says which of the ranks behind an engine's port is meant, if one is.
pub(crate) fn for_rank(head: &mut RequestHeader, rank: Option<u16>) {
    if let Some(rank) = rank {
        insert(head, HeaderName::from_static(ENGINE_RANK), HeaderValue::from(rank));
    }
}

/// Says how long the body is. A request without one needs not say so, unless it did.
fn announce(head: &mut RequestHeader, body: &Bytes, always: bool) {
    let says = head.headers.contains_key(header::CONTENT_LENGTH);
    if always || says || !body.is_empty() {
        insert(head, header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
}

/// Adds or replaces a header.
pub(crate) fn insert(head: &mut RequestHeader, name: HeaderName, value: HeaderValue) {
    head.insert_header(name, value).expect("names and values are valid by type");
}

/// Headers that a `connection` header names as its own. Those without which a message is another
/// one stay.
fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(header::CONNECTION).into_iter();
    let names = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let names = names.filter_map(|name| name.trim().parse::<HeaderName>().ok());
    names
        .filter(|name| ![header::HOST, header::CONTENT_LENGTH, header::CONTENT_TYPE].contains(name))
}

/// The head of an engine's answer as it goes to the client.
pub(crate) fn answer(engine: &ResponseHeader, method: &Method, client: Version) -> ResponseHeader {
    let mut head = engine.clone();
    let named: Vec<HeaderName> = named_by_connection(&engine.headers).collect();
    let steering: Vec<HeaderName> =
        engine.headers.keys().filter(|name| steers(name)).cloned().collect();
    for name in HOP_BY_HOP.iter().chain(&named).chain(&steering).chain(&ENGINES_OWN) {
        head.remove_header(name);
    }
    head.set_version(Version::HTTP_11);
    let has_body = method != Method::HEAD
        && ![StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&engine.status);
    if has_body && !head.headers.contains_key(header::CONTENT_LENGTH) {
        forget_length(&mut head, client);
    }
    head
}

/// Leaves the length of an answer's body open.
pub(crate) fn forget_length(head: &mut ResponseHeader, client: Version) {
    head.remove_header(&header::CONTENT_LENGTH);
    // Clients of HTTP/1.0 know the end of such a body by the connection's end.
    if client != Version::HTTP_10 {
        let chunked = HeaderValue::from_static("chunked");
        head.insert_header(header::TRANSFER_ENCODING, chunked).expect("valid by type");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::header::ROUTING;

    fn request(headers: &[(&str, &str)]) -> RequestHeader {
        let mut head = RequestHeader::build("POST", b"/v1/completions", None).expect("a head");
        for (name, value) in headers {
            head.append_header((*name).to_owned(), *value).expect("a header");
        }
        head
    }

    /// What goes on, by name and in order, but for the identity.
    fn check(headers: &[(&str, &str)], body: &'static str) -> Vec<(String, String)> {
        let id = HeaderValue::from_static("id-1");
        let passage = Passage::default();
        let head =
            onward(&request(headers), &passage, &id, Some(&Bytes::from_static(body.as_bytes())));
        assert_eq!(head.headers.get_all(REQUEST_ID).iter().collect::<Vec<_>>(), [&id]);
        assert_eq!(head.headers[header::ACCEPT_ENCODING], "identity");
        let own = [REQUEST_ID, "accept-encoding"];
        let all = head.headers.iter().filter(|(name, _)| !own.contains(&name.as_str()));
        let mut all: Vec<_> = all
            .map(|(name, value)| {
                (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
            })
            .collect();
        all.sort();
        all
    }

    fn pairs(headers: &[(&str, &str)]) -> Vec<(String, String)> {
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_what_is_on_the_list_goes_on() {
        let others = ["x-stator-any", "x-override-bootstrap-room", "cookie", "authorization"];
        for name in ROUTING.into_iter().chain(others).chain(["x-tenant", "accept-encoding"]) {
            let left = check(&[(name, "10.0.0.1:1"), ("host", "h"), ("user-agent", "a")], "");
            assert_eq!(left, pairs(&[("host", "h"), ("user-agent", "a")]), "{name}");
        }
    }

    #[test]
    fn no_name_of_a_request_is_taken_for_addresses() {
        let name = |id: &'static str| {
            let head =
                onward(&request(&[]), &Passage::default(), &HeaderValue::from_static(id), None);
            head.headers[REQUEST_ID].to_str().expect("text").to_owned()
        };
        let named = "___prefill_addr_host:h,handshake:1,notify:2___decode_addr_host:h_1";
        let expected = "___prefill-addr-host:h,handshake:1,notify:2___decode-addr-host:h_1";
        assert_eq!(name(named), expected);
        assert_eq!(name("my_addr-1"), "my_addr-1");
    }

    #[test]
    fn what_belongs_to_a_connection_stays_there() {
        let sent = [
            ("host", "h"),
            ("connection", "close, x-hop, content-type"),
            ("x-hop", "1"),
            ("content-type", "application/json"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("expect", "100-continue"),
            ("traceparent", "00-1"),
            ("x-request-id", "a"),
            ("x-request-id", "b"),
        ];
        let expected = [
            ("content-length", "2"),
            ("content-type", "application/json"),
            ("host", "h"),
            ("traceparent", "00-1"),
        ];
        assert_eq!(check(&sent, "{}"), pairs(&expected));
    }

    #[test]
    fn a_request_without_a_body_does_not_announce_one() {
        assert_eq!(check(&[("host", "h")], ""), pairs(&[("host", "h")]));
        let said = [("content-length", "0"), ("host", "h")];
        assert_eq!(check(&said, ""), pairs(&said));
    }

    #[test]
    fn answers_of_unknown_length_are_chunked_where_the_client_knows_chunks() {
        let mut head = ResponseHeader::build(200, None).expect("a head");
        head.insert_header("connection", "close").expect("a header");
        for name in ["set-cookie", "set-cookie", "server", "x-stator-any", "x-own"] {
            head.append_header(name, "a").expect("a header");
        }
        let check = |method: Method, version| {
            let head = answer(&head, &method, version);
            for name in ["set-cookie", "server", "x-stator-any", "connection"] {
                assert!(!head.headers.contains_key(name), "{name}");
            }
            assert!(head.headers.contains_key("x-own"));
            head.headers.contains_key("transfer-encoding")
        };
        assert!(check(Method::POST, Version::HTTP_11));
        assert!(!check(Method::POST, Version::HTTP_10));
        assert!(!check(Method::HEAD, Version::HTTP_11));
    }
}
