//! An address of the form `http://host:port/path`.

use crate::{Origin, TlsError, TlsOptions};

/// Reason why a text is no usable address.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// The scheme is neither http nor https.
    #[error("{url:?} does not start with http:// or https://")]
    Scheme {
        /// The text.
        url: String,
    },
    /// The host is missing, or the port is invalid.
    #[error("{url:?} names no host and port")]
    Host {
        /// The text.
        url: String,
    },
}

/// A parsed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether the scheme is https.
    pub https: bool,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port, the scheme's own if none is given.
    pub port: u16,
    /// Path and query; `/` if there is none.
    pub target: String,
}

impl Url {
    /// Reads an address.
    ///
    /// # Errors
    ///
    /// [`UrlError`] quotes the text.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let (https, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(UrlError::Scheme { url: url.into() }),
        };
        let bad_host = || UrlError::Host { url: url.into() };
        let slash = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(slash);
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, after) = v6.split_once(']').ok_or_else(bad_host)?;
                (
                    host,
                    if after.is_empty() {
                        None
                    } else {
                        Some(after.strip_prefix(':').ok_or_else(bad_host)?)
                    },
                )
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().map_err(|_| bad_host())?,
            None => {
                if https {
                    443
                } else {
                    80
                }
            }
        };
        // What would end a request's line or a header is in no host or path.
        let clean = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
        if host.is_empty() || host.contains('@') || !clean(rest) {
            return Err(bad_host());
        }
        let target = target.split('#').next().unwrap_or_default();
        let target = if target.starts_with('/') { target.into() } else { format!("/{target}") };
        Ok(Self { https, host: host.into(), port, target })
    }

    /// The server of this address, with `tls` for https.
    ///
    /// # Errors
    ///
    /// The errors of [`TlsOptions::config`].
    pub fn origin(&self, tls: &TlsOptions) -> Result<Origin, TlsError> {
        let tls = if self.https { Some(tls.config()?) } else { None };
        Ok(Origin { host: self.host.clone(), port: self.port, tls })
    }

    /// The target of a redirection to `location`.
    ///
    /// # Errors
    ///
    /// [`UrlError`] where `location` is no address.
    pub fn join(&self, location: &str) -> Result<Self, UrlError> {
        if !location.starts_with('/') || location.starts_with("//") {
            return Self::parse(location);
        }
        let Self { https, host, port, .. } = self;
        let (scheme, host) = (
            if *https { "https" } else { "http" },
            if host.contains(':') { format!("[{host}]") } else { host.clone() },
        );
        Self::parse(&format!("{scheme}://{host}:{port}{location}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, https: bool, host: &str, port: u16, target: &str) {
        let expected = Url { https, host: host.into(), port, target: target.into() };
        assert_eq!(Url::parse(url).expect("an address"), expected);
    }

    #[test]
    fn addresses_are_read() {
        check("http://localhost:8000", false, "localhost", 8000, "/");
        check("https://hub.example/a/b?c=d#e", true, "hub.example", 443, "/a/b?c=d");
        check("http://[::1]:81/x", false, "::1", 81, "/x");
        check("http://[::1]?q", false, "::1", 80, "/?q");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for url in ["", "localhost:80", "http://", "http://a:b", "http://u@h", "http://a/\r\nx"] {
            assert!(Url::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn redirections_are_followed_from_where_they_stand() {
        let from = Url::parse("https://hub.example/a/b").expect("an address");
        let to = |location: &str| from.join(location).expect("an address");
        assert_eq!(to("/c").target, "/c");
        assert_eq!((to("/c").host.as_str(), to("/c").port), ("hub.example", 443));
        assert_eq!(to("http://other/d").host, "other");
        assert!(from.join("c").is_err());
    }
}
