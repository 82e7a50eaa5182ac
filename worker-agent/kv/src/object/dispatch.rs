//! Starts what waits, most urgent first, as many at a time as the settings allow.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::lanes::NextRead;
use super::read::read;
use super::shared::Shared;
use super::write::write;
use crate::tier::TierError;

/// Most bytes of one read. Longer runs are read in several requests at a time.
const READ_BYTES_MAX: usize = 8 << 20;

/// Works until the lanes are closed and empty.
pub(crate) async fn run(shared: &Arc<Shared>) {
    let (mut reads, mut writes) = (JoinSet::new(), JoinSet::new());
    loop {
        start_reads(shared, &mut reads);
        let write_due = start_writes(shared, &mut writes);
        if reads.is_empty() && writes.is_empty() && shared.lanes.lock().is_done() {
            return;
        }
        tokio::select! {
            () = shared.queued.notified() => {}
            Some(_) = reads.join_next() => {}
            Some(_) = writes.join_next() => {}
            () = sleep_until(write_due.unwrap_or_else(Instant::now)), if write_due.is_some() => {}
        }
    }
}

fn start_reads(shared: &Arc<Shared>, reads: &mut JoinSet<()>) {
    let refused = shared.lanes.lock().take_refused();
    refused.into_iter().for_each(|refused| refused.end(TierError::Busy));
    let blocks_max = (READ_BYTES_MAX / shared.form.block_bytes).max(1);
    while reads.len() < shared.settings.limits.reads.max(1) {
        // Not in the `match`, which would hold the lock until its end.
        let next = {
            let mut lanes = shared.lanes.lock();
            let catalog = shared.catalog.lock();
            lanes.next_read(blocks_max, |read| catalog.place(read.name))
        };
        match next {
            Some(NextRead::Run(run)) => {
                reads.spawn(read(Arc::clone(shared), run));
            }
            Some(NextRead::Missing(ticket)) => ticket.end(Err(TierError::Missing)),
            None => return,
        }
    }
}

/// Returns when the next write may start, unless that depends on what is under way.
fn start_writes(shared: &Arc<Shared>, writes: &mut JoinSet<()>) -> Option<Instant> {
    while writes.len() < shared.settings.limits.writes.max(1) {
        let mut lanes = shared.lanes.lock();
        let due = lanes.write_due(shared.rule())?;
        if due > Instant::now() {
            return Some(due);
        }
        let tickets = lanes.next_write(shared.rule());
        drop(lanes);
        writes.spawn(write(Arc::clone(shared), tickets));
    }
    None
}
