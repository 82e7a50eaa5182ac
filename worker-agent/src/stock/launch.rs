//! Start of the engine's process, if the agent starts it.

use super::place::EnginePlace;
use crate::config::{Origin, StockSettings};
use anyhow::Context;
use stator_dialect::{Connector, Dialect, Kind};
use stator_protos::discovery::Role;
use stator_supervise::{
    EngineCommand, Events, Key, KvTiers, Options, Policy, Recipe, Supervisor, command, ports,
};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

/// Topic of the engine's events.
const TOPIC: &str = "kv-events";

/// An engine that is to be started.
pub(super) struct Launch {
    pub(super) supervisor: Supervisor,
    /// Has the engine's sockets; goes with it.
    pub(super) home: tempfile::TempDir,
}

/// Prepares the start of the engine that the settings name, unless it runs already, and its place.
/// The engine's output is logged under `name`; it keeps KV in these tiers.
///
/// # Errors
///
/// When the engine's own flags contradict what the agent relies on, or there are no free ports.
pub(super) fn launch(
    settings: &StockSettings,
    name: &str,
    kv_tiers: Option<KvTiers>,
) -> anyhow::Result<(Option<Launch>, Arc<EnginePlace>)> {
    if let Origin::Attached { url } = &settings.origin {
        let place = EnginePlace::new(url, connect(settings, url, None).context("attach")?);
        return Ok((None, Arc::new(place)));
    }
    let home = tempfile::Builder::new().prefix("stator-").tempdir().context("no directory")?;
    let reachable = reachable(settings.reachable_at.as_deref())?;
    let files = EngineFiles { home: home.path().into(), kv_tiers };
    // Whether there is a command at all is to be found out now.
    let (_, url, dialect) = next(settings, &files, reachable)?;
    let place = Arc::new(EnginePlace::new(&url, dialect));
    let starts = Starts { settings: settings.clone(), files, reachable, place: place.clone() };
    let policy = Policy {
        start_timeout: settings.start_timeout,
        hang_timeout: settings.hang_timeout,
        restarts: settings.restarts,
        ..Policy::default()
    };
    Ok((Some(Launch { supervisor: Supervisor::new(name, starts, policy), home }), place))
}

/// Starts an engine, each time on ports that are free then.
#[derive(Debug)]
struct Starts {
    settings: StockSettings,
    files: EngineFiles,
    /// Address under which other engines reach it.
    reachable: IpAddr,
    /// Place to update with each start.
    place: Arc<EnginePlace>,
}

/// What an engine finds in the file system.
#[derive(Debug)]
struct EngineFiles {
    /// Folder for its sockets.
    home: Box<Path>,
    /// Tiers where it keeps KV.
    kv_tiers: Option<KvTiers>,
}

impl Recipe for Starts {
    fn command(&mut self) -> Result<EngineCommand, String> {
        let next = next(&self.settings, &self.files, self.reachable);
        let (command, url, dialect) = next.map_err(|error| format!("{error:#}"))?;
        tracing::info!(url, "the engine is to serve here");
        self.place.moves(&url, dialect);
        Ok(command)
    }
}

/// The next start of an engine: its command, its URL and its dialect.
fn next(
    settings: &StockSettings,
    files: &EngineFiles,
    reachable: IpAddr,
) -> anyhow::Result<(EngineCommand, String, Arc<dyn Dialect>)> {
    let at = StartPlace { ports: Ports::choose(settings)?, reachable };
    let url = format!("http://{}", http(settings, at));
    let command = command(settings, files, at)?;
    let dialect = connect(settings, &url, Some(at))?;
    Ok((command, url, dialect))
}

/// A dialect for the engine at `url`, which was started with these ports at this address.
fn connect(
    settings: &StockSettings,
    url: &str,
    started: Option<StartPlace>,
) -> anyhow::Result<Arc<dyn Dialect>> {
    let (url, api_key) = (url.to_owned(), settings.api_key.clone());
    let side = started.and_then(|place| side_channel(settings, place));
    let (connector, model) = (connector(settings, side), settings.model_name.clone());
    let (handover_key, together) = (settings.handover_key.clone(), settings.together);
    let options =
        stator_dialect::Options { url, api_key, handover_key, together, connector, model };
    Ok(stator_dialect::connect(settings.kind, options)?)
}

/// The KV connector, for an engine that does not report its own, with its bootstrap address.
fn connector(settings: &StockSettings, side: Option<SocketAddr>) -> Option<Connector> {
    let role = match settings.role {
        Role::Prefill => stator_dialect::Role::Prefill,
        Role::Decode => stator_dialect::Role::Decode,
        Role::Aggregated | Role::Encode => return None,
    };
    let usual = match settings.kind {
        Kind::Vllm => "NixlConnector",
        Kind::Sglang => "mooncake",
        Kind::Trtllm => "DEFAULT",
        Kind::Openai => return None,
    };
    let name = settings.connector.clone().unwrap_or_else(|| usual.into());
    let side = side.filter(|_| role == stator_dialect::Role::Prefill);
    Some(Connector { name, role, bootstrap: side.map(|side| format!("http://{side}")) })
}

/// Ports of one start of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports {
    /// HTTP, see [`http`].
    http: u16,
    /// The first of two for each rank: events, and their replay.
    events: u16,
    /// Port where engines that exchange KV introduce themselves; rank r takes the r-th from here.
    side: u16,
}

/// Ports of one start of an engine, and the address under which other engines reach it.
#[derive(Clone, Copy, Debug)]
struct StartPlace {
    ports: Ports,
    reachable: IpAddr,
}

impl Ports {
    /// Ports that are free now; one that the user chose is taken as it is.
    fn choose(settings: &StockSettings) -> anyhow::Result<Self> {
        let chosen = match settings.origin {
            Origin::Started { port, .. } => port,
            Origin::Attached { .. } => 0,
        };
        let ranks = ranks(settings);
        let (own, events) = (u16::from(chosen == 0), ranks.saturating_mul(2));
        let count = own.saturating_add(events).saturating_add(ranks);
        let first = ports::free_ports(count, chosen).context("engine-port")?;
        let http = if chosen == 0 { first } else { chosen };
        Ok(Self { http, events: first + own, side: first + own + events })
    }
}

/// Address of an engine's HTTP, for its agent alone. The bootstrap server of a prefill SGLang
/// listens at the same address, and other engines must reach it.
fn http(settings: &StockSettings, place: StartPlace) -> SocketAddr {
    let met = settings.kind == Kind::Sglang && settings.role == Role::Prefill;
    (if met { place.reachable } else { Ipv4Addr::LOCALHOST.into() }, place.ports.http).into()
}

/// Address where an engine and those that exchange KV with it meet.
fn side_channel(settings: &StockSettings, place: StartPlace) -> Option<SocketAddr> {
    let shared = settings.role != Role::Aggregated;
    shared.then(|| (place.reachable, place.ports.side).into())
}

/// The command that starts the engine on these ports, with these files.
fn command(
    settings: &StockSettings,
    EngineFiles { home, kv_tiers }: &EngineFiles,
    place: StartPlace,
) -> anyhow::Result<EngineCommand> {
    let model = settings.model.display().to_string();
    let served = settings.model_name.clone().unwrap_or_else(|| folder(&settings.model));
    let mut options = Options::new(model, served, http(settings, place), &**home);
    if let Origin::Started { program, args, .. } = &settings.origin {
        (options.program, options.extra) = (program.clone(), args.clone());
    }
    options.events = Some(events(home, place.ports.events, ranks(settings)));
    options.is_follower = settings.is_follower;
    options.kv_tiers = kv_tiers.clone();
    options.role = settings.role;
    options.connector = settings.connector.clone();
    options.side_channel = side_channel(settings, place);
    let key = settings.api_key.as_ref();
    options.key = key.map(|key| Key(key.0.clone()));
    let mut command = match settings.kind {
        Kind::Vllm => command::vllm(&options),
        Kind::Sglang => command::sglang(&options),
        Kind::Trtllm => command::trtllm(&options),
        Kind::Openai => anyhow::bail!("engine: it is attached, not started"),
    }?;
    // Its own file tells it, and it may print what it was told.
    command.secrets.extend(settings.handover_key.iter().map(|key| key.0.clone()));
    Ok(command)
}

/// Data-parallel ranks of an engine that is started.
fn ranks(settings: &StockSettings) -> u16 {
    let Origin::Started { args, .. } = &settings.origin else { return 1 };
    u16::try_from(command::data_parallel_ranks(args)).unwrap_or(u16::MAX)
}

/// The address that a host's name stands for.
fn reachable(host: Option<&str>) -> anyhow::Result<IpAddr> {
    let Some(host) = host else { return Ok(Ipv4Addr::LOCALHOST.into()) };
    let mut found = (host, 0).to_socket_addrs().context("advertise-host")?;
    let found = found.next().with_context(|| format!("advertise-host: {host:?} has no address"))?;
    Ok(found.ip())
}

/// Sockets that nobody else can connect to, where there is one rank; ports in a row for more.
fn events(home: &Path, first: u16, ranks: u16) -> Events {
    let topic = TOPIC.to_owned();
    if ranks == 1 {
        let at = |name: &str| format!("ipc://{}", home.join(name).display());
        return Events { publish: at("events"), replay: at("replay"), topic };
    }
    let second = first.saturating_add(ranks);
    Events { publish: format!("tcp://*:{first}"), replay: format!("tcp://*:{second}"), topic }
}

/// The name of a model that was given none.
fn folder(model: &Path) -> String {
    // `models/x/..` or `.` has no name of its own; the folder it leads to has.
    let model = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    model.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
