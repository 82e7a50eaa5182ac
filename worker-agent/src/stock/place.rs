//! Place of an engine. A restarted engine is somewhere else: its ports are chosen anew.

use parking_lot::RwLock;
use serde_json::value::RawValue;
use stator_dialect::{Answer, Ask, Description, Dialect, Fault, Manner, Operation, SharedRequest};
use std::sync::Arc;

/// The engine where it is now. Whoever speaks to it speaks to this, and is not told of its moves.
#[derive(Debug)]
pub(super) struct EnginePlace(RwLock<(Arc<str>, Arc<dyn Dialect>)>);

impl EnginePlace {
    /// An engine at `url`, spoken to in `dialect`.
    pub(super) fn new(url: &str, dialect: Arc<dyn Dialect>) -> Self {
        Self(RwLock::new((url.into(), dialect)))
    }

    /// Moves the engine to `url`. Requests under way stay at the old place.
    pub(super) fn moves(&self, url: &str, dialect: Arc<dyn Dialect>) {
        *self.0.write() = (url.into(), dialect);
    }

    /// `http://host:port`.
    pub(super) fn url(&self) -> Arc<str> {
        self.0.read().0.clone()
    }

    fn dialect(&self) -> Arc<dyn Dialect> {
        self.0.read().1.clone()
    }
}

#[tonic::async_trait]
impl Dialect for EnginePlace {
    async fn healthy(&self) -> Result<(), Fault> {
        self.dialect().healthy().await
    }

    async fn describe(&self) -> Result<Description, Fault> {
        self.dialect().describe().await
    }

    async fn generate(&self, ask: Ask) -> Result<Box<dyn Answer>, Fault> {
        self.dialect().generate(ask).await
    }

    async fn operate(&self, operation: &Operation) -> Result<(), Fault> {
        self.dialect().operate(operation).await
    }

    fn forgets(&self, operation: &Operation) -> bool {
        self.dialect().forgets(operation)
    }

    fn pair(&self, shared: &SharedRequest, prefill: &RawValue) -> Result<Manner, Fault> {
        self.dialect().pair(shared, prefill)
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe::canary;
    use super::super::testkit::*;
    use super::*;

    #[tokio::test]
    async fn an_engine_that_moved_is_asked_where_it_is_now() {
        let (first, second) = (Scripted::new([vec![Step::Never]]), Scripted::new([]));
        let place = EnginePlace::new("http://127.0.0.1:1", first.clone());
        let mut before = place.generate(canary(None)).await.unwrap();
        place.moves("http://127.0.0.1:2", second.clone());
        assert_eq!(&*place.url(), "http://127.0.0.1:2");
        *first.health.lock() = Checkup::Ill;
        assert_eq!(place.healthy().await, Ok(()));
        assert!(place.describe().await.is_ok());
        let mut now = place.generate(canary(None)).await.unwrap();
        assert_eq!(now.next().await.unwrap().unwrap().tokens, [1]);
        // What began before is not cut off.
        first.runs(1).await;
        assert!(futures::FutureExt::now_or_never(before.next()).is_none());
    }
}
