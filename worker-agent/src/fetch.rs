//! Hands out the KV of prompts that engines here computed for those of other agents.

use crate::engine::RequestKey;
use crate::engine::transfer::BlockKv;
use crate::service::Agent;
use crate::worker::{Command, Export, Take};
use bytes::Bytes;
use futures::stream::{self, Stream, TryStreamExt};
use stator_protos::worker::transfers_server::Transfers;
use stator_protos::worker::{FetchChunk, FetchRequest};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

/// The gRPC service.
#[derive(Clone, Debug)]
pub(crate) struct Service(pub(crate) Arc<Agent>);

/// A prompt that was taken. Dropping it frees its blocks.
struct Taken {
    commands: mpsc::Sender<Command>,
    key: RequestKey,
}

impl Taken {
    /// The first of some blocks.
    async fn export(&self, blocks: Range<usize>) -> Result<Vec<BlockKv>, Status> {
        let (answer, answered) = oneshot::channel();
        let export = Command::Export(Export { key: self.key, blocks, answer });
        self.commands.send(export).await.map_err(|_| ended())?;
        match answered.await.map_err(|_| ended())? {
            none if none.is_empty() => Err(Status::aborted("the prompt is kept no longer")),
            some => Ok(some),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // Where a flood of commands is before it, its lease ends it.
        let _ = self.commands.try_send(Command::Cancel(vec![self.key]));
    }
}

fn ended() -> Status {
    Status::unavailable("the worker has ended")
}

/// The pieces of a batch of blocks, the first of which has this number.
fn pieces(first: usize, blocks: Vec<BlockKv>) -> impl Iterator<Item = Result<FetchChunk, Status>> {
    (first as u32..).zip(blocks).flat_map(|(number, block)| {
        let (pieces, kv) = (block.pieces(), Bytes::from(block.kv));
        pieces.map(move |(range, checksum)| {
            Ok(FetchChunk { block: number, kv: kv.slice(range), checksum })
        })
    })
}

type Chunks = Pin<Box<dyn Stream<Item = Result<FetchChunk, Status>> + Send>>;

#[tonic::async_trait]
impl Transfers for Service {
    type FetchStream = Chunks;

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<Chunks>, Status> {
        let FetchRequest { worker_id, rank, handle, first_block, blocks } = request.into_inner();
        let commands = self.0.commands(worker_id, rank)?;
        let (answer, answered) = oneshot::channel();
        commands.send(Command::Take(Take { handle, answer })).await.map_err(|_| ended())?;
        let none = || Status::not_found("nothing is kept under this handle");
        let key = answered.await.map_err(|_| ended())?.ok_or_else(none)?;
        let taken = Taken { commands, key };
        let all = first_block as usize..first_block as usize + blocks as usize;
        let batches = stream::try_unfold((taken, all), |(taken, left)| async move {
            if left.is_empty() {
                return Ok::<_, Status>(None);
            }
            let batch = taken.export(left.clone()).await?;
            let next = left.start + batch.len()..left.end;
            Ok(Some((stream::iter(pieces(left.start, batch)), (taken, next))))
        });
        Ok(Response::new(Box::pin(batches.try_flatten())))
    }
}
