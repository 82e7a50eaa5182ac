//! The proxy, an engine and one that computes prompts for it, between raw connections.

use super::testkit::Proxy;
use crate::upstream::testkit::{BODY, DONE, Engine, Peer, check_done, tree};
use serde_json::json;

#[tokio::test]
async fn prefill_is_asked_only_where_it_may_be() {
    let (engine, outside) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::start(&[&engine], &[]).await;
    let mut client = proxy.ask(&outside, BODY).await;
    assert!(client.read().await);
    assert_eq!(client.status(), 403);
    let message = tree(&client.body)["error"]["message"].as_str().map(str::to_owned);
    let expected = format!("prefill target {} is not allowed by prefill-allow", outside.address());
    assert_eq!(message, Some(expected));
    assert!(engine.is_idle() && outside.is_idle());
}

#[tokio::test]
async fn nixl_hands_over_what_prefill_answered() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", &[]).await;
    let header = format!("x-prefiller-host-port: {}, 10.9.9.9:1\r\n", prefiller.address());
    let header = format!("{header}x-request-id: mine\r\naccept-encoding: gzip\r\n");
    let mut client = proxy.post("/v1/completions", &header, BODY).await;
    let mut asked = prefiller.asked().await;
    let request = tree(&asked.body);
    assert_eq!((&request["max_tokens"], &request["stream"]), (&json!(1), &json!(false)));
    assert_eq!(request["kv_transfer_params"]["do_remote_decode"], true);
    assert_eq!(asked.header("accept-encoding"), Some("identity"));
    assert_eq!(asked.header("x-request-id"), Some("mine"));
    assert!(engine.is_idle(), "decode waits for prefill");
    asked.answer(200, r#"{"kv_transfer_params":{"remote_block_ids":[[1, 2]]},"usage":{}}"#).await;
    let mut decode = engine.asked().await;
    let end = r#","kv_transfer_params":{"remote_block_ids":[[1, 2]]}}"#;
    assert_eq!(decode.body, BODY.replace('}', "") + end);
    assert_eq!(decode.header("x-request-id"), Some("mine"));
    assert!(!decode.head.contains("x-prefiller"));
    decode.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!(proxy.fallbacks("prefill_status"), 0);
}

#[tokio::test]
async fn clients_are_told_what_was_cached_where_the_prompt_was_computed() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", &[]).await;
    let mut client = Peer::connect(proxy.address).await;
    let header = format!("x-prefiller-host-port: {}\r\n", prefiller.address());
    let counted = r#"{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}"#;
    let mut prefill: Option<Peer> = None;
    for streams in [false, true] {
        client.post("/v1/completions", &header, BODY).await;
        let mut asked = match prefill.take() {
            Some(mut kept) => {
                assert!(kept.read().await);
                kept
            }
            None => prefiller.asked().await,
        };
        let parameters = r#"{"kv_transfer_params":{"a":1},"usage""#;
        asked.answer(200, &counted.replace(r#"{"usage""#, parameters)).await;
        prefill = Some(asked);
        let mut decode = engine.asked().await;
        let own = counted.replace('3', "2000");
        if streams {
            decode.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n").await;
            decode.write("transfer-encoding: chunked\r\n\r\n").await;
            let (one, two) = own.split_at(own.len() - 5);
            decode.chunk(&format!("data: {one}")).await;
            decode.chunk(&format!("{two}\n\n")).await;
            decode.write("0\r\n\r\n").await;
            assert!(client.read().await);
            assert_eq!(client.body, format!("data: {counted}\n\n"));
        } else {
            decode.answer(200, &own).await;
            assert!(client.read().await);
            assert_eq!(client.body, counted);
        }
        // The next answer comes on a connection of its own.
        drop(decode);
    }
}

/// Lets prefill fail in some way, and checks that the engine computes the prompt.
async fn check_fallback(reason: &'static str, flags: &[&str], fail: impl AsyncFnOnce(Peer)) {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", flags).await;
    let mut client = proxy.ask(&prefiller, BODY).await;
    fail(prefiller.asked().await).await;
    let mut decode = engine.asked().await;
    assert_eq!(decode.body, BODY);
    decode.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!(proxy.fallbacks(reason), 1, "{reason}");
}

#[tokio::test]
async fn the_engine_computes_the_prompt_where_prefill_fails() {
    check_fallback("prefill_status", &[], async |mut peer| peer.answer(500, "{}").await).await;
    check_fallback("prefill_status", &[], async |mut peer| peer.answer(429, "{}").await).await;
    check_fallback("no_parameters", &[], async |mut peer| peer.answer(200, DONE).await).await;
    check_fallback("prefill_broken", &[], async |peer| drop(peer)).await;
    check_fallback("prefill_broken", &[], async |mut peer| peer.write("nonsense\r\n\r\n").await)
        .await;
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"kv_transfer_params\":{}";
    check_fallback("prefill_broken", &[], async |mut peer| peer.write(half).await).await;
    check_fallback("prefill_timeout", &["--prefill-timeout-ms=50"], async |mut peer| {
        peer.closed().await;
    })
    .await;
}

#[tokio::test]
async fn the_engine_computes_the_prompt_where_nobody_listens_for_prefill() {
    let engine = Engine::start().await;
    let gone = Engine::start().await;
    let proxy = Proxy::pair(&engine, &gone, "nixlv2", &[]).await;
    let header = format!("x-prefiller-host-port: {}\r\n", gone.address());
    drop(gone);
    let mut client = proxy.post("/v1/completions", &header, BODY).await;
    let mut decode = engine.asked().await;
    assert_eq!(decode.body, BODY);
    decode.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!(proxy.fallbacks("prefill_unreachable"), 1);
}

#[tokio::test]
async fn the_engine_computes_the_prompt_where_what_was_handed_over_fails_it() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", &[]).await;
    let mut client = proxy.ask(&prefiller, BODY).await;
    prefiller.asked().await.answer(200, r#"{"kv_transfer_params":{"a":1}}"#).await;
    engine.asked().await.answer(500, "{}").await;
    let mut again = engine.asked().await;
    assert_eq!(again.body, BODY);
    again.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!(proxy.fallbacks("decode_failed"), 1);
}

#[tokio::test]
async fn without_fallback_the_client_gets_what_prefill_said() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", &["--prefill-fallback=false"]).await;
    let mut client = proxy.ask(&prefiller, BODY).await;
    prefiller.asked().await.answer(503, r#"{"error":"full"}"#).await;
    assert!(client.read().await);
    assert_eq!((client.status(), client.body.as_str()), (503, r#"{"error":"full"}"#));
    client
        .post(
            "/v1/completions",
            &format!("x-prefiller-host-port: {}\r\n", prefiller.address()),
            BODY,
        )
        .await;
    drop(prefiller.asked().await);
    assert!(client.read().await);
    assert_eq!(client.status(), 502);
    assert!(engine.is_idle());
}

#[tokio::test]
async fn prefill_is_asked_again_where_that_may_help() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let flags = ["--prefill-max-retries=2", "--prefill-retry-backoff=1ms"];
    let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", &flags).await;
    let mut client = proxy.ask(&prefiller, BODY).await;
    for status in [502, 503] {
        prefiller.asked().await.answer(status, "{}").await;
    }
    prefiller.asked().await.answer(200, r#"{"kv_transfer_params":{"a":1}}"#).await;
    let mut decode = engine.asked().await;
    assert!(decode.body.contains("kv_transfer_params"), "{}", decode.body);
    decode.answer(200, DONE).await;
    check_done(&mut client).await;
    // The next answer comes on a connection of its own.
    drop(decode);

    // No more often than it may, and not where the answer would be the same.
    for statuses in [&[504, 504, 504][..], &[500], &[429]] {
        let mut client = proxy.ask(&prefiller, BODY).await;
        for status in statuses {
            prefiller.asked().await.answer(*status, "{}").await;
        }
        let mut alone = engine.asked().await;
        assert_eq!(alone.body, BODY);
        alone.answer(200, DONE).await;
        check_done(&mut client).await;
        assert!(prefiller.is_idle());
    }
}

#[tokio::test]
async fn prefill_is_not_asked_again_where_decode_waits_for_the_first_attempt() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "sglang", &["--prefill-max-retries=2"]).await;
    let mut client = proxy.ask(&prefiller, BODY).await;
    prefiller.asked().await.answer(503, "{}").await;
    assert!(client.read().await);
    assert_eq!(client.status(), 503);
    assert!(prefiller.is_idle());
}

#[tokio::test]
async fn kv_that_does_not_come_in_time_is_waited_for_no_longer() {
    let body = BODY.replace("false", "true");
    for head in ["", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"] {
        let (engine, prefiller) = (Engine::start().await, Engine::start().await);
        let flags = ["--prefill-timeout-ms=1500"];
        let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", &flags).await;
        let mut client = proxy.ask(&prefiller, &body).await;
        prefiller.asked().await.answer(200, r#"{"kv_transfer_params":{"a":1}}"#).await;
        let mut waits = engine.asked().await;
        waits.write(head).await;
        waits.closed().await;
        let mut alone = engine.asked().await;
        assert_eq!(alone.body, body);
        alone.answer(200, DONE).await;
        check_done(&mut client).await;
        assert_eq!(proxy.fallbacks("transfer_timeout"), 1);
    }
}

#[tokio::test]
async fn half_a_pair_of_which_prefill_has_answered_does_not_wait_for_ever() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let flags = ["--prefill-timeout-ms=1500"];
    let proxy = Proxy::pair(&engine, &prefiller, "sglang", &flags).await;
    let mut client = proxy.ask(&prefiller, &BODY.replace("false", "true")).await;
    prefiller.asked().await.answer(200, DONE).await;
    let mut decode = engine.asked().await;
    assert!(client.read().await);
    assert_eq!(client.status(), 504, "{}", client.body);
    decode.closed().await;
}

#[tokio::test]
async fn one_hand_over_is_not_used_for_several_sequences() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", &[]).await;
    let body = r#"{"prompt":"a","n":2}"#;
    let mut client = proxy.ask(&prefiller, body).await;
    let mut decode = engine.asked().await;
    assert_eq!(decode.body, body);
    decode.answer(200, DONE).await;
    check_done(&mut client).await;
    assert!(prefiller.is_idle());
}

#[tokio::test]
async fn a_client_that_leaves_aborts_whichever_engine_works_for_it() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", &[]).await;
    let client = proxy.ask(&prefiller, BODY).await;
    let mut prefill = prefiller.asked().await;
    drop(client);
    prefill.closed().await;
    assert!(engine.is_idle());

    let mut client = proxy.post("/v1/completions", "", BODY).await;
    let mut alone = engine.asked().await;
    alone.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    alone.chunk("data: 1\n\n").await;
    assert!(client.until("data: 1").await.is_some());
    drop(client);
    alone.closed().await;
}

#[tokio::test]
async fn sglang_meets_at_one_room() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "sglang", &["--bootstrap-port=9001"]).await;
    let mut client = proxy.ask(&prefiller, BODY).await;
    let (mut prefill, mut decode) = (prefiller.asked().await, engine.asked().await);
    assert_eq!(prefill.body, decode.body);
    let told = tree(&decode.body);
    assert_eq!(
        (&told["bootstrap_host"], &told["bootstrap_port"]),
        (&json!("127.0.0.1"), &json!(9001))
    );
    // What decode has to show proves that prefill did its part, whatever it says and when.
    decode.answer(200, DONE).await;
    check_done(&mut client).await;
    prefill.closed().await;
}

#[tokio::test]
async fn ranks_of_sglang_share_the_prompts() {
    let (engine, prefiller, bootstrap) =
        (Engine::start().await, Engine::start().await, Engine::start().await);
    let port = format!("--bootstrap-port={}", bootstrap.address().port());
    let proxy = Proxy::pair(&engine, &prefiller, "sglang", &[&port]).await;
    for asks in [true, false] {
        let mut client = proxy.ask(&prefiller, BODY).await;
        if asks {
            let mut query = bootstrap.asked().await;
            assert!(query.head.starts_with("GET /route?prefill_dp_rank=-1&"), "{}", query.head);
            query.answer(200, r#"{"dp_size":4,"follow_bootstrap_room":true}"#).await;
        }
        let (prefill, mut decode) = (prefiller.asked().await, engine.asked().await);
        assert_eq!(prefill.body, decode.body);
        let told = tree(&decode.body);
        let rank = told["disagg_prefill_dp_rank"].as_u64().expect("a rank");
        assert_eq!(told["bootstrap_room"].as_u64().map(|room| room % 4), Some(rank));
        assert_eq!(prefill.header("x-data-parallel-rank"), Some(&*rank.to_string()));
        assert_eq!(decode.header("x-data-parallel-rank"), None);
        decode.answer(200, DONE).await;
        check_done(&mut client).await;
        drop(decode);
    }
    assert!(bootstrap.is_idle(), "it is asked now and then only");
}

#[tokio::test]
async fn half_a_pair_does_not_wait_for_ever() {
    for flags in [&[][..], &["--prefill-timeout-ms=50"]] {
        let (engine, prefiller) = (Engine::start().await, Engine::start().await);
        let proxy = Proxy::pair(&engine, &prefiller, "sglang", flags).await;
        let mut client = proxy.ask(&prefiller, BODY).await;
        let (prefill, mut decode) = (prefiller.asked().await, engine.asked().await);
        if flags.is_empty() {
            drop(prefill);
            assert!(client.read().await);
            assert_eq!(client.status(), 502, "{}", client.body);
        } else {
            assert!(client.read().await);
            assert_eq!(client.status(), 504, "{}", client.body);
        }
        decode.closed().await;
        assert!(engine.is_idle(), "an engine of this kind cannot compute the prompt");
    }
}

#[tokio::test]
async fn mooncake_asks_who_is_there_and_both_at_once() {
    let (engine, prefiller, bootstrap) =
        (Engine::start().await, Engine::start().await, Engine::start().await);
    let port = format!("--bootstrap-port={}", bootstrap.address().port());
    let proxy = Proxy::pair(&engine, &prefiller, "mooncake", &[&port]).await;
    for fails in [false, true] {
        let mut client = proxy.ask(&prefiller, BODY).await;
        let mut query = bootstrap.asked().await;
        assert!(query.head.starts_with("GET /query "), "{}", query.head);
        query.answer(200, r#"{"0":{"engine_id":"e-7","worker_addr":{}}}"#).await;
        drop(query);
        let (mut prefill, mut decode) = (prefiller.asked().await, engine.asked().await);
        assert_eq!(prefill.header("x-data-parallel-rank"), Some("0"));
        let (asked, told) = (tree(&prefill.body), tree(&decode.body));
        let (asked, told) = (&asked["kv_transfer_params"], &told["kv_transfer_params"]);
        assert_eq!(asked["transfer_id"], told["transfer_id"]);
        assert_eq!(told["remote_engine_id"], "e-7");
        if fails {
            prefill.answer(500, "{}").await;
            decode.closed().await;
            let mut alone = engine.asked().await;
            assert_eq!(alone.body, BODY);
            alone.answer(200, DONE).await;
        } else {
            prefill.answer(200, DONE).await;
            decode.answer(200, DONE).await;
        }
        check_done(&mut client).await;
        drop((prefill, decode));
    }
    assert_eq!(proxy.fallbacks("prefill_status"), 1);
}

#[tokio::test]
async fn shared_storage_asks_prefill_only_where_too_little_is_there() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "shared-storage", &[]).await;
    let body = r#"{"prompt":"a","cache_hit_threshold":0.8}"#;
    let mut client = proxy.ask(&prefiller, body).await;
    let mut first = engine.asked().await;
    assert_eq!(first.body, body);
    first.answer(200, r#"{"choices":[{"finish_reason":"cache_threshold"}]}"#).await;
    let mut prefill = prefiller.asked().await;
    assert_eq!(tree(&prefill.body)["cache_hit_threshold"], 0);
    prefill.answer(500, "{}").await;
    // Not with the threshold: the answer would be empty.
    let mut alone = engine.asked().await;
    assert_eq!(alone.body, r#"{"prompt":"a","cache_hit_threshold":0}"#);
    alone.answer(200, DONE).await;
    check_done(&mut client).await;

    client
        .post(
            "/v1/completions",
            &format!("x-prefiller-host-port: {}\r\n", prefiller.address()),
            body,
        )
        .await;
    assert!(alone.read().await);
    alone.answer(200, DONE).await;
    check_done(&mut client).await;
    assert!(prefiller.is_idle());
}
