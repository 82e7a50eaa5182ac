//! Health checks as clients see them.

use super::service::{HealthListRequest, HealthListResponse};
use super::*;
use stator_runtime::shutdown::Trigger;
use stator_runtime::tls::Listener;
use tokio::net::TcpListener;
use tonic::transport::Channel;
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A server of its own for health checks.
struct Served {
    channel: Channel,
    ready: watch::Sender<bool>,
    /// Of the pool `default/pool`.
    pool: watch::Sender<bool>,
    trigger: Trigger,
    task: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

async fn serve(ready: bool) -> Served {
    let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = tcp.local_addr().expect("it is bound");
    let (ready, readiness) = watch::channel(ready);
    let (pool, of_pool) = watch::channel(true);
    let (trigger, shutdown) = Shutdown::new();
    let task = tokio::spawn(async move {
        let health = Health::new(readiness).with_pools(vec![("default/pool".into(), of_pool)]);
        health.serve(Listener::plain(tcp).incoming(), &shutdown).await
    });
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("it is an address");
    let channel = endpoint.connect().await.expect("the server listens");
    Served { channel, ready, pool, trigger, task }
}

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

impl Served {
    async fn check(&self, service: &str) -> Result<&'static str, Code> {
        let answer = HealthClient::new(self.channel.clone()).check(of(service)).await;
        answer.map(|answer| answer.into_inner().status().as_str_name()).map_err(|e| e.code())
    }
}

#[tokio::test]
async fn readiness_follows_the_process_and_liveness_does_not() {
    let served = serve(false).await;
    for ready in [false, true, false] {
        served.ready.send_replace(ready);
        let expected = if ready { "SERVING" } else { "NOT_SERVING" };
        assert_eq!(served.check("liveness").await, Ok("SERVING"));
        for name in READINESS {
            assert_eq!(served.check(name).await, Ok(expected), "{name}");
        }
    }
}

#[tokio::test]
async fn a_pool_is_asked_for_by_its_name() {
    let served = serve(false).await;
    let mut client = HealthClient::new(served.channel.clone());
    let mut watch = client.watch(of("default/pool")).await.expect("it begins").into_inner();
    for (ready, expected) in [(true, "SERVING"), (false, "NOT_SERVING")] {
        served.pool.send_replace(ready);
        assert_eq!(served.check("default/pool").await, Ok(expected));
        let status = watch.message().await.expect("it goes on").expect("it tells");
        assert_eq!(status.status().as_str_name(), expected);
    }
    assert_eq!(served.check("default/other").await, Err(Code::NotFound));
}

#[tokio::test]
async fn an_unknown_name_is_not_found() {
    assert_eq!(serve(true).await.check("vllm").await, Err(Code::NotFound));
}

#[tokio::test]
async fn all_names_are_listed() {
    let served = serve(false).await;
    let mut grpc = tonic::client::Grpc::new(served.channel.clone());
    grpc.ready().await.expect("the server listens");
    let codec = tonic_prost::ProstCodec::<HealthListRequest, HealthListResponse>::default();
    let path = "/grpc.health.v1.Health/List".parse().expect("it is a path");
    let answer = grpc.unary(Request::new(HealthListRequest {}), path, codec).await;
    let statuses = answer.expect("it is listed").into_inner().statuses;
    let serving = |(name, status): (String, tonic_health::pb::HealthCheckResponse)| {
        (name, status.status().as_str_name())
    };
    let mut found: Vec<_> = statuses.into_iter().map(serving).collect();
    found.sort();
    let expected = [
        ("", "NOT_SERVING"),
        ("default/pool", "SERVING"),
        ("envoy.service.ext_proc.v3.ExternalProcessor", "NOT_SERVING"),
        ("inference-extension", "NOT_SERVING"),
        ("liveness", "SERVING"),
        ("readiness", "NOT_SERVING"),
    ];
    assert_eq!(found, expected.map(|(name, status)| (name.to_owned(), status)));
}

#[tokio::test]
async fn a_watch_tells_every_change_and_ends_with_the_server() {
    let served = serve(false).await;
    let mut client = HealthClient::new(served.channel.clone());
    let mut readiness = client.watch(of("readiness")).await.expect("it begins").into_inner();
    let mut unknown = client.watch(of("vllm")).await.expect("it begins").into_inner();
    for ready in [false, true, false] {
        served.ready.send_replace(ready);
        let expected = if ready { "SERVING" } else { "NOT_SERVING" };
        let status = readiness.message().await.expect("it goes on").expect("it tells");
        assert_eq!(status.status().as_str_name(), expected);
    }
    let status = unknown.message().await.expect("it goes on").expect("it tells");
    assert_eq!(status.status().as_str_name(), "SERVICE_UNKNOWN");
    served.trigger.set();
    assert_eq!(readiness.message().await.expect("it ends well"), None);
    assert_eq!(unknown.message().await.expect("it ends well"), None);
    drop((client, served.channel));
    served.task.await.expect("it does not panic").expect("it ends well");
}
