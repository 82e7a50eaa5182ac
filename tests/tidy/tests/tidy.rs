//! The limits of the house, held by what the source says. A limit that is not yet the aim says so.

use stator_tidy::{circles, rooms, sizes, source, words};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Lines of a file and of a function.
const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
/// Parameters of a function, `self` not among them.
const PARAMETERS_MAX: usize = 6;
/// Share of visible types whose name three or more have, in percent.
const SHARED_NAMES_MAX_PERCENT: usize = 7;
/// Share of doc comments that begin with a word that stands for a noun, in percent.
const HEADLESS_DOCS_MAX_PERCENT: usize = 1;
/// Files that a new sampling parameter touches, the protobuf file among them. Measured by one that is
/// a plain number, and known to every engine.
const SAMPLING_FILES_MAX: usize = 7;

/// Rooms from the ground up: a room uses those before it, and itself.
const SHARED_ROOMS: [&str; 12] = [
    "protos",
    "crates/runtime",
    "crates/report",
    "crates/timing",
    "crates/events",
    "crates/placement",
    "crates/api",
    "crates/model",
    "crates/engines",
    "crates/fleet",
    "crates/bench",
    "crates/chat",
];
const DEPLOYABLES: [&str; 4] = ["epp", "proxy", "worker-agent", "control"];

/// Words of the outside world, and the folders that alone may know them.
const ONLY_KNOWN_TO: [(&str, &str); 8] = [
    ("libloading", "worker-agent/nixl/"),
    ("cudarc", "worker-agent/cuda/"),
    ("envoy_types", "epp/src/ext_proc/"),
    ("k8s_openapi", "crates/runtime/kube/"),
    ("pingora", "proxy/src/"),
    ("do_remote_decode", "crates/engines/"),
    ("remote_block_ids", "crates/engines/"),
    ("remote_engine_id", "crates/engines/"),
];

/// Files are read, and functions measured, once for all tests.
static FILES: LazyLock<Vec<source::SourceFile>> = LazyLock::new(source::production);
static FUNCTIONS: LazyLock<Vec<sizes::Function>> = LazyLock::new(|| sizes::functions(&FILES));

#[test]
fn arrows_between_rooms_point_one_way() {
    let crates = rooms::crates();
    let by_name: BTreeMap<_, _> = crates.iter().map(|of| (&of.name, of)).collect();
    let shared = |room| SHARED_ROOMS.iter().position(|known| *known == room);
    let mut wrong = Vec::new();
    for from in &crates {
        for to in from.uses.iter().map(|name| by_name[name]) {
            let (room, used) = (from.room(), to.room());
            let allowed = match (shared(room), shared(used)) {
                (Some(above), Some(below)) => below <= above,
                (Some(_), None) => false,
                // The binary starts every role; tests may use whatever they test.
                // So may the simulator, which runs the agents' own block store.
                (None, None) => {
                    let simulates = room == "control" && to.folder == "worker-agent/kv";
                    room == used || simulates || matches!(room, "stator" | "tests")
                }
                (None, Some(_)) => {
                    DEPLOYABLES.contains(&room) || matches!(room, "stator" | "tests")
                }
            };
            if !allowed {
                wrong.push(format!("{} -> {}", from.folder, to.folder));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn only_the_edges_know_the_outside() {
    for file in &*FILES {
        for (word, folder) in ONLY_KNOWN_TO {
            let knows = file.text.contains(word);
            assert!(!knows || file.path.starts_with(folder), "{} knows {word}", file.path);
        }
    }
}

#[test]
fn crates_are_called_as_their_folders() {
    for of in rooms::crates() {
        let name = of.name.trim_start_matches("stator-");
        let folder = of.folder.replace('/', "-");
        assert!(folder == name || folder.ends_with(&format!("-{name}")), "{of:?}");
    }
}

#[test]
fn files_and_functions_stay_short() {
    assert!(FILES.len() > 700, "found {} files", FILES.len());
    let mut long: Vec<_> = FILES
        .iter()
        .filter(|file| file.text.lines().count() > FILE_LINES_MAX)
        .map(|file| file.path.clone())
        .collect();
    assert!(FUNCTIONS.len() > 5_000, "found {} functions", FUNCTIONS.len());
    let too_long = FUNCTIONS.iter().filter(|function| {
        function.lines > FUNCTION_LINES_MAX || function.parameters > PARAMETERS_MAX
    });
    long.extend(too_long.map(|function| format!("{function:?}")));
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn parameters_do_not_hide_in_tuples() {
    let hidden = FUNCTIONS.iter().filter(|function| function.tuples > 0);
    let places: Vec<_> = hidden.map(|function| &function.place).collect();
    assert!(places.is_empty(), "{} functions: {places:#?}", places.len());
}

#[test]
fn no_files_need_one_another() {
    let circles = circles::circles(&FILES);
    let involved: usize = circles.iter().map(Vec::len).sum();
    assert!(circles.is_empty(), "{involved} files in {} circles: {circles:#?}", circles.len());
}

#[test]
fn few_types_share_a_name() {
    let types = words::types(&FILES);
    let all: usize = types.values().map(Vec::len).sum();
    let shared = types.iter().filter(|(_, places)| places.len() > 2);
    let many: usize = shared.clone().map(|(_, places)| places.len()).sum();
    let names: Vec<_> = shared.map(|(name, places)| (name, places.len())).collect();
    assert!(100 * many <= SHARED_NAMES_MAX_PERCENT * all, "{many} of {all} types: {names:?}");
}

#[test]
fn doc_comments_begin_with_their_thing() {
    let docs = words::doc_lines(&FILES);
    let (all, headless) = (docs.all, docs.headless.len());
    let allowed = HEADLESS_DOCS_MAX_PERCENT * all / 100;
    assert!(headless <= allowed, "{headless} of {all}: {:#?}", docs.headless);
}

#[test]
fn a_new_sampling_parameter_touches_few_files() {
    let naming = words::naming(&FILES, "min_p");
    assert!(naming.contains(&"protos/src/sampling.rs"), "{naming:#?}");
    // One more is the protobuf file.
    assert!(naming.len() < SAMPLING_FILES_MAX, "{naming:#?}");
}
