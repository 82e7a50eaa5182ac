//! Placement and waiting of requests: the flags of the placement core and its queue.

use super::absence::AbsenceArgs;
use super::markup_args::MarkupArgs;
use super::splitting::SplitArgs;
use clap::{Args, ValueEnum};
use stator_placement::{
    Affinity, BusyThresholds, CostModel, IndexSettings, InvalidWeight, InvalidWeights, Mode,
    PlacementSettings, PredictionPolicy, SessionSettings, WeightSettings, Weights,
};
use stator_queue::{
    BandPolicy, BandSettings, Bounds, Fairness, InvalidSettings, Ordering, QueueSettings,
};
use std::time::Duration;

/// Sessions whose workers are remembered.
const SESSIONS_MAX: usize = 1_000_000;
/// Weight of a session's last worker in soft affinity.
const SESSION_WEIGHT: f64 = 1.0;

/// Placement and waiting of requests.
#[derive(Args, Clone, Debug)]
pub struct RouterArgs {
    /// Placement of requests.
    #[command(flatten)]
    pub router: PlacementArgs,

    /// Disaggregation: prompts computed by workers of their own.
    #[command(flatten)]
    pub split: SplitArgs,

    /// Queue of each model.
    #[command(flatten)]
    pub queue: QueueArgs,

    /// Waits for absent workers.
    #[command(flatten)]
    pub absence: AbsenceArgs,

    /// Markup of answers.
    #[command(flatten)]
    pub markup: MarkupArgs,
}

/// Placement of requests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Routing")]
pub struct PlacementArgs {
    /// Policy that chooses a worker: `kv` weighs what each worker has cached against its load.
    #[arg(long, env = "STATOR_ROUTER_MODE", default_value_t = Mode::Kv, value_name = "MODE")]
    pub router_mode: Mode,

    /// Unit of costs of `kv`: `blocks` with the weights below, `time` as learnt from the answers
    /// seen, or `auto`: time once enough was seen, blocks before.
    #[arg(long, env = "STATOR_ROUTER_COST", default_value_t = CostModel::default(), value_name = "MODEL")]
    pub router_cost: CostModel,

    /// Worth of a cached block, in blocks of prefill saved; 0 ignores the cache.
    #[arg(
        long,
        env = "STATOR_ROUTER_KV_OVERLAP_SCORE_CREDIT",
        default_value_t = 1.0,
        value_name = "X"
    )]
    pub router_kv_overlap_score_credit: f64,

    /// Rate at which that credit fades on workers with more pending prefill than the least busy
    /// one.
    #[arg(
        long,
        env = "STATOR_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",
        default_value_t = 0.0,
        value_name = "X"
    )]
    pub router_kv_overlap_score_credit_decay: f64,

    /// Worth of a cached block in host memory, in blocks of prefill saved.
    #[arg(
        long,
        env = "STATOR_ROUTER_HOST_CACHE_HIT_WEIGHT",
        default_value_t = 0.75,
        value_name = "X"
    )]
    pub router_host_cache_hit_weight: f64,

    /// Worth of a cached block on disk, in blocks of prefill saved.
    #[arg(
        long,
        env = "STATOR_ROUTER_DISK_CACHE_HIT_WEIGHT",
        default_value_t = 0.25,
        value_name = "X"
    )]
    pub router_disk_cache_hit_weight: f64,

    /// Worth of a cached block in shared storage, in blocks of prefill saved.
    #[arg(
        long,
        env = "STATOR_ROUTER_SHARED_CACHE_MULTIPLIER",
        default_value_t = 0.5,
        value_name = "X"
    )]
    pub router_shared_cache_multiplier: f64,

    /// Weight of prefill work against decode blocks.
    #[arg(long, env = "STATOR_ROUTER_PREFILL_LOAD_SCALE", default_value_t = 1.0, value_name = "X")]
    pub router_prefill_load_scale: f64,

    /// Cost of each request that a worker is running, in blocks.
    #[arg(
        long,
        env = "STATOR_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",
        default_value_t = 0.0,
        value_name = "X"
    )]
    pub router_decode_active_request_weight: f64,

    /// Randomness of the choice: 0 takes the cheapest worker, higher spreads.
    #[arg(long, env = "STATOR_ROUTER_TEMPERATURE", default_value_t = 0.0, value_name = "T")]
    pub router_temperature: f64,

    /// Let a request's own blocks weigh less the nearer it is to its most output tokens.
    #[arg(long, env = "STATOR_ROUTER_OUTPUT_BLOCK_DECAY")]
    pub router_output_block_decay: bool,

    /// Longest time for which a request counts as load on its worker, in seconds.
    #[arg(long, env = "STATOR_ROUTER_ACTIVE_REQUEST_EXPIRY_S", default_value_t = 300, value_name = "S",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub router_active_request_expiry_s: u64,

    /// Time for which a worker is assumed to cache a prompt that was sent to it and that it has not
    /// reported yet, in seconds; 0 counts reports alone.
    #[arg(long, env = "STATOR_ROUTER_PREDICTED_TTL_S", default_value_t = 0, value_name = "S",
          value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub router_predicted_ttl_s: u64,

    /// Time for which a worker without KV events, such as a server of the OpenAI API, is assumed to
    /// cache a prompt that was sent to it, in seconds.
    #[arg(long, env = "STATOR_ROUTER_TTL_S", default_value_t = 120, value_name = "S",
          value_parser = clap::value_parser!(u64).range(2..=86_400))]
    pub router_ttl_s: u64,

    /// Assume that such a worker caches the last N blocks sent to it, however long ago: give the size
    /// of its cache. All workers of a model together are assumed to cache 4 million blocks at most.
    /// Default: by time, see --router-ttl-s.
    #[arg(long, env = "STATOR_ROUTER_LRU_BLOCKS", value_name = "BLOCKS",
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub router_lru_blocks: Option<u64>,

    /// Memory of each model's KV index, in bytes. Beyond it the blocks that became known first are
    /// forgotten, and a metric counts them.
    #[arg(long, env = "STATOR_ROUTER_INDEX_MAX_BYTES", default_value_t = 1 << 30, value_name = "BYTES",
          value_parser = clap::value_parser!(u64).range(1 << 20..=1 << 40))]
    pub router_index_max_bytes: u64,

    /// Time for which a session (header `x-session-id` or one of its other names) stays with its
    /// worker after its last request, in seconds; 0: sessions have no worker.
    #[arg(long, env = "STATOR_ROUTER_SESSION_AFFINITY_TTL_S", default_value_t = 0, value_name = "S",
          value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub router_session_affinity_ttl_s: u64,

    /// Strength of the bond between a session and its worker.
    #[arg(
        long,
        env = "STATOR_ROUTER_SESSION_AFFINITY_MODE",
        default_value = "hard",
        value_name = "MODE"
    )]
    pub router_session_affinity_mode: AffinityMode,

    /// Let requests name their worker, in `x-stator-worker-id` as answers do, or in NVIDIA Dynamo's
    /// headers: `x-dynamo-worker-instance-id`, `x-dynamo-dp-rank`, `x-dynamo-prefill-instance-id`,
    /// `x-dynamo-prefill-dp-rank` and their older names. No other worker gets the request then. A
    /// picker's `x-stator-kv-holders` is heeded too. Use this only if all clients are trusted, such as
    /// a picker. Without it these headers have no effect.
    #[arg(long, env = "STATOR_ROUTER_PINS")]
    pub router_pins: bool,

    /// Most requests in flight at a worker; further ones wait. Default: no limit.
    #[arg(long, env = "STATOR_ACTIVE_REQUESTS_THRESHOLD", value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub active_requests_threshold: Option<u64>,

    /// Share of a worker's KV blocks in use, 0 to 1, above which it takes no further requests.
    /// Default: no limit.
    #[arg(long, env = "STATOR_ACTIVE_DECODE_BLOCKS_THRESHOLD", value_name = "SHARE")]
    pub active_decode_blocks_threshold: Option<f64>,

    /// Prompt tokens still to be computed at a worker above which it takes no further requests.
    /// Default: no limit.
    #[arg(long, env = "STATOR_ACTIVE_PREFILL_TOKENS_THRESHOLD", value_name = "TOKENS")]
    pub active_prefill_tokens_threshold: Option<u64>,

    /// Prompt tokens still to be computed at a worker above which it takes no further requests, as a
    /// multiple of the tokens of one step, if its agent reports them. Default: no limit.
    #[arg(long, env = "STATOR_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC", value_name = "STEPS")]
    pub active_prefill_tokens_threshold_frac: Option<f64>,

    /// Number of times that a request may continue on another worker after its own was lost.
    /// Waiting for a worker does not count.
    #[arg(long, env = "STATOR_MIGRATION_LIMIT", default_value_t = 3, value_name = "N",
          value_parser = clap::value_parser!(u32).range(0..=100))]
    pub migration_limit: u32,
}

/// Strength of the bond between a session and its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AffinityMode {
    /// The session goes to another worker only if its own is gone.
    Hard,
    /// The session's own worker is preferred.
    Soft,
}

/// Queue for requests when every worker is busy. Needs one of the thresholds above.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Queue")]
pub struct QueueArgs {
    /// Most requests that wait for a model. Further ones get 429.
    #[arg(long, env = "STATOR_QUEUE_MAX_REQUESTS", default_value_t = 5_000, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub queue_max_requests: u32,

    /// Most prompt tokens of the requests that wait. Default: no limit.
    #[arg(long, env = "STATOR_QUEUE_MAX_TOKENS", value_name = "TOKENS",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub queue_max_tokens: Option<u64>,

    /// Most bytes of the requests that wait: those of bodies that pass through to servers of the
    /// OpenAI API, 4 for each prompt token of others.
    #[arg(long, env = "STATOR_QUEUE_MAX_BYTES", default_value_t = 1_000_000_000,
          value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub queue_max_bytes: u64,

    /// Longest wait, in milliseconds. A request that has waited longer gets 503.
    #[arg(long, env = "STATOR_QUEUE_TIMEOUT_MS", default_value_t = 60_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub queue_timeout_ms: u64,

    /// Refuse a request at once, with 429 or 503, if it cannot have its turn in time at the rate
    /// at which requests are placed.
    #[arg(long, env = "STATOR_QUEUE_EVICT_HOPELESS")]
    pub queue_evict_hopeless: bool,

    /// Let a request take the room of less urgent ones in a full queue, the least urgent and
    /// newest first. These get 503.
    #[arg(long, env = "STATOR_QUEUE_DISPLACE")]
    pub queue_displace: bool,

    /// Policy that chooses the next client. A client is an API key, or the header
    /// `x-llm-d-inference-fairness-id` if there are no keys. For engines whose answers pass
    /// through unread, `las` counts the tokens of prompts.
    #[arg(long, env = "STATOR_QUEUE_FAIRNESS", default_value = "fifo", value_name = "POLICY")]
    pub queue_fairness: QueueFairness,

    /// Policy that chooses the next request of a client.
    #[arg(long, env = "STATOR_QUEUE_ORDERING", default_value = "first", value_name = "POLICY")]
    pub queue_ordering: QueueOrdering,

    /// Largest priority that a request may claim, above or below 0; larger claims count as this,
    /// and 0 makes all requests alike. Clients set `nvext.agent_hints.priority` (larger is sooner)
    /// or `priority` (smaller is sooner, as in vLLM). More urgent requests leave the queue first,
    /// and the engine is told.
    #[arg(long, env = "STATOR_PRIORITY_MAX", default_value_t = 100, value_name = "N",
          value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub priority_max: u32,
}

/// Policy that chooses the next client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QueueFairness {
    /// The first request, whichever client sent it.
    Fifo,
    /// Each client in turn, a request at a time.
    RoundRobin,
    /// Each client in turn, the same number of prompt tokens.
    Drr,
    /// The client that has used the fewest tokens, output counting twice.
    Vtc,
    /// As `vtc`, but half of the tokens are forgotten each minute, and the wait of the client's first
    /// request counts.
    Las,
}

/// Policy that chooses a client's next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QueueOrdering {
    /// The first.
    First,
    /// The shortest prompt; waiting makes a prompt count as shorter.
    Shortest,
    /// The request whose time runs out first: the queue's longest wait, or less by the header
    /// `x-llm-d-inference-ttl: 10s`.
    Deadline,
    /// The request whose first token is due first, by the header `x-llm-d-slo-ttft-ms`; requests
    /// without an objective are last.
    Slo,
}

/// Prompt tokens of a turn in deficit round robin.
const QUANTUM_TOKENS: u32 = 4096;
/// Tokens by which a second of waiting makes a prompt shorter.
const AGEING_TOKENS_PER_S: u32 = 1000;

impl PlacementArgs {
    /// The settings; adds to `faults` what cannot be used.
    pub(crate) fn placement(&self, faults: &mut Vec<String>) -> Option<PlacementSettings> {
        let weights = Weights::new(WeightSettings {
            overlap_score_credit: self.router_kv_overlap_score_credit,
            overlap_score_credit_decay: self.router_kv_overlap_score_credit_decay,
            host_cache_hit_weight: self.router_host_cache_hit_weight,
            disk_cache_hit_weight: self.router_disk_cache_hit_weight,
            shared_cache_multiplier: self.router_shared_cache_multiplier,
            prefill_load_scale: self.router_prefill_load_scale,
            decode_active_request_weight: self.router_decode_active_request_weight,
            temperature: self.router_temperature,
            output_block_decay: self.router_output_block_decay,
            ..WeightSettings::default()
        });
        let busy = BusyThresholds::new(
            self.active_decode_blocks_threshold,
            self.active_prefill_tokens_threshold,
        );
        // Checked apart from the others, so that a fault of both is named, not only the first.
        let steps =
            BusyThresholds::default().with_prefill_steps(self.active_prefill_tokens_threshold_frac);
        let mut fault = |InvalidWeights(invalid): InvalidWeights| {
            faults.extend(invalid.iter().map(|weight| {
                let InvalidWeight { value, limit, .. } = weight;
                format!("{}: {value} is not in 0..={limit}", flag(weight.name))
            }));
        };
        let (weights, busy) = (weights.map_err(&mut fault).ok(), busy.map_err(&mut fault).ok());
        steps.map_err(&mut fault).ok()?;
        if self.router_lru_blocks.is_some() && self.router_predicted_ttl_s > 0 {
            faults.push(
                "router-lru-blocks: cannot be with router-predicted-ttl-s, which ends".into(),
            );
            return None;
        }
        let busy = busy?.with_prefill_steps(self.active_prefill_tokens_threshold_frac).ok()?;
        let defaults = PlacementSettings::default();
        Some(PlacementSettings {
            mode: self.router_mode,
            cost: self.router_cost,
            weights: weights?,
            busy: busy.with_requests(self.active_requests_threshold),
            sessions: self.sessions(),
            index: IndexSettings {
                max_bytes: usize::try_from(self.router_index_max_bytes).unwrap_or(usize::MAX),
                predicting: match self.router_lru_blocks {
                    Some(blocks) => PredictionPolicy::Lru {
                        blocks_per_worker: usize::try_from(blocks).unwrap_or(usize::MAX),
                    },
                    None => PredictionPolicy::Ttl,
                },
                ..defaults.index
            },
            prediction_ttl: Duration::from_secs(self.router_ttl_s),
            booking_lease: Duration::from_secs(self.router_active_request_expiry_s),
            early_prediction_ttl: (self.router_predicted_ttl_s > 0)
                .then(|| Duration::from_secs(self.router_predicted_ttl_s)),
            ..defaults
        })
    }

    fn sessions(&self) -> Option<SessionSettings> {
        let affinity = match self.router_session_affinity_mode {
            AffinityMode::Hard => Affinity::Hard,
            AffinityMode::Soft => Affinity::Soft(SESSION_WEIGHT),
        };
        let ttl = Duration::from_secs(self.router_session_affinity_ttl_s);
        (!ttl.is_zero()).then(|| SessionSettings::new(affinity, ttl, SESSIONS_MAX))
    }
}

impl QueueArgs {
    /// The settings; adds to `faults` what cannot be used.
    pub(crate) fn settings(
        &self,
        faults: &mut Vec<String>,
    ) -> Option<stator_queue::CheckedSettings> {
        let policy = BandPolicy {
            bounds: Bounds {
                requests: self.queue_max_requests,
                tokens: self.queue_max_tokens,
                bytes: Some(self.queue_max_bytes),
            },
            ttl: Duration::from_millis(self.queue_timeout_ms),
            fairness: match self.queue_fairness {
                QueueFairness::Fifo => Fairness::GlobalStrict,
                QueueFairness::RoundRobin => Fairness::RoundRobin,
                QueueFairness::Drr => Fairness::Drr { quantum_tokens: QUANTUM_TOKENS },
                QueueFairness::Vtc => Fairness::Vtc { input_weight: 1, output_weight: 2 },
                QueueFairness::Las => Fairness::Las {
                    service_weight: 800,
                    wait_weight: 200,
                    half_life: Duration::from_secs(60),
                    idle: Duration::from_secs(3600),
                },
            },
            ordering: match self.queue_ordering {
                QueueOrdering::First => Ordering::Fcfs,
                QueueOrdering::Shortest => {
                    Ordering::ShortestPrompt { ageing_tokens_per_s: AGEING_TOKENS_PER_S }
                }
                QueueOrdering::Deadline => Ordering::Deadline,
                QueueOrdering::Slo => Ordering::SloDeadline,
            },
        };
        let settings = stator_queue::CheckedSettings::new(QueueSettings {
            bands: vec![BandSettings { priority: 0, policy }],
            default_band: policy,
            default_negative_band: policy,
            // Bands come and go as requests name their priorities: the bounds are for all of them.
            total: policy.bounds,
            // A request may name less.
            ttl_max: policy.ttl,
            evict_hopeless: self.queue_evict_hopeless,
            displace: self.queue_displace,
            ..QueueSettings::default()
        });
        let fault = |error: InvalidSettings| faults.push(format!("queue: {error}"));
        settings.map_err(fault).ok()
    }
}

/// The flag that sets a weight or a threshold.
fn flag(weight: &str) -> String {
    let name = weight.replace('_', "-");
    match weight {
        _ if weight.starts_with("active") => name,
        _ if weight.starts_with("overlap") => format!("router-kv-{name}"),
        _ => format!("router-{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    fn parse(flags: &[&str]) -> RouterArgs {
        let command = RouterArgs::augment_args(Command::new("proxy").no_binary_name(true));
        let matches = command.try_get_matches_from(flags).expect("the flags are known");
        RouterArgs::from_arg_matches(&matches).expect("the flags are complete")
    }

    #[test]
    fn flags_left_out_are_the_defaults_of_the_core() {
        let RouterArgs { router, queue, .. } = parse(&[]);
        let mut faults = Vec::new();
        assert_eq!(router.placement(&mut faults), Some(PlacementSettings::default()));
        let BandPolicy { bounds: total, ttl: ttl_max, .. } = BandPolicy::default();
        let expected = QueueSettings { total, ttl_max, ..QueueSettings::default() };
        let settings = queue.settings(&mut faults);
        assert_eq!(settings, stator_queue::CheckedSettings::new(expected).ok());
        assert!(faults.is_empty());
    }

    #[test]
    fn what_reports_nothing_is_taken_to_hold_what_the_flags_say() {
        let flags = ["--router-ttl-s=7", "--router-lru-blocks=100", "--queue-max-bytes=9"];
        let RouterArgs { router, queue, .. } = parse(&flags);
        let mut faults = Vec::new();
        let settings = router.placement(&mut faults).expect("the flags are right");
        assert_eq!(settings.prediction_ttl, Duration::from_secs(7));
        assert_eq!(settings.index.predicting, PredictionPolicy::Lru { blocks_per_worker: 100 });
        let bounds = queue.settings(&mut faults).expect("the flags are right").total;
        assert_eq!((bounds.bytes, bounds.tokens), (Some(9), None));
        assert!(faults.is_empty());
    }

    #[test]
    fn predictions_end_by_time_or_by_room() {
        let flags = ["--router-lru-blocks=100", "--router-predicted-ttl-s=5"];
        let mut faults = Vec::new();
        assert_eq!(parse(&flags).router.placement(&mut faults), None);
        let expected = "router-lru-blocks: cannot be with router-predicted-ttl-s, which ends";
        assert_eq!(faults, [expected]);
    }

    #[test]
    fn every_fault_is_named_by_its_flag() {
        let flags = [
            "--router-kv-overlap-score-credit=-1",
            "--router-temperature=NaN",
            "--active-decode-blocks-threshold=1.5",
            "--active-prefill-tokens-threshold-frac=-2",
        ];
        let mut faults = Vec::new();
        assert_eq!(parse(&flags).router.placement(&mut faults), None);
        let expected = [
            "router-kv-overlap-score-credit: -1 is not in 0..=1000000",
            "router-temperature: NaN is not in 0..=1000000",
            "active-decode-blocks-threshold: 1.5 is not in 0..=1",
            "active-prefill-tokens-threshold-frac: -2 is not in 0..=1000000",
        ];
        assert_eq!(faults, expected);
    }
}
