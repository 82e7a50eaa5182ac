//! A HorizontalPodAutoscaler scales a component of a graph by a metric of its frontend, through the
//! API of external metrics.

use crate::bed::{GraphBed, answer, asks_on, chat, documents};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use stator_tests::http::Client;
use stator_tests::kube_objects::reference;
use stator_tests::nodes::PodCluster;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::{TcpListener, UdpSocket};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

const AUTOSCALER: &str = include_str!("../../manifests/autoscaling/hpa-graph.yaml");
/// Group and version of the API.
const API: &str = "external.metrics.k8s.io/v1beta1";
/// Metric that the autoscaler asks for.
const METRIC: &str = "stator_proxy_requests_running";

/// Serves a metric of a frontend as an adapter does; returns where pods and the API server reach it.
async fn adapter(frontend: Client) -> SocketAddr {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&key).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    let tls = TlsAcceptor::from(Arc::new(config));
    // The address of this side of the pods' network: a Service may not lead to a loopback one.
    let way = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    way.connect(frontend.address()).await.unwrap();
    let listener = TcpListener::bind((way.local_addr().unwrap().ip(), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, frontend) = (tls.clone(), frontend.clone());
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let service = service_fn(|request| shown(&frontend, request));
                // A connection that breaks is the server's to open again.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

/// The API's description of itself, or the value of the metric now.
async fn shown(
    frontend: &Client,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = match request.uri().path().ends_with(METRIC) {
        false => json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": API,
            "resources": [{
                "name": METRIC, "singularName": "", "namespaced": true,
                "kind": "ExternalMetricValueList", "verbs": ["get"],
            }],
        }),
        true => json!({
            "kind": "ExternalMetricValueList",
            "apiVersion": API,
            "metadata": {},
            "items": [{
                "metricName": METRIC, "metricLabels": {}, "value": value(frontend).await,
                "timestamp": "2026-01-01T00:00:00Z",
            }],
        }),
    };
    let mut answer = Response::new(Full::new(Bytes::from(body.to_string())));
    *answer.status_mut() = StatusCode::OK;
    answer.headers_mut().insert("content-type", "application/json".parse().unwrap());
    Ok(answer)
}

/// The metric on the frontend's page.
async fn value(frontend: &Client) -> String {
    let page = frontend.get("/metrics").await;
    let page = String::from_utf8_lossy(&page.body).into_owned();
    let line = page.lines().find_map(|line| line.strip_prefix(METRIC)?.strip_prefix(' '));
    line.unwrap_or("0").to_owned()
}

/// Has the API server ask the adapter.
async fn register(bed: &GraphBed<'_>, adapter: SocketAddr) {
    let api = &bed.space.namespace.api;
    let mut service = bed.space.object("v1", "Service", "adapter");
    service["spec"] = json!({ "ports": [{ "port": 443 }] });
    api.apply(&service).await;
    let mut slice = bed.space.object("discovery.k8s.io/v1", "EndpointSlice", "adapter");
    slice["metadata"]["labels"] = json!({ "kubernetes.io/service-name": "adapter" });
    slice["addressType"] = json!("IPv4");
    slice["ports"] = json!([{ "name": "", "port": adapter.port(), "protocol": "TCP" }]);
    slice["endpoints"] = json!([{ "addresses": [adapter.ip()], "conditions": { "ready": true } }]);
    api.apply(&slice).await;
    let (group, version) = API.split_once('/').unwrap();
    let name = format!("{version}.{group}");
    let mut registration = reference("apiregistration.k8s.io/v1", "APIService", "", &name);
    registration["spec"] = json!({
        "group": group,
        "version": version,
        "insecureSkipTLSVerify": true,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": { "name": "adapter", "namespace": bed.space.namespace.name, "port": 443 },
    });
    api.apply(&registration).await;
    api.until(&registration, "the adapter is asked", |of| {
        let conditions = of["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|one| one["type"] == "Available" && one["status"] == "True")
    })
    .await;
}

#[tokio::test]
async fn an_autoscaler_moves_a_component_by_a_metric_of_its_frontend() {
    // The registration is the whole cluster's.
    let Some(cluster) = PodCluster::start(&["node"]).await else { return };
    let bed = GraphBed::new(&cluster).await;
    let mut graph =
        documents(include_str!("../../manifests/operator/graphs/simulated.yaml")).remove(0);
    graph["spec"]["components"][2]["scalingAdapter"] = json!({});
    // As slow as a GPU: answers run for seconds.
    for component in [1, 2] {
        let main =
            &mut graph["spec"]["components"][component]["podTemplate"]["spec"]["containers"][0];
        main["args"].as_array_mut().unwrap().retain(|word| word != "--speedup-ratio=10");
    }
    bed.run(&graph).await;
    bed.pods("Decode", 1).await;
    let client = bed.frontend("simulated").await;
    let pages = SocketAddr::new(client.address().ip(), 9090);
    register(&bed, adapter(Client::new(pages)).await).await;

    let mut autoscaler = documents(AUTOSCALER).remove(0);
    autoscaler["spec"]["behavior"] = json!({ "scaleDown": { "stabilizationWindowSeconds": 0 } });
    bed.space.namespace.apply(autoscaler).await;
    let stories = ["Once upon a time", "In the beginning", "Long ago", "Call me"];
    let asking = stories.map(|story| Box::pin(asks_on(&client, story, 1_000)));
    tokio::select! {
        _ = bed.pods("Decode", 2) => {}
        (never, ..) = futures::future::select_all(asking) => match never {},
    }
    bed.pods("Decode", 1).await;
    answer(&client, &chat("org/model", "And then", 20)).await.unwrap();
}
