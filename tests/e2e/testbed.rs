//! The testbed itself: the cluster enforces what clusters enforce, and Envoy does what gateways do.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use stator_tests::envoy::{BodyMode, Envoy, EnvoySettings, Routing};
use stator_tests::kube::{Cluster, Resources};
use stator_tests::kube_objects::{pool, reference};
use stator_tests::soon;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};

const DESTINATION: &str = "x-gateway-destination-endpoint";

/// A pool that the schema allows.
fn valid_pool() -> Value {
    pool("pool", json!({ "app": "engine" }), &[8000])
}

#[tokio::test]
async fn a_pool_gets_the_defaults_of_its_schema() {
    let Some(cluster) = Cluster::shared().await else { return };
    let pool = cluster.namespace().await.apply(valid_pool()).await;
    assert_eq!(pool["spec"]["appProtocol"], "http");
    let picker = &pool["spec"]["endpointPickerRef"];
    assert_eq!(picker["kind"], "Service");
    assert_eq!(picker["failureMode"], "FailClose");
}

#[tokio::test]
async fn objectives_and_rewrites_are_served_in_both_groups() {
    let Some(cluster) = Cluster::shared().await else { return };
    let namespace = cluster.namespace().await;
    for group in ["llm-d.ai", "inference.networking.x-k8s.io"] {
        let version = format!("{group}/v1alpha2");
        let mut objective = reference(&version, "InferenceObjective", "", "urgent");
        objective["spec"] = json!({ "priority": -1, "poolRef": { "name": "pool" } });
        let objective = namespace.apply(objective).await;
        assert_eq!(objective["spec"]["poolRef"]["group"], "inference.networking.k8s.io");

        let mut rewrite = reference(&version, "InferenceModelRewrite", "", "rewrite");
        let rules = json!([{ "targets": [{ "weight": 1, "modelRewrite": "model" }] }]);
        rewrite["spec"] = json!({ "rules": rules, "poolRef": { "name": "pool" } });
        namespace.apply(rewrite).await;
    }
}

#[tokio::test]
async fn a_pod_is_made_ready_at_a_loopback_address() {
    let Some(cluster) = Cluster::shared().await else { return };
    let namespace = cluster.namespace().await;
    let address = "127.0.0.7".parse().unwrap();
    namespace.ready_pod("engine", json!({ "app": "engine" }), address).await;
    let pod = reference("v1", "Pod", &namespace.name, "engine");
    let ready = |pod: &Value| pod["status"]["conditions"][0]["status"] == "True";
    let seen = namespace.api.until(&pod, "a ready pod", ready).await;
    assert_eq!(seen["status"]["podIP"], "127.0.0.7");
    assert_eq!(seen["metadata"]["labels"]["app"], "engine");

    let pod_now = namespace.set_ready("engine", false).await;
    assert!(!ready(&pod_now), "{pod_now}");
    namespace.terminate_pod("engine").await;
    let terminating = namespace.api.get(&pod).await.expect("no kubelet ends the pod");
    assert!(terminating["metadata"]["deletionTimestamp"].is_string(), "{terminating}");
    namespace.delete_pod("engine").await;
    assert_eq!(namespace.api.get(&pod).await, None);
}

#[tokio::test]
async fn a_service_account_may_do_what_its_roles_say() {
    let Some(cluster) = Cluster::shared().await else { return };
    let namespace = cluster.namespace().await;
    let api = cluster.api_for(&namespace.name, "picker").await;
    let reply = api.try_apply(&reference("v1", "ConfigMap", &namespace.name, "map")).await;
    let refusal = reply.expect_err("an account without roles may change nothing");
    assert_eq!(refusal.status, StatusCode::FORBIDDEN);

    let version = "rbac.authorization.k8s.io/v1";
    let mut role = reference(version, "Role", "", "writer");
    let verbs = ["create", "patch"];
    role["rules"] = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": verbs }]);
    namespace.apply(role).await;
    let mut binding = reference(version, "RoleBinding", "", "writer");
    binding["roleRef"] =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "writer" });
    binding["subjects"] =
        json!([{ "kind": "ServiceAccount", "name": "picker", "namespace": namespace.name }]);
    namespace.apply(binding).await;
    // The authoriser sees the binding by its own watch, so the right comes a moment later.
    let map = reference("v1", "ConfigMap", &namespace.name, "map");
    let allowed = async { while api.try_apply(&map).await.is_err() {} };
    soon("the account's new right", allowed).await;
}

#[tokio::test]
async fn objects_and_tokens_survive_a_restart_of_the_cluster() {
    let Some(mut cluster) = Cluster::start().await else { return };
    cluster.install(Resources::Gateway).await;
    let namespace = cluster.namespace().await;
    let pool = namespace.apply(valid_pool()).await;
    let mut class = reference("gateway.networking.k8s.io/v1", "GatewayClass", "", "class");
    class["spec"] = json!({ "controllerName": "example.com/tests" });
    namespace.api.apply(&class).await;
    let account = cluster.api_for(&namespace.name, "picker").await;

    cluster.restart().await;
    assert!(namespace.api.get(&pool).await.is_some());
    assert!(namespace.api.get(&class).await.is_some());
    let reply = account.send(hyper::Method::GET, "/version", "application/json", "").await;
    assert_eq!(reply.status, StatusCode::OK);
}

/// An engine that answers every request with its name; it speaks HTTP/1.1 and HTTP/2.
async fn engine(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let answer = move |request: Request<Incoming>| async move {
                let version = request.version();
                request.into_body().collect().await?;
                let body = Full::new(Bytes::from(format!("{name} {version:?}")));
                Ok::<_, hyper::Error>(Response::new(body))
            };
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            tokio::spawn(async move {
                let service = hyper::service::service_fn(answer);
                // How the connection ends shows in the response.
                let _ = server.serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    address
}

/// The address of a picker that hangs up on everybody.
async fn dead_picker() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    address
}

#[tokio::test]
async fn a_gateway_that_fails_closed_answers_for_a_dead_picker() {
    let settings = EnvoySettings::new(dead_picker().await);
    let Some(envoy) = Envoy::start(&settings).await else { return };
    let engine = engine("a").await;
    let client = envoy.client().with_header(DESTINATION, &engine.to_string());
    let reply = client.post("/v1/chat/completions", &json!({})).await;
    assert!(reply.status.is_server_error(), "{}", reply.status);
    assert_eq!(envoy.stat("http.gateway.ext_proc.streams_started").await, 1);
    assert_eq!(envoy.stat("cluster.original-destination.upstream_rq_total").await, 0);
}

/// A gateway that fails open, whose picker's Service has no pods.
fn without_picker(routing: Routing) -> EnvoySettings {
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let settings = EnvoySettings::new(nobody);
    EnvoySettings { pickers: Vec::new(), fail_open: true, routing, ..settings }
}

#[tokio::test]
async fn a_gateway_that_fails_open_takes_any_endpoint_of_the_pool() {
    let pool = Routing::OverrideHost(vec![engine("a").await, engine("b").await]);
    let Some(envoy) = Envoy::start(&without_picker(pool)).await else { return };
    let mut answers = Vec::new();
    for _ in 0..2 {
        let reply = envoy.client().post("/v1/chat/completions", &json!({})).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", envoy.log());
        answers.push(String::from_utf8_lossy(&reply.body).into_owned());
    }
    answers.sort();
    assert_eq!(answers, ["a HTTP/1.1", "b HTTP/1.1"]);
}

#[tokio::test]
async fn in_full_duplex_a_body_that_was_sent_cannot_fail_open() {
    let routing = Routing::OverrideHost(vec![engine("a").await]);
    let pickers = vec![dead_picker().await];
    let mut settings = EnvoySettings { pickers, ..without_picker(routing) };
    let check = async |settings: &EnvoySettings, with_body: StatusCode| {
        let Some(envoy) = Envoy::start(settings).await else { return };
        assert_eq!(envoy.client().get("/v1/models").await.status, StatusCode::OK);
        let reply = envoy.client().post("/v1/chat/completions", &json!({})).await;
        assert_eq!(reply.status, with_body, "{}", envoy.log());
    };
    check(&settings, StatusCode::INTERNAL_SERVER_ERROR).await;
    settings.health_checks = true;
    check(&settings, StatusCode::OK).await;
    settings.health_checks = false;
    settings.request_body = BodyMode::Buffered;
    check(&settings, StatusCode::OK).await;
}

#[tokio::test]
async fn both_kinds_of_cluster_go_where_the_header_says() {
    let (a, b) = (engine("a").await, engine("b").await);
    for routing in [Routing::OriginalDestination, Routing::OverrideHost(vec![a, b])] {
        let Some(envoy) = Envoy::start(&without_picker(routing)).await else { return };
        for _ in 0..3 {
            let client = envoy.client().with_header(DESTINATION, &b.to_string());
            let reply = client.post("/v1/chat/completions", &json!({})).await;
            assert_eq!(reply.body, "b HTTP/1.1", "{}", envoy.log());
        }
    }
}

#[tokio::test]
async fn grpc_gets_through_to_the_engines_of_an_h2c_pool() {
    let settings = without_picker(Routing::OverrideHost(vec![engine("a").await]));
    let settings = EnvoySettings { upstream_http2: true, ..settings };
    let Some(envoy) = Envoy::start(&settings).await else { return };
    let socket = TokioIo::new(TcpStream::connect(envoy.address()).await.unwrap());
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("{}/service/method", envoy.url()));
    let request = request.body(Full::new(Bytes::from("message"))).unwrap();
    let reply = soon("an answer", client.send_request(request)).await.unwrap();
    let body = reply.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "a HTTP/2.0", "{}", envoy.log());
}

#[tokio::test]
async fn envoy_accepts_every_setting() {
    let nobody = dead_picker().await;
    for mode in [BodyMode::None, BodyMode::FullDuplex, BodyMode::Streamed, BodyMode::Buffered] {
        let mut settings = EnvoySettings::new(nobody);
        settings.pickers = vec![nobody, nobody];
        settings.tls = true;
        settings.health_checks = true;
        settings.subset = Some(json!(["127.0.0.1:8000", "[::1]:8000"]));
        (settings.request_body, settings.response_body) = (mode, mode);
        let Some(envoy) = Envoy::start(&settings).await else { return };
        // Nobody is healthy, and it fails closed.
        assert!(envoy.client().get("/v1/models").await.status.is_server_error());
    }
}
