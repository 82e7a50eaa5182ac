//! Attributes of tags: `key="a" type="string"`.

use std::borrow::Cow;

/// Attributes that name a function or a parameter.
const NAMES: [&str; 3] = ["name", "tool", "key"];

/// The name in what stands between a tag's marker and its end: the attribute of a name, else what is
/// in quotes first, else all of it.
pub(crate) fn attribute(head: &str) -> Cow<'_, str> {
    let head = head.trim();
    if let Some(name) = NAMES.into_iter().find_map(|name| named(head, name)) {
        return name;
    }
    for quote in ['"', '\''] {
        let mut parts = head.splitn(3, quote);
        if let (Some(_), Some(inner), Some(_)) = (parts.next(), parts.next(), parts.next()) {
            return unescaped(inner.trim());
        }
    }
    Cow::Borrowed(head)
}

/// The value of an attribute in quotes.
pub(crate) fn named<'a>(head: &'a str, name: &str) -> Option<Cow<'a, str>> {
    head.match_indices(name).find_map(|(at, _)| {
        let begins = head[..at].chars().next_back().is_none_or(char::is_whitespace);
        let value = head[at + name.len()..].strip_prefix('=').filter(|_| begins)?;
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (inner, _) = value[1..].split_once(quote)?;
        Some(unescaped(inner))
    })
}

fn unescaped(text: &str) -> Cow<'_, str> {
    match text.contains('&') {
        true => Cow::Owned(text.replace("&quot;", "\"").replace("&amp;", "&")),
        false => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_an_attribute_or_in_quotes_or_bare() {
        let names = [
            ("\"f\"", "f"),
            (" 'f' ", "f"),
            ("f", "f"),
            ("\"a\" string=\"true\"", "a"),
            ("tool=\"f\" index=\"1\"", "f"),
            ("index=\"1\" tool=\"f\"", "f"),
            ("key=\"a &amp; &quot;b&quot;\" type=\"string\"", "a & \"b\""),
        ];
        for (head, name) in names {
            assert_eq!(attribute(head), name, "{head}");
        }
    }

    #[test]
    fn an_attribute_is_a_whole_word() {
        assert_eq!(named("\"a\" string=\"true\"", "string").as_deref(), Some("true"));
        assert_eq!(named("substring=\"true\"", "string"), None);
        assert_eq!(named("string", "string"), None);
    }
}
