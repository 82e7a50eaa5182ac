use super::*;
use proptest::prelude::*;

fn setup(ranks: u16, ranks_of_pod: Option<u16>) -> Setup {
    Setup {
        prefill: Ports { handshake: 6401, notify: 6402 },
        decode: Ports { handshake: 6501, notify: 6502 },
        tensor_parallel: 2,
        ranks,
        ranks_of_pod,
    }
}

fn alone() -> Meeting {
    let hosts = Hosts { own: "10.0.0.9".into(), ..Hosts::default() };
    Meeting { setup: setup(1, None), hosts, rank: 0, transfer_id: "tx1".into() }
}

/// Of two pods each with eight ranks, where the twelfth is asked.
fn spread_out() -> Meeting {
    let texts = |hosts: [&str; 2]| hosts.map(str::to_owned).to_vec();
    let hosts = Hosts {
        own: "10.0.0.9".into(),
        prefill: texts(["10.0.0.1", "10.0.0.2"]),
        decode: texts(["10.0.0.9", "10.0.0.10"]),
    };
    Meeting { setup: setup(16, Some(8)), hosts, rank: 11, transfer_id: "tx1".into() }
}

/// What vLLM answers, as its source has it.
fn answer() -> Value {
    json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[4, 5]],
        "remote_engine_id": "10.0.0.2:6401", "remote_host": "10.0.0.2",
        "remote_handshake_port": "6401", "remote_notify_port": "6402", "remote_dp_rank": 13,
        "remote_dp_rank_override": true, "remote_dp_size": 16, "remote_dp_size_local": 8,
        "tp_size": 2, "transfer_id": "tx1",
    })
}

fn in_turn(meeting: &Meeting, answer: &Value) -> Result<(Value, Option<u16>), MissingParameters> {
    let told = meeting.decode_in_turn("10.0.0.2", answer.to_string().as_bytes())?;
    Ok((serde_json::from_slice(&told.body).expect("it stays sound"), told.rank))
}

#[test]
fn prefill_is_told_where_decode_is() {
    let expected = json!({
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": "10.0.0.9", "remote_port": null,
        "remote_handshake_port": 6501, "remote_notify_port": 6502, "remote_dp_rank": 0,
        "remote_dp_rank_override": true, "remote_dp_size": 1, "tp_size": 2, "transfer_id": "tx1",
    });
    assert_eq!(alone().prefill(false), expected);
    assert_eq!(alone().prefill(true), expected);
}

#[test]
fn a_prefill_on_several_pods_is_told_of_decodes() {
    let mut expected = alone().prefill(false);
    expected["remote_dp_rank"] = json!(11);
    expected["remote_dp_size"] = json!(16);
    expected["remote_hosts"] = json!(["10.0.0.9", "10.0.0.10"]);
    expected["remote_dp_size_local"] = json!(8);
    assert_eq!(spread_out().prefill(false), expected);
    // Beside it decode looks for it among the ranks of its pod.
    expected["remote_dp_rank"] = json!(3);
    assert_eq!(spread_out().prefill(true), expected);
}

#[test]
fn decode_at_once_is_told_where_prefill_is() {
    let expected = json!({
        "do_remote_prefill": true, "do_remote_decode": false,
        "remote_engine_id": "[fd00::2]:6401", "remote_block_ids": [], "remote_host": "fd00::2",
        "remote_port": 6401, "remote_handshake_port": 6401, "remote_notify_port": 6402,
        "remote_dp_rank": 0, "remote_dp_rank_override": true, "remote_dp_size": 1,
        "is_request_leader": true, "tp_size": 2, "transfer_id": "tx1",
    });
    assert_eq!(alone().decode_at_once("fd00::2", "[fd00::2]"), expected);

    let mut expected = expected;
    expected["remote_dp_rank"] = json!(3);
    expected["remote_dp_size"] = json!(8);
    expected["remote_hosts"] = json!(["fd00::2"]);
    expected["remote_dp_size_local"] = json!(8);
    assert_eq!(spread_out().decode_at_once("fd00::2", "[fd00::2]"), expected);
}

#[test]
fn decode_in_turn_is_told_what_prefill_answers() {
    let mut expected = answer();
    expected["is_request_leader"] = json!(true);
    expected["remote_dp_rank"] = json!(0);
    assert_eq!(in_turn(&alone(), &answer()), Ok((expected.clone(), None)));

    // The rank that prefill ran on, and on its pod the one of that number.
    expected["remote_dp_rank"] = json!(13);
    expected["remote_hosts"] = json!(["10.0.0.1", "10.0.0.2"]);
    assert_eq!(in_turn(&spread_out(), &answer()), Ok((expected, Some(5))));
}

#[test]
fn what_prefill_does_not_answer_is_known_otherwise() {
    let bare = json!({"do_remote_prefill": true, "remote_block_ids": [[1]]});
    let expected = json!({
        "do_remote_prefill": true, "remote_block_ids": [[1]], "remote_dp_rank": 11,
        "remote_dp_rank_override": true, "is_request_leader": true, "transfer_id": "tx1",
        "remote_handshake_port": 6401, "remote_notify_port": 6402, "remote_dp_size": 16,
        "remote_hosts": ["10.0.0.1", "10.0.0.2"], "remote_dp_size_local": 8,
    });
    // It was asked for the fourth rank of its pod, which is the second one.
    assert_eq!(in_turn(&spread_out(), &bare), Ok((expected, Some(3))));
    for rank in [json!(16), json!(-1), json!(1.5), json!("3"), json!(null)] {
        let mut answer = answer();
        answer["remote_dp_rank"] = rank;
        let (told, behind) = in_turn(&spread_out(), &answer).expect("its pod is known");
        assert_eq!((&told["remote_dp_rank"], behind), (&json!(11), Some(3)));
    }
    let mut elsewhere = spread_out();
    elsewhere.hosts.prefill[1] = "10.0.0.3".into();
    assert_eq!(in_turn(&elsewhere, &bare), Err(MissingParameters::Rank));
    assert!(in_turn(&elsewhere, &answer()).is_ok());
    for nothing in [json!([]), json!("x")] {
        assert_eq!(in_turn(&alone(), &nothing), Err(MissingParameters::All));
    }
}

#[test]
fn what_prefill_answers_is_passed_on_byte_for_byte() {
    let said = r#"{ "remote_block_ids":[[1, 2]],"remote_num_tokens":9007199254740993 }"#;
    let told = alone().decode_in_turn("h", said.as_bytes()).expect("it is an object").body;
    let told = String::from_utf8(told).expect("text");
    assert!(told.starts_with(said.trim_end_matches(" }")), "{told}");
}

proptest! {
    /// Whichever rank is drawn: decode runs on the rank of a pod that has the number of prefill's,
    /// and every rank that is told is one that there is.
    #[test]
    fn both_engines_are_asked_for_the_same_rank(
        pods in 1..5u16,
        of_pod in 1..9u16,
        drawn: u16,
        ran in 0..64u16,
    ) {
        let ranks = pods * of_pod;
        let hosts = (0..pods).map(|pod| format!("10.0.0.{pod}")).collect();
        let meeting = Meeting {
            setup: setup(ranks, Some(of_pod)),
            hosts: Hosts { prefill: hosts, ..Hosts::default() },
            rank: drawn % ranks,
            transfer_id: "tx1".into(),
        };
        let behind = meeting.setup.behind(meeting.rank);
        prop_assert_eq!(behind.is_some(), ranks > 1);
        prop_assert!(behind.is_none_or(|rank| rank.index < rank.count));
        let asked = meeting.decode_at_once("10.0.0.0", "10.0.0.0")["remote_dp_rank"].clone();
        prop_assert_eq!(&asked, &meeting.prefill(true)["remote_dp_rank"]);
        prop_assert_eq!(asked, json!(behind.map_or(0, |rank| rank.index)));

        let answer = json!({"remote_dp_rank": ran}).to_string();
        let told = meeting.decode_in_turn("10.0.0.0", answer.as_bytes()).expect("its pod is known");
        let said: Value = serde_json::from_slice(&told.body).expect("it stays sound");
        let said = said["remote_dp_rank"].as_u64().expect("a rank");
        prop_assert!(said < u64::from(ranks));
        let expected = if ran < ranks { ran } else { drawn % ranks % of_pod };
        prop_assert_eq!(said, u64::from(expected));
        prop_assert_eq!(told.rank, meeting.setup.behind(expected).map(|rank| rank.index));
    }
}
