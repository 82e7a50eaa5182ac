//! A model's thoughts before its answer: whether there are any, and how long they may be.

use crate::json::Json;
use crate::openai::ApiError;
use crate::openai::body::Body;
use crate::openai::options::integer;
use crate::request::{GenerateRequest, Input, ThoughtBudget};
use crate::tree::{JsonPath, Members};

/// Path of NVIDIA Dynamo's budget, in the words of error messages.
const EXTENSION_BUDGET: &str = "nvext.max_thinking_tokens";
/// Path of the budget in the object that says whether to think.
const OBJECT_BUDGET: &str = "thinking.budget_tokens";

/// The field `thinking`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Thinking {
    /// Whether the model is to think, if the client says so.
    pub enabled: Option<bool>,
    /// Most tokens of thoughts.
    pub budget_tokens: Option<u32>,
}

/// The budget that a body's own fields ask for.
///
/// # Errors
///
/// 400 for a number out of range, 422 for two budgets.
pub(crate) fn budget(body: &Body<'_>) -> Result<Option<ThoughtBudget>, ApiError> {
    let hinted = body.nvext.as_ref().and_then(|extensions| extensions.max_thinking_tokens);
    let fields = [
        ("thinking_token_budget", body.thinking_token_budget),
        ("thinking_budget", body.thinking_budget),
        (EXTENSION_BUDGET, hinted),
    ];
    let mut found = None;
    for (field, value) in fields {
        let Some(tokens) = integer(field, value, 0..=i64::from(u32::MAX))? else { continue };
        found = Some(only(found, ThoughtBudget { tokens, field, is_usual: false })?);
    }
    Ok(found)
}

/// The one budget of a request.
fn only(found: Option<ThoughtBudget>, other: ThoughtBudget) -> Result<ThoughtBudget, ApiError> {
    match found {
        None => Ok(other),
        Some(ThoughtBudget { field, .. }) => {
            let message = format!("{field} and {} each bound the thoughts: one may", other.field);
            Err(ApiError::impossible(other.field, message))
        }
    }
}

/// Reads `thinking`, as Anthropic's API has it; GLM's and DeepSeek's chats have it, too.
///
/// # Errors
///
/// 400 for a type that is none, and for a budget that is no number of tokens.
pub(crate) fn thinking(thinking: Json<'_>, path: JsonPath<'_>) -> Result<Thinking, ApiError> {
    let mut thinking = Members::of(thinking, path)?;
    let enabled = match &*thinking.required_text("type")? {
        "enabled" => Some(true),
        "disabled" => Some(false),
        "adaptive" | "between_tools" => None,
        kind => {
            let fault =
                format!("is {kind:?}, it must be \"enabled\", \"disabled\" or \"adaptive\"");
            return Err(JsonPath::Member(&path, "type").invalid(fault));
        }
    };
    let budget_tokens = match thinking.take("budget_tokens") {
        None => None,
        Some(value) => {
            let path = JsonPath::Member(&path, "budget_tokens");
            let tokens = match value {
                Json::Uint(tokens) => u32::try_from(tokens).ok(),
                Json::Int(tokens) => u32::try_from(tokens).ok(),
                other => return Err(path.mistyped("an integer", &other)),
            };
            let range = || path.invalid(format!("must be in 0..={}", u32::MAX));
            Some(tokens.ok_or_else(range)?)
        }
    };
    thinking.ignore("display");
    thinking.refuse_rest()?;
    Ok(Thinking { enabled, budget_tokens })
}

impl Thinking {
    /// Has a request think as this says. `is_usual` is [`ThoughtBudget::is_usual`].
    ///
    /// # Errors
    ///
    /// 422 for a request that has another budget.
    pub(crate) fn apply(
        self,
        request: &mut GenerateRequest<'_>,
        is_usual: bool,
    ) -> Result<(), ApiError> {
        if let (Input::Conversation(conversation), Some(enabled)) =
            (&mut request.input, self.enabled)
        {
            conversation.thinking = Some(enabled);
        }
        // Without thoughts there is nothing to bound.
        let tokens = self.budget_tokens.filter(|_| self.enabled != Some(false));
        if let Some(tokens) = tokens {
            let budget = ThoughtBudget { tokens, field: OBJECT_BUDGET, is_usual };
            let found = request.options.thought_budget;
            request.options.thought_budget = Some(only(found, budget)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::openai::ApiError;
    use crate::{Api, FieldNotes, read};

    /// The tokens and the field of a chat's budget.
    fn budget(extra: &str) -> Result<Option<(u32, &'static str)>, ApiError> {
        let body =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}]{extra}}}"#);
        let request = read(Api::ChatCompletions, body.as_bytes(), &FieldNotes::default())?;
        Ok(request.options.thought_budget.map(|budget| (budget.tokens, budget.field)))
    }

    #[test]
    fn a_budget_has_the_name_that_the_client_gives_it() {
        for (extra, expected) in [
            ("", None),
            (r#","thinking_token_budget":7"#, Some((7, "thinking_token_budget"))),
            (r#","thinking_budget":0"#, Some((0, "thinking_budget"))),
            (r#","nvext":{"max_thinking_tokens":9}"#, Some((9, "nvext.max_thinking_tokens"))),
            (
                r#","thinking":{"type":"enabled","budget_tokens":5}"#,
                Some((5, "thinking.budget_tokens")),
            ),
            (r#","thinking":{"type":"disabled","budget_tokens":5}"#, None),
            (r#","thinking":{"type":"adaptive"}"#, None),
        ] {
            assert_eq!(budget(extra), Ok(expected), "{extra}");
        }
    }

    #[test]
    fn budgets_that_cannot_be_meant_are_refused_by_their_name() {
        for (extra, status, param) in [
            (r#","thinking_token_budget":-1"#, 400, "thinking_token_budget"),
            (r#","thinking_budget":"much""#, 400, "thinking_budget"),
            (r#","thinking_budget":1,"thinking_token_budget":1"#, 422, "thinking_budget"),
            (r#","thinking":{"type":"enabled","budget_tokens":-1}"#, 400, "thinking.budget_tokens"),
            (
                r#","thinking":{"type":"enabled","budget_tokens":"x"}"#,
                400,
                "thinking.budget_tokens",
            ),
            (r#","thinking":{"type":"sometimes"}"#, 400, "thinking.type"),
            (
                r#","thinking_budget":1,"thinking":{"type":"enabled","budget_tokens":1}"#,
                422,
                "thinking.budget_tokens",
            ),
        ] {
            let error = budget(extra).expect_err(extra);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (status, Some(param)));
        }
        let body = br#"{"model":"m","prompt":"x","thinking_budget":1}"#;
        let error = read(Api::Completions, body, &FieldNotes::default()).expect_err("a chat's");
        assert_eq!(error.param.as_deref(), Some("thinking_budget"));
    }
}
