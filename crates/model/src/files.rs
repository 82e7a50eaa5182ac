//! Content of the small files of a model folder.

use super::ModelError;
use serde_json::Value;
use stator_protos::sampling::{Number, Numbers, OpenSampling};

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

/// The model's own sampling defaults, from `generation_config.json`. Values that no request may give
/// are dropped.
pub(crate) fn sampling_defaults(config: &Value) -> OpenSampling {
    let mut numbers = Numbers::default();
    for number in Number::ALL.into_iter().filter(|number| number.is_in_model_files()) {
        let value = config[number.name()].as_f64();
        let value = value.filter(|value| number.range().contains(*value));
        numbers.set(number, value.map(|value| value as f32));
    }
    let count = |name: &str| config[name].as_u64().and_then(|count| u32::try_from(count).ok());
    OpenSampling {
        numbers,
        top_k: count("top_k"),
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

/// The names of the classes that a model's head tells apart, in their order; none for a model without
/// such a head, or with a class that has no name.
pub(crate) fn class_labels(config: &Value) -> Vec<String> {
    let Some(labels) = config["id2label"].as_object() else { return Vec::new() };
    let label = |class: usize| labels.get(&class.to_string())?.as_str().map(str::to_owned);
    (0..labels.len()).map(label).collect::<Option<_>>().unwrap_or_default()
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
    fn classes_are_named_in_the_order_of_their_numbers() {
        let labels = |labels| class_labels(&json!({"id2label": labels}));
        assert_eq!(labels(json!({"1": "yes", "0": "no"})), ["no", "yes"]);
        for nameless in [json!({"1": "yes"}), json!({"0": 7}), json!({}), json!(["no"])] {
            assert_eq!(labels(nameless), [""; 0]);
        }
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
        let defaults = sampling_defaults(
            &json!({"temperature": 0.6, "top_p": 0, "top_k": -1, "max_new_tokens": 7}),
        );
        let mut numbers = Numbers::default();
        numbers.set(Number::Temperature, Some(0.6));
        let expected = OpenSampling { numbers, max_tokens: Some(7), top_k: None };
        assert_eq!(defaults, expected);
    }
}
