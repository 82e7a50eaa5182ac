//! The proxy over a fleet of workers: a [`Pool`] for each model, in which requests get their
//! [`Place`].
//!
//! A request asks its pool for a place, waits at the pool's gate if it has to, and submits through
//! the place's [`AgentClient`](stator_fleet::AgentClient). Nothing here knows text.

mod early;
mod entrance;
mod place;
mod pool;
mod pools;
mod replicas;
mod state;

pub(crate) use entrance::Prompt;
pub(crate) use place::Place;
pub(crate) use pool::Pool;
pub(crate) use pools::{ModelPools, PoolSettings};

#[cfg(test)]
mod tests;
