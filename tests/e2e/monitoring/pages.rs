//! Metrics pages of real processes: a proxy, an agent with KV tiers, a planner, a picker, and an
//! operator where there is an API server.

use super::promql::ScrapedPage;
use crate::operator::serve::{Bed, GRAPH};
use crate::support::{MODEL, chat, ready};
use serde_json::Value;
use stator_tests::engine::Engine;
use stator_tests::http::Client;
use stator_tests::kube::Cluster;
use stator_tests::picker::{EndpointsFile, Picker};
use stator_tests::process::Process;
use stator_tests::soon;

/// Running processes, and where their metrics are.
pub(super) struct Fleet {
    _home: tempfile::TempDir,
    _processes: Vec<Process>,
    _engines: Vec<Engine>,
    _picker: (Picker, EndpointsFile),
    _operator: Option<Bed>,
    proxy: Client,
    /// Requests so far.
    served: u32,
    sides: Vec<(&'static str, Client)>,
}

async fn side(process: &mut Process) -> Client {
    let listening: Value = process.event("side server listening").await;
    Client::new(listening["address"].as_str().unwrap().parse().unwrap())
}

async fn page(side: &Client) -> String {
    let page = side.get("/metrics").await;
    assert_eq!(page.status, 200);
    String::from_utf8(page.body.to_vec()).unwrap()
}

/// An operator with a graph.
async fn operator() -> Option<Bed> {
    let bed = Bed::new(Cluster::shared().await?).await;
    bed.namespace.apply(serde_yaml_ng::from_str(GRAPH).unwrap()).await;
    let side = Client::new(bed.side);
    soon("a graph that is operated", async {
        while !page(&side).await.contains("stator_operator_reconcile_total{") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    Some(bed)
}

impl Fleet {
    pub(super) async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let dir = format!("--discovery-dir={}", home.path().join("agents").display());
        let flags = ["agent", "--listen=127.0.0.1:0", "--events-listen=off", "--metrics-port=0"];
        let mut agent = Process::start(&[&flags[..], &["--kv-host-gb=1", &dir]].concat());
        let mut sides = vec![("agent", side(&mut agent).await)];
        let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
        sides.push(("proxy", side(&mut proxy).await));
        let client = Client::new(ready(&mut proxy).await);
        let url = format!("--metrics-url=http://{}/metrics", sides[1].1.address());
        let models = format!("--models={MODEL}");
        let mut planner = Process::start(&["planner", &models, "--metrics-port=0", &url, &dir]);
        sides.push(("planner", side(&mut planner).await));
        let engines = Engine::pods(1, 1).await.remove(0);
        let file = EndpointsFile::of(&[engines[0].address()]);
        let flag = format!("--endpoints-file={}", file.path().display());
        let picker = Picker::start(&[&flag, "--secure-serving=false"]).await;
        sides.push(("epp", Client::new(picker.side.address())));
        let operator = operator().await;
        sides.extend(operator.iter().map(|operator| ("operator", Client::new(operator.side))));
        Self {
            _home: home,
            _processes: vec![agent, proxy, planner],
            _engines: engines,
            _picker: (picker, file),
            _operator: operator,
            proxy: client,
            served: 0,
            sides,
        }
    }

    /// A request, whole and counted: a proxy counts it just after its answer.
    pub(super) async fn serves(&mut self, prompt: &str) {
        let answer = self.proxy.post("/v1/chat/completions", &chat(prompt, 4)).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        self.served += 1;
        let counted = format!(
            "stator_proxy_requests_total{{route=\"/v1/chat/completions\",status=\"200\"}} {}\n",
            self.served
        );
        soon("a request that is counted", async {
            while !page(&self.proxy).await.contains(&counted) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// All pages, as if scraped at this time.
    pub(super) async fn scraped(&self, at_s: f64) -> Vec<ScrapedPage> {
        let mut pages = Vec::new();
        for (job, side) in &self.sides {
            pages.push(ScrapedPage { job, at_s, text: page(side).await });
        }
        pages
    }
}
