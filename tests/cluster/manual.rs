//! The manual's commands on a cluster, as they stand: those in blocks that begin with `sh cluster`,
//! in the order of the page.

use stator_tests::nodes::PodCluster;
use stator_tests::process::binary;
use stator_tests::within;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;

/// Longest wait for the commands of one block: longer than they wait themselves.
const BLOCK_DEADLINE: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_graph_goes_step_by_step() {
    // The page drains a node.
    let Some(cluster) = PodCluster::start(&["node-a", "node-b"]).await else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/graphs.md")).unwrap();
    let blocks = blocks(&page);
    assert!(!blocks.is_empty(), "the page has no commands to run");
    let tools = PathBuf::from(std::env::var_os("STATOR_TEST_KUBE").unwrap());
    let mut folders = vec![tools, binary().parent().unwrap().to_owned()];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let path = std::env::join_paths(folders).unwrap();
    for block in blocks {
        let mut shell = Command::new("sh");
        shell.args(["-exc", block]).current_dir(&root).env("PATH", &path).kill_on_drop(true);
        let shell = shell.env("KUBECONFIG", cluster.cluster().kubeconfig()).output();
        let output = within(BLOCK_DEADLINE, block, shell).await.unwrap();
        let [said, errors] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{errors}\n{said}\n{}", cluster.log());
    }
}

/// The blocks of a page that begin with `sh cluster`.
fn blocks(page: &str) -> Vec<&str> {
    let blocks = page.split("```sh cluster\n").skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap()).collect()
}
