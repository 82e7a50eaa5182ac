//! The manual's commands, run as they stand but for ports and directories: those in blocks that
//! begin with `sh run` or `python run`, in the order of the page.

use crate::support::ready;
use serde_json::Value;
use stator_tests::envoy::Envoy;
use stator_tests::process::{Process, binary};
use stator_tests::{soon, tooling};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::process::Command;

/// Flags of places, which a test has elsewhere, by role. The first is what a page calls it by.
const PLACES: [(&str, &[&str]); 4] = [
    ("up", &["--http-port"]),
    ("proxy", &["--http-port", "--metrics-port"]),
    ("agent", &["--listen", "--events-listen", "--replay-listen", "--metrics-port"]),
    ("epp", &["--grpc-port", "--grpc-health-port", "--metrics-port"]),
];

#[tokio::test]
async fn the_readme_works() {
    let mut reader = Reader::new();
    reader.does("stator up").await;
    reader.follows("README.md").await;
}

#[tokio::test]
async fn the_quick_start_works() {
    Reader::new().follows("docs/quick-start.md").await;
}

#[tokio::test]
async fn prefill_and_decode_work() {
    Reader::new().follows("docs/prefill-decode.md").await;
}

#[tokio::test]
async fn engines_are_operated() {
    Reader::new().follows("docs/engines.md").await;
}

#[tokio::test]
async fn manifests_are_explained() {
    Reader::new().follows("docs/operator.md").await;
}

#[tokio::test]
async fn machines_are_examined() {
    Reader::new().follows("docs/doctor.md").await;
}

#[tokio::test]
async fn a_proxy_with_queues_works() {
    Reader::new().follows("docs/queueing.md").await;
}

#[tokio::test]
async fn the_gateway_works() {
    if tooling::installed("STATOR_TEST_ENVOY", "Envoy").is_some() {
        Reader::new().follows("docs/gateway.md").await;
    }
}

/// A reader who types the commands of a page.
struct Reader {
    home: TempDir,
    /// Servers by the port that the page says.
    servers: BTreeMap<String, Server>,
}

/// A running server, and where it really serves.
struct Server {
    _runs: Runs,
    address: SocketAddr,
}

enum Runs {
    Stator { _process: Process },
    Envoy { _envoy: Envoy },
}

impl Reader {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        Self { home, servers: BTreeMap::new() }
    }

    /// Does what a page says.
    async fn follows(&mut self, page: &str) {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let commands = commands(&text);
        assert!(!commands.is_empty(), "{page} has no commands to run");
        for command in commands {
            self.does(&command).await;
        }
    }

    async fn does(&mut self, command: &str) {
        let command = command.replace("cargo run --release -- ", "stator ");
        let words: Vec<_> = command.split_whitespace().collect();
        match words[..] {
            ["stator", role @ ("up" | "proxy" | "agent" | "epp"), ..] => {
                self.starts(role, &words[2..]).await;
            }
            [.., "-c", file] if command.contains("envoy") => self.starts_envoy(file).await,
            _ => self.sees(&command).await,
        }
    }

    /// Starts a role on free ports. One that had its place ends.
    async fn starts(&mut self, role: &str, flags: &[&str]) {
        let (_, places) = PLACES.iter().find(|(name, _)| *name == role).unwrap();
        let mut args = vec![role.to_owned()];
        let usual = match role {
            "epp" => "9002",
            "agent" => "7000",
            _ => "8000",
        };
        let mut port = String::from(usual);
        let mut flags = flags.iter();
        while let Some(flag) = flags.next() {
            match *flag {
                place if places.contains(&place) => {
                    let said = flags.next().unwrap();
                    if place == places[0] {
                        port = said.rsplit(':').next().unwrap().to_owned();
                    }
                }
                "--endpoints-file" => {
                    let file = self.home.path().join("endpoints.yaml");
                    let text = std::fs::read_to_string(root().join(flags.next().unwrap())).unwrap();
                    std::fs::write(&file, self.elsewhere(&text, "port: ")).unwrap();
                    args.push(format!("--endpoints-file={}", file.display()));
                }
                other => args.push(other.to_owned()),
            }
        }
        args.extend(places.iter().map(|place| match *place {
            "--listen" => "--listen=127.0.0.1:0".into(),
            place if place.ends_with("-listen") => format!("{place}=tcp://127.0.0.1:0"),
            place => format!("{place}=0"),
        }));
        if ["proxy", "agent"].contains(&role) {
            args.push(format!("--discovery-dir={}", self.home.path().join("agents").display()));
        }
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let mut process = Process::start(&args);
        let address = match role {
            "agent" => {
                let endpoint = process.event("serving").await["endpoint"].clone();
                let endpoint = endpoint.as_str().unwrap().strip_prefix("http://").unwrap();
                endpoint.parse().unwrap()
            }
            "epp" => {
                let listening = process.event("ext-proc listening").await;
                process.event("readiness").await;
                address(&listening)
            }
            _ => ready(&mut process).await,
        };
        self.servers.insert(port, Server { _runs: Runs::Stator { _process: process }, address });
    }

    /// Starts Envoy, and is where the page says once the picker counts as healthy.
    async fn starts_envoy(&mut self, file: &str) {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let text =
            self.elsewhere(&text, "port_value: ").replace("port_value: 8080", "port_value: 0");
        let admin = "admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }";
        let envoy = Envoy::start_from(&format!("{admin}\n{text}")).await.unwrap();
        let address = envoy.address();
        self.servers
            .insert("8080".into(), Server { _runs: Runs::Envoy { _envoy: envoy }, address });
    }

    /// Runs a command to its end, and again until it has worked: a server may need a moment.
    async fn sees(&self, command: &str) {
        let python = command.contains("import ");
        let command = self.elsewhere(&self.elsewhere(command, "localhost:"), "127.0.0.1:");
        soon(&command, async {
            while !self.works(&command, python).await {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn works(&self, command: &str, python: bool) -> bool {
        let mut process = match python {
            true => {
                let python = std::env::var("STATOR_TEST_PYTHON").expect("tests/run sets it");
                let mut process = Command::new(python);
                process.arg("-c").arg(command);
                process
            }
            false => {
                let own = format!("stator() {{ {} \"$@\"; }}", binary().display());
                let curl = "curl() { command curl --silent --fail \"$@\"; }";
                let mut process = Command::new("bash");
                process.arg("-c").arg(format!("set -o pipefail\n{own}\n{curl}\n{command}"));
                process
            }
        };
        let process = process.current_dir(root()).stderr(Stdio::piped()).kill_on_drop(true);
        let ended = process.output().await.unwrap();
        ended.status.success()
    }

    /// The text with the servers' own ports, where the page's follow these words.
    fn elsewhere(&self, text: &str, before: &str) -> String {
        let places = self.servers.iter();
        places.fold(text.to_owned(), |text, (port, server)| {
            text.replace(&format!("{before}{port}"), &format!("{before}{}", server.address.port()))
        })
    }
}

fn address(event: &Value) -> SocketAddr {
    event["address"].as_str().unwrap().parse().unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The commands of a page's blocks that are to be run, each on a line of its own. A block of Python
/// is one.
fn commands(page: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut block = "";
    let mut ended = true;
    // As a shell joins lines.
    for line in page.replace("\\\n", "").lines() {
        if let Some(words) = line.strip_prefix("```") {
            block = match words {
                "sh run" => "sh",
                "python run" => "python",
                _ => "",
            };
            ended = true;
        } else if !block.is_empty() {
            match commands.last_mut().filter(|_| !ended) {
                Some(last) => *last += &format!("\n{line}"),
                None => commands.push(line.to_owned()),
            }
            let open = commands.last().is_some_and(|text| text.matches('\'').count() % 2 == 1);
            ended = block == "sh" && !open;
        }
    }
    commands
}

#[test]
fn a_command_goes_on_to_the_end_of_its_quotes() {
    let page = "```sh run\na \\\n b\nc 'd\ne'\n```\n```sh\nno\n```\n```python run\nx\n\ny\n```\n";
    assert_eq!(commands(page), ["a  b", "c 'd\ne'", "x\n\ny"]);
}
