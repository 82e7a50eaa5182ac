//! `stator operate kv-…`: looks at an agent's KV tiers, and changes them while they work.

use super::caller::Caller;
use super::kv_prompt::PromptArgs;
use super::kv_text;
use clap::{Args, Subcommand, ValueEnum};
use stator_protos::worker::operate_kv_request::Operation;
use stator_protos::worker::{
    KvClear, KvEvict, KvLimit, KvLook, KvPin, OperateKvRequest, OperateKvResponse,
};
use std::time::Duration;

/// Bytes of a gigabyte and of a megabyte, as the flags count.
const GB: f64 = 1e9;
const MB: f64 = 1e6;

/// An operation on an agent's KV tiers.
#[derive(Clone, Debug, Subcommand)]
pub enum KvOperationArg {
    /// Show the KV tiers: room, hits, speed, and what is wrong with them.
    #[command(name = "kv-status")]
    Status(StatusArgs),
    /// Forget the KV of one tier, or of all.
    #[command(name = "kv-clear")]
    Clear {
        /// Tier to clear. Default: all.
        #[arg(long)]
        tier: Option<TierArg>,
    },
    /// Keep the KV of a prompt in host memory for a while, whatever needs room.
    #[command(name = "kv-pin")]
    Pin {
        /// Prompt to keep.
        #[command(flatten)]
        prompt: PromptArgs,
        /// Time for which it stays, in seconds, at most 30 days.
        #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..=2_592_000))]
        seconds: u32,
    },
    /// Forget the KV of a prompt, in all tiers. Objects in a shared store stay for other agents.
    #[command(name = "kv-evict")]
    Evict {
        /// Prompt to forget.
        #[command(flatten)]
        prompt: PromptArgs,
    },
    /// Change limits of the tiers, until the agent ends.
    #[command(name = "kv-limit")]
    Limit(LimitArgs),
}

/// Flags of `kv-status`.
#[derive(Args, Clone, Copy, Debug)]
pub struct StatusArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Look again after this many seconds, and show what was read and written in a second.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    over: Option<u64>,
}

/// Flags of `kv-limit`.
#[derive(Args, Clone, Copy, Debug)]
#[group(required = true, multiple = true)]
pub struct LimitArgs {
    /// Host memory that may hold KV, in GB; at most the agent's `--kv-host-gb`. Blocks beyond leave
    /// it in the order of their policy.
    #[arg(long, value_name = "GB", value_parser = above_zero)]
    host_gb: Option<f64>,
    /// Room on the disk, in GB. The oldest KV goes first.
    #[arg(long, value_name = "GB", value_parser = above_zero)]
    disk_gb: Option<f64>,
    /// MB that may be written to the disk in a second; 0 for no limit.
    #[arg(long, value_name = "MB", value_parser = zero_or_more)]
    disk_write_mb_s: Option<f64>,
    /// Whether the object store is used.
    #[arg(long)]
    object: Option<SwitchArg>,
}

/// A tier by its name.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum TierArg {
    /// Host memory.
    Host,
    /// The disk.
    Disk,
    /// Blocks of other agents.
    Peer,
    /// The object store.
    Object,
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SwitchArg {
    /// Used.
    On,
    /// Left alone.
    Off,
}

/// Carries out an operation on tiers, and prints what came of it.
///
/// # Errors
///
/// The agent cannot be asked, refuses, or has none of a prompt's blocks that were to be pinned.
pub(super) async fn operate(caller: Caller, operation: KvOperationArg) -> anyhow::Result<()> {
    match operation {
        KvOperationArg::Status(StatusArgs { json, over }) => {
            let before = ask(&caller, Operation::Look(KvLook {})).await?;
            let mut later = None;
            if let Some(seconds) = over {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                later = Some(ask(&caller, Operation::Look(KvLook {})).await?);
            }
            let shown = later.as_ref().unwrap_or(&before).status.clone().unwrap_or_default();
            let since = over.zip(before.status.as_ref().filter(|_| later.is_some()));
            match json {
                true => println!("{}", kv_text::json(&shown, since)),
                false => print!("{}", kv_text::table(&shown, since)),
            }
        }
        KvOperationArg::Clear { tier } => {
            let tier = tier.and_then(|tier| tier.to_possible_value());
            let tier = tier.map_or_else(String::new, |tier| tier.get_name().to_owned());
            ask(&caller, Operation::Clear(KvClear { tier })).await?;
        }
        KvOperationArg::Pin { prompt, seconds } => {
            let hashes = prompt.hashes(&caller).await?;
            let response = ask(&caller, Operation::Pin(KvPin { hashes, seconds })).await?;
            let pinned = response.pinned.unwrap_or_default();
            let asked = pinned.asked_blocks;
            if pinned.host_blocks + pinned.coming_blocks + pinned.refused_blocks == 0 {
                return Err(anyhow::anyhow!("no tier holds any of the prompt's {asked} blocks"));
            }
            println!("{}", kv_text::pinned(&pinned, seconds));
        }
        KvOperationArg::Evict { prompt } => {
            let hashes = prompt.hashes(&caller).await?;
            let response = ask(&caller, Operation::Evict(KvEvict { hashes })).await?;
            println!("{}", kv_text::evicted(&response.evicted.unwrap_or_default()));
        }
        KvOperationArg::Limit(limits) => {
            let response = ask(&caller, Operation::Limit(limits.wire())).await?;
            print!("{}", kv_text::table(&response.status.unwrap_or_default(), None));
        }
    }
    Ok(())
}

async fn ask(caller: &Caller, operation: Operation) -> anyhow::Result<OperateKvResponse> {
    let request = caller.request(OperateKvRequest { operation: Some(operation) });
    let answer = caller.operations().operate_kv(request).await;
    answer.map(tonic::Response::into_inner).map_err(|status| match status.code() {
        tonic::Code::Unimplemented => anyhow::anyhow!("the agent is of an earlier version"),
        _ => anyhow::anyhow!("{}", status.message()),
    })
}

impl LimitArgs {
    fn wire(self) -> KvLimit {
        let bytes = |amount: Option<f64>, unit| amount.map(|amount| (amount * unit) as u64);
        KvLimit {
            host_bytes: bytes(self.host_gb, GB),
            disk_bytes: bytes(self.disk_gb, GB),
            disk_write_bytes_per_s: bytes(self.disk_write_mb_s, MB),
            object: self.object.map(|switch| switch == SwitchArg::On),
        }
    }
}

fn above_zero(text: &str) -> Result<f64, String> {
    number(text).filter(|amount| *amount > 0.0).ok_or_else(|| "it is not above 0".into())
}

fn zero_or_more(text: &str) -> Result<f64, String> {
    number(text).filter(|amount| *amount >= 0.0).ok_or_else(|| "it is not 0 or above".into())
}

/// A finite number, at most a petabyte in GB.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|amount: &f64| (..=1e6).contains(amount))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    fn check(line: &str) -> Result<KvLimit, String> {
        let command = KvOperationArg::augment_subcommands(Command::new("operate"));
        let words = std::iter::once("operate").chain(line.split(' '));
        let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
        match KvOperationArg::from_arg_matches(&matches).map_err(|error| error.to_string())? {
            KvOperationArg::Limit(limits) => Ok(limits.wire()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn limits_are_taken_in_gb_and_mb() {
        let limits = check("kv-limit --host-gb 1.5 --disk-write-mb-s 0 --object off").unwrap();
        let expected = KvLimit {
            host_bytes: Some(1_500_000_000),
            disk_bytes: None,
            disk_write_bytes_per_s: Some(0),
            object: Some(false),
        };
        assert_eq!(limits, expected);
        for wrong in ["kv-limit", "kv-limit --host-gb 0", "kv-limit --disk-gb NaN"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
