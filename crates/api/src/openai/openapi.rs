//! The description of the API that `/openapi.json` serves.

/// An OpenAPI 3.1 document.
pub const DOCUMENT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use crate::anthropic::body::MessagesBody;
    use crate::cache_control::CacheOptions;
    use crate::field_rules::{self, Standing};
    use crate::kserve::INPUTS;
    use crate::kserve::json::INFER_MEMBERS;
    use crate::openai::body::{AgentHints, Body, Extensions, StreamOptions};
    use crate::openai::nested;
    use crate::pooled::body::{PooledExtensions, RankingBody, ScoreBody, VectorBody};
    use crate::responses::body::{ResponseStreamOptions, ResponsesBody};
    use crate::tokenize::{DetokenizeBody, TokenizeBody};
    use crate::{Api, FieldNotes};
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    #[test]
    fn document_lists_every_route_and_its_references_resolve() {
        let document: Value = serde_json::from_str(super::DOCUMENT).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let routes = [
            ("/v1/chat/completions", "post"),
            ("/v1/completions", "post"),
            ("/v1/embeddings", "post"),
            ("/pooling", "post"),
            ("/v1/pooling", "post"),
            ("/v1/classify", "post"),
            ("/classify", "post"),
            ("/v1/rerank", "post"),
            ("/rerank", "post"),
            ("/v2/rerank", "post"),
            ("/v1/score", "post"),
            ("/score", "post"),
            ("/v1/responses", "post"),
            ("/v1/responses/input_tokens", "post"),
            ("/v1/responses/{id}", "get"),
            ("/v1/responses/{id}", "delete"),
            ("/v1/responses/{id}/cancel", "post"),
            ("/v1/responses/{id}/input_items", "get"),
            ("/v1/messages", "post"),
            ("/v1/messages/count_tokens", "post"),
            ("/v2", "get"),
            ("/v2/health/live", "get"),
            ("/v2/health/ready", "get"),
            ("/v2/models/{model}", "get"),
            ("/v2/models/{model}/ready", "get"),
            ("/v2/models/{model}/infer", "post"),
            ("/v2/models/{model}/generate", "post"),
            ("/v2/models/{model}/generate_stream", "post"),
            ("/tokenize", "post"),
            ("/detokenize", "post"),
            ("/v1/models/{model}/ready", "get"),
            ("/ping", "get"),
            ("/version", "get"),
            ("/fleet", "get"),
            ("/v1/models", "get"),
            ("/v1/models/{model}", "get"),
            ("/health", "get"),
            ("/live", "get"),
            ("/metrics", "get"),
            ("/openapi.json", "get"),
        ];
        for (path, method) in routes {
            assert!(document["paths"][path][method]["responses"].is_object(), "{method} {path}");
        }
        let paths: BTreeSet<_> = routes.iter().map(|(path, _)| *path).collect();
        assert_eq!(document["paths"].as_object().unwrap().len(), paths.len());
        check_references(&document, &document);
    }

    /// Fields that one of the two text APIs leaves to the other.
    const NOT_OF_CHATS: [&str; 2] = ["prompt", "echo"];
    const NOT_OF_COMPLETIONS: [&str; 12] = [
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "documents",
        "chat_template_kwargs",
        "reasoning_effort",
        "thinking",
        "thinking_token_budget",
        "thinking_budget",
        "add_generation_prompt",
        "continue_final_message",
    ];

    fn names(schema: &str) -> BTreeSet<String> {
        let document: Value = serde_json::from_str(super::DOCUMENT).unwrap();
        let known = &document["components"]["schemas"][schema]["properties"];
        let known = known.as_object().unwrap_or_else(|| panic!("no schema {schema}"));
        known.keys().cloned().collect()
    }

    /// The fields of a struct and those that its API takes beside them, below a path with its dot.
    fn taken(api: Api, path: &str, fields: &[&str]) -> BTreeSet<String> {
        let rules = field_rules::of(api).filter(|rule| rule.standing != Standing::Refused);
        let others = rules.filter_map(|rule| rule.name.strip_prefix(path));
        let others = others.filter(|name| !name.contains('.'));
        others.chain(fields.iter().copied()).map(str::to_owned).collect()
    }

    #[test]
    fn document_has_every_field_that_is_taken() {
        for (schema, api, fields) in [
            ("ResponsesRequest", Api::Responses, ResponsesBody::FIELDS),
            ("MessagesRequest", Api::Messages, MessagesBody::FIELDS),
            ("VectorRequest", Api::Embeddings, VectorBody::FIELDS),
            ("VectorRequest", Api::Pooling, VectorBody::FIELDS),
            ("RerankRequest", Api::Rerank, RankingBody::FIELDS),
            ("ScoreRequest", Api::Score, ScoreBody::FIELDS),
        ] {
            assert_eq!(names(schema), taken(api, "", fields), "{schema}");
        }
        for (schema, fields) in [
            ("TokenizeRequest", TokenizeBody::FIELDS),
            ("DetokenizeRequest", DetokenizeBody::FIELDS),
        ] {
            assert_eq!(names(schema), fields.iter().map(ToString::to_string).collect(), "{schema}");
        }
        for (schema, api, others) in [
            ("ChatRequest", Api::ChatCompletions, &NOT_OF_CHATS[..]),
            ("CompletionRequest", Api::Completions, &NOT_OF_COMPLETIONS[..]),
        ] {
            let mut fields = taken(api, "", Body::FIELDS);
            for other in others {
                assert!(fields.remove(*other) && is_refused(api, other), "{schema}: {other}");
            }
            if api == Api::Completions {
                assert!(fields.remove("top_logprobs"), "logprobs is a number there");
            }
            assert_eq!(names(schema), fields, "{schema}");
        }
        let mut generate = INPUTS.map(|(name, ..)| name).to_vec();
        generate.extend(["id", "parameters"]);
        let generate: BTreeSet<_> = generate.into_iter().map(str::to_owned).collect();
        assert_eq!(names("InferGenerateRequest"), generate);
        assert_eq!(names("InferRequest"), INFER_MEMBERS.map(str::to_owned).into());
    }

    #[test]
    fn document_has_every_member_of_objects_within_bodies() {
        let text = Api::ChatCompletions;
        assert_eq!(names("Extensions"), taken(text, "nvext.", Extensions::FIELDS));
        assert_eq!(
            names("PooledExtensions"),
            taken(Api::Score, "nvext.", PooledExtensions::FIELDS)
        );
        let options = |schema: &str, field: &str| {
            let document: Value = serde_json::from_str(super::DOCUMENT).unwrap();
            let field = &document["components"]["schemas"][schema]["properties"][field];
            field["properties"].as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>()
        };
        let cache = taken(text, "prompt_cache_options.", CacheOptions::FIELDS);
        for schema in ["ChatRequest", "CompletionRequest"] {
            let stream = taken(text, "stream_options.", StreamOptions::FIELDS);
            assert_eq!(options(schema, "stream_options"), stream, "{schema}");
            assert_eq!(options(schema, "prompt_cache_options"), cache, "{schema}");
        }
        let stream = taken(Api::Responses, "stream_options.", ResponseStreamOptions::FIELDS);
        assert_eq!(options("ResponsesRequest", "stream_options"), stream);
        assert_eq!(options("ResponsesRequest", "prompt_cache_options"), cache);
        assert_eq!(names("AgentHints"), taken(text, "nvext.agent_hints.", AgentHints::FIELDS));
        let schemas = [
            ("messages[]", "Message"),
            ("messages[].content[]", "ContentPart"),
            ("messages[].tool_calls[]", "ToolCall"),
            ("messages[].tool_calls[].function", "CalledFunction"),
            ("messages[].tool_calls[].custom", "CalledCustomTool"),
            ("tools[]", "Tool"),
            ("tools[].function", "FunctionDefinition"),
            ("tools[].custom", "CustomTool"),
            ("tools[].custom.format", "CustomToolFormat"),
            ("tools[].custom.format.grammar", "CustomToolGrammar"),
            ("tool_choice", "ToolChoice"),
            ("tool_choice.function", "ChosenTool"),
            ("tool_choice.allowed_tools", "AllowedTools"),
            ("tool_choice.allowed_tools.tools[]", "AllowedTool"),
            ("tool_choice.allowed_tools.tools[].function", "AllowedToolName"),
            ("response_format", "ResponseFormat"),
            ("response_format.json_schema", "JsonSchemaFormat"),
        ];
        for object in nested::OBJECTS {
            assert!(schemas.iter().any(|(place, _)| *place == object.place), "{}", object.place);
        }
        for (place, schema) in schemas {
            let objects = nested::OBJECTS.iter().filter(|object| object.place == place);
            let members = objects.flat_map(|object| object.members);
            let members: Vec<_> = members.copied().collect();
            assert_eq!(names(schema), taken(text, &format!("{place}."), &members), "{place}");
        }
    }

    /// Whether an API refuses a field, whatever asks for something by it.
    fn is_refused(api: Api, field: &str) -> bool {
        let values = [
            json!(true),
            json!(1),
            json!("low"),
            json!(["a"]),
            json!({"type": "enabled", "budget_tokens": 1}),
            json!([{"role": "user", "content": "a"}]),
            json!([{"type": "function", "function": {"name": "f"}}]),
        ];
        values.iter().all(|value| {
            let mut body = match api {
                Api::Completions => json!({"model": "m", "prompt": "a"}),
                _ => json!({"model": "m", "messages": [{"role": "user", "content": "a"}]}),
            };
            body[field] = value.clone();
            crate::read(api, body.to_string().as_bytes(), &FieldNotes::default()).is_err()
        })
    }

    fn check_references(document: &Value, value: &Value) {
        match value {
            Value::Object(members) => {
                for (key, member) in members {
                    if key == "$ref" {
                        let pointer = member.as_str().unwrap().trim_start_matches('#');
                        assert!(document.pointer(pointer).is_some(), "{member} leads nowhere");
                    }
                    check_references(document, member);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| check_references(document, item)),
            _ => {}
        }
    }
}
