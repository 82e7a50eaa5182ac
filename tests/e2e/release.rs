//! Releases, installed into an empty place: tarball, wheel and container image each start a `stator`
//! that answers.

use crate::support::{chat, ready};
use serde_json::Value;
use stator_tests::http::Client;
use stator_tests::process::{Process, binary};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tokio::process;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_released_starts_where_nothing_else_is() {
    let made = Made::of_this_binary();

    let tarball = made.unpacked(".tar.gz");
    let name = format!("stator-{}-{}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let folder = tarball.path().join(name);
    assert!(folder.join("LICENSE").exists() && folder.join("README.md").exists());
    answers(process::Command::new(folder.join("stator"))).await;

    answers(process::Command::new(made.pip_installed().path().join("bin/stator"))).await;

    let image = made.root_of_image();
    let shell = inside(image.path()).args(["/bin/sh", "-c", "true"]).output().unwrap();
    assert!(!shell.status.success(), "there is a shell in the image");
    let mut stator = inside(image.path());
    stator.arg("/stator");
    listens(stator.into()).await;
}

/// Starts `stator proxy` with this command; it is alive. `stator up` needs a `/proc`, which a
/// container has and a changed root has not.
async fn listens(mut stator: process::Command) {
    stator.args(["proxy", "--http-port=0", "--discovery=file:///tmp/agents"]);
    let mut process = Process::run(stator);
    let listening = process.event("listening").await;
    let address = listening["address"].as_str().unwrap().parse().unwrap();
    let answer = Client::new(address).get("/live").await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
}

/// Starts `stator up` with this command; a chat is answered.
async fn answers(mut stator: process::Command) {
    stator.args(["up", "--http-port=0"]).env_clear().env("PATH", std::env::var("PATH").unwrap());
    let mut process = Process::run(stator);
    let client = Client::new(ready(&mut process).await);
    let answer = client.post("/v1/chat/completions", &chat("Hello", 4)).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
}

/// The files of a release.
struct Made {
    folder: TempDir,
}

impl Made {
    fn of_this_binary() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let build = root().join("manifests/release/build");
        run(Command::new(build).arg("--of").arg(binary()).arg(folder.path()));
        let made = Self { folder };
        run(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&made.folder));
        made
    }

    fn file(&self, end: &str) -> PathBuf {
        let files = std::fs::read_dir(&self.folder).unwrap().map(|file| file.unwrap().path());
        let mut files = files.filter(|file| file.to_string_lossy().ends_with(end));
        files.next().unwrap_or_else(|| panic!("the release has no {end}"))
    }

    fn unpacked(&self, end: &str) -> TempDir {
        let place = tempfile::tempdir().unwrap();
        unpack(&self.file(end), place.path());
        place
    }

    fn pip_installed(&self) -> TempDir {
        let place = tempfile::tempdir().unwrap();
        let python = std::env::var("STATOR_TEST_PYTHON").expect("`tests/run` sets it");
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--target"]);
        run(pip.arg(place.path()).arg(self.file(".whl")));
        place
    }

    /// The root file system that a container of the image has.
    fn root_of_image(&self) -> TempDir {
        let layout = self.unpacked(".oci.tar");
        let read = |path: &str| -> Value {
            serde_json::from_slice(&std::fs::read(layout.path().join(path)).unwrap()).unwrap()
        };
        let blob = |descriptor: &Value| {
            format!("blobs/{}", descriptor["digest"].as_str().unwrap().replace(':', "/"))
        };
        let manifest = read(&blob(&read("index.json")["manifests"][0]));
        let config = read(&blob(&manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/stator"]));
        assert_eq!(config["config"]["User"], "65532:65532");
        let place = tempfile::tempdir().unwrap();
        unpack(&layout.path().join(blob(&manifest["layers"][0])), place.path());
        place
    }
}

/// A command with `place` as its root, and with none of this machine's files.
fn inside(place: &Path) -> Command {
    let superuser = rustix::process::getuid().is_root();
    let mut command = Command::new(if superuser { "chroot" } else { "unshare" });
    if !superuser {
        command.args(["--map-root-user", "chroot"]);
    }
    command.arg(place);
    command
}

fn unpack(archive: &Path, place: &Path) {
    run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(place));
}

/// Runs a command that must succeed.
fn run(command: &mut Command) {
    let output = command.output().expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
