//! Names of a request's fields that change nothing, as an answer's header tells them.

use http::HeaderValue;

/// The names told so far, and further ones behind them. A character that no header holds is a question
/// mark: the other names count.
pub(super) fn told(before: Option<&HeaderValue>, further: Option<&str>) -> Option<HeaderValue> {
    let before = before.and_then(|before| before.to_str().ok());
    let all = before.into_iter().chain(further).collect::<Vec<_>>().join(", ");
    let plain = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
    let all: String = all.chars().map(plain).collect();
    let value = HeaderValue::from_str(&all).expect("plain characters are a valid value");
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_whatever_their_characters() {
        let query = told(None, Some("beta, é\n"));
        assert_eq!(query, Some(HeaderValue::from_static("beta, ??")));
        let both = told(query.as_ref(), Some("user"));
        assert_eq!(both, Some(HeaderValue::from_static("beta, ??, user")));
        assert_eq!(told(query.as_ref(), None), query);
        assert_eq!((told(None, None), told(None, Some(""))), (None, None));
    }
}
