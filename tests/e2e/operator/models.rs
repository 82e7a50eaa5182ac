//! Models: the operator has an adapter loaded on every ready worker that has its base, and unloaded when
//! the model is deleted. The workers here are servers of the test, the API server is real.

use super::serve::Bed;
use serde_json::{Value, json};
use stator_tests::kube::Cluster;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// First hexadecimal digits of the SHA-256 of the base model's name, `org/base`.
const HASH: &str = "58c52390";
const MODEL: &str = "org/base";

/// An address of this machine that EndpointSlices take: loopback ones are refused. `None`, where it
/// has no network.
fn address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: the system only says which of its addresses it would use.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// A worker that answers all requests with a status, and tells of them: method, path and body.
struct Worker {
    address: SocketAddr,
    asked: mpsc::UnboundedReceiver<(String, String)>,
}

impl Worker {
    async fn start(ip: IpAddr, status: u16) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, asked) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let mut read = Vec::new();
                    let mut buffer = [0; 4096];
                    // A request has its whole body once the braces are closed, or no body.
                    while let Ok(n) = stream.read(&mut buffer).await {
                        read.extend_from_slice(&buffer[..n]);
                        let text = String::from_utf8_lossy(&read);
                        if n == 0 || text.ends_with("}}") || text.starts_with("DELETE") {
                            break;
                        }
                    }
                    let text = String::from_utf8_lossy(&read).into_owned();
                    let line = text.lines().next().unwrap_or_default().to_owned();
                    let body = text.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned();
                    let _ = sender.send((line, body));
                    let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 3\r\n\r\nwhy");
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        Self { address, asked }
    }

    /// The next request that begins like this.
    async fn asked(&mut self, start: &str) -> String {
        stator_tests::soon(start, async {
            loop {
                let (line, body) = self.asked.recv().await.unwrap();
                if line.starts_with(start) {
                    return body;
                }
            }
        })
        .await
    }
}

fn slice(bed: &Bed, name: &str, worker: &Worker, is_ready: bool) -> Value {
    let mut slice = bed.object("discovery.k8s.io/v1", "EndpointSlice", name);
    slice["metadata"]["labels"] = json!({ "nvidia.com/dynamo-base-model-hash": HASH });
    slice["addressType"] = json!("IPv4");
    slice["ports"] =
        json!([{ "name": "system", "port": worker.address.port(), "protocol": "TCP" }]);
    slice["endpoints"] = json!([{
        "addresses": [worker.address.ip().to_string()],
        "conditions": { "ready": is_ready },
        "targetRef": { "kind": "Pod", "name": name, "uid": name, "namespace": bed.namespace.name },
    }]);
    slice
}

#[tokio::test]
async fn an_adapter_is_on_every_ready_worker_until_its_model_is_deleted() {
    let Some(cluster) = Cluster::shared().await else { return };
    let Some(ip) = address().filter(IpAddr::is_ipv4) else {
        eprintln!("not run: this machine has no network");
        return;
    };
    let bed = Bed::new(cluster).await;
    let api = &bed.namespace.api;
    let (mut good, mut bad) = (Worker::start(ip, 200).await, Worker::start(ip, 500).await);
    api.apply(&slice(&bed, "good", &good, true)).await;
    let mut model = bed.object("nvidia.com/v1alpha1", "DynamoModel", "adapter");
    model["spec"] = json!({
        "modelName": "org/adapter", "baseModelName": MODEL, "modelType": "lora",
        "source": { "uri": "file:///adapter" },
    });
    api.apply(&model).await;
    let body: Value = serde_json::from_str(&good.asked("POST /v1/loras").await).unwrap();
    let expected = json!({ "lora_name": "org/adapter", "source": { "uri": "file:///adapter" } });
    assert_eq!(body, expected);
    let reason = |model: &Value, reason: &str| model["status"]["conditions"][1]["reason"] == reason;
    let ready = api.until(&model, "it is loaded", |of| reason(of, "AllEndpointsReady")).await;
    assert_eq!(ready["status"]["readyEndpoints"], 1);
    assert_eq!(ready["metadata"]["finalizers"], json!(["nvidia.com/finalizer"]));

    // A worker that does not load it is named with the reason.
    api.apply(&slice(&bed, "bad", &bad, true)).await;
    bad.asked("POST /v1/loras").await;
    let failed = api.until(&model, "it is not everywhere", |of| reason(of, "NotReady")).await;
    let message = &failed["status"]["conditions"][1]["message"];
    assert_eq!(message, "1 of 2 workers; bad: status 500: why");
    assert_eq!(failed["status"]["endpoints"][1]["ready"], true);

    // A worker that comes back is asked again.
    api.apply(&slice(&bed, "good", &good, false)).await;
    api.until(&model, "a worker is not ready", |of| of["status"]["readyEndpoints"] == 0).await;
    while good.asked.try_recv().is_ok() {}
    api.apply(&slice(&bed, "good", &good, true)).await;
    good.asked("POST /v1/loras").await;

    api.delete(&model, Duration::ZERO).await;
    good.asked("DELETE /v1/loras/org/adapter ").await;
    bed.until_gone("DynamoModel", "adapter").await;
}
