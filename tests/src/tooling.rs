//! Programs of others that tests run against: where they are, and how they are started.
//!
//! A tool belongs to no asynchronous runtime, so one test can start what all share.

use crate::{DEADLINE, keep, within};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// Where an environment variable says that a tool is. `tests/run` installs the tools and sets the
/// variables; where one is missing this says so, and the test that asked should return.
///
/// # Panics
///
/// When the tool is missing in continuous integration (`CI=true`), or is not where it should be.
pub fn installed(variable: &str, what: &str) -> Option<PathBuf> {
    let Some(path) = std::env::var_os(variable) else {
        let missing = format!("{what} is missing: tests/run installs it and sets {variable}");
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
        // Past the test harness, which hides what passing tests print.
        let _ = writeln!(std::io::stderr().lock(), "not run: {missing}");
        return None;
    };
    let path = PathBuf::from(path);
    assert!(path.exists(), "{what}: {variable} names {}, which is missing", path.display());
    Some(path)
}

/// A running tool and what it has printed. It is killed when dropped, and its standard input is
/// closed when this process ends in any other way.
#[derive(Debug)]
pub struct Tool {
    child: Child,
    printed: watch::Receiver<usize>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Tool {
    /// Starts it.
    ///
    /// # Panics
    ///
    /// When it cannot be run.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        let (counter, printed) = watch::channel(0);
        let (counter, log) = (Arc::new(counter), Arc::new(Mutex::new(Vec::new())));
        let stdout = child.stdout.take().expect("standard output is piped");
        let stderr = child.stderr.take().expect("standard error is piped");
        read_lines(stdout, log.clone(), counter.clone());
        read_lines(stderr, log.clone(), counter);
        Self { child, printed, log }
    }

    /// Waits for the first line that `is_it` accepts, and returns it.
    ///
    /// # Panics
    ///
    /// When it does not come within the deadline, or the tool ends without it.
    pub async fn line(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        self.line_within(DEADLINE, what, is_it).await
    }

    /// The same, with a deadline of its own.
    ///
    /// # Panics
    ///
    /// When it does not come within `limit`, or the tool ends without it.
    pub async fn line_within(
        &self,
        limit: Duration,
        what: &str,
        is_it: impl Fn(&str) -> bool,
    ) -> String {
        let mut printed = self.printed.clone();
        let find = || self.lines().iter().find(|line| is_it(line)).cloned();
        let found = within(limit, what, async {
            loop {
                if let Some(line) = find() {
                    return Some(line);
                }
                if printed.changed().await.is_err() {
                    return find();
                }
            }
        })
        .await;
        found.unwrap_or_else(|| panic!("ended without {what}:\n{}", self.log()))
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        // Both fail only where it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it has printed so far.
    pub fn log(&self) -> String {
        self.lines().join("\n")
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.log.lock().expect("no reader panicked")
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_lines(
    output: impl Read + Send + 'static,
    log: Arc<Mutex<Vec<String>>>,
    counter: Arc<watch::Sender<usize>>,
) {
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            keep(&mut log.lock().expect("no reader panicked"), line);
            counter.send_modify(|count| *count += 1);
        }
    });
}
