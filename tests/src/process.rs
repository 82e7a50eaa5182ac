//! Runs the `stator` binary.

use crate::{DEADLINE, keep, soon, within};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running `stator` process; killed when dropped.
pub struct Process {
    child: Child,
    lines: watch::Receiver<usize>,
    readers: [JoinHandle<()>; 2],
    log: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts `stator` with these arguments, logging JSON.
    ///
    /// # Panics
    ///
    /// When the binary is missing: `cargo build -p stator` makes it.
    pub fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// As [`Process::start`], with further environment variables.
    ///
    /// # Panics
    ///
    /// When the binary is missing.
    pub fn start_with(args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary());
        command.args(args).envs(environment.iter().copied());
        // People see fewer lines by default than tests look for.
        if args.first() == Some(&"up") {
            command.env("STATOR_LOG_LEVEL", "info");
        }
        Self::run(command)
    }

    /// Starts a command that becomes a `stator`, logging JSON.
    ///
    /// # Panics
    ///
    /// When the command cannot be run.
    pub fn run(mut command: Command) -> Self {
        let mut child = command
            .env("STATOR_LOG_FORMAT", "json")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        let (counter, lines) = watch::channel(0);
        let log = Arc::new(Mutex::new(Vec::new()));
        let counter = Arc::new(counter);
        let stdout = child.stdout.take().expect("standard output is piped");
        let stderr = child.stderr.take().expect("standard error is piped");
        let readers = [
            tokio::spawn(read_lines(stdout, log.clone(), counter.clone())),
            tokio::spawn(read_lines(stderr, log.clone(), counter)),
        ];
        Self { child, lines, readers, log }
    }

    /// Writes a line to the process's standard input.
    ///
    /// # Panics
    ///
    /// When nobody reads it any more.
    pub async fn tell(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("standard input is piped");
        let written = input.write_all(format!("{line}\n").as_bytes()).await;
        written.unwrap_or_else(|error| panic!("{line:?}: {error}:\n{}", self.log()));
    }

    /// The process id.
    ///
    /// # Panics
    ///
    /// When the process has ended.
    pub fn id(&self) -> u32 {
        self.child.id().expect("the process runs")
    }

    /// Waits for the `n`th log event with this message, counted from 0, and returns it.
    ///
    /// # Panics
    ///
    /// When it does not come within the deadline, or the process ends without it.
    pub async fn nth_event(&mut self, message: &str, n: usize) -> Value {
        self.nth_event_within(DEADLINE, message, n).await
    }

    /// The same, for what takes longer than others.
    ///
    /// # Panics
    ///
    /// When it does not come within `limit`, or the process ends without it.
    pub async fn nth_event_within(&mut self, limit: Duration, message: &str, n: usize) -> Value {
        let mut lines = self.lines.clone();
        let log = self.log.clone();
        let find = || {
            let log = log.lock().expect("no reader panicked");
            let events = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            events.filter(|event| event["message"] == message).nth(n)
        };
        let found = within(limit, message, async {
            loop {
                if let Some(event) = find() {
                    return Some(event);
                }
                if lines.changed().await.is_err() {
                    return find();
                }
            }
        })
        .await;
        found.unwrap_or_else(|| panic!("ended without {message:?}:\n{}", self.log()))
    }

    /// Waits for the first log event with this message.
    ///
    /// # Panics
    ///
    /// As [`Process::nth_event`].
    pub async fn event(&mut self, message: &str) -> Value {
        self.nth_event(message, 0).await
    }

    /// Waits for the `n`th line that contains `part`, counted from 0.
    ///
    /// # Panics
    ///
    /// As [`Process::nth_event`].
    pub async fn nth_line(&mut self, part: &str, n: usize) {
        self.nth_line_within(DEADLINE, part, n).await;
    }

    /// The same, for what takes longer than others.
    ///
    /// # Panics
    ///
    /// When it does not come within `limit`, or the process ends without it.
    pub async fn nth_line_within(&mut self, limit: Duration, part: &str, n: usize) {
        let mut lines = self.lines.clone();
        let found = || self.lines(part) > n;
        let found = within(limit, part, async {
            while !found() {
                if lines.changed().await.is_err() {
                    return found();
                }
            }
            true
        })
        .await;
        assert!(found, "ended without {part:?}:\n{}", self.log());
    }

    /// Lines so far that contain `part`.
    ///
    /// # Panics
    ///
    /// A reader of the process's output has panicked.
    pub fn lines(&self, part: &str) -> usize {
        let log = self.log.lock().expect("no reader panicked");
        log.iter().filter(|line| line.contains(part)).count()
    }

    /// The last lines that the process has printed.
    pub fn log(&self) -> String {
        self.log.lock().expect("no reader panicked").join("\n")
    }

    /// Sends SIGTERM; does not wait.
    pub fn terminate(&self) {
        signal(self.id(), "TERM");
    }

    /// Kills it, where it still runs, as the loss of its machine does, and waits for its end.
    ///
    /// # Panics
    ///
    /// When it does not end within the deadline.
    pub async fn kill(&mut self) {
        // Fails only where it has already ended.
        let _ = self.child.start_kill();
        let status = soon("the process ends", self.child.wait()).await;
        status.expect("the process can be waited for");
    }

    /// Waits for the end, and for all that it printed.
    ///
    /// # Panics
    ///
    /// When it does not end within the deadline.
    pub async fn ended(&mut self) -> ExitStatus {
        self.ended_within(DEADLINE).await
    }

    /// The same, for a process that works longer than others.
    ///
    /// # Panics
    ///
    /// When it does not end within `limit`.
    pub async fn ended_within(&mut self, limit: Duration) -> ExitStatus {
        let status = within(limit, "the process ends", self.child.wait()).await;
        for reader in &mut self.readers {
            soon("the end of its output", reader).await.expect("no reader panicked");
        }
        status.expect("the process can be waited for")
    }
}

/// Sends a signal by name, as `kill` does.
///
/// # Panics
///
/// When there is no such process.
pub fn signal(process: u32, name: &str) {
    assert!(try_signal(process, name), "process {process} could not be signalled");
}

/// Sends a signal by name to a process that may have ended; whether there was one.
///
/// # Panics
///
/// The machine has no `kill`.
pub fn try_signal(process: u32, name: &str) -> bool {
    let mut kill = std::process::Command::new("kill");
    let kill = kill.arg(format!("-{name}")).arg(process.to_string());
    kill.output().expect("kill can be run").status.success()
}

/// The process below this one, however deep, whose command line begins so.
///
/// # Panics
///
/// When there is none.
pub fn descendant(process: u32, command: &str) -> u32 {
    let found = find_descendant(process, command);
    found.unwrap_or_else(|| panic!("no {command:?} below process {process}"))
}

/// The process below this one, however deep, whose command line begins so; `None` where there is
/// none now.
pub fn find_descendant(process: u32, command: &str) -> Option<u32> {
    let mut below = vec![process];
    while let Some(process) = below.pop() {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        if line.starts_with(command.as_bytes()) {
            return Some(process);
        }
        // A child is listed with the thread that started it.
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
        for thread in threads.flatten() {
            let children = std::fs::read_to_string(thread.path().join("children"));
            let children = children.unwrap_or_default();
            below.extend(children.split_whitespace().filter_map(|it| it.parse::<u32>().ok()));
        }
    }
    None
}

/// Where cargo put the binary: beside the directory of this test program.
///
/// # Panics
///
/// When this program has no path.
pub fn binary() -> PathBuf {
    built("stator")
}

/// Path of another program of the workspace, found as [`binary`] is.
pub(crate) fn built(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    let profile = program.ancestors().nth(2).expect("test programs are two levels deep");
    profile.join(name)
}

async fn read_lines(
    output: impl AsyncRead + Unpin,
    log: Arc<Mutex<Vec<String>>>,
    counter: Arc<watch::Sender<usize>>,
) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        keep(&mut log.lock().expect("no reader panicked"), line);
        counter.send_modify(|count| *count += 1);
    }
}
