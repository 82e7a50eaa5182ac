//! Programs of this machine that the kubelet runs.

use std::io;
use tokio::process::Command;

/// A shell that runs a script, which ends at its first failure; words that are added are `$1`, `$2`
/// and so on.
pub(super) fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-ec", script, "sh"]);
    command
}

/// Runs a command to its end.
///
/// # Errors
///
/// Its words, where it fails.
pub(super) async fn run(command: &mut Command) -> io::Result<()> {
    let output = command.kill_on_drop(true).output().await?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("{}: {said}", output.status)))
}
