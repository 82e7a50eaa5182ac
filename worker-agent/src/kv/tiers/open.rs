//! Opens the cache that settings describe.

use super::TierDesk;
use crate::config::{KvDiskSettings, KvObjectSettings, KvTierSettings};
use crate::kv::peers::KvPeers;
use anyhow::Context;
use stator_kv::BlockForm;
use stator_kv::arena::SLOT_ALIGNMENT;
use stator_kv::cache::{
    CacheSettings, CacheTier, TierEventListener, TierOpener, TierPlace, TieredCache,
};
use stator_kv::disk::{DiskSettings, DiskTier};
use stator_kv::metrics::{KvMetrics, KvbmNames};
use stator_kv::object::{ObjectSettings, ObjectTier};
use stator_kv::store::{TierAdmission, TierSettings};
use stator_kv::tier::Tier;
use stator_pins::PinLimits;
use stator_protos::kv_event::Medium;
use stator_runtime::metrics::Metrics;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock, Weak};
use tokio::runtime::Handle;

/// Blocks of an object store that are published at most; as many as its index has.
const OBJECT_BLOCKS: usize = 1 << 20;

/// Surroundings of a cache.
pub(crate) struct CacheRoom {
    /// Hears which medium holds which blocks.
    pub(crate) events: TierEventListener,
    /// Counts what happens.
    pub(crate) metrics: KvMetrics,
    /// Key by which an object store's blocks are known to be the fleet's.
    pub(crate) object_key: Option<[u8; 32]>,
    /// Limits of what clients may pin.
    pub(crate) pins: PinLimits,
    /// Other agents, to read from and to lend to.
    pub(crate) peers: Option<Arc<KvPeers>>,
    /// Operators' access to the tiers.
    pub(crate) desk: TierDesk,
}

/// Shows the tiers' metrics, under the names that the settings ask for. Returns where the tokens of
/// a block are to be told, once they are known.
pub(crate) fn register(
    counted: &KvMetrics,
    settings: &KvTierSettings,
    metrics: &Metrics,
) -> Arc<AtomicU32> {
    let block_tokens = Arc::new(AtomicU32::new(0));
    metrics.register(|registry| counted.register(registry));
    if settings.has_dynamo_names {
        let names = KvbmNames { metrics: counted.clone(), block_tokens: block_tokens.clone() };
        metrics.register(|registry| registry.register_collector(Box::new(names)));
    }
    block_tokens
}

/// Opens the tiers for blocks of a form, on the runtime of the caller. Reads what is on the disk.
///
/// # Errors
///
/// There is no room for one block, the system has not the memory, or a tier cannot be opened.
pub(crate) fn open(
    form: BlockForm,
    settings: &KvTierSettings,
    room: CacheRoom,
) -> anyhow::Result<Arc<TieredCache>> {
    let slots = slots(form, settings.host_bytes);
    let block_bytes = form.block_bytes;
    anyhow::ensure!(
        slots > 0,
        "kv-host-gb: {} bytes have no room for a block of {block_bytes} bytes",
        settings.host_bytes
    );
    let mut tiers = Vec::new();
    let opened_disk = Arc::new(OnceLock::new());
    if let Some(disk) = &settings.disk {
        tiers.push(disk_tier(form, disk, settings, opened_disk.clone()));
    }
    // Another agent's host memory is nearer than an object store.
    tiers.extend(room.peers.iter().map(|peers| peers.tier(&room.metrics)));
    if let Some(object) = &settings.object {
        tiers.push(object_tier(form, object, settings, room.object_key)?);
    }
    let CacheRoom { events, metrics, pins, peers, desk, .. } = room;
    let settings = CacheSettings {
        tiers,
        tenant_share_percent: settings.tenant_share_percent,
        events,
        metrics,
        pins,
        ..CacheSettings::new(slots)
    };
    let cache = TieredCache::open(form, settings).context("KV tiers")?;
    if let Some(peers) = peers {
        peers.lend(&cache);
    }
    desk.opened(&cache, opened_disk.get().cloned().unwrap_or_default());
    Ok(cache)
}

/// Blocks of this form that tiers hold at most, all together.
pub(crate) fn blocks_max(form: BlockForm, settings: &KvTierSettings) -> usize {
    let disk = settings.disk.as_ref().map_or(0, |disk| disk.bytes / form.block_bytes.max(1) as u64);
    let object = settings.object.as_ref().map_or(0, |object| object_blocks(form, object));
    slots(form, settings.host_bytes) as usize + disk as usize + object
}

/// Slots of host memory.
fn slots(form: BlockForm, host_bytes: u64) -> u32 {
    let stride = form.block_bytes.next_multiple_of(SLOT_ALIGNMENT).max(SLOT_ALIGNMENT);
    u32::try_from(host_bytes / stride as u64).unwrap_or(u32::MAX)
}

/// The disk tier, and where to tell of it when it is open.
fn disk_tier(
    form: BlockForm,
    disk: &KvDiskSettings,
    settings: &KvTierSettings,
    opened: Arc<OnceLock<Weak<DiskTier>>>,
) -> CacheTier {
    let blocks = (disk.bytes / form.block_bytes.max(1) as u64) as usize;
    let admission = TierAdmission::Measured { blocks };
    let write_bytes_per_s = disk.write_bytes_per_s;
    let settings = DiskSettings {
        tenant_share_percent: settings.tenant_share_percent,
        key: settings.key.as_ref().map(|key| key.key.clone()),
        ..DiskSettings::new(&disk.dir, disk.bytes)
    };
    let open: TierOpener = Box::new(move |TierPlace { form, arena, report }| {
        let tier = Arc::new(DiskTier::open(settings, form, arena, report)?);
        opened.get_or_init(|| Arc::downgrade(&tier));
        Ok(tier as Arc<dyn Tier>)
    });
    let limits = TierSettings { admission, write_bytes_per_s, ..TierSettings::new(Medium::Disk) };
    CacheTier { name: "disk", settings: limits, open }
}

/// Blocks of this form that an agent knows in an object store at most.
fn object_blocks(form: BlockForm, object: &KvObjectSettings) -> usize {
    let room = object.bytes.map(|bytes| bytes / form.block_bytes.max(1) as u64);
    room.map_or(OBJECT_BLOCKS, |blocks| OBJECT_BLOCKS.min(blocks as usize))
}

fn object_tier(
    form: BlockForm,
    object: &KvObjectSettings,
    settings: &KvTierSettings,
    key: Option<[u8; 32]>,
) -> anyhow::Result<CacheTier> {
    let url = object.url.parse().context("kv-object")?;
    let admission = TierAdmission::Measured { blocks: object_blocks(form, object) };
    let limits = TierSettings { admission, ..TierSettings::new(Medium::Remote) };
    let settings = ObjectSettings {
        key,
        cipher_key: settings.key.as_ref().map(|key| key.key.clone()),
        capacity_bytes: object.bytes,
        ..ObjectSettings::new(url, Handle::current())
    };
    let open: TierOpener = Box::new(move |TierPlace { form, arena, report }| {
        Ok(Arc::new(ObjectTier::open(settings, form, arena, report)?) as Arc<dyn Tier>)
    });
    Ok(CacheTier { name: "object", settings: limits, open })
}
