//! The description of the API that `/openapi.json` serves.

/// An OpenAPI 3.1 document.
pub const DOCUMENT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use crate::anthropic::body::MessagesBody;
    use crate::pooled::body::{RankingBody, ScoreBody, VectorBody};
    use crate::responses::body::ResponsesBody;
    use serde_json::Value;
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

    #[test]
    fn document_has_every_field_that_is_read() {
        let document: Value = serde_json::from_str(super::DOCUMENT).unwrap();
        for (schema, fields) in [
            ("ResponsesRequest", ResponsesBody::FIELDS),
            ("MessagesRequest", MessagesBody::FIELDS),
            ("VectorRequest", VectorBody::FIELDS),
            ("RerankRequest", RankingBody::FIELDS),
            ("ScoreRequest", ScoreBody::FIELDS),
        ] {
            let known = &document["components"]["schemas"][schema]["properties"];
            let known: BTreeSet<_> =
                known.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(known, fields.iter().copied().collect(), "{schema}");
        }
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
