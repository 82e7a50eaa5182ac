use super::*;
use crate::testkit::{ask, raw};
use proptest::prelude::*;
use serde_json::{Map, json};

/// What `/server_info` says of an engine: its connector's further settings, and its parallelism.
fn says(read_mode: bool, parallel: usize) -> (Value, Value) {
    let extra = json!({
        "read_mode": read_mode, "http_port": "8000", "host_ip": "10.0.0.2",
        "handshake_port": "6400", "notify_port": 6105,
    });
    (extra, json!({"tensor_parallel_size": parallel}))
}

fn own(mode: Mode, role: Role) -> MoriioSetup {
    let (extra, parallel) = says(mode == Mode::Read, 1);
    MoriioSetup::read("0.32.0", role, (&extra, &parallel), "127.0.0.1").unwrap()
}

/// What the engines tell of a pair in this mode.
fn pair(own: &MoriioSetup, theirs: &MoriioSetup) -> Result<Value, Fault> {
    let Manner::InTurn { prefill: Some(told), first: FirstToken::Dropped } =
        own.pair(10, Some(&theirs.advert()))?
    else {
        panic!("prefill is told nothing");
    };
    Ok(serde_json::from_str(told.get()).unwrap())
}

/// What prefill answers, as the source has it: ports that nobody chose are text there.
fn answer() -> Value {
    json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[4, 5, 6]],
        "remote_engine_id": "10.0.0.1:6301", "remote_host": "10.0.0.1",
        "remote_handshake_port": "6301", "remote_notify_port": "61005", "remote_dp_rank": 1,
        "remote_dp_rank_override": true, "remote_dp_size": 2, "remote_dp_size_local": 2,
        "tp_size": 1, "transfer_id": "tx-stator-000000000000000a",
    })
}

#[test]
fn a_prefill_that_writes_is_told_where_decode_is() {
    let (decode, prefill) = (own(Mode::Write, Role::Decode), own(Mode::Write, Role::Prefill));
    let told = pair(&decode, &prefill).unwrap();
    let expected = json!({
        "do_remote_decode": true, "do_remote_prefill": false,
        "transfer_id": "tx-stator-000000000000000a", "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": "10.0.0.2", "remote_handshake_port": 6400,
        "remote_notify_port": 6105, "remote_dp_size": 1, "tp_size": 1,
    });
    assert_eq!(told, expected);
    assert_eq!(prefill.check(&Hand::Prefill(Some(raw(&told.to_string())))), Ok(()));
}

#[test]
fn a_prefill_that_is_read_is_told_a_name() {
    let (decode, prefill) = (own(Mode::Read, Role::Decode), own(Mode::Read, Role::Prefill));
    let told = pair(&decode, &prefill).unwrap();
    let expected = json!({
        "do_remote_decode": true, "do_remote_prefill": false,
        "transfer_id": "tx-stator-000000000000000a", "remote_engine_id": null,
        "remote_block_ids": null,
    });
    assert_eq!(told, expected);
    assert_eq!(prefill.check(&Hand::Prefill(Some(raw(&told.to_string())))), Ok(()));
}

#[test]
fn decode_is_told_what_prefill_answers_and_leads_where_it_is_written_to() {
    for mode in [Mode::Read, Mode::Write] {
        let decode = own(mode, Role::Decode);
        let told = Hand::Decode(raw(&answer().to_string()));
        assert_eq!(decode.check(&told), Ok(()));
        let Hand::Decode(told) = in_words_of(Some(&decode), Ask { hand: told, ..ask(&[1]) }).hand
        else {
            panic!("it stays decode's");
        };
        let mut expected = answer();
        if mode == Mode::Write {
            expected[LEADS] = json!(true);
        }
        assert_eq!(serde_json::from_str::<Value>(told.get()).unwrap(), expected);
    }
    // Others' words stay as they came.
    let told = r#"{ "remote_block_ids":[[1, 2]] }"#;
    let ask = Ask { hand: Hand::Decode(raw(told)), ..ask(&[1]) };
    let Hand::Decode(kept) = in_words_of(None, ask).hand else { panic!("it stays decode's") };
    assert_eq!(kept.get(), told);
}

#[test]
fn an_engine_that_reads_computes_no_prompt_of_its_own() {
    let reads = own(Mode::Read, Role::Decode);
    assert!(reads.needs_prefill());
    assert!(matches!(reads.check(&Hand::Whole), Err(Fault::Half(_))));
    assert_eq!(reads.check(&Hand::Canary), Ok(()));
    for other in [own(Mode::Write, Role::Decode), own(Mode::Read, Role::Prefill)] {
        assert!(!other.needs_prefill());
        assert_eq!(other.check(&Hand::Whole), Ok(()));
    }
}

#[test]
fn engines_that_cannot_work_together_are_told_apart() {
    let with = |mode: Mode, role, parallel| {
        let (extra, parallel) = says(mode == Mode::Read, parallel);
        MoriioSetup::read("0.32.0", role, (&extra, &parallel), "127.0.0.1").unwrap()
    };
    let check = |mode, here, there, works: bool| {
        let (decode, prefill) = (with(mode, Role::Decode, here), with(mode, Role::Prefill, there));
        assert_eq!(pair(&decode, &prefill).is_ok(), works, "{mode}: {here}, {there}");
    };
    check(Mode::Read, 2, 8, true);
    check(Mode::Read, 8, 2, true);
    check(Mode::Read, 2, 3, false);
    check(Mode::Write, 2, 2, true);
    check(Mode::Write, 2, 4, false);
    let (reads, writes) = (own(Mode::Read, Role::Decode), own(Mode::Write, Role::Prefill));
    let fault = pair(&reads, &writes).unwrap_err();
    assert_eq!(fault.to_string(), "MoRI-IO: WRITE mode there, READ mode here");
    assert!(matches!(reads.pair(1, None), Err(Fault::Unsupported(_))));
}

#[test]
fn where_decode_is_its_engine_says_or_its_address() {
    let host = |extra: Value, reached: &str| {
        let own = MoriioSetup::read("0.32.0", Role::Decode, (&extra, &json!({})), reached).unwrap();
        let told = pair(&own, &self::own(Mode::Write, Role::Prefill));
        told.map(|told| told["remote_host"].as_str().map(str::to_owned).unwrap())
    };
    assert_eq!(host(json!({}), "10.0.0.9"), Ok("10.0.0.9".into()));
    assert_eq!(host(Value::Null, "[fd00::1]"), Ok("fd00::1".into()));
    assert_eq!(host(json!({"host_ip": "127.0.0.1"}), "10.0.0.9"), Ok("127.0.0.1".into()));
    for reached in ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"] {
        assert!(matches!(host(json!({"host_ip": ""}), reached), Err(Fault::Unsupported(_))));
    }
}

#[test]
fn what_an_engine_says_is_read_as_it_reads_it_itself() {
    let mode = |said: Value| {
        let extra = json!({"read_mode": said});
        MoriioSetup::read("0.32.0", Role::Decode, (&extra, &json!({})), "h").unwrap().mode
    };
    for said in [json!(true), json!("True"), json!(" 1"), json!(1)] {
        assert_eq!(mode(said.clone()), Mode::Read, "{said}");
    }
    for said in [json!(false), json!(null), json!("yes"), json!(0), json!(2)] {
        assert_eq!(mode(said.clone()), Mode::Write, "{said}");
    }
    let own = MoriioSetup::read("0.32.0", Role::Decode, (&json!({}), &json!({})), "h").unwrap();
    assert_eq!((own.handshake_port, own.notify_port), (6301, 61005));
    assert_eq!((own.tensor_parallel, own.ranks), (1, 1));
    let extra = json!({"handshake_port": "", "notify_port": 0});
    let usual = MoriioSetup::read("0.32.0", Role::Decode, (&extra, &json!({})), "h").unwrap();
    assert_eq!((usual.handshake_port, usual.notify_port), (6301, 61005));
}

#[test]
fn what_is_not_supported_is_named() {
    let check = |version, role, parallel: Value, why: &str| {
        let read = MoriioSetup::read(version, role, (&json!({}), &parallel), "h");
        assert!(read.is_err_and(|fault| fault.contains(why)), "{why}");
    };
    check("0.31.2", Role::Prefill, json!({}), "MoRI-IO of vllm 0.31.2");
    check("0.32.0", Role::Both, json!({}), "kv_role");
    check("0.32.0", Role::Decode, Value::Null, "VLLM_SERVER_DEV_MODE=1");
    let spread = json!({"data_parallel_size": 16, "data_parallel_size_local": 8});
    check("0.32.0", Role::Decode, spread, "of several servers");
    for version in ["0.32.0", "0.33.1rc1", "1.0.0", "dev"] {
        assert!(!is_before_known(version), "{version}");
    }
}

/// An answer or what prefill is told, without one of its members or with another in its place.
fn harmed(mut sound: Value, name: &str, value: Option<Value>) -> Box<RawValue> {
    let members = sound.as_object_mut().unwrap();
    match value {
        Some(value) => members.insert(name.to_owned(), value),
        None => members.remove(name),
    };
    raw(&sound.to_string())
}

fn any_harm() -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        Just(None),
        Just(Some(json!(null))),
        Just(Some(json!(""))),
        Just(Some(json!([]))),
        Just(Some(json!([[]]))),
        Just(Some(json!({"a": 1}))),
        Just(Some(json!(0))),
        Just(Some(json!(-1))),
        Just(Some(json!(65536))),
    ]
}

proptest! {
    /// Whatever is missing from what an engine needs, or is something else, never reaches it.
    #[test]
    fn what_would_end_an_engine_never_reaches_it(
        writes: bool,
        which in 0..6usize,
        harm in any_harm(),
    ) {
        let mode = if writes { Mode::Write } else { Mode::Read };
        let needs = [
            "do_remote_prefill", "transfer_id", "remote_block_ids", "remote_engine_id",
            "remote_handshake_port", "remote_notify_port",
        ];
        let told = Hand::Decode(harmed(answer(), needs[which], harm.clone()));
        let refused = own(mode, Role::Decode).check(&told);
        prop_assert!(matches!(refused, Err(Fault::Invalid(_))), "{told:?}");

        let (decode, prefill) = (own(Mode::Write, Role::Decode), own(Mode::Write, Role::Prefill));
        let needs = [
            "do_remote_decode", "transfer_id", "remote_host", "remote_dp_size",
            "remote_handshake_port", "remote_notify_port",
        ];
        let told = harmed(pair(&decode, &prefill).unwrap(), needs[which], harm);
        let refused = prefill.check(&Hand::Prefill(Some(told)));
        prop_assert!(matches!(refused, Err(Fault::Invalid(_))), "{refused:?}");
    }

    /// Nothing that is told reaches the other half, and nothing but it passes.
    #[test]
    fn what_is_no_hand_over_is_refused(writes: bool, other in any_harm()) {
        let mode = if writes { Mode::Write } else { Mode::Read };
        let (decode, prefill) = (own(mode, Role::Decode), own(mode, Role::Prefill));
        let told = raw(&pair(&decode, &prefill).unwrap().to_string());
        let answered = raw(&answer().to_string());
        prop_assert!(prefill.check(&Hand::Prefill(Some(answered))).is_err());
        prop_assert!(decode.check(&Hand::Decode(told)).is_err());
        prop_assert!(prefill.check(&Hand::Prefill(None)).is_err());
        let other = raw(&other.unwrap_or(Value::Object(Map::new())).to_string());
        prop_assert!(prefill.check(&Hand::Prefill(Some(other.clone()))).is_err());
        prop_assert!(decode.check(&Hand::Decode(other)).is_err());
    }
}
