//! Engines that are processes of their own: vLLM, SGLang, TensorRT-LLM, and any server of the
//! OpenAI API.
//!
//! [`mod@start`] brings one up and finds out what it serves; [`run`] gives each rank a [`driver`],
//! which has its requests, each on its way in [`request`]; [`keeper`] keeps the engine serving, one
//! life after the other. The dialect speaks to the engine, the host keeps its process.

mod driver;
mod engine;
mod events;
mod follower;
mod host;
mod keeper;
mod launch;
mod metrics;
mod model;
mod openai;
mod pages;
mod paired;
#[cfg(test)]
mod paired_tests;
mod place;
mod probe;
mod profile;
mod read_ahead;
mod request;
#[cfg(test)]
mod request_tests;
mod run;
mod sink;
mod start;
mod tally;
#[cfg(test)]
mod testkit;
mod tier_metrics;
mod tiers;
mod trace;

pub(crate) use engine::StockEngine;
pub(crate) use follower::follow;
pub(crate) use keeper::{Keeper, gave_up};
pub(crate) use start::{EngineSurroundings, start};
