use super::*;
use proptest::{collection::vec, prelude::*};
use stator_http::{Bearer, Origin};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const VLLM_DP: &str = include_str!("../../fixtures/vllm-0.32.0-dp.txt");
const VLLM_LORA: &str = include_str!("../../fixtures/vllm-0.32.0-lora.txt");
const VLLM_SLEEP: &str = include_str!("../../fixtures/vllm-0.32.0-sleep.txt");
const SGLANG: &str = include_str!("../../fixtures/sglang-0.5.23-priorities.txt");
const SGLANG_DP: &str = include_str!("../../fixtures/sglang-0.5.23-dp.txt");

fn reports(engine: Engine, page: &str) -> Vec<EngineReport> {
    let mut reports = vec![EngineReport { rank: 99, ..EngineReport::default() }];
    read(engine, page.as_bytes(), &mut reports);
    reports
}

#[track_caller]
fn check(engine: Engine, page: &str, expected: &[EngineReport]) {
    assert_eq!(reports(engine, page), expected);
}

/// A rank on which nothing runs.
fn idle(rank: u16, (block_size, total_blocks): (u32, u32)) -> EngineReport {
    EngineReport {
        rank,
        running: Some(0),
        waiting: Some(0),
        kv_usage: Some(0.0),
        block_size: Some(block_size),
        total_blocks: Some(total_blocks),
        ..EngineReport::default()
    }
}

/// One of vLLM, which tells of all counters from the start.
fn vllm(rank: u16, prompt: u64, (hits, generation, steps): (u64, u64, u64)) -> EngineReport {
    EngineReport {
        prefix_queries: Some(prompt),
        prefix_hits: Some(hits),
        prompt_tokens: Some(prompt),
        generation_tokens: Some(generation),
        preemptions: Some(0),
        steps: Some(steps),
        sleep: Some(Sleep::Awake),
        ..idle(rank, (32, 2048))
    }
}

#[test]
fn each_rank_of_vllm_has_its_share_of_the_blocks() {
    let gaps = |seconds, report| EngineReport {
        token_gaps: Some(1),
        token_gaps_s: Some(seconds),
        ..report
    };
    let ranks = [
        gaps(0.007254236000335368, vllm(0, 100, (0, 2, 2))),
        gaps(0.007342345000324713, vllm(1, 100, (0, 2, 2))),
    ];
    check(Engine::Vllm, VLLM_DP, &ranks);
    let busy = VLLM_DP
        .replace("running{engine=\"1\",model_name=\"tiny\"} 0.0", "running{engine=\"1\"} 3.0")
        .replace("waiting{engine=\"0\",model_name=\"tiny\"} 0.0", "waiting{engine=\"0\"} 4.0");
    let [first, second] = ranks;
    let first = EngineReport { waiting: Some(4), ..first };
    check(Engine::Vllm, &busy, &[first, EngineReport { running: Some(3), ..second }]);
}

#[test]
fn what_a_vllm_counted_is_read() {
    let report = EngineReport {
        token_gaps: Some(6),
        token_gaps_s: Some(0.021483410999735497),
        ..vllm(0, 470, (96, 10, 10))
    };
    check(Engine::Vllm, VLLM_SLEEP, &[report]);
}

#[test]
fn a_step_is_as_long_as_the_engine_says_or_its_requests_saw() {
    let report = |steps: (u64, f64), gaps: (u64, f64)| EngineReport {
        steps: Some(steps.0),
        steps_s: Some(steps.1),
        token_gaps: Some(gaps.0),
        token_gaps_s: Some(gaps.1),
        ..EngineReport::default()
    };
    let before = report((10, 1.0), (100, 2.0));
    let timed = report((14, 3.0), (110, 2.5));
    assert_eq!(timed.step_s(&before), Some(0.5));
    let untimed = |report: &EngineReport| EngineReport { steps_s: None, ..report.clone() };
    assert_eq!(untimed(&timed).step_s(&untimed(&before)), Some(0.05));
    let last = EngineReport { last_step_s: Some(0.25), ..timed.clone() };
    assert_eq!(last.step_s(&before), Some(0.25));
    // Without a step there is no time of one, and an engine that began anew counts anew.
    assert_eq!(before.step_s(&before), None);
    assert_eq!(before.step_s(&timed), None);
    assert_eq!(timed.step_s(&EngineReport::default()), None);
}

#[test]
fn the_newest_adapters_count_and_are_all_ranks_own() {
    let adapters = |page: &str| {
        let reports = reports(Engine::Vllm, page);
        reports.into_iter().map(|report| report.adapters).collect::<Vec<_>>()
    };
    let idle = Adapters { max: 2, ..Adapters::default() };
    assert_eq!(adapters(VLLM_LORA), [Some(idle)]);
    let style = vec!["style-a".to_owned()];
    let busy = Adapters { max: 2, running: style.clone(), waiting: style };
    let later = VLLM_LORA.replace("1.7951756194984841e+09", "1.7951756295e+09");
    assert_eq!(adapters(&later), [Some(busy.clone())]);
    assert_eq!(adapters(&format!("{later}{VLLM_DP}")), [Some(busy.clone()), Some(busy)]);
}

#[test]
fn how_deep_a_vllm_sleeps_is_told() {
    let state = |awake: u8, offloaded: u8, discarded: u8| {
        let name = "vllm:engine_sleep_state{engine=\"0\",sleep_state=";
        let states = format!(
            "{name}\"awake\"}} {awake}\n{name}\"weights_offloaded\"}} {offloaded}\n\
            {name}\"discard_all\"}} {discarded}\n"
        );
        reports(Engine::Vllm, &states)[0].sleep
    };
    assert_eq!(state(1, 0, 0), Some(Sleep::Awake));
    assert_eq!(state(0, 1, 0), Some(Sleep::WeightsOffloaded));
    assert_eq!(state(0, 0, 1), Some(Sleep::Discarded));
    assert_eq!(reports(Engine::Vllm, "vllm:num_requests_running 1\n")[0].sleep, None);
}

#[test]
fn each_rank_of_sglang_counts_its_own_tokens() {
    let rank = |rank: u16, (prompt, generation, steps): (u64, u64, u64), steps_s: f64| {
        let report = idle(rank, (16, 512));
        EngineReport {
            kv_usage: Some(0.01),
            prefix_queries: Some(prompt),
            prefix_hits: Some(0),
            prompt_tokens: Some(prompt),
            generation_tokens: Some(generation),
            steps: Some(steps),
            steps_s: Some(steps_s),
            ..report
        }
    };
    // Four requests and three, each with a token that its prompt gave and no decode step.
    let ranks = [rank(0, (212, 15, 15), 0.238291205), rank(1, (211, 14, 14), 0.269797762)];
    check(Engine::Sglang, SGLANG_DP, &ranks);
}

#[test]
fn requests_with_a_priority_are_counted_once() {
    let report = EngineReport {
        kv_usage: Some(0.02),
        prefix_queries: Some(14721),
        prefix_hits: Some(1760),
        prompt_tokens: Some(14721),
        generation_tokens: Some(585),
        steps: Some(588),
        steps_s: Some(2.2521557580000002),
        ..idle(0, (16, 512))
    };
    check(Engine::Sglang, SGLANG, &[report]);
}

#[test]
fn ranks_within_a_rank_tell_the_same_thing_once() {
    let series = |name: &str, (dp, pp, tp): (u8, u8, u8), value: u8| {
        let labels = format!("dp_rank=\"{dp}\",pp_rank=\"{pp}\",tp_rank=\"{tp}\"");
        format!("sglang:{name}{{{labels}}} {value}\n")
    };
    let mut page = String::new();
    for (place, value) in [((1, 0, 3), 7), ((1, 0, 2), 7), ((0, 1, 0), 5), ((0, 0, 1), 5)] {
        page += &series("num_running_reqs", place, value);
    }
    page += "sglang:generation_tokens_total{is_streaming=\"true\"} 9\n";
    let running = |rank: u16, running: u32| EngineReport {
        rank,
        running: Some(running),
        ..EngineReport::default()
    };
    check(Engine::Sglang, &page, &[running(0, 5), running(1, 7)]);
}

#[test]
fn tensorrt_llm_is_read_by_its_names() {
    let labels = "{engine_type=\"trtllm\",model_name=\"m\"}";
    let values = [
        ("num_requests_running", "2.0"),
        ("num_requests_waiting", "1.0"),
        ("kv_cache_utilization", "0.625"),
        ("kv_cache_tokens_per_block", "32.0"),
        ("kv_cache_max_blocks", "1024.0"),
        ("prompt_tokens_total", "300.0"),
        ("prompt_cached_tokens_total", "96.0"),
        ("generation_tokens_total", "40.0"),
        ("iteration_latency_seconds", "0.0125"),
        ("request_success_total", "7.0"),
    ];
    let page: String =
        values.iter().map(|(name, value)| format!("trtllm_{name}{labels} {value}\n")).collect();
    let report = EngineReport {
        running: Some(2),
        waiting: Some(1),
        kv_usage: Some(0.625),
        prefix_queries: Some(300),
        prefix_hits: Some(96),
        prompt_tokens: Some(300),
        generation_tokens: Some(40),
        last_step_s: Some(0.0125),
        ..idle(0, (32, 1024))
    };
    check(Engine::TrtLlm, &page, &[report]);
    check(Engine::TrtLlm, VLLM_DP, &[]);
}

#[test]
fn hostile_lines_have_no_effect() {
    let page = "vllm:num_requests_running{engine=\"x\"} 1\n\
        vllm:num_requests_running{engine=\"70000\"} 1\n\
        vllm:num_requests_running{engine=\"0\"} NaN\n\
        vllm:num_requests_running{engine=\"0\" 3\n\
        vllm:num_requests_running_by_whom{engine=\"0\"} 3\n\
        vllm:num_requests_waiting{engine=\"0\"} -5\n\
        vllm:kv_cache_usage_perc{engine=\"0\"} 17\n\
        vllm:prompt_tokens_total{engine=\"0\"} 1e300\n";
    let report = EngineReport {
        waiting: Some(0),
        kv_usage: Some(1.0),
        prompt_tokens: Some(u64::MAX),
        ..EngineReport::default()
    };
    check(Engine::Vllm, page, &[report]);
    let many: String = (0..5000)
        .map(|rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 1\n"))
        .collect();
    assert_eq!(reports(Engine::Vllm, &many).len(), 1024);
}

/// Serves these answers, one after the other, each on the same connection.
async fn server(answers: Vec<String>) -> Origin {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        for answer in answers {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut request).await.expect("a request") > 0);
            }
            assert!(request.starts_with(b"GET /metrics HTTP/1.1\r\n"));
            let request = String::from_utf8(request).expect("ASCII");
            assert!(request.contains("\r\nauthorization: Bearer hush\r\n"), "{request}");
            stream.write_all(answer.as_bytes()).await.expect("answered");
        }
        std::future::pending::<()>().await;
    });
    Origin { host: "127.0.0.1".into(), port, tls: None }
}

fn answer(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn a_page_comes_with_its_reports_and_as_it_was() {
    let answers = vec![answer(200, VLLM_DP), answer(503, "no"), answer(200, VLLM_SLEEP)];
    let origin = server(answers).await;
    let (timeout, bearer) = (Duration::from_secs(20), Bearer::new("hush"));
    let settings = PollSettings { timeout, bearer, ..PollSettings::default() };
    let mut poller = Poller::new(Engine::Vllm, origin, "/metrics", settings);
    let page = poller.poll().await.expect("a page");
    assert_eq!((page.reports.len(), page.text), (2, VLLM_DP.as_bytes()));
    let refused = poller.poll().await.expect_err("no page");
    assert_eq!(refused.to_string(), "status 503, not 200");
    let page = poller.poll().await.expect("a page");
    assert_eq!((page.reports.len(), page.text), (1, VLLM_SLEEP.as_bytes()));
}

#[tokio::test]
async fn an_engine_that_does_not_answer_is_not_waited_for() {
    let origin = server(Vec::new()).await;
    let settings = PollSettings { timeout: Duration::from_millis(1), ..PollSettings::default() };
    let mut poller = Poller::new(Engine::Vllm, origin, "/metrics", settings);
    let error = poller.poll().await.expect_err("no page");
    assert_eq!(error.to_string(), "no page within 1ms");
}

proptest! {
    /// The order of a page's lines means nothing.
    #[test]
    fn lines_may_come_in_any_order(keys in vec(any::<u32>(), 412)) {
        for (engine, page) in [(Engine::Vllm, VLLM_DP), (Engine::Sglang, SGLANG)] {
            let mut lines: Vec<_> = page.lines().zip(keys.iter().cycle()).collect();
            lines.sort_by_key(|(_, key)| **key);
            let shuffled: String = lines.iter().map(|(line, _)| format!("{line}\n")).collect();
            prop_assert_eq!(reports(engine, &shuffled), reports(engine, page));
        }
    }

    #[test]
    fn arbitrary_pages_give_reports_within_bounds(
        lines in vec("(vllm|sglang):(num_requests_running|token_usage|cache_config_info|\
            kv_cache_usage_perc)\\{?[a-z_]{0,7}=?\"?[0-9]{0,6}\"?\\}? -?[0-9eN.+]{0,6}", 0..30),
        noise in vec(any::<u8>(), 0..60),
    ) {
        let page = [lines.join("\n").into_bytes(), noise].concat();
        for engine in [Engine::Vllm, Engine::Sglang, Engine::TrtLlm] {
            let mut reports = Vec::new();
            read(engine, &page, &mut reports);
            prop_assert!(reports.windows(2).all(|two| two[0].rank < two[1].rank));
            let usage = reports.iter().filter_map(|report| report.kv_usage);
            prop_assert!(usage.into_iter().all(|share| (0.0..=1.0).contains(&share)));
        }
    }
}
