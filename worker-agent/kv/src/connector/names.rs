//! From the engine's keys to names of blocks.

use super::wire::EngineKey;
use stator_protos::name::BlockName;

/// The names of an engine's blocks, apart from those of engines of another form and from those
/// under another namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyNames {
    key: [u8; 32],
}

impl KeyNames {
    /// Names under the fingerprint of a form. A namespace of zeros is none.
    pub fn new(fingerprint: &[u8; 32], namespace: &[u8; 16]) -> Self {
        let key = if *namespace == [0; 16] {
            *fingerprint
        } else {
            *blake3::keyed_hash(fingerprint, namespace).as_bytes()
        };
        Self { key }
    }

    /// The first 128 bits of keyed BLAKE3 over the key. The engine's hash may be of any kind; so
    /// nobody finds a key whose name is that of another form's block.
    pub fn name(&self, key: &EngineKey) -> BlockName {
        let hash = blake3::keyed_hash(&self.key, &key.0);
        let (halves, _) = hash.as_bytes().as_chunks();
        BlockName(u128::from_le_bytes(halves[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> EngineKey {
        EngineKey(std::array::from_fn(|at| at as u8))
    }

    #[test]
    fn a_name_is_of_fingerprint_namespace_hash_and_group() {
        let name = |fingerprint, namespace, key: EngineKey| {
            KeyNames::new(&[fingerprint; 32], &[namespace; 16]).name(&key)
        };
        let mut other_group = key();
        other_group.0[35] ^= 1;
        let mut other_hash = key();
        other_hash.0[0] ^= 1;
        let first = name(1, 0, key());
        assert_eq!(name(1, 0, key()), first);
        for other in
            [name(2, 0, key()), name(1, 1, key()), name(1, 0, other_group), name(1, 0, other_hash)]
        {
            assert_ne!(other, first);
        }
    }

    /// Keys as vLLM 0.32.0 computes them, see `hash_vectors_equal_the_engine`.
    #[test]
    fn names_of_the_engines_keys_stay_what_they_are() {
        let cases = include_str!("../../fixtures/vllm-0.32.0-keys.json");
        let cases: serde_json::Value = serde_json::from_str(cases).unwrap();
        let names = KeyNames::new(&[7; 32], &[0; 16]);
        let mut all = std::collections::HashSet::new();
        for case in cases.as_array().unwrap() {
            let keys = case["keys"].as_array().unwrap().iter().map(|key| {
                let key = key.as_str().unwrap();
                let byte = |at: usize| u8::from_str_radix(&key[2 * at..][..2], 16).unwrap();
                format!("{:032x}", names.name(&EngineKey(std::array::from_fn(byte))).0)
            });
            let keys: Vec<_> = keys.collect();
            assert_eq!(serde_json::json!(keys), case["names"], "{}", case["prompt"]);
            all.extend(keys);
        }
        assert_eq!(all.len(), 15, "two blocks have one name");
    }

    /// Blocks on disk outlive the agent's version.
    #[test]
    fn names_stay_what_they_are() {
        let plain = KeyNames::new(&[7; 32], &[0; 16]).name(&key());
        let spaced = KeyNames::new(&[7; 32], &[9; 16]).name(&key());
        let expected = (0x1dd5e47f54ddc0f8869acc23f32351fb, 0x8bc55303632a643b90d9fdafd7a5c2b);
        assert_eq!((plain.0, spaced.0), expected);
    }
}
