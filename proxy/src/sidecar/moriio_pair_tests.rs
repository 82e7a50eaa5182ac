//! The proxy, an engine and one that computes prompts for it over MoRI-IO, between raw connections.

use super::testkit::Proxy;
use crate::upstream::testkit::{BODY, DONE, Engine, Peer, check_done, tree};
use serde_json::{Value, json};

const WRITES: [&str; 2] = ["--moriio-write-mode", "--moriio-local-pod-ip=10.0.0.9"];
const AT_ONCE: &str = "--moriio-parallel-dispatch";
/// What prefill answers.
const HANDS: &str = r#"{"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],
    "remote_host":"10.0.0.1","remote_dp_rank":5}}"#;

async fn engines(flags: &[&str]) -> (Engine, Engine, Proxy) {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", flags).await;
    (engine, prefiller, proxy)
}

fn parameters(peer: &Peer) -> Value {
    tree(&peer.body)["kv_transfer_params"].take()
}

#[tokio::test]
async fn an_engine_that_is_written_to_goes_on_from_what_prefill_answered() {
    let further = ["--moriio-dp-size=8", "--moriio-tp-size=2"];
    let (engine, prefiller, proxy) = engines(&[&WRITES[..], &further].concat()).await;
    let mut client = proxy.ask(&prefiller, BODY).await;
    let mut prefill = prefiller.asked().await;
    let told = parameters(&prefill);
    assert_eq!(
        (&told["remote_host"], &told["remote_notify_port"]),
        (&json!("10.0.0.9"), &json!(61005))
    );
    assert_eq!((&told["remote_dp_size"], &told["tp_size"]), (&json!(8), &json!(2)));
    let rank = told["remote_dp_rank"].to_string();
    assert_eq!(prefill.header("x-data-parallel-rank"), Some(&*rank));
    assert_eq!(tree(&prefill.body)["max_tokens"], 1);
    assert!(engine.is_idle(), "decode waits for prefill");

    prefill.answer(200, HANDS).await;
    let mut decode = engine.asked().await;
    let expected = json!({
        "do_remote_prefill": true, "remote_block_ids": [[1]], "remote_host": "10.0.0.1",
        "remote_dp_rank": 5, "remote_dp_rank_override": true, "is_request_leader": true,
        "transfer_id": told["transfer_id"], "remote_handshake_port": 6301,
        "remote_notify_port": 61005, "remote_dp_size": 8,
    });
    assert_eq!(parameters(&decode), expected);
    assert_eq!(decode.header("x-data-parallel-rank"), Some("5"));
    decode.answer(200, DONE).await;
    check_done(&mut client).await;
}

#[tokio::test]
async fn an_engine_that_reads_is_asked_for_a_rank_and_never_alone() {
    let (engine, prefiller, proxy) = engines(&["--moriio-dp-size=4"]).await;
    let mut client = proxy.ask(&prefiller, BODY).await;
    let mut prefill = prefiller.asked().await;
    let rank = prefill.header("x-data-parallel-rank").and_then(|rank| rank.parse().ok());
    assert!(rank.is_some_and(|rank: u16| rank < 4), "{}", prefill.head);
    assert_eq!(parameters(&prefill)["remote_host"], Value::Null);
    prefill.answer(200, HANDS).await;
    let mut decode = engine.asked().await;
    assert_eq!(parameters(&decode)["remote_dp_rank"], 5);
    assert_eq!(decode.header("x-data-parallel-rank"), None);
    decode.answer(200, DONE).await;
    check_done(&mut client).await;

    // It would answer from KV that is not there.
    let mut client = proxy.post("/v1/completions", "", BODY).await;
    assert!(client.read().await);
    assert_eq!(
        (client.status(), &tree(&client.body)["error"]["code"]),
        (503, &json!("needs_prefill"))
    );
    let mut client = proxy.ask(&prefiller, r#"{"prompt":"a","n":2}"#).await;
    assert!(client.read().await);
    assert_eq!(client.status(), 400, "{}", client.body);
    drop(prefill);
    let mut client = proxy.ask(&prefiller, BODY).await;
    prefiller.asked().await.answer(500, "{}").await;
    assert!(client.read().await);
    assert_eq!(client.status(), 500, "{}", client.body);
    // What needs no prompt is the engine's.
    drop(decode);
    let mut client = proxy.post("/v1/embeddings", "", "{}").await;
    engine.asked().await.answer(200, DONE).await;
    check_done(&mut client).await;
    assert!(engine.is_idle());
}

#[tokio::test]
async fn both_are_asked_at_once_and_the_answer_waits_for_prefill() {
    let flags = [&WRITES[..], &[AT_ONCE, "--moriio-prefill-handshake-port=6400"]].concat();
    let (engine, prefiller, proxy) = engines(&flags).await;
    let mut client = proxy.ask(&prefiller, BODY).await;
    let (mut prefill, mut decode) = (prefiller.asked().await, engine.asked().await);
    let (asked, told) = (parameters(&prefill), parameters(&decode));
    assert_eq!(asked["transfer_id"], told["transfer_id"]);
    assert_eq!(
        (&asked["remote_host"], &told["remote_host"]),
        (&json!("10.0.0.9"), &json!("127.0.0.1"))
    );
    assert_eq!(told["remote_engine_id"], "127.0.0.1:6400");
    for peer in [&prefill, &decode] {
        assert_eq!(peer.header("x-data-parallel-rank"), None);
    }
    // Another request shows that what came of the first one has been read.
    decode.answer(200, DONE).await;
    let mut other = proxy.post("/v1/embeddings", "", "{}").await;
    engine.asked().await.answer(200, DONE).await;
    check_done(&mut other).await;
    assert!(client.is_open(), "prefill has not answered");
    prefill.answer(200, r#"{"choices":[]}"#).await;
    check_done(&mut client).await;
}

#[tokio::test]
async fn an_answer_that_was_held_is_dropped_where_prefill_fails() {
    let flags = [&WRITES[..], &[AT_ONCE]].concat();
    for decodes in [false, true] {
        let (engine, prefiller, proxy) = engines(&flags).await;
        let mut client = proxy.ask(&prefiller, BODY).await;
        let (mut prefill, mut decode) = (prefiller.asked().await, engine.asked().await);
        if decodes {
            decode.write("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"bogus\"").await;
            // As above: it has been read, and is held, before prefill fails.
            let mut other = proxy.post("/v1/embeddings", "", "{}").await;
            engine.asked().await.answer(200, DONE).await;
            check_done(&mut other).await;
        }
        prefill.answer(500, "{}").await;
        decode.closed().await;
        let mut alone = engine.asked().await;
        assert_eq!(alone.body, BODY);
        alone.answer(200, DONE).await;
        check_done(&mut client).await;
        assert_eq!(proxy.fallbacks("prefill_status"), 1);
    }
}

#[tokio::test]
async fn without_fallback_the_client_gets_what_prefill_said() {
    let flags = [&WRITES[..], &[AT_ONCE, "--prefill-fallback=false"]].concat();
    let (engine, prefiller, proxy) = engines(&flags).await;
    let mut client = proxy.ask(&prefiller, BODY).await;
    let (mut prefill, mut decode) = (prefiller.asked().await, engine.asked().await);
    prefill.answer(503, r#"{"error":"full"}"#).await;
    assert!(client.read().await);
    assert_eq!((client.status(), client.body.as_str()), (503, r#"{"error":"full"}"#));
    decode.closed().await;
}

#[tokio::test]
async fn prefill_beside_decode_is_not_waited_for_for_ever() {
    let wait = "--moriio-parallel-decode-wait-timeout=50ms";
    for fallback in [true, false] {
        let falls = format!("--prefill-fallback={fallback}");
        let (engine, prefiller, proxy) =
            engines(&[&WRITES[..], &[AT_ONCE, wait, &falls]].concat()).await;
        let mut client = proxy.ask(&prefiller, BODY).await;
        let (mut prefill, mut decode) = (prefiller.asked().await, engine.asked().await);
        prefill.closed().await;
        decode.closed().await;
        if fallback {
            engine.asked().await.answer(200, DONE).await;
            check_done(&mut client).await;
        } else {
            assert!(client.read().await);
            assert_eq!(client.status(), 504, "{}", client.body);
        }
        assert_eq!(proxy.fallbacks("prefill_timeout"), 1);
    }
}

#[tokio::test]
async fn a_client_that_leaves_releases_both() {
    let (engine, prefiller, proxy) = engines(&[&WRITES[..], &[AT_ONCE]].concat()).await;
    let client = proxy.ask(&prefiller, BODY).await;
    let (mut prefill, mut decode) = (prefiller.asked().await, engine.asked().await);
    drop(client);
    prefill.closed().await;
    decode.closed().await;

    // In turn decode is still told of what prefill holds for it.
    let (engine, prefiller, proxy) = engines(&WRITES).await;
    let client = proxy.ask(&prefiller, &BODY.replace("false", "true")).await;
    prefiller.asked().await.answer(200, HANDS).await;
    let mut decode = engine.asked().await;
    drop(client);
    decode.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    decode.chunk("data: 1\n\n").await;
    decode.closed().await;
}

#[tokio::test]
async fn a_name_without_an_address_costs_no_answer() {
    // No label of a name is that long, so that nobody has to be asked.
    let own = format!("--moriio-local-pod-ip={}", "a".repeat(64));
    let timeout = "--moriio-dns-resolve-timeout-seconds=1";
    let (engine, prefiller, proxy) = engines(&["--moriio-write-mode", &own, timeout]).await;
    let mut client = proxy.ask(&prefiller, BODY).await;
    let mut alone = engine.asked().await;
    assert_eq!(alone.body, BODY);
    alone.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!((proxy.fallbacks("no_address"), proxy.metrics.lookups.failed.get()), (1, 1));
    assert!(prefiller.is_idle());
}

#[tokio::test]
async fn what_a_client_says_to_steer_moriio_reaches_no_engine() {
    let (engine, prefiller, proxy) = engines(&WRITES).await;
    let steers = BODY.replace('}', r#","kv_transfer_params":{"remote_host":"10.6.6.6"}}"#);
    let name = "x-request-id: ___prefill_addr_host:10.6.6.6___decode_addr_host:10.6.6.6_1\r\n";
    let rank = "x-data-parallel-rank: 7\r\n";
    let header = format!("x-prefiller-host-port: {}\r\n{name}{rank}", prefiller.address());
    let mut refused = proxy.post("/v1/completions", &header, &steers).await;
    assert!(refused.read().await);
    assert_eq!(refused.status(), 400);
    assert!(prefiller.is_idle() && engine.is_idle());
    let mut client = proxy.post("/v1/completions", &header, BODY).await;
    let mut prefill = prefiller.asked().await;
    assert_eq!(parameters(&prefill)["remote_host"], "10.0.0.9");
    prefill.answer(200, HANDS).await;
    let mut decode = engine.asked().await;
    assert_eq!(parameters(&decode)["remote_host"], "10.0.0.1");
    for peer in [&prefill, &decode] {
        let id = "___prefill-addr-host:10.6.6.6___decode-addr-host:10.6.6.6_1";
        assert_eq!(peer.header("x-request-id"), Some(id));
        assert_eq!(peer.header("x-data-parallel-rank"), None);
    }
    decode.answer(200, DONE).await;
    check_done(&mut client).await;
}
