//! A view for readers: the tables and the workers of the slots, swapped as a whole.

use crate::arena::Arena;
use crate::elements;
use crate::layout::Layout;
use crate::table::Table;
use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use stator_protos::WorkerRank;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// Slots of a page; publishing a change copies one page.
const PAGE: usize = 256;
/// Tables of a group.
const GROUP: usize = 16;

type Page = [Option<WorkerRank>; PAGE];

/// An immutable view; cells change under it, places and names do not.
#[derive(Clone)]
pub(crate) struct View {
    /// No other view of the process has it.
    number: u64,
    /// In groups, so that publishing a change copies one group and not all.
    tables: Vec<Arc<[Table]>>,
    pages: Vec<Arc<Page>>,
}

impl View {
    fn new(tables: Vec<Arc<[Table]>>) -> Self {
        Self { number: next_number(), tables, pages: Vec::new() }
    }

    /// Tells this view from all others.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The table of a shard.
    #[inline]
    pub(crate) fn table(&self, shard: usize) -> &Table {
        &self.tables[shard / GROUP][shard % GROUP]
    }

    /// The tables of all shards, in order.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().flat_map(|group| group.iter())
    }

    pub(crate) fn set_table(&mut self, shard: usize, table: Table) {
        Arc::make_mut(&mut self.tables[shard / GROUP])[shard % GROUP] = table;
    }

    /// The worker whose present life has `slot`; `None` if that life is over or is not filled yet.
    pub(crate) fn worker(&self, slot: u32) -> Option<WorkerRank> {
        let slot = slot as usize;
        self.pages.get(slot / PAGE)?[slot % PAGE]
    }

    /// Slots with a worker are below this.
    pub(crate) fn slots(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Gives a slot to a worker, or takes it away.
    pub(crate) fn set_worker(&mut self, slot: u32, worker: Option<WorkerRank>) {
        debug_assert!(slot < elements::MAX_SLOTS);
        let slot = slot as usize;
        while self.pages.len() <= slot / PAGE {
            self.pages.push(Arc::new([None; PAGE]));
        }
        Arc::make_mut(&mut self.pages[slot / PAGE])[slot % PAGE] = worker;
    }
}

/// The present view.
pub(crate) struct Published {
    view: ArcSwap<View>,
    /// Held by whoever makes the next view out of the present one.
    turn: Mutex<()>,
    /// Times that a slot was given to another life.
    reuses: AtomicU64,
}

impl Published {
    pub(crate) fn new(layout: &Layout, arena: &Arena) -> Self {
        let table = |shard| Table::new(arena, layout.first_buckets(shard));
        let tables: Vec<Table> = (0..layout.shards()).map(table).collect();
        let tables = tables.chunks(GROUP).map(Arc::from).collect();
        let view = ArcSwap::from_pointee(View::new(tables));
        Self { view, turn: Mutex::new(()), reuses: AtomicU64::new(0) }
    }

    pub(crate) fn view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// Publishes a changed view. Readers see the old one or the new one.
    pub(crate) fn update(&self, change: impl FnOnce(&mut View)) {
        let _turn = self.turn.lock();
        let mut view = View { number: next_number(), ..View::clone(&self.view.load()) };
        change(&mut view);
        self.view.store(Arc::new(view));
    }

    /// Changes whenever slots in older views may mean other lives than they did.
    pub(crate) fn reuses(&self) -> u64 {
        self.reuses.load(Acquire)
    }

    /// To be called before a used slot is given to another life.
    pub(crate) fn reuse(&self) {
        self.reuses.fetch_add(1, AcqRel);
    }
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}
