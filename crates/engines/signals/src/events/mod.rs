//! Follows the KV events of stock engines: vLLM and SGLang over ZMQ, TensorRT-LLM over HTTP.
//!
//! [`Translator`] turns an engine's block hashes into ours: stored events carry the tokens and the
//! hash of the block before, which is all that our own hash needs. [`Follower`] follows one engine,
//! or one rank of it. A stock engine has no snapshot, so a feed starts with a replay of all that
//! the engine remembers. Without a replay that reaches back to the first batch, the follower
//! ignores everything from before: it then knows less than is true, never more. After a gap that no
//! replay fills, and after a lost connection (the engine may have restarted), the follower forgets
//! everything and starts over.

mod control;
mod dialect;
mod follower;
mod listener;
mod merge;
mod metrics;
mod outer;
mod recover;
mod settings;
mod sink;
mod tally;
mod task;
mod translate;
pub(crate) mod trtllm;

pub use control::{Control, View};
pub use follower::{Follower, NEWS_MAX, Source};
pub use listener::EngineListener;
pub use metrics::{FeedCounts, FollowMetrics};
pub use outer::OuterBlocks;
pub use settings::FollowSettings;
pub use sink::WorkerSink;
pub use tally::{Counts, Reason, Tally};
pub use translate::{SkipCounts, Translator};
pub use trtllm::{TrtLlmDrain, TrtLlmSettings};

#[cfg(test)]
mod control_tests;
#[cfg(test)]
mod outer_tests;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
