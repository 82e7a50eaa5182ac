//! What the container image holds is enough to run.

use stator_tests::process::binary;
use std::path::Path;
use std::process::{Command, Output};

#[test]
fn an_image_is_the_binary_and_what_it_links() {
    let image = tempfile::tempdir().expect("a temporary directory");
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/image/build");
    let built = Command::new(build).arg("--root").arg(image.path()).arg(binary()).output();
    let built = built.expect("the script starts");
    assert!(built.status.success(), "{}", text(&built));

    let told = inside(image.path(), &["/stator", "--version"]);
    assert!(told.status.success(), "{}", text(&told));
    assert!(text(&told).contains(env!("CARGO_PKG_VERSION")), "{}", text(&told));
    let shell = inside(image.path(), &["/bin/sh", "-c", "true"]);
    assert!(!shell.status.success(), "there is a shell in the image");
}

/// Runs a command with `root` as its root, and with none of this machine's files.
fn inside(root: &Path, command: &[&str]) -> Output {
    let superuser = rustix::process::getuid().is_root();
    let mut run = Command::new(if superuser { "chroot" } else { "unshare" });
    if !superuser {
        run.args(["--map-root-user", "chroot"]);
    }
    run.arg(root).args(command).output().expect("chroot is there")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}
