//! A small file system of its own for the discovery directory, which can be full.

use stator_tests::tooling::Tool;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::time::{Instant, interval};

/// Mounts a file system in a namespace of its own, which needs no rights, and keeps it until
/// standard input ends, as it does with the test program.
const HOLDER: &str =
    r#"mount -t tmpfs -o size=256k,mode=700 chaos "$1" && echo mounted && read -r _"#;
/// Pause between two fillings of a full disk: renewals free a bit of it.
const FILL_EVERY: Duration = Duration::from_millis(20);

/// The file system, mounted as long as this lives.
pub(crate) struct Disk {
    root: PathBuf,
    _holder: Tool,
}

impl Disk {
    /// Mounts one. `None`, and said so, where users may have no namespaces.
    pub(crate) async fn begin(home: &Path) -> Option<Self> {
        let point = home.join("disk");
        std::fs::create_dir(&point).expect("a writable home");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", HOLDER, "sh"]);
        let permitted =
            Command::new("unshare").args(["--user", "--map-root-user", "true"]).output();
        if !permitted.is_ok_and(|output| output.status.success()) {
            println!("not run: a full disk: users may not have namespaces of their own here");
            return None;
        }
        let holder = Tool::start(command.arg(&point));
        holder.line("a mounted file system", |line| line == "mounted").await;
        // The holder's view of the path is the only one that shows what is mounted there.
        let inside = point.strip_prefix("/").expect("an absolute path");
        let root = PathBuf::from(format!("/proc/{}/root", holder.id())).join(inside);
        Some(Self { root, _holder: holder })
    }

    /// A directory of it.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Has no room during the hold.
    pub(crate) async fn fill(&self, hold: Duration) {
        let path = self.root.join("filler");
        let mut filler = File::create(&path).expect("there is room for a name");
        let (end, mut rounds) = (Instant::now() + hold, interval(FILL_EVERY));
        while Instant::now() < end {
            let full =
                std::iter::repeat_with(|| filler.write_all(&[0; 4096])).find_map(Result::err);
            let full = full.expect("it has an end").kind();
            assert!(matches!(full, ErrorKind::StorageFull | ErrorKind::QuotaExceeded), "{full}");
            rounds.tick().await;
        }
        std::fs::remove_file(path).expect("the filler is there");
    }
}
