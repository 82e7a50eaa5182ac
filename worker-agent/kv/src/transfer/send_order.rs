//! Turns of readers at a holder: parts that a request waits for go before parts that are read ahead.

use crate::tier::Urgency;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Parts on demand that may pass a part that is read ahead.
const PASSED_MAX: u64 = 15;
/// Longest time without an end of a part on demand for which others wait: a reader that takes nothing
/// holds up nobody.
const STALLED_AFTER: Duration = Duration::from_millis(10);

/// Order in which the connections of a holder send.
#[derive(Debug, Default)]
pub(super) struct SendOrder(watch::Sender<SendState>);

#[derive(Debug, Default)]
struct SendState {
    /// Parts on demand that are being sent.
    under_way: usize,
    /// Parts on demand that were sent.
    ended: u64,
    /// None of those under way has ended for long.
    is_stalled: bool,
}

/// A part on demand that is being sent, until this is dropped.
pub(super) struct DemandTurn<'o>(&'o SendOrder);

impl SendOrder {
    /// Waits until a part of this urgency may be sent. A part on demand may be sent at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn turn(&self, urgency: Urgency) -> Option<DemandTurn<'_>> {
        if urgency == Urgency::Demand {
            self.0.send_modify(|state| state.under_way += 1);
            return Some(DemandTurn(self));
        }
        let mut state = self.0.subscribe();
        let last = state.borrow().ended + PASSED_MAX;
        loop {
            let ended = state.borrow_and_update().ended;
            let goes =
                state.wait_for(|now| now.under_way == 0 || now.is_stalled || now.ended >= last);
            if timeout(STALLED_AFTER, goes).await.is_ok() {
                return None;
            }
            self.0.send_if_modified(|now| {
                now.is_stalled |= now.ended == ended;
                now.is_stalled
            });
        }
    }
}

impl Drop for DemandTurn<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| {
            state.under_way -= 1;
            state.ended += 1;
            state.is_stalled = false;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use tokio::time::{Instant, advance};

    async fn demand(order: &SendOrder) -> DemandTurn<'_> {
        order.turn(Urgency::Demand).await.expect("demand has a turn")
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_read_ahead_waits_for_what_is_on_demand_and_never_the_other_way_round() {
        let order = SendOrder::default();
        assert!(order.turn(Urgency::Prefetch).now_or_never().is_some(), "nothing is on demand");
        let first = demand(&order).await;
        let second = demand(&order).await;
        let mut ahead = Box::pin(order.turn(Urgency::Prefetch));
        assert!((&mut ahead).now_or_never().is_none());
        drop(first);
        assert!((&mut ahead).now_or_never().is_none());
        drop(second);
        assert!((&mut ahead).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_is_passed_a_bounded_number_of_times() {
        let order = SendOrder::default();
        let mut under_way = demand(&order).await;
        let mut ahead = Box::pin(order.turn(Urgency::Prefetch));
        let mut passed = 0;
        while (&mut ahead).now_or_never().is_none() {
            // There is always another one, well within the time.
            under_way = {
                let next = demand(&order).await;
                drop(under_way);
                next
            };
            advance(STALLED_AFTER / 100).await;
            passed += 1;
        }
        drop(under_way);
        assert_eq!(passed, PASSED_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_holds_up_nobody_for_long() {
        let order = SendOrder::default();
        let stuck = demand(&order).await;
        let since = Instant::now();
        assert!(order.turn(Urgency::Prefetch).await.is_none());
        assert_eq!(since.elapsed(), STALLED_AFTER);
        assert!(order.turn(Urgency::Prefetch).now_or_never().is_some(), "that is known by now");
        // Until parts on demand end again.
        let other = demand(&order).await;
        drop(other);
        assert!(order.turn(Urgency::Prefetch).now_or_never().is_none());
        drop(stuck);
    }
}
