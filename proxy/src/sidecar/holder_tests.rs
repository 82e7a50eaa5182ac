//! Agents that lend KV: the engine that computes a prompt is told of those that a picker names.

use super::metrics::Header;
use super::testkit::Proxy;
use crate::upstream::testkit::{BODY, DONE, Engine, check_done, tree};
use serde_json::{Value, json};

const HOLDERS: &str = "x-stator-kv-holders";
/// The header with an agent that may lend, one that may not, and nonsense.
const NAMED: &str =
    "x-stator-kv-holders: 10.0.0.1:7010;blocks=40, 8.8.8.8:1;blocks=9, no;blocks=1\r\n";

async fn beside(engine: &Engine, prefill: &Engine, flags: &[&str]) -> Proxy {
    let allow = format!("--prefill-allow=10.0.0.0/8,{}", prefill.address());
    let flags: Vec<_> = [&*allow].into_iter().chain(flags.iter().copied()).collect();
    Proxy::start(&[engine], &flags).await
}

fn unused(proxy: &Proxy) -> u64 {
    proxy.metrics.headers_unused.get_or_create(&Header { header: HOLDERS }).get()
}

fn told(body: &str) -> Value {
    tree(body)["kv_transfer_params"]["stator_holders"].clone()
}

#[tokio::test]
async fn an_engine_alone_is_told_of_the_agents_that_lend_its_prompt() {
    let [engine, prefill] = [Engine::start().await, Engine::start().await];
    let proxy = beside(&engine, &prefill, &[]).await;
    let mut client = proxy.post("/v1/completions", NAMED, BODY).await;
    let mut asked = engine.asked().await;
    assert_eq!(told(&asked.body), json!([["10.0.0.1:7010", 40]]));
    assert!(!asked.head.contains(HOLDERS), "{}", asked.head);
    assert_eq!(asked.header("content-length"), Some(&*asked.body.len().to_string()));
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
    drop(asked);
    // Without them the body goes on as it came.
    client.post("/v1/completions", "", BODY).await;
    let mut asked = engine.asked().await;
    assert_eq!(asked.body, BODY);
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
    assert_eq!(unused(&proxy), 0);
}

#[tokio::test]
async fn of_a_pair_prefill_is_told() {
    let [engine, prefill] = [Engine::start().await, Engine::start().await];
    let proxy = beside(&engine, &prefill, &[]).await;
    let headers = format!("{NAMED}x-prefiller-host-port: {}\r\n", prefill.address());
    let mut client = proxy.post("/v1/completions", &headers, BODY).await;
    let mut asked = prefill.asked().await;
    assert_eq!(told(&asked.body), json!([["10.0.0.1:7010", 40]]));
    assert_eq!(tree(&asked.body)["kv_transfer_params"]["do_remote_decode"], json!(true));
    asked.answer(200, r#"{"kv_transfer_params":{"a":1}}"#).await;
    let mut decode = engine.asked().await;
    assert_eq!(told(&decode.body), Value::Null);
    decode.answer(200, DONE).await;
    check_done(&mut client).await;
}

#[tokio::test]
async fn agents_that_may_not_be_read_from_are_passed_over() {
    let [engine, prefill] = [Engine::start().await, Engine::start().await];
    for (flags, header) in [
        (&[][..], "x-stator-kv-holders: 8.8.8.8:1;blocks=9\r\n"),
        (&[], "x-stator-kv-holders: nonsense\r\n"),
        (&["--connector=sglang"], NAMED),
    ] {
        let proxy = beside(&engine, &prefill, flags).await;
        let mut client = proxy.post("/v1/completions", header, BODY).await;
        let mut asked = engine.asked().await;
        assert_eq!(asked.body, BODY, "{flags:?}");
        asked.answer(200, DONE).await;
        check_done(&mut client).await;
        assert_eq!(unused(&proxy), 1, "{flags:?}");
    }
}
