//! How the engine's process is started, where the agent starts it.

use crate::config::{Origin, StockSettings};
use anyhow::Context;
use stator_dialect::Kind;
use stator_protos::discovery::Role;
use stator_supervise::{Events, Options, Policy, Supervisor, command, ports};
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;

/// Topic of the engine's events.
const TOPIC: &str = "kv-events";

/// An engine that is to be started.
pub(super) struct Launch {
    pub(super) supervisor: Supervisor,
    /// Has the engine's sockets; goes with it.
    pub(super) home: tempfile::TempDir,
}

/// The engine that the settings name, unless it runs already, and where it serves.
///
/// # Errors
///
/// When the engine's own flags contradict what the agent relies on, or there are no free ports.
pub(super) fn launch(settings: &StockSettings) -> anyhow::Result<(Option<Launch>, String)> {
    let (program, port, args) = match &settings.origin {
        Origin::Attached { url } => return Ok((None, url.clone())),
        Origin::Started { program, port, args } => (program, port, args),
    };
    let ranks = u16::try_from(command::data_parallel_ranks(args)).unwrap_or(u16::MAX);
    let home = tempfile::Builder::new().prefix("stator-").tempdir().context("no directory")?;
    let port = match *port {
        0 => ports::free_ports(1).context("engine-port")?,
        port => port,
    };
    let http = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let model = settings.model.display().to_string();
    let served = settings.model_name.clone().unwrap_or_else(|| folder(&settings.model));
    let mut options = Options::new(model, served, http);
    options.program = program.clone();
    options.events = Some(events(home.path(), ranks)?);
    options.role = settings.role;
    options.connector = settings.connector.clone();
    options.extra = args.clone();
    if settings.role != Role::Aggregated {
        let side = ports::free_ports(ranks).context("no port for the connector")?;
        options.side_channel = Some(reachable(settings.reachable_at.as_deref(), side)?);
    }
    let command = match settings.kind {
        Kind::Vllm => command::vllm(&options),
        Kind::Sglang => command::sglang(&options),
        Kind::Trtllm => command::trtllm(&options),
    };
    let policy = Policy {
        start_timeout: settings.start_timeout,
        hang_timeout: settings.hang_timeout,
        restarts: settings.restarts,
        ..Policy::default()
    };
    let supervisor = Supervisor::new(&format!("engine-{port}"), command?, policy);
    Ok((Some(Launch { supervisor, home }), format!("http://{http}")))
}

/// The address that a host's name stands for.
fn reachable(host: Option<&str>, port: u16) -> anyhow::Result<SocketAddr> {
    let Some(host) = host else { return Ok((Ipv4Addr::LOCALHOST, port).into()) };
    let mut found = (host, port).to_socket_addrs().context("advertise-host")?;
    found.next().with_context(|| format!("advertise-host: {host:?} has no address"))
}

/// Sockets that nobody else can connect to, where there is one rank; ports in a row for more.
fn events(home: &Path, ranks: u16) -> anyhow::Result<Events> {
    let topic = TOPIC.to_owned();
    if ranks == 1 {
        let at = |name: &str| format!("ipc://{}", home.join(name).display());
        return Ok(Events { publish: at("events"), replay: at("replay"), topic });
    }
    let first = ports::free_ports(ranks.saturating_mul(2)).context("no ports for KV events")?;
    let second = first.saturating_add(ranks);
    Ok(Events { publish: format!("tcp://*:{first}"), replay: format!("tcp://*:{second}"), topic })
}

/// The name of a model that was given none.
pub(super) fn folder(model: &Path) -> String {
    // `models/x/..` or `.` has no name of its own; the folder it leads to has.
    let model = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    model.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}
