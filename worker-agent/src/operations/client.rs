//! `stator operate`: asks an agent to do something to its engine.

use super::access::SCHEME;
use super::caller::Caller;
use super::kv_client::{self, KvOperationArg};
use crate::config::TokenArgs;
use anyhow::Context;
use clap::{Args, Subcommand};
use stator_protos::worker::operate_request::Operation as WireOperation;
use stator_protos::worker::{
    LoadAdapter, Pause, ResetCache, Resume, Sleep, StartProfile, StopProfile, UnloadAdapter,
    UpdateWeights, Wake,
};
use stator_runtime::dial::DialArgs;
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the operation; the agent gives up before that.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(660);

/// Flags of `stator operate`.
#[derive(Args, Clone, Debug)]
pub struct OperateArgs {
    /// Request plane of the agent: `http://host:port`, `https://host:port` or `unix:///path`.
    #[arg(
        long,
        env = "STATOR_AGENT",
        default_value = "http://127.0.0.1:7000",
        value_name = "ENDPOINT"
    )]
    pub agent: String,

    /// TLS of the request plane.
    #[command(flatten)]
    pub dial: DialArgs,

    /// Secret to show.
    #[command(flatten)]
    pub token: TokenArgs,

    /// Operation to carry out.
    #[command(subcommand)]
    pub operation: OperationArg,
}

// The same operations are three types: the command line has help texts and checks words, the
// protocol has numbers that stay, and `stator_dialect::Operation` is what both become, checked.
/// An operation.
#[derive(Clone, Debug, Subcommand)]
pub enum OperationArg {
    /// On the engine as a whole.
    #[command(flatten)]
    Engine(EngineOperationArg),
    /// On the tiers that keep KV outside the engine.
    #[command(flatten)]
    Kv(KvOperationArg),
}

/// An operation on an engine.
#[derive(Clone, Debug, Subcommand)]
pub enum EngineOperationArg {
    /// Forget all cached prefixes.
    ResetCache,
    /// Stop taking steps, and take no new requests.
    Pause,
    /// Go on after a pause.
    Resume,
    /// Give device memory back, and take no new requests.
    Sleep {
        /// 1 keeps the weights in host memory, 2 drops them.
        #[arg(default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=2))]
        level: u32,
    },
    /// Take device memory again, and requests.
    Wake,
    /// Load a LoRA adapter.
    LoadAdapter {
        /// Name that requests ask for.
        name: String,
        /// Path at which the engine finds it.
        path: String,
    },
    /// Unload a LoRA adapter.
    UnloadAdapter {
        /// Its name.
        name: String,
    },
    /// Begin to record a profile.
    StartProfile,
    /// End the profile.
    StopProfile,
    /// Take new weights.
    UpdateWeights {
        /// Request in the engine's own format, as JSON.
        request: String,
    },
}

/// Asks the agent, and waits until it is done.
///
/// # Errors
///
/// When the agent cannot be reached, or its engine does not do it.
pub async fn operate(args: OperateArgs) -> anyhow::Result<()> {
    let dial = args.dial.dial().map_err(anyhow::Error::msg)?;
    let token = token(&args.token).map_err(anyhow::Error::msg)?;
    let target = dial.target(&args.agent).context("agent")?;
    let target =
        target.with(|endpoint| endpoint.connect_timeout(CONNECT_TIMEOUT).timeout(ANSWER_TIMEOUT));
    let channel = target.connect().await;
    let channel = channel.with_context(|| format!("agent: cannot connect to {}", args.agent))?;
    let caller = Caller { channel, token };
    match args.operation {
        OperationArg::Engine(operation) => caller.operate(operation.into()).await,
        OperationArg::Kv(operation) => kv_client::operate(caller, operation).await,
    }
}

/// The header that shows the secret, if there is one.
fn token(args: &TokenArgs) -> Result<Option<MetadataValue<Ascii>>, String> {
    let Some(source) = args.source()? else { return Ok(None) };
    let secret = source.secret()?;
    let value = MetadataValue::<Ascii>::try_from(format!("{SCHEME}{}", secret.reveal()));
    let mut value = value.map_err(|error| format!("operations-token: {error}"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

impl From<EngineOperationArg> for WireOperation {
    fn from(arg: EngineOperationArg) -> Self {
        match arg {
            EngineOperationArg::ResetCache => Self::ResetCache(ResetCache {}),
            EngineOperationArg::Pause => Self::Pause(Pause {}),
            EngineOperationArg::Resume => Self::Resume(Resume {}),
            EngineOperationArg::Sleep { level } => Self::Sleep(Sleep { level }),
            EngineOperationArg::Wake => Self::Wake(Wake {}),
            EngineOperationArg::LoadAdapter { name, path } => {
                Self::LoadAdapter(LoadAdapter { name, path })
            }
            EngineOperationArg::UnloadAdapter { name } => {
                Self::UnloadAdapter(UnloadAdapter { name })
            }
            EngineOperationArg::StartProfile => Self::StartProfile(StartProfile {}),
            EngineOperationArg::StopProfile => Self::StopProfile(StopProfile {}),
            EngineOperationArg::UpdateWeights { request } => {
                Self::UpdateWeights(UpdateWeights { request_json: request })
            }
        }
    }
}
