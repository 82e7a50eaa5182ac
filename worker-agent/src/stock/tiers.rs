//! The agent's KV tiers, as engines in other processes reach them: a socket, and the modules that an
//! engine loads to speak there.

use super::tier_metrics::ConnectorMetrics;
use crate::config::{Origin, StockSettings};
use crate::kv::pages::PageBook;
use crate::kv::peers::KvPeers;
use crate::kv::tiers::{CacheRoom, RankBoard, TierBoard, TierDesk, open_cache, register};
use anyhow::Context;
use stator_cuda::{CudaDevices, EngineCopier};
use stator_dialect::Kind;
use stator_kv::BlockForm;
use stator_kv::connector::{
    ConnectorServer, ConnectorSettings, CountedCopier, HintTaker, UseTaker,
};
use stator_kv::metrics::KvMetrics;
use stator_kv::shims;
use stator_runtime::metrics::Metrics;
use stator_supervise::KvTiers;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::runtime::Handle;

/// Name of the socket in the folder.
const SOCKET: &str = "kv.sock";

/// The tiers at the service of the agent's engines. They end when this is dropped.
#[derive(Debug)]
pub(super) struct TierService {
    place: KvTiers,
    board: Arc<TierBoard>,
    /// Names of the pages of an SGLang.
    pages: Option<Arc<PageBook>>,
    desk: TierDesk,
    _server: Arc<ConnectorServer>,
    /// Tokens of a block, for metrics, once they are known.
    block_tokens: Arc<AtomicU32>,
    /// The folder, unless the user named one. It goes after the server.
    _home: Option<tempfile::TempDir>,
}

impl TierService {
    /// Serves the tiers of these settings; `None` where they have none.
    ///
    /// # Errors
    ///
    /// When there is no folder for the socket, or another process listens there.
    pub(super) fn serve(
        settings: &StockSettings,
        metrics: &Metrics,
        peers: Option<Arc<KvPeers>>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(tiers) = settings.kv_tiers.clone() else { return Ok(None) };
        let kv_metrics = KvMetrics::default();
        let block_tokens = register(&kv_metrics, &tiers, metrics);
        let (folder, home) = match &tiers.socket_dir {
            Some(folder) => (folder.clone(), None),
            None => {
                let home = tempfile::Builder::new().prefix("stator-kv-").tempdir();
                let home = home.context("no folder for the socket of the KV tiers")?;
                (home.path().to_owned(), Some(home))
            }
        };
        let socket = folder.join(SOCKET);
        write_modules(&folder).with_context(|| format!("kv-socket-dir: {}", folder.display()))?;
        let (runtime, object_key) = (Handle::current(), settings.object_key);
        let pins = settings.pins;
        let (board, desk) = (Arc::new(TierBoard::with_peers(peers.clone())), TierDesk::new());
        let pages = (settings.kind == Kind::Sglang).then(Arc::<PageBook>::default);
        let (noted, told) = (board.clone(), desk.clone());
        let book = pages.clone();
        let (hints, uses) = listeners(peers.clone());
        let copier = Arc::new(EngineCopier::new(CudaDevices));
        let copier = CountedCopier::new(copier, kv_metrics.clone());
        let open = move |form: BlockForm| {
            // The server calls from a thread of its own; an object store needs the agent's runtime.
            let _entered = runtime.enter();
            let (board, metrics) = (noted.clone(), kv_metrics.clone());
            let events = Arc::new(move |event| board.take_event(&event));
            let (peers, desk) = (peers.clone(), told.clone());
            let room = CacheRoom { events, metrics, object_key, pins, peers, desk };
            let cache = open_cache(form, &tiers, room).map_err(|error| format!("{error:#}"))?;
            noted.opened(&cache);
            if let Some(book) = &book {
                book.opened(&cache);
            }
            Ok(cache)
        };
        let watched = board.clone();
        let mut connector = ConnectorSettings {
            watch: Arc::new(move |change| watched.engine_changed(change)),
            hints,
            uses,
            copier: Some(Arc::new(copier)),
            ..ConnectorSettings::new(socket.clone(), Box::new(open))
        };
        if let Some(pages) = &pages {
            connector.keys = pages.clone();
        }
        let server = ConnectorServer::start(connector);
        let server = server.with_context(|| format!("kv-host-gb: {}", socket.display()))?;
        let server = Arc::new(server);
        let shown = Box::new(ConnectorMetrics(Arc::downgrade(&server)));
        metrics.register(|registry| registry.register_collector(shown));
        if matches!(settings.origin, Origin::Attached { .. }) {
            tracing::info!(socket = %socket.display(), "engines reach the KV tiers here");
        }
        let place = KvTiers { socket, modules: folder };
        let service =
            Self { place, board, pages, desk, _server: server, block_tokens, _home: home };
        Ok(Some(service))
    }

    /// The engine has blocks of so many tokens.
    pub(super) fn set_block_tokens(&self, tokens: u32) {
        self.block_tokens.store(tokens, Ordering::Relaxed);
    }

    /// Operators' access to the tiers.
    pub(super) fn desk(&self) -> TierDesk {
        self.desk.clone()
    }

    /// Where an engine finds them.
    pub(super) fn place(&self) -> KvTiers {
        self.place.clone()
    }

    /// The board of what they hold.
    pub(super) fn board(&self) -> Arc<TierBoard> {
        self.board.clone()
    }

    /// The book of an SGLang's pages, which hears the engine's events.
    pub(super) fn pages(&self) -> Option<Arc<PageBook>> {
        self.pages.clone()
    }

    /// Board of one rank's new life, with blocks of so many tokens.
    pub(super) fn rank(&self, block_size: u32) -> Arc<RankBoard> {
        self.board.rank(block_size)
    }
}

/// Listeners for the hints of engines' requests, and for what the requests got.
fn listeners(peers: Option<Arc<KvPeers>>) -> (Arc<HintTaker>, Arc<UseTaker>) {
    let Some(hinted) = peers else { return (Arc::new(|_, _| None), Arc::new(|_, _| {})) };
    let noting = hinted.clone();
    let hints: Arc<HintTaker> = Arc::new(move |hint, blocks| hinted.hint_for_engine(hint, blocks));
    (hints, Arc::new(move |place, used| noting.note_use(place, used)))
}

/// Writes what engines load into the folder, which is made for this user alone where it is missing.
fn write_modules(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    shims::MODULES.iter().try_for_each(|(name, text)| {
        // An engine may be loading the file of an agent before: it sees the old one or the new one.
        let new = folder.join(format!("{name}.new"));
        std::fs::write(&new, text)?;
        std::fs::rename(new, folder.join(name))
    })
}
