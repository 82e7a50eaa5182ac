//! The proxy over a fleet of workers: a [`Pool`] for each model, in which requests get their
//! [`Place`].
//!
//! A request asks its pool for a place, waits at the pool's gate if it has to, and submits through
//! the place's [`AgentClient`](stator_fleet::AgentClient). Nothing here knows text.

pub(crate) mod absence;
mod answer;
pub(crate) mod catalog;
mod client;
pub(crate) mod config;
mod early;
mod entrance;
mod generate;
mod given;
mod job;
mod listing;
pub(crate) mod metrics;
mod no_split;
mod pass_through;
mod place;
mod placing;
mod plan;
mod pool;
mod pool_settings;
mod pools;
mod replicas;
mod route;
pub(crate) mod routing;
mod run;
pub(crate) mod service;
mod splitting;
mod state;
mod trace;
mod workers;

pub(crate) use entrance::Prompt;
pub(crate) use place::Place;
pub(crate) use pool::Pool;
pub(crate) use pool_settings::PoolSettings;
pub(crate) use pools::ModelPools;

#[cfg(test)]
mod tests;
