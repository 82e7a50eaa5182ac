//! Use of the tiers by requests, for their traces.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_engine::RequestKey;
use stator_kv::connector::AskUse;
use stator_runtime::trace::KeyValue;
use std::time::Duration;

/// Requests that are remembered until somebody asks; those that ended without a token are not asked
/// for.
const REQUESTS_MAX: usize = 4096;

/// Blocks that a request got from the tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TierUse {
    /// Blocks that the engine lacked.
    pub(crate) asked: usize,
    /// Blocks among them that were in host memory at once.
    pub(crate) host: usize,
    /// Blocks among them that the engine loaded: from host memory, or after they had come there.
    pub(crate) loaded: usize,
    /// Bytes of the loaded blocks.
    pub(crate) bytes: usize,
    /// Time from the question to the first load.
    pub(crate) waited: Duration,
}

impl TierUse {
    /// The use in the words of a trace.
    pub(crate) fn attributes(&self) -> Vec<KeyValue> {
        let Self { asked, host, loaded, bytes, waited } = *self;
        let count = |name: &'static str, count: usize| KeyValue::new(name, count as i64);
        vec![
            count("kv.asked_blocks", asked),
            count("kv.host_blocks", host.min(loaded)),
            count("kv.lower_blocks", loaded.saturating_sub(host)),
            count("kv.bytes", bytes),
            KeyValue::new("kv.wait_ms", waited.as_secs_f64() * 1000.0),
        ]
    }
}

impl From<AskUse> for TierUse {
    /// The use by a request of an engine in another process.
    fn from(used: AskUse) -> Self {
        let AskUse { asked, host, ready, bytes, waited } = used;
        Self { asked, host, loaded: ready, bytes, waited }
    }
}

/// Uses of an engine's requests that nobody has asked for yet.
#[derive(Debug, Default)]
pub(crate) struct TierUses(Mutex<FxHashMap<RequestKey, TierUse>>);

impl TierUses {
    /// A request has taken something.
    pub(super) fn note(&self, request: RequestKey, used: TierUse) {
        let mut uses = self.0.lock();
        if uses.len() >= REQUESTS_MAX {
            uses.clear();
        }
        uses.insert(request, used);
    }

    /// Takes out the use of a request.
    pub(super) fn take(&self, request: RequestKey) -> Option<TierUse> {
        self.0.lock().remove(&request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_told_once_and_those_that_nobody_asks_for_are_bounded() {
        let uses = TierUses::default();
        let used = TierUse { asked: 9, host: 3, loaded: 5, bytes: 50, ..TierUse::default() };
        uses.note(RequestKey(1), used);
        assert_eq!(uses.take(RequestKey(1)), Some(used));
        assert_eq!(uses.take(RequestKey(1)), None);
        let told: Vec<_> = used.attributes().into_iter().map(|of| of.value.to_string()).collect();
        assert_eq!(told, ["9", "3", "2", "50", "0"]);
        (0..2 * REQUESTS_MAX as u64).for_each(|key| uses.note(RequestKey(key), used));
        assert!(uses.0.lock().len() <= REQUESTS_MAX);
    }
}
