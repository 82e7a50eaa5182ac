//! A tier before a real one, which refuses some work and is late with other.

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use stator_kv::SlotId;
use stator_kv::cache::{CacheTier, TierOpener, TierPlace, TierReporter};
use stator_kv::tier::{Tier, TierError, TierRead, TierReport, TierWrite};
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::sync::Arc;

/// Faults of the tiers of one agent.
pub(super) struct TierFaults {
    rng: SmallRng,
    /// Whether reads wait until they are let go.
    is_slow: bool,
    held: Vec<(Arc<dyn Tier>, TierRead)>,
    /// Operations that were refused.
    pub(super) refused: usize,
    /// Writes that had no room.
    pub(super) full: usize,
    /// Reads that had to wait.
    pub(super) late: usize,
}

struct FaultyTier {
    inner: Arc<dyn Tier>,
    faults: Arc<Mutex<TierFaults>>,
    report: TierReporter,
}

impl TierFaults {
    pub(super) fn new(seed: u64) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        Self { rng, is_slow: false, held: Vec::new(), refused: 0, full: 0, late: 0 }
    }

    /// Lets all reads wait from now on.
    pub(super) fn slow_down(&mut self) {
        self.is_slow = true;
    }

    /// Takes out the reads that waited. None waits any more.
    pub(super) fn speed_up(&mut self) -> Vec<(Arc<dyn Tier>, TierRead)> {
        self.is_slow = false;
        std::mem::take(&mut self.held)
    }

    /// The error of one read in a hundred. Three failures in a row would have the tier left alone.
    fn read_error(&mut self) -> Option<TierError> {
        use TierError::{Busy, Corrupt, Failed, Missing};
        let error = self.rng.random_bool(0.01).then_some([Failed, Missing, Corrupt, Busy]);
        self.refused += usize::from(error.is_some());
        error?.choose(&mut self.rng).copied()
    }

    fn write_error(&mut self) -> Option<TierError> {
        let error = match self.rng.random_range(0..400) {
            0 => TierError::Full,
            1 => TierError::Failed,
            2 => TierError::Busy,
            _ => return None,
        };
        let count = if error == TierError::Full { &mut self.full } else { &mut self.refused };
        *count += 1;
        Some(error)
    }
}

/// Puts faults before a tier.
pub(super) fn faulty(tier: CacheTier, faults: &Arc<Mutex<TierFaults>>) -> CacheTier {
    let (CacheTier { name, settings, open }, faults) = (tier, faults.clone());
    let open: TierOpener = Box::new(move |place: TierPlace| {
        let report = place.report.clone();
        Ok(Arc::new(FaultyTier { inner: open(place)?, faults, report }) as Arc<dyn Tier>)
    });
    CacheTier { name, settings, open }
}

impl Tier for FaultyTier {
    fn medium(&self) -> Medium {
        self.inner.medium()
    }

    fn read(&self, read: TierRead) {
        let error = {
            let mut faults = self.faults.lock();
            if faults.is_slow {
                faults.late += 1;
                return faults.held.push((self.inner.clone(), read));
            }
            faults.read_error()
        };
        match error {
            Some(error) => {
                let TierRead { name, slot, .. } = read;
                (self.report)(TierReport::Read { name, slot, result: Err(error) });
            }
            None => self.inner.read(read),
        }
    }

    fn write(&self, write: TierWrite) {
        let error = self.faults.lock().write_error();
        match error {
            Some(error) => {
                let (name, slot) = (write.block.name, write.slot);
                (self.report)(TierReport::Written { name, slot, result: Err(error) });
            }
            None => self.inner.write(write),
        }
    }

    fn cancel(&self, name: BlockName, slot: SlotId) {
        // A read that stands still has begun, and is left alone.
        self.inner.cancel(name, slot);
    }

    fn forget(&self, names: &[BlockName]) {
        self.inner.forget(names);
    }

    fn clear(&self) {
        self.inner.clear();
    }
}
