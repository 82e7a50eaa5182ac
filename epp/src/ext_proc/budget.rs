//! The bound over all streams on what is held of request bodies.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stator_runtime::quota::{Hold, Quota, QuotaRefusal};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for room for a body, as in a proxy: bodies come and go within milliseconds.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// Bytes of request bodies that all streams together may hold until they are decided and sent on.
/// Clones are the same budget.
#[derive(Clone, Debug)]
pub struct BodyBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The bytes have no owners: a gateway brings the bodies of all clients.
    room: Quota<()>,
    held_bytes: Gauge,
    refused: Counter,
}

impl BodyBudget {
    /// A budget of which nothing is used.
    pub fn new(limit_bytes: usize) -> Self {
        let (held_bytes, refused) = Default::default();
        let room = Quota::new(limit_bytes, limit_bytes);
        Self(Arc::new(Inner { room, held_bytes, refused }))
    }

    /// Most bytes that may be held.
    pub fn limit_bytes(&self) -> usize {
        self.0.room.limit()
    }

    /// Makes known what is held, and how often there was no room.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("stator_epp");
        let Inner { held_bytes, refused, .. } = &*self.0;
        let help = "Bytes of request bodies that are held until they are sent on";
        registry.register("bodies_held_bytes", help, held_bytes.clone());
        let help = "Requests refused because of --max-bodies-bytes";
        registry.register("bodies_refused", help, refused.clone());
    }

    /// The share of one stream, nothing so far.
    pub(crate) fn share(&self) -> BodyShare {
        BodyShare { budget: self.clone(), hold: self.0.room.hold(None) }
    }
}

impl Default for BodyBudget {
    /// 1 GiB.
    fn default() -> Self {
        Self::new(1 << 30)
    }
}

impl PartialEq for BodyBudget {
    fn eq(&self, other: &Self) -> bool {
        self.limit_bytes() == other.limit_bytes()
    }
}

impl Eq for BodyBudget {}

/// Bytes that one stream holds. Dropping the value gives them back.
#[derive(Debug)]
pub(crate) struct BodyShare {
    budget: BodyBudget,
    hold: Hold<()>,
}

impl BodyShare {
    /// Holds `bytes` more at once; false, and nothing changes, where there is no room.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let grown = self.hold.grow(bytes).is_ok();
        if grown {
            self.budget.0.held_bytes.inc_by(bytes as i64);
        }
        grown
    }

    /// Holds `bytes` more, and waits a second at most until others give them back.
    ///
    /// # Errors
    ///
    /// [`QuotaRefusal`] where no room has come by then.
    pub(crate) async fn grow_within(&mut self, bytes: usize) -> Result<(), QuotaRefusal> {
        let grown = self.hold.grow_within(bytes, ROOM_WAIT).await;
        let Inner { held_bytes, refused, .. } = &*self.budget.0;
        if grown.is_ok() {
            held_bytes.inc_by(bytes as i64);
        } else {
            refused.inc();
        }
        grown
    }

    /// Holds nothing any more.
    pub(crate) fn release(&mut self) {
        self.budget.0.held_bytes.dec_by(self.hold.amount() as i64);
        self.hold.release();
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn streams_share_what_there_is_and_give_it_back() {
        let budget = BodyBudget::new(100);
        let (mut one, mut two) = (budget.share(), budget.clone().share());
        assert!(one.grow(60) && two.grow(40));
        assert!(!two.grow(1));
        assert!(two.grow_within(1).await.is_err());
        assert_eq!((budget.0.held_bytes.get(), budget.0.refused.get()), (100, 1));
        let waiting = tokio::spawn(async move { two.grow_within(60).await.map(|()| two) });
        tokio::task::yield_now().await;
        one.release();
        let two = waiting.await.expect("it ends").expect("there is room in time");
        assert!(!one.grow(1));
        drop(two);
        assert!(one.grow(100));
        drop(one);
        assert_eq!((budget.0.held_bytes.get(), budget.0.refused.get()), (0, 1));
    }
}
