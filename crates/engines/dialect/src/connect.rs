//! From options to a dialect.

use crate::http::Client;
use crate::{Dialect, Fault, openai, sglang, trtllm, vllm};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

/// Engine that a dialect speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
    /// Any server of the OpenAI API. The agent watches it and asks it for no tokens.
    Openai,
}

/// Address of an engine, and settings that it does not report itself.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `http://host:port` or `https://host:port`, perhaps with a path before the engine's own.
    pub url: String,
    /// Bearer token of every request.
    pub api_key: Option<ApiKey>,
    /// Key that signs the KV hand-overs sent to a [`Kind::Trtllm`]: its
    /// `internal_request_auth_key`.
    pub handover_key: Option<ApiKey>,
    /// Whether prefill and decode may be asked at the same time, on a [`Kind::Trtllm`] that
    /// supports it.
    pub together: bool,
    /// KV connector of an engine that does not report one. A reported connector wins.
    pub connector: Option<Connector>,
    /// Model to use, for a [`Kind::Openai`] that serves several.
    pub model: Option<String>,
}

/// A secret that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(pub String);

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// KV connector of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connector {
    /// The engine's name for the connector: `NixlConnector`, `MooncakeConnector`; for SGLang and
    /// TensorRT-LLM the transfer backend.
    pub name: String,
    /// Part of a request that the engine takes.
    pub role: Role,
    /// Address under which decoding engines find this one, as the connector wants it: a vLLM's
    /// Mooncake bootstrap server, `http://host:8998`. `None` is the engine's default address.
    pub bootstrap: Option<String>,
}

impl Connector {
    /// Checks that an engine with connector `own` can decode after a prefill through `theirs`, and
    /// returns `own`.
    ///
    /// # Errors
    ///
    /// [`Fault::Unsupported`] says why it cannot.
    pub(crate) fn decodes_after<'a>(
        own: Option<&'a Self>,
        theirs: &str,
    ) -> Result<&'a Self, Fault> {
        let why = match own {
            None => "this engine has no connector".into(),
            Some(own) if !own.role.decodes() => "this engine only computes prompts".into(),
            Some(own) if own.name != theirs => format!("{theirs} there, {} here", own.name),
            Some(own) => return Ok(own),
        };
        Err(Fault::Unsupported(why))
    }
}

/// Part of a request that an engine takes when two share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The engine computes prompts.
    Prefill,
    /// The engine produces tokens.
    Decode,
    /// The engine does either.
    Both,
}

impl Role {
    pub(crate) fn prefills(self) -> bool {
        self != Self::Decode
    }

    pub(crate) fn decodes(self) -> bool {
        self != Self::Prefill
    }
}

/// Names for requests that two engines share, unlike those of any other agent: a counter that
/// starts at a random number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names(u64);

impl Names {
    pub(crate) fn new() -> Self {
        // The hasher's keys are random.
        Self(std::hash::RandomState::new().hash_one(()))
    }

    pub(crate) fn of(self, request: u64) -> u64 {
        self.0.wrapping_add(request)
    }
}

/// Reason why [`connect`] made no dialect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The URL is malformed.
    #[error("url: {url:?} is not http://host:port or https://host:port")]
    Url {
        /// The URL as given.
        url: String,
    },
    /// The key cannot stand in a header.
    #[error("api_key: it contains characters that no header may contain")]
    ApiKey,
    /// There are no root certificates for `https`.
    #[error("url: https needs root certificates: {0}")]
    Roots(String),
}

/// Makes a dialect for the engine at `options.url`. Nothing is sent before the first call.
///
/// # Errors
///
/// [`OptionsError`] names the option that is at fault.
pub fn connect(kind: Kind, options: Options) -> Result<Arc<dyn Dialect>, OptionsError> {
    let client = Client::new(&options.url, options.api_key.as_ref())?;
    Ok(match kind {
        Kind::Vllm => Arc::new(vllm::Vllm::new(client, options.connector)),
        Kind::Sglang => Arc::new(sglang::Sglang::new(client, options.connector)),
        Kind::Trtllm => {
            let key = options.handover_key.as_ref();
            Arc::new(trtllm::Trtllm::new(client, options.connector, key, options.together))
        }
        Kind::Openai => Arc::new(openai::Openai::new(client, options.model)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, key: Option<&str>) -> Result<(), OptionsError> {
        let api_key = key.map(|key| ApiKey(key.into()));
        connect(Kind::Vllm, Options { url: url.into(), api_key, ..Options::default() }).map(drop)
    }

    #[test]
    fn urls_are_checked_before_anything_is_sent() {
        for url in ["http://h:1", "http://[::1]:8000", "http://h:8000/", "http://h/prefix"] {
            assert_eq!(check(url, Some("key")), Ok(()), "{url}");
        }
        for url in ["", "h:1", "/v1", "ftp://h:1", "http://", "http://h:1?a=b", "tcp://h:1"] {
            assert_eq!(check(url, None), Err(OptionsError::Url { url: url.into() }), "{url}");
        }
        assert_eq!(check("http://h:1", Some("a\nb")), Err(OptionsError::ApiKey));
    }

    #[test]
    fn who_decodes_has_the_connector_of_who_prefilled() {
        let own = |role| Connector { name: "one".into(), role, bootstrap: None };
        let check = |own: Option<&Connector>, theirs: &str| {
            Connector::decodes_after(own, theirs).map(drop).map_err(|fault| fault.to_string())
        };
        assert_eq!(check(Some(&own(Role::Decode)), "one"), Ok(()));
        assert_eq!(check(Some(&own(Role::Both)), "one"), Ok(()));
        assert_eq!(check(Some(&own(Role::Both)), "two"), Err("two there, one here".into()));
        let prefills = check(Some(&own(Role::Prefill)), "one");
        assert_eq!(prefills, Err("this engine only computes prompts".into()));
        assert_eq!(check(None, "one"), Err("this engine has no connector".into()));
    }

    #[test]
    fn agents_name_their_requests_differently() {
        let (one, other) = (Names::new(), Names::new());
        assert_ne!(one.of(1), other.of(1));
        assert_eq!(one.of(3).wrapping_sub(one.of(1)), 2);
    }

    #[test]
    fn keys_are_not_shown() {
        let (url, key) = ("http://h:1".to_owned(), Some(ApiKey("hush".into())));
        let options =
            Options { url, api_key: key.clone(), handover_key: key, ..Options::default() };
        assert!(!format!("{options:?}").contains("hush"));
        for kind in [Kind::Vllm, Kind::Trtllm] {
            let dialect = connect(kind, options.clone()).unwrap();
            assert!(!format!("{dialect:?}").contains("hush"));
        }
    }
}
