//! The manual's commands on a cluster, as they stand: those in blocks that begin with `sh cluster`,
//! in the order of the page.

use crate::load::Load;
use stator_tests::http::Client;
use stator_tests::nodes::{PodCluster, PodSpace};
use stator_tests::process::binary;
use stator_tests::tooling::installed;
use stator_tests::{soon, within};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::Command;

/// Longest wait for the commands of one block: longer than they wait themselves.
const BLOCK_DEADLINE: Duration = Duration::from_secs(600);
/// Clients that ask while the page goes on.
const CLIENTS: usize = 4;

/// A page of the manual, and the folder where its commands run.
struct Page<'a> {
    text: String,
    cluster: &'a PodCluster,
    folder: TempDir,
    /// Folders with the programs that the commands name.
    programs: Vec<PathBuf>,
}

impl<'a> Page<'a> {
    fn open(name: &str, cluster: &'a PodCluster) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = std::fs::read_to_string(root.join("docs").join(name)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        symlink(root.join("manifests"), folder.path().join("manifests")).unwrap();
        let tools = PathBuf::from(std::env::var_os("STATOR_TEST_KUBE").unwrap());
        let programs = vec![tools, binary().parent().unwrap().to_owned()];
        Self { text, cluster, folder, programs }
    }

    /// The blocks that begin with `sh cluster`, each with the heading above it.
    fn blocks(&self) -> Vec<(&str, &str)> {
        let sections = self.text.split("\n## ").skip(1);
        let blocks = sections.flat_map(|section| {
            let heading = section.lines().next().unwrap();
            let blocks = section.split("```sh cluster\n").skip(1);
            blocks.map(move |rest| (heading, rest.split("```").next().unwrap()))
        });
        let blocks: Vec<_> = blocks.collect();
        assert!(!blocks.is_empty(), "the page has no commands to run");
        blocks
    }

    async fn run(&self, block: &str) {
        let mut folders = self.programs.clone();
        folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
        let mut shell = Command::new("sh");
        shell.args(["-exc", block]).current_dir(self.folder.path()).kill_on_drop(true);
        shell.env("PATH", std::env::join_paths(folders).unwrap()).env("HOME", self.folder.path());
        let shell = shell.env("KUBECONFIG", self.cluster.cluster().kubeconfig()).output();
        let output = within(BLOCK_DEADLINE, block, shell).await.unwrap();
        let [said, errors] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{errors}\n{said}\n{}", self.cluster.log());
    }
}

#[tokio::test]
async fn a_graph_goes_step_by_step() {
    // The page drains a node.
    let Some(cluster) = PodCluster::start(&["node-a", "node-b"]).await else { return };
    let page = Page::open("graphs.md", &cluster);
    for (_, block) in page.blocks() {
        page.run(block).await;
    }
}

/// Dynamo's example behind a real Envoy: no client notices what the page does to the graph.
#[tokio::test]
async fn a_graph_behind_a_gateway_goes_step_by_step_under_load() {
    let Some(examples) = crate::examples::folder() else { return };
    let Some(charts) = installed("STATOR_TEST_CHARTS", "helm") else { return };
    if installed("STATOR_TEST_ENVOY", "Envoy").is_none() {
        return;
    }
    let Some(cluster) = PodCluster::start(&["node-a", "node-b"]).await else { return };
    let mut page = Page::open("graph-gateway.md", &cluster);
    page.programs.push(charts);
    symlink(examples, page.folder.path().join("dynamo")).unwrap();
    let space = cluster.space_called("serving");
    let mut load: Option<Load> = None;
    for (section, block) in page.blocks() {
        if section == "Remove"
            && let Some(load) = load.take()
        {
            load.finish().await;
        }
        page.run(block).await;
        if section == "Ask" {
            let asking = Load::start(&space, "envoy", "Qwen/Qwen3-0.6B", CLIENTS).await;
            asking.goes_on().await;
            prompts_were_handed_over(&space).await;
            load = Some(asking);
        }
        if let Some(load) = &load {
            load.goes_on().await;
        }
    }
}

/// Checks that a prefill worker computed all prompts so far, and a decode worker answered all.
async fn prompts_were_handed_over(space: &PodSpace<'_>) {
    let counts = async |kind: &str| {
        let labels = format!("nvidia.com/dynamo-component-type={kind}");
        let pods = space.pods(&labels, kind, |pods| pods.len() == 1).await;
        let address = pods[0]["status"]["podIP"].as_str().unwrap().parse().unwrap();
        let page = Client::new(SocketAddr::new(address, 9091)).get("/metrics").await.body;
        let page = String::from_utf8_lossy(&page).into_owned();
        let way = |way: &str| -> f64 {
            let way = format!("way=\"{way}\",status=\"200\"");
            let lines = page.lines().filter(|line| {
                line.starts_with("stator_direct_requests_total") && line.contains(&way)
            });
            lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
        };
        [way("engine"), way("handed_over"), way("fallback")]
    };
    let [alone, handed_over, failed] = counts("decode").await;
    assert!(handed_over > 0.0 && failed == 0.0, "{alone} {handed_over} {failed}");
    let [computed, others, _] = counts("prefill").await;
    assert!(computed >= handed_over && others == 0.0, "{computed} {others}");
}

/// The API server asks the operator's webhooks at their pods, as a chart installs them.
#[tokio::test]
async fn webhooks_of_a_chart_answer_the_api_server() {
    let Some(charts) = installed("STATOR_TEST_CHARTS", "helm") else { return };
    let Some(cluster) = PodCluster::start(&["node"]).await else { return };
    let mut page = Page::open("graph-gateway.md", &cluster);
    page.programs.push(charts);
    let blocks = page.blocks();
    page.run(blocks.iter().find(|(section, _)| *section == "Install").unwrap().1).await;
    let space = cluster.space_called("serving");
    soon("webhooks that answer", crate::webhooks::all_answer(&space)).await;
}
