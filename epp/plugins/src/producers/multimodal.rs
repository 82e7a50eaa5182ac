//! `mm-embeddings-cache-producer`.

use super::computes;
use crate::context::BuildContext;
use crate::lru::LruKeys;
use crate::params::Params;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_epp_scheduler::plugin::{
    Meter, MeteredPlugin, Observer, PlacedRequest, PluginParts, Producer, RequestProgress,
};
use stator_epp_scheduler::{Candidate, Endpoint, MultimodalItem, Request, Time};
use stator_protos::WorkerRank;
use std::sync::{Arc, OnceLock};

/// Size of one item's embedding, in MiB.
///
/// Source: the encoder cache budget of the llm-d router.
const ITEM_MIB: u64 = 2;

/// `mm-embeddings-cache-producer`: believes that endpoints hold the embeddings of the images,
/// sounds and videos that they encoded last, as many as `cacheSizeInMBPerServer` has room for at
/// 2 MiB each.
///
/// A request's items are encoded by the endpoints of the `encode` profile if it ran, else by the
/// one that computes the prompt.
pub(crate) fn multimodal(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    let mib = params.whole("cacheSizeInMBPerServer", 4096, 1..=1 << 30);
    let capacity = (mib / ITEM_MIB).max(1) as usize;
    let (held, meter) = Default::default();
    let plugin = Arc::new(Multimodal { capacity, held, meter });
    PluginParts {
        producer: Some(plugin.clone()),
        observer: Some(plugin.clone()),
        measured: Some(plugin),
        ..PluginParts::default()
    }
}

struct Multimodal {
    capacity: usize,
    held: Mutex<FxHashMap<WorkerRank, HeldItems>>,
    /// Meter that counts lookups.
    meter: OnceLock<Arc<dyn Meter>>,
}

/// Items that an endpoint holds in one of its lives.
struct HeldItems {
    uid: Arc<str>,
    items: LruKeys<u64>,
}

impl Producer for Multimodal {
    fn produce(&self, request: &Request<'_>, candidates: &mut [Candidate<'_>], _: Time) {
        let items = request.prompt.multimodal;
        let total: u64 = items.iter().map(|item| item.size_bytes).sum();
        if total == 0 {
            return;
        }
        let held = self.held.lock();
        if let Some(meter) = self.meter.get() {
            count(&**meter, items, candidates, &held);
        }
        for candidate in candidates {
            let held = of(&held, candidate.endpoint);
            let bytes = |held: &HeldItems| {
                let known = items.iter().filter(|item| held.items.contains(&item.hash));
                known.map(|item| item.size_bytes).sum::<u64>()
            };
            candidate.findings().multimodal = Some(held.map_or(0, bytes) as f64 / total as f64);
        }
    }
}

/// Items that an endpoint holds in its present life.
fn of<'h>(
    held: &'h FxHashMap<WorkerRank, HeldItems>,
    endpoint: &Endpoint,
) -> Option<&'h HeldItems> {
    held.get(&endpoint.worker).filter(|held| held.uid == endpoint.uid)
}

/// Counts the items of a prompt that each candidate holds. A repeated item counts once.
fn count(
    meter: &dyn Meter,
    items: &[MultimodalItem],
    candidates: &[Candidate<'_>],
    held: &FxHashMap<WorkerRank, HeldItems>,
) {
    let mut items = items.to_vec();
    items.sort_unstable_by_key(|item| item.hash);
    items.dedup_by_key(|item| item.hash);
    meter.items_sought(&items);
    for candidate in candidates {
        let held = of(held, candidate.endpoint);
        let known = |item: &&MultimodalItem| held.is_some_and(|h| h.items.contains(&item.hash));
        let known: Vec<_> = items.iter().filter(known).copied().collect();
        meter.items_held(candidate.endpoint, &known, items.len());
    }
}

impl MeteredPlugin for Multimodal {
    fn measure_with(&self, meter: Arc<dyn Meter>) {
        // The first meter stays: there is one for the life of the process.
        let _ = self.meter.set(meter);
    }
}

impl Observer for Multimodal {
    fn placed(&self, request: &Request<'_>, placed: &PlacedRequest<'_>, _: Time) {
        let routing = placed.routing;
        let encode = routing.others.iter().find(|(profile, _)| profile == "encode");
        let targets = match encode {
            Some((_, pick)) => &pick.targets[..],
            None => &computes(routing, super::PREFILL).targets[..1],
        };
        let mut held = self.held.lock();
        for target in targets.iter().filter(|_| !request.prompt.multimodal.is_empty()) {
            let endpoint = target.endpoint;
            let fresh =
                || HeldItems { uid: Arc::clone(&endpoint.uid), items: LruKeys::new(self.capacity) };
            let held = held.entry(endpoint.worker).or_insert_with(fresh);
            if held.uid != endpoint.uid {
                *held = fresh();
            }
            for item in request.prompt.multimodal {
                held.items.touch(item.hash);
            }
        }
    }

    fn first_token(&self, _: &RequestProgress<'_>, _: Time) {}

    fn ended(&self, _: &RequestProgress<'_>, _: Time) {}

    fn left(&self, worker: WorkerRank) {
        self.held.lock().remove(&worker);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Fleet, check_errors, made, routed};
    use parking_lot::Mutex;
    use serde_json::json;
    use stator_epp_scheduler::plugin::{Meter, Pick, PlacedRequest, PluginParts, RequestLatencies};
    use stator_epp_scheduler::{Endpoint, MultimodalItem, Prompt, Request, Time};
    use std::sync::Arc;

    fn request(items: &[MultimodalItem]) -> Request<'_> {
        Request { prompt: Prompt { multimodal: items, ..Prompt::default() }, ..Request::default() }
    }

    fn check(
        plugin: &PluginParts,
        fleet: &Fleet,
        items: &[MultimodalItem],
        wanted: &[Option<f64>],
    ) {
        let mut candidates = fleet.candidates();
        let producer = plugin.producer.as_ref().expect("it is a producer");
        producer.produce(&request(items), &mut candidates, Time::default());
        let shares: Vec<_> = candidates.iter().map(|c| c.multimodal()).collect();
        assert_eq!(shares, wanted);
    }

    fn item(hash: u64, size_bytes: u64) -> MultimodalItem {
        MultimodalItem { hash, modality: "image", size_bytes }
    }

    #[test]
    fn endpoints_hold_what_they_encoded_last() {
        let plugin = made("mm-embeddings-cache-producer", json!({"cacheSizeInMBPerServer": 4}));
        let observer = plugin.observer.as_ref().expect("it is an observer");
        let fleet = Fleet::of(3);
        let candidates = fleet.candidates();
        let mut routing = routed(&candidates[0]);
        let placed = |items, routing: &_| {
            observer.placed(
                &request(items),
                &PlacedRequest { ticket: 1, routing },
                Time::default(),
            );
        };
        let both = [item(1, 30), item(2, 10)];
        check(&plugin, &fleet, &both, &[Some(0.0); 3]);
        placed(&both[..1], &routing);
        check(&plugin, &fleet, &both, &[Some(0.75), Some(0.0), Some(0.0)]);
        routing.others.push(("encode".to_owned(), Pick { targets: candidates[1..].to_vec() }));
        placed(&both, &routing);
        check(&plugin, &fleet, &both, &[Some(0.75), Some(1.0), Some(1.0)]);
        // There is room for two.
        placed(&[item(3, 1)], &routing);
        check(&plugin, &fleet, &both, &[Some(0.75), Some(0.25), Some(0.25)]);
        observer.left(fleet.endpoints[0].worker);
        check(&plugin, &fleet, &both, &[Some(0.0), Some(0.25), Some(0.25)]);
        check(&plugin, &fleet, &[], &[None; 3]);
    }

    /// Keeps what it is told, in words.
    #[derive(Default)]
    struct Ear(Mutex<Vec<String>>);

    impl Meter for Ear {
        fn items_sought(&self, items: &[MultimodalItem]) {
            self.0.lock().push(format!("sought {:?}", hashes(items)));
        }

        fn items_held(&self, endpoint: &Endpoint, held: &[MultimodalItem], sought: usize) {
            let held = hashes(held);
            self.0.lock().push(format!("{} holds {held:?} of {sought}", endpoint.name));
        }

        fn fared(&self, _: &RequestLatencies<'_>) {}
    }

    fn hashes(items: &[MultimodalItem]) -> Vec<u64> {
        items.iter().map(|item| item.hash).collect()
    }

    #[test]
    fn lookups_are_told_each_item_once() {
        let plugin = made("mm-embeddings-cache-producer", json!({}));
        let (fleet, ear) = (Fleet::of(2), Arc::new(Ear::default()));
        plugin.measured.as_ref().expect("it is measured").measure_with(ear.clone());
        let routing = routed(&fleet.candidates()[1]);
        let placed = PlacedRequest { ticket: 1, routing: &routing };
        let seen = [item(1, 30)];
        let observer = plugin.observer.as_ref().expect("it is an observer");
        observer.placed(&request(&seen), &placed, Time::default());
        let mut candidates = fleet.candidates();
        let producer = plugin.producer.as_ref().expect("it is a producer");
        let items = [item(2, 10), item(1, 30), item(2, 10)];
        producer.produce(&request(&items), &mut candidates, Time::default());
        producer.produce(&request(&[]), &mut candidates, Time::default());
        let told = ["sought [1, 2]", "pod-0-rank-0 holds [] of 2", "pod-1-rank-0 holds [1] of 2"];
        assert_eq!(*ear.0.lock(), told);
    }

    #[test]
    fn a_cache_has_a_size() {
        let wanted = "cacheSizeInMBPerServer: 0 is not in 1..=1073741824";
        let parameters = json!({"cacheSizeInMBPerServer": 0});
        check_errors("mm-embeddings-cache-producer", parameters, &[wanted]);
    }
}
