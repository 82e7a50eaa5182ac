//! `stator up`: a proxy in this process, agents in child processes, in a directory of their own.

use crate::cli::UpArgs;
use crate::greeting::Greeting;
use anyhow::Context;
use clap::{ArgMatches, Args};
use stator_discovery::DiscoverySource;
use stator_proxy::ProxySettings;
use stator_runtime::Shutdown;
use stator_runtime::config::ConfigError;
use stator_worker_agent::{EngineArgs, EngineSettings, KvTierArgs, KvTierSettings};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Agents that share the workers; one agent where there is one worker.
const AGENTS: u32 = 2;
/// Pause before an agent that ended is started again. It doubles, up to the maximum, each time that
/// the agent ends again without having registered; one that did has served, and requests wait for it.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Name of the file with the secret that the agents share.
const SECRET: &str = "fleet-secret";

/// Runs the proxy and its agents until `shutdown`.
///
/// # Errors
///
/// When settings are wrong, or the proxy or the first agent cannot start.
pub(crate) async fn run(
    mut args: UpArgs,
    matches: &ArgMatches,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    // Nothing balances over it, so nobody has to notice that it is not ready any more.
    args.http.lame_duck_ms.get_or_insert(0);
    // Checked here, so that a fault is reported once and not by each child.
    let (engine, tiers) = own_engines(args.engine, args.tiers)?;
    let keys = &args.http.keys;
    let greeting = Greeting {
        workers: engine.workers,
        has_keys: !keys.api_key.is_empty() || keys.api_keys_file.is_some(),
        is_tls: args.http.secure_serving,
    };
    let home =
        tempfile::Builder::new().prefix("stator-").tempdir().context("no directory for sockets")?;
    let discovery_dir = home.path().join("agents");
    let secret = secret_file(home.path(), tiers.as_ref())?;
    let proxy = ProxySettings::new(
        args.http,
        args.router,
        Ok(DiscoverySource::Directory(discovery_dir.clone())),
        None,
    )?;
    let (first, mut served) = mpsc::channel(1);
    let proxy = proxy.with_first_model(first);
    tokio::spawn(async move {
        if let Some(model) = served.recv().await {
            // A reader that has gone needs no greeting.
            let _ = std::io::stdout().write_all(greeting.text(&model).as_bytes());
        }
    });

    // Agents outlive the proxy's drain, which needs them; dropping this set ends them.
    let (stop, stopped) = Shutdown::new();
    let mut agents = JoinSet::new();
    let shares = shares(engine.workers, AGENTS);
    for (number, workers) in shares.into_iter().enumerate() {
        let places = AgentPlaces { home: home.path(), discovery: &discovery_dir, secret: &secret };
        let mut line = agent_line(matches, places, number, workers);
        let share = f64::from(workers) / f64::from(engine.workers);
        line.extend(tiers.iter().flat_map(|tiers| tier_flags(tiers, number, share)));
        let record = discovery_dir.join(format!("{}.json", agent_id(number)));
        agents.spawn(supervise(number, line, record, stopped.clone()));
    }
    let served = tokio::select! {
        served = stator_proxy::run(proxy, shutdown) => served,
        Some(ended) = agents.join_next() => ended.context("supervising an agent failed")?,
    };
    stop.set();
    while let Some(ended) = agents.join_next().await {
        ended.context("supervising an agent failed")??;
    }
    served
}

/// Checks the flags of the engines and of their tiers.
///
/// # Errors
///
/// Every flag that is wrong.
fn own_engines(
    engine: EngineArgs,
    tiers: KvTierArgs,
) -> Result<(EngineSettings, Option<KvTierSettings>), ConfigError> {
    match (tiers.check(engine.engine), EngineSettings::try_from(engine)) {
        (Ok(tiers), Ok(engine)) => Ok((engine, tiers)),
        (Err(mut faults), Err(more)) => {
            faults.0.extend(more.0);
            Err(faults)
        }
        (Err(faults), _) | (_, Err(faults)) => Err(faults),
    }
}

/// The file with the agents' secret. Names of blocks depend on it, so it stays with the blocks where
/// these stay on a disk or in an object store.
fn secret_file(home: &Path, tiers: Option<&KvTierSettings>) -> anyhow::Result<PathBuf> {
    let cannot = "cannot write the fleet's secret";
    let Some(disk) = tiers.and_then(|tiers| tiers.disk.as_ref()) else {
        let file = home.join(SECRET);
        return write_secret(&file).context(cannot).map(|()| file);
    };
    std::fs::create_dir_all(&disk.dir)
        .with_context(|| format!("kv-disk-dir: cannot make {:?}", disk.dir))?;
    let file = disk.dir.join(SECRET);
    match write_secret(&file) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(file),
        written => written.context(cannot).map(|()| file),
    }
}

/// Makes a secret and writes it to a file that this user alone can read.
fn write_secret(file: &Path) -> std::io::Result<()> {
    let secret: [u8; 32] = rand::random();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    secret.iter().try_for_each(|byte| write!(file, "{byte:02x}"))
}

fn agent_id(number: usize) -> String {
    format!("agent-{number}")
}

/// Splits `workers` into at most `agents` shares that differ by one at most.
fn shares(workers: u32, agents: u32) -> Vec<u32> {
    let agents = agents.min(workers);
    (0..agents).map(|agent| workers / agents + u32::from(agent < workers % agents)).collect()
}

/// AgentPlaces that agents share.
#[derive(Clone, Copy)]
struct AgentPlaces<'p> {
    home: &'p Path,
    discovery: &'p Path,
    secret: &'p Path,
}

/// The command line of an agent: the engine's flags as they are in force here, and its own places.
fn agent_line(
    matches: &ArgMatches,
    places: AgentPlaces<'_>,
    number: usize,
    workers: u32,
) -> Vec<OsString> {
    let AgentPlaces { home, discovery, secret } = places;
    let mut line: Vec<OsString> = vec!["agent".into(), "--exit-with-parent".into()];
    let flags = EngineArgs::augment_args(clap::Command::new("engine"));
    for flag in flags.get_arguments().filter(|flag| flag.get_id() != "workers") {
        let long = flag.get_long().expect("engine settings are flags");
        for value in matches.get_raw(flag.get_id().as_str()).into_iter().flatten() {
            line.push(format!("--{long}").into());
            line.push(value.into());
        }
    }
    for log in ["log_level", "log_format"] {
        for value in matches.get_raw(log).into_iter().flatten() {
            line.push(format!("--{}", log.replace('_', "-")).into());
            line.push(value.into());
        }
    }
    // Each agent has a socket of its own, and no port that another process may have.
    let at = |kind: &str| home.join(format!("{kind}-{number}")).display().to_string();
    let own = [
        ("workers", workers.to_string()),
        ("agent-id", agent_id(number)),
        ("listen", format!("unix://{}", at("requests"))),
        ("events-listen", "off".into()),
        ("metrics-port", "0".into()),
        ("discovery-dir", discovery.display().to_string()),
        ("fleet-secret-file", secret.display().to_string()),
    ];
    for (flag, value) in own {
        line.push(format!("--{flag}={value}").into());
    }
    line
}

/// The flags of an agent's share of the tiers. Each agent has a folder of its own on the disk: a
/// folder has one owner.
fn tier_flags(tiers: &KvTierSettings, number: usize, share: f64) -> Vec<OsString> {
    let gb = |bytes: u64| bytes as f64 * share / 1e9;
    let mut flags = vec![format!("--kv-host-gb={}", gb(tiers.host_bytes)).into()];
    if let Some(disk) = &tiers.disk {
        flags.push(format!("--kv-disk-gb={}", gb(disk.bytes)).into());
        let pace = disk.write_bytes_per_s.map(|bytes| bytes as f64 * share / 1e6);
        flags.extend(pace.map(|mb| format!("--kv-disk-write-mb-s={mb}").into()));
        flags.extend(["--kv-disk-dir".into(), disk.dir.join(agent_id(number)).into()]);
    }
    if let Some(object) = &tiers.object {
        flags.push(format!("--kv-object={}", object.url).into());
        // All agents share the directory and its room.
        flags.extend(object.bytes.map(|of| format!("--kv-object-gb={}", of as f64 / 1e9).into()));
    }
    flags.extend(tiers.nixl.iter().flat_map(|file| ["--kv-nixl".into(), file.into()]));
    let share = tiers.tenant_share_percent.iter();
    flags.extend(share.map(|percent| format!("--kv-tenant-share-percent={percent}").into()));
    if let Some(key) = &tiers.key {
        flags.extend(["--kv-key-file".into(), key.file.clone().into()]);
    }
    if tiers.has_dynamo_names {
        flags.push("--kv-metrics-names=dynamo".into());
    }
    flags
}

/// Runs one agent, and runs it again when it ends, until `stopped`. An agent that ends without
/// ever having registered (`record`) has nothing to go back to: that is an error.
async fn supervise(
    number: usize,
    line: Vec<OsString>,
    record: PathBuf,
    stopped: Shutdown,
) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("cannot find this program")?;
    let mut pause = RESTART_PAUSE;
    while !stopped.is_set() {
        let mut child =
            start(&binary, &line).with_context(|| format!("cannot start agent {number}"))?;
        // Held open: its end is what tells the agent that this process is gone or stops.
        let input = child.stdin.take();
        let registered = changed(&record);
        let status = tokio::select! {
            status = child.wait() => status.context("cannot wait for an agent")?,
            () = stopped.wait() => {
                drop(input);
                child.wait().await.context("cannot wait for an agent")?;
                return Ok(());
            }
        };
        anyhow::ensure!(
            record.exists(),
            "agent {number} could not start ({status}); its log says why"
        );
        if changed(&record) != registered {
            pause = RESTART_PAUSE;
        }
        tracing::error!(agent = number, %status, pause_ms = pause.as_millis() as u64, "agent ended; starting it again");
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stopped.wait() => {}
        }
        pause = (pause * 2).min(RESTART_PAUSE_MAX);
    }
    Ok(())
}

/// Time at which an agent's record was last written, if it was.
fn changed(record: &Path) -> Option<SystemTime> {
    std::fs::metadata(record).and_then(|found| found.modified()).ok()
}

fn start(binary: &Path, line: &[OsString]) -> std::io::Result<Child> {
    // The environment was read here already; a child that read it again would take
    // settings of other roles, or this role's file, for its own.
    let own =
        std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("STATOR_"));
    Command::new(binary)
        .args(line)
        .env_clear()
        .envs(own)
        .stdin(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Set when standard input ends: the parent process closed it, or is gone.
pub(crate) fn parent_gone() -> Shutdown {
    let (trigger, gone) = Shutdown::new();
    // A thread of its own: reading standard input blocks, and nothing can interrupt it.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        trigger.set();
    });
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_worker_agent::{KvDiskSettings, KvKey, KvKeySettings, KvObjectSettings};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn each_secret_is_another_and_for_this_user_alone() {
        let home = tempfile::tempdir().unwrap();
        let secret = |name: &str| {
            let file = home.path().join(name);
            write_secret(&file).unwrap();
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::read_to_string(file).unwrap()
        };
        let (first, second) = (secret("a"), secret("b"));
        assert!(first.len() == 64 && first != second);
        assert!(write_secret(&home.path().join("a")).is_err(), "no file is written over");
    }

    #[test]
    fn the_secret_stays_with_blocks_on_a_disk() {
        let (home, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dir = disk.path().join("kv");
        let settings = KvDiskSettings { dir: dir.clone(), bytes: 1, write_bytes_per_s: None };
        let tiers = KvTierSettings {
            host_bytes: 1,
            disk: Some(settings),
            object: None,
            nixl: None,
            key: None,
            tenant_share_percent: None,
            has_dynamo_names: false,
            socket_dir: None,
        };
        let secret = |tiers| std::fs::read(secret_file(home.path(), tiers).unwrap()).unwrap();
        let first = secret(Some(&tiers));
        assert_eq!(first, secret(Some(&tiers)));
        assert_eq!(secret_file(home.path(), Some(&tiers)).unwrap(), dir.join(SECRET));
        assert_ne!(first, secret(None));
    }

    #[test]
    fn an_agent_has_its_share_of_the_tiers_and_a_folder_of_its_own() {
        let disk = KvDiskSettings {
            dir: "/var/kv".into(),
            bytes: 9_000_000_000,
            write_bytes_per_s: Some(60_000_000),
        };
        let object = KvObjectSettings { url: "file:///kv".into(), bytes: Some(70_000_000_000) };
        let tiers = KvTierSettings {
            host_bytes: 1_500_000_000,
            disk: Some(disk),
            object: Some(object),
            nixl: Some("/lib/nixl.so".into()),
            key: Some(KvKeySettings { file: "/etc/kv".into(), key: KvKey::of_secret(b"k") }),
            tenant_share_percent: Some(40),
            has_dynamo_names: true,
            socket_dir: None,
        };
        assert_eq!(
            tier_flags(&tiers, 1, 1.0 / 3.0),
            [
                "--kv-host-gb=0.5",
                "--kv-disk-gb=3",
                "--kv-disk-write-mb-s=20",
                "--kv-disk-dir",
                "/var/kv/agent-1",
                "--kv-object=file:///kv",
                "--kv-object-gb=70",
                "--kv-nixl",
                "/lib/nixl.so",
                "--kv-tenant-share-percent=40",
                "--kv-key-file",
                "/etc/kv",
                "--kv-metrics-names=dynamo",
            ]
        );
    }

    #[test]
    fn workers_are_shared_evenly_and_no_agent_is_idle() {
        assert_eq!(shares(1, 2), [1]);
        assert_eq!(shares(2, 2), [1, 1]);
        assert_eq!(shares(5, 2), [3, 2]);
        assert_eq!(shares(1024, 2), [512, 512]);
    }
}
