//! The files of a model load, or are refused with a reason.
//!
//! An input is the content of `tokenizer.json`, `tokenizer_config.json`, `config.json`,
//! `generation_config.json`, `special_tokens_map.json` and `chat_template.jinja`, with zero bytes
//! between them; an empty `tokenizer.json` stands for a small one that is sound.

use bytes::Bytes;
use stator_model::Model;

const NAMES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];
const TOKENIZER: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,
"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}}"#;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let mut files: Vec<(String, Bytes)> = NAMES
        .iter()
        .zip(input.split(|byte| *byte == 0))
        .map(|(name, content)| ((*name).to_owned(), Bytes::copy_from_slice(content)))
        .filter(|(name, content)| *name == NAMES[0] || !content.is_empty())
        .collect();
    if let Some((_, tokenizer)) = files.first_mut().filter(|(_, content)| content.is_empty()) {
        *tokenizer = Bytes::from_static(TOKENIZER.as_bytes());
    }
    match Model::load("m", &files) {
        Ok(model) => assert!(model.eos_ids().is_sorted()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
