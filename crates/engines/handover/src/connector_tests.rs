use super::*;
use crate::supplies::KV_PARAMETERS as PARAMETERS;

fn pair() -> Pair {
    Pair {
        id: 0xABCD_0000_0000_0000_1234_5678_9ABC_DEF0,
        host: "10.0.0.2".into(),
        url_host: "10.0.0.2".into(),
        bootstrap_port: 8998,
        p2p_port: 7777,
        engine_id: "engine-7".into(),
        rank: None,
        meeting: Meeting::default(),
    }
}

const REQUEST: &str = r#"{"prompt":"a","max_tokens":9,"stream":true}"#;

/// What prefill and decode are asked.
fn check(connector: Connector, request: &str, answer: &str) -> (Value, Value) {
    let object = Object::parse(request.as_bytes()).expect("a sound object");
    let prefill = connector.prefill(Api::Completions, &object, &pair(), &Supplies::default());
    let decode = connector.decode(&object, &pair(), answer.as_bytes()).expect("parameters");
    let tree = |told: &EngineRequest| serde_json::from_slice(&told.body).expect("it stays sound");
    (tree(&prefill), tree(&decode))
}

/// Whether the request is one for a single token.
fn is_short(request: &Value) -> bool {
    request["max_tokens"] == 1 && request["stream"] == false && request["prompt"] == "a"
}

/// Whether nothing but the parameters was added to the client's request.
fn is_whole(request: &Value) -> bool {
    let mut request = request.clone();
    request.as_object_mut().expect("an object").remove(PARAMETERS);
    request == json!({"prompt": "a", "max_tokens": 9, "stream": true})
}

#[test]
fn nixl_passes_parameters_on_as_they_came() {
    let parameters = r#"{"remote_block_ids":[[1, 2]],"remote_num_tokens":9007199254740993}"#;
    let answer = format!(r#"{{"choices":[],"kv_transfer_params":{parameters}}}"#);
    let object = Object::parse(REQUEST.as_bytes()).expect("a sound object");
    let decode = Connector::Nixlv2.decode(&object, &pair(), answer.as_bytes());
    let expected = format!(
        r#"{{"prompt":"a","max_tokens":9,"stream":true,"kv_transfer_params":{parameters}}}"#
    );
    assert_eq!(decode, Ok(expected.into_bytes().into()));
    let (prefill, _) = check(Connector::Nixlv2, REQUEST, &answer);
    assert!(is_short(&prefill), "{prefill}");
    let asked = json!({"do_remote_decode": true, "do_remote_prefill": false,
                       "remote_engine_id": null, "remote_block_ids": null,
                       "remote_host": null, "remote_port": null});
    assert_eq!(prefill[PARAMETERS], asked);
}

#[test]
fn an_answer_without_parameters_is_no_hand_over() {
    let object = Object::parse(REQUEST.as_bytes()).expect("a sound object");
    for answer in
        ["", "{}", "[]", r#"{"kv_transfer_params":null}"#, r#"{"kv_transfer_params":"x"}"#]
    {
        let decode = Connector::Nixlv2.decode(&object, &pair(), answer.as_bytes());
        assert_eq!(decode, Err(MissingParameters::All), "{answer}");
    }
}

#[test]
fn sglang_tells_both_the_same() {
    let (prefill, decode) = check(Connector::Sglang, REQUEST, "");
    assert_eq!(prefill, decode);
    assert_eq!(decode["bootstrap_host"], "10.0.0.2");
    assert_eq!(decode["bootstrap_port"], 8998);
    let room = decode["bootstrap_room"].as_u64().expect("a number");
    assert!(room < 1 << 63 && room & 0xFFFF == 0, "{room}");
    assert_eq!((&decode["stream"], &decode["max_tokens"]), (&json!(true), &json!(9)));
}

#[test]
fn a_room_of_sglang_leaves_the_rank_that_computes_the_prompt() {
    let object = Object::parse(REQUEST.as_bytes()).expect("a sound object");
    for count in [2, 3, 8, u16::MAX] {
        for index in [0, 1, count - 1] {
            let pair = Pair { id: u128::MAX, rank: Some(DpRank { index, count }), ..pair() };
            let told = Connector::Sglang.decode(&object, &pair, b"").expect("it needs nothing");
            let told: Value = serde_json::from_slice(&told.body).expect("it stays sound");
            let room = told["bootstrap_room"].as_u64().expect("a number");
            assert_eq!(room % u64::from(count), u64::from(index));
            assert!(room < (1 << 63) - 0xFFFF, "{room}");
            assert_eq!(told["disagg_prefill_dp_rank"], index);
        }
    }
}

#[test]
fn mooncake_tells_both_one_transfer() {
    let (prefill, decode) = check(Connector::Mooncake, REQUEST, "");
    assert!(is_short(&prefill) && is_whole(&decode), "{prefill} {decode}");
    let (asked, told) = (&prefill[PARAMETERS], &decode[PARAMETERS]);
    assert_eq!(asked["transfer_id"], told["transfer_id"]);
    assert_eq!(
        (&asked["do_remote_decode"], &told["do_remote_prefill"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(told["remote_engine_id"], "engine-7");
    assert_eq!(told["remote_bootstrap_addr"], "http://10.0.0.2:8998");
}

#[test]
fn offloading_tells_both_one_id() {
    let (prefill, decode) = check(Connector::Offloading, REQUEST, "");
    assert!(is_short(&prefill) && is_whole(&decode), "{prefill} {decode}");
    let told = &decode[PARAMETERS]["remote_prefiller"];
    assert_eq!(prefill[PARAMETERS]["remote_decoder"]["kv_request_id"], told["kv_request_id"]);
    assert_eq!((&told["remote_host"], &told["remote_port"]), (&json!("10.0.0.2"), &json!(7777)));
}

#[test]
fn an_engine_that_reads_over_moriio_is_told_as_one_of_nixl() {
    let answer = r#"{"kv_transfer_params":{"remote_block_ids":[[1]],"remote_dp_rank":1}}"#;
    let nixl = check(Connector::Nixlv2, REQUEST, answer);
    assert_eq!(check(Connector::Moriio, REQUEST, answer), nixl);
}

#[test]
fn engines_that_write_over_moriio_are_told_one_transfer_and_the_rank() {
    let object = Object::parse(REQUEST.as_bytes()).expect("a sound object");
    let meeting = Meeting { transfer_id: "tx1".into(), ..Meeting::default() };
    let pair = Pair { rank: Some(DpRank { index: 3, count: 8 }), meeting, ..pair() };
    let tree =
        |told: &EngineRequest| -> Value { serde_json::from_slice(&told.body).expect("sound") };
    for connector in [Connector::MoriioWrite, Connector::MoriioParallel] {
        let asked = connector.prefill(Api::Completions, &object, &pair, &Supplies::default());
        let answer = br#"{"kv_transfer_params":{"remote_block_ids":[[1]]}}"#;
        let told = connector.decode(&object, &pair, answer).expect("it is told");
        assert!(is_short(&tree(&asked)) && is_whole(&tree(&told)), "{connector:?}");
        assert_eq!(asked.rank, Some(3));
        assert_eq!(tree(&asked)[PARAMETERS]["transfer_id"], "tx1");
        assert_eq!(tree(&told)[PARAMETERS]["transfer_id"], "tx1");
        let in_turn = connector.order() == Order::InTurn;
        assert_eq!(told.rank, (!in_turn).then_some(3));
        let nothing = connector.decode(&object, &pair, b"{}");
        assert_eq!(nothing.is_err(), in_turn);
    }
}

#[test]
fn storage_needs_no_parameters() {
    for connector in [Connector::SharedStorage, Connector::Lmcache] {
        let (prefill, decode) = check(connector, REQUEST, "");
        assert!(is_short(&prefill) && is_whole(&decode), "{prefill} {decode}");
        assert_eq!(prefill.get(PARAMETERS), None);
    }
    let request = r#"{"prompt":"a","max_tokens":9,"cache_hit_threshold":0.8}"#;
    let (prefill, decode) = check(Connector::SharedStorage, request, "");
    assert_eq!((&prefill[THRESHOLD], &decode[THRESHOLD]), (&json!(0), &json!(0)));
    let object = Object::parse(request.as_bytes()).expect("a sound object");
    assert!(Connector::SharedStorage.asks_decode_first(&object));
    assert!(!Connector::Lmcache.asks_decode_first(&object));
}

#[test]
fn giving_up_is_told_from_speaking_of_it() {
    assert!(gave_up(br#"{"choices":[{"finish_reason":"cache_threshold"}]}"#));
    assert!(!gave_up(br#"{"choices":[{"text":"a \"cache_threshold\""}]}"#));
}
