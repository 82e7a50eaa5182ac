//! Trace context that engines receive with a request.

use crate::http::Headers;
use crate::{Ask, Fault, Trace};
use ::http::{HeaderName, HeaderValue};

/// Trace headers of a request, with room for more headers.
///
/// # Errors
///
/// [`Fault::Invalid`] where a value cannot stand in a header.
pub(crate) fn headers(ask: &Ask) -> Result<Headers, Fault> {
    let mut headers = Vec::with_capacity(4);
    let Some(Trace { parent, state }) = &ask.trace else { return Ok(headers) };
    let said = [("traceparent", Some(parent)), ("tracestate", state.as_ref())];
    for (name, value) in said {
        let Some(value) = value else { continue };
        let value = HeaderValue::try_from(value)
            .map_err(|_| Fault::Invalid(format!("{name}: {value:?} cannot stand in a header")))?;
        headers.push((HeaderName::from_static(name), value));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::ask;

    fn check(parent: &str, state: Option<&str>) -> Result<Vec<(String, String)>, Fault> {
        let trace = Trace { parent: parent.into(), state: state.map(str::to_owned) };
        let headers = headers(&Ask { trace: Some(trace), ..ask(&[1]) })?;
        let text = |value: HeaderValue| value.to_str().unwrap().to_owned();
        Ok(headers.into_iter().map(|(name, value)| (name.to_string(), text(value))).collect())
    }

    #[test]
    fn a_trace_is_two_headers_or_one_or_none() {
        assert!(headers(&ask(&[1])).unwrap().is_empty());
        let parent = ("traceparent".to_owned(), "00-a-b-01".to_owned());
        assert_eq!(check("00-a-b-01", None).unwrap(), std::slice::from_ref(&parent));
        let state = ("tracestate".to_owned(), "x=1".to_owned());
        assert_eq!(check("00-a-b-01", Some("x=1")).unwrap(), [parent, state]);
        assert!(matches!(check("a\nb", None), Err(Fault::Invalid(_))));
    }
}
