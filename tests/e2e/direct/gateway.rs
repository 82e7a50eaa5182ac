//! Behind a real Envoy and a real picker, with a configuration that splits prompts from answers.

use super::testbed::{CHAT, PARAMETERS, PREFILLER, Sidecar, chat};
use hyper::{Method, StatusCode};
use serde_json::json;
use stator_tests::engine::{Engine, SERVED_BY};
use stator_tests::envoy::{Envoy, EnvoySettings};
use stator_tests::http::Client;
use stator_tests::picker::{EndpointsFile, Picker};
use stator_tests::tooling::installed;
use std::io::Write;

/// Every prompt is computed elsewhere.
const CONFIG: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: always-disagg-pd-decider
- type: disagg-profile-handler
  parameters:
    deciders:
      prefill: always-disagg-pd-decider
    profiles:
      decode: decode
      prefill: prefill
- type: prefill-filter
- type: decode-filter
- type: queue-scorer
- type: max-score-picker
schedulingProfiles:
- name: prefill
  plugins:
  - pluginRef: prefill-filter
  - pluginRef: queue-scorer
  - pluginRef: max-score-picker
- name: decode
  plugins:
  - pluginRef: decode-filter
  - pluginRef: queue-scorer
  - pluginRef: max-score-picker
";

#[tokio::test]
async fn a_picker_names_both_engines_and_the_sidecar_obeys() {
    if installed("STATOR_TEST_ENVOY", "Envoy").is_none() {
        return;
    }
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let sidecar = Sidecar::pair(&engine, prefiller.address(), &[]).await;
    let endpoint = |name: &str, address: std::net::SocketAddr| {
        json!({ "name": name, "address": address.ip(), "port": address.port(),
                "labels": { "llm-d.ai/role": name } })
    };
    let file = EndpointsFile::of(&[]);
    let endpoints =
        [endpoint("decode", sidecar.client.address()), endpoint("prefill", prefiller.address())];
    file.write(&json!({ "endpoints": endpoints }));
    let file_flag = format!("--endpoints-file={}", file.path().display());
    let config = format!("--config-text={CONFIG}");
    let mut picker = Picker::start(&[&file_flag, &config, "--secure-serving=false"]).await;
    picker.ready().await;
    let settings = EnvoySettings::new(picker.address());
    let envoy = Envoy::start(&settings).await.expect("it is installed");

    // A client's own words about engines are removed or refused.
    let client = envoy.client().with_header(PREFILLER, "127.0.0.1:1");
    let mut hostile = chat("prompt");
    hostile[PARAMETERS] = json!({ "do_remote_prefill": true });
    assert_eq!(client.post(CHAT, &hostile).await.status, StatusCode::BAD_REQUEST);
    for n in 0..3 {
        let body = chat(&format!("prompt {n}"));
        let reply = client.post(CHAT, &body).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", picker.process.log());
        assert_eq!(reply.headers[SERVED_BY], engine.address().to_string());
        let (asked, told) = (prefiller.last().json(), engine.last().json());
        assert_eq!(asked["messages"], body["messages"]);
        assert_eq!(asked[PARAMETERS]["do_remote_decode"], true);
        assert_eq!(told[PARAMETERS]["remote_engine_id"], "simulated");
        assert_eq!(told["max_tokens"], 9);
    }
    let labels = ["way=\"handed_over\"", "status=\"200\""];
    sidecar.counts("stator_direct_requests_total", &labels, 3.0).await;
}

#[tokio::test]
async fn a_tenant_has_the_same_salt_by_whatever_way_its_prompts_come() {
    let engine = Engine::start().await;
    let sidecar = Sidecar::start(engine.address(), &[]).await;
    let tenant = |name: &str| sidecar.client.clone().with_header("x-tenant-id", name);
    let salt = async |client: Client, own: Option<&str>| {
        let mut body = chat("hello");
        own.into_iter().for_each(|own| body["cache_salt"] = json!(own));
        assert_eq!(client.post(CHAT, &body).await.status, StatusCode::OK);
        engine.last().json()["cache_salt"].as_str().expect("a salt").to_owned()
    };
    let blue = salt(tenant("blue"), None).await;
    // The salt of a proxy without keys and secret.
    assert_eq!(blue, "5d6e2809f8d9cf6fe3a0f9af5b53765e");
    assert_eq!(salt(tenant("blue"), Some(&blue)).await, blue, "a picker before has salted it");
    let others = [salt(tenant("red"), None).await, salt(tenant("red"), Some(&blue)).await];
    assert!(others[0] != others[1] && !others.contains(&blue), "{others:?}");
}

#[tokio::test]
async fn a_compressed_body_is_unpacked_within_its_bound() {
    let engine = Engine::start().await;
    let sidecar = Sidecar::start(engine.address(), &["--max-body-bytes=10000"]).await;
    let client = sidecar.client.clone().with_header("content-encoding", "gzip");
    let client = client.with_header("content-type", "application/json");
    let send = async |body: &serde_json::Value| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(body.to_string().as_bytes()).expect("a vector takes all");
        let packed = packed.finish().expect("a vector takes all");
        client.send(Method::POST, CHAT, packed).await.status
    };
    assert_eq!(send(&chat("hello")).await, StatusCode::OK);
    let seen = engine.last();
    assert_eq!((seen.json(), seen.header("content-encoding").len()), (chat("hello"), 0));
    assert_eq!(send(&chat(&"x".repeat(10_000))).await, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(engine.requests().len(), 1);
}
