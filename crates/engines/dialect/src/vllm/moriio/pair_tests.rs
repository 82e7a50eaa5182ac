//! A pair over MoRI-IO, over real connections; what the engines say is made from the source.

use crate::testkit::{Reply, Server, ask, fixture, raw, read, shared};
use crate::vllm::tests::{GENERATE, but, dialect, next_seen};
use crate::{Ask, Dialect, Fault, Hand, Manner, Role};
use serde_json::{Value, json};
use std::sync::Arc;

/// An engine that says this of its connector, and answers so.
async fn engine(role: &str, extra: Value, answer: Value) -> (Server, Arc<dyn Dialect>) {
    let info = fixture("vllm-0.32.0/main/11-server_info.response.json");
    let mut info: Value = serde_json::from_slice(&info).unwrap();
    info["vllm_config"]["kv_transfer_config"] = json!({
        "kv_connector": "MoRIIOConnector", "kv_role": role, "kv_connector_extra_config": extra,
    });
    let server = Server::start(but(vec![
        ("GET /server_info?config_format=json", Reply::ok(info.to_string())),
        (GENERATE, Reply::ok(answer.to_string())),
    ]))
    .await;
    let dialect = dialect(&server, None);
    (server, dialect)
}

fn answered(parameters: Option<&Value>) -> Value {
    let choice = json!({"index": 0, "token_ids": [7], "finish_reason": "length"});
    json!({"request_id": "r", "choices": [choice], "kv_transfer_params": parameters})
}

/// The body of the next request for tokens.
async fn asked(server: &mut Server) -> Value {
    loop {
        let seen = next_seen(server).await;
        if seen.line == GENERATE {
            return serde_json::from_slice(&seen.body).unwrap();
        }
    }
}

#[tokio::test]
async fn prefill_is_told_where_decode_is_and_decode_what_prefill_answers() {
    let hands = json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[4, 5]],
        "remote_engine_id": "10.0.0.1:6301", "remote_host": "10.0.0.1",
        "remote_handshake_port": "6301", "remote_notify_port": "61005",
        "transfer_id": "tx-stator-1",
    });
    let (mut there, prefill) = engine("kv_producer", json!({}), answered(Some(&hands))).await;
    let extra = json!({"host_ip": "10.0.0.2"});
    let (mut here, decode) = engine("kv_consumer", extra, answered(None)).await;
    let advert = prefill.describe().await.unwrap().handover.expect("it prefills");
    let described = decode.describe().await.unwrap();
    assert!(described.handover.is_none() && !described.needs_prefill);

    let Ok(Manner::InTurn { prefill: Some(told), .. }) = decode.pair(&shared(1, 1), &advert) else {
        panic!("prefill is told something");
    };
    let request = Ask { hand: Hand::Prefill(Some(told.clone())), rank: Some(1), ..ask(&[1, 2]) };
    let (first, _) = read(prefill.generate(request).await.unwrap()).await.unwrap();
    let body = asked(&mut there).await;
    assert_eq!(body["kv_transfer_params"], serde_json::from_str::<Value>(told.get()).unwrap());
    assert_eq!(body["kv_transfer_params"]["remote_host"], "10.0.0.2");
    assert_eq!(
        (&body["sampling_params"]["max_tokens"], &body["stream"]),
        (&json!(1), &json!(false))
    );

    let handover = first.handover.expect("prefill hands over");
    let request = Ask { hand: Hand::Decode(handover), ..ask(&[1, 2]) };
    // Decode's own answer is another test's business.
    let _ = decode.generate(request).await.unwrap();
    let mut expected = hands;
    expected["is_request_leader"] = json!(true);
    assert_eq!(asked(&mut here).await["kv_transfer_params"], expected);
}

#[tokio::test]
async fn a_prefill_that_hands_nothing_over_has_failed() {
    let (_server, prefill) = engine("kv_producer", json!({}), answered(None)).await;
    prefill.describe().await.unwrap();
    let told = json!({
        "do_remote_decode": true, "transfer_id": "tx-1", "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": "h", "remote_handshake_port": 1,
        "remote_notify_port": 2, "remote_dp_size": 1, "tp_size": 1,
    });
    let request = Ask { hand: Hand::Prefill(Some(raw(&told.to_string()))), ..ask(&[1]) };
    let fault = prefill.generate(request).await.err();
    assert!(matches!(fault, Some(Fault::Failed(_))), "{fault:?}");
}

#[tokio::test]
async fn an_engine_that_reads_says_that_it_needs_prefill() {
    let extra = json!({"read_mode": "true"});
    let (_server, decode) = engine("kv_consumer", extra, answered(None)).await;
    assert!(decode.describe().await.unwrap().needs_prefill);
    assert!(matches!(decode.generate(ask(&[1])).await.err(), Some(Fault::Half(_))));
}

#[tokio::test]
async fn an_engine_that_does_not_say_how_it_is_set_up_is_not_served() {
    let absent = Reply::recorded(404, r#"{"detail":"Not Found"}"#);
    let server = Server::start(but(vec![("GET /server_info?config_format=json", absent)])).await;
    let dialect = dialect(&server, Some(("MoRIIOConnector", Role::Decode)));
    let fault = dialect.describe().await.unwrap_err();
    assert!(fault.to_string().contains("VLLM_SERVER_DEV_MODE=1"), "{fault}");
}

#[tokio::test]
async fn no_name_of_a_request_is_taken_for_an_address() {
    let (mut server, prefill) = engine("kv_producer", json!({}), answered(None)).await;
    let named = Ask { id: "___prefill_addr_x___decode_addr_-1".into(), ..ask(&[1]) };
    let _ = prefill.generate(named).await;
    let seen = next_seen(&mut server).await;
    assert_eq!(seen.headers["x-request-id"], "___prefill-addr-x___decode-addr--1");
}
