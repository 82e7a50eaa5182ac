//! Tiers of KV below the engines' own memory: host memory, a disk, an object store.

use super::{EngineKind, Faults};
use clap::{Args, ValueEnum};
use stator_kv::cipher::KvKey;
use stator_runtime::config::ConfigError;
use stator_runtime::secret::Secret;
use std::path::PathBuf;

/// Bytes of a gigabyte, as the flags count.
const GB: f64 = 1e9;
/// Room on a disk where nothing is said of it, in units of host memory.
const DISK_FACTOR: f64 = 10.0;
/// Room in a shared directory where nothing is said of it, in units of host memory.
const OBJECT_FACTOR: f64 = 100.0;
/// Largest tier in GB, a petabyte.
const GB_MAX: f64 = 1e6;
/// Bytes of a megabyte.
const MB: f64 = 1e6;
/// Fastest writes in MB/s, a terabyte in a second.
const MB_S_MAX: f64 = 1e6;

/// Flags of the tiers. `stator up` has them too.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "KV tiers")]
pub struct KvTierArgs {
    /// Host memory for KV that engines of the agent have computed, in GB (10^9 bytes); fractions
    /// are allowed. The agent keeps blocks there when engines evict them, and gives them back
    /// instead of having them computed again. 0 keeps none. Engines: `builtin`, `vllm`, `sglang`,
    /// and a `trtllm` that runs already. `stator up` divides it among its agents.
    #[arg(long, env = "STATOR_KV_HOST_GB", default_value_t = 0.0, value_name = "GB")]
    pub kv_host_gb: f64,

    /// Folder on a local disk for KV that host memory has no room for. KV there outlives agent and
    /// engine. The agent makes the folder if it is missing; each agent needs a folder of its own.
    /// Needs `--kv-host-gb`.
    #[arg(long, env = "STATOR_KV_DISK_DIR", value_name = "DIR")]
    pub kv_disk_dir: Option<PathBuf>,

    /// Room for KV in `--kv-disk-dir`, in GB. `stator up` divides it among its agents. Default: ten
    /// times `--kv-host-gb`.
    #[arg(long, env = "STATOR_KV_DISK_GB", value_name = "GB")]
    pub kv_disk_gb: Option<f64>,

    /// Most megabytes (10^6 bytes) that are written to `--kv-disk-dir` in a second, so that the disk
    /// lasts. Blocks that host memory gives up before their turn are lost. `stator up` divides it among
    /// its agents, and `stator operate kv-limit --disk-write-mb-s` changes it. Default: no limit.
    #[arg(long, env = "STATOR_KV_DISK_WRITE_MB_S", value_name = "MB")]
    pub kv_disk_write_mb_s: Option<f64>,

    /// Object store for KV that several agents share: `s3://bucket/prefix`, or `file:///folder` for
    /// a shared directory. Needs `--kv-host-gb`.
    #[arg(long, env = "STATOR_KV_OBJECT", value_name = "URL")]
    pub kv_object: Option<String>,

    /// Room for KV in the directory of `--kv-object file:///folder`, in GB, for all agents that share
    /// it together. The oldest KV is deleted. Agents with different limits keep to the least. A bucket
    /// of S3 needs a lifecycle rule instead. Default: a hundred times `--kv-host-gb`.
    #[arg(long, env = "STATOR_KV_OBJECT_GB", value_name = "GB")]
    pub kv_object_gb: Option<f64>,

    /// NIXL's library `libnixl_capi.so`, for example of the Python package `nixl-cu13`. Agents that both
    /// have it read each other's host memory by RDMA, shared memory or TCP, whatever NIXL finds, as
    /// long as that is faster than `--kv-transfer-listen`. What was read is compared with the holder's
    /// tags if the fleet has a secret, and with checksums alone if not. Needs `--kv-host-gb`.
    #[arg(long, env = "STATOR_KV_NIXL", value_name = "FILE")]
    pub kv_nixl: Option<PathBuf>,

    /// File with a secret, 16 to 4096 bytes, by which KV on the disk and in the object store is
    /// encrypted (AES-256-GCM). Agents that share an object store need the same secret. A disk
    /// folder that was made with another secret, or without one, stops the start. Default: KV is
    /// not encrypted.
    #[arg(long, env = "STATOR_KV_KEY_FILE", value_name = "FILE")]
    pub kv_key_file: Option<PathBuf>,

    /// Share of host memory and of the disk that the KV of one tenant may have, in percent. Beyond it
    /// a tenant's KV takes the place of its own, not of others'. A tenant is a prefix space: what a
    /// proxy makes of API key, `x-tenant-id` and `cache_salt`. Needs `--kv-host-gb` and
    /// `--engine builtin`, `vllm` or `sglang`. Default: no limit.
    #[arg(long, env = "STATOR_KV_TENANT_SHARE_PERCENT", value_name = "PERCENT")]
    pub kv_tenant_share_percent: Option<u8>,

    /// Names of the tiers' metrics. Needs `--kv-host-gb`.
    #[arg(
        long,
        env = "STATOR_KV_METRICS_NAMES",
        value_name = "NAMES",
        value_enum,
        default_value_t
    )]
    pub kv_metrics_names: KvMetricsNamesArg,

    /// Folder where engines that the agent does not start find its tiers: the socket `kv.sock`, and
    /// the modules that engines load. The agent makes the folder if it is missing; each agent
    /// needs a folder of its own. Needs `--kv-host-gb`. Default: a temporary folder, which only an
    /// engine that the agent starts is told of.
    #[arg(long, env = "STATOR_KV_SOCKET_DIR", value_name = "DIR")]
    pub kv_socket_dir: Option<PathBuf>,
}

/// Names of the tiers' metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KvMetricsNamesArg {
    /// `stator_kv_…`.
    #[default]
    Stator,
    /// These, and `kvbm_…` as NVIDIA Dynamo has them.
    Dynamo,
}

/// The tiers of an agent. A value of this type is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvTierSettings {
    /// Bytes of host memory, above 0.
    pub host_bytes: u64,
    /// The disk tier.
    pub disk: Option<KvDiskSettings>,
    /// The object store.
    pub object: Option<KvObjectSettings>,
    /// NIXL's library.
    pub nixl: Option<PathBuf>,
    /// The key by which disk and object store are encrypted.
    pub key: Option<KvKeySettings>,
    /// Share of host memory and disk that one tenant's KV may have, in percent.
    pub tenant_share_percent: Option<u8>,
    /// Whether metrics are shown under NVIDIA Dynamo's names, too.
    pub has_dynamo_names: bool,
    /// Folder where engines in other processes find the tiers; `None` for a temporary one.
    pub socket_dir: Option<PathBuf>,
}

/// A key, and its file for other agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvKeySettings {
    /// The file.
    pub file: PathBuf,
    /// The key that its content makes.
    pub key: KvKey,
}

/// A disk tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvDiskSettings {
    /// Its folder.
    pub dir: PathBuf,
    /// Bytes that it may have there, above 0.
    pub bytes: u64,
    /// Bytes that may be written there in a second, above 0; `None` for no limit.
    pub write_bytes_per_s: Option<u64>,
}

/// An object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvObjectSettings {
    /// Its URL.
    pub url: String,
    /// Bytes that a shared directory may have, above 0; `None` for a bucket.
    pub bytes: Option<u64>,
}

impl KvTierArgs {
    /// Checks the flags for engines of this kind; `None` where there are no tiers.
    ///
    /// # Errors
    ///
    /// Every flag that is wrong, with its value and limit.
    pub fn check(self, engine: EngineKind) -> Result<Option<KvTierSettings>, ConfigError> {
        let mut faults = Faults::default();
        let tiers = self.tiers(engine, &mut faults);
        faults.none().map(|()| tiers)
    }

    /// Checks the flags like [`KvTierArgs::check`], and adds their faults to those of other flags.
    pub(super) fn tiers(self, engine: EngineKind, faults: &mut Faults) -> Option<KvTierSettings> {
        self.tiers_within(host_memory_bytes(), engine, faults)
    }

    /// Adds the flags that an engine of this kind has no use for.
    fn engine_faults(&self, engine: EngineKind, faults: &mut Faults) {
        let has_shim = matches!(engine, EngineKind::Vllm | EngineKind::Sglang | EngineKind::Trtllm);
        if self.kv_host_gb != 0.0 && engine != EngineKind::Builtin && !has_shim {
            faults.0.push("kv-host-gb: needs --engine builtin, vllm, sglang or trtllm".into());
        }
        if self.kv_socket_dir.is_some() && !has_shim {
            faults.0.push("kv-socket-dir: needs --engine vllm, sglang or trtllm".into());
        }
        // What other engines hand over does not say whose it is.
        let has_tenants =
            matches!(engine, EngineKind::Builtin | EngineKind::Vllm | EngineKind::Sglang);
        if self.kv_tenant_share_percent.is_some() && !has_tenants {
            faults.0.push("kv-tenant-share-percent: needs --engine builtin, vllm or sglang".into());
        }
    }

    /// Adds faults of the limits of a disk.
    fn disk_faults(&self, faults: &mut Faults) {
        let limits = [
            ("kv-disk-gb", self.kv_disk_gb, GB_MAX),
            ("kv-disk-write-mb-s", self.kv_disk_write_mb_s, MB_S_MAX),
        ];
        for (flag, value, most) in limits {
            let Some(value) = value else { continue };
            if !(value > 0.0 && value <= most) {
                faults.0.push(format!("{flag}: {value} is not above 0 and at most {most}"));
            }
            if self.kv_disk_dir.is_none() {
                faults.0.push(format!("kv-disk-dir: needed with {flag} {value}"));
            }
        }
    }

    /// A fault of the room for an object store.
    fn object_room_fault(&self) -> Option<String> {
        let gb = self.kv_object_gb?;
        if !(gb > 0.0 && gb <= GB_MAX) {
            return Some(format!("kv-object-gb: {gb} is not above 0 and at most {GB_MAX}"));
        }
        match self.kv_object.as_deref() {
            None => Some(format!("kv-object: needed with kv-object-gb {gb}")),
            Some(url) if is_directory(url) => None,
            Some(url) => Some(format!(
                "kv-object-gb: {gb} has no effect on {url:?}; a lifecycle rule limits a bucket"
            )),
        }
    }

    fn tiers_within(
        self,
        memory_bytes: Option<u64>,
        engine: EngineKind,
        faults: &mut Faults,
    ) -> Option<KvTierSettings> {
        let before = faults.0.len();
        let host_gb = self.kv_host_gb;
        faults.range("kv-host-gb", host_gb, 0.0, GB_MAX);
        if let Some(memory) = memory_bytes.filter(|memory| host_gb * GB > *memory as f64) {
            let memory_gb = memory as f64 / GB;
            faults.0.push(format!(
                "kv-host-gb: {host_gb} GB are more than the memory here, {memory_gb:.1} GB"
            ));
        }
        self.disk_faults(faults);
        if let Some(fault) = self.kv_object.as_deref().and_then(object_fault) {
            faults.0.push(fault);
        }
        faults.0.extend(self.object_room_fault());
        if let Some(percent) = self.kv_tenant_share_percent {
            faults.range("kv-tenant-share-percent", percent, 1, 100);
        }
        let below = [
            ("kv-disk-dir", self.kv_disk_dir.is_some()),
            ("kv-object", self.kv_object.is_some()),
            ("kv-nixl", self.kv_nixl.is_some()),
            ("kv-key-file", self.kv_key_file.is_some()),
            ("kv-tenant-share-percent", self.kv_tenant_share_percent.is_some()),
            ("kv-metrics-names", self.kv_metrics_names != KvMetricsNamesArg::default()),
            ("kv-socket-dir", self.kv_socket_dir.is_some()),
        ];
        // Blocks go through host memory on their way to and from engines and the tiers below.
        for (flag, _) in below.into_iter().filter(|(_, given)| *given && host_gb == 0.0) {
            faults.0.push(format!("{flag}: needs kv-host-gb above 0"));
        }
        self.engine_faults(engine, faults);
        if self.kv_key_file.is_some() && self.kv_disk_dir.is_none() && self.kv_object.is_none() {
            faults.0.push("kv-key-file: needs kv-disk-dir or kv-object".into());
        }
        let key = faults.keep_one(read_key(self.kv_key_file)).flatten();
        let usable = faults.0.len() == before && host_gb > 0.0;
        usable.then(|| KvTierSettings {
            host_bytes: (host_gb * GB) as u64,
            disk: self.kv_disk_dir.map(|dir| {
                let gb = self.kv_disk_gb.unwrap_or(host_gb * DISK_FACTOR);
                let pace = self.kv_disk_write_mb_s;
                let write_bytes_per_s = pace.map(|mb| ((mb * MB) as u64).max(1));
                KvDiskSettings { dir, bytes: (gb * GB) as u64, write_bytes_per_s }
            }),
            object: self.kv_object.map(|url| {
                let gb = self.kv_object_gb.unwrap_or((host_gb * OBJECT_FACTOR).min(GB_MAX));
                let bytes = is_directory(&url).then_some((gb * GB) as u64);
                KvObjectSettings { url, bytes }
            }),
            nixl: self.kv_nixl,
            key,
            tenant_share_percent: self.kv_tenant_share_percent,
            has_dynamo_names: self.kv_metrics_names == KvMetricsNamesArg::Dynamo,
            socket_dir: self.kv_socket_dir,
        })
    }
}

/// Whether an object store is a directory, which the agents keep within its room themselves.
fn is_directory(url: &str) -> bool {
    url.starts_with("file://")
}

/// The key of a file, if there is one.
fn read_key(file: Option<PathBuf>) -> Result<Option<KvKeySettings>, String> {
    let Some(file) = file else { return Ok(None) };
    let secret = Secret::read(&file).map_err(|fault| format!("kv-key-file: {fault}"))?;
    let key = KvKey::of_secret(secret.reveal().as_bytes());
    Ok(Some(KvKeySettings { file, key }))
}

/// A fault of an object store's URL.
fn object_fault(url: &str) -> Option<String> {
    let rest = ["s3://", "file:///"].iter().find_map(|scheme| url.strip_prefix(scheme));
    let is_named = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    (!is_named)
        .then(|| format!("kv-object: {url:?} is neither `s3://bucket/prefix` nor `file:///folder`"))
}

/// Memory of this machine, or of the container around this process; `None` where the system does
/// not say it as Linux does.
fn host_memory_bytes() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.as_deref().and_then(total_memory);
    // Absent, or the word `max`, where nothing limits the container.
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(container).min()
}

/// The line `MemTotal` of `/proc/meminfo`, which counts in KiB.
fn total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    fn check(engine: EngineKind, args: &[&str]) -> Result<Option<KvTierSettings>, Vec<String>> {
        let command = KvTierArgs::augment_args(Command::new("agent").no_binary_name(true));
        let args = KvTierArgs::from_arg_matches(&command.get_matches_from(args)).unwrap();
        let mut faults = Faults::default();
        let tiers = args.tiers_within(Some(24_000_000_000), engine, &mut faults);
        if faults.0.is_empty() { Ok(tiers) } else { Err(faults.0) }
    }

    #[test]
    fn there_are_no_tiers_without_flags() {
        for engine in [EngineKind::Builtin, EngineKind::Sim, EngineKind::Openai] {
            assert_eq!(check(engine, &[]), Ok(None));
        }
    }

    #[test]
    fn fractions_of_gigabytes_are_taken() {
        let disk = ["--kv-disk-dir=/var/kv", "--kv-disk-gb=2.25", "--kv-disk-write-mb-s=0.5"];
        let below = ["--kv-object=s3://b/p", "--kv-nixl=/lib/nixl.so"];
        let flags = [&["--kv-host-gb=0.5"], &disk[..], &below[..]].concat();
        let disk = KvDiskSettings {
            dir: "/var/kv".into(),
            bytes: 2_250_000_000,
            write_bytes_per_s: Some(500_000),
        };
        let object = Some(KvObjectSettings { url: "s3://b/p".into(), bytes: None });
        let nixl = Some("/lib/nixl.so".into());
        let (host_bytes, disk) = (500_000_000, Some(disk));
        let tiers = KvTierSettings {
            host_bytes,
            disk,
            object,
            nixl,
            key: None,
            tenant_share_percent: None,
            has_dynamo_names: false,
            socket_dir: None,
        };
        assert_eq!(check(EngineKind::Vllm, &flags), Ok(Some(tiers)));
    }

    #[test]
    fn a_disk_has_room_for_ten_times_the_host_memory_unless_told() {
        let tiers = check(EngineKind::Builtin, &["--kv-host-gb=1.5", "--kv-disk-dir=/d"]).unwrap();
        assert_eq!(tiers.unwrap().disk.unwrap().bytes, 15_000_000_000);
    }

    #[test]
    fn a_shared_directory_is_bounded_and_a_bucket_is_not() {
        let check = |flags: &[&str]| {
            let flags = [&["--kv-host-gb=1.5"], flags].concat();
            check(EngineKind::Vllm, &flags).map(|tiers| tiers.unwrap().object.unwrap().bytes)
        };
        let directory = "--kv-object=file:///kv";
        assert_eq!(check(&[directory]), Ok(Some(150_000_000_000)));
        assert_eq!(check(&[directory, "--kv-object-gb=0.25"]), Ok(Some(250_000_000)));
        assert_eq!(check(&["--kv-object=s3://b/p"]), Ok(None));
        let faults = [
            (directory, "kv-object-gb: 0 is not above 0 and at most 1000000", "--kv-object-gb=0"),
            (
                "--kv-object=s3://b/p",
                "kv-object-gb: 2 has no effect on \"s3://b/p\"; a lifecycle rule limits a bucket",
                "--kv-object-gb=2",
            ),
            ("--kv-disk-dir=/d", "kv-object: needed with kv-object-gb 2", "--kv-object-gb=2"),
        ];
        for (object, fault, room) in faults {
            assert_eq!(check(&[object, room]).unwrap_err(), [fault]);
        }
    }

    #[test]
    fn every_fault_is_reported_with_flag_value_and_limit() {
        let lower = ["--kv-disk-dir=/d", "--kv-object=ftp://x", "--kv-nixl=/n", "--kv-disk-gb=0"];
        let cases: [(&[&str], &[&str]); 4] = [
            (
                &lower,
                &[
                    "kv-disk-gb: 0 is not above 0 and at most 1000000",
                    "kv-object: \"ftp://x\" is neither `s3://bucket/prefix` nor `file:///folder`",
                    "kv-disk-dir: needs kv-host-gb above 0",
                    "kv-object: needs kv-host-gb above 0",
                    "kv-nixl: needs kv-host-gb above 0",
                ],
            ),
            (&["--kv-host-gb=64"], &["kv-host-gb: 64 GB are more than the memory here, 24.0 GB"]),
            (&["--kv-host-gb=NaN"], &["kv-host-gb: NaN is not in 0..=1000000"]),
            (&["--kv-host-gb=-1"], &["kv-host-gb: -1 is not in 0..=1000000"]),
        ];
        for (flags, expected) in cases {
            assert_eq!(check(EngineKind::Builtin, flags).unwrap_err(), expected, "{flags:?}");
        }
        let share = ["--kv-host-gb=1", "--kv-tenant-share-percent=0"];
        let share = check(EngineKind::Builtin, &share).unwrap_err();
        assert_eq!(share, ["kv-tenant-share-percent: 0 is not in 1..=100"]);
        let share = ["--kv-host-gb=1", "--kv-tenant-share-percent=9"];
        assert!(
            check(EngineKind::Vllm, &share).is_ok() && check(EngineKind::Sglang, &share).is_ok()
        );
        let share = check(EngineKind::Trtllm, &share).unwrap_err();
        assert_eq!(share, ["kv-tenant-share-percent: needs --engine builtin, vllm or sglang"]);
        let room = check(EngineKind::Builtin, &["--kv-host-gb=1", "--kv-disk-gb=2"]);
        assert_eq!(room.unwrap_err(), ["kv-disk-dir: needed with kv-disk-gb 2"]);
        let pace = check(EngineKind::Builtin, &["--kv-host-gb=1", "--kv-disk-write-mb-s=-3"]);
        let faults = [
            "kv-disk-write-mb-s: -3 is not above 0 and at most 1000000",
            "kv-disk-dir: needed with kv-disk-write-mb-s -3",
        ];
        assert_eq!(pace.unwrap_err(), faults);
    }

    #[test]
    fn a_key_is_read_from_its_file_and_encrypts_something() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let flag = format!("--kv-key-file={}", file.display());
        let check = |flags: &[&str]| {
            let flags = [&["--kv-host-gb=1", &flag], flags].concat();
            check(EngineKind::Builtin, &flags).map(|tiers| tiers.unwrap().key)
        };
        let disk = ["--kv-disk-dir=/d"];
        assert!(check(&disk).unwrap_err()[0].starts_with("kv-key-file: cannot read"));
        std::fs::write(&file, "short").unwrap();
        assert!(check(&disk).unwrap_err()[0].ends_with("5 bytes, 16 to 4096"));
        std::fs::write(&file, "correct-horse-battery\n").unwrap();
        let key = KvKey::of_secret(b"correct-horse-battery");
        assert_eq!(check(&disk), Ok(Some(KvKeySettings { file: file.clone(), key })));
        assert_eq!(check(&[]).unwrap_err(), ["kv-key-file: needs kv-disk-dir or kv-object"]);
    }

    #[test]
    fn an_engine_without_kv_of_its_own_here_has_no_tiers() {
        for engine in [EngineKind::Sim, EngineKind::Openai] {
            let error = check(engine, &["--kv-host-gb=1"]).unwrap_err();
            assert_eq!(error, ["kv-host-gb: needs --engine builtin, vllm, sglang or trtllm"]);
        }
        assert!(check(EngineKind::Sglang, &["--kv-host-gb=1"]).unwrap().is_some());
    }

    #[test]
    fn the_machines_memory_is_read_in_kib() {
        let text = "MemFree:  5 kB\nMemTotal:       24000000 kB\nBuffers: 1 kB\n";
        assert_eq!(total_memory(text), Some(24_576_000_000));
        assert_eq!(total_memory("MemTotal: lots\n"), None);
    }
}
