//! Requests as they are sent.

use crate::Origin;

/// A bearer token that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer(String);

impl Bearer {
    /// Makes a token; `None` for a key with characters that no header may contain.
    pub fn new(key: &str) -> Option<Self> {
        key.bytes().all(|byte| matches!(byte, b' '..=b'~')).then(|| Self(key.to_owned()))
    }
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bearer(..)")
    }
}

/// The head of a request under way. Names and values are written as they are.
#[derive(Clone)]
pub struct RequestHead(Vec<u8>);

impl RequestHead {
    /// Begins a request for `target`, a path with its query, to the server that `host` names.
    pub fn new(method: &str, target: &str, host: &str) -> Self {
        Self(format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n").into_bytes())
    }

    /// Adds a header.
    pub fn header(&mut self, name: &str, value: &[u8]) -> &mut Self {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.0.extend_from_slice(part);
        }
        self
    }

    /// Adds a bearer token, if there is one.
    pub fn bearer(&mut self, bearer: Option<&Bearer>) -> &mut Self {
        if let Some(Bearer(key)) = bearer {
            self.header("authorization", format!("Bearer {key}").as_bytes());
        }
        self
    }

    /// The whole head, for a body of this length; `None` for a request without a body.
    pub fn finish(mut self, body_length: Option<usize>) -> Vec<u8> {
        if let Some(length) = body_length {
            self.header("content-length", length.to_string().as_bytes());
        }
        self.0.extend_from_slice(b"\r\n");
        self.0
    }
}

/// Writes a whole request; a body is sent as JSON. `target` is the path with its query.
pub fn request(
    method: &str,
    origin: &Origin,
    target: &str,
    bearer: Option<&Bearer>,
    body: Option<&[u8]>,
) -> Vec<u8> {
    let mut head = RequestHead::new(method, target, &origin.authority());
    head.header("accept", b"*/*").bearer(bearer);
    if body.is_some() {
        head.header("content-type", b"application/json");
    }
    let mut out = head.finish(body.map(<[u8]>::len));
    out.extend_from_slice(body.unwrap_or_default());
    out
}
