//! The command line that starts an engine as an agent needs it.

mod flags;
mod sglang;
#[cfg(test)]
mod tests;
mod trtllm;
mod vllm;

pub use sglang::sglang;
pub use trtllm::trtllm;
pub use vllm::vllm;

use flags::Flags;
use stator_protos::discovery::Role;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// What an agent wants of the engine that it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The engine's program, where it is not the usual one from PATH.
    pub program: Option<PathBuf>,
    /// The model: a folder, or a name that the engine can resolve.
    pub model: String,
    /// The model's name in requests to the engine.
    pub served_name: String,
    /// Where the engine serves HTTP.
    pub http: SocketAddr,
    /// A folder for this user alone, for files that the engine is told to read.
    pub home: PathBuf,
    /// Where it publishes KV events; `None` publishes none.
    pub events: Option<Events>,
    /// What it does of a request.
    pub role: Role,
    /// What moves KV between engines; `None` takes the engine's usual one. Of no meaning to an
    /// aggregated engine.
    pub connector: Option<String>,
    /// Where engines that exchange KV introduce themselves: the handshake of NIXL, the bootstrap
    /// server of Mooncake. Rank r takes the r-th port from here.
    pub side_channel: Option<SocketAddr>,
    /// What requests to it have to present; `None` leaves it to its own flags.
    pub key: Option<Key>,
    /// The engine's own flags, which go after ours as they are.
    pub extra: Vec<String>,
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

/// Where an engine publishes its KV events.
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
    /// ZMQ endpoint that repeats them.
    pub replay: String,
    /// Their topic.
    pub topic: String,
}

/// How a process is started.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EngineCommand {
    /// The program: a path, or a name that is looked up in PATH.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment variables beside the inherited ones.
    pub env: Vec<(String, String)>,
    /// Files that it reads, written before it starts and for its user alone.
    pub files: Vec<(PathBuf, String)>,
    /// What is not to be logged of what it prints.
    pub secrets: Vec<String>,
}

impl fmt::Debug for EngineCommand {
    /// Without the values of variables, the contents of files, and secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineCommand")
            .field("program", &self.program)
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}

/// Says how the next process of an engine is started, before each start: a port that was free then
/// may be taken by now.
pub trait Recipe: fmt::Debug + Send {
    /// The next command.
    ///
    /// # Errors
    ///
    /// What is missing, in words for a log.
    fn command(&mut self) -> Result<EngineCommand, String>;
}

/// The same each time.
impl Recipe for EngineCommand {
    fn command(&mut self) -> Result<Self, String> {
        Ok(self.clone())
    }
}

/// Why there is no command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Two values for one thing, of which the engine would take either.
    #[error("engine flag {flag}: given {count} times, at most once")]
    Repeated {
        /// The flag.
        flag: String,
        /// How often.
        count: usize,
    },
    /// A flag that would contradict what the agent relies on.
    #[error("engine flag {flag}: set by the agent, {instead}")]
    Reserved {
        /// The flag as the user wrote it.
        flag: String,
        /// What to do instead.
        instead: &'static str,
    },
    /// The first word is no flag.
    #[error("engine flags: {word:?} is no flag; the model is named with --model, before `--`")]
    NotAFlag {
        /// The word.
        word: String,
    },
    /// The engine cannot do what is wanted.
    #[error("{engine} cannot be started: {why}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// What is missing.
        why: String,
    },
}

impl Options {
    /// An aggregated engine without KV events and without flags of its own.
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
            role: Role::Aggregated,
            connector: None,
            side_channel: None,
            key: None,
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

/// Data-parallel ranks that an engine's own flags ask for, of whichever engine; 1 where they do not.
pub fn data_parallel_ranks(extra: &[String]) -> u32 {
    const ANY: flags::Dialect = flags::Dialect {
        aliases: &[("dp", "data-parallel-size"), ("dp-size", "data-parallel-size")],
        reserved: &[],
        repeatable: &[],
    };
    Flags::read(&ANY, extra).count("data-parallel-size")
}

/// An address as a command line has it: without the brackets of IPv6.
fn host(address: IpAddr) -> String {
    address.to_string()
}

/// Words of a command line.
fn words<const N: usize>(words: [&str; N]) -> [String; N] {
    words.map(str::to_owned)
}

/// Variables that every Python engine gets: what it prints comes at once.
fn python_env() -> Vec<(String, String)> {
    vec![("PYTHONUNBUFFERED".to_owned(), "1".to_owned())]
}

/// What is to be kept out of logs.
fn secrets(options: &Options) -> Vec<String> {
    options.key.iter().map(|Key(secret)| secret.clone()).collect()
}
