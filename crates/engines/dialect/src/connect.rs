//! From options to a dialect.

use crate::http::Client;
use crate::options::{Kind, Options, OptionsError};
use crate::{Dialect, openai, sglang, trtllm, vllm};
use std::sync::Arc;

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
    use crate::options::ApiKey;

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
