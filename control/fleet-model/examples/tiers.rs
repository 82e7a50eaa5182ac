//! Hits, times to the first token and writes of KV tiers on a simulated fleet, by the way in which the tiers
//! are filled: the study in docs/benchmarks/kv.md.
//!
//! `cargo run --release -p stator-fleet-model --example tiers -- TRACE HOST,DISK...`, where TRACE is a file
//! in Mooncake's format or `agents`, the mix of `stator simulate`. HOST and DISK are blocks of 512 tokens
//! in all four workers together. The device of each holds 400 blocks. The last ways let workers fetch from the
//! host memory of others, and share an object store.

use stator_fleet_model::time::{MS, SECOND, from_seconds};
use stator_fleet_model::{
    DiskLimits, EngineLimits, FleetSettings, Mix, ObjectLimits, PeerLimits, PolicyKind, Replay,
    RunOutcome, Sides, SyntheticWorkload, TRACE_BLOCK, TierLimits, Workload, World,
};
use stator_kv::policy::PolicyName;
use stator_kv::store::TierAdmission;
use stator_timing::{PRESETS, Preset};
use std::error::Error;
use std::path::Path;

const WORKERS: u32 = 4;
const DEVICE_BLOCKS: u32 = 400;
/// Requests of the mix, and their number each second.
const REQUESTS: u32 = 20_000;
const RATE: f64 = 8.0;
/// Bytes that are read from host memory, read from a disk and written to a disk in a second.
const HOST_BYTES_PER_S: f64 = 50e9;
const DISK_READ_BYTES_PER_S: f64 = 6e9;
const DISK_WRITE_BYTES_PER_S: f64 = 3e9;
/// Bytes that each worker reads from an object store, and writes to it, in a second.
const OBJECT_READ_BYTES_PER_S: f64 = 2e9;
const OBJECT_WRITE_BYTES_PER_S: f64 = 1e9;

/// A way to fill the tiers.
struct FillingWay {
    name: &'static str,
    /// Eviction policy of host memory; `None` leaves the choice to the store.
    host_policy: Option<PolicyName>,
    /// Blocks that are written to a disk with room for so many.
    admission: fn(u32) -> TierAdmission,
    /// Whether host memory waits for a second use.
    is_selective: bool,
    /// Bytes that a worker reads from the host memory of others in a second; 0 where none lends.
    link_bytes_per_s: f64,
    /// Whether the workers share an object store.
    has_objects: bool,
}

const LRU: FillingWay = FillingWay {
    name: "LRU, all",
    host_policy: Some(PolicyName::Lru),
    admission: |_| TierAdmission::Through,
    is_selective: false,
    link_bytes_per_s: 0.0,
    has_objects: false,
};

const SELECTED: FillingWay = FillingWay { name: "selected, all", host_policy: None, ..LRU };

const WAYS: [FillingWay; 9] = [
    LRU,
    FillingWay {
        name: "LRU, second touch (Dynamo)",
        admission: |_| TierAdmission::SecondTouch,
        ..LRU
    },
    FillingWay { name: "selective (HiCache)", is_selective: true, ..LRU },
    SELECTED,
    FillingWay {
        name: "selected, measured",
        admission: |blocks| TierAdmission::Measured { blocks: blocks as usize },
        ..SELECTED
    },
    FillingWay { name: "selected, all; lent at 10 GB/s", link_bytes_per_s: 10e9, ..SELECTED },
    FillingWay { name: "selected, all; lent at 40 GB/s", link_bytes_per_s: 40e9, ..SELECTED },
    FillingWay { name: "selected, all; objects", has_objects: true, ..SELECTED },
    FillingWay {
        name: "selected, all; objects; lent at 10 GB/s",
        has_objects: true,
        link_bytes_per_s: 10e9,
        ..SELECTED
    },
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let workload = workload(&arguments.next().unwrap_or_default())?;
    let sizes: Vec<[u32; 2]> = arguments.map(|pair| size(&pair)).collect::<Result<_, _>>()?;
    println!(
        "host, disk | way | cached % | TTFT mean | p90 | p99 | GB to host | GB to disk | GB fetched \
         | GB to objects | GB from objects"
    );
    run(&workload, "0, 0 | no tiers", TierLimits::NONE)?;
    for [host, disk] in sizes {
        for way in &WAYS {
            run(&workload, &format!("{host}, {disk} | {}", way.name), limits(host, disk, way))?;
        }
    }
    Ok(())
}

fn workload(source: &str) -> Result<Workload, Box<dyn Error>> {
    if source != "agents" {
        let all = Replay { speed: 1.0, repeat: 1, limit: u32::MAX };
        return Ok(Workload::read(Path::new(source), TRACE_BLOCK, all)?);
    }
    let mix =
        SyntheticWorkload { mix: Mix::Agents, rate: RATE, adapters: 0, block_size: TRACE_BLOCK };
    Ok(Workload::synthetic(mix, REQUESTS, 1))
}

fn preset() -> &'static Preset {
    PRESETS.iter().find(|preset| preset.name == "h100-llama-8b").expect("it is a preset")
}

fn size(pair: &str) -> Result<[u32; 2], Box<dyn Error>> {
    let (host, disk) = pair.split_once(',').ok_or_else(|| format!("{pair}: no HOST,DISK"))?;
    Ok([host.parse()?, disk.parse()?])
}

/// The tiers of one worker.
fn limits(host: u32, disk: u32, way: &FillingWay) -> TierLimits {
    let block_bytes = f64::from(TRACE_BLOCK) * preset().kv_token_bytes();
    let block = |bytes_per_s: f64| from_seconds(block_bytes / bytes_per_s);
    let blocks = disk / WORKERS;
    let lends = way.link_bytes_per_s > 0.0;
    TierLimits {
        host_blocks: host / WORKERS,
        onboard_block: block(HOST_BYTES_PER_S),
        host_policy: way.host_policy,
        is_selective: way.is_selective,
        disk: Some(DiskLimits {
            blocks,
            latency: MS / 5,
            read_block: block(DISK_READ_BYTES_PER_S),
            write_block: block(DISK_WRITE_BYTES_PER_S),
            admission: (way.admission)(blocks),
        }),
        objects: way.has_objects.then(|| ObjectLimits {
            latency: 30 * MS,
            read_block: block(OBJECT_READ_BYTES_PER_S),
            write_block: block(OBJECT_WRITE_BYTES_PER_S),
            known_after: 35 * SECOND,
            admission: TierAdmission::Measured { blocks: 1 << 20 },
        }),
        peers: lends.then(|| PeerLimits { latency: MS, block: block(way.link_bytes_per_s) }),
    }
}

fn run(workload: &Workload, name: &str, tiers: TierLimits) -> Result<(), Box<dyn Error>> {
    let preset = preset();
    let sides = Sides { aggregated: WORKERS, ..Sides::default() };
    let mut settings = FleetSettings::new(preset, sides);
    settings.limits = EngineLimits {
        block_size: TRACE_BLOCK,
        total_blocks: DEVICE_BLOCKS,
        tiers,
        block_prefill: EngineLimits::block_prefill(&preset.timing(), TRACE_BLOCK),
        ..settings.limits
    };
    let mut world = World::new(&settings, workload, PolicyKind::Stator);
    while world.step()? {}
    let outcome = RunOutcome::new(&world.finish()?, workload, settings.slo, settings.seed);
    let gb = |blocks: u64| blocks as f64 * f64::from(TRACE_BLOCK) * preset.kv_token_bytes() / 1e9;
    let RunOutcome { cached_share, ttft_ms, tiers, .. } = &outcome;
    println!(
        "{name} | {:.1} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0}",
        100.0 * cached_share,
        ttft_ms.mean,
        ttft_ms.p90,
        ttft_ms.p99,
        gb(tiers.host_written),
        gb(tiers.disk_written),
        gb(tiers.peers),
        gb(tiers.objects_written),
        gb(tiers.objects),
    );
    Ok(())
}
