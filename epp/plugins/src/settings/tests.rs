use super::*;
use crate::BuildContext;
use crate::build;
use crate::testing::check_errors;
use serde_json::{Value, json};
use stator_epp_scheduler::{InFlight, LabelSelector, Prompt, Request, TierWeights};
use std::time::Duration;

fn settings(type_name: &str, parameters: Value) -> PluginSettings {
    let mut context = BuildContext::new(vec!["default".to_owned()]);
    build(type_name, "it", &parameters, &mut context).expect("the parameters are right");
    context.settings.remove("it").expect("it leaves settings")
}

/// Asserts what settings look like when printed.
fn check(type_name: &str, parameters: Value, wanted: &PluginSettings) {
    assert_eq!(format!("{:?}", settings(type_name, parameters)), format!("{wanted:?}"));
}

#[test]
fn prompts_are_estimated_tokenized_or_rendered() {
    let media = MediaEstimate::default();
    check("token-producer", Value::Null, &PluginSettings::Tokens(Tokens::Estimate(media)));
    let fixed = json!({"estimate": {"image": {"mode": "static", "static": {"staticToken": 9}}}});
    let image = ImageEstimate::Static { tokens: 9 };
    let tokens = Tokens::Estimate(MediaEstimate { image, ..media });
    check("token-producer", fixed, &PluginSettings::Tokens(tokens));
    let local = Tokens::Model { name: "m".to_owned(), render: None };
    check("tokenizer", json!({"modelName": "m"}), &PluginSettings::Tokens(local));
    let PluginSettings::Tokens(Tokens::Model { render: Some(render), .. }) =
        settings("token-producer", json!({"modelName": "m", "vllm": {"timeout": "1s"}}))
    else {
        panic!("a server renders");
    };
    assert_eq!(render.url, "http://localhost:8000");
    assert_eq!(render.timeout, Duration::from_secs(1));
    assert_eq!(render.multimodal_timeout, Duration::from_secs(30));
    check_errors(
        "token-producer",
        json!({"estimate": {}, "vllm": {"url": "unix:x", "clientKeyPath": "k"}}),
        &[
            "vllm.clientCertPath: needs clientKeyPath, and the other way round",
            "vllm.url: \"unix:x\" does not begin with http:// or https://",
            "estimate: cannot be there together with modelName or vllm",
            "modelName: is required with vllm",
        ],
    );
}

#[test]
fn the_precise_index_has_defaults_and_takes_old_names() {
    let PluginSettings::Precise(precise) = settings("precise-prefix-cache-producer", Value::Null)
    else {
        panic!("it leaves settings of its own");
    };
    assert_eq!(
        (precise.block_size, precise.max_blocks, precise.speculative_ttl),
        (None, None, None)
    );
    assert_eq!(precise.tier_weights, TierWeights::default());
    assert_eq!((precise.events.port, precise.events.topic_filter.as_str()), (5557, ""));
    assert!(precise.events.discover && precise.events.bind.is_none());
    let parameters = json!({
        "indexerConfig": {
            "tokenProcessorConfig": {"blockSize": 64, "hashSeed": "42"},
            "kvBlockIndexConfig": {"inMemoryConfig": {"size": 1000, "podCacheSize": 10}},
            "kvCacheBackendConfigs": [{"name": "GPU", "weight": 1}, {"name": "disk", "weight": 0.2}],
        },
        "kvEventsConfig": {"engineType": "sglang", "podDiscoveryConfig": {"replaySocketPort": 6000}},
        "speculativeIndexing": true,
    });
    let PluginSettings::Precise(precise) = settings("precise-prefix-cache-scorer", parameters)
    else {
        panic!("it leaves settings of its own");
    };
    assert_eq!((precise.block_size, precise.max_blocks), (Some(64), Some(1000)));
    assert_eq!(precise.tier_weights, TierWeights { disk: 0.2, ..TierWeights::default() });
    assert_eq!(precise.events.replay_port, Some(6000));
    assert_eq!(precise.speculative_ttl, Some(Duration::from_secs(2)));
}

#[test]
fn events_come_from_the_pods_that_are_meant() {
    let parameters = json!({
        "indexerConfig": {"kvBlockIndexConfig": {"costAwareMemoryConfig": {"size": "2MiB"}}},
        "kvEventsConfig": {
            "zmqEndpoint": "tcp://*:5557", "topicFilter": "kv@", "discoverPods": false,
            "podDiscoveryConfig": {"podLabelSelector": "tier!=test", "podNamespace": "models"},
        },
    });
    let PluginSettings::Precise(precise) = settings("precise-prefix-cache-producer", parameters)
    else {
        panic!("it leaves settings of its own");
    };
    assert_eq!(precise.max_blocks, Some((2 << 20) / 20));
    let KvEvents { bind, discover, topic_filter, pods, .. } = precise.events;
    assert_eq!((bind.as_deref(), discover), (Some("tcp://0.0.0.0:5557"), false));
    assert_eq!(topic_filter, "kv@");
    assert_eq!(pods.namespace.as_deref(), Some("models"));
    assert_eq!(Ok(pods.labels), LabelSelector::parse("tier notin (test)"));
    check_errors(
        "precise-prefix-cache-producer",
        json!({
            "indexerConfig": {"kvBlockIndexConfig": {"costAwareMemoryConfig": {"size": "2 elephants"}}},
            "kvEventsConfig": {
                "zmqEndpoint": "tcp://events:5557",
                "podDiscoveryConfig": {"podLabelSelector": "a in", "socketPort": 0},
            },
        }),
        &[
            "indexerConfig.kvBlockIndexConfig.costAwareMemoryConfig.size: \"2 elephants\" is not a \
             size such as \"2GiB\"",
            "kvEventsConfig.podDiscoveryConfig.podLabelSelector: \"a in\" is no part of a label \
             selector",
            "kvEventsConfig.podDiscoveryConfig.socketPort: 0 is not in 1..=65535",
            "kvEventsConfig.zmqEndpoint: \"tcp://events:5557\" is not tcp://ADDRESS:PORT to listen at",
        ],
    );
}

#[test]
fn output_counts_only_if_asked_and_within_limits() {
    let check = |parameters, wanted: u64| {
        let PluginSettings::InFlightLoad(load) = settings("inflight-load-producer", parameters)
        else {
            panic!("it leaves settings of its own");
        };
        let prompt = Prompt { tokens: 1000, ..Prompt::default() };
        let request = Request { prompt, max_output_tokens: Some(1200), ..Request::default() };
        assert_eq!(load.output_tokens(&request), wanted);
    };
    check(Value::Null, 0);
    check(json!({"addEstimatedOutputTokens": true}), 1200);
    check(json!({"addEstimatedOutputTokens": true, "outputRatio": 0.5}), 500);
    check(json!({"addEstimatedOutputTokens": true, "maxEstimatedOutputTokens": 100}), 100);
    let wanted = "outputRatio: -1 is less than 0";
    check_errors("inflight-load-producer", json!({"outputRatio": -1}), &[wanted]);
}

#[test]
fn fullness_goes_by_requests_tokens_or_both() {
    let check = |mode, wanted: f64| {
        let limits = Concurrency { mode, requests: 10, tokens: 100, headroom: 0.0 };
        assert_eq!(limits.fullness(InFlight { requests: 5, tokens: 80 }), wanted);
    };
    check(ConcurrencyMode::Requests, 0.5);
    check(ConcurrencyMode::Tokens, 0.8);
    check(ConcurrencyMode::Hybrid, 0.8);
}

#[test]
fn metrics_are_read_as_configured() {
    let PluginSettings::MetricsSource(source) =
        settings("metrics-data-source", json!({"port": 9400, "interval": "1s"}))
    else {
        panic!("it leaves settings of its own");
    };
    assert_eq!((source.path.as_str(), source.port), ("/metrics", Some(9400)));
    assert_eq!(source.interval, Some(Duration::from_secs(1)));
    assert!(source.insecure_skip_verify);
    let PluginSettings::MetricsExtractor(extractor) = settings(
        "core-metrics-extractor",
        json!({"defaultEngine": "mine", "engineConfigs": [
            {"name": "mine", "queuedRequestsSpec": "waiting{kind=all}"}]}),
    ) else {
        panic!("it leaves settings of its own");
    };
    assert_eq!(extractor.engine_label, None);
    assert_eq!(extractor.engines[0].waiting.as_deref(), Some("waiting{kind=all}"));
    check_errors(
        "models-data-source",
        json!({"path": "models", "scheme": "ftp", "clientCertPath": "c", "port": 70000}),
        &[
            "clientCertPath: needs clientKeyPath, and the other way round",
            "path: \"models\" does not begin with /",
            "port: 70000 is not in 0..=65535",
            "scheme: \"ftp\" is none of http, https",
        ],
    );
    check_errors(
        "core-metrics-extractor",
        json!({"defaultEngine": "other", "engineConfigs": [{"name": "a"}, {"name": "a"}, {}]}),
        &[
            "engineConfigs[2].name: is required",
            "defaultEngine: no engine is called \"other\"",
            "engineConfigs: engine \"a\" is there more than once",
        ],
    );
}

#[test]
fn an_image_is_estimated_by_its_pixels() {
    let estimate = ImageEstimate::default();
    let tokens = [None, Some(1024 * 1024), Some(7)].map(|pixels| estimate.tokens(pixels));
    assert_eq!(tokens, [225, 1024, 1]);
    assert_eq!(ImageEstimate::Static { tokens: 9 }.tokens(Some(1 << 20)), 9);
}

/// What `token-producer` with these parameters takes a video for.
fn video(parameters: Value, facts: VideoFacts) -> u64 {
    let estimate = json!({"estimate": {"video": parameters}});
    let PluginSettings::Tokens(Tokens::Estimate(media)) = settings("token-producer", estimate)
    else {
        panic!("nothing names a model");
    };
    media.video.tokens(facts)
}

#[test]
fn a_video_is_estimated_by_its_frames() {
    let told = VideoFacts { seconds: Some(7.5), fps: Some(30.0), pixels: Some(1024 * 10) };
    let unknown = VideoFacts::default();
    // Ten frames of 225 tokens, and seven of ten.
    assert_eq!(video(json!({}), unknown), 2250);
    assert_eq!(video(json!({}), told), 70);
    let pairs = json!({"frames": {"sampled": {"sampleFPS": 2, "temporalPatchSize": 2}}});
    assert_eq!(video(pairs, told), 80);
    let frame = json!({"mode": "static", "static": {"numTokensPerFrame": 66}});
    let strided = |more: Value| {
        let mut frames = json!({"mode": "strided", "strided": {"frameStride": 5}});
        frames.as_object_mut().expect("it is one").extend(more.as_object().expect("so").clone());
        json!({"tokensPerFrame": frame, "frames": frames, "defaultDuration": 5})
    };
    assert_eq!(video(strided(json!({})), unknown), 24 * 66);
    assert_eq!(video(strided(json!({})), told), 45 * 66);
    assert_eq!(video(strided(json!({"maxFrames": 32})), told), 32 * 66);
    assert_eq!(video(strided(json!({"minFrames": 100})), told), 100 * 66);
    assert_eq!(video(json!({"maxVideoTokens": 50}), told), 50);
    let none = VideoFacts { seconds: Some(0.1), ..told };
    assert_eq!(video(json!({}), none), 1);
    let endless = VideoFacts { seconds: Some(f64::MAX), pixels: Some(u64::MAX), ..told };
    assert_eq!(video(json!({}), endless), u64::MAX);
    check_errors(
        "token-producer",
        json!({"estimate": {"video": {"frames": {"mode": "all"}, "defaultDuration": 0}}}),
        &[
            "estimate.video.frames.mode: \"all\" is none of sampled, strided",
            "estimate.video.defaultDuration: 0 is not above 0",
        ],
    );
}

#[test]
fn policies_have_settings() {
    let limit = PluginSettings::UsageLimit(UsageLimit::Static { threshold: 0.9 });
    check("static-usage-limit-policy", json!({"threshold": 0.9}), &limit);
    let holdback = UsageLimit::PriorityHoldback {
        shape: HoldbackShape::Linear,
        by_value: true,
        min: 0.5,
        max: 1.0,
    };
    let parameters = json!({"minCeiling": 0.5, "domain": "value"});
    check("priority-holdback-policy", parameters, &PluginSettings::UsageLimit(holdback));
    let ordering = PluginSettings::Ordering(Ordering::EarliestDeadline);
    check("edf-ordering-policy", Value::Null, &ordering);
    let fairness = ProgramAware {
        service_weight: 0.8,
        head_wait_weight: 0.2,
        half_life: Duration::from_secs(30),
        idle_ttl: Duration::from_secs(3600),
    };
    let fairness = PluginSettings::Fairness(Fairness::ProgramAware(fairness));
    check("program-aware-fairness", json!({"lasHalfLifeSeconds": 30}), &fairness);
    // The old way to say it, which counts where the new one does not.
    let half_life = json!({"lasDecayFactor": 0.99994});
    let PluginSettings::Fairness(Fairness::ProgramAware(old)) =
        settings("program-aware-fairness", half_life)
    else {
        panic!("it is fairness by what each got");
    };
    assert!((old.half_life.as_secs_f64() - 30.0).abs() < 0.01, "{:?}", old.half_life);
    let both = json!({"lasDecayFactor": 0.5, "lasHalfLifeSeconds": 30});
    check("program-aware-fairness", both, &fairness);
    let turns = TurnPriority {
        turns_per_second: 0.5,
        inactivity: Duration::from_secs(86_400),
        idle_ttl: Duration::from_secs(3600),
    };
    check(
        "program-aware-fairness",
        json!({"strategy": "turn-priority", "turnPriorityTimeWeight": 0.5,
            "turnPriorityInactivitySeconds": 0}),
        &PluginSettings::Fairness(Fairness::TurnPriority(turns)),
    );
    let turns = PluginSettings::Fairness(Fairness::DeficitRoundRobin { quantum_tokens: 512 });
    check("deficit-round-robin-fairness-policy", json!({"quantumTokens": 512}), &turns);
    let counters = Fairness::VirtualTokens { input_weight: 1, output_weight: 4 };
    let parameters = json!({"outputWeight": 4});
    check("virtual-token-fairness-policy", parameters, &PluginSettings::Fairness(counters));
    let shortest = PluginSettings::Ordering(Ordering::ShortestPrompt { ageing_tokens_per_s: 1000 });
    check("shortest-prompt-ordering-policy", Value::Null, &shortest);
    check_errors(
        "priority-holdback-policy",
        json!({"maxCeiling": 2}),
        &["minCeiling: is required", "maxCeiling: 2 is not in 0..=1"],
    );
    check_errors(
        "priority-holdback-policy",
        json!({"minCeiling": 0.9, "maxCeiling": 0.5}),
        &["minCeiling: 0.9 is more than maxCeiling, 0.5"],
    );
    check_errors(
        "program-aware-fairness",
        json!({"strategy": "drr", "lasWeightService": -1, "evictionTtlSeconds": 0}),
        &[
            "strategy: \"drr\" is none of las, turn-priority",
            "lasWeightService: -1 is not in 0..=1000",
            "evictionTtlSeconds: 0 is not in 1..=86400",
        ],
    );
    check_errors(
        "deficit-round-robin-fairness-policy",
        json!({"quantumTokens": 0}),
        &["quantumTokens: 0 is not in 1..=4294967295"],
    );
    check_errors(
        "virtual-token-fairness-policy",
        json!({"inputWeight": 0, "outputWeight": 1001}),
        &["inputWeight: 0 is not in 1..=1000", "outputWeight: 1001 is not in 0..=1000"],
    );
    check_errors(
        "shortest-prompt-ordering-policy",
        json!({"ageingTokensPerSecond": "fast"}),
        &["ageingTokensPerSecond: \"fast\" is not a whole number"],
    );
    let wanted = "threshold: 0 is not above 0";
    check_errors("static-usage-limit-policy", json!({"threshold": 0}), &[wanted]);
}

#[test]
fn a_file_of_endpoints_has_a_path() {
    let discovery = FileDiscovery { path: "/e".to_owned(), watch: true };
    let parameters = json!({"path": "/e", "watchFile": true});
    check("file-discovery", parameters, &PluginSettings::FileDiscovery(discovery));
    check_errors("file-discovery", Value::Null, &["path: is required"]);
}
