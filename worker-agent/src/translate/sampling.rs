//! How tokens are chosen, as a stream says it and as engines take it.

use crate::engine::Sampling;
use stator_dialect::Guide;
use stator_protos::worker;
use stator_protos::worker::guide::Form;

/// Most alternatives per token with logprobs.
const MAX_LOGPROBS: u32 = 20;
/// Most entries of `logit_bias`, and most stop tokens.
const MAX_TOKEN_LIST: usize = 4096;
/// Longest schema, expression, grammar or tag, and longest choices together, in bytes.
const MAX_GUIDE_BYTES: usize = 1 << 18;
/// Most choices.
const MAX_GUIDE_CHOICES: usize = 4096;

/// Checks how tokens are to be chosen.
///
/// # Errors
///
/// A message that names the field, its value and its limit.
pub(super) fn taken(given: worker::Sampling) -> Result<Sampling, String> {
    let one_if_zero = |value: f32| if value == 0.0 { 1.0 } else { value };
    let top_p = one_if_zero(given.top_p);
    let repetition_penalty = one_if_zero(given.repetition_penalty);
    in_range("temperature", given.temperature, 0.0, 2.0)?;
    in_range("top_p", top_p, 0.0, 1.0)?;
    in_range("min_p", given.min_p, 0.0, 1.0)?;
    in_range("repetition_penalty", repetition_penalty, 0.01, 100.0)?;
    in_range("presence_penalty", given.presence_penalty, -2.0, 2.0)?;
    in_range("frequency_penalty", given.frequency_penalty, -2.0, 2.0)?;
    at_most("logit_bias", given.logit_bias.len(), MAX_TOKEN_LIST)?;
    at_most("stop_token_ids", given.stop_token_ids.len(), MAX_TOKEN_LIST)?;
    for entry in &given.logit_bias {
        in_range("logit_bias", entry.bias, -100.0, 100.0)?;
    }
    for (field, value) in [("logprobs", given.logprobs), ("prompt_logprobs", given.prompt_logprobs)]
    {
        if value.is_some_and(|n| n > MAX_LOGPROBS) {
            return Err(format!("{field}: {} is not in 0..={MAX_LOGPROBS}", value.unwrap_or(0)));
        }
    }
    if given.max_tokens == 0 {
        return Err("max_tokens: 0 is below 1".into());
    }
    if given.min_tokens > given.max_tokens {
        let (min, max) = (given.min_tokens, given.max_tokens);
        return Err(format!("min_tokens: {min} is above max_tokens, {max}"));
    }
    Ok(Sampling {
        temperature: given.temperature,
        top_k: given.top_k,
        top_p,
        min_p: given.min_p,
        repetition_penalty,
        presence_penalty: given.presence_penalty,
        frequency_penalty: given.frequency_penalty,
        seed: given.seed,
        seed_is_drawn: given.seed_is_drawn,
        logit_bias: given.logit_bias.iter().map(|entry| (entry.token_id, entry.bias)).collect(),
        logprobs: given.logprobs,
        prompt_logprobs: given.prompt_logprobs,
        min_tokens: given.min_tokens,
        max_tokens: given.max_tokens,
        stop_token_ids: given.stop_token_ids,
        ignore_eos: given.ignore_eos,
        guide: given.guide.map(guide).transpose()?,
    })
}

fn guide(given: worker::Guide) -> Result<Guide, String> {
    let bounded = |form: &str, bytes: usize| match bytes {
        1..=MAX_GUIDE_BYTES => Ok(()),
        bytes => Err(format!("guide.{form}: {bytes} bytes, 1 to {MAX_GUIDE_BYTES}")),
    };
    let form = given.form.ok_or("guide: it has no form, or one of a later version")?;
    let guide = match form {
        Form::JsonSchema(schema) => Guide::JsonSchema(schema),
        Form::JsonObject(_) => Guide::JsonObject,
        Form::Regex(regex) => Guide::Regex(regex),
        Form::Choices(choices) => Guide::Choices(choices.texts),
        Form::Grammar(grammar) => Guide::Grammar(grammar),
        Form::StructuralTag(tag) => Guide::StructuralTag(tag),
    };
    let name = guide.name();
    match &guide {
        Guide::JsonObject => {}
        Guide::Choices(texts) => {
            at_most("guide.choices", texts.len(), MAX_GUIDE_CHOICES)?;
            if let Some(at) = texts.iter().position(String::is_empty) {
                return Err(format!("guide.choices: number {at} is empty"));
            }
            bounded(name, texts.iter().map(String::len).sum())?;
        }
        Guide::JsonSchema(text) | Guide::StructuralTag(text) => {
            bounded(name, text.len())?;
            // They stand as they are in what engines are sent.
            serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text)
                .map_err(|error| format!("guide.{name}: no JSON object: {error}"))?;
        }
        Guide::Regex(text) | Guide::Grammar(text) => bounded(name, text.len())?,
    }
    Ok(guide)
}

fn in_range(field: &str, value: f32, min: f32, max: f32) -> Result<(), String> {
    // A NaN is in no range.
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(format!("{field}: {value} is not in {min}..={max}"))
}

fn at_most(field: &str, entries: usize, limit: usize) -> Result<(), String> {
    if entries <= limit {
        return Ok(());
    }
    Err(format!("{field}: {entries} entries, limit {limit}"))
}

/// What a worker is told to sample by.
pub(crate) fn told(sampling: &Sampling) -> worker::Sampling {
    let bias =
        |(token_id, bias): &(u32, f32)| worker::LogitBias { token_id: *token_id, bias: *bias };
    worker::Sampling {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        seed: sampling.seed,
        seed_is_drawn: sampling.seed_is_drawn,
        logit_bias: sampling.logit_bias.iter().map(bias).collect(),
        logprobs: sampling.logprobs,
        prompt_logprobs: sampling.prompt_logprobs,
        min_tokens: sampling.min_tokens,
        max_tokens: sampling.max_tokens,
        stop_token_ids: sampling.stop_token_ids.clone(),
        ignore_eos: sampling.ignore_eos,
        guide: sampling.guide.clone().map(guide_of),
    }
}

fn guide_of(guide: Guide) -> worker::Guide {
    let form = match guide {
        Guide::JsonSchema(schema) => Form::JsonSchema(schema),
        Guide::JsonObject => Form::JsonObject(worker::JsonObject {}),
        Guide::Regex(regex) => Form::Regex(regex),
        Guide::Choices(texts) => Form::Choices(worker::Choices { texts }),
        Guide::Grammar(grammar) => Form::Grammar(grammar),
        Guide::StructuralTag(tag) => Form::StructuralTag(tag),
    };
    worker::Guide { form: Some(form) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut worker::Sampling)) -> Result<Sampling, String> {
        let mut sampling = worker::Sampling { max_tokens: 5, ..worker::Sampling::default() };
        change(&mut sampling);
        taken(sampling)
    }

    fn check_guide(form: Form) -> Result<Option<Guide>, String> {
        let guide = worker::Guide { form: Some(form) };
        check(|s| s.guide = Some(guide)).map(|sampling| sampling.guide)
    }

    #[test]
    fn forms_of_answers_are_taken_within_their_limits() {
        let choices = |texts: &[&str]| {
            let texts = texts.iter().map(|text| (*text).to_owned()).collect();
            Form::Choices(worker::Choices { texts })
        };
        let schema = |text: &str| Form::JsonSchema(text.into());
        assert_eq!(check_guide(schema("{}")), Ok(Some(Guide::JsonSchema("{}".into()))));
        let object = Form::JsonObject(worker::JsonObject {});
        assert_eq!(check_guide(object), Ok(Some(Guide::JsonObject)));
        assert_eq!(
            check_guide(choices(&["a", "b"])),
            Ok(Some(Guide::Choices(vec!["a".into(), "b".into()])))
        );
        let refused = [
            (Form::Regex(String::new()), "guide.regex: 0 bytes, 1 to 262144"),
            (Form::Grammar("x".repeat(262_145)), "guide.grammar: 262145 bytes, 1 to 262144"),
            (choices(&[]), "guide.choices: 0 bytes, 1 to 262144"),
            (choices(&["a", ""]), "guide.choices: number 1 is empty"),
            (choices(&["a"; 4097]), "guide.choices: 4097 entries, limit 4096"),
            (
                schema("{},\"stream\":false"),
                "guide.json_schema: no JSON object: trailing characters at line 1 column 3",
            ),
            (
                Form::StructuralTag("[]".into()),
                "guide.structural_tag: no JSON object: invalid type: sequence, expected a map at line 1 column 0",
            ),
        ];
        for (form, expected) in refused {
            assert_eq!(check_guide(form).unwrap_err(), expected);
        }
        let nothing = check(|s| s.guide = Some(worker::Guide { form: None }));
        assert_eq!(nothing.unwrap_err(), "guide: it has no form, or one of a later version");
    }

    #[test]
    fn sampling_is_told_on_as_it_was_taken() {
        let forms = [
            Form::JsonSchema("{}".into()),
            Form::JsonObject(worker::JsonObject {}),
            Form::Regex("a".into()),
            Form::Choices(worker::Choices { texts: vec!["a".into()] }),
            Form::Grammar("a".into()),
            Form::StructuralTag("{}".into()),
        ];
        for form in forms {
            let given = worker::Sampling {
                temperature: 0.5,
                top_k: 3,
                top_p: 0.5,
                min_p: 0.25,
                repetition_penalty: 1.5,
                presence_penalty: 1.0,
                frequency_penalty: -1.0,
                seed: 9,
                seed_is_drawn: true,
                logit_bias: vec![worker::LogitBias { token_id: 4, bias: 2.0 }],
                logprobs: Some(1),
                prompt_logprobs: Some(2),
                min_tokens: 1,
                max_tokens: 8,
                stop_token_ids: vec![7],
                ignore_eos: true,
                guide: Some(worker::Guide { form: Some(form) }),
            };
            let sampling = taken(given.clone()).unwrap();
            assert_eq!(told(&sampling), given);
        }
    }
}
