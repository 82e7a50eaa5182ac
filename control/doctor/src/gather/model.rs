//! Facts about a folder with a model.

use super::text;
use crate::facts::{ModelFacts, WeightContent, WeightFile};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Start of a file that Git LFS has not replaced by the weights.
const POINTER: &[u8] = b"version https://git-lfs";
/// Longest head of a file of weights, bytes.
const HEAD_BYTES_MAX: u64 = 100 << 20;

pub(crate) fn gather(folder: &Path) -> ModelFacts {
    let mut facts = ModelFacts { folder: folder.to_owned(), ..ModelFacts::default() };
    let names = match names(folder) {
        Ok(names) => names,
        Err(error) => {
            facts.error = Some(error.to_string());
            return facts;
        }
    };
    if names.contains("config.json") {
        facts.architectures = Some(architectures(&folder.join("config.json")));
    }
    facts.has_tokenizer = names.contains("tokenizer.json");
    facts.has_chat_template = names.contains("chat_template.jinja")
        || json(&folder.join("tokenizer_config.json"))
            .is_ok_and(|config| !config["chat_template"].is_null());
    let is_weights = |name: &&String| name.ends_with(".safetensors");
    facts.weights = names.iter().filter(is_weights).map(|name| weights(folder, name)).collect();
    let index = json(&folder.join("model.safetensors.index.json")).unwrap_or_default();
    let files = index["weight_map"].as_object().into_iter().flat_map(|map| map.values());
    let named: BTreeSet<_> = files.filter_map(Value::as_str).collect();
    let missing = named.into_iter().filter(|name| !names.contains(*name));
    facts.missing = missing.map(str::to_owned).collect();
    facts
}

fn names(folder: &Path) -> std::io::Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(folder)?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

fn json(path: &Path) -> Result<Value, String> {
    let text = text(path).ok_or("cannot be read")?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

fn architectures(path: &Path) -> Result<Vec<String>, String> {
    let config = json(path)?;
    let names = config["architectures"].as_array().into_iter().flatten();
    Ok(names.filter_map(|name| name.as_str().map(str::to_owned)).collect())
}

fn weights(folder: &Path, name: &str) -> WeightFile {
    let path = folder.join(name);
    let bytes = std::fs::metadata(&path).map_or(0, |of| of.len());
    let content = content(&path).unwrap_or_else(|e| WeightContent::Unreadable(e.to_string()));
    WeightFile { name: name.to_owned(), bytes, content }
}

/// The size that the head of a file declares: 8 bytes with the length of a JSON head, the head, and
/// tensors up to the largest end among its `data_offsets`.
///
/// Source: the format of safetensors.
fn content(path: &Path) -> std::io::Result<WeightContent> {
    let mut file = File::open(path)?;
    let mut start = Vec::new();
    (&mut file).take(POINTER.len() as u64).read_to_end(&mut start)?;
    if start == POINTER {
        return Ok(WeightContent::Pointer);
    }
    let unreadable = |why: &str| Ok(WeightContent::Unreadable(why.to_owned()));
    let Some(length) = start.first_chunk() else { return unreadable("it has no head") };
    let length = u64::from_le_bytes(*length);
    if length > HEAD_BYTES_MAX {
        return unreadable("its head is longer than 100 MiB");
    }
    let mut head = start[8..].to_vec();
    file.take(length.saturating_sub(head.len() as u64)).read_to_end(&mut head)?;
    head.truncate(length as usize);
    let Ok(tensors) = serde_json::from_slice::<BTreeMap<String, Value>>(&head) else {
        return unreadable("its head is not JSON");
    };
    let ends = tensors.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    Ok(WeightContent::Declared(8 + length + ends.max().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of one tensor of 4 bytes.
    fn file() -> Vec<u8> {
        let head = br#"{"__metadata__":{},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        [&(head.len() as u64).to_le_bytes()[..], head, &[0; 4]].concat()
    }

    #[test]
    fn a_folder_of_a_model_becomes_facts() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| {
            std::fs::write(folder.path().join(name), content).unwrap();
        };
        write("config.json", br#"{"architectures": ["LlamaForCausalLM"]}"#);
        write("tokenizer.json", b"{}");
        write("tokenizer_config.json", br#"{"chat_template": "{{ messages }}"}"#);
        write("a.safetensors", &file());
        write("b.safetensors", &file()[..80]);
        write("c.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
        write("d.safetensors", b"{}");
        let index = br#"{"weight_map": {"x": "a.safetensors", "y": "z.safetensors"}}"#;
        write("model.safetensors.index.json", index);
        let facts = gather(folder.path());
        assert_eq!(facts.architectures, Some(Ok(vec!["LlamaForCausalLM".to_owned()])));
        assert!(facts.has_tokenizer && facts.has_chat_template);
        assert_eq!(facts.missing, ["z.safetensors"]);
        let whole = file().len() as u64;
        let found: Vec<_> = facts.weights.iter().map(|of| (of.bytes, of.content.clone())).collect();
        let expected = [
            (whole, WeightContent::Declared(whole)),
            (80, WeightContent::Declared(whole)),
            (56, WeightContent::Pointer),
            (2, WeightContent::Unreadable("it has no head".into())),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let facts = gather(Path::new("/nowhere/at/all"));
        assert!(facts.error.is_some_and(|error| error.contains("No such file")));
    }
}
