//! Blocks that clients pin: whose, until when, and how many.
//!
//! A client asks that the KV of its prompt stays cached for a time. [`ClientPins`] is the account of
//! such wishes for one store of blocks, an engine's own memory or a tier; the store holds the blocks.
//! The account reads no clock.

use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::hash::Hash;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Time since an origin that the store chose.
pub type Now = Duration;

/// Time for which a place is kept for a block that is not there: its prompt may have to wait.
const AWAITED: Duration = Duration::from_secs(600);

/// Limits of what clients may pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinLimits {
    /// Share of a store's blocks that clients may pin, in percent; 0 for none. One tenant may pin
    /// half of them.
    pub share_percent: u8,
    /// Longest time of a pin. A wish for a longer time has this one.
    pub time_max: Duration,
}

impl Default for PinLimits {
    /// A quarter, for an hour.
    fn default() -> Self {
        Self { share_percent: 25, time_max: Duration::from_secs(3600) }
    }
}

impl PinLimits {
    /// No client pins anything.
    pub const NONE: Self = Self { share_percent: 0, time_max: Duration::ZERO };

    /// Blocks that clients may pin, of so many that there are.
    fn blocks(self, of: usize) -> usize {
        of * usize::from(self.share_percent.min(100)) / 100
    }
}

/// A client's wish for the leading blocks of its prompt.
#[derive(Clone, Copy, Debug)]
pub struct PinWish {
    /// The number of the client's prefix space.
    pub tenant: u64,
    /// Time for which the blocks are to stay.
    pub time: Duration,
}

/// Outcome of a wish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinOutcome {
    /// Leading blocks that are pinned, also those that are still to come.
    pub pinned: usize,
    /// Blocks behind them that are not, because clients have pinned as much as they may.
    pub refused: usize,
}

/// Blocks that clients have pinned, by their keys. `S` is a block's place in the store.
#[derive(Debug)]
pub struct ClientPins<K, S> {
    limits: PinLimits,
    pins: FxHashMap<K, Pin<S>>,
    /// Of pins that end at the same time, the deepest block ends first.
    ends: BTreeSet<(Now, Reverse<u32>, K)>,
    tenants: FxHashMap<u64, usize>,
}

/// One block's pin.
#[derive(Clone, Copy, Debug)]
struct Pin<S> {
    tenant: u64,
    depth: u32,
    /// End of the pin, or of the wait for the block.
    end: Now,
    /// End of the pin.
    until: Now,
    /// Place of the block; none as long as it is not there.
    place: Option<S>,
}

impl<K: Copy + Eq + Hash + Ord, S: Copy + Eq> ClientPins<K, S> {
    /// No pins yet.
    pub fn new(limits: PinLimits) -> Self {
        let (pins, ends, tenants) = Default::default();
        Self { limits, pins, ends, tenants }
    }

    /// Whether nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.pins.is_empty()
    }

    /// Blocks that are pinned, also those that are still to come.
    pub fn len(&self) -> usize {
        self.pins.len()
    }

    /// Pins leading blocks of a prompt in a store of `blocks` blocks, as far as there is room. A
    /// block that is pinned already stays for the longer time. `hold` holds a block where the store
    /// has it, and gives its place.
    pub fn pin(
        &mut self,
        keys: &[K],
        wish: PinWish,
        blocks: usize,
        now: Now,
        mut hold: impl FnMut(K) -> Option<S>,
    ) -> PinOutcome {
        let until = now + wish.time.min(self.limits.time_max);
        let most = self.limits.blocks(blocks);
        let mut pinned = 0;
        for (depth, key) in (0..).zip(keys) {
            if let Some(pin) = self.pins.get_mut(key) {
                pin.until = pin.until.max(until);
                let end = pin.end(now);
                self.set_end(*key, end);
            } else {
                let own = self.tenants.get(&wish.tenant).copied().unwrap_or(0);
                // A block is of no use without those before it.
                if self.pins.len() >= most || own >= most.div_ceil(2) {
                    break;
                }
                let mut pin =
                    Pin { tenant: wish.tenant, depth, end: until, until, place: hold(*key) };
                pin.end = pin.end(now);
                self.ends.insert((pin.end, Reverse(depth), *key));
                self.pins.insert(*key, pin);
                *self.tenants.entry(wish.tenant).or_default() += 1;
            }
            pinned += 1;
        }
        PinOutcome { pinned, refused: keys.len() - pinned }
    }

    /// A block has come to the store. True if it is to be held, because it is pinned and was not
    /// there.
    pub fn came(&mut self, key: K, place: S) -> bool {
        let Some(pin) = self.pins.get_mut(&key).filter(|pin| pin.place.is_none()) else {
            return false;
        };
        pin.place = Some(place);
        let until = pin.until;
        self.set_end(key, until);
        true
    }

    /// Whether a block is pinned that is not there yet.
    pub fn awaits(&self, key: &K) -> bool {
        self.pins.get(key).is_some_and(|pin| pin.place.is_none())
    }

    /// The store forgets the block in a place. True if it was pinned there; its pin has ended.
    pub fn gone(&mut self, key: K, place: S) -> bool {
        let is_it = self.pins.get(&key).is_some_and(|pin| pin.place == Some(place));
        is_it && self.remove(key).is_some()
    }

    /// Ends the pin of a block; the place in which it was held.
    pub fn remove(&mut self, key: K) -> Option<S> {
        let pin = self.pins.remove(&key)?;
        self.ends.remove(&(pin.end, Reverse(pin.depth), key));
        if let Some(own) = self.tenants.get_mut(&pin.tenant) {
            *own -= 1;
            if *own == 0 {
                self.tenants.remove(&pin.tenant);
            }
        }
        pin.place
    }

    /// The pin that ends first.
    pub fn first(&self) -> Option<K> {
        Some(self.ends.first()?.2)
    }

    /// The pin that has ended by now, of several the one that ended first.
    pub fn first_ended(&self, now: Now) -> Option<K> {
        self.ends.first().filter(|(end, _, _)| *end <= now).map(|(_, _, key)| *key)
    }

    /// The time at which the next pin ends.
    pub fn next_end(&self) -> Option<Now> {
        Some(self.ends.first()?.0)
    }

    fn set_end(&mut self, key: K, end: Now) {
        if let Some(pin) = self.pins.get_mut(&key) {
            self.ends.remove(&(pin.end, Reverse(pin.depth), key));
            self.ends.insert((end, Reverse(pin.depth), key));
            pin.end = end;
        }
    }
}

impl<S> Pin<S> {
    /// The time at which the pin ends, unless its block comes before that.
    fn end(&self, now: Now) -> Now {
        match self.place {
            Some(_) => self.until,
            None => self.until.min(now + AWAITED),
        }
    }
}
