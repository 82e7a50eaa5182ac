//! Prompts that clients pin for a time: they outlive what evicts others, in an engine's own memory and
//! in its tiers, and their time ends.

use crate::agents::{accepted, answer, completion, operate, proxy};
use crate::kv_operate::status;
use crate::kv_tiers::{BLOCKS, CACHED, PROMPT, Tiered};
use crate::lifecycle::{gauge, gauge_becomes};
use crate::suite::tokens;
use crate::support::{MODEL, Up, chat, up};
use serde_json::{Value, json};
use stator_tests::soon;

/// Tokens of a prompt here: 12 whole blocks of 16, and some more.
const SHORT: usize = 200;

fn prompt(seed: u32, pin: Option<&str>) -> Value {
    let mut body = json!({"model": MODEL, "prompt": tokens(seed, SHORT), "max_tokens": 1});
    if let Some(ttl) = pin {
        body["nvext"] = json!({"cache_control": {"type": "ephemeral", "ttl": ttl}});
    }
    body
}

/// The usage of a prompt's answer.
async fn usage(up: &Up, body: &Value) -> Value {
    let reply = up.client.post("/v1/completions", body).await;
    assert_eq!(reply.status, 200, "{}", reply.json());
    reply.json()["usage"]["prompt_tokens_details"].clone()
}

async fn cached(up: &Up, seed: u32) -> u64 {
    usage(up, &prompt(seed, None)).await["cached_tokens"].as_u64().expect("a count")
}

/// Prompts that fill the memory of an engine twice.
async fn flood(up: &Up, seed: u32) {
    for n in 0..8 {
        cached(up, 1000 * seed + n).await;
    }
}

#[tokio::test]
async fn a_pinned_prompt_outlives_a_flood_in_the_engines_own_memory_and_its_time_ends() {
    let flags = ["--workers=1", "--total-blocks=64", "--kv-pin-share-percent=50"];
    let up = up(&flags).await;
    // One tenant may pin 16 blocks, and a prompt has 12.
    let first = usage(&up, &prompt(1, Some("1h"))).await;
    assert_eq!((&first["cached_tokens"], &first["cache_write_tokens"]), (&json!(0), &json!(192)));
    let beyond = usage(&up, &prompt(2, Some("1h"))).await;
    assert_eq!(beyond["cache_write_tokens"], 64, "there is room for four blocks");
    cached(&up, 3).await;
    flood(&up, 1).await;
    assert_eq!(cached(&up, 1).await, 192);
    assert_eq!(cached(&up, 2).await, 64);
    assert_eq!(cached(&up, 3).await, 0, "nobody pinned it");
}

#[tokio::test]
async fn a_pin_ends_when_its_time_is_over() {
    let flags =
        ["--workers=1", "--total-blocks=64", "--kv-pin-share-percent=50", "--kv-pin-max-s=1"];
    let up = up(&flags).await;
    // A wish for longer than the agent allows has the agent's time.
    usage(&up, &prompt(1, Some("1h"))).await;
    let mut seed = 1;
    soon("the pin has ended", async {
        loop {
            flood(&up, seed).await;
            if cached(&up, 1).await == 0 {
                return;
            }
            seed += 1;
        }
    })
    .await;
}

#[tokio::test]
async fn a_pinned_prompt_outlives_a_smaller_host_tier() {
    let home = tempfile::tempdir().unwrap();
    let mut agent = Tiered::begin(home.path()).await;
    let (_proxy, client) = proxy(&home.path().join("agents"), &[]).await;
    let (first, second) = (tokens(11, PROMPT), tokens(12, PROMPT));
    let (expected, _) = answer(&accepted(&client, &first).await);
    let mut pinned = completion(&first, 8);
    pinned["nvext"] = json!({"cache_control": {"type": "ephemeral", "ttl": 600}});
    assert_eq!(client.post("/v1/completions", &pinned).await.status, 200);
    accepted(&client, &second).await;
    agent.holds("host", 2 * BLOCKS).await;
    let pins = "stator_kv_slot_use{state=\"client_pins\"}";
    gauge_becomes(&agent.metrics, pins, 18.0).await;
    let counted = gauge(&agent.metrics, "stator_agent_pinned_blocks_total").await;
    assert_eq!(counted, Some(18.0));

    let seen = status(&mut agent.process).await;
    let slot_bytes = seen["block_bytes"].as_u64().unwrap().next_multiple_of(4096);
    let room = format!("--host-gb={}", ((BLOCKS as u64 + 5) * slot_bytes) as f64 / 1e9);
    let (done, log) = operate(&mut agent.process, &["kv-limit", &room]).await;
    assert!(done, "{log}");
    let used = "stator_kv_slot_use{state=\"used\"}";
    gauge_becomes(&agent.metrics, used, (BLOCKS + 5) as f64).await;
    let (done, log) = operate(&mut agent.process, &["kv-clear", "--tier=disk"]).await;
    assert!(done, "{log}");
    assert_eq!(answer(&accepted(&client, &first).await), (expected, CACHED));
    agent.ends().await;
}

#[tokio::test]
async fn who_lets_nobody_pin_says_so() {
    let up = up(&["--workers=1", "--kv-pin-share-percent=0"]).await;
    let mut body = chat("Hello", 2);
    body["nvext"] = json!({"cache_control": {"type": "ephemeral"}});
    let refused = up.client.post("/v1/chat/completions", &body).await;
    let param = &refused.json()["error"]["param"];
    assert_eq!((refused.status.as_u16(), param), (400, &json!("nvext.cache_control")));
    // Claude Code sends it whatever the server is.
    let message = json!({"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}]});
    let answered = up.client.post("/v1/messages", &message).await;
    assert_eq!(answered.status, 200);
    assert_eq!(answered.headers["x-stator-ignored"], "cache_control");
    // Gateways send it with chats, too.
    let answered = up.client.post("/v1/chat/completions", &message).await;
    assert_eq!(answered.status, 200);
    assert_eq!(answered.headers["x-stator-ignored"], "cache_control");
}

#[tokio::test]
async fn a_part_of_a_chat_is_pinned_and_counted_as_a_block_of_a_message() {
    let flags = ["--workers=1", "--total-blocks=64", "--kv-pin-share-percent=50"];
    let up = up(&flags).await;
    let text = "You help with code, and you are brief. ".repeat(9);
    let body = |wish: Value| {
        json!({"model": MODEL, "max_tokens": 1, "messages": [
            {"role": "system", "content": [{"type": "text", "text": text, "cache_control": wish}]},
            {"role": "user", "content": "Hello"}]})
    };
    let details = async |body: &Value| {
        let reply = up.client.post("/v1/chat/completions", body).await;
        assert_eq!(reply.status, 200, "{}", reply.json());
        assert!(!reply.headers.contains_key("x-stator-ignored"), "{:?}", reply.headers);
        let details = &reply.json()["usage"]["prompt_tokens_details"];
        ["cached_tokens", "cache_write_tokens"].map(|name| details[name].as_u64().unwrap_or(0))
    };
    let pinned = body(json!({"type": "ephemeral", "ttl": "1h"}));
    let [read, written] = details(&pinned).await;
    assert!(read == 0 && written > 0 && written % 16 == 0, "{written}");
    flood(&up, 1).await;
    // The wish is no part of the prompt.
    let [read, _] = details(&body(Value::Null)).await;
    assert_eq!(read, written);
    let mut refused = pinned.clone();
    refused["messages"][0]["content"][0]["cache_control"]["ttl"] = json!("soon");
    let refused = up.client.post("/v1/chat/completions", &refused).await;
    let param = "messages[0].content[0].cache_control.ttl";
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (400, &json!(param)));
}

#[tokio::test]
async fn a_message_counts_what_it_writes_to_the_cache() {
    let up = up(&["--workers=1"]).await;
    let text = "You help with code, and you are brief. ".repeat(30);
    let message = |ttl: &str| {
        json!({"model": MODEL, "max_tokens": 2, "temperature": 0,
            "system": [{"type": "text", "text": text,
                "cache_control": {"type": "ephemeral", "ttl": ttl, "scope": "global"}}],
            "messages": [{"role": "user", "content": "Hello"}]})
    };
    let count = json!({"model": MODEL, "system": message("5m")["system"],
        "messages": message("5m")["messages"]});
    let counted = up.client.post("/v1/messages/count_tokens", &count).await.json();
    let all = counted["input_tokens"].as_u64().expect("a count");
    let usage = async |ttl: &str| {
        let answer = up.client.post("/v1/messages", &message(ttl)).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let usage = &answer.json()["usage"];
        ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"]
            .map(|name| usage[name].as_u64().expect("a count"))
    };
    let [rest, written, read] = usage("5m").await;
    assert_eq!((rest + written, read), (all, 0));
    assert!(written >= all - 17 && written % 16 == 0, "{written} of {all}");
    assert_eq!(usage("1h").await, [rest, 0, written]);
    // A stream says it at its beginning, too.
    let mut streamed = message("1h");
    streamed["stream"] = json!(true);
    let events = up.client.post("/v1/messages", &streamed).await.body;
    let begun = String::from_utf8_lossy(&events).lines().nth(1).unwrap_or_default().to_owned();
    assert!(begun.contains(&format!("\"cache_read_input_tokens\":{written}")), "{begun}");
    let mut wrong = message("soon");
    wrong["stream"] = json!(false);
    let refused = up.client.post("/v1/messages", &wrong).await;
    assert_eq!(refused.status, 400);
    let said = refused.json()["error"]["message"].as_str().expect("a message").to_owned();
    assert!(said.starts_with("system[0].cache_control.ttl must be"), "{said}");
}
