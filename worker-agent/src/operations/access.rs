//! Permission to operate the engines.

use crate::config::{Operators, TokenSource};
use stator_runtime::secret::Secret;
use stator_runtime::tls::TlsPeer;
use std::sync::Arc;
use tonic::{Extensions, Status, metadata::MetadataMap};

/// Header that carries the secret, and the scheme before it.
pub(crate) const HEADER: &str = "authorization";
pub(crate) const SCHEME: &str = "Bearer ";

/// Check of callers who operate the engines.
#[derive(Clone, Debug)]
pub(crate) struct Access(Arc<Operators>);

/// Reason why a caller may not operate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Denied {
    #[error("{0}")]
    Off(String),
    #[error("operations need a token (operations-token or operations-token-file)")]
    NoToken,
    #[error("the operations token is not this agent's")]
    WrongToken,
    #[error("operations need a certificate for one of this agent's operations-clients")]
    NotNamed,
    #[error("the agent cannot read its operations token")]
    Unreadable,
}

impl Access {
    pub(crate) fn new(operators: Operators) -> Self {
        Self(Arc::new(operators))
    }

    /// Refuses callers without permission.
    ///
    /// # Errors
    ///
    /// `permission_denied` where nobody may or the client's certificate does not count,
    /// `unauthenticated` where its token is missing or wrong, `unavailable` where the agent's own
    /// cannot be read.
    pub(crate) async fn check(
        &self,
        metadata: &MetadataMap,
        extensions: &Extensions,
    ) -> Result<(), Status> {
        let peer = extensions.get::<TlsPeer>();
        let shown = metadata.get(HEADER).map(|value| value.as_bytes());
        self.allow(peer, shown).await.map_err(|denied| {
            tracing::warn!(%denied, client = ?peer.and_then(|peer| peer.address), "an operation is refused");
            let message = denied.to_string();
            match denied {
                Denied::Off(_) | Denied::NotNamed => Status::permission_denied(message),
                Denied::NoToken | Denied::WrongToken => Status::unauthenticated(message),
                Denied::Unreadable => Status::unavailable(message),
            }
        })
    }

    /// Refuses callers of the side server that do not show the secret, where there is one.
    ///
    /// # Errors
    ///
    /// Why.
    pub(crate) async fn check_token(&self, shown: Option<&[u8]>) -> Result<(), String> {
        if !matches!(&*self.0, Operators::Known { token: Some(_), .. }) {
            return Ok(());
        }
        self.allow(None, shown).await.map_err(|denied| {
            tracing::warn!(%denied, "an operation is refused");
            denied.to_string()
        })
    }

    async fn allow(&self, peer: Option<&TlsPeer>, shown: Option<&[u8]>) -> Result<(), Denied> {
        let (token, clients) = match &*self.0 {
            Operators::Everyone => return Ok(()),
            Operators::Nobody(why) => return Err(Denied::Off(why.clone())),
            Operators::Known { token, clients } => (token, clients),
        };
        if peer.is_some_and(|peer| clients.iter().any(|name| peer.is(name))) {
            return Ok(());
        }
        let Some(token) = token else { return Err(Denied::NotNamed) };
        let Some(shown) = shown.and_then(|shown| shown.strip_prefix(SCHEME.as_bytes())) else {
            return Err(Denied::NoToken);
        };
        match secret(token.clone()).await?.is(shown) {
            true => Ok(()),
            false => Err(Denied::WrongToken),
        }
    }
}

async fn secret(source: TokenSource) -> Result<Secret, Denied> {
    let read = tokio::task::spawn_blocking(move || source.secret());
    let read = read.await.map_err(|error| error.to_string()).and_then(|read| read);
    read.map_err(|fault| {
        tracing::error!(fault, "cannot read the operations token");
        Denied::Unreadable
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "correct-horse-battery";

    async fn check(operators: Operators, shown: Option<&str>) -> Result<(), Denied> {
        Access::new(operators).allow(None, shown.map(str::as_bytes)).await
    }

    fn known(token: Option<TokenSource>) -> Operators {
        Operators::Known { token, clients: vec!["ops".into()] }
    }

    #[tokio::test]
    async fn everyone_may_or_nobody_whatever_is_shown() {
        for shown in [None, Some("Bearer x")] {
            assert_eq!(check(Operators::Everyone, shown).await, Ok(()));
            let nobody = check(Operators::Nobody("off".into()), shown).await;
            assert_eq!(nobody, Err(Denied::Off("off".into())));
            // Without a certificate nobody has a name.
            assert_eq!(check(known(None), shown).await, Err(Denied::NotNamed));
        }
    }

    #[tokio::test]
    async fn the_secret_must_be_shown_and_is_the_one_that_is_there_now() {
        let given = || known(Some(TokenSource::Given(Secret::new(SECRET).unwrap())));
        assert_eq!(check(given(), Some(&format!("Bearer {SECRET}"))).await, Ok(()));
        for shown in [None, Some(SECRET), Some("Basic x")] {
            assert_eq!(check(given(), shown).await, Err(Denied::NoToken), "{shown:?}");
        }
        for shown in ["Bearer ", "Bearer correct-horse-batterY", "Bearer  correct-horse-battery"] {
            assert_eq!(check(given(), Some(shown)).await, Err(Denied::WrongToken), "{shown:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let file = || known(Some(TokenSource::File(path.clone())));
        let shown = format!("Bearer {SECRET}");
        assert_eq!(check(file(), Some(&shown)).await, Err(Denied::Unreadable));
        std::fs::write(&path, format!("{SECRET}\n")).unwrap();
        assert_eq!(check(file(), Some(&shown)).await, Ok(()));
        std::fs::write(&path, "another-secret-now").unwrap();
        assert_eq!(check(file(), Some(&shown)).await, Err(Denied::WrongToken));
    }
}
