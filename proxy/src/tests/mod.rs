//! The whole proxy over scripted agents: who is asked, and what exactly they are told.

pub(crate) mod bed;
mod probes;
mod tenants;

use bed::Bed;
use serde_json::{Value, json};
use stator_protos::discovery::{ProfileRecord, Role};
use stator_protos::header;
use stator_protos::worker::{PrefillPeer, Submit};
use std::sync::Arc;

const HANDOVER: &str = r#"{"connector":"NixlConnector"}"#;

fn role(role: Role) -> ProfileRecord {
    let handover = (role == Role::Prefill).then(|| HANDOVER.to_owned());
    ProfileRecord { role, handover, ..ProfileRecord::default() }
}

fn with_adapters(adapters: &[&str]) -> ProfileRecord {
    let adapters = adapters.iter().copied().map(str::to_owned).collect();
    ProfileRecord { adapters, ..ProfileRecord::default() }
}

fn labelled(label: &str) -> ProfileRecord {
    ProfileRecord { labels: vec![label.into()], ..ProfileRecord::default() }
}

/// A prompt of 40 tokens, with what a test adds.
fn request(members: Value) -> Value {
    let mut body = json!({"model": "m", "prompt": vec![1; 40], "max_tokens": 2, "seed": 5});
    let more = members.as_object().expect("members of an object").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

/// What an agent is told whichever request it was.
fn told(submit: Submit) -> Submit {
    Submit { request_id: 0, client_request_id: String::new(), ..submit }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_send_for_engines_never_reaches_an_agent() {
    let mut bed = Bed::start(&[]).await;
    let agent = bed.agent(ProfileRecord::default()).await;
    bed.until_workers(1).await;
    assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
    let plain: Vec<_> = agent.asked().into_iter().map(told).collect();
    assert_eq!(plain.len(), 1);

    for field in [
        "kv_transfer_params",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "disaggregated_params",
        "data_parallel_rank",
        "routed_dp_rank",
        "disagg_prefill_dp_rank",
        "session_params",
        "vllm_xargs",
        "prefill",
        "worker_id",
        "rank",
        "lora_path",
    ] {
        for value in
            [json!({"do_remote_prefill": true, "x": "hostile"}), json!(7), json!("hostile")]
        {
            let body = request(json!({ field: value }));
            let (status, answer) = bed.complete(&body, "").await;
            assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)));
            assert!(agent.asked().is_empty(), "{field}");
        }
    }
    for pin in [
        "backend_instance_id",
        "prefill_worker_id",
        "decode_worker_id",
        "dp_rank",
        "prefill_dp_rank",
    ] {
        for value in [0, 9] {
            let body = request(json!({ "nvext": { pin: value } }));
            let (status, answer) = bed.complete(&body, "").await;
            let param = json!(format!("nvext.{pin}"));
            assert_eq!((status, &answer["error"]["param"]), (400, &param));
            assert!(agent.asked().is_empty(), "{pin}");
        }
        let body = request(json!({ "nvext": { pin: null } }));
        assert_eq!(bed.complete(&body, "").await.0, 200);
        assert_eq!(agent.asked().into_iter().map(told).collect::<Vec<_>>(), plain, "{pin}");
    }

    let own = ["x-stator-worker-id", "x-stator-prefill", "x-stator-anything"];
    for name in header::ROUTING.into_iter().chain(own) {
        let line = format!("{name}: hostile\r\n");
        assert_eq!(bed.complete(&request(json!({})), &line).await.0, 200, "{name}");
        let asked: Vec<_> = agent.asked().into_iter().map(told).collect();
        assert_eq!(asked, plain, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_goes_to_the_worker_that_it_names_or_to_nobody() {
    let mut bed = Bed::start(&["--router-pins"]).await;
    let first = bed.agent(ProfileRecord::default()).await;
    let second = bed.agent(ProfileRecord::default()).await;
    bed.until_workers(2).await;
    let counts = || (first.asked().len(), second.asked().len());
    for _ in 0..3 {
        let line = "x-dynamo-worker-instance-id: 2\r\n";
        assert_eq!(bed.complete(&request(json!({})), line).await.0, 200);
    }
    assert_eq!(counts(), (0, 3));
    let line = "x-stator-worker-id: 0000000000000001\r\n";
    assert_eq!(bed.complete(&request(json!({})), line).await.0, 200);
    assert_eq!(counts(), (1, 0));
    for (line, status) in [
        ("x-worker-instance-id: 9\r\n", 503),
        ("x-worker-instance-id: 2\r\nx-dp-rank: 1\r\n", 503),
        ("x-worker-instance-id: two\r\n", 400),
    ] {
        assert_eq!(bed.complete(&request(json!({})), line).await.0, status, "{line}");
    }
    assert_eq!(counts(), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_is_given_to_a_worker_for_prompts() {
    let mut bed = Bed::start(&["--router-split=always"]).await;
    let prefill = bed.agent(role(Role::Prefill)).await;
    let decode = bed.agent(role(Role::Decode)).await;
    bed.until_workers(2).await;
    assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
    let [submit] = decode.asked().try_into().expect("one request");
    let peer = PrefillPeer {
        endpoint: prefill.record.endpoint.clone(),
        worker_id: 1,
        rank: 0,
        handover_json: HANDOVER.into(),
    };
    assert_eq!((submit.worker_id, submit.prefill), (2, Some(peer)));
    assert_eq!(prefill.asked(), []);
    bed.until_metric("stator_proxy_prompts_split_total 1").await;
    // Several choices of a prompt cannot share what is handed over once.
    assert_eq!(bed.complete(&request(json!({"n": 2})), "").await.0, 200);
    assert!(decode.asked().iter().all(|submit| submit.prefill.is_none()));
    bed.until_metric("stator_proxy_prompts_whole_total{reason=\"choices\"} 1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_help_the_worker_that_answers_computes_the_prompt_and_it_is_said_why() {
    let mut bed = Bed::start(&["--router-split=always"]).await;
    let decode = bed.agent(role(Role::Decode)).await;
    bed.until_workers(1).await;
    let count = |reason: &str, count: u32| {
        format!("stator_proxy_prompts_whole_total{{reason=\"{reason}\"}} {count}")
    };
    assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
    bed.until_metric(&count("no_prefill_worker", 1)).await;

    let mute = ProfileRecord { handover: None, ..role(Role::Prefill) };
    let mut prefill = bed.agent(mute).await;
    bed.until_metric("stator_fleet_agents 2").await;
    // Its record is known; whoever is asked now knows why it is of no use.
    let mut asked = 0;
    while !bed.metrics().await.contains(&count("no_handover", 1)) {
        assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
        asked += 1;
        assert!(asked < 10_000, "the agent is never known");
    }

    prefill.record.profile.handover = Some(HANDOVER.into());
    bed.show(&prefill.record);
    bed.until_workers(2).await;
    decode.asked();
    assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
    assert!(decode.asked()[0].prefill.is_some());

    // It drains: there is a worker for prompts, and none that takes any.
    prefill.record.accepting = false;
    bed.show(&prefill.record);
    bed.until_workers(1).await;
    assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
    assert!(decode.asked()[0].prefill.is_none());
    bed.withdraw(&prefill.record);
    bed.until_metric("stator_fleet_agents 1").await;
    assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_becomes_one_for_prompts_answers_no_more() {
    let mut bed = Bed::start(&["--router-split=always", "--worker-wait-ms=10"]).await;
    let mut agent = bed.agent(ProfileRecord::default()).await;
    bed.until_workers(1).await;
    assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
    agent.record.profile = ProfileRecord { handover: None, ..role(Role::Prefill) };
    bed.show(&agent.record);
    bed.until_workers(0).await;
    agent.asked();
    let (status, answer) = bed.complete(&request(json!({})), "").await;
    assert_eq!(status, 503, "{answer}");
    assert_eq!(agent.asked(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_way_of_the_kv_takes_is_learnt() {
    let mut bed = Bed::start(&["--router-split=always"]).await;
    let _prefill = bed.agent(role(Role::Prefill)).await;
    let decode = bed.agent(role(Role::Decode)).await;
    bed.until_workers(2).await;
    // Where nobody can tell, nothing is learnt.
    assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
    decode.set_transfer(250_000);
    assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
    bed.until_metric("stator_proxy_kv_transfer_duration_seconds_count 1").await;
    bed.until_metric("stator_proxy_kv_transfer_duration_seconds_sum 0.25").await;
    // What the worker computed itself has no way.
    assert_eq!(bed.complete(&request(json!({"n": 2})), "").await.0, 200);
    bed.until_metric("stator_proxy_prompts_whole_total{reason=\"choices\"} 1").await;
    bed.until_metric("stator_proxy_kv_transfer_duration_seconds_count 1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_failed_a_prompt_is_left_alone_for_a_moment() {
    let mut bed = Bed::start(&["--router-split=always"]).await;
    let _prefill = bed.agent(role(Role::Prefill)).await;
    let decode = bed.agent(role(Role::Decode)).await;
    bed.until_workers(2).await;
    decode.fail_prefills();
    let alone = "stator_proxy_prompts_whole_total{reason=\"no_prefill_worker\"}";
    let mut asked = 0;
    // The moment may be over before the next request is there.
    while !bed.metrics().await.contains(alone) {
        assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
        asked += 1;
        assert!(asked < 1000, "it is asked again and again");
    }
}

/// A decode worker that computes no prompts.
fn half() -> ProfileRecord {
    ProfileRecord { needs_prefill: true, ..role(Role::Decode) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_computes_no_prompts_is_sent_none_alone() {
    let mut bed = Bed::start(&["--router-split=never", "--worker-wait-ms=10"]).await;
    let decode = bed.agent(half()).await;
    bed.until_workers(1).await;
    let (status, answer) = bed.complete(&request(json!({})), "").await;
    assert_eq!((status, answer["error"]["code"].as_str()), (503, Some("service_unavailable")));
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.starts_with("no worker took the request within "), "{message}");

    // Whatever the policy is, with two it is shared, one token too.
    let prefill = bed.agent(role(Role::Prefill)).await;
    bed.until_workers(2).await;
    for more in [json!({}), json!({"max_tokens": 1})] {
        assert_eq!(bed.complete(&request(more), "").await.0, 200);
        let [submit] = decode.asked().try_into().expect("one request");
        let peer = submit.prefill.expect("a prefill worker");
        assert_eq!(peer.endpoint, prefill.record.endpoint);
    }
    let (status, answer) = bed.complete(&request(json!({"n": 2})), "").await;
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(status == 503 && message.contains("several choices"), "{status} {message}");

    let whole = bed.agent(ProfileRecord::default()).await;
    bed.until_workers(3).await;
    for more in [json!({}), json!({"max_tokens": 1}), json!({"n": 2})] {
        assert_eq!(bed.complete(&request(more), "").await.0, 200);
    }
    assert_eq!((whole.asked().len(), decode.asked().len()), (3, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_prompt_comes_the_same_worker_gets_one_of_another() {
    let mut bed = Bed::start(&["--router-split=always"]).await;
    let _prefills = [bed.agent(role(Role::Prefill)).await, bed.agent(role(Role::Prefill)).await];
    let decode = bed.agent(half()).await;
    bed.until_workers(3).await;
    decode.hear_nothing_of(1);
    let mut asked = Vec::new();
    let by = |submit: &Submit| submit.prefill.as_ref().expect("a prefill worker").worker_id;
    while asked.iter().all(|submit| by(submit) != 1) {
        let (status, answer) = bed.complete(&request(json!({})), "").await;
        assert_eq!(status, 200, "{answer}");
        asked.extend(decode.asked());
        assert!(asked.len() < 1000, "one of them is never named");
    }
    let [.., first, again] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((by(first), by(again)), (1, 2));
    assert_eq!(first.token_ids, again.token_ids);

    // Where neither helps, that is said.
    let mut bed = Bed::start(&["--router-split=always"]).await;
    let _prefill = bed.agent(role(Role::Prefill)).await;
    let decode = bed.agent(half()).await;
    bed.until_workers(2).await;
    decode.hear_nothing_of(1);
    let (status, answer) = bed.complete(&request(json!({})), "").await;
    assert_eq!((status, answer["error"]["code"].as_str()), (503, Some("service_unavailable")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_goes_on_elsewhere_is_helped_again() {
    let mut bed = Bed::start(&["--router-split=always"]).await;
    let _prefill = bed.agent(role(Role::Prefill)).await;
    let decodes = [bed.agent(role(Role::Decode)).await, bed.agent(role(Role::Decode)).await];
    bed.until_workers(3).await;
    decodes[0].fail(1);
    let mut asked = Vec::new();
    while asked.iter().all(|submit: &Submit| submit.resumed_tokens == 0) {
        let (status, answer) = bed.complete(&request(json!({})), "").await;
        assert_eq!(status, 200, "{answer}");
        asked.extend(decodes.iter().flat_map(|decode| decode.asked()));
        assert!(asked.len() < 1000, "it never goes on elsewhere");
    }
    // The token that came before the failure is not computed again.
    let resumed = asked.iter().find(|submit| submit.resumed_tokens == 1);
    assert_eq!(resumed.expect("it goes on").token_ids.len(), 41);
    assert!(asked.iter().all(|submit| submit.prefill.is_some()));
    bed.until_metric(&format!("stator_proxy_prompts_split_total {}", asked.len())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_waits_for_a_worker_does_not_keep_the_others_of_its_request() {
    let mut bed = Bed::start(&["--active-requests-threshold=1"]).await;
    let failing = bed.agent(ProfileRecord::default()).await;
    let held = bed.agent(ProfileRecord::default()).await;
    bed.until_workers(2).await;
    failing.fail(1);
    held.hold();
    let both = request(json!({"prompt": [[1, 2, 3], [4, 5, 6]]}));
    let answered = async {
        let (status, answer) = bed.complete(&both, "").await;
        assert_eq!((status, answer["choices"].as_array().map(Vec::len)), (200, Some(2)));
    };
    let resumed = async {
        // The prompt of the worker that failed waits for the other worker, which has the other
        // prompt.
        bed.until_metric("stator_proxy_requests_waiting 1").await;
        held.resume();
    };
    tokio::join!(answered, resumed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_is_a_model_that_runs_where_it_is_loaded() {
    let mut bed = Bed::start(&["--model-linger-s=0"]).await;
    let plain = bed.agent(ProfileRecord::default()).await;
    let mut tuned = bed.agent(with_adapters(&["style-a"])).await;
    bed.until_workers(2).await;
    for _ in 0..8 {
        let (status, answer) = bed.complete(&request(json!({"model": "style-a"})), "").await;
        assert_eq!((status, answer["model"].as_str()), (200, Some("style-a")));
    }
    assert_eq!(plain.asked(), []);
    let asked = tuned.asked();
    assert!(asked.len() == 8 && asked.iter().all(|submit| submit.lora_name == "style-a"));
    assert_eq!(bed.complete(&request(json!({})), "").await.0, 200);
    let asked = plain.asked().into_iter().chain(tuned.asked());
    assert_eq!(asked.map(|submit| submit.lora_name).collect::<Vec<_>>(), [""]);

    let (_, listed) = bed.get("/v1/models").await;
    let listed: Vec<_> = listed["data"].as_array().expect("a list").iter().collect();
    let shown: Vec<_> = listed.iter().map(|one| (&one["id"], &one["parent"])).collect();
    assert_eq!(shown, [(&json!("m"), &json!(null)), (&json!("style-a"), &json!("m"))]);
    assert_eq!(bed.get("/v1/models/style-a").await.1["parent"], json!("m"));

    // Another one takes its place.
    tuned.record.profile = with_adapters(&["style-b"]);
    bed.show(&tuned.record);
    bed.until_listed("style-b").await;
    assert_eq!(bed.complete(&request(json!({"model": "style-a"})), "").await.0, 404);
    assert_eq!(bed.complete(&request(json!({"model": "style-b"})), "").await.0, 200);
    bed.withdraw(&tuned.record);
    bed.until_workers(1).await;
    assert_eq!(bed.get("/v1/models/style-b").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_whose_workers_are_away_is_still_known() {
    let mut bed = Bed::start(&["--worker-wait-ms=10"]).await;
    let _plain = bed.agent(ProfileRecord::default()).await;
    let tuned = bed.agent(with_adapters(&["style-a"])).await;
    bed.until_workers(2).await;
    bed.withdraw(&tuned.record);
    bed.until_workers(1).await;
    assert_eq!(bed.get("/v1/models/style-a").await.0, 200);
    let request = request(json!({"model": "style-a"}));
    assert_eq!(bed.complete(&request, "").await.0, 503, "it waits, in vain");
    bed.show(&tuned.record);
    bed.until_workers(2).await;
    assert_eq!(bed.complete(&request, "").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_choose_the_worker() {
    let mut bed = Bed::start(&[]).await;
    let agents = [bed.agent(labelled("pool=a")).await, bed.agent(labelled("pool=b")).await];
    bed.until_workers(2).await;
    let served = || agents.each_ref().map(|agent| agent.asked().len());
    for (label, expected) in [("pool=a", [4, 0]), ("pool=b", [0, 4])] {
        for _ in 0..2 {
            let line = format!("x-stator-labels: {label}\r\n");
            assert_eq!(bed.complete(&request(json!({})), &line).await.0, 200);
            let constraints = json!({"routing_constraints": {"required_taints": [label]}});
            let body = request(json!({ "nvext": constraints }));
            assert_eq!(bed.complete(&body, "").await.0, 200);
        }
        assert_eq!(served(), expected);
    }
    let line = "x-stator-labels: pool=c\r\n";
    let (status, answer) = bed.complete(&request(json!({})), line).await;
    let message = answer["error"]["message"].as_str();
    assert_eq!((status, message), (503, Some("no worker has the label \"pool=c\" now")));
    assert_eq!(bed.complete(&request(json!({})), "x-stator-labels: ,\r\n").await.0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn priorities_reach_the_agent_within_their_limit() {
    let mut bed = Bed::start(&["--priority-max=10"]).await;
    let agent = bed.agent(ProfileRecord::default()).await;
    bed.until_workers(1).await;
    for (members, expected) in [
        (json!({}), 0),
        (json!({"priority": 3}), -3),
        (json!({"nvext": {"agent_hints": {"priority": 3}}}), 3),
        (json!({"nvext": {"agent_hints": {"priority": 11}}}), 10),
        (json!({"nvext": {"agent_hints": {"priority": 3, "strict_priority": 4}}}), 4),
    ] {
        assert_eq!(bed.complete(&request(members), "").await.0, 200);
        let asked = agent.asked();
        assert_eq!(asked.iter().map(|submit| submit.priority).collect::<Vec<_>>(), [expected]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_urgent_requests_leave_the_queue_first() {
    let mut bed = Bed::start(&["--active-requests-threshold=1"]).await;
    let agent = bed.agent(ProfileRecord::default()).await;
    bed.until_workers(1).await;
    agent.hold();
    let bed = Arc::new(bed);
    let send = |body: Value| {
        let bed = bed.clone();
        tokio::spawn(async move { bed.complete(&request(body), "").await.0 })
    };
    let first = send(json!({"max_tokens": 1}));
    agent.until_asked().await;
    let late = send(json!({"max_tokens": 2, "priority": 5}));
    bed.until_metric("stator_proxy_requests_waiting 1").await;
    let usual = send(json!({"max_tokens": 3}));
    bed.until_metric("stator_proxy_requests_waiting 2").await;
    let soon = send(json!({"max_tokens": 4, "nvext": {"agent_hints": {"priority": 5}}}));
    bed.until_metric("stator_proxy_requests_waiting 3").await;
    agent.resume();
    for sent in [first, late, usual, soon] {
        assert_eq!(sent.await.expect("it is answered"), 200);
    }
    let order = agent.asked().into_iter().map(|submit| submit.sampling.expect("it is set"));
    assert_eq!(order.map(|sampling| sampling.max_tokens).collect::<Vec<_>>(), [1, 4, 3, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_makes_room_for_the_more_urgent_where_it_may() {
    let flags = ["--active-requests-threshold=1", "--queue-max-requests=1", "--queue-displace"];
    let mut bed = Bed::start(&flags).await;
    let agent = bed.agent(ProfileRecord::default()).await;
    bed.until_workers(1).await;
    agent.hold();
    let bed = Arc::new(bed);
    let send = |priority: i32| {
        let bed = bed.clone();
        let body = request(json!({"max_tokens": 1, "priority": -priority}));
        tokio::spawn(async move { bed.complete(&body, "").await.0 })
    };
    let running = send(0);
    agent.until_asked().await;
    let usual = send(0);
    bed.until_metric("stator_proxy_requests_waiting 1").await;
    assert_eq!(send(0).await.expect("it is answered"), 429);
    let soon = send(1);
    assert_eq!(usual.await.expect("it is answered"), 503);
    bed.until_metric("stator_proxy_queue_evicted_requests_total{reason=\"displaced\"} 1").await;
    let refused = "stator_proxy_queue_refused_requests_total{reason=\"band-requests\"} 1";
    bed.until_metric(refused).await;
    agent.resume();
    for sent in [running, soon] {
        assert_eq!(sent.await.expect("it is answered"), 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_wait_as_long_and_leave_as_soon_as_their_headers_say() {
    let mut bed = Bed::start(&["--active-requests-threshold=1", "--queue-ordering=slo"]).await;
    let agent = bed.agent(ProfileRecord::default()).await;
    bed.until_workers(1).await;
    agent.hold();
    let bed = Arc::new(bed);
    let send = |max_tokens: u32, header: &'static str| {
        let bed = bed.clone();
        let body = request(json!({ "max_tokens": max_tokens }));
        tokio::spawn(async move { bed.complete(&body, header).await.0 })
    };
    let first = send(1, "");
    agent.until_asked().await;
    assert_eq!(send(9, "x-llm-d-inference-ttl: 1ms\r\n").await.expect("it is answered"), 503);
    let late = send(2, "x-llm-d-slo-ttft-ms: 90000\r\n");
    bed.until_metric("stator_proxy_requests_waiting 1").await;
    let soon = send(3, "x-llm-d-slo-ttft-ms: 500\r\n");
    bed.until_metric("stator_proxy_requests_waiting 2").await;
    agent.resume();
    for sent in [first, late, soon] {
        assert_eq!(sent.await.expect("it is answered"), 200);
    }
    let order = agent.asked().into_iter().map(|submit| submit.sampling.expect("it is set"));
    assert_eq!(order.map(|sampling| sampling.max_tokens).collect::<Vec<_>>(), [1, 3, 2]);
}
