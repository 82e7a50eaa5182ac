//! A real PostgreSQL server, reached by a socket in a folder of its own.

use crate::tooling::{Tool, installed};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The name of its user and its database.
pub const USER: &str = "stator";
/// The user's password.
pub const PASSWORD: &str = "a-secret-word";
/// PostgreSQL does not run for root; nobody has this number.
const NOBODY: u32 = 65534;
/// Line that the server prints once it serves.
const READY: &str = "ready to accept connections";

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    home: TempDir,
    tool: Option<Tool>,
}

impl Postgres {
    /// Starts a server with an empty database. `None`, and said so, where nothing is installed.
    ///
    /// # Panics
    ///
    /// When it is missing in continuous integration, or does not start.
    pub async fn start() -> Option<Self> {
        let programs = installed("STATOR_TEST_POSTGRES", "PostgreSQL")?;
        let home = TempDir::new().expect("a temporary folder");
        let password = home.path().join("password");
        std::fs::write(&password, PASSWORD).expect("a file");
        for path in [home.path(), &password] {
            if is_root() {
                chown(path, Some(NOBODY), Some(NOBODY)).expect("root may give a file away");
            }
        }
        let mut server = Self { programs, home, tool: None };
        let mut init = server.command("initdb");
        init.arg("--pgdata").arg(server.data()).arg("--pwfile").arg(&password);
        init.args(["--username", USER, "--auth", "scram-sha-256", "--no-sync", "--encoding=UTF8"]);
        let made = init.output().expect("initdb can be run");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        server.serve().await;
        server.ask_at("postgres", "CREATE DATABASE stator");
        Some(server)
    }

    /// Starts the server again after [`Self::stop`].
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn serve(&mut self) {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(self.home.path());
        command.args(["-c", "listen_addresses=", "-c", "fsync=off"]);
        let tool = Tool::start(&mut command);
        tool.line("a server that serves", |line| line.contains(READY)).await;
        self.tool = Some(tool);
    }

    /// Kills the server; its database stays.
    pub fn stop(&mut self) {
        self.tool = None;
        // Nobody removes the lock of a server that was killed, whose number may be another's by now.
        let _ = std::fs::remove_file(self.data().join("postmaster.pid"));
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.home.path().join(".s.PGSQL.5432")
    }

    /// The database's URL, with the password.
    pub fn url(&self) -> String {
        let folder = self.home.path().display().to_string().replace('/', "%2F");
        format!("postgres://{USER}:{PASSWORD}@{folder}/{USER}")
    }

    /// Answer of the server to a statement, a line for each row.
    ///
    /// # Panics
    ///
    /// When it refuses the statement.
    pub fn ask(&self, statement: &str) -> String {
        self.ask_at(USER, statement)
    }

    fn ask_at(&self, database: &str, statement: &str) -> String {
        let mut psql = self.command("psql");
        psql.args(["-h", &self.home.path().display().to_string(), "-U", USER, "-d", database]);
        psql.args(["-qAt", "-v", "ON_ERROR_STOP=1", "-c", statement]).env("PGPASSWORD", PASSWORD);
        let asked = psql.output().expect("psql can be run");
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        String::from_utf8(asked.stdout).expect("text").trim_end().to_owned()
    }

    fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.env("LC_ALL", "C").env("TZ", "UTC").current_dir(Path::new("/"));
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}
