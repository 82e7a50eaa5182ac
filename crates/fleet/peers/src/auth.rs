//! The secret that replicas share.

use std::hint::black_box;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

/// Header that carries it.
const HEADER: &str = "x-stator-peer-token";

/// Shows the secret, or asks for it.
#[derive(Clone)]
pub(crate) struct Token(Vec<u8>);

impl Token {
    pub(crate) fn new(secret: &str) -> Self {
        Self(secret.as_bytes().to_vec())
    }

    /// Adds the secret to a request. One that no header can carry is left out, and then refused.
    pub(crate) fn show(&self, metadata: &mut MetadataMap) {
        if let Ok(mut value) = MetadataValue::<Ascii>::try_from(self.0.as_slice()) {
            value.set_sensitive(true);
            metadata.insert(HEADER, value);
        }
    }

    fn is_shown(&self, metadata: &MetadataMap) -> bool {
        metadata.get(HEADER).is_some_and(|value| equal(value.as_bytes(), &self.0))
    }
}

/// Compares in a time that tells nothing but whether the lengths differ.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let differs = |sum: u8, (a, b): (&u8, &u8)| black_box(sum | (a ^ b));
    one.len() == other.len() && one.iter().zip(other).fold(0, differs) == 0
}

/// Refuses who does not know the secret, where there is one.
#[derive(Clone)]
pub(crate) struct TokenGate(pub(crate) Option<Token>);

impl Interceptor for TokenGate {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        match &self.0 {
            Some(token) if !token.is_shown(request.metadata()) => {
                Err(Status::unauthenticated(format!("{HEADER} is missing or wrong")))
            }
            _ => Ok(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(asked: Option<&str>, shown: Option<&str>, let_in: bool) {
        let mut request = Request::new(());
        if let Some(secret) = shown {
            Token::new(secret).show(request.metadata_mut());
        }
        assert_eq!(TokenGate(asked.map(Token::new)).call(request).is_ok(), let_in);
    }

    #[test]
    fn only_who_knows_the_secret_is_let_in() {
        check(None, None, true);
        check(None, Some("a"), true);
        check(Some("secret"), Some("secret"), true);
        check(Some("secret"), Some("secreT"), false);
        check(Some("secret"), Some("secret1"), false);
        check(Some("secret"), None, false);
        check(Some("line\nbreak"), Some("line\nbreak"), false);
    }
}
