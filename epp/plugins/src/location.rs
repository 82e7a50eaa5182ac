//! Places of endpoints, as far as their labels tell.

use parking_lot::Mutex;
use stator_epp_scheduler::Endpoint;
use stator_epp_scheduler::plugin::Pick;
use std::sync::Arc;

/// Labels that tell where an endpoint is, the closest level first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Levels(pub(crate) [String; 4]);

impl Default for Levels {
    fn default() -> Self {
        let labels = [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/rack",
            "topology.kubernetes.io/zone",
            "topology.kubernetes.io/region",
        ];
        Self(labels.map(str::to_owned))
    }
}

/// The values of the labels of an endpoint, the closest level first.
pub(crate) type Location = [Option<String>; 4];

impl Levels {
    pub(crate) fn locate(&self, endpoint: &Endpoint) -> Location {
        self.0.each_ref().map(|label| endpoint.label(label).map(str::to_owned))
    }

    /// The closest level that two places have in common, 0 for the same host.
    pub(crate) fn common(&self, place: &Location, endpoint: &Endpoint) -> Option<usize> {
        let mut levels = self.0.iter().zip(place);
        levels.position(|(label, value)| {
            value.as_deref().is_some_and(|value| endpoint.label(label) == Some(value))
        })
    }
}

/// The endpoint that an earlier profile of the same request chose. Requests of a pool are
/// scheduled one at a time, so that one place is enough.
#[derive(Clone, Default)]
pub(crate) struct PeerEndpoint(pub(crate) Arc<Mutex<Option<Endpoint>>>);

impl PeerEndpoint {
    /// A new request: there is no peer yet.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }

    /// The first choice of a profile is the peer of those that run after it.
    pub(crate) fn meet(&self, pick: Option<&Pick<'_>>) {
        let target = pick.and_then(|pick| pick.targets.first());
        if let Some(target) = target {
            *self.0.lock() = Some(target.endpoint.clone());
        }
    }
}
