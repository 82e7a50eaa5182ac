use super::super::{Endpoint, Target};
use super::*;
use crate::Role;
use crate::testkit::{ask, raw};
use serde_json::{Value, json};

fn connector(name: &str, role: Role) -> Connector {
    Connector { name: name.into(), role, bootstrap: None }
}

fn facts(own: &Connector, version: &str) -> EngineFacts {
    EngineFacts {
        connector: Some(own.clone()),
        version: Some(version.into()),
        block_size: Some(32),
        ..EngineFacts::default()
    }
}

fn check(hand: &Hand, own: Option<&Connector>) -> Result<(), Fault> {
    super::check(hand, &EngineFacts { connector: own.cloned(), ..EngineFacts::default() })
}

fn told() -> Value {
    let answer =
        include_str!("../../../fixtures/vllm-0.32.0/pd-nixl/19-generate-prefill.response.json");
    serde_json::from_str::<Value>(answer).unwrap()["kv_transfer_params"].take()
}

fn decode(told: &Value) -> Result<(), Fault> {
    let own = connector("NixlConnector", Role::Decode);
    check(&Hand::Decode(raw(&told.to_string())), Some(&own))
}

#[test]
fn a_recorded_handover_passes() {
    assert_eq!(decode(&told()), Ok(()));
}

#[test]
fn an_incomplete_handover_never_reaches_an_engine() {
    let killers = [
        json!({"do_remote_prefill": true}),
        json!({"do_remote_prefill": true, "remote_block_ids": [[1, 2, 3]]}),
        json!({"do_remote_prefill": true, "do_remote_decode": false}),
        json!({"x": 1}),
        json!({}),
        json!([]),
        json!(null),
    ];
    for killer in killers {
        assert!(matches!(decode(&killer), Err(Fault::Invalid(_))), "{killer}");
    }
    let needed = [
        "do_remote_prefill",
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
    ];
    for field in needed {
        for value in [json!(null), json!([]), json!(""), json!(0), json!({"a": 1})] {
            let mut told = told();
            told[field] = value;
            assert!(matches!(decode(&told), Err(Fault::Invalid(_))), "{told}");
        }
        let mut told = told();
        told.as_object_mut().unwrap().remove(field);
        assert!(matches!(decode(&told), Err(Fault::Invalid(_))), "{told}");
    }
}

#[test]
fn an_engine_without_the_role_is_not_asked() {
    let told = raw(&told().to_string());
    let producer = connector("NixlConnector", Role::Prefill);
    let consumer = connector("MooncakeConnector", Role::Decode);
    let unsupported = |hand: &Hand, own: Option<&Connector>| {
        assert!(matches!(check(hand, own), Err(Fault::Unsupported(_))), "{hand:?}");
    };
    unsupported(&Hand::Decode(told.clone()), Some(&producer));
    unsupported(&Hand::Prefill(Some(told.clone())), Some(&consumer));
    unsupported(&Hand::Decode(told.clone()), None);
    unsupported(&Hand::Prefill(None), Some(&connector("OtherConnector", Role::Both)));
    assert_eq!(check(&Hand::Prefill(None), Some(&producer)), Ok(()));
}

#[test]
fn equal_connectors_of_equal_versions_pair() {
    let nixl = json!({"connector": "NixlConnector", "version": "0.32.0"}).to_string();
    let check = |own: &Connector, version: &str, theirs: &str| {
        pair(7, &raw(theirs), 0, &facts(own, version))
    };
    let own = connector("NixlConnector", Role::Both);
    let manner = check(&own, "0.32.0", &nixl);
    assert!(matches!(manner, Ok(Manner::InTurn { prefill: None, first: FirstToken::Dropped })));
    assert!(matches!(check(&own, "0.31.0", &nixl), Err(Fault::Unsupported(_))));
    assert!(matches!(check(&own, "0.32.0", "{}"), Err(Fault::Unsupported(_))));
    let other = connector("MooncakeConnector", Role::Both);
    assert!(matches!(check(&other, "0.32.0", &nixl), Err(Fault::Unsupported(_))));
    let producer = connector("NixlConnector", Role::Prefill);
    assert!(matches!(check(&producer, "0.32.0", &nixl), Err(Fault::Unsupported(_))));
    let alone = pair(7, &raw(&nixl), 0, &EngineFacts::default());
    assert!(matches!(alone, Err(Fault::Unsupported(_))));
}

#[test]
fn the_first_token_is_taken_where_blocks_are_read_and_of_one_size() {
    let check = |name: &str, theirs: Value, first: FirstToken| {
        let advert = json!({"connector": name, "version": "0.32.0", "block_size": theirs});
        let own = facts(&connector(name, Role::Decode), "0.32.0");
        let manner = pair(7, &raw(&advert.to_string()), 0, &own).unwrap();
        let Manner::InTurn { prefill: None, first: found } = manner else { panic!("{manner:?}") };
        assert_eq!(found, first);
    };
    check("NixlConnector", json!(32), FirstToken::Taken { block_size: 32 });
    check("NixlConnector", json!(16), FirstToken::Dropped);
    check("NixlConnector", json!(null), FirstToken::Dropped);
    check("NixlPushConnector", json!(32), FirstToken::Dropped);
}

#[test]
fn decode_has_the_name_of_prefills_request_where_prefill_writes() {
    let check = |connector_name: &str, endpoint, theirs: Value, id: Option<&str>| {
        let mut told = told();
        told["remote_request_id"] = theirs;
        let target = Target { endpoint, ..Target::default() };
        let own = connector(connector_name, Role::Decode);
        let facts = EngineFacts { target, ..facts(&own, "0.32.0") };
        let asked = Ask { hand: Hand::Decode(raw(&told.to_string())), ..ask(&[1]) };
        assert_eq!(in_name_of(&facts, asked).ok().as_ref().map(|ask| &*ask.id), id);
    };
    let (own, push) = (ask(&[1]).id, "NixlPushConnector");
    let (tokens, completions) = (Endpoint::Generate, Endpoint::Completions);
    check("NixlConnector", tokens, json!("generate-tokens-a-1.0-0a1b2c3d"), Some(&own));
    check(push, tokens, json!("generate-tokens-a-1.0-0a1b2c3d"), Some("a-1.0"));
    check(push, tokens, json!("generate-tokens-a-1.0"), Some("a-1.0"));
    check(push, completions, json!("cmpl-a-1.0-0-0a1b2c3d"), Some("a-1.0"));
    // Prefill would not find it.
    check(push, completions, json!("generate-tokens-a-1.0-0a1b2c3d"), None);
    check(push, tokens, json!("cmpl-a-1.0-0-0a1b2c3d"), None);
    check(push, tokens, Value::Null, None);
}

#[test]
fn connectors_that_keep_the_kv_pair_in_turn() {
    let names = ["ExampleConnector", "SharedStorageConnector", "LMCacheConnectorV1"];
    for name in names.into_iter().chain(["LMCacheMPConnector", "OffloadingConnector"]) {
        let own = connector(name, Role::Both);
        let advert = json!({"connector": name, "version": "0.32.0", "block_size": 32});
        let manner = pair(7, &raw(&advert.to_string()), 0, &facts(&own, "0.32.0"));
        let dropped = |it: &Manner| matches!(it, Manner::InTurn { first: FirstToken::Dropped, .. });
        assert!(manner.as_ref().is_ok_and(dropped), "{manner:?}");
        assert_eq!(check(&Hand::Prefill(None), Some(&own)), Ok(()));
        let told = Hand::Prefill(Some(raw("{}")));
        assert!(matches!(check(&told, Some(&own)), Err(Fault::Invalid(_))));
    }
}

#[test]
fn what_is_not_supported_is_named() {
    let own = connector("MoRIIOConnector", Role::Prefill);
    let fault = check(&Hand::Prefill(None), Some(&own)).unwrap_err();
    assert_eq!(fault.to_string(), "the engine has not said how its MoRI-IO is set up");
    let own = connector("P2pNcclConnector", Role::Prefill);
    let fault = check(&Hand::Prefill(None), Some(&own)).unwrap_err();
    assert_eq!(fault.to_string(), "connector \"P2pNcclConnector\" is none that is known");
}

#[test]
fn blocks_of_several_groups_are_told_apart() {
    let check = |ids: Value| is_of_one_group(&raw(&json!({"remote_block_ids": ids}).to_string()));
    assert!(is_of_one_group(&raw(&told().to_string())));
    assert!(check(json!([[1, 2, 3]])) && check(json!([1, 2, 3])));
    assert!(!check(json!([[1, 2], [3]])) && !check(json!([])) && !check(json!(null)));
    assert!(!is_of_one_group(&raw("[]")));
}

#[test]
fn mooncake_is_told_both_halves_and_accepts_them() {
    let own = connector("MooncakeConnector", Role::Both);
    let advert = Advert {
        connector: "MooncakeConnector".into(),
        version: "0.32.0".into(),
        block_size: None,
        bootstrap: Some("http://10.0.0.1:8998".into()),
        engines: vec!["988f444d".into()],
        moriio: None,
    };
    let manner = pair(10, &json::raw(&advert), 0, &facts(&own, "0.32.0")).unwrap();
    let Manner::Together { prefill, decode, first: FirstToken::Dropped, prompt_first: true } =
        manner
    else {
        panic!("{manner:?}")
    };
    let expected = json!({
        "do_remote_decode": false, "do_remote_prefill": true,
        "transfer_id": "stator-000000000000000a", "remote_engine_id": "988f444d",
        "remote_bootstrap_addr": "http://10.0.0.1:8998",
    });
    assert_eq!(serde_json::from_str::<Value>(decode.get()).unwrap(), expected);
    assert_eq!(check(&Hand::Prefill(Some(prefill.clone())), Some(&own)), Ok(()));
    assert_eq!(check(&Hand::Decode(decode.clone()), Some(&own)), Ok(()));
    // Each half is the other's death.
    assert!(check(&Hand::Prefill(Some(decode)), Some(&own)).is_err());
    assert!(check(&Hand::Decode(prefill), Some(&own)).is_err());
    // Of several ranks each has its own engine.
    let many = Advert { engines: vec!["a".into(), "b".into()], ..advert };
    let facts = facts(&own, "0.32.0");
    let engine = |advert: &Advert, rank| {
        let manner = pair(10, &json::raw(advert), rank, &facts)?;
        let Manner::Together { decode, .. } = manner else { panic!("{manner:?}") };
        Ok(params(&decode)?.remote_engine_id)
    };
    assert_eq!(engine(&many, 0), Ok(Some("a".into())));
    assert_eq!(engine(&many, 1), Ok(Some("b".into())));
    assert!(matches!(engine(&many, 2), Err(Fault::Unsupported(_))));
    let nowhere = Advert { bootstrap: None, ..many };
    assert!(matches!(engine(&nowhere, 0), Err(Fault::Unsupported(_))));
}
