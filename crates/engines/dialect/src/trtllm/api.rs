//! Request fields that a server supports. Versions differ, and refuse fields that they do not know.

use serde_json::Value;

/// Fields that only some versions have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Api {
    /// Completions have a priority; those of version 1.2 do not.
    pub(super) priority: bool,
    /// Completions have a cache salt; no known version does.
    pub(super) cache_salt: bool,
    /// A context server may be asked at the same time as the generation server.
    pub(super) schedule: bool,
    /// A generation server accepts the address of its context server.
    pub(super) place: bool,
}

impl Api {
    /// Reads the fields from the schema of `GET /openapi.json`.
    pub(super) fn of(described: &Value) -> Self {
        let has = |schema: &str, field: &str| {
            let path = format!("/components/schemas/{schema}/properties/{field}");
            described.pointer(&path).is_some()
        };
        Self {
            priority: has("CompletionRequest", "priority"),
            cache_salt: has("CompletionRequest", "cache_salt"),
            schedule: has("DisaggregatedParams", "schedule_style"),
            place: has("DisaggregatedParams", "ctx_info_endpoint"),
        }
    }

    /// Whether this generation server and a context server can be asked at once.
    pub(super) fn decodes_together(self) -> bool {
        self.schedule && self.place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_known_where_they_are_described() {
        let check = |completion: Value, params: Value| {
            Api::of(&json!({"components": {"schemas": {
                "CompletionRequest": {"properties": completion},
                "DisaggregatedParams": {"properties": params},
            }}}))
        };
        assert_eq!(check(json!({}), json!({})), Api::default());
        assert_eq!(Api::of(&json!({})), Api::default());
        assert_eq!(Api::of(&json!(null)), Api::default());
        let all = check(
            json!({"priority": {}, "cache_salt": {}}),
            json!({"schedule_style": {}, "ctx_info_endpoint": {}}),
        );
        assert_eq!(all, Api { priority: true, cache_salt: true, schedule: true, place: true });
        assert!(all.decodes_together());
        for params in [json!({"schedule_style": {}}), json!({"ctx_info_endpoint": {}})] {
            assert!(!check(json!({}), params).decodes_together());
        }
        // A field of another request is none of these.
        assert_eq!(check(json!({"schedule_style": {}}), json!({"priority": {}})), Api::default());
    }
}
