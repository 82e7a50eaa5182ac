//! Objects of one kind that a back-end has reported.

use stator_kube::Report;
use std::collections::BTreeMap;

/// Things of one kind that are remembered; further ones are not taken in.
pub(crate) const OBJECTS_MAX: usize = 100_000;

/// Things by name, as they were last told.
#[derive(Debug)]
pub(crate) struct KnownObjects<T> {
    pub(crate) objects: BTreeMap<String, T>,
    /// Whether all of them were told once.
    pub(crate) listed: bool,
    /// Whether the back-end is out of reach.
    pub(crate) lost: bool,
}

impl<T> Default for KnownObjects<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), listed: false, lost: false }
    }
}

impl<T> KnownObjects<T> {
    pub(crate) fn apply(&mut self, report: Report<T>) {
        match report {
            Report::Listed(objects) => {
                self.objects = objects;
                self.listed = true;
            }
            Report::Set(name, Some(object)) => {
                if self.objects.len() < OBJECTS_MAX || self.objects.contains_key(&name) {
                    self.objects.insert(name, object);
                }
            }
            Report::Set(name, None) => drop(self.objects.remove(&name)),
            Report::Lost => self.lost = true,
            Report::Found => self.lost = false,
        }
    }
}
