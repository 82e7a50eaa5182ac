//! Operations on KV tiers, as the agent carries them out.

use crate::kv::tiers::{NoTiers, OpenTiers, TierDesk};
use stator_kv::cache::{BlockChoice, CacheStatus};
use stator_kv::metrics::WayTotals;
use stator_kv::store::TierStatus;
use stator_protos::hash::SequenceHash;
use stator_protos::worker::operate_kv_request::Operation;
use stator_protos::worker::{
    KvEvicted, KvLimit, KvPinned, KvStatus, KvTierStatus, KvWayStatus, OperateKvRequest,
    OperateKvResponse,
};
use std::time::Duration;

/// Name of the disk tier and of the object tier.
const DISK: &str = "disk";
const OBJECT: &str = "object";
/// Most blocks that one operation names.
const HASHES_MAX: usize = 65_536;
/// Longest time for which blocks are pinned: 30 days.
const PIN_SECONDS_MAX: u32 = 30 * 86_400;

/// Why an operation on tiers is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum KvRefusal {
    /// There are no tiers.
    #[error("{0}")]
    NoTiers(#[from] NoTiers),
    /// The request is wrong: the field, its value and the limit.
    #[error("{0}")]
    Invalid(String),
}

/// Does what a request says, and looks at the tiers. Takes milliseconds where many blocks are held.
///
/// # Errors
///
/// There are no tiers, or the request is wrong; nothing was done then.
pub(super) fn operate(
    request: OperateKvRequest,
    desk: &TierDesk,
) -> Result<OperateKvResponse, KvRefusal> {
    let invalid = |what: String| KvRefusal::Invalid(what);
    let operation = request.operation;
    let operation = operation
        .ok_or_else(|| invalid("operation: it is missing, or of a later version".into()))?;
    let tiers = desk.tiers()?;
    let mut response = OperateKvResponse::default();
    match operation {
        Operation::Look(_) => {}
        Operation::Clear(clear) if clear.tier.is_empty() => tiers.cache.clear(),
        Operation::Clear(clear) => {
            let cleared = tiers.cache.clear_one(&clear.tier);
            cleared.map_err(|error| invalid(format!("tier: {error}")))?;
        }
        Operation::Pin(pin) => {
            if !(1..=PIN_SECONDS_MAX).contains(&pin.seconds) {
                let seconds = pin.seconds;
                return Err(invalid(format!("seconds: {seconds} is not in 1..={PIN_SECONDS_MAX}")));
            }
            let (blocks, asked_blocks) = chosen(pin.hashes)?;
            let time = Duration::from_secs(pin.seconds.into());
            let kept = tiers.cache.keep(&blocks, time);
            response.pinned = Some(KvPinned {
                asked_blocks,
                host_blocks: kept.here as u64,
                coming_blocks: kept.coming as u64,
                refused_blocks: kept.refused as u64,
            });
        }
        Operation::Evict(evict) => {
            let (blocks, asked_blocks) = chosen(evict.hashes)?;
            let forgotten = tiers.cache.forget(&blocks);
            response.evicted = Some(KvEvicted {
                asked_blocks,
                host_blocks: forgotten.host as u64,
                lower_copies: forgotten.below as u64,
            });
        }
        Operation::Limit(wanted) => limit(&wanted, &tiers).map_err(invalid)?,
    }
    response.status = Some(status(&tiers));
    Ok(response)
}

/// Text of an operation for the log. A prompt has thousands of hashes.
pub(super) fn shown(request: &OperateKvRequest) -> String {
    match &request.operation {
        Some(Operation::Pin(pin)) => {
            format!("Pin {{ blocks: {}, seconds: {} }}", pin.hashes.len(), pin.seconds)
        }
        Some(Operation::Evict(evict)) => format!("Evict {{ blocks: {} }}", evict.hashes.len()),
        other => format!("{other:?}"),
    }
}

fn chosen(hashes: Vec<u64>) -> Result<(BlockChoice, u64), KvRefusal> {
    match hashes.len() {
        count @ 1..=HASHES_MAX => {
            let hashes = hashes.into_iter().map(SequenceHash).collect();
            Ok((BlockChoice::Hashes(hashes), count as u64))
        }
        count => Err(KvRefusal::Invalid(format!("hashes: {count} blocks, 1 to {HASHES_MAX}"))),
    }
}

/// Sets limits: all of them, or none if one is wrong.
fn limit(wanted: &KvLimit, tiers: &OpenTiers) -> Result<(), String> {
    let KvLimit { host_bytes, disk_bytes, disk_write_bytes_per_s, object } = *wanted;
    if host_bytes == Some(0) || disk_bytes == Some(0) {
        return Err("host_bytes, disk_bytes: 0 is not above 0".into());
    }
    let cache = &tiers.cache;
    let has = |tier: &str| cache.status().tiers.contains(&tier);
    let wants_disk = disk_bytes.is_some() || disk_write_bytes_per_s.is_some();
    if wants_disk && !has(DISK) {
        return Err("disk_bytes, disk_write_bytes_per_s: the agent has no disk tier".into());
    }
    if object.is_some() && !has(OBJECT) {
        return Err("object: the agent has no object store".into());
    }
    if let Some(bytes) = host_bytes {
        let bytes = cache.set_host_bytes(bytes);
        tracing::info!(bytes, "host memory for KV has another limit");
    }
    if let (Some(bytes), Some(disk)) = (disk_bytes, &tiers.disk) {
        let bytes = disk.set_bytes(bytes);
        tracing::info!(bytes, "the disk for KV has another limit");
    }
    if let Some(bytes) = disk_write_bytes_per_s {
        let budget = Some(bytes).filter(|bytes| *bytes > 0);
        cache.set_write_budget(DISK, budget).map_err(|error| error.to_string())?;
    }
    if let Some(is_on) = object {
        cache.set_tier_on(OBJECT, is_on).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn status(tiers: &OpenTiers) -> KvStatus {
    let status = tiers.cache.status();
    let hits = status.metrics.hit_totals();
    let stats = &status.store.stats;
    let below = status.tiers.iter().zip(&status.store.tiers);
    let below = below.map(|(name, tier)| lower_tier(name, tier, &status, tiers));
    KvStatus {
        block_bytes: status.block_bytes as u64,
        policy: status.store.host.policy.as_str().into(),
        asked_blocks: hits.asked,
        host_hit_blocks: hits.host,
        lower_hit_blocks: hits.below,
        filled_blocks: hits.filled,
        corrupt_blocks: hits.corrupt,
        evicted_blocks: stats.evictions,
        lost_blocks: stats.evictions_for_good,
        waits_cut: stats.waits_cut,
        tiers: std::iter::once(host(&status)).chain(below).collect(),
    }
}

fn host(status: &CacheStatus) -> KvTierStatus {
    let host = &status.store.host;
    let bytes = |slots: usize| (slots * status.slot_bytes) as u64;
    // Slots that engines hold to fill have no block yet, and are in use all the same.
    KvTierStatus {
        name: "host".into(),
        capacity_bytes: bytes(host.limit),
        used_bytes: bytes(host.used),
        blocks: host.used.saturating_sub(host.granted) as u64,
        pinned_blocks: host.pinned as u64,
        kept_blocks: host.kept as u64,
        ..KvTierStatus::default()
    }
}

fn lower_tier(
    name: &'static str,
    tier: &TierStatus,
    status: &CacheStatus,
    tiers: &OpenTiers,
) -> KvTierStatus {
    let totals = status.metrics.tier_totals(name);
    let block_bytes = status.block_bytes as u64;
    let disk = tiers.disk.as_ref().filter(|_| name == DISK);
    let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    KvTierStatus {
        name: name.into(),
        capacity_bytes: disk.map_or(0, |disk| disk.bytes()),
        used_bytes: tier.held as u64 * block_bytes,
        blocks: tier.held as u64,
        reads: Some(way(totals.read, tier.reads_in_flight)),
        writes: Some(way(totals.write, tier.writes_in_flight)),
        backlog_blocks: tier.backlog as u64,
        is_off: tier.is_off,
        left_alone_ms: millis(tier.left_alone),
        writes_paused_ms: millis(tier.writes_paused),
        is_stalled: tier.is_stalled,
        read_latency_us: u32::try_from(tier.read_latency.as_micros()).unwrap_or(u32::MAX),
        read_bytes_per_s: match tier.read_block.as_secs_f64() {
            seconds if seconds > 0.0 => (block_bytes as f64 / seconds) as u64,
            _ => 0,
        },
        write_bytes_per_s_max: tier.write_bytes_per_s.unwrap_or(0),
        refused_by_cost_blocks: tier.stats.refused_by_cost,
        refused_by_load_blocks: tier.stats.refused_by_load,
        ..KvTierStatus::default()
    }
}

fn way(totals: WayTotals, in_flight: usize) -> KvWayStatus {
    let WayTotals { done, bytes, missing, corrupt, busy, full, failed } = totals;
    let in_flight = in_flight as u32;
    KvWayStatus { in_flight, done, bytes, missing, corrupt, busy, full, failed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_kv::BlockForm;
    use stator_kv::cache::{CacheSettings, TieredCache};
    use stator_protos::worker::{KvClear, KvEvict, KvLook, KvPin};
    use std::sync::{Arc, Weak};

    fn check(desk: &TierDesk, operation: Operation) -> Result<OperateKvResponse, String> {
        let request = OperateKvRequest { operation: Some(operation) };
        operate(request, desk).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn without_tiers_nothing_is_operated() {
        let look = || Operation::Look(KvLook {});
        let error = check(&TierDesk::default(), look()).unwrap_err();
        assert_eq!(error, "the agent has no KV tiers: it was started without kv-host-gb");
        let error = check(&TierDesk::new(), look()).unwrap_err();
        assert_eq!(error, "the KV tiers are not open yet: no engine has joined");
    }

    #[test]
    fn a_wrong_request_names_field_value_and_limit_and_changes_nothing() {
        let desk = TierDesk::new();
        let form = BlockForm { fingerprint: [1; 32], block_bytes: 4096 };
        let cache = TieredCache::open(form, CacheSettings::new(8)).unwrap();
        desk.opened(&cache, Weak::new());
        let pin = |hashes, seconds| Operation::Pin(KvPin { hashes, seconds });
        let limit = |limit| Operation::Limit(limit);
        let halved = KvLimit { host_bytes: Some(4 * 4096), ..KvLimit::default() };
        let cases = [
            (pin(vec![1], 0), "seconds: 0 is not in 1..=2592000"),
            (pin(vec![], 9), "hashes: 0 blocks, 1 to 65536"),
            (Operation::Evict(KvEvict { hashes: vec![] }), "hashes: 0 blocks, 1 to 65536"),
            (
                Operation::Clear(KvClear { tier: "tape".into() }),
                "tier: there is no tier \"tape\", only host",
            ),
            (
                limit(KvLimit { object: Some(true), ..halved }),
                "object: the agent has no object store",
            ),
            (
                limit(KvLimit { disk_bytes: Some(1), ..halved }),
                "disk_bytes, disk_write_bytes_per_s: the agent has no disk tier",
            ),
            (
                limit(KvLimit { host_bytes: Some(0), ..halved }),
                "host_bytes, disk_bytes: 0 is not above 0",
            ),
        ];
        for (operation, expected) in cases {
            assert_eq!(check(&desk, operation).unwrap_err(), expected);
        }
        let host = |response: OperateKvResponse| response.status.unwrap().tiers.remove(0);
        let before = host(check(&desk, Operation::Look(KvLook {})).unwrap());
        assert_eq!((before.name.as_str(), before.capacity_bytes), ("host", 8 * 4096));
        let after = host(check(&desk, limit(halved)).unwrap());
        assert_eq!(after.capacity_bytes, 4 * 4096);
        let _: Arc<TieredCache> = cache;
    }
}
