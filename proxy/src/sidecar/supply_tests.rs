//! The proxy, an engine, and those that encode media for it or have KV, between raw connections.

use super::metrics::{Encoding, Header};
use super::testkit::Proxy;
use crate::upstream::testkit::{BODY, DONE, Engine, Peer, check_done, tree};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::net::TcpSocket;

const CHAT: &str = "/v1/chat/completions";

/// A chat with an image of each of these addresses.
fn chat(images: &[&str]) -> String {
    let part = |url: &&str| json!({"type": "image_url", "image_url": {"url": url}});
    let parts: Vec<Value> = images.iter().map(part).collect();
    json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": parts}]})
        .to_string()
}

/// What an encoder answers that knows where an item is.
fn found(hash: &str) -> String {
    json!({"choices": [], "ec_transfer_params": {hash: {"peer_port": 8610}}}).to_string()
}

/// A proxy beside `engine` that may ask `others`.
async fn beside(engine: &Engine, others: &[&Engine], flags: &[&str]) -> Proxy {
    let others: Vec<_> = others.iter().map(|other| other.address().to_string()).collect();
    let allow = format!("--prefill-allow={}", others.join(","));
    let flags: Vec<_> = [&*allow].into_iter().chain(flags.iter().copied()).collect();
    Proxy::start(&[engine], &flags).await
}

fn encoders(encoders: &[&Engine]) -> String {
    let lines = encoders.iter().map(|it| format!("x-encoder-hosts-ports: {}\r\n", it.address()));
    lines.collect()
}

fn prefiller(prefiller: &Engine) -> String {
    format!("x-prefiller-host-port: {}\r\n", prefiller.address())
}

fn source(target: impl std::fmt::Display) -> String {
    format!("x-kv-cache-source-host-port: {target}\r\n")
}

impl Proxy {
    fn media(&self, outcome: &'static str) -> u64 {
        self.metrics.media.get_or_create(&Encoding { outcome }).get()
    }

    fn unused(&self, header: &'static str) -> u64 {
        self.metrics.headers_unused.get_or_create(&Header { header }).get()
    }
}

#[tokio::test]
async fn media_are_encoded_in_turn_and_prefill_is_told_where_they_are() {
    let [engine, prefill, one, two] = engines().await;
    let flags = ["--ec-connector=ec-nixl"];
    let proxy = beside(&engine, &[&prefill, &one, &two], &flags).await;
    let headers = [encoders(&[&one, &two]), prefiller(&prefill)].concat();
    let body = chat(&["http://a/1", "http://a/2", "http://a/1"]);
    let headers = format!("{headers}x-request-id: mine\r\n");
    let mut client = proxy.post(CHAT, &headers, &body).await;
    let (mut first, mut second) = (one.asked().await, two.asked().await);
    for (asked, image) in [(&first, "http://a/1"), (&second, "http://a/2")] {
        let request = tree(&asked.body);
        assert_eq!(request["messages"], tree(&chat(&[image]))["messages"]);
        assert_eq!((&request["max_tokens"], &request["stream"]), (&json!(1), &json!(false)));
        assert!(asked.head.starts_with("POST /v1/chat/completions "), "{}", asked.head);
        assert!(!asked.head.contains("x-encoder"), "{}", asked.head);
    }
    assert_eq!(first.header("x-request-id"), Some("mine-enc-0"));
    assert_eq!(second.header("x-request-id"), Some("mine-enc-1"));
    assert!(prefill.is_idle() && engine.is_idle(), "they wait for the encoders");
    second.answer(200, &found("h2")).await;
    first.answer(200, &found("h1")).await;
    let mut asked = prefill.asked().await;
    let told = json!({"h1": {"peer_port": 8610}, "h2": {"peer_port": 8610}});
    assert_eq!(tree(&asked.body)["ec_transfer_params"], told);
    asked.answer(200, r#"{"kv_transfer_params":{"a":1}}"#).await;
    let mut decode = engine.asked().await;
    let mut expected = tree(&body);
    expected["kv_transfer_params"] = json!({"a": 1});
    assert_eq!(tree(&decode.body), expected, "decode needs no media");
    decode.answer(200, DONE).await;
    check_done(&mut client).await;
    assert!(one.is_idle() && two.is_idle(), "the same item is encoded once");
    assert_eq!(proxy.media("encoded"), 2);
}

async fn engines<const N: usize>() -> [Engine; N] {
    let mut engines = Vec::new();
    for _ in 0..N {
        engines.push(Engine::start().await);
    }
    engines.try_into().unwrap_or_else(|_| unreachable!("as many as were asked for"))
}

#[tokio::test]
async fn without_prefill_the_engine_is_told_where_media_are() {
    let [engine, encoder] = engines().await;
    let proxy = beside(&engine, &[&encoder], &["--ec-connector=ec-nixl"]).await;
    let body = chat(&["http://a/1"]);
    let mut client = proxy.post(CHAT, &encoders(&[&encoder]), &body).await;
    encoder.asked().await.answer(200, &found("h1")).await;
    let mut told = engine.asked().await;
    let end = r#","ec_transfer_params":{"h1":{"peer_port":8610}}}"#;
    assert_eq!(told.body, format!("{}{end}", &body[..body.len() - 1]));
    // What it was told may be what fails it.
    told.answer(500, "{}").await;
    let mut alone = engine.asked().await;
    assert_eq!(alone.body, body);
    alone.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!(proxy.fallbacks("decode_failed"), 1);
}

#[tokio::test]
async fn where_storage_is_shared_the_answers_of_encoders_say_nothing() {
    let [engine, encoder] = engines().await;
    let proxy = beside(&engine, &[&encoder], &["--ec-connector=ec-example"]).await;
    let body = chat(&["http://a/1"]);
    let mut client = proxy.post(CHAT, &encoders(&[&encoder]), &body).await;
    let mut asked = encoder.asked().await;
    assert!(engine.is_idle(), "it waits for what is to be stored");
    asked.answer(200, &found("h1")).await;
    let mut told = engine.asked().await;
    assert_eq!(told.body, body);
    told.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!(proxy.media("encoded"), 1);
    // Nor is anybody asked where there is nothing to encode.
    client.post(CHAT, &encoders(&[&encoder]), &chat(&[])).await;
    assert!(told.read().await);
    assert_eq!(told.body, chat(&[]));
    told.answer(200, DONE).await;
    check_done(&mut client).await;
    assert!(encoder.is_idle());
}

#[tokio::test]
async fn encoders_that_may_not_be_asked_are_passed_over() {
    let [engine, encoder, outside] = engines().await;
    let body = chat(&["http://a/1", "http://a/2"]);
    for (flags, named, asks) in [
        (&["--ec-connector=ec-example"][..], vec![&outside, &encoder], true),
        (&["--ec-connector=ec-example"], vec![&outside], false),
        (&[], vec![&encoder], false),
    ] {
        let proxy = beside(&engine, &[&encoder], flags).await;
        let headers = format!("x-encoder-hosts-ports: nonsense\r\n{}", encoders(&named));
        let mut client = proxy.post(CHAT, &headers, &body).await;
        if asks {
            let (mut one, mut two) = (encoder.asked().await, encoder.asked().await);
            one.answer(200, "{}").await;
            two.answer(200, "{}").await;
        }
        let mut told = engine.asked().await;
        assert_eq!(told.body, body);
        told.answer(200, DONE).await;
        check_done(&mut client).await;
        assert!(outside.is_idle() && encoder.is_idle());
        assert_eq!(proxy.unused("x-encoder-hosts-ports"), u64::from(!asks));
    }
}

/// Lets an encoder fail in some way, and checks that the request goes on with the other item.
async fn check_failure(outcome: &'static str, flags: &[&str], fail: impl AsyncFnOnce(Peer)) {
    let [engine, bad, good] = engines().await;
    let flags: Vec<_> = ["--ec-connector=ec-nixl"].iter().chain(flags).copied().collect();
    let proxy = beside(&engine, &[&bad, &good], &flags).await;
    let body = chat(&["http://a/1", "http://a/2"]);
    let mut client = proxy.post(CHAT, &encoders(&[&bad, &good]), &body).await;
    let mut other = good.asked().await;
    other.answer(200, &found("h2")).await;
    fail(bad.asked().await).await;
    let mut told = engine.asked().await;
    assert_eq!(tree(&told.body)["ec_transfer_params"], json!({"h2": {"peer_port": 8610}}));
    told.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!((proxy.media(outcome), proxy.media("encoded")), (1, 1), "{outcome}");
}

#[tokio::test]
async fn an_encoder_that_fails_costs_no_request() {
    check_failure("status", &[], async |mut peer| peer.answer(503, "{}").await).await;
    check_failure("no_parameters", &[], async |mut peer| peer.answer(200, DONE).await).await;
    check_failure("broken", &[], async |peer| drop(peer)).await;
    // One byte too many, so that all of it is read.
    let long = "HTTP/1.1 200 OK\r\ncontent-length: 262145\r\n\r\n";
    check_failure("broken", &[], async |mut peer| {
        peer.write(long).await;
        peer.write(&" ".repeat(262_145)).await;
    })
    .await;
    check_failure("timeout", &["--encode-timeout-ms=2000"], async |mut peer| peer.closed().await)
        .await;
}

#[tokio::test]
async fn few_items_are_encoded_at_a_time() {
    let [engine, encoder] = engines().await;
    let proxy = beside(&engine, &[&encoder], &["--ec-connector=ec-example"]).await;
    let names = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let mut client = proxy.post(CHAT, &encoders(&[&encoder]), &chat(&names)).await;
    let mut asked = Vec::new();
    for _ in 0..8 {
        asked.push(encoder.asked().await);
    }
    assert!(encoder.is_idle(), "the ninth waits");
    asked[3].answer(200, "{}").await;
    assert!(asked[3].read().await, "it comes on the connection that is free");
    for peer in &mut asked {
        peer.answer(200, "{}").await;
    }
    let mut told = engine.asked().await;
    told.answer(200, DONE).await;
    check_done(&mut client).await;
}

#[tokio::test]
async fn no_more_items_are_encoded_than_may_be() {
    let engine = Engine::start().await;
    // Nobody listens there, and nobody else can.
    let gone = TcpSocket::new_v4().expect("a socket");
    gone.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let gone = (gone.local_addr().expect("it is bound"), gone);
    let flags = ["--ec-connector=ec-example", &format!("--prefill-allow={}", gone.0)];
    let proxy = Proxy::start(&[&engine], &flags).await;
    let names: Vec<_> = (0..129).map(|number| format!("http://a/{number}")).collect();
    let body = chat(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let header = format!("x-encoder-hosts-ports: {}\r\n", gone.0);
    let mut client = proxy.post(CHAT, &header, &body).await;
    let mut told = engine.asked().await;
    assert_eq!(told.body, body);
    told.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!((proxy.media("too_many"), proxy.media("unreachable")), (1, 128));
}

#[tokio::test]
async fn a_client_that_leaves_aborts_encoders() {
    let [engine, encoder] = engines().await;
    let proxy = beside(&engine, &[&encoder], &["--ec-connector=ec-example"]).await;
    let client = proxy.post(CHAT, &encoders(&[&encoder]), &chat(&["http://a/1"])).await;
    let mut asked = encoder.asked().await;
    drop(client);
    asked.closed().await;
    assert!(engine.is_idle());
}

/// The source that an engine is told to pull from.
fn told(peer: &Peer) -> Value {
    tree(&peer.body)["kv_transfer_params"]["remote_kv_source"].clone()
}

#[tokio::test]
async fn an_engine_alone_pulls_from_the_source_that_a_picker_names() {
    let [engine, peer] = engines().await;
    for flags in [&["--connector=offloading"][..], &["--enable-p2p-pull"]] {
        let proxy = beside(&engine, &[&peer], flags).await;
        let header = source(peer.address());
        let mut client = proxy.post("/v1/completions", &header, BODY).await;
        let mut asked = engine.asked().await;
        let from = told(&asked);
        let address = (&from["remote_host"], &from["remote_port"]);
        assert_eq!(address, (&json!("127.0.0.1"), &json!(7777)));
        assert_eq!(from["kv_request_id"].as_str().map(str::len), Some(32));
        assert!(!asked.head.contains("x-kv-cache"), "{}", asked.head);
        asked.answer(200, DONE).await;
        check_done(&mut client).await;
        drop(asked);

        // One pull is not used for several sequences, nor tried again where it fails.
        for (body, fails) in [(r#"{"prompt":"a","n":2}"#, false), (BODY, true)] {
            client.post("/v1/completions", &header, body).await;
            if fails {
                engine.asked().await.answer(500, "{}").await;
            }
            let mut alone = engine.asked().await;
            assert_eq!(alone.body, body);
            alone.answer(200, DONE).await;
            check_done(&mut client).await;
        }
        assert_eq!(
            (proxy.fallbacks("several_sequences"), proxy.fallbacks("decode_failed")),
            (1, 1)
        );
        assert!(peer.is_idle(), "the engines speak with each other");
    }
}

#[tokio::test]
async fn a_pull_that_does_not_end_is_waited_for_no_longer() {
    let [engine, peer] = engines().await;
    let flags = ["--connector=offloading", "--prefill-timeout-ms=1500"];
    let proxy = beside(&engine, &[&peer], &flags).await;
    let body = BODY.replace("false", "true");
    let mut client = proxy.post("/v1/completions", &source(peer.address()), &body).await;
    engine.asked().await.closed().await;
    let mut alone = engine.asked().await;
    assert_eq!(alone.body, body);
    alone.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!(proxy.fallbacks("transfer_timeout"), 1);
}

#[tokio::test]
async fn prefill_pulls_from_the_source_that_a_picker_names_and_not_from_itself() {
    let [engine, prefill, peer] = engines().await;
    for (connector, own) in [("offloading", "remote_decoder"), ("nixlv2", "do_remote_decode")] {
        let flags = ["--enable-p2p-pull", &format!("--connector={connector}")];
        let proxy = beside(&engine, &[&prefill, &peer], &flags).await;
        for (named, pulls) in [(peer.address(), true), (prefill.address(), false)] {
            let headers = [prefiller(&prefill), source(named)].concat();
            let mut client = proxy.post("/v1/completions", &headers, BODY).await;
            let mut asked = prefill.asked().await;
            assert_eq!(told(&asked)["remote_port"] == 7777, pulls);
            assert!(!tree(&asked.body)["kv_transfer_params"][own].is_null(), "{}", asked.body);
            asked.answer(200, r#"{"kv_transfer_params":{"a":1}}"#).await;
            drop(asked);
            let mut decode = engine.asked().await;
            assert_eq!(told(&decode), Value::Null);
            decode.answer(200, DONE).await;
            check_done(&mut client).await;
        }
        assert_eq!(proxy.unused("x-kv-cache-source-host-port"), 0);
    }
}

#[tokio::test]
async fn a_source_that_may_not_be_pulled_from_is_passed_over() {
    let [engine, peer, outside] = engines().await;
    let (peer_address, outside) = (peer.address().to_string(), outside.address().to_string());
    for (flags, named) in [
        (&["--connector=offloading"][..], &*outside),
        (&["--connector=offloading"], "nonsense"),
        (&["--connector=nixlv2"], &peer_address),
        (&["--connector=mooncake", "--enable-p2p-pull"], &peer_address),
    ] {
        let proxy = beside(&engine, &[&peer], flags).await;
        let mut client = proxy.post("/v1/completions", &source(named), BODY).await;
        let mut asked = engine.asked().await;
        assert_eq!(asked.body, BODY);
        asked.answer(200, DONE).await;
        check_done(&mut client).await;
        assert_eq!(proxy.unused("x-kv-cache-source-host-port"), 1, "{flags:?}");
    }
}
