//! Bounded resources that many hold, and of which no single owner may hold more than its share.
//!
//! Connections, requests and bytes of bodies are all counted like this: an amount is taken, and
//! given back when its [`Hold`] is dropped.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// A resource of a fixed size. Clones are the same resource.
#[derive(Debug)]
pub struct Quota<K>(Arc<Inner<K>>);

#[derive(Debug)]
struct Inner<K> {
    limit: usize,
    share: usize,
    /// One permit for each unit that nobody holds.
    room: Semaphore,
    /// Units that each owner holds; owners of nothing are absent, and so the map is bounded too.
    owners: Mutex<HashMap<K, usize>>,
}

/// Reason why an amount was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaRefusal {
    /// The owner holds its share already.
    #[error("the owner's share of {share} is taken")]
    Share {
        /// Most units of one owner.
        share: usize,
    },
    /// All owners together hold what there is.
    #[error("all {limit} are taken")]
    Limit {
        /// Units of the resource.
        limit: usize,
    },
}

impl<K: Clone + Debug + Eq + Hash> Quota<K> {
    /// A resource of `limit` units, `share` of which one owner may hold.
    pub fn new(limit: usize, share: usize) -> Self {
        let room = Semaphore::new(limit.min(Semaphore::MAX_PERMITS));
        Self(Arc::new(Inner { limit, share, room, owners: Mutex::default() }))
    }

    /// Units of the resource.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Units that nobody holds.
    pub fn available(&self) -> usize {
        self.0.room.available_permits()
    }

    /// Units that are held.
    pub fn held(&self) -> usize {
        self.0.limit.saturating_sub(self.available())
    }

    /// A hold on nothing yet, for `owner`; an owner that is `None` has no share to observe.
    pub fn hold(&self, owner: Option<K>) -> Hold<K> {
        Hold { quota: self.clone(), owner, amount: 0 }
    }

    /// Takes an amount at once.
    ///
    /// # Errors
    ///
    /// [`QuotaRefusal`] where there is not enough.
    pub fn take(&self, owner: Option<K>, amount: usize) -> Result<Hold<K>, QuotaRefusal> {
        let mut hold = self.hold(owner);
        hold.grow(amount)?;
        Ok(hold)
    }

    fn book<'a>(
        &'a self,
        owner: Option<&'a K>,
        amount: usize,
    ) -> Result<Booking<'a, K>, QuotaRefusal> {
        let amount = permits(amount) as usize;
        let (limit, share) = (self.0.limit, self.0.share);
        // Whoever may hold everything meets the limit alone.
        if let Some(owner) = owner.filter(|_| amount > 0 && share < limit) {
            let mut owners = self.0.owners.lock();
            let held = owners.get(owner).copied().unwrap_or(0) + amount;
            if held > share {
                return Err(QuotaRefusal::Share { share });
            }
            owners.insert(owner.clone(), held);
        }
        Ok(Booking { quota: self, owner, amount })
    }

    fn unbook(&self, owner: Option<&K>, amount: usize) {
        let Some(owner) = owner else { return };
        let mut owners = self.0.owners.lock();
        if let Some(held) = owners.get_mut(owner) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                owners.remove(owner);
            }
        }
    }
}

impl<K> Clone for Quota<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// An amount that one owner holds. Given back when dropped.
#[derive(Debug)]
pub struct Hold<K: Clone + Debug + Eq + Hash> {
    quota: Quota<K>,
    owner: Option<K>,
    amount: usize,
}

impl<K: Clone + Debug + Eq + Hash> Hold<K> {
    /// Units held.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Takes so much more at once.
    ///
    /// # Errors
    ///
    /// [`QuotaRefusal`] where there is not enough; nothing has changed then.
    pub fn grow(&mut self, more: usize) -> Result<(), QuotaRefusal> {
        let (booking, permits) = (self.quota.book(self.owner.as_ref(), more)?, permits(more));
        let Quota(inner) = &self.quota;
        match inner.room.try_acquire_many(permits) {
            Ok(permit) => permit.forget(),
            Err(_) => return Err(QuotaRefusal::Limit { limit: inner.limit }),
        }
        booking.keep();
        self.amount += permits as usize;
        Ok(())
    }

    /// Takes `more` units, and waits up to `wait` until other owners give enough back. The longest
    /// waiting is served first. An owner that holds its share does not wait.
    ///
    /// # Errors
    ///
    /// As [`Hold::grow`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes nothing.
    pub async fn grow_within(&mut self, more: usize, wait: Duration) -> Result<(), QuotaRefusal> {
        let (booking, permits) = (self.quota.book(self.owner.as_ref(), more)?, permits(more));
        let Quota(inner) = &self.quota;
        match tokio::time::timeout(wait, inner.room.acquire_many(permits)).await {
            Ok(Ok(permit)) => permit.forget(),
            _ => return Err(QuotaRefusal::Limit { limit: inner.limit }),
        }
        booking.keep();
        self.amount += permits as usize;
        Ok(())
    }

    /// Holds nothing any more.
    pub fn release(&mut self) {
        let amount = std::mem::take(&mut self.amount);
        if amount > 0 {
            self.quota.unbook(self.owner.as_ref(), amount);
            self.quota.0.room.add_permits(amount);
        }
    }
}

impl<K: Clone + Debug + Eq + Hash> Drop for Hold<K> {
    fn drop(&mut self) {
        self.release();
    }
}

/// An owner's share that is taken before the room for it is there; given back unless kept.
struct Booking<'a, K: Clone + Debug + Eq + Hash> {
    quota: &'a Quota<K>,
    owner: Option<&'a K>,
    amount: usize,
}

impl<K: Clone + Debug + Eq + Hash> Booking<'_, K> {
    fn keep(mut self) {
        self.amount = 0;
    }
}

impl<K: Clone + Debug + Eq + Hash> Drop for Booking<'_, K> {
    fn drop(&mut self) {
        self.quota.unbook(self.owner, self.amount);
    }
}

/// The semaphore's own type ends at 4 GiB: what is larger counts as that.
fn permits(amount: usize) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(5);

    #[test]
    fn no_owner_takes_more_than_its_share() {
        let quota = Quota::new(10, 6);
        let mut one = quota.take(Some("a"), 4).unwrap();
        assert_eq!(one.grow(3), Err(QuotaRefusal::Share { share: 6 }));
        assert_eq!(one.grow(2), Ok(()));
        assert_eq!(quota.take(Some("b"), 5).unwrap_err(), QuotaRefusal::Limit { limit: 10 });
        let other = quota.take(Some("b"), 4).unwrap();
        assert_eq!((quota.held(), quota.available()), (10, 0));
        drop((one, other));
        assert_eq!(quota.held(), 0);
        assert!(quota.0.owners.lock().is_empty());
        assert_eq!(quota.take(None, 10).unwrap().amount(), 10, "nobody is owner of it");
    }

    #[test]
    fn a_refusal_takes_nothing() {
        let quota = Quota::new(4, 3);
        let held = quota.take(Some(1), 3).unwrap();
        assert!(quota.take(Some(2), 2).is_err());
        assert_eq!(quota.0.owners.lock().len(), 1);
        drop(held);
        assert_eq!(quota.take(Some(2), 3).unwrap().amount(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_waited_for_but_not_for_ever() {
        let quota = Quota::new(4, 4);
        let held = quota.take(Some(1), 4).unwrap();
        let mut late = quota.hold(Some(2));
        assert_eq!(late.grow_within(1, WAIT).await, Err(QuotaRefusal::Limit { limit: 4 }));
        assert!(quota.take(Some(2), 4).is_err_and(|why| why == QuotaRefusal::Limit { limit: 4 }));
        let waiting = tokio::spawn(async move { late.grow_within(3, WAIT).await.map(|()| late) });
        tokio::task::yield_now().await;
        drop(held);
        assert_eq!(waiting.await.unwrap().unwrap().amount(), 3);
        assert_eq!(quota.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_is_not_waited_for() {
        let quota = Quota::new(4, 2);
        let mut hold = quota.take(Some(1), 2).unwrap();
        let begin = tokio::time::Instant::now();
        assert_eq!(hold.grow_within(1, WAIT).await, Err(QuotaRefusal::Share { share: 2 }));
        assert!(begin.elapsed().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stops_waiting_leaves_nothing_behind() {
        let quota = Quota::new(4, 3);
        let held = [1, 3].map(|owner| quota.take(Some(owner), 2).unwrap());
        let mut late = quota.hold(Some(2));
        assert!(tokio::time::timeout(WAIT / 5, late.grow_within(2, WAIT)).await.is_err());
        drop(held);
        assert_eq!((quota.held(), late.amount()), (0, 0));
        assert!(quota.0.owners.lock().is_empty());
    }
}
