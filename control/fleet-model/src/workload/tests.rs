//! Traces as they are read, and the shapes of synthetic workloads.

use super::*;

const PLAY: Replay = Replay { speed: 1.0, repeat: 1, limit: u32::MAX };

fn read(text: &str, block_size: u32, play: Replay) -> Result<Workload, WorkloadError> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), text).expect("the file can be written");
    Workload::read(file.path(), block_size, play)
}

fn synthetic(mix: Mix, count: u32, adapters: u32, block_size: u32) -> Workload {
    Workload::synthetic(SyntheticWorkload { mix, rate: 10.0, adapters, block_size }, count, 1)
}

fn blocks(workload: &Workload, request: u32) -> Vec<BlockId> {
    let mut out = Vec::new();
    workload.blocks(request, &mut out);
    out
}

const MOONCAKE: &str = r#"{"timestamp": 1000, "input_length": 1300, "output_length": 64, "hash_ids": [70, 71, 72]}
{"timestamp": 3000, "input_length": 1536, "output_length": 3, "hash_ids": [70, 71, 99], "chat": "x"}

{"timestamp": 2500, "input_length": 700, "output_length": 0, "hash_ids": [70, 5]}"#;

#[test]
fn equal_ids_of_a_mooncake_trace_are_equal_blocks() {
    let workload = read(MOONCAKE, 256, PLAY).expect("a good trace");
    assert_eq!(blocks(&workload, 0), [0, 1, 2, 3, 4]);
    assert_eq!(blocks(&workload, 1), [0, 1]);
    assert_eq!(blocks(&workload, 2), [0, 1, 2, 3, 6, 7]);
    let at: Vec<_> = workload.requests.iter().map(|request| request.arrival).collect();
    assert_eq!(at, [0, 1_500, 2_000].map(|ms| ArrivalTime::At(ms * crate::time::MS)));
    assert_eq!(workload.requests[1].output_tokens, 1);
}

#[test]
fn a_repeated_trace_goes_on_with_other_prompts() {
    let play = Replay { speed: 2.0, repeat: 3, limit: 5 };
    let workload = read(MOONCAKE, 512, play).expect("a good trace");
    assert_eq!(workload.requests.len(), 5);
    assert_eq!(blocks(&workload, 3), [5, 6]);
    assert_eq!(workload.requests[3].arrival, ArrivalTime::At(1_500 * crate::time::MS));
}

#[test]
fn an_azure_trace_has_lengths_and_nothing_in_common() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
        2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n";
    let workload = read(text, 1_024, PLAY).expect("a good trace");
    assert_eq!((blocks(&workload, 0), blocks(&workload, 1)), (vec![0, 1, 2, 3], vec![4, 5, 6]));
    let ArrivalTime::At(second) = workload.requests[1].arrival else {
        panic!("it has its own time")
    };
    assert_eq!(crate::time::ms(second).round(), 52.0);
}

#[test]
fn a_bad_line_is_named() {
    let check = |text: &str, expected: &[&str]| {
        let error = read(text, 512, PLAY).expect_err("a bad trace").to_string();
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
    };
    check(&format!("{MOONCAKE}\nno json"), &["line 5"]);
    check(r#"{"timestamp":-1,"input_length":1,"output_length":1}"#, &["line 1", "timestamp: -1"]);
    check("\n", &["has no request"]);
    check("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1", &["line 2", "TIMESTAMP"]);
    check("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,x,1", &["ContextTokens"]);
    check("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2", &["2 columns"]);
}

#[test]
fn synthetic_workloads_have_their_size_and_rate() {
    for mix in [Mix::Chat, Mix::Agents, Mix::Summarise, Mix::Batch, Mix::Mixed] {
        let workload = synthetic(mix, 5_000, 0, 64);
        assert_eq!(workload.requests.len(), 5_000);
        let at = |request: &WorkloadRequest| match request.arrival {
            ArrivalTime::At(at) => at,
            ArrivalTime::After(_) => 0,
        };
        let span = crate::time::seconds(workload.requests.iter().map(at).max().unwrap_or(0));
        assert!((400.0..600.0).contains(&span), "{mix:?} lasts {span} s");
        for (number, request) in (0..).zip(&workload.requests) {
            let blocks = blocks(&workload, number).len() as u32;
            let all = request.prompt_tokens + request.output_tokens;
            assert!((request.prompt_tokens / 64..=all / 64).contains(&blocks), "{request:?}");
        }
    }
}

#[test]
fn a_turn_continues_the_one_before() {
    let workload = synthetic(Mix::Chat, 200, 0, 64);
    let turn = workload.requests.iter().position(|request| request.next.is_some());
    let turn = turn.expect("some session has two turns") as u32;
    let (first, second) = (blocks(&workload, turn), blocks(&workload, turn + 1));
    assert!(second.starts_with(&first) && first.len() > 16);
    assert!(matches!(workload.requests[turn as usize + 1].arrival, ArrivalTime::After(_)));
}

#[test]
fn the_mix_of_everything_has_its_shares() {
    let workload = synthetic(Mix::Mixed, 40_000, 0, 512);
    let share = |count: usize| 100.0 * count as f64 / 40_000.0;
    let batch = workload.requests.iter().filter(|r| r.class == Class::Background).count();
    assert!((5.0..16.0).contains(&share(batch)), "{} % batch", share(batch));
}

#[test]
fn a_session_keeps_its_adapter_and_adapters_share_no_blocks() {
    let workload = synthetic(Mix::Mixed, 5_000, 4, 64);
    let mut of_block = std::collections::HashMap::new();
    let mut used = [0; 4];
    for (number, request) in (0..).zip(&workload.requests) {
        let adapter = request.adapter.expect("every session has one");
        used[adapter as usize] += 1;
        let first = &workload.requests[request.session as usize];
        assert_eq!((first.adapter, first.tenant), (request.adapter, request.tenant));
        for block in blocks(&workload, number) {
            assert_eq!(*of_block.entry(block).or_insert(adapter), adapter);
        }
    }
    assert!(used.is_sorted_by(|one, other| one > other), "{used:?}");
    assert!(synthetic(Mix::Chat, 50, 0, 64).requests.iter().all(|r| r.adapter.is_none()));
}
