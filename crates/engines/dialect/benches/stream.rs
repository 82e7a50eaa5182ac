//! What reading and asking costs, without an engine and without a network. Prints a table; takes a
//! few seconds.
//!
//! `cargo bench -p stator-dialect --bench stream [part of a line's name]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use stator_dialect::{Ask, Hand, Kind, replay};
use stator_protos::worker::Sampling;

/// Shortest measurement that counts.
const ENOUGH: Duration = Duration::from_millis(500);

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    println!("{:<44} {:>8} {:>14}", "", "tokens", "us/token");
    for (name, kind, events) in streams() {
        if only.as_ref().is_none_or(|only| name.contains(only.as_str())) {
            let tokens = read(kind, &events);
            let each = measure(|| read(kind, black_box(&events)));
            println!("{name:<44} {tokens:>8} {:>14.3}", each.as_secs_f64() * 1e6 / tokens as f64);
        }
    }
}

/// One event a token, as engines send them, each in a piece of its own.
fn streams() -> Vec<(&'static str, Kind, Vec<Vec<u8>>)> {
    let recorded = |stream: &str| -> Vec<Vec<u8>> {
        stream.split_inclusive("\n\n").map(|event| event.as_bytes().to_vec()).collect()
    };
    let vllm = include_str!("../fixtures/vllm-0.32.0/main/31-generate-tokens-stream.response.sse");
    let sglang = include_str!("../fixtures/sglang-0.5.23/main/18-generate-stream.response.sse");
    vec![
        ("vllm, recorded", Kind::Vllm, recorded(vllm)),
        ("vllm, 1000 tokens", Kind::Vllm, long_vllm(vllm)),
        ("sglang, recorded, cumulative", Kind::Sglang, recorded(sglang)),
        ("sglang, 1000 tokens, incremental", Kind::Sglang, long_sglang(sglang, false)),
        ("sglang, 1000 tokens, cumulative", Kind::Sglang, long_sglang(sglang, true)),
    ]
}

/// The recorded first event again and again, and then the recorded end.
fn long_vllm(recorded: &str) -> Vec<Vec<u8>> {
    let events: Vec<&str> = recorded.split_inclusive("\n\n").collect();
    let mut long = vec![events[0].as_bytes().to_vec(); 999];
    long.extend(events[3..].iter().map(|event| event.as_bytes().to_vec()));
    long
}

/// The recorded second event with as many tokens as it would have, and then the recorded end.
fn long_sglang(recorded: &str, cumulative: bool) -> Vec<Vec<u8>> {
    let event = recorded.split_inclusive("\n\n").nth(1).expect("a second event");
    let at = |total: usize| {
        let ids = vec!["1234"; if cumulative { total } else { 1 }].join(",");
        let text = " word".repeat(if cumulative { total } else { 1 });
        let event = event.replace("[1072,542]", &format!("[{ids}]")).replace("gist *", &text);
        let mut event =
            event.replace("\"completion_tokens\":2", &format!("\"completion_tokens\":{total}"));
        if total == 1000 {
            event = event.replace("\"finish_reason\":null", r#""finish_reason":{"type":"length"}"#);
        }
        event.into_bytes()
    };
    (1..=1000).map(at).collect()
}

fn read(kind: Kind, events: &[Vec<u8>]) -> usize {
    let ask = Ask {
        id: "bench".into(),
        tokens: [1, 2, 3].into(),
        sampling: Sampling::neutral().into(),
        cache_salt: None,
        lora: None,
        priority: 0,
        rank: None,
        trace: None,
        kv_hint: None,
        hand: Hand::Whole,
    };
    let deltas = replay(kind, &ask, events.iter().map(Vec::as_slice)).expect("a whole answer");
    deltas.iter().map(|delta| delta.tokens.len()).sum()
}

fn measure(work: impl Fn() -> usize) -> Duration {
    let start = Instant::now();
    let mut runs = 0;
    while start.elapsed() < ENOUGH {
        black_box(work());
        runs += 1;
    }
    start.elapsed() / runs
}
