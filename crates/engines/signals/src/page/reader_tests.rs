use super::*;
use crate::page::{EngineSpecs, builtin};

const VLLM_DP: &str = include_str!("../../fixtures/vllm-0.32.0-dp.txt");
const VLLM_LORA: &str = include_str!("../../fixtures/vllm-0.32.0-lora.txt");
const SGLANG: &str = include_str!("../../fixtures/sglang-0.5.23-priorities.txt");

fn reader(engine: &str) -> Reader {
    let known = builtin().into_iter().find(|(name, _)| *name == engine);
    Reader::new(Arc::new(known.expect("it is known").1))
}

#[track_caller]
fn check(engine: &str, page: &str, expected: PageLoad) {
    assert_eq!(reader(engine).read(page.as_bytes()), Ok(&expected));
}

fn load(waiting: u32, running: u32, kv_usage: f64) -> PageLoad {
    PageLoad { waiting, running, kv_usage, ..PageLoad::default() }
}

fn cache(block_size: u32, blocks: u32) -> Option<CacheSize> {
    Some(CacheSize { block_size, blocks })
}

#[test]
fn ranks_of_one_vllm_are_summed_and_their_usage_averaged() {
    let page = VLLM_DP
        .replace("running{engine=\"0\",model_name=\"tiny\"} 0.0", "running{engine=\"0\"} 3.0")
        .replace("running{engine=\"1\",model_name=\"tiny\"} 0.0", "running{engine=\"1\"} 4.0")
        .replace(
            "usage_perc{engine=\"1\",model_name=\"tiny\"} 0.0",
            "usage_perc{engine=\"1\"} 0.5",
        );
    check("vllm", &page, PageLoad { cache: cache(32, 4096), ..load(0, 7, 0.25) });
}

#[test]
fn the_newest_lora_series_counts() {
    let mut reader = reader("vllm");
    let read = |reader: &mut Reader, page: &str| {
        reader.read(page.as_bytes()).expect("all is there").adapters.clone()
    };
    let idle = Adapters { max: 2, ..Adapters::default() };
    assert_eq!(read(&mut reader, VLLM_LORA), Some(idle.clone()));
    let later = VLLM_LORA.replace("1.7951756194984841e+09", "1.7951756295e+09");
    let style = vec!["style-a".to_owned()];
    let busy = Adapters { max: 2, running: style.clone(), waiting: style };
    assert_eq!(read(&mut reader, &later), Some(busy.clone()));
    // A page without them says nothing new, and those after it are not looked at for a while.
    assert_eq!(read(&mut reader, VLLM_DP), Some(busy.clone()));
    let after = (0..SELDOM_PAGES).map(|_| read(&mut reader, VLLM_LORA)).position(|found| {
        assert!(found == Some(busy.clone()) || found == Some(idle.clone()));
        found == Some(idle.clone())
    });
    assert_eq!(after, Some(SELDOM_PAGES as usize - 3), "the third page was the last without");
}

#[test]
fn a_cache_of_another_size_is_seen_within_twenty_pages() {
    let mut reader = reader("vllm");
    let resized = VLLM_DP.replace("num_gpu_blocks=\"4096\"", "num_gpu_blocks=\"8192\"");
    let mut read = |page: &str| reader.read(page.as_bytes()).expect("all is there").cache;
    assert_eq!(read(VLLM_DP), cache(32, 4096));
    let seen: Vec<_> = (0..SELDOM_PAGES).map(|_| read(&resized)).collect();
    assert_eq!(seen.first(), Some(&cache(32, 4096)));
    assert_eq!(seen.last(), Some(&cache(32, 8192)));
}

#[test]
fn one_rank_that_is_awake_is_enough() {
    let load = "vllm:num_requests_waiting 0\nvllm:num_requests_running 1\n\
        vllm:kv_cache_usage_perc 0\n";
    let check = |states: &str, awake: bool| {
        let mut reader = reader("vllm");
        let page = format!("{load}{states}");
        reader.read(page.as_bytes()).expect("all is there");
        assert_eq!(reader.is_awake(), awake, "{states}");
    };
    let state = |rank: u8, awake: u8| {
        let name = "vllm:engine_sleep_state";
        format!("{name}{{engine=\"{rank}\",sleep_state=\"awake\"}} {awake}\n")
    };
    check("", true);
    check(&state(0, 1), true);
    check(&state(0, 0), false);
    check(&(state(0, 1) + &state(1, 0)), true);
    check(&(state(0, 0) + &state(1, 0)), false);
    check("vllm:engine_sleep_state{sleep_state=\"weights_offloaded\"} 0\n", true);
}

#[test]
fn another_name_counts_once_the_first_is_gone() {
    let mut reader = reader("vllm");
    let page = |usage: &str| {
        format!("vllm:num_requests_waiting 0\nvllm:num_requests_running 1\nvllm:{usage}\n")
    };
    let mut read =
        |usage: &str| reader.read(page(usage).as_bytes()).expect("all is there").kv_usage;
    assert_eq!(read("gpu_cache_usage_perc 0.25"), 0.25);
    assert_eq!(read("gpu_cache_usage_perc 0.5"), 0.5);
    assert_eq!(read("kv_cache_usage_perc 0.75"), 0.75);
    assert_eq!(read("gpu_cache_usage_perc 0.25"), 0.25);
}

#[test]
fn requests_with_a_priority_are_not_counted_twice() {
    let busy = |priority: &str, count: u32| {
        let labels = "engine_type=\"unified\",model_name=\"tiny\",moe_ep_rank=\"0\",pp_rank=\"0\"";
        let series =
            format!("sglang:num_running_reqs{{{labels},priority=\"{priority}\",tp_rank=\"0\"}}");
        (format!("{series} 0.0"), format!("{series} {count}.0"))
    };
    let (all, five) = busy("", 5);
    let (one, three) = busy("-9223372036854775808", 3);
    let page = SGLANG.replace(&all, &five).replace(&one, &three);
    check("sglang", &page, PageLoad { cache: cache(16, 512), ..load(0, 5, 0.02) });
}

#[test]
fn other_engines_are_read_by_their_names() {
    let triton = "nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\"} 2\n\
        nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\"} 3\n\
        nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 100\n\
        nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"} 64\n\
        nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.5\n";
    check("triton-tensorrt-llm", triton, PageLoad { cache: cache(64, 100), ..load(2, 3, 0.5) });
    let trtllm = "trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\n\
        trtllm_kv_cache_utilization 1.5\n";
    check("trtllm-serve", trtllm, load(1, 2, 1.0));
    let triton = "nv_inference_pending_request_count 4\nnv_inference_exec_count 9\n";
    check("triton", triton, load(4, 9, 0.0));
    let old = "vllm:num_requests_waiting 0\nvllm:num_requests_running 1\n\
        vllm:gpu_cache_usage_perc 0.25\n";
    check("vllm", old, load(0, 1, 0.25));
}

#[test]
fn a_configured_engine_is_read_by_its_specifications() {
    let specs =
        EngineSpecs { waiting: "q{kind=wait}", running: "q{kind=run}", ..EngineSpecs::default() };
    let mut reader = Reader::new(Arc::new(specs.mapping().expect("specifications")));
    let page = b"q{kind=\"wait\"} 1\nq{kind=\"run\"} 2\n";
    assert_eq!(reader.read(page), Ok(&load(1, 2, 0.0)));
    assert!(EngineSpecs { lora: "{", ..specs }.mapping().is_err());
}

#[test]
fn a_page_that_lacks_what_is_needed_is_no_report() {
    let mut reader = reader("vllm");
    let incomplete = |page: &str, reader: &mut Reader| {
        reader.read(page.as_bytes()).expect_err("something is missing").0
    };
    assert_eq!(incomplete("", &mut reader), "waiting requests");
    assert_eq!(incomplete("vllm:num_requests_waiting 1\n", &mut reader), "running requests");
    let nan = "vllm:num_requests_waiting 1\nvllm:num_requests_running 1\n\
        vllm:kv_cache_usage_perc NaN\n";
    assert_eq!(incomplete(nan, &mut reader), "KV usage");
}
