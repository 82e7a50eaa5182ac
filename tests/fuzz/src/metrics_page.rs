//! Any page gives a load within its bounds or says what is missing, and a sound page always the
//! same load, whatever stood where before.

use stator_epp_scheduler::{Endpoint, EngineLoad, Roles};
use stator_epp_signals::scrape::{LoadReader, Mapping, Mappings};
use stator_protos::{WorkerId, WorkerRank};
use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

const ENGINES: [&str; 5] = ["vllm", "sglang", "trtllm-serve", "triton", "triton-tensorrt-llm"];

static MAPPINGS: LazyLock<Vec<Arc<Mapping>>> = LazyLock::new(|| {
    let mapping = |engine: &&str| {
        let mut mappings = Mappings::default();
        assert!(mappings.set_default(engine), "{engine} is known");
        mappings.of(&endpoint())
    };
    ENGINES.iter().map(mapping).collect()
});

/// Runs the target.
pub(crate) fn run(page: &[u8]) {
    for mapping in MAPPINGS.iter() {
        let mut reader = LoadReader::new(mapping.clone());
        let first = reader.read(page).cloned();
        let second = reader.read(page).cloned();
        first.iter().chain(&second).for_each(check);
        if !is_in_order(page) {
            continue;
        }
        assert_eq!(first, second);
        let Ok(load) = first else { continue };
        // A page from which lines went, as when labels become shorter, and the page again.
        let shorter = page.iter().position(|byte| *byte == b'\n').map_or(page, |at| &page[at..]);
        let _ = reader.read(shorter);
        let again = reader.read(page).cloned().expect("it was complete");
        assert_eq!((again.waiting, again.running), (load.waiting, load.running));
        assert_eq!(again.kv_usage, load.kv_usage);
    }
}

/// Whether the series of each metric stand together, as both formats want it; a page on which they
/// do not says different things by where one begins to look.
fn is_in_order(page: &[u8]) -> bool {
    let mut seen = HashSet::new();
    let mut last: &[u8] = b"";
    page.split(|byte| *byte == b'\n').all(|line| {
        let end = line.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t'));
        let name = &line[..end.unwrap_or(line.len())];
        let goes_on = name == last || name.starts_with(b"#") || name.is_empty();
        last = name;
        goes_on || seen.insert(name)
    })
}

fn check(load: &EngineLoad) {
    assert!((0.0..=1.0).contains(&load.kv_usage), "{load:?}");
    assert!(load.cache.is_none_or(|cache| cache.block_size > 0 && cache.blocks > 0));
    let names = load.lora.iter().flat_map(|lora| lora.running.iter().chain(&lora.waiting));
    assert!(names.clone().all(|name| !name.is_empty()) && names.count() <= 2 * 4096);
}

fn endpoint() -> Endpoint {
    Endpoint {
        worker: WorkerRank { worker: WorkerId(1), rank: 0 },
        uid: "".into(),
        name: "a".into(),
        pod: "a".into(),
        namespace: "default".into(),
        address: ([127, 0, 0, 1], 8000).into(),
        labels: Arc::default(),
        roles: Roles::default(),
    }
}
