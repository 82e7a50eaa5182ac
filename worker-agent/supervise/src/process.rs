//! Processes of an engine: the one that was started, its children, and a guard that ends them all
//! should this process be killed.

use crate::command::EngineCommand;
use crate::ending::{Ending, Exit};
use crate::memory::OomKills;
use crate::output::Output;
use crate::phase::Phase;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Longest wait for the end of the output once all processes are gone. A process that left the
/// group may hold it open.
const OUTPUT_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Prefix of the agent's own variables; some are secrets, and none is for the engine.
const OWN_VARIABLES: &[u8] = b"STATOR_";

/// Shell script of the guard. It waits for the end of its input, which is the end of the process
/// that holds the other side, and then ends a process group: with SIGTERM, and 10 s later with
/// SIGKILL.
const GUARD: &str = r#"read -r _; kill -s TERM -- "-$1" && sleep 10 && kill -s KILL -- "-$1""#;

/// A running engine. Dropping it kills all of its processes.
#[derive(Debug)]
pub(crate) struct Engine {
    processes: Processes,
    phase: watch::Receiver<Phase>,
}

/// The parts of an engine that have to end.
#[derive(Debug)]
struct Processes {
    group: Group,
    leader: Child,
    output: Arc<Output>,
    readers: JoinSet<()>,
    kills_before: OomKills,
    /// Exit of the leader, and deadline for its last output.
    exited: Option<(ExitStatus, Instant)>,
}

/// A process group, which is killed when dropped.
#[derive(Debug)]
struct Group {
    id: Pid,
    /// Ends together with this value.
    _guard: Child,
}

impl Engine {
    /// Starts an engine in a process group of its own, whose id is that of the process.
    ///
    /// # Errors
    ///
    /// The system's error where the program or the guard cannot be run, or a file cannot be
    /// written.
    pub(crate) fn start(name: Arc<str>, command: EngineCommand) -> io::Result<Self> {
        for (path, contents) in &command.files {
            write_private(path, contents)?;
        }
        // Before the start, so that the difference at the end holds every kill of this engine.
        let kills_before = OomKills::read();
        let mut leader = Command::new(&command.program);
        for (variable, _) in std::env::vars_os() {
            if variable.as_encoded_bytes().starts_with(OWN_VARIABLES) {
                leader.env_remove(variable);
            }
        }
        let mut leader = leader
            .args(&command.args)
            .envs(command.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let group = Group::new(&leader)?;
        let output = Arc::new(Output::new(name, command.secrets));
        let mut readers = JoinSet::new();
        let stdout = leader.stdout.take().expect("standard output is piped");
        let stderr = leader.stderr.take().expect("standard error is piped");
        readers.spawn(output.clone().follow(stdout));
        readers.spawn(output.clone().follow(stderr));
        let phase = output.phase();
        let processes = Processes { group, leader, output, readers, kills_before, exited: None };
        Ok(Self { processes, phase })
    }

    /// The id of the process, and of its group.
    pub(crate) fn pid(&self) -> u32 {
        self.processes.group.id.as_raw_nonzero().get().unsigned_abs()
    }

    /// Sends a signal to all processes of the engine.
    pub(crate) fn signal(&self, signal: Signal) {
        self.processes.group.signal(signal);
    }

    /// Waits for the next phase of the start, or for the end.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call goes on.
    pub(crate) async fn next(&mut self) -> Result<Phase, Ending> {
        tokio::select! {
            // The sender is dropped after this.
            Ok(()) = self.phase.changed() => Ok(*self.phase.borrow_and_update()),
            ending = self.processes.ended() => Err(ending),
        }
    }
}

/// Writes a file that nobody else can read, over an earlier one.
fn write_private(path: &Path, contents: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| file.write_all(contents.as_bytes()));
    written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

impl Processes {
    async fn ended(&mut self) -> Ending {
        let (status, until) = match self.exited {
            Some(exited) => exited,
            None => {
                let status = self.leader.wait().await;
                let until = Instant::now() + OUTPUT_ENDS_WITHIN;
                // That its end cannot be awaited means that somebody else has: it is gone.
                *self.exited.insert((status.unwrap_or_default(), until))
            }
        };
        // What is left of the engine can do nothing without the process that leads it.
        self.group.signal(Signal::KILL);
        let all = async { while self.readers.join_next().await.is_some() {} };
        // Past that time the last words are those that have come.
        let _ = tokio::time::timeout_at(until, all).await;
        let exit = match status.signal() {
            Some(signal) => Exit::Signal(signal),
            None => Exit::Code(status.code().unwrap_or_default()),
        };
        let kills = OomKills::read().since(self.kills_before);
        let (tail, out_of_memory) = (self.output.tail(), self.output.out_of_memory());
        Ending { exit, tail, out_of_memory, kills }
    }
}

impl Group {
    fn new(leader: &Child) -> io::Result<Self> {
        let id = leader.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let id = id.expect("a child that nobody waited for has an id");
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard", &id.as_raw_nonzero().to_string()])
            // Held open by this process alone: its end is what the guard waits for.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Else what ends this process's group would end the guard too.
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let guard = guard.map_err(|error| {
            // Nobody would end what the leader starts from now on.
            let _ = kill_process_group(id, Signal::KILL);
            io::Error::new(error.kind(), format!("its guard, sh: {error}"))
        })?;
        Ok(Self { id, _guard: guard })
    }

    fn signal(&self, signal: Signal) {
        // Fails only where all of its processes have ended.
        let _ = kill_process_group(self.id, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
