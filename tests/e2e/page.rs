//! The page at `/`, in a real browser.

use crate::support::{MODEL, up};
use stator_tests::{tooling, within};
use std::time::Duration;
use tokio::process::Command;

/// Time for the start of a browser and for two answers on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

#[tokio::test]
async fn the_page_chats_in_a_browser_and_needs_no_other_server() {
    let Some(chromium) = tooling::installed("STATOR_TEST_CHROMIUM", "Chromium") else { return };
    let up = up(&["--api-key=key"]).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/page_in_browser.py");
    let python = std::env::var("STATOR_TEST_PYTHON").expect("tests/run names a Python");
    let url = format!("http://{}", up.client.address());
    let mut command = Command::new(python);
    command.arg(script).arg(chromium).args([&url, MODEL, "key"]).kill_on_drop(true);
    let ran = within(LIMIT, "the browser", command.output()).await.unwrap();
    assert!(ran.status.success(), "{}\n{}", String::from_utf8_lossy(&ran.stderr), up.process.log());
}
