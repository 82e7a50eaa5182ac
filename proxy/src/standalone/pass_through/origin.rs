//! Address of an engine's API, read from its agent's record.

use crate::upstream::target::Target;
use http::{HeaderValue, Uri};

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub target: Target,
    /// Whether it is `https`.
    pub tls: bool,
}

impl Origin {
    /// Reads `http://host:port` or `https://host:port`; a port that is not there is the scheme's.
    pub(crate) fn parse(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let tls = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let target = format!("{}:{port}", uri.host()?).parse().ok()?;
        matches!(uri.path(), "" | "/").then_some(Self { target, tls })
    }

    /// The engine's address as a `Host` header.
    pub(crate) fn host(&self) -> Option<HeaderValue> {
        HeaderValue::try_from(self.target.to_string()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expected: Option<(&str, bool)>) {
        let found = Origin::parse(url);
        let found = found.map(|origin| (origin.host().expect("it is text"), origin.tls));
        let found = found.as_ref().map(|(host, tls)| (host.to_str().expect("it is text"), *tls));
        assert_eq!(found, expected, "{url}");
    }

    #[test]
    fn urls_say_where_and_how() {
        check("http://127.0.0.1:8000", Some(("127.0.0.1:8000", false)));
        check("http://[::1]:8000/", Some(("[::1]:8000", false)));
        check("https://engine.pool.svc", Some(("engine.pool.svc:443", true)));
        check("http://engine", Some(("engine:80", false)));
        for url in ["", "engine:80", "/v1", "ftp://engine", "http://engine/v1", "http://"] {
            check(url, None);
        }
    }
}
