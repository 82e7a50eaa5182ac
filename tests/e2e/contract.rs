//! What proxies, agents and engines agree on: who may speak with whom, and what an answer must look
//! like.

use crate::agents::{Agent, completion, tokens};
use crate::lifecycle::agent;
use crate::support::{MODEL, chat, ready, text, up};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::process::Process;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const TOKEN: &str = "a-secret-of-the-operators";

/// An authority, and folders with the certificates that it signed.
pub(crate) struct Certificates {
    pub(crate) folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let (key, folder) = (KeyPair::generate().unwrap(), tempfile::tempdir().unwrap());
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.crt"), authority.pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    /// The folder of a certificate for this name.
    pub(crate) fn of(&self, name: &str) -> PathBuf {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("tls.crt"), certificate.pem()).unwrap();
        std::fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
        folder
    }

    /// Flags of who is called `name` and trusts the authority.
    pub(crate) fn flags(&self, name: &str) -> [String; 2] {
        let ca = self.folder.path().join("ca.crt");
        [
            format!("--request-tls-ca-file={}", ca.display()),
            format!("--request-tls-cert-dir={}", self.of(name).display()),
        ]
    }
}

fn discovery(home: &Path) -> String {
    format!("--discovery-dir={}", home.display())
}

/// Runs `stator operate reset-cache`, and says whether it was done, and what it printed.
async fn reset(endpoint: &str, flags: &[&str]) -> (bool, String) {
    let args = [&["operate", "--agent", endpoint], flags, &["reset-cache"]].concat();
    let mut operate = Process::start(&args);
    (operate.ended().await.success(), operate.log())
}

#[tokio::test]
async fn a_request_plane_over_tls_lets_in_who_has_a_certificate_and_operators_by_name_or_token() {
    let (certificates, home) = (Certificates::new(), tempfile::tempdir().unwrap());
    let dir = discovery(home.path());
    let [ca, own] = certificates.flags("agent");
    let token = certificates.folder.path().join("token");
    std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
    let token = format!("--operations-token-file={}", token.display());
    let access = [&ca, &own, "--request-tls-client-auth", "--operations-clients=ops", &token];
    let mut agent = agent(&dir, &access.map(AsRef::as_ref));
    let serving = agent.event("serving").await;
    let endpoint = serving["endpoint"].as_str().unwrap();
    assert!(endpoint.starts_with("https://127.0.0.1:"), "{endpoint}");

    // A proxy that trusts nobody does not get there, one that does serves as ever.
    let named = "--request-tls-server-name=agent";
    let ports = ["proxy", "--http-port=0", "--metrics-port=0", &dir];
    let mut stranger = Process::start(&ports);
    let refused = stranger.event("agent refused: it cannot be reached").await;
    assert!(refused["error"].as_str().unwrap().contains("request-tls-ca-file"), "{refused}");
    let proxy = certificates.flags("proxy");
    let flags = [&ports[..], &[&proxy[0], &proxy[1], named]].concat();
    let mut proxy = Process::start(&flags);
    let client = Client::new(ready(&mut proxy).await);
    let reply = client.post("/v1/chat/completions", &chat("Once upon a time", 8)).await;
    assert!(!text(&reply.json()).is_empty());

    // Operations want more than any certificate.
    let [ca, ops] = certificates.flags("ops");
    let [_, other] = certificates.flags("proxy");
    let (done, log) = reset(endpoint, &[&ca, &ops, named]).await;
    assert!(done, "{log}");
    let (done, log) = reset(endpoint, &[&ca, &other, named]).await;
    assert!(!done && log.contains("operations need a token"), "{log}");
    let (done, log) = reset(endpoint, &[&ca, &other, named, &token]).await;
    assert!(done, "{log}");
    let wrong = "--operations-token=another-secret-altogether";
    let (done, log) = reset(endpoint, &[&ca, &other, named, wrong]).await;
    assert!(!done && log.contains("is not this agent's"), "{log}");
    let (done, log) = reset(endpoint, &[&ca, named]).await;
    assert!(!done, "without a certificate: {log}");
    let (done, log) = reset(endpoint, &[]).await;
    assert!(!done && log.contains("request-tls-ca-file"), "{log}");
}

const TLS: &str = include_str!("../../manifests/agents/components/tls/kustomization.yaml");
const ZMQ: &str = include_str!("../../manifests/agents/components/zmq/kustomization.yaml");

/// The flags that one of the manifests' components adds to a deployment, with certificates of ours.
fn component_flags(component: &str, deployment: &str, folder: &Path) -> Vec<String> {
    let component: Value = serde_yaml_ng::from_str(component).unwrap();
    let patches = component["patches"].as_array().unwrap().iter();
    let patch = patches.clone().find(|patch| patch["target"]["name"] == deployment);
    let operations = patch.expect("the deployment is patched")["patch"].as_str().unwrap();
    let operations: Vec<Value> = serde_yaml_ng::from_str(operations).unwrap();
    let values = operations.iter().filter_map(|operation| operation["value"].as_str());
    values.map(|flag| flag.replace("/certificates", &folder.display().to_string())).collect()
}

#[tokio::test]
async fn the_manifests_open_zmq_where_their_component_is_used_and_nowhere_else() {
    const AGENT: &str = include_str!("../../manifests/agents/agent.yaml");
    const POLICY: &str = include_str!("../../manifests/agents/network-policy.yaml");
    for manifest in [AGENT, POLICY] {
        assert!(!manifest.contains("5557") && !manifest.contains("5558"), "{manifest}");
    }
    let home = tempfile::tempdir().unwrap();
    let flags = component_flags(ZMQ, "stator-agent", home.path());
    let free = flags.iter().map(|flag| flag.replace(":5557", ":0").replace(":5558", ":0"));
    let free: Vec<_> = free.collect();
    assert_eq!(free.len(), 3, "{free:?}");
    let dir = discovery(home.path());
    let args = ["agent", "--listen=127.0.0.1:0", "--metrics-port=0", "--engine=sim", &dir];
    let args: Vec<_> = args.into_iter().chain(free.iter().map(String::as_str)).collect();
    let serving = Process::start(&args).event("serving").await;
    for plane in ["events", "replay"] {
        assert!(serving[plane].as_str().unwrap().starts_with("tcp://127.0.0.1:"), "{serving}");
    }
    let closed: Vec<_> = args.iter().copied().filter(|flag| *flag != "--events-open").collect();
    let mut closed = Process::start(&closed);
    assert!(!closed.ended().await.success());
    assert!(closed.log().contains("say events-open for stock subscribers"), "{}", closed.log());
}

#[tokio::test]
async fn the_certificates_of_the_manifests_serve_the_request_plane() {
    let (certificates, home) = (Certificates::new(), tempfile::tempdir().unwrap());
    let dir = discovery(home.path());
    let flags = |name: &str| {
        // A secret of cert-manager has the authority beside certificate and key.
        let folder = certificates.of(name);
        std::fs::copy(certificates.folder.path().join("ca.crt"), folder.join("ca.crt")).unwrap();
        component_flags(TLS, name, &folder)
    };
    let agent_flags = flags("stator-agent");
    assert_eq!(agent_flags.len(), 4, "{agent_flags:?}");
    let words: Vec<_> = agent_flags.iter().map(String::as_str).collect();
    let mut agent = agent(&dir, &words);
    let serving = agent.event("serving").await;
    assert!(serving["endpoint"].as_str().unwrap().starts_with("https://"), "{serving}");

    let proxy_flags = flags("stator-proxy");
    let words = proxy_flags.iter().map(String::as_str);
    let args: Vec<_> =
        ["proxy", "--http-port=0", "--metrics-port=0", &dir].into_iter().chain(words).collect();
    let mut proxy = Process::start(&args);
    let client = Client::new(ready(&mut proxy).await);
    let reply = client.post("/v1/chat/completions", &chat("Once upon a time", 8)).await;
    assert!(!text(&reply.json()).is_empty());
}

#[tokio::test]
async fn what_others_can_reach_is_not_operated_by_everyone() {
    let home = tempfile::tempdir().unwrap();
    let dir = discovery(home.path());
    let [events, replay] =
        ["events", "replay"].map(|of| format!("--{of}-listen=tcp://127.0.0.1:0"));
    let everywhere = ["agent", "--listen=0.0.0.0:0", "--metrics-port=0", &events, &replay, &dir];
    let started = async |flags: &[&str]| {
        let mut process = Process::start(&[&everywhere, flags].concat());
        let endpoint = process.event("serving").await["endpoint"].as_str().unwrap().to_owned();
        (process, endpoint)
    };
    let (_agent, endpoint) = started(&["--agent-id=a"]).await;
    let (done, log) = reset(&endpoint, &[]).await;
    assert!(!done && log.contains("operations are off"), "{log}");
    let (_agent, endpoint) = started(&["--agent-id=b", "--operations-open"]).await;
    let (done, log) = reset(&endpoint, &[]).await;
    assert!(done, "{log}");
    let token = format!("--operations-token={TOKEN}");
    let (_agent, endpoint) = started(&["--agent-id=c", &token]).await;
    let (done, log) = reset(&endpoint, &[]).await;
    assert!(!done && log.contains("operations need a token"), "{log}");
    let (done, log) = reset(&endpoint, &[&token]).await;
    assert!(done, "{log}");
}

#[tokio::test]
async fn an_engine_without_guided_decoding_says_so_by_the_requests_own_field() {
    let up = up(&["--engine=sim"]).await;
    let schema = json!({ "type": "object" });
    let fields = [
        ("response_format", json!({ "type": "json_object" })),
        ("structured_outputs", json!({ "json": schema })),
        ("guided_choice", json!(["yes", "no"])),
        ("ebnf", json!("root ::= \"a\"")),
    ];
    for (field, value) in fields {
        let mut body = chat("Hello", 4);
        body[field] = value;
        let reply = up.client.post("/v1/chat/completions", &body).await;
        let error = &reply.json()["error"];
        assert_eq!((reply.status.as_u16(), &error["param"]), (400, &json!(field)), "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("has no guided decoding"), "{message}");
    }
    let mut body = chat("Hello", 4);
    body["response_format"] = json!({ "type": "text" });
    assert_eq!(up.client.post("/v1/chat/completions", &body).await.status, 200);
    assert_eq!(body["model"], MODEL);
}

/// What a real engine answers has the form that the request gives it, whole and streamed.
pub(crate) async fn answers_have_the_form_that_is_asked_for(client: &Client, agent: &Agent) {
    every_form_holds(client, &completion(&tokens(71, 40), 64), || agent.process.log()).await;
}

/// A completion like `asked` has the form that it asks for beside.
pub(crate) async fn every_form_holds(client: &Client, asked: &Value, log: impl Fn() -> String) {
    let ask = async |field: &str, value: Value| {
        let mut body = asked.clone();
        // The end of the form is the end of the answer.
        body["ignore_eos"] = json!(false);
        body[field] = value;
        let reply = client.post("/v1/completions", &body).await;
        let log = log();
        let answer = reply.json();
        assert_eq!(reply.status, 200, "{field}: {answer}\n{log}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{field}: {answer}");
        body["stream"] = json!(true);
        let chunks = client.stream("/v1/completions", &body).await.rest().await;
        let text = |of: &Value| of["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
        assert_eq!(chunks.iter().map(text).collect::<String>(), text(&answer), "{field}");
        text(&answer)
    };
    let word = ask("guided_choice", json!(["left", "right"])).await;
    assert!(["left", "right"].contains(&&*word), "{word}");
    let word = ask("structured_outputs", json!({ "regex": "[ab]{3}-[0-9]" })).await;
    let fits = |word: &str| match word.as_bytes() {
        [head @ .., b'-', digit] => {
            head.len() == 3 && head.iter().all(|c| b"ab".contains(c)) && digit.is_ascii_digit()
        }
        _ => false,
    };
    assert!(fits(&word), "{word}");
    // Of an object a model without sense would write white space alone.
    let schema = json!({ "enum": ["left", { "side": "right" }] });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    let value: Value = serde_json::from_str(&ask("response_format", format).await).unwrap();
    assert!(value == "left" || value["side"] == "right", "{value}");
    for (field, value) in words_in_every_form() {
        let word = ask(field, value).await;
        assert!(["left", "right"].contains(&word.trim_matches('"')), "{field}: {word}");
    }
    forms_hold_whatever_is_drawn(client, asked).await;
    // What is no form is the request's fault.
    let mut body = asked.clone();
    body["guided_regex"] = json!("(");
    assert_eq!(client.post("/v1/completions", &body).await.status, 400);
}

/// A word of two in each form that clients have for it.
fn words_in_every_form() -> Vec<(&'static str, Value)> {
    const EBNF: &str = "root ::= \"left\" | \"right\"";
    let schema = json!({"enum": ["left", "right"]});
    let words = json!({"type": "or", "elements": [
        {"type": "const_string", "value": "left"}, {"type": "const_string", "value": "right"}]});
    let tag = json!({"type": "structural_tag", "format": words});
    // As inputs of custom tools are held.
    let grammar = json!({"type": "sequence", "elements": [
        {"type": "const_string", "value": "\""}, {"type": "grammar", "grammar": EBNF},
        {"type": "const_string", "value": "\""}]});
    vec![
        ("structured_outputs", json!({ "json": schema })),
        ("structured_outputs", json!({ "choice": ["left", "right"] })),
        ("structured_outputs", json!({ "grammar": EBNF })),
        ("structured_outputs", json!({ "structural_tag": tag.to_string() })),
        ("response_format", tag),
        ("response_format", json!({"type": "structural_tag", "format": grammar})),
        ("guided_json", schema.clone()),
        ("guided_regex", json!("left|right")),
        ("guided_grammar", json!(EBNF)),
        ("json_schema", json!(schema.to_string())),
        ("regex", json!("left|right")),
        ("ebnf", json!(EBNF)),
    ]
}

/// Each choice of each seed is of the form, also one that a stop string cuts.
async fn forms_hold_whatever_is_drawn(client: &Client, asked: &Value) {
    // Of other objects a model without sense would write white space alone.
    let values = [json!(1), json!(22), json!("a b"), json!({"n": 333})];
    let schema = json!({"enum": values});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    for (seed, stop) in [(1, None), (2, None), (3, Some("b")), (4, Some("2"))] {
        let mut body = asked.clone();
        body["ignore_eos"] = json!(false);
        body["temperature"] = json!(1);
        (body["n"], body["seed"]) = (json!(3), json!(seed));
        body["response_format"] = format.clone();
        body["stop"] = json!(stop);
        let reply = client.post("/v1/completions", &body).await.json();
        let choices = reply["choices"].as_array().unwrap_or_else(|| panic!("{reply}"));
        assert_eq!(choices.len(), 3, "{reply}");
        for choice in choices {
            assert_eq!(choice["finish_reason"], "stop", "seed {seed}: {choice}");
            let text = choice["text"].as_str().unwrap();
            let fits = |value: &Value| match stop {
                None => serde_json::from_str::<Value>(text).is_ok_and(|read| read == *value),
                // What is left is the beginning of the form.
                Some(_) => {
                    let bare = |text: &str| text.split_whitespace().collect::<String>();
                    bare(&value.to_string()).starts_with(&bare(text))
                }
            };
            assert!(values.iter().any(fits), "seed {seed}: {choice}");
        }
    }
}
