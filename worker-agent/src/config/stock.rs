//! Settings of engines that are processes of their own: vLLM, SGLang, TensorRT-LLM, and any server
//! of the OpenAI API.

use super::stock_args::StockArgs;
use super::{EngineArgs, EngineKind, Faults, KvTierSettings, ScheduleArg, key, openai};
use stator_dialect::{ApiKey, Kind};
use stator_pins::PinLimits;
use stator_protos::discovery::Role;
use stator_runtime::config::ConfigError;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a stock engine. A value of this type is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StockSettings {
    /// Kind of the engine.
    pub kind: Kind,
    /// Origin of the engine: started here, or attached.
    pub origin: Origin,
    /// Whether the engine is a further node of one that serves elsewhere.
    pub is_follower: bool,
    /// The model's folder.
    pub model: PathBuf,
    /// Name that clients ask for; `None` takes the engine's.
    pub model_name: Option<String>,
    /// Key that the engine asks for.
    pub api_key: Option<ApiKey>,
    /// Key that signs hand-overs.
    pub handover_key: Option<ApiKey>,
    /// Whether both halves of a pair may be asked at once, where the order is for us to choose.
    pub together: bool,
    /// Part of a request that the workers take.
    pub role: Role,
    /// Connector that moves KV.
    pub connector: Option<String>,
    /// Tokens per block of an engine that does not report it.
    pub block_size: Option<u32>,
    /// KV blocks of each rank of an engine that does not report them.
    pub total_blocks: Option<u32>,
    /// Host for other engines to reach a started engine's connector; loopback where absent.
    pub reachable_at: Option<String>,
    /// Longest wait for the engine to become ready.
    pub start_timeout: Duration,
    /// Longest time without a step while requests run.
    pub hang_timeout: Duration,
    /// Starts that may fail one after the other; `None` for no limit.
    pub restarts: Option<u32>,
    /// Longest wait for the engine to end by itself.
    pub stop_grace: Duration,
    /// Idle time before the engine is asked for a token; `None` never asks.
    pub canary_idle: Option<Duration>,
    /// Longest wait for a prefill worker and its KV.
    pub prefill_timeout: Duration,
    /// Longest text of the engine's own metrics, in bytes; 0 shows none.
    pub own_metrics_bytes_max: usize,
    /// Tiers where the engine keeps KV.
    pub kv_tiers: Option<KvTierSettings>,
    /// Limits of what clients may pin in the tiers.
    pub pins: PinLimits,
    /// Key by which an object store's blocks are known to be the fleet's.
    pub object_key: Option<[u8; 32]>,
}

/// Origin of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The engine runs already.
    Attached {
        /// `http://host:port`.
        url: String,
    },
    /// The agent starts the engine.
    Started {
        /// The engine's program; `None` takes the usual one.
        program: Option<PathBuf>,
        /// Its port; 0 for a free one.
        port: u16,
        /// The engine's own flags.
        args: Vec<String>,
    },
}

impl StockSettings {
    /// Checks the flags of an engine of this kind.
    ///
    /// # Errors
    ///
    /// Every flag that is wrong, with its value and limit.
    pub(super) fn new(
        kind: Kind,
        engine: EngineArgs,
        stock: StockArgs,
        reachable_at: Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut faults = match kind {
            Kind::Openai => Faults(openai::faults(&engine, &stock)),
            Kind::Vllm | Kind::Sglang | Kind::Trtllm => Faults::default(),
        };
        stock.check_limits(&mut faults);
        let key = key::api_key(stock.engine_api_key.clone(), stock.engine_api_key_file.as_deref());
        let api_key = faults.keep_one(key).flatten();
        if kind != Kind::Trtllm {
            faults.0.extend(stock.trtllm.faults_of_others());
        }
        let handover_key = faults.keep_one(stock.trtllm.handover_key()).flatten();
        stock.check_use(kind, &engine, &mut faults);
        let pins = engine.pins.limits(&mut faults);
        // All faults at once, so that nobody mends flags one start at a time.
        faults.none()?;
        let seconds = Duration::from_secs;
        Ok(Self {
            kind,
            origin: match stock.attach {
                Some(url) => Origin::Attached { url },
                None => Origin::Started {
                    program: stock.engine_program,
                    port: stock.engine_port,
                    args: stock.engine_args,
                },
            },
            is_follower: stock.engine_follower,
            model: engine.model.unwrap_or_default(),
            model_name: engine.model_name,
            api_key,
            handover_key,
            together: stock.trtllm.trtllm_schedule == ScheduleArg::Together,
            role: stock.role.into(),
            connector: stock.connector,
            block_size: engine.block_size,
            total_blocks: engine.total_blocks,
            reachable_at,
            start_timeout: seconds(stock.engine_start_timeout_s),
            hang_timeout: seconds(stock.engine_hang_timeout_s),
            restarts: Some(stock.engine_restarts).filter(|limit| *limit > 0),
            stop_grace: seconds(stock.engine_stop_grace_s),
            canary_idle: Some(seconds(stock.canary_idle_s)).filter(|idle| !idle.is_zero()),
            prefill_timeout: Duration::from_millis(stock.prefill_timeout_ms),
            own_metrics_bytes_max: stock.engine_metrics_max_bytes as usize,
            kv_tiers: None,
            pins,
            object_key: None,
        })
    }
}

impl StockSettings {
    /// Takes the tiers beside the engine, and returns what is wrong with them.
    pub(super) fn take_tiers(
        &mut self,
        tiers: Option<KvTierSettings>,
    ) -> impl Iterator<Item = String> + use<> {
        self.kv_tiers = tiers;
        self.tiers_fault().into_iter().chain(self.pins_fault())
    }

    /// A fault if the engine runs already and could not find the tiers.
    fn tiers_fault(&self) -> Option<String> {
        let tiers = self.kv_tiers.as_ref().filter(|tiers| tiers.socket_dir.is_none());
        (tiers.is_some() && matches!(self.origin, Origin::Attached { .. })).then(|| {
            "kv-socket-dir: needed with attach and kv-host-gb, for the engine to find its tiers"
                .into()
        })
    }

    /// A fault if limits of pins are given, and there is nothing to pin in.
    fn pins_fault(&self) -> Option<String> {
        let has_use = self.kv_tiers.is_some() || self.pins == PinLimits::default();
        (!has_use).then(|| "kv-pin-share-percent, kv-pin-max-s: need kv-host-gb above 0".into())
    }
}

impl EngineKind {
    /// The kind of a stock engine; `None` for one of our own.
    pub fn stock(self) -> Option<Kind> {
        match self {
            Self::Builtin | Self::Sim => None,
            Self::Vllm => Some(Kind::Vllm),
            Self::Sglang => Some(Kind::Sglang),
            Self::Trtllm => Some(Kind::Trtllm),
            Self::Openai => Some(Kind::Openai),
        }
    }
}
