//! Content of the small files of a model folder.

use super::ModelError;
use serde_json::Value;

/// The model's own sampling defaults, from `generation_config.json`; `None` if it does not set one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// 0 to 2.
    pub temperature: Option<f32>,
    /// Above 0, to 1.
    pub top_p: Option<f32>,
    /// 0 means no limit.
    pub top_k: Option<u32>,
    /// 0 to 1.
    pub min_p: Option<f32>,
    /// Above 0.
    pub repetition_penalty: Option<f32>,
    /// Most tokens of an answer.
    pub max_tokens: Option<u32>,
}

/// The special tokens that `transformers` gives to templates, in its order.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Parses a file that may be absent; an absent one is `null`.
pub(crate) fn json(name: &'static str, content: Option<&[u8]>) -> Result<Value, ModelError> {
    match content {
        Some(content) => {
            serde_json::from_slice(content).map_err(|source| ModelError::Json { name, source })
        }
        None => Ok(Value::Null),
    }
}

/// The chat templates: `chat_template.jinja` counts before what `tokenizer_config.json` has, which
/// is one template or a list of named ones.
pub(crate) fn templates(config: &Value, file: Option<&str>) -> Vec<(String, String)> {
    let default = |source: &str| vec![("default".to_owned(), source.to_owned())];
    match (file, &config["chat_template"]) {
        (Some(source), _) => default(source),
        (None, Value::String(source)) => default(source),
        (None, Value::Array(named)) => named
            .iter()
            .filter_map(|entry| {
                Some((entry["name"].as_str()?.to_owned(), entry["template"].as_str()?.to_owned()))
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The special tokens by the names that templates use. The configuration counts before
/// `special_tokens_map.json`.
pub(crate) fn special_tokens(config: &Value, map: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().or(value["content"].as_str()).map(str::to_owned);
    let token = |name: &str| {
        text(&config[name]).or_else(|| text(&map[name])).map(|token| (name.to_owned(), token))
    };
    SPECIAL_TOKENS.into_iter().filter_map(token).collect()
}

/// The sampling defaults. Values outside of what a request may say are dropped.
pub(crate) fn generation_defaults(config: &Value) -> GenerationDefaults {
    let number = |name: &str, low: f64, high: f64| {
        config[name].as_f64().filter(|value| (low..=high).contains(value)).map(|value| value as f32)
    };
    let positive = |name: &str, high: f64| number(name, 0.0, high).filter(|value| *value > 0.0);
    let count = |name: &str| config[name].as_u64().and_then(|count| u32::try_from(count).ok());
    GenerationDefaults {
        temperature: number("temperature", 0.0, 2.0),
        top_p: positive("top_p", 1.0),
        top_k: count("top_k"),
        min_p: number("min_p", 0.0, 1.0),
        repetition_penalty: positive("repetition_penalty", 2.0),
        max_tokens: count("max_new_tokens").filter(|max| *max > 0),
    }
}

/// The end-of-sequence tokens that a file names: one id or a list.
pub(crate) fn eos_ids(config: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match &config["eos_token_id"] {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

/// Most tokens of a prompt and its answer. Models of several parts keep it with their text part.
pub(crate) fn context_length(config: &Value, tokenizer_config: &Value) -> Option<u32> {
    const NAMES: [&str; 4] =
        ["max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"];
    let of = |part: &Value| NAMES.iter().find_map(|name| part[name].as_u64());
    of(config)
        .or_else(|| of(&config["text_config"]))
        // `transformers` writes 10^30 where it does not know.
        .or_else(|| tokenizer_config["model_max_length"].as_u64())
        .and_then(|length| u32::try_from(length).ok())
        .filter(|length| *length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn eos_is_one_id_or_several() {
        assert_eq!(eos_ids(&json!({"eos_token_id": 2})), [2]);
        assert_eq!(eos_ids(&json!({"eos_token_id": [1, 107, -1]})), [1, 107]);
        assert_eq!(eos_ids(&Value::Null), [0; 0]);
    }

    #[test]
    fn context_length_is_found_where_models_keep_it() {
        let length = |config, tokenizer| context_length(&config, &tokenizer);
        assert_eq!(
            length(json!({"max_position_embeddings": 4096}), json!({"model_max_length": 10})),
            Some(4096)
        );
        assert_eq!(
            length(json!({"text_config": {"max_position_embeddings": 8}}), Value::Null),
            Some(8)
        );
        assert_eq!(length(json!({}), json!({"model_max_length": 512})), Some(512));
        assert_eq!(length(json!({}), json!({"model_max_length": 1e30})), None);
    }

    #[test]
    fn special_tokens_are_texts_or_objects_in_two_files() {
        let config = json!({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": null});
        let map = json!({"bos_token": "no", "eos_token": "</s>", "additional_special_tokens": []});
        let expected = [("bos_token", "<s>"), ("eos_token", "</s>")];
        assert_eq!(
            special_tokens(&config, &map),
            expected.map(|(name, text)| (name.to_owned(), text.to_owned()))
        );
    }

    #[test]
    fn templates_are_one_or_named_and_a_file_counts_first() {
        let named = json!({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]});
        let pair = |name: &str, source: &str| (name.to_owned(), source.to_owned());
        assert_eq!(templates(&named, None), [pair("default", "a"), pair("tool_use", "b")]);
        assert_eq!(templates(&named, Some("c")), [pair("default", "c")]);
        assert_eq!(templates(&json!({"chat_template": "d"}), None), [pair("default", "d")]);
        assert!(templates(&Value::Null, None).is_empty());
    }

    #[test]
    fn sampling_defaults_out_of_range_are_dropped() {
        let defaults = generation_defaults(
            &json!({"temperature": 0.6, "top_p": 0, "top_k": -1, "max_new_tokens": 7}),
        );
        let expected = GenerationDefaults {
            temperature: Some(0.6),
            max_tokens: Some(7),
            ..Default::default()
        };
        assert_eq!(defaults, expected);
    }
}
