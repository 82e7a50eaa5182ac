//! The description of the API that `/openapi.json` serves.

/// An OpenAPI 3.1 document.
pub const DOCUMENT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use serde_json::Value;

    #[test]
    fn document_lists_every_route_and_its_references_resolve() {
        let document: Value = serde_json::from_str(super::DOCUMENT).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let routes = [
            ("/v1/chat/completions", "post"),
            ("/v1/completions", "post"),
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
        assert_eq!(document["paths"].as_object().unwrap().len(), routes.len());
        check_references(&document, &document);
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
