//! Levels of `reasoning_effort` as a model's templates call them.

use super::PromptError;
use stator_api::Conversation;
use stator_api::json::Json;

/// The template's variable.
const EFFORT: &str = "reasoning_effort";

/// The conversation with the model's own word for its level of effort; none where it stays as it is.
/// `levels` are pairs of a client's word and the model's; without any, templates take what comes.
///
/// # Errors
///
/// [`PromptError::Effort`] for a level that the model does not know.
pub(crate) fn known<'a>(
    conversation: &Conversation<'a>,
    levels: &[(&'static str, &'static str)],
) -> Result<Option<Conversation<'a>>, PromptError> {
    let said = conversation.template_kwargs.iter().position(|(name, _)| name == EFFORT);
    let Some(at) = said.filter(|_| !levels.is_empty()) else { return Ok(None) };
    let level = match &conversation.template_kwargs[at].1 {
        Json::Str(level) => levels.iter().find(|(word, _)| word == level),
        // What is no text has no level; the template sees to it.
        _ => return Ok(None),
    };
    match level {
        Some((word, own)) if word == own => Ok(None),
        Some((_, own)) => {
            let mut told = conversation.clone();
            told.template_kwargs[at].1 = Json::Str((*own).into());
            Ok(Some(told))
        }
        None => {
            let Json::Str(level) = &conversation.template_kwargs[at].1 else { return Ok(None) };
            let known: Vec<_> = levels.iter().map(|(word, _)| *word).collect();
            let effort = level.chars().take(40).collect();
            Err(PromptError::Effort { effort, known: known.join(", ") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_api::openai::chat;

    fn check(effort: &str, levels: &[(&'static str, &'static str)]) -> Result<String, String> {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"a"}}],"reasoning_effort":"{effort}"}}"#
        );
        let request = chat::read(body.as_bytes()).expect("a sound body");
        let conversation = request.input.conversation().expect("a chat");
        let told = known(conversation, levels).map_err(|error| error.to_string())?;
        let told = told.as_ref().unwrap_or(conversation);
        match &told.template_kwargs[0].1 {
            Json::Str(level) => Ok(level.clone().into_owned()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_level_has_the_models_own_name() {
        let levels = [("none", "low"), ("low", "low"), ("xhigh", "high")];
        for (said, told) in [("none", "low"), ("low", "low"), ("xhigh", "high")] {
            assert_eq!(check(said, &levels).as_deref(), Ok(told));
        }
        let refused = check("hgih", &levels).expect_err("it is none");
        assert_eq!(refused, "reasoning_effort is \"hgih\", the model knows none, low, xhigh");
        assert_eq!(check("hgih", &[]).as_deref(), Ok("hgih"));
    }
}
