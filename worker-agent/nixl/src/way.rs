//! The direct way between agents: each registers its arena, and others read it without its help.

use crate::agent::{NixlAgent, RemoteAgent};
use crate::agent_core::NixlBackend;
use crate::description::ArenaDescription;
use crate::library::{NixlError, NixlLibrary};
use crate::memory::{Landing, NixlMemory, NixlRegion};
use crate::transfer::{NixlTransfer, OtherSide, TransferPiece, TransferWay};
use stator_kv::SlotId;
use stator_kv::arena::Arena;
use stator_kv::transfer::direct::{
    DESCRIPTION_BYTES_MAX, DirectArena, DirectError, DirectWay, READ_BYTES_MAX,
};
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Reads of this process that were given up and may still write where they were to land, at most.
/// After that, nothing is read directly any more.
const ABANDONED_MAX: usize = 8;

/// An arena that others read by NIXL, and the way to read theirs.
#[derive(Debug)]
pub struct NixlWay {
    agent: NixlAgent,
    description: Vec<u8>,
    abandoned: Arc<AtomicUsize>,
    /// Forgotten before the agent is.
    _arena: NixlRegion,
}

impl NixlWay {
    /// Registers an arena. `name` differs from those of all other agents.
    ///
    /// # Errors
    ///
    /// UCX does not start, or refuses the arena.
    pub fn new(
        library: &Arc<NixlLibrary>,
        name: &str,
        arena: &Arc<Arena>,
    ) -> Result<Self, NixlError> {
        let agent = NixlAgent::new(library, name, NixlBackend::Ucx)?;
        let region = agent.register(NixlMemory::Arena(arena.clone()))?;
        let first = arena.address(SlotId(0)).addr() as u64;
        let bytes = arena.stride() as u64 * u64::from(arena.slots());
        let metadata = agent.metadata()?;
        let description = ArenaDescription { first, bytes, metadata }.encode();
        if description.len() > DESCRIPTION_BYTES_MAX {
            return Err(NixlError::Call { call: "get_local_md", status: -1 });
        }
        Ok(Self { agent, description, abandoned: Arc::default(), _arena: region })
    }
}

impl DirectWay for NixlWay {
    fn description(&self) -> &[u8] {
        &self.description
    }

    fn open(&self, description: &[u8]) -> Result<Box<dyn DirectArena>, DirectError> {
        let ArenaDescription { first, bytes, metadata } = ArenaDescription::decode(description)?;
        let remote = self.agent.meet(&metadata).map_err(refused)?;
        Ok(Box::new(NixlArena {
            landing: self.landing()?,
            agent: self.agent.clone(),
            remote,
            first,
            bytes,
            abandoned: self.abandoned.clone(),
            scratch: Vec::new(),
        }))
    }
}

impl NixlWay {
    fn landing(&self) -> Result<Arc<NixlRegion>, DirectError> {
        let memory = NixlMemory::Landing(Landing::new(READ_BYTES_MAX));
        self.agent.register(memory).map(Arc::new).map_err(refused)
    }
}

/// The arena of another agent, and memory that reads of it land in.
///
/// They do not land in slots: a read that was given up may still write, when its slot is another
/// block's already.
#[derive(Debug)]
struct NixlArena {
    agent: NixlAgent,
    remote: RemoteAgent,
    first: u64,
    bytes: u64,
    landing: Arc<NixlRegion>,
    abandoned: Arc<AtomicUsize>,
    scratch: Vec<u8>,
}

impl DirectArena for NixlArena {
    fn read(
        &mut self,
        parts: &[Range<u64>],
        within: Duration,
        show: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), DirectError> {
        let until = Instant::now() + within;
        if self.abandoned.load(Relaxed) >= ABANDONED_MAX {
            return Err(DirectError(format!("{ABANDONED_MAX} reads never ended")));
        }
        let pieces = self.pieces(parts)?;
        let other = OtherSide::Agent(&self.remote);
        let transfer =
            NixlTransfer::post(&self.agent, TransferWay::Read, &self.landing, other, &pieces);
        let mut transfer = transfer.map_err(refused)?;
        if !transfer.wait(until).map_err(refused)? {
            // The library cannot take a read back. It keeps its memory until the process ends.
            self.abandoned.fetch_add(1, Relaxed);
            mem::forget(transfer);
            return Err(DirectError(format!("a read took longer than {within:?}")));
        }
        drop(transfer);
        let NixlMemory::Landing(landing) = self.landing.memory() else {
            return Err(DirectError("reads have no landing".to_owned()));
        };
        for (at, piece) in pieces.iter().enumerate() {
            self.scratch.resize(piece.bytes, 0);
            landing.copy_to(piece.local, &mut self.scratch);
            show(at, &self.scratch);
        }
        Ok(())
    }
}

impl NixlArena {
    /// Pieces of the landing, one after the other, for parts of the other agent's arena.
    fn pieces(&self, parts: &[Range<u64>]) -> Result<Vec<TransferPiece>, DirectError> {
        let mut local = 0;
        let mut pieces = Vec::with_capacity(parts.len());
        for part in parts {
            let bytes = usize::try_from(part.end.saturating_sub(part.start)).unwrap_or(usize::MAX);
            let end = local + bytes.min(READ_BYTES_MAX + 1);
            if part.end > self.bytes || bytes == 0 || end > READ_BYTES_MAX {
                let (arena, limit) = (self.bytes, READ_BYTES_MAX);
                return Err(DirectError(format!(
                    "{part:?} of an arena of {arena} bytes, {limit} at once"
                )));
            }
            pieces.push(TransferPiece { local, remote: self.first + part.start, bytes });
            local = end;
        }
        Ok(pieces)
    }
}

fn refused(error: NixlError) -> DirectError {
    DirectError(error.to_string())
}
