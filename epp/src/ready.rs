//! Readiness of each pool and of the process to pick.

use crate::health::Health;
use crate::pool::Pool;
use stator_epp_pool::AppProtocol;
use stator_runtime::Shutdown;
use stator_runtime::admin::Readiness;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Time between two looks at readiness.
const POLL: Duration = Duration::from_millis(250);

/// Conditions under which picks succeed.
///
/// A pool is ready while its endpoints are known and one takes new requests, or requests wait for
/// the first, and this replica may pick at all. The process is ready while one of its pools is: a
/// pool that is empty or deleted takes no traffic away from the others.
pub(crate) struct Conditions {
    pub pools: Vec<Arc<Pool>>,
    /// True once the ports of all pools listen.
    pub listening: watch::Receiver<bool>,
    /// True once other replicas were asked what they know.
    pub warmed: watch::Receiver<bool>,
    /// Whether this replica leads, where one does.
    pub leading: Option<watch::Receiver<bool>>,
    /// Whether nothing is read but gRPC, which no pool of HTTP/1.1 can be asked by.
    pub grpc_alone: bool,
}

/// Senders of readiness, to health checks and to the admin port.
pub(crate) struct ReadinessSenders {
    /// One sender for each pool, in their order.
    pools: Vec<watch::Sender<bool>>,
    process: watch::Sender<bool>,
    readiness: Readiness,
}

impl Conditions {
    /// The senders, and the health checks that read them.
    pub(crate) fn senders(&self, readiness: Readiness) -> (ReadinessSenders, Health) {
        let (process, ready) = watch::channel(false);
        let of_pool = |pool: &Arc<Pool>| {
            let (sender, ready) = watch::channel(false);
            (sender, (pool.name().to_owned(), ready))
        };
        let (pools, by_name): (_, Vec<_>) = self.pools.iter().map(of_pool).unzip();
        (ReadinessSenders { pools, process, readiness }, Health::new(ready).with_pools(by_name))
    }

    /// Keeps readiness true where and while it is, until `shutdown`.
    pub(crate) async fn watch(self, senders: ReadinessSenders, shutdown: Shutdown) {
        let mut poll = tokio::time::interval(POLL);
        let mut unreadable = vec![false; self.pools.len()];
        loop {
            tokio::select! {
                _ = poll.tick() => {}
                () = shutdown.wait() => break,
            }
            let leads = self.leading.as_ref().is_none_or(|leading| *leading.borrow());
            let may = leads && *self.warmed.borrow() && *self.listening.borrow();
            for (pool, was) in self.pools.iter().zip(&mut unreadable) {
                let is = !self.reads(pool);
                if is && !std::mem::replace(was, is) {
                    let pool = pool.name();
                    tracing::warn!(
                        pool,
                        "never ready: its appProtocol is http, and all parsers are for gRPC"
                    );
                }
            }
            senders.send(&self.pools, |pool| may && self.reads(pool) && pool.ready());
        }
        senders.send(&self.pools, |_| false);
    }

    /// Whether what comes for a pool can be read.
    ///
    /// Source: the health checks of the llm-d router.
    fn reads(&self, pool: &Pool) -> bool {
        !(self.grpc_alone && pool.view().app_protocol == AppProtocol::Http)
    }
}

impl ReadinessSenders {
    fn send(&self, pools: &[Arc<Pool>], is_ready: impl Fn(&Pool) -> bool) {
        let mut some = false;
        for (pool, sender) in pools.iter().zip(&self.pools) {
            let now = is_ready(pool);
            some |= now;
            if changes(sender, now) {
                tracing::info!(pool = pool.name(), ready = now, "readiness of a pool");
            }
        }
        if changes(&self.process, some) {
            self.readiness.set(some);
            tracing::info!(ready = some, "readiness");
        }
    }
}

/// Sends the present state; returns whether it is new.
fn changes(sender: &watch::Sender<bool>, now: bool) -> bool {
    sender.send_if_modified(|known| std::mem::replace(known, now) != now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::director::tests::{Engine, bench};
    use stator_epp_config::LoadOptions;
    use stator_epp_pool::PoolView;
    use stator_epp_scheduler::{Scheduler, SchedulerSettings};
    use stator_epp_signals::LoadSink;

    /// A pool of this name, with one endpoint or none, and who changes it.
    fn pool(name: &str, engines: &[Engine]) -> (Arc<Pool>, watch::Sender<Arc<PoolView>>) {
        let plan = stator_epp_config::load("", LoadOptions::default()).expect("it is sound").plan;
        let scheduler = Scheduler::new(plan.program, SchedulerSettings::default());
        let (views, view) = watch::channel(bench("", engines).pool.view());
        let pool = Arc::new(Pool::new(name.to_owned(), view, scheduler, 7));
        pool.follow_view();
        (pool, views)
    }

    /// Two pools that are watched, the second without endpoints.
    struct Watched {
        pools: [Arc<Pool>; 2],
        views: [watch::Sender<Arc<PoolView>>; 2],
        listening: watch::Sender<bool>,
        health: Health,
        readiness: Readiness,
    }

    impl Watched {
        fn start(shutdown: Shutdown) -> Self {
            Self::with("", shutdown)
        }

        /// Where the configuration is this one.
        fn with(config: &str, shutdown: Shutdown) -> Self {
            let plan =
                stator_epp_config::load(config, LoadOptions::default()).expect("it is sound");
            let ((full, full_views), (empty, empty_views)) =
                (pool("default/full", &[Engine(0, 0, 0.0, &[])]), pool("default/empty", &[]));
            let (listening, listens) = watch::channel(false);
            let conditions = Conditions {
                pools: vec![full.clone(), empty.clone()],
                listening: listens,
                warmed: watch::channel(true).1,
                leading: None,
                grpc_alone: crate::plan::reads_grpc_alone(&plan.plan),
            };
            let readiness = Readiness::default();
            let (senders, health) = conditions.senders(readiness.clone());
            tokio::spawn(conditions.watch(senders, shutdown));
            let (pools, views) = ([full, empty], [full_views, empty_views]);
            Self { pools, views, listening, health, readiness }
        }

        /// Whether the process and each of the pools is ready, as all who ask are told.
        async fn check(&self, process: bool, pools: [bool; 2]) {
            // The clock is paused and runs ahead: everything has been looked at by then.
            tokio::time::sleep(POLL * 2).await;
            let names = ["default/full", "default/empty"];
            assert_eq!(names.map(|name| self.health.is_serving(name)), pools.map(Some));
            let own = names.map(|name| self.health.of_pool(name).is_serving("readiness"));
            assert_eq!(own, pools.map(Some));
            assert_eq!(self.health.is_serving("readiness"), Some(process));
            assert_eq!(self.readiness.get(), process);
        }

        /// Something happens to a pool.
        fn change(&self, pool: usize, change: impl FnOnce(&mut PoolView)) {
            self.views[pool].send_modify(|view| change(Arc::make_mut(view)));
            self.pools[pool].follow_view();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_pool_is_not_ready_and_takes_no_other_with_it() {
        let (trigger, shutdown) = Shutdown::new();
        let watched = Watched::start(shutdown);
        watched.check(false, [false, false]).await;
        watched.listening.send_replace(true);
        watched.check(true, [true, false]).await;
        let endpoints = watched.views[0].borrow().endpoints.clone();
        watched.change(1, |view| view.endpoints.clone_from(&endpoints));
        watched.check(true, [true, true]).await;
        // As when its InferencePool is deleted.
        watched.change(0, |view| *view = PoolView::default());
        watched.check(true, [false, true]).await;
        watched.change(1, |view| view.endpoints.clear());
        watched.check(false, [false, false]).await;
        watched.change(1, |view| view.endpoints = endpoints);
        watched.check(true, [false, true]).await;
        trigger.set();
        watched.check(false, [false, false]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_of_http_is_not_ready_where_nothing_but_grpc_is_read() {
        let (_trigger, shutdown) = Shutdown::new();
        let parsers = |more: &str| {
            format!(
                "{{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, \
                 plugins: [{{type: queue-scorer}}], requestHandler: {{parsers: \
                 [{{pluginRef: vllmgrpc-parser}}, {{pluginRef: vertexai-parser}}{more}]}}}}"
            )
        };
        let watched = Watched::with(&parsers(""), shutdown.clone());
        watched.listening.send_replace(true);
        watched.check(true, [true, false]).await;
        watched.change(0, |view| view.app_protocol = AppProtocol::Http);
        watched.check(false, [false, false]).await;
        watched.change(0, |view| view.app_protocol = AppProtocol::H2c);
        watched.check(true, [true, false]).await;
        let watched = Watched::with(&parsers(", {pluginRef: openai-parser}"), shutdown);
        watched.listening.send_replace(true);
        watched.change(0, |view| view.app_protocol = AppProtocol::Http);
        watched.check(true, [true, false]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_whose_agents_take_nothing_new_is_not_ready() {
        let (_trigger, shutdown) = Shutdown::new();
        let watched = Watched::start(shutdown);
        watched.listening.send_replace(true);
        watched.check(true, [true, false]).await;
        let pool = &watched.pools[0];
        let worker = pool.view().endpoints[0].worker;
        pool.accepting(worker, false);
        watched.check(false, [false, false]).await;
        pool.accepting(worker, true);
        watched.check(true, [true, false]).await;
    }
}
