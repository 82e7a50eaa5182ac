//! Places in requests where sessions are named.

use stator_epp_scheduler::HeaderView;

/// A place in a request's headers that can carry an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdSource {
    /// The value of a header, whose name is in lower case.
    Header(String),
    /// The value of a cookie.
    Cookie(String),
}

impl IdSource {
    /// The identity, `None` where it is absent or empty.
    pub fn read<'a>(&self, headers: HeaderView<'a>) -> Option<&'a str> {
        let value = match self {
            Self::Header(name) => headers.get(name),
            Self::Cookie(name) => headers.get("cookie").and_then(|cookies| {
                let pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
                pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
            }),
        };
        value.map(str::trim).filter(|value| !value.is_empty())
    }
}

/// The first identity that any of the sources has.
pub(super) fn first<'a>(sources: &[IdSource], headers: HeaderView<'a>) -> Option<&'a str> {
    sources.iter().find_map(|source| source.read(headers))
}
