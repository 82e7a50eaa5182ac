//! The kubelet of the tests as a process: a node of [`stator_tests::nodes`]. It ends when its
//! standard input is closed, and its pods with it.

use stator_tests::kubelet::{NodeSettings, run};
use std::process::exit;

#[tokio::main]
async fn main() {
    let settings = std::env::args().nth(1).unwrap_or_default();
    let settings: NodeSettings = match serde_json::from_str(&settings) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("the settings are one argument, JSON: {error}");
            exit(2)
        }
    };
    let directory = settings.directory.clone();
    let parent =
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    tokio::select! {
        _ = parent => {}
        Err(error) = run(settings) => eprintln!("{error}"),
    }
    let _ = std::fs::remove_dir_all(&directory);
    // The folder of all nodes goes with the last of them.
    let _ = directory.parent().map(std::fs::remove_dir);
    // A task that reads standard input would hold up an end by return.
    exit(1)
}
