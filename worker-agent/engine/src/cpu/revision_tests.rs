//! Guards [`super::model::KV_REVISION`]: the bits of a block are those of the revision.

use super::kernel::Isa;
use super::model::KV_REVISION;
use super::*;
use crate::testkit::{Driver, request_with};
use crate::{Engine, RequestKey};
use stator_protos::worker::Sampling;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Hash of the KV of four blocks, of each family of models.
fn bits(isa: Isa) -> u64 {
    let mut all = Vec::new();
    for name in ["llama3", "qwen3"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
        let mut model =
            Model::load(&ModelFiles::open(&folder).expect("its files")).expect("a model");
        model.isa = isa;
        let options = EngineOptions { total_blocks: 16, ..EngineOptions::default() };
        let mut driver = Driver::new(engine(Arc::new(model), options).expect("an engine"));
        let sampling = Sampling { max_tokens: 1, ..Sampling::neutral() };
        let tokens = (1..70).map(|token| token % 50).collect();
        let request = request_with(1, tokens, sampling);
        driver.submit(request);
        driver.engine.kv().keep(RequestKey(1));
        while driver.step() {}
        for block in 0..4 {
            let kv = driver.engine.kv().export(RequestKey(1), block);
            all.extend_from_slice(kv.expect("it is kept"));
        }
    }
    xxh3_64(&all)
}

/// If this fails, either put back what changed the bits, or raise `KV_REVISION` and write the new
/// values here: all tiers of built-in engines are cold after the update then.
#[test]
fn bits_of_a_block_are_those_of_the_revision() {
    assert_eq!(KV_REVISION, 1, "write the values of the new revision below");
    let found: Vec<_> = Isa::available().into_iter().map(|isa| (isa, bits(isa))).collect();
    let expected = |isa: &Isa| match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => 16_024_334_267_016_591_985,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => 16_024_334_267_016_591_985,
        Isa::Portable => 17_252_586_068_939_108_091,
    };
    let expected: Vec<_> = found.iter().map(|(isa, _)| (*isa, expected(isa))).collect();
    assert_eq!(found, expected);
}
