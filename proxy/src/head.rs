//! Checks that a request's head is HTTP/1.1, beyond those that Pingora makes by itself.

use http::{HeaderValue, StatusCode, Uri, Version, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use stator_api::openai::ApiError;

/// Checks a request's head.
///
/// # Errors
///
/// 400 for a head without the host that it is for, or of faulty framing; 501 for a body in a coding
/// other than chunks.
///
/// Source: RFC 9112, sections 3.2 and 6.1.
pub(crate) fn check(head: &RequestHeader) -> Result<(), ApiError> {
    if head.version == Version::HTTP_11 && !head.headers.contains_key(header::HOST) {
        let message = "a request of HTTP/1.1 needs a Host header, and this has none";
        return Err(ApiError::bad_request(message).with_code("missing_host"));
    }
    check_coding(head)
}

/// A body may be chunked, once, and in no other coding: whoever is behind this proxy would see
/// another body than this proxy does.
fn check_coding(head: &RequestHeader) -> Result<(), ApiError> {
    let values = head.headers.get_all(header::TRANSFER_ENCODING);
    let codings: Vec<&[u8]> = values
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    match codings.iter().find(|coding| !coding.eq_ignore_ascii_case(b"chunked")) {
        None if codings.len() <= 1 => Ok(()),
        None => {
            let message = "transfer-encoding has chunked more than once";
            Err(ApiError::bad_request(message).with_code("malformed_http"))
        }
        Some(other) => {
            let other: String = String::from_utf8_lossy(other).chars().take(100).collect();
            let message = format!("transfer-encoding {other:?} is not implemented, chunked is");
            let status = StatusCode::NOT_IMPLEMENTED;
            Err(ApiError::new(status, "invalid_request_error", message)
                .with_code("unsupported_transfer_encoding"))
        }
    }
}

/// Takes a request target in absolute form as what it says: its host is the request's, whatever the
/// Host header says, and its path is the target from here on. Returns false where the request is
/// malformed all the same.
///
/// Pingora refuses a Host header that is another, with a head that is otherwise complete.
///
/// Source: RFC 9112, section 3.2.2.
pub(crate) fn settle_target(session: &mut ServerSession) -> bool {
    let Some(http1) = session.as_http1() else { return true };
    // A head that could not be read has no headers to look at.
    if http1.get_header(header::HOST).is_none() {
        return false;
    }
    let head = session.req_header_mut();
    if head.headers.get_all(header::HOST).iter().count() != 1 {
        return false;
    }
    let Ok(target) = Uri::try_from(head.raw_path()) else { return false };
    let host = target.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    let (Some(_), Some(host)) = (target.scheme(), host) else { return false };
    let path = target.path_and_query().map_or("/", |path| path.as_str());
    let root = if path.starts_with('/') { "" } else { "/" };
    let settled = head.insert_header(header::HOST, host).is_ok()
        && head.set_raw_path(format!("{root}{path}").as_bytes()).is_ok();
    settled && session.as_http1().is_some_and(|http1| http1.validate_request().is_ok())
}

/// Whether a request's target is in absolute form.
pub(crate) fn is_absolute(head: &RequestHeader) -> bool {
    let target = head.raw_path();
    !target.starts_with(b"/") && target.windows(3).any(|part| part == b"://")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, duplex};

    /// The outcome for a head: the path and the host, or the status of its refusal.
    async fn read(head: &str) -> Result<(String, String), u16> {
        let (near, mut far) = duplex(4096);
        far.write_all(head.as_bytes()).await.unwrap();
        let mut session = ServerSession::new_http1(Box::new(near));
        let read = session.read_request().await;
        if (read.is_err() || is_absolute(session.req_header())) && !settle_target(&mut session) {
            return Err(400);
        }
        check(session.req_header()).map_err(|error| error.status.as_u16())?;
        let host = session.get_header(header::HOST).map_or("", |host| host.to_str().unwrap());
        let path = String::from_utf8_lossy(session.req_header().raw_path()).into_owned();
        Ok((path, host.to_owned()))
    }

    #[tokio::test]
    async fn a_request_says_which_host_it_is_for() {
        assert_eq!(read("GET /live HTTP/1.1\r\n\r\n").await, Err(400));
        assert_eq!(read("GET /live HTTP/1.1\r\nhost: \r\n\r\n").await.unwrap().1, "");
        assert_eq!(read("GET /live HTTP/1.0\r\n\r\n").await.unwrap().0, "/live");
        assert_eq!(read("GET /live HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n").await, Err(400));
    }

    #[tokio::test]
    async fn an_absolute_target_says_more_than_the_host_header() {
        for (target, host, path) in [
            ("http://a/live?x=1", "a", "/live?x=1"),
            ("http://a:80/live", "b", "/live"),
            ("https://a", "a", "/"),
            ("http://a?x", "b", "/?x"),
        ] {
            let head = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n");
            let (read, named) = read(&head).await.unwrap();
            assert_eq!(read, path, "{target}");
            assert!(named.starts_with('a'), "{named}");
        }
        for wrong in ["http://u@a/live", "http:///live", "http:/\\a/live"] {
            let head = format!("GET {wrong} HTTP/1.1\r\nhost: a\r\n\r\n");
            assert_eq!(read(&head).await, Err(400), "{wrong}");
        }
        assert_eq!(read("GET http://a/live HTTP/1.1\r\n\r\n").await, Err(400), "no Host header");
    }

    #[tokio::test]
    async fn a_body_comes_in_chunks_or_whole() {
        let read = async |codings: &str| {
            read(&format!("POST /v1 HTTP/1.1\r\nhost: a\r\n{codings}\r\n")).await.map(|_| ())
        };
        assert_eq!(read("content-length: 3\r\n").await, Ok(()));
        assert_eq!(read("transfer-encoding: Chunked \r\n").await, Ok(()));
        for (codings, status) in [
            ("transfer-encoding: gzip, chunked\r\n", 501),
            ("transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", 501),
            ("transfer-encoding: identity, chunked\r\n", 501),
            ("transfer-encoding: chunked;a=b, chunked\r\n", 501),
            ("transfer-encoding: , chunked\r\n", 501),
            ("transfer-encoding: chunked, chunked\r\n", 400),
            ("transfer-encoding: chunked, gzip\r\n", 400),
            ("transfer-encoding: xchunked\r\n", 400),
        ] {
            assert_eq!(read(codings).await, Err(status), "{codings}");
        }
    }
}
