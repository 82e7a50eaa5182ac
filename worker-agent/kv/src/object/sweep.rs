//! Keeps a directory within its capacity.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::bucket::ObjectKind;
use super::counts::Counters;
use super::settings::ObjectUrl;
use super::shared::{Shared, unix_ms};

/// A directory is swept whenever this part of its capacity has been written since.
pub(crate) const CAPACITY_PER_SWEEP: u64 = 16;
/// Age at which an index object without extents is deleted.
const LONELY_INDEX_MS: i64 = 3_600_000;

/// An object of the directory.
#[derive(Clone, Debug)]
struct Listed {
    path: Path,
    kind: ObjectKind,
    bytes: u64,
    modified_unix_ms: i64,
}

/// Deletes the oldest extents where there are too many, of whichever form and agent, and index
/// objects that tell of no extent any more.
///
/// Several agents may do so at the same time: all delete in the order of age, so together they delete
/// no more than one of them would. A read that has begun goes on in the deleted file, which the file
/// system keeps until it is closed; over NFS the reader's next request fails. Either way a block that
/// was deleted is a miss, and every block that is read is verified.
pub(crate) async fn sweep(shared: &Shared) {
    let (Some(capacity), ObjectUrl::Directory(_)) =
        (shared.settings.capacity_bytes, &shared.settings.url)
    else {
        return;
    };
    let store = &shared.edges.store;
    // Files that another agent deletes meanwhile are left out.
    let listed = store.list(shared.paths.root()).filter(|meta| {
        let is_gone = matches!(meta, Err(object_store::Error::NotFound { .. }));
        std::future::ready(!is_gone)
    });
    let listed = listed.try_filter_map(async |meta| {
        Ok(shared.paths.kind(&meta.location).map(|kind| Listed {
            path: meta.location,
            kind,
            bytes: meta.size,
            modified_unix_ms: meta.last_modified.timestamp_millis(),
        }))
    });
    let listed: Vec<Listed> = match listed.try_collect().await {
        Ok(listed) => listed,
        Err(error) => return tracing::warn!(%error, "kv-object: the directory cannot be listed"),
    };
    for doomed in plan(listed, capacity, unix_ms() as i64) {
        match store.delete(&doomed.path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(%error, "kv-object: the directory cannot be kept within its room");
                return;
            }
        }
        if let ObjectKind::Extent { fingerprint, id } = doomed.kind {
            Counters::add(&shared.counters.extents_deleted, 1);
            if fingerprint == shared.form.fingerprint {
                shared.forget_extent(id);
            }
        }
    }
}

/// Extents to delete so that the others have at most `capacity` bytes.
///
/// An index object tells of nothing that was written after it. So one that is older than all
/// extents of its form tells of none that is there.
fn plan(mut listed: Vec<Listed>, capacity: u64, now_unix_ms: i64) -> Vec<Listed> {
    listed.sort_by_key(|object| object.modified_unix_ms);
    let is_extent = |object: &&Listed| matches!(object.kind, ObjectKind::Extent { .. });
    let mut held: u64 = listed.iter().filter(is_extent).map(|object| object.bytes).sum();
    let mut doomed = Vec::new();
    // By form, when the oldest extent that stays was written.
    let mut oldest = BTreeMap::new();
    for object in &listed {
        let ObjectKind::Extent { fingerprint, .. } = object.kind else { continue };
        if held > capacity {
            held -= object.bytes;
            doomed.push(object.clone());
        } else {
            oldest.entry(fingerprint).or_insert(object.modified_unix_ms);
        }
    }
    doomed.extend(listed.into_iter().filter(|object| {
        let ObjectKind::Index { fingerprint } = object.kind else { return false };
        let needed_from = oldest.get(&fingerprint).copied();
        object.modified_unix_ms < needed_from.unwrap_or(now_unix_ms - LONELY_INDEX_MS)
    }));
    doomed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::extent::ExtentId;

    fn extent(form: u8, number: u8, bytes: u64, modified_unix_ms: i64) -> Listed {
        let kind = ObjectKind::Extent { fingerprint: [form; 32], id: ExtentId([number; 32]) };
        Listed { path: Path::from(format!("e{number}")), kind, bytes, modified_unix_ms }
    }

    fn index(form: u8, number: u8, modified_unix_ms: i64) -> Listed {
        let kind = ObjectKind::Index { fingerprint: [form; 32] };
        Listed { path: Path::from(format!("i{number}")), kind, bytes: 1000, modified_unix_ms }
    }

    fn check(listed: &[Listed], capacity: u64, expected: &[&str]) {
        let doomed = plan(listed.to_vec(), capacity, 10_000_000);
        let doomed: Vec<_> = doomed.iter().map(|object| object.path.as_ref()).collect();
        assert_eq!(doomed, expected, "capacity {capacity}");
    }

    #[test]
    fn the_oldest_extents_go_first_and_then_indexes_of_nothing() {
        let listed = [
            extent(1, 3, 10, 9_999_300),
            extent(1, 1, 10, 9_999_100),
            extent(2, 2, 10, 9_999_200),
            index(1, 1, 9_999_100),
            index(1, 2, 9_999_150),
            index(2, 3, 9_999_250),
            index(3, 4, 5_000_000),
            index(3, 5, 9_000_000),
        ];
        check(&listed, 30, &["i4"]);
        check(&listed, 29, &["e1", "i4", "i1", "i2"]);
        check(&listed, 10, &["e1", "e2", "i4", "i1", "i2"]);
        check(&listed, 9, &["e1", "e2", "e3", "i4"]);
    }
}
