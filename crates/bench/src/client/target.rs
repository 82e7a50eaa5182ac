//! The address under test.

use anyhow::{Context, Result, bail, ensure};
use http::Uri;
use stator_http::Origin;

/// Destination of requests, taken from a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BenchTarget {
    /// Host name or address to connect to; IPv6 without brackets.
    pub(crate) host: String,
    /// Port to connect to.
    pub(crate) port: u16,
    /// Value of the `host` header.
    pub(crate) authority: String,
    /// Path before `/v1`, empty or beginning with a slash.
    prefix: String,
}

impl BenchTarget {
    /// Reads a URL such as `http://127.0.0.1:8000`.
    ///
    /// # Errors
    ///
    /// When it is none, or not plain http.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("url: {url:?} is not a URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                bail!("url: {url:?} needs TLS, which stator bench does not speak yet; use http")
            }
            _ => bail!("url: {url:?} does not begin with http://"),
        }
        let authority = uri.authority().with_context(|| format!("url: {url:?} has no host"))?;
        ensure!(!authority.as_str().contains('@'), "url: {url:?} has a user name; use api-key");
        let path = uri.path().trim_end_matches('/');
        Ok(Self {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: authority.to_string(),
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
        })
    }

    /// The server.
    pub(crate) fn origin(&self) -> Origin {
        Origin { host: self.host.clone(), port: self.port, tls: None }
    }

    /// The path of an API, such as `/v1/models`.
    pub(crate) fn path(&self, api: &str) -> Result<Uri> {
        let path = format!("{}{api}", self.prefix);
        path.parse().with_context(|| format!("path {path:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_kept_and_the_version_is_optional() {
        let check = |url: &str, host: &str, port, path: &str| {
            let target = BenchTarget::parse(url).unwrap();
            assert_eq!((target.host.as_str(), target.port), (host, port));
            assert_eq!(target.path("/v1/models").unwrap().to_string(), path);
        };
        check("http://127.0.0.1:8000", "127.0.0.1", 8000, "/v1/models");
        check("http://localhost/v1/", "localhost", 80, "/v1/models");
        check("http://[::1]:9/llm/v1", "::1", 9, "/llm/v1/models");
    }

    #[test]
    fn what_cannot_be_reached_is_refused() {
        let check = |url: &str, expected: &str| {
            let error = format!("{:#}", BenchTarget::parse(url).unwrap_err());
            assert!(error.contains(expected), "{error}");
        };
        check("https://example.org", "needs TLS");
        check("127.0.0.1:8000", "does not begin with http://");
        check("http://user@host", "user name");
        check("http://a b", "not a URL");
    }
}
