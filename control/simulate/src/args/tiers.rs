//! Flags of the workers' KV tiers.

use super::check::Faulty;
use super::surroundings::TierSurroundings;
use clap::{Args, ValueEnum};
use serde::Serialize;
use stator_fleet_model::time::{MS, from_seconds};
use stator_fleet_model::{DiskLimits, ObjectLimits, PeerLimits, TierLimits};
use stator_kv::policy::PolicyName;
use stator_kv::store::TierAdmission;

/// Most tokens of a tier.
const TOKENS_MAX: u32 = 1 << 30;

/// Blocks of the object store by which its admission is chosen, as agents without a limit of bytes have
/// it.
const OBJECT_BLOCKS: usize = 1 << 20;

/// KV tiers of the workers, under the agents' own block store and policies.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "KV tiers")]
pub(crate) struct TierArgs {
    /// Tokens of KV that a worker's host memory holds besides; 0 for no such tier.
    #[arg(long, default_value = "0", env = "STATOR_SIMULATE_HOST_KV_TOKENS")]
    pub(crate) host_kv_tokens: u32,
    /// Reading KV from host memory, gigabytes per second.
    #[arg(long, default_value = "50", env = "STATOR_SIMULATE_HOST_GB_S")]
    pub(crate) host_gb_s: f64,
    /// Eviction policy of host memory: lru, two-queue-short, two-queue-long, tiny-lfu or second-touch.
    /// Default: the one that has the most hits on a sample of the requests, as agents choose it.
    #[arg(long, value_name = "POLICY", env = "STATOR_SIMULATE_HOST_POLICY")]
    pub(crate) host_policy: Option<String>,
    /// Write blocks to host memory at their second use only, as SGLang's selective write-through.
    #[arg(long, env = "STATOR_SIMULATE_HOST_SELECTIVE")]
    pub(crate) host_selective: bool,
    /// Tokens of KV that a worker's disk holds; 0 for no disk. Needs --host-kv-tokens.
    #[arg(long, default_value = "0", env = "STATOR_SIMULATE_DISK_KV_TOKENS")]
    pub(crate) disk_kv_tokens: u32,
    /// Reading KV from disk, gigabytes per second.
    #[arg(long, default_value = "6", env = "STATOR_SIMULATE_DISK_GB_S")]
    pub(crate) disk_gb_s: f64,
    /// Writing KV to disk, gigabytes per second.
    #[arg(long, default_value = "3", env = "STATOR_SIMULATE_DISK_WRITE_GB_S")]
    pub(crate) disk_write_gb_s: f64,
    /// Before the first byte of a read or write, 0 to 60000 ms.
    #[arg(long, default_value = "0.2", env = "STATOR_SIMULATE_DISK_LATENCY_MS")]
    pub(crate) disk_latency_ms: f64,
    /// Blocks that are written to disk.
    #[arg(long, value_enum, default_value = "measured", env = "STATOR_SIMULATE_DISK_ADMISSION")]
    pub(crate) disk_admission: AdmissionArg,
    /// Let workers keep KV in an object store of unlimited size, too, which all of them share. Needs
    /// --host-kv-tokens.
    #[arg(long, env = "STATOR_SIMULATE_OBJECT_KV")]
    pub(crate) object_kv: bool,
    /// Reading KV from the object store, gigabytes per second of each worker.
    #[arg(long, default_value = "2", env = "STATOR_SIMULATE_OBJECT_GB_S")]
    pub(crate) object_gb_s: f64,
    /// Writing KV to the object store, gigabytes per second of each worker.
    #[arg(long, default_value = "1", env = "STATOR_SIMULATE_OBJECT_WRITE_GB_S")]
    pub(crate) object_write_gb_s: f64,
    /// Before the first byte of an object, 0 to 60000 ms.
    #[arg(long, default_value = "30", env = "STATOR_SIMULATE_OBJECT_LATENCY_MS")]
    pub(crate) object_latency_ms: f64,
    /// Time until all workers know of a block in the object store, 0 to 3600000 ms. Agents look every
    /// minute.
    #[arg(long, default_value = "35000", env = "STATOR_SIMULATE_OBJECT_KNOWN_MS")]
    pub(crate) object_known_ms: f64,
    /// Let workers fetch KV from the host memory of others, over the networks of --local-gb-s and
    /// --remote-gb-s: the slower one counts if there are several hosts. Needs --host-kv-tokens; for the
    /// policies of this project's placement.
    #[arg(long, env = "STATOR_SIMULATE_PEER_KV")]
    pub(crate) peer_kv: bool,
}

/// Blocks that are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AdmissionArg {
    /// Every block.
    Through,
    /// Blocks that are used a second time, as NVIDIA Dynamo and selective write-through do.
    SecondTouch,
    /// The better of the two on a sample of the requests, as agents choose.
    Measured,
}

impl TierArgs {
    /// The tiers of a worker.
    pub(super) fn limits(&self, around: &TierSurroundings, faulty: &mut Faulty) -> TierLimits {
        let TierSurroundings { block_size, block_bytes, transfer, workers } = around;
        let mut block = |name: &str, gb_s: f64| {
            let gb_s = faulty.number(name, gb_s, 0.001, 1e6).max(0.001);
            from_seconds(block_bytes / (gb_s * 1e9))
        };
        let onboard_block = block("host_gb_s", self.host_gb_s);
        let read_block = block("disk_gb_s", self.disk_gb_s);
        let write_block = block("disk_write_gb_s", self.disk_write_gb_s);
        let objects = ObjectLimits {
            read_block: block("object_gb_s", self.object_gb_s),
            write_block: block("object_write_gb_s", self.object_write_gb_s),
            latency: faulty.ms("object_latency_ms", self.object_latency_ms, 0.0, 60_000.0),
            known_after: faulty.ms("object_known_ms", self.object_known_ms, 0.0, 3_600_000.0),
            admission: TierAdmission::Measured { blocks: OBJECT_BLOCKS },
        };
        let latency = faulty.ms("disk_latency_ms", self.disk_latency_ms, 0.0, 60_000.0);
        let host_blocks =
            faulty.count("host_kv_tokens", self.host_kv_tokens, 0, TOKENS_MAX) / block_size;
        let blocks =
            faulty.count("disk_kv_tokens", self.disk_kv_tokens, 0, TOKENS_MAX) / block_size;
        let below = [
            ("disk_kv_tokens", blocks > 0),
            ("object_kv", self.object_kv),
            ("peer_kv", self.peer_kv),
        ];
        for (flag, is_set) in below {
            if is_set && host_blocks == 0 {
                faulty.fault(format!("{flag}: needs host_kv_tokens of a block or more"));
            }
        }
        let host_policy = self.host_policy.as_ref().and_then(|name| {
            let policy: Result<PolicyName, _> = name.parse();
            policy.map_err(|error| faulty.fault(format!("host_policy: {error}"))).ok()
        });
        let admission = match self.disk_admission {
            AdmissionArg::Through => TierAdmission::Through,
            AdmissionArg::SecondTouch => TierAdmission::SecondTouch,
            AdmissionArg::Measured => TierAdmission::Measured { blocks: blocks as usize },
        };
        let disk = DiskLimits { blocks, latency, read_block, write_block, admission };
        let is_one_host = *workers <= transfer.host_workers;
        let gb_s = if is_one_host { transfer.local_gb_s } else { transfer.remote_gb_s };
        let peers =
            PeerLimits { latency: MS, block: from_seconds(block_bytes / (gb_s.max(0.001) * 1e9)) };
        TierLimits {
            host_blocks,
            onboard_block,
            host_policy,
            is_selective: self.host_selective,
            disk: (blocks > 0).then_some(disk),
            objects: self.object_kv.then_some(objects),
            peers: self.peer_kv.then_some(peers),
        }
    }
}
