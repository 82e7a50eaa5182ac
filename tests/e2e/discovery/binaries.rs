//! The binaries themselves, which find each other through etcd and through Kubernetes.

use super::kubernetes::Bed;
use crate::support::{chat, ready};
use stator_tests::http::Client;
use stator_tests::kube::Cluster;
use stator_tests::kube_etcd::Etcd;
use stator_tests::process::Process;
use stator_tests::soon;

/// An agent with the built-in engine and a proxy, both with this back-end each.
async fn fleet(agent: &str, proxy: &str) -> (Process, Process, Client) {
    let (agent, proxy) = (format!("--discovery={agent}"), format!("--discovery={proxy}"));
    let mut args = vec!["agent", "--listen=127.0.0.1:0", "--metrics-port=0", "--lease-ms=3000"];
    args.extend(["--events-listen=tcp://127.0.0.1:0", "--replay-listen=tcp://127.0.0.1:0", &agent]);
    let agent = Process::start(&args);
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &proxy]);
    let client = Client::new(ready(&mut proxy).await);
    (agent, proxy, client)
}

async fn answers(client: &Client) -> bool {
    client.post("/v1/chat/completions", &chat("Hello", 2)).await.status.is_success()
}

/// Waits until nobody takes requests.
async fn refused(client: &Client) {
    soon("no worker", async { while answers(client).await {} }).await;
}

#[tokio::test]
async fn an_agent_and_a_proxy_meet_in_etcd_and_do_without_it() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    let url = format!("etcd://{}/stator/test", etcd.address());
    let (mut agent, _proxy, client) = fleet(&url, &url).await;
    assert!(answers(&client).await);
    etcd.stop();
    assert!(answers(&client).await);
    etcd.restart().await;
    assert!(answers(&client).await);
    agent.terminate();
    assert!(agent.ended().await.success(), "{}", agent.log());
    refused(&client).await;
}

#[tokio::test]
async fn an_agent_and_a_proxy_meet_in_kubernetes_and_a_deleted_pod_is_gone() {
    let Some(cluster) = Cluster::shared().await else { return };
    let bed = Bed::new(cluster).await;
    let pod = bed.pod("engine-0").await;
    let uid = pod["metadata"]["uid"].as_str().expect("pods have identities").to_owned();
    let agent = bed.url(&bed.agent, &format!("&pod=engine-0&uid={uid}"));
    let proxy = bed.url(&bed.proxy, "&selector=app=agent");
    let (_agent, _proxy, client) = fleet(&agent, &proxy).await;
    assert!(answers(&client).await);
    bed.namespace.delete_pod("engine-0").await;
    refused(&client).await;
}
