//! Requests of web pages from other origins.

use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};

/// Methods that the API takes.
const METHODS: &str = "GET, POST, DELETE, OPTIONS";
/// Time for which a browser may keep the answer to its question, in seconds.
const MAX_AGE_S: u32 = 600;
/// Headers of answers that pages may read beside the plain ones.
const EXPOSED: &str = "x-request-id, request-id, openai-processing-ms, retry-after, x-should-retry, \
                       x-stator-ignored, x-stator-worker-id, x-ratelimit-limit-requests, \
                       x-ratelimit-remaining-requests, x-ratelimit-reset-requests, \
                       x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, \
                       x-ratelimit-reset-tokens, anthropic-ratelimit-requests-limit, \
                       anthropic-ratelimit-requests-remaining, anthropic-ratelimit-requests-reset, \
                       anthropic-ratelimit-tokens-limit, anthropic-ratelimit-tokens-remaining, \
                       anthropic-ratelimit-tokens-reset";

/// Origins whose pages may use the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllowedOrigins {
    any: bool,
    origins: Vec<String>,
}

impl AllowedOrigins {
    /// Checks the values of `--cors-origins`; adds to `faults` those that are no origins.
    pub(crate) fn new(values: &[String], faults: &mut Vec<String>) -> Self {
        let mut allowed = Self::default();
        for value in values.iter().map(|value| value.trim()) {
            if value == "*" {
                allowed.any = true;
                continue;
            }
            let is_origin = value.parse::<Uri>().is_ok_and(|uri| {
                uri.scheme().is_some() && uri.authority().is_some() && uri.path() == "/"
            });
            match is_origin && !value.ends_with('/') {
                true => allowed.origins.push(value.to_ascii_lowercase()),
                false => faults.push(format!(
                    "cors-origins: {value:?} is no origin such as https://example.org, and not *"
                )),
            }
        }
        allowed
    }

    /// The origin that an answer to a request with these headers allows, if any.
    pub(crate) fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        if self.any {
            return Some(HeaderValue::from_static("*"));
        }
        let text = origin.to_str().ok()?;
        let is_allowed = self.origins.iter().any(|known| known.eq_ignore_ascii_case(text));
        is_allowed.then(|| origin.clone())
    }
}

/// Headers of an answer that this origin may read.
pub(crate) fn headers(origin: HeaderValue) -> [(HeaderName, HeaderValue); 3] {
    [
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, origin),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED)),
        (header::VARY, HeaderValue::from_static("Origin")),
    ]
}

/// Headers of the answer to a browser that asks beforehand: it may send the headers that it names.
pub(crate) fn preflight(request: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = vec![
        (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS)),
        (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(MAX_AGE_S)),
    ];
    if let Some(wanted) = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.push((header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone()));
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(values: &[&str], origin: &'static str) -> Option<HeaderValue> {
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        let mut faults = Vec::new();
        let origins = AllowedOrigins::new(&values, &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
        origins.allowed(&headers)
    }

    #[test]
    fn pages_of_named_origins_may_read_answers() {
        let page = "https://a.example";
        assert_eq!(allowed(&[page], page), Some(HeaderValue::from_static(page)));
        assert_eq!(allowed(&["*"], page), Some(HeaderValue::from_static("*")));
        assert_eq!(allowed(&["https://b.example", "http://a.example:80"], page), None);
        assert_eq!(allowed(&[], page), None);
        assert_eq!(
            AllowedOrigins::new(&["*".into()], &mut Vec::new()).allowed(&HeaderMap::new()),
            None
        );
    }

    #[test]
    fn only_origins_are_origins() {
        for value in ["a.example", "https://a.example/", "https://a.example/x", ""] {
            let mut faults = Vec::new();
            AllowedOrigins::new(&[value.to_owned()], &mut faults);
            assert_eq!(faults.len(), 1, "{value}");
        }
    }
}
