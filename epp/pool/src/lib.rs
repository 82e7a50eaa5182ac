//! The endpoints and policies of pools: from Kubernetes, or from a watched file.
//!
//! A source publishes a [`PoolView`] through a `tokio::sync::watch` whenever something changes.
//! Sources keep the last state they know: a lost watch, a restarting API server or a broken file
//! never empties a view, only age tells of it ([`PoolView::stale_since`]).
//!
//! What a pool's endpoints are is decided in plain functions ([`endpoints_of`], [`Rewrites`]);
//! [`kubernetes`] is the only place that knows Kubernetes, [`mod@file`] the only one that reads
//! files. This crate never writes an object but the leader's lease, and never chooses an endpoint.
//!
//! Start reading at [`PoolView`], then [`kubernetes::Cluster`].

mod endpoints;
pub mod file;
pub mod fuzz;
pub mod kubernetes;
mod rewrite;
#[cfg(test)]
mod rewrite_tests;
mod view;

pub use endpoints::{InvalidSpec, PORTS_MAX, Pod, PoolSpec, endpoints_of, worker_of};
pub use rewrite::{Rewrite, RewriteRule, RewriteTarget, Rewrites, RewrittenModel, WEIGHT_MAX};
pub use view::{AppProtocol, PoolView};

use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A pool that is being watched. Dropping it ends the watching; the last view stays readable.
#[derive(Debug)]
#[must_use = "dropping it ends the watching"]
pub struct PoolWatch {
    view: watch::Receiver<Arc<PoolView>>,
    task: JoinHandle<()>,
}

impl PoolWatch {
    /// The pool's present view and its changes.
    pub fn view(&self) -> watch::Receiver<Arc<PoolView>> {
        self.view.clone()
    }
}

impl Drop for PoolWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}
