//! Hands out the KV of prompts that engines here computed for those of other agents.

use crate::request_plane::service::Agent;
use crate::worker::{BlockExport, Command, ExportedPrompt, PromptTake};
use bytes::Bytes;
use futures::stream::{self, Stream, TryStreamExt};
use stator_engine::RequestKey;
use stator_engine::transfer::{BlockKv, Seal, TransferKey};
use stator_protos::worker::transfers_server::Transfers;
use stator_protos::worker::{FetchChunk, FetchRequest};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

/// The gRPC service.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// The agent whose engines computed the prompts.
    pub(crate) agent: Arc<Agent>,
    /// The key whose seals show that blocks are genuine.
    pub(crate) key: TransferKey,
}

/// A prompt that was taken. Dropping it frees its blocks.
struct PromptExport {
    commands: mpsc::Sender<Command>,
    key: RequestKey,
    seal: Seal,
}

impl PromptExport {
    /// The first of some blocks.
    async fn export(&self, blocks: Range<usize>) -> Result<Vec<BlockKv>, Status> {
        let (answer, answered) = oneshot::channel();
        let export = Command::Export(BlockExport { key: self.key, blocks, answer });
        self.commands.send(export).await.map_err(|_| ended())?;
        match answered.await.map_err(|_| ended())? {
            none if none.is_empty() => Err(Status::aborted("the prompt is kept no longer")),
            some => Ok(some),
        }
    }
}

impl Drop for PromptExport {
    fn drop(&mut self) {
        // Where a flood of commands is before it, its lease ends it.
        let _ = self.commands.try_send(Command::Cancel(vec![self.key]));
    }
}

fn ended() -> Status {
    Status::unavailable("the worker has ended")
}

/// The pieces of a batch of blocks, the first of which is at this place in the prompt. Each block is
/// sealed when its turn comes.
fn pieces(
    first: usize,
    blocks: Vec<BlockKv>,
    seal: Seal,
) -> impl Iterator<Item = Result<FetchChunk, Status>> {
    (first as u32..).zip(blocks).flat_map(move |(place, block)| {
        let mac = seal.of(place, block.name, &block.kv);
        let (pieces, kv) = (block.pieces(), Bytes::from(block.kv));
        pieces.map(move |(range, is_last)| {
            let mac = is_last.then(|| mac.to_vec());
            Ok(FetchChunk { block: place, kv: kv.slice(range), mac })
        })
    })
}

type Chunks = Pin<Box<dyn Stream<Item = Result<FetchChunk, Status>> + Send>>;

#[tonic::async_trait]
impl Transfers for Service {
    type FetchStream = Chunks;

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<Chunks>, Status> {
        let FetchRequest { worker_id, rank, handle, first_block, blocks } = request.into_inner();
        let commands = self.agent.commands(worker_id, rank)?;
        let (answer, answered) = oneshot::channel();
        commands.send(Command::Take(PromptTake { handle, answer })).await.map_err(|_| ended())?;
        let none = || Status::not_found("nothing is kept under this handle");
        let ExportedPrompt { key, form } = answered.await.map_err(|_| ended())?.ok_or_else(none)?;
        let taken = PromptExport { commands, key, seal: Seal::new(&self.key, form, handle) };
        let all = first_block as usize..first_block as usize + blocks as usize;
        let batches = stream::try_unfold((taken, all), |(taken, left)| async move {
            if left.is_empty() {
                return Ok::<_, Status>(None);
            }
            let batch = taken.export(left.clone()).await?;
            let next = left.start + batch.len()..left.end;
            let pieces = pieces(left.start, batch, taken.seal.clone());
            Ok(Some((stream::iter(pieces), (taken, next))))
        });
        Ok(Response::new(Box::pin(batches.try_flatten())))
    }
}
