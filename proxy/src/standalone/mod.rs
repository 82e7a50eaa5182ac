//! The proxy over a fleet of workers: a [`Pool`] for each model, in which requests get their
//! [`Place`].
//!
//! A request asks its pool for a place, waits at the pool's gate if it has to, and submits through
//! the place's [`AgentClient`](stator_fleet::AgentClient). Nothing here knows text.

mod early;
mod entrance;
mod no_split;
mod place;
mod pool;
mod pool_settings;
mod pools;
mod replicas;
mod state;
mod workers;

pub(crate) use entrance::Prompt;
pub(crate) use place::Place;
pub(crate) use pool::Pool;
pub(crate) use pool_settings::PoolSettings;
pub(crate) use pools::ModelPools;

#[cfg(test)]
mod tests;
