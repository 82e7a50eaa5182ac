//! The command line that starts an engine as an agent needs it.

mod error;
mod flags;
mod sglang;
#[cfg(test)]
mod tests;
mod trtllm;
mod vllm;

pub use error::CommandError;
pub use sglang::sglang;
pub use trtllm::trtllm;
pub use vllm::vllm;

use flags::Flags;
use stator_protos::discovery::Role;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Requirements of an agent for the engine that it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The engine's program; `None` takes the usual one from PATH.
    pub program: Option<PathBuf>,
    /// The model: a folder, or a name that the engine can resolve.
    pub model: String,
    /// The model's name in requests to the engine.
    pub served_name: String,
    /// Address for the engine's HTTP server.
    pub http: SocketAddr,
    /// A folder for this user alone, for files that the engine reads.
    pub home: PathBuf,
    /// Publisher of KV events; `None` publishes none.
    pub events: Option<Events>,
    /// Whether it is a further node of an engine that serves elsewhere.
    pub is_follower: bool,
    /// Part of a request that the engine takes.
    pub role: Role,
    /// KV connector; `None` takes the engine's usual one. An aggregated engine has no use for it.
    pub connector: Option<String>,
    /// Address where engines that exchange KV introduce themselves: the handshake of NIXL, the
    /// bootstrap server of Mooncake. Rank r takes the r-th port from here.
    pub side_channel: Option<SocketAddr>,
    /// Key that the engine's clients have to present; `None` leaves that to the engine's own flags.
    pub key: Option<Key>,
    /// Where the engine keeps KV that its own memory has no room for; `None` for nowhere.
    pub kv_tiers: Option<KvTiers>,
    /// The engine's own flags, appended to ours unchanged.
    pub extra: Vec<String>,
}

/// Way of an engine to the KV tiers of its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvTiers {
    /// Socket where the agent listens.
    pub socket: PathBuf,
    /// Folder of the Python modules that the engine loads.
    pub modules: PathBuf,
}

/// A key that an engine asks for. It never stands on a command line, which everybody on the machine
/// can read.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Endpoints of an engine's KV events.
///
/// Rank r of a data-parallel engine takes the r-th port from here, so `ipc://` is for one rank.
/// A `tcp://` endpoint is bound by the engine only where the host is `*`; to any other the engine
/// connects, and the subscriber has to bind.
///
/// Source: vLLM 0.32, `ZmqEventPublisher`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// ZMQ endpoint of the events.
    pub publish: String,
    /// ZMQ endpoint for replays.
    pub replay: String,
    /// Topic of the events.
    pub topic: String,
}

/// Command that starts an engine's process.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EngineCommand {
    /// The program: a path, or a name that is looked up in PATH.
    pub program: PathBuf,
    /// The program's arguments.
    pub args: Vec<String>,
    /// Environment variables beside the inherited ones.
    pub env: Vec<(String, String)>,
    /// Files for the program, written before it starts and for its user alone.
    pub files: Vec<(PathBuf, String)>,
    /// Texts to mask in the logged output.
    pub secrets: Vec<String>,
}

impl fmt::Debug for EngineCommand {
    /// Omits the values of variables, the contents of files, and secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineCommand")
            .field("program", &self.program)
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}

/// Makes the command for each start of an engine: a port that was free last time may be taken by
/// now.
pub trait Recipe: fmt::Debug + Send {
    /// The next command.
    ///
    /// # Errors
    ///
    /// The obstacle, in words for a log.
    fn command(&mut self) -> Result<EngineCommand, String>;
}

/// Repeats the same command.
impl Recipe for EngineCommand {
    fn command(&mut self) -> Result<Self, String> {
        Ok(self.clone())
    }
}

impl Options {
    /// Options of an aggregated engine without KV events and without flags of its own.
    pub fn new(
        model: impl Into<String>,
        served_name: impl Into<String>,
        http: SocketAddr,
        home: impl Into<PathBuf>,
    ) -> Self {
        Self {
            program: None,
            model: model.into(),
            served_name: served_name.into(),
            http,
            home: home.into(),
            events: None,
            is_follower: false,
            role: Role::Aggregated,
            connector: None,
            side_channel: None,
            key: None,
            kv_tiers: None,
            extra: Vec::new(),
        }
    }

    /// The engine's own flags, checked against those that the agent sets.
    fn flags(&self, dialect: &flags::Dialect) -> Result<Flags, CommandError> {
        Flags::new(dialect, &self.extra)
    }

    /// Refuses a role that an engine does not have.
    fn refuse_encode(&self, engine: &'static str) -> Result<(), CommandError> {
        if self.role == Role::Encode {
            let why = "role encode is for engines that are attached".to_owned();
            return Err(CommandError::Unsupported { engine, why });
        }
        Ok(())
    }
}

/// Data-parallel ranks in an engine's own flags, of any engine; 1 by default.
pub fn data_parallel_ranks(extra: &[String]) -> u32 {
    const ANY: flags::Dialect = flags::Dialect {
        aliases: &[("dp", "data-parallel-size"), ("dp-size", "data-parallel-size")],
        reserved: &[],
        repeatable: &[],
    };
    Flags::read(&ANY, extra).count("data-parallel-size")
}

/// An address in the form for command lines: IPv6 without brackets.
fn host(address: IpAddr) -> String {
    address.to_string()
}

/// Words of a command line.
fn words<const N: usize>(words: [&str; N]) -> [String; N] {
    words.map(str::to_owned)
}

/// Environment of every Python engine: unbuffered output.
fn python_env() -> Vec<(String, String)> {
    vec![("PYTHONUNBUFFERED".to_owned(), "1".to_owned())]
}

/// The engine's Python path with the folder of the agent's modules before those of the agent's own.
fn python_path(tiers: &KvTiers) -> (String, String) {
    let inherited = std::env::var_os("PYTHONPATH").filter(|paths| !paths.is_empty());
    let paths = [tiers.modules.display().to_string()].into_iter();
    let inherited = inherited.map(|paths| paths.to_string_lossy().into_owned());
    ("PYTHONPATH".to_owned(), paths.chain(inherited).collect::<Vec<_>>().join(":"))
}

/// Texts to mask in logs.
fn secrets(options: &Options) -> Vec<String> {
    options.key.iter().map(|Key(secret)| secret.clone()).collect()
}
