//! KV between this agent's tiers and those of other agents: what is held here is lent to others, and
//! what others are said to hold is read from them.
//!
//! A request may name agents that hold its prompt ([`KvPeers::hint`]). The peer tier then has their
//! blocks to offer, and the cache decides as for every tier whether reading is faster than computing.
//! A holder proves that it knows the fleet's secret, and each block that it is the block of its name,
//! so whoever names a wrong holder costs time, never a wrong answer.

mod addresses;
mod holder;
mod noted;
mod noted_pages;

pub(crate) use holder::KvHolder;

use super::lending::KvLending;
use super::pages::PageKey;
use crate::config::AgentSettings;
use addresses::HolderAddresses;
use anyhow::Context;
use noted::NotedHolders;
use noted_pages::NotedPages;
use stator_kv::Block;
use stator_kv::arena::Arena;
use stator_kv::cache::{CacheLender, CacheTier, TierOpener, TierPlace, TieredCache};
use stator_kv::connector::wire::{EngineHint, EngineKey, NamedHolder};
use stator_kv::connector::{AskHint, AskUse, NotedPlace};
use stator_kv::metrics::KvMetrics;
use stator_kv::peer::{DirectReads, PeerSettings, PeerTier};
use stator_kv::store::{TierAdmission, TierSettings};
use stator_kv::tier::Tier;
use stator_kv::transfer::direct::DirectWay;
use stator_kv::transfer::{FleetKey, LendingStore};
use stator_nixl::{NixlError, NixlLibrary, NixlWay};
use stator_protos::hash::name_hash;
use stator_protos::kv_event::Medium;
use stator_protos::load::{PEER_COSTS_MAX, PeerCost};
use std::fmt;
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;

/// The agent's part in the fleet's exchange of KV.
pub(crate) struct KvPeers {
    key: FleetKey,
    runtime: Handle,
    /// The socket where blocks are lent; `None` if none are.
    lending: Option<Arc<KvLending>>,
    nixl: Option<Arc<NixlLibrary>>,
    /// The way to read arenas directly, once there is an arena.
    direct: OnceLock<Arc<dyn DirectWay>>,
    tier: OnceLock<Arc<PeerTier>>,
    addresses: HolderAddresses,
    noted: NotedHolders,
    noted_pages: NotedPages,
}

impl KvPeers {
    /// Opens the exchange, which lends on this socket; `None` for an agent without tiers.
    ///
    /// # Errors
    ///
    /// NIXL cannot be loaded.
    pub(crate) fn open(
        settings: &AgentSettings,
        lending: Option<&Arc<KvLending>>,
    ) -> anyhow::Result<Option<Arc<Self>>> {
        let Some(tiers) = &settings.kv_tiers else { return Ok(None) };
        let nixl = tiers.nixl.as_deref().map(NixlLibrary::open).transpose().context("kv-nixl")?;
        let key = settings.access.kv.fleet_key.clone();
        // The socket may be there for hand-overs alone, which mutual TLS is enough for.
        let lending = lending.filter(|lending| key.covers(lending.bound().ip()));
        Ok(Some(Self::new(key, lending.cloned(), nixl)))
    }

    /// Exchange with agents of this key, on the runtime of the caller. Blocks are lent on a socket, if
    /// there is one.
    pub(super) fn new(
        key: FleetKey,
        lending: Option<Arc<KvLending>>,
        nixl: Option<Arc<NixlLibrary>>,
    ) -> Arc<Self> {
        let runtime = Handle::current();
        Arc::new(Self {
            key,
            addresses: HolderAddresses::new(runtime.clone()),
            noted: NotedHolders::default(),
            noted_pages: NotedPages::default(),
            runtime,
            lending,
            nixl,
            direct: OnceLock::new(),
            tier: OnceLock::new(),
        })
    }

    /// Address at which others read the blocks held here, if they may.
    pub(crate) fn address(&self) -> Option<&str> {
        self.lending.as_ref().map(|lending| lending.address())
    }

    /// The tier of other agents' blocks, to be opened with the cache.
    pub(crate) fn tier(self: &Arc<Self>, metrics: &KvMetrics) -> CacheTier {
        let (peers, bytes) = (self.clone(), metrics.direct_bytes.clone());
        let open: TierOpener = Box::new(move |TierPlace { form, arena, report }| {
            let (key, runtime) = (peers.key.clone(), peers.runtime.clone());
            let settings = PeerSettings::default();
            let direct = peers.open_direct(&arena)?;
            let tier = Arc::new(PeerTier::new(arena, form, key, settings, runtime, report));
            if let Some(way) = direct {
                tier.read_directly(DirectReads { way, bytes });
            }
            // An agent has one cache.
            let _ = peers.tier.set(tier.clone());
            Ok(tier as Arc<dyn Tier>)
        });
        // What others hold is theirs to announce, and nothing is written to them.
        let settings = TierSettings {
            admission: TierAdmission::Never,
            is_announced: false,
            ..TierSettings::new(Medium::Remote)
        };
        CacheTier { name: "peer", settings, open }
    }

    /// Registers the arena with NIXL, if there is NIXL. That may pin all of the arena's memory.
    fn open_direct(&self, arena: &Arc<Arena>) -> Result<Option<Arc<dyn DirectWay>>, NixlError> {
        let Some(library) = &self.nixl else { return Ok(None) };
        // No other agent of the fleet has this name.
        let name = format!("stator-{:032x}", rand::random::<u128>());
        let way: Arc<dyn DirectWay> = Arc::new(NixlWay::new(library, &name, arena)?);
        tracing::info!(library = %library.path().display(), "NIXL may read host memory");
        let _ = self.direct.set(way.clone());
        Ok(Some(way))
    }

    /// Lends the blocks of the agent's cache from now on.
    pub(crate) fn lend(&self, cache: &Arc<TieredCache>) {
        let Some(lending) = &self.lending else { return };
        lending.lend_tiers(LendingStore {
            arena: cache.shared_arena(),
            lender: Arc::new(CacheLender::new(cache)),
            form: cache.form(),
            key: self.key.clone(),
            direct: self.direct.get().cloned(),
        });
    }

    /// Takes note of agents, the best first, that are said to hold the leading ones of these blocks.
    pub(crate) fn hint(&self, holders: &[KvHolder], blocks: &[Block]) {
        let Some(tier) = self.tier.get() else { return };
        // The last hint for a block counts, unless its peer is shunned.
        for holder in holders.iter().rev() {
            if Some(&*holder.address) == self.address() {
                continue;
            }
            if let Some(at) = self.addresses.find(&holder.address) {
                tier.hint(at, &blocks[..holder.blocks.min(blocks.len())]);
            }
        }
    }

    /// Measured costs of reads from single agents, of those read from last.
    pub(crate) fn costs(&self) -> [PeerCost; PEER_COSTS_MAX] {
        let mut costs = [PeerCost::default(); PEER_COSTS_MAX];
        let measured = self.tier.get().map(|tier| tier.costs()).unwrap_or_default();
        for (place, (at, cost)) in costs.iter_mut().zip(measured) {
            let holder = name_hash(&self.addresses.name_of(at));
            *place = PeerCost { holder, cost };
        }
        costs
    }

    /// Keeps the holders of a prompt whose blocks an engine in another process names later, if there
    /// are any; returns the number to tell it.
    pub(crate) fn note(&self, holders: &[KvHolder]) -> u64 {
        self.noted.note(holders.into())
    }

    /// Notes what an engine in another process got so far for a noted prompt.
    pub(crate) fn note_use(&self, place: NotedPlace, used: AskUse) {
        self.noted.note_use(place, used);
    }

    /// Blocks that the engine got so far for the prompt of a note.
    pub(crate) fn used(&self, number: u64) -> Option<AskUse> {
        self.noted.used(number)
    }

    /// Keeps the holders of a prompt whose pages an SGLang asks for later; returns the number of the
    /// note.
    pub(crate) fn note_pages(&self, pages: &[PageKey], holders: &[KvHolder]) -> u64 {
        let number = self.note(holders);
        self.noted_pages.note(pages, number);
        number
    }

    /// An engine names blocks of a prompt, whose holders were noted or came with it. Returns where the
    /// blocks are in the noted prompt.
    pub(crate) fn hint_for_engine(&self, hint: AskHint, blocks: &[Block]) -> Option<NotedPlace> {
        match hint {
            AskHint::Given(EngineHint::Noted(number)) => {
                self.hint_of_note(NotedPlace { number, first: 0 }, blocks)
            }
            AskHint::Given(EngineHint::Holders(named)) => {
                let holder =
                    |NamedHolder { address, blocks }| KvHolder { address, blocks: blocks as usize };
                self.hint(&named.into_iter().map(holder).collect::<Vec<_>>(), blocks);
                None
            }
            AskHint::FirstKey(EngineKey(key)) => {
                let page = PageKey(*key.first_chunk().expect("a key has 36 bytes"));
                self.hint_of_note(self.noted_pages.find(page)?, blocks)
            }
        }
    }

    /// Passes on who holds these blocks of a noted prompt; the place, if the note is still kept.
    fn hint_of_note(&self, place: NotedPlace, blocks: &[Block]) -> Option<NotedPlace> {
        let holders = self.noted.find(place.number)?;
        let beyond = |holder: &KvHolder| {
            let blocks = holder.blocks.checked_sub(place.first).filter(|blocks| *blocks > 0)?;
            Some(KvHolder { blocks, ..holder.clone() })
        };
        let holders: Vec<_> = holders.iter().filter_map(beyond).collect();
        if !holders.is_empty() {
            let deeper = |of: &Block| Block { depth: of.depth + place.first as u32, ..*of };
            self.hint(&holders, &blocks.iter().map(deeper).collect::<Vec<_>>());
        }
        Some(place)
    }
}

impl fmt::Debug for KvPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvPeers").field("address", &self.address()).finish_non_exhaustive()
    }
}
