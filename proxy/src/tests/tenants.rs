//! Prefix spaces, as agents and servers are told of them.

use super::bed::{Agent, Bed};
use super::request;
use crate::upstream::testkit::{DONE, Engine, Peer, check_done};
use serde_json::{Value, json};
use stator_protos::discovery::ProfileRecord;
use std::collections::HashSet;

/// A proxy with these flags and one agent.
async fn bed(flags: &[&str]) -> (Bed, Agent) {
    let mut bed = Bed::start(flags).await;
    let agent = bed.agent(ProfileRecord::default()).await;
    bed.until_workers(1).await;
    (bed, agent)
}

/// The salt that an agent is told for a request with these members and headers.
async fn salt((bed, agent): &(Bed, Agent), members: Value, headers: &str) -> String {
    assert_eq!(bed.complete(&request(members), headers).await.0, 200, "{headers}");
    agent.asked().pop().expect("it was asked").cache_salt
}

const ALPHA: &str = "authorization: Bearer alpha\r\n";
const BETA: &str = "authorization: Bearer beta\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_the_tenant_and_both_salts_make_the_space() {
    let bed = bed(&["--api-key=alpha,beta"]).await;
    let salts = json!({"cache_salt": "s"});
    let both = json!({"cache_salt": "s", "nvext": {"cache_salt": "n"}});
    let tenant = format!("{ALPHA}x-tenant-id: s\r\n");
    let mut spaces = Vec::new();
    for (members, headers) in [
        (json!({}), ALPHA),
        (json!({}), BETA),
        (salts.clone(), ALPHA),
        (salts.clone(), BETA),
        (both, ALPHA),
        (json!({"nvext": {"cache_salt": "s"}}), ALPHA),
        (json!({}), &*tenant),
        (salts, &*tenant),
    ] {
        let space = salt(&bed, members.clone(), headers).await;
        assert!(space.len() == 32 && space.bytes().all(|byte| byte.is_ascii_hexdigit()), "{space}");
        assert_eq!(salt(&bed, members, headers).await, space, "it is derived, not drawn");
        spaces.push(space);
    }
    assert_eq!(spaces.iter().collect::<HashSet<_>>().len(), spaces.len(), "{spaces:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_all_keys_share_only_tenants_and_salts_keep_apart() {
    let bed = bed(&["--api-key=alpha,beta", "--shared-prefixes"]).await;
    assert_eq!(salt(&bed, json!({}), ALPHA).await, "");
    assert_eq!(salt(&bed, json!({}), BETA).await, "");
    let tenant = |key: &str| format!("{key}x-tenant-id: t\r\n");
    let shared = salt(&bed, json!({}), &tenant(ALPHA)).await;
    assert_eq!(salt(&bed, json!({}), &tenant(BETA)).await, shared);
    assert_ne!(shared, salt(&bed, json!({"cache_salt": "t"}), BETA).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_keys_the_space_is_the_common_one_until_a_request_narrows_it() {
    let bed = bed(&[]).await;
    assert_eq!(salt(&bed, json!({}), "").await, "");
    assert_eq!(salt(&bed, json!({"nvext": {"cache_salt": ""}}), "x-tenant-id: \r\n").await, "");
    assert_eq!(salt(&bed, json!({"cache_salt": "s"}), "").await.len(), 32);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_cannot_be_meant_is_refused() {
    let (bed, _agent) = bed(&[]).await;
    let long = format!("x-tenant-id: {}\r\n", "t".repeat(257));
    for (headers, message) in [
        ("x-tenant-id: a\r\nx-tenant-id: b\r\n", "x-tenant-id is there more than once"),
        ("x-tenant-id: \u{fc}\r\n", "x-tenant-id is no ASCII text"),
        (&long, "x-tenant-id has 257 bytes, it must have 1 to 256"),
    ] {
        let (status, body) = bed.complete(&request(json!({})), headers).await;
        assert_eq!((status, &body["error"]["message"]), (400, &json!(message)));
        assert_eq!(body["error"]["param"], "x-tenant-id");
    }
}

/// The body that a server gets of a client's.
async fn passed(bed: &Bed, server: &Engine, (headers, body): (&str, &str)) -> String {
    let mut client = Peer::connect(bed.address).await;
    client.post("/v1/completions", headers, body).await;
    let mut asked = server.asked().await;
    asked.answer(200, DONE).await;
    check_done(&mut client).await;
    asked.body.clone()
}

#[tokio::test]
async fn a_server_that_keeps_prefixes_apart_is_told_the_space() {
    let server = Engine::start().await;
    let mut bed = Bed::start(&["--api-key=alpha,beta"]).await;
    let _agent = bed.watched(server.address(), "m").await;
    bed.until_workers(1).await;
    let salt = |body: &str| {
        let body: Value = serde_json::from_str(body).expect("it is JSON");
        body["cache_salt"].as_str().expect("a salt").to_owned()
    };
    let plain = r#"{"model":"m","prompt":"p"}"#;
    let alpha = passed(&bed, &server, (ALPHA, plain)).await;
    assert!(alpha.starts_with(r#"{"model":"m","prompt":"p","cache_salt":""#), "{alpha}");
    let chosen = r#"{"model":"m","cache_salt":"s","prompt":"p"}"#;
    let all = [
        salt(&alpha),
        salt(&passed(&bed, &server, (BETA, plain)).await),
        salt(&passed(&bed, &server, (ALPHA, chosen)).await),
        salt(&passed(&bed, &server, (BETA, chosen)).await),
    ];
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "{all:?}");
    assert_eq!(salt(&passed(&bed, &server, (ALPHA, plain)).await), all[0]);
}
