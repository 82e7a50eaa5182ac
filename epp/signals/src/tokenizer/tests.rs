//! Tokenizers from folders, caches, scripted hubs and real agents.

use super::*;
use crate::testkit::{Agent, DEADLINE, tokenizer_json};
use stator_fleet::ClientSettings;
use stator_http::TlsOptions;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn provide(source: TokenizerSource) -> (Provision, SignalMetrics) {
    let metrics = SignalMetrics::default();
    (Provision::start("m", source, Duration::from_millis(5), metrics.clone()), metrics)
}

/// Waits for a state that `wanted` accepts.
async fn state(
    provision: &Provision,
    wanted: impl FnMut(&TokenizerState) -> bool,
) -> TokenizerState {
    let mut state = provision.state();
    let waiting = state.wait_for(wanted);
    let found = tokio::time::timeout(DEADLINE, waiting).await.expect("waited in vain");
    found.expect("it is provided").clone()
}

async fn ready(provision: &Provision) -> Arc<Model> {
    let state = state(provision, |state| matches!(state, TokenizerState::Ready(_))).await;
    state.model().expect("it is ready").clone()
}

async fn failed(provision: &Provision) -> (String, Option<Arc<Model>>) {
    match state(provision, |state| matches!(state, TokenizerState::Failed { .. })).await {
        TokenizerState::Failed { reason, previous } => (reason, previous),
        TokenizerState::Loading | TokenizerState::Ready(_) => panic!("it failed"),
    }
}

/// Puts a file in its place in one move.
fn put(folder: &Path, name: &str, content: &[u8]) {
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::write(folder.join("new"), content).expect("a file");
    std::fs::rename(folder.join("new"), folder.join(name)).expect("a file");
}

#[tokio::test]
async fn a_folder_is_loaded_and_loaded_again_when_it_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (provision, metrics) = provide(TokenizerSource::Folder(folder.path().into()));
    let (reason, previous) = failed(&provision).await;
    assert!(reason.contains("tokenizer.json") && previous.is_none(), "{reason}");

    put(folder.path(), "tokenizer.json", &tokenizer_json());
    let first = ready(&provision).await;
    assert_eq!((first.name(), first.context_length()), ("m", None));
    assert_eq!(metrics.tokenizer_ready.get(), 1);

    put(folder.path(), "config.json", br#"{"max_position_embeddings": 77}"#);
    let changed =
        |state: &TokenizerState| state.model().is_some_and(|m| m.context_length() == Some(77));
    state(&provision, changed).await;

    put(folder.path(), "config.json", b"{");
    let (reason, previous) = failed(&provision).await;
    assert!(reason.starts_with("config.json: "), "{reason}");
    assert_eq!(previous.and_then(|model| model.context_length()), Some(77));
    assert_eq!(provision.model().and_then(|model| model.context_length()), Some(77));
    assert_eq!(metrics.tokenizer_ready.get(), 1);
}

fn hub(cache: &Path, endpoint: Option<String>) -> TokenizerSource {
    TokenizerSource::Hub(HubSource {
        cache: cache.into(),
        repo: "org/model".into(),
        revision: "main".into(),
        endpoint,
        tls: TlsOptions::default(),
    })
}

#[tokio::test]
async fn a_hubs_cache_is_read_by_its_layout() {
    let cache = tempfile::tempdir().expect("a folder");
    let (provision, _) = provide(hub(cache.path(), None));
    let (reason, _) = failed(&provision).await;
    let folder = cache.path().display();
    let expected =
        format!("{folder} has no tokenizer of \"org/model\", and no hub endpoint is configured");
    assert_eq!(reason, expected);

    let model = cache.path().join("models--org--model");
    put(&model.join("snapshots/c0ffee"), "tokenizer.json", &tokenizer_json());
    put(&model.join("refs"), "main", b"c0ffee");
    ready(&provision).await;

    // The branch moves on.
    let next = model.join("snapshots/decaf");
    put(&next, "config.json", br#"{"max_position_embeddings": 5}"#);
    put(&next, "tokenizer.json", &tokenizer_json());
    put(&model.join("refs"), "main", b"decaf\n");
    state(&provision, |state| state.model().is_some_and(|m| m.context_length() == Some(5))).await;
}

#[tokio::test]
async fn names_do_not_lead_out_of_the_cache() {
    let cache = tempfile::tempdir().expect("a folder");
    put(cache.path(), "tokenizer.json", &tokenizer_json());
    let inside = cache.path().join("models--m/snapshots/x");
    std::fs::create_dir_all(&inside).expect("a folder");
    for revision in ["../../..", "x/../../../..", ""] {
        let source = HubSource {
            cache: cache.path().into(),
            repo: "m".into(),
            revision: revision.into(),
            endpoint: None,
            tls: TlsOptions::default(),
        };
        let error = TokenizerSource::Hub(source).files().await.expect_err("it is not there");
        assert!(matches!(error, SourceError::NotCached { .. }), "{error}");
    }
}

/// A server that answers each request, told by its first line and body, and then closes.
async fn server(answer: impl Fn(&str, &str) -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = Vec::new();
            let text = loop {
                stream.read_buf(&mut request).await.expect("a request");
                let text = String::from_utf8(request.clone()).expect("text");
                let length = text
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "))
                    .map_or(0, |length| length.parse().expect("a length"));
                if text.split_once("\r\n\r\n").is_some_and(|(_, body)| body.len() == length) {
                    break text;
                }
            };
            let (head, body) = text.split_once("\r\n\r\n").expect("a whole request");
            let answer = answer(head.lines().next().unwrap_or_default(), body);
            stream.write_all(answer.as_bytes()).await.expect("answered");
        }
    });
    format!("http://{address}")
}

fn ok(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
}

fn status(status: u16, header: &str) -> String {
    format!("HTTP/1.1 {status} It\r\nconnection: close\r\n{header}content-length: 0\r\n\r\n")
}

#[tokio::test]
async fn what_is_not_cached_is_had_from_the_hub() {
    let tokenizer = String::from_utf8(tokenizer_json()).expect("JSON is text");
    let endpoint = server(move |line, _| match line {
        "GET /org/model/resolve/main/tokenizer.json HTTP/1.1" => {
            status(302, "location: /cdn/blob?a=b\r\n")
        }
        "GET /cdn/blob?a=b HTTP/1.1" => ok(&tokenizer),
        "GET /org/model/resolve/main/config.json HTTP/1.1" => {
            ok(r#"{"max_position_embeddings": 9}"#)
        }
        _ => status(404, ""),
    })
    .await;
    let cache = tempfile::tempdir().expect("a folder");
    let (provision, _) = provide(hub(cache.path(), Some(endpoint)));
    assert_eq!(ready(&provision).await.context_length(), Some(9));
}

#[tokio::test]
async fn a_hub_that_refuses_or_leads_nowhere_is_told_of() {
    let cache = tempfile::tempdir().expect("a folder");
    for (answer, expected) in [
        (status(404, ""), "/org/model/resolve/main/tokenizer.json: not there"),
        (status(401, ""), "/org/model/resolve/main/tokenizer.json: status 401"),
        (
            status(302, "location: /round\r\n"),
            "/org/model/resolve/main/tokenizer.json: more than 5 redirections",
        ),
    ] {
        let endpoint = server(move |_, _| answer.clone()).await;
        let (provision, _) = provide(hub(cache.path(), Some(endpoint.clone())));
        assert_eq!(failed(&provision).await.0, format!("{endpoint}{expected}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_gives_its_models_files() {
    let agent = Agent::start().await;
    let (sender, addresses) = watch::channel(vec![]);
    let (provision, _) = provide(TokenizerSource::Agents(AgentSource {
        addresses,
        client: ClientSettings::default(),
    }));
    let (reason, _) = failed(&provision).await;
    assert_eq!(reason, "no agent gave the model's files: there are none");
    sender.send_replace(vec![agent.address]);
    ready(&provision).await;
    agent.stop().await;
}

async fn render(answer: String) -> Result<Vec<u32>, RenderError> {
    let url = server(move |line, body| {
        assert_eq!(line, "POST /base/v1/completions/render HTTP/1.1");
        assert_eq!(body, r#"{"prompt":"a"}"#);
        answer.clone()
    })
    .await;
    let settings = RenderSettings {
        url: format!("{url}/base/"),
        timeout: DEADLINE,
        response_bytes_max: 1000,
        ..RenderSettings::default()
    };
    let renderer = Renderer::new(settings).expect("an address");
    renderer.render("/v1/completions", br#"{"prompt":"a"}"#, false).await
}

#[tokio::test]
async fn a_renderer_turns_a_request_into_token_ids() {
    // The first is recorded from vLLM 0.32.
    let chat = r#"{"request_id":"chatcmpl-9829b094b730a79c","token_ids":[1,1500,202,804,587,2],"token_offsets":null,"features":null,"model":"tiny"}"#;
    assert_eq!(render(ok(chat)).await.expect("token ids"), [1, 1500, 202, 804, 587, 2]);
    let one = r#"[{"token_ids":[7,8]}]"#;
    assert_eq!(render(ok(one)).await.expect("token ids"), [7, 8]);
}

#[tokio::test]
async fn a_renderers_other_answers_are_errors() {
    for (answer, expected) in [
        (status(400, ""), "the renderer answered with status 400"),
        (
            ok(r#"[{"token_ids":[1]},{"token_ids":[2]}]"#),
            "the renderer's answer has not one list of token ids: 2 lists",
        ),
        (ok(&"x".repeat(1001)), "response of more than 1000 bytes"),
    ] {
        assert_eq!(render(answer).await.expect_err("no token ids").to_string(), expected);
    }
    assert!(matches!(render(ok("{}")).await, Err(RenderError::Malformed(_))));
}

#[tokio::test]
async fn a_renderer_that_is_silent_costs_its_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let [timeout, media_timeout] = [20, 30].map(Duration::from_millis);
    let settings = RenderSettings { url, timeout, media_timeout, ..RenderSettings::default() };
    let renderer = Renderer::new(settings).expect("an address");
    for (has_media, limit) in [(false, timeout), (true, media_timeout)] {
        let rendered = renderer.render("/v1/completions", b"{}", has_media).await;
        assert!(matches!(rendered, Err(RenderError::Timeout(found)) if found == limit));
    }
}
