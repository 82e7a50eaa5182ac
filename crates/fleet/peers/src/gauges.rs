//! In-flight gauges, one per origin and worker. The last value of an origin counts, and an origin
//! that is gone counts no more; so there is nothing to merge and nothing that could drift.
//!
//! Pure: [`OwnGauges`] is what a replica says of itself, [`Others`] what it hears.

use crate::PoolId;
use rustc_hash::FxHashMap;
use stator_placement::PeerLoad;
use stator_protos::WorkerRank;
use std::collections::BTreeMap;

/// A worker of a pool.
pub(crate) type GaugeKey = (PoolId, WorkerRank);

struct OwnGauge {
    value: PeerLoad,
    /// Version of its last change.
    version: u64,
    /// The last look at the pool that found the worker.
    look: u64,
}

/// Load that this replica has in flight, and the order of its changes.
#[derive(Default)]
pub(crate) struct OwnGauges {
    gauges: FxHashMap<GaugeKey, OwnGauge>,
    /// The present version of each gauge.
    changes: BTreeMap<u64, GaugeKey>,
    version: u64,
    looks: u64,
}

impl OwnGauges {
    /// Number of the last change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// A pool's gauges are these; what is left out is zero. Everybody has seen the changes up to
    /// `seen`.
    pub(crate) fn set_pool(&mut self, pool: PoolId, now: &[(WorkerRank, PeerLoad)], seen: u64) {
        self.looks += 1;
        for &(worker, value) in now {
            self.set((pool, worker), value);
        }
        let looks = self.looks;
        let absent = |own: &OwnGauge| own.look != looks && own.value != PeerLoad::default();
        let gone = self.gauges.iter().filter(|(key, own)| key.0 == pool && absent(own));
        let gone: Vec<GaugeKey> = gone.map(|(key, _)| *key).collect();
        if gone.is_empty() {
            return;
        }
        for key in gone {
            self.set(key, PeerLoad::default());
        }
        self.forget(seen);
    }

    /// At most `most` changes after version `seen`, and the version of the last of them.
    pub(crate) fn changes_since(&self, seen: u64, most: usize) -> (Vec<(GaugeKey, PeerLoad)>, u64) {
        let mut last = seen;
        let changes = self.changes.range(seen + 1..).take(most).filter_map(|(version, key)| {
            last = *version;
            self.gauges.get(key).map(|own| (*key, own.value))
        });
        (changes.collect(), last)
    }

    fn set(&mut self, key: GaugeKey, value: PeerLoad) {
        let look = self.looks;
        if let Some(own) = self.gauges.get_mut(&key) {
            own.look = look;
            if own.value == value {
                return;
            }
            self.changes.remove(&own.version);
        } else if value == PeerLoad::default() {
            return;
        }
        self.version += 1;
        self.changes.insert(self.version, key);
        self.gauges.insert(key, OwnGauge { value, version: self.version, look });
    }

    /// Forgets zeros that everybody has seen: workers come and go for as long as we run.
    fn forget(&mut self, seen: u64) {
        let Self { gauges, changes, .. } = self;
        gauges.retain(|_, own| {
            let keep = own.value != PeerLoad::default() || own.version > seen;
            if !keep {
                changes.remove(&own.version);
            }
            keep
        });
    }
}

/// Load that other replicas have in flight.
#[derive(Default)]
pub(crate) struct Others {
    origins: FxHashMap<u64, FxHashMap<GaugeKey, PeerLoad>>,
    /// Over all origins; what is zero is left out.
    sums: FxHashMap<GaugeKey, PeerLoad>,
}

/// Gauges that one origin may have; more are passed over.
pub(crate) const GAUGES_MAX: usize = 1 << 16;

/// Largest amount that an origin may claim, so that sums cannot overflow.
const CLAIM_MAX: u64 = 1 << 48;

impl Others {
    /// An origin is heard from now on. False if it is already.
    pub(crate) fn join(&mut self, origin: u64) -> bool {
        let new = !self.origins.contains_key(&origin);
        self.origins.entry(origin).or_default();
        new
    }

    /// An origin has so much at a worker. The new sum, or `None` if the origin is not heard or
    /// has too many gauges.
    pub(crate) fn set(&mut self, origin: u64, key: GaugeKey, value: PeerLoad) -> Option<PeerLoad> {
        let gauges = self.origins.get_mut(&origin)?;
        let value = value.zip(PeerLoad::default(), |claimed, _| claimed.min(CLAIM_MAX));
        let before = if value == PeerLoad::default() {
            gauges.remove(&key)
        } else if gauges.len() < GAUGES_MAX || gauges.contains_key(&key) {
            gauges.insert(key, value)
        } else {
            return None;
        };
        Some(self.replace(key, before.unwrap_or_default(), value))
    }

    /// An origin is gone; the sums that this changes.
    pub(crate) fn leave(&mut self, origin: u64) -> Vec<(GaugeKey, PeerLoad)> {
        let gauges = self.origins.remove(&origin).unwrap_or_default();
        let without = |(key, value)| (key, self.replace(key, value, PeerLoad::default()));
        gauges.into_iter().map(without).collect()
    }

    /// All sums that are not zero.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (GaugeKey, PeerLoad)> {
        self.sums.iter().map(|(key, sum)| (*key, *sum))
    }

    fn replace(&mut self, key: GaugeKey, before: PeerLoad, after: PeerLoad) -> PeerLoad {
        let sum = self.sums.entry(key).or_default();
        // What is taken away was added before.
        *sum = sum.zip(before, |sum, before| sum - before).zip(after, |sum, after| sum + after);
        let sum = *sum;
        if sum == PeerLoad::default() {
            self.sums.remove(&key);
        }
        sum
    }
}

#[cfg(test)]
#[path = "gauges_tests.rs"]
mod tests;
