//! An engine's answer before it goes to the client.

use super::cached::CachedTokens;
use super::engines::Leg;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

/// Work that goes on beside an answer.
pub(crate) type Beside<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Watches the parts of a body that the client gets.
pub(crate) type PartWatch = Box<dyn FnMut(&[u8]) + Send>;

/// The answer that the client gets.
pub(crate) struct Answer<'a> {
    pub leg: Leg,
    /// `engine`, `handed_over` or `fallback`.
    pub way: &'static str,
    /// Work of another engine on this request, to be dropped with the answer.
    pub beside: Option<Beside<'a>>,
    /// The count of cached prompt tokens, if the engine that answers does not know it.
    pub cached: Option<CachedTokens>,
    /// Watches the answer's body on its way.
    pub watch: Option<PartWatch>,
}

impl Answer<'_> {
    /// An answer that no other engine has a part in.
    pub(crate) fn plain(leg: Leg, way: &'static str) -> Self {
        Self { leg, way, beside: None, cached: None, watch: None }
    }
}

/// Lets work come to its end beside an answer. The answer shows whether the work was of use.
pub(crate) async fn run_out(beside: Option<Beside<'_>>) -> Infallible {
    if let Some(beside) = beside {
        beside.await;
    }
    std::future::pending().await
}
