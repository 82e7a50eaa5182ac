//! Probes: they ask how the process does, and are no requests of clients.

use super::bed::Bed;
use stator_protos::discovery::ProfileRecord;

/// A scrape that counted itself would keep an idle model from going to zero.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_and_reads_of_metrics_are_no_requests() {
    let mut bed = Bed::start(&[]).await;
    let _agent = bed.agent(ProfileRecord::default()).await;
    bed.until_workers(1).await;
    for path in ["/health", "/live", "/version"] {
        assert_eq!(bed.get(path).await.0, 200, "{path}");
    }
    bed.until_metric("stator_proxy_requests_total{route=\"/version\",status=\"200\"} 1").await;
    let page = bed.metrics().await;
    assert!(page.lines().any(|line| line == "stator_proxy_requests_running 0"), "{page}");
    for path in ["/health", "/live", "/metrics"] {
        assert!(!page.contains(&format!("route=\"{path}\"")), "{path} is in {page}");
    }
}
