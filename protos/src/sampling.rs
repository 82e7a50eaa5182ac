//! Sampling parameters and the form of an answer: names, ranges, defaults and checks.
//!
//! [`Sampling`] and [`Form`] are the only types for them: an API reads a request into them, the
//! agent checks them once with [`Sampling::checked`], engines and dialects take them as they are.
//! A parameter that is a plain number is a [`Number`], and its row says all that a reader or writer
//! needs to know of it.

use crate::worker::guide::Form;
use crate::worker::{Choices, Guide, JsonObject, Sampling, ThoughtLimit};
use std::fmt;

/// Most alternatives per token with logprobs.
pub const LOGPROBS_MAX: u32 = 20;
/// Most entries of `logit_bias`, and most stop tokens, that an agent takes.
pub const TOKEN_LIST_MAX: usize = 4096;
/// Longest schema, expression, grammar or tag, and longest choices together, that an agent takes, in
/// bytes.
pub const GUIDE_MAX_BYTES: usize = 1 << 18;
/// Most choices that an agent takes.
pub const GUIDE_CHOICES_MAX: usize = 4096;
/// Most markers before or behind thoughts that an agent takes.
const MARKERS_MAX: usize = 16;
/// Longest marker of thoughts, in bytes, and most tokens of the one that ends them.
const MARKER_MAX: usize = 64;

/// A sampling parameter that is a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Divides the logits; 0 is greedy.
    Temperature,
    /// Keeps the most likely tokens up to this probability.
    TopP,
    /// Drops tokens less likely than this share of the most likely one.
    MinP,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer.
    RepetitionPenalty,
    /// Subtracted once from the logits of tokens in the answer.
    PresencePenalty,
    /// Subtracted per occurrence from the logits of tokens in the answer.
    FrequencyPenalty,
}

/// The values that a [`Number`] may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberRange {
    low: f32,
    high: f32,
    /// Leaves `low` itself out.
    excludes_low: bool,
}

/// Everything that readers and writers know of a [`Number`].
struct Row {
    name: &'static str,
    range: NumberRange,
    default: f32,
    is_in_model_files: bool,
}

/// A value for some of the [`Number`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Numbers([Option<f32>; Number::ALL.len()]);

/// The parameters that a request, or a model's files, may leave open.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpenSampling {
    /// The plain numbers.
    pub numbers: Numbers,
    /// 0 means no limit.
    pub top_k: Option<u32>,
    /// Most tokens of an answer, at least 1.
    pub max_tokens: Option<u32>,
}

impl Number {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Temperature,
        Self::TopP,
        Self::MinP,
        Self::RepetitionPenalty,
        Self::PresencePenalty,
        Self::FrequencyPenalty,
    ];

    fn row(self) -> Row {
        let row = |name, range, default| Row { name, range, default, is_in_model_files: true };
        match self {
            Self::Temperature => row("temperature", NumberRange::of(0.0, 2.0), 1.0),
            Self::TopP => {
                row("top_p", NumberRange { excludes_low: true, ..NumberRange::of(0.0, 1.0) }, 1.0)
            }
            Self::MinP => row("min_p", NumberRange::of(0.0, 1.0), 0.0),
            // Logits divided by less than 0.01 would overflow.
            Self::RepetitionPenalty => row("repetition_penalty", NumberRange::of(0.01, 2.0), 1.0),
            Self::PresencePenalty => Row {
                is_in_model_files: false,
                ..row("presence_penalty", NumberRange::of(-2.0, 2.0), 0.0)
            },
            Self::FrequencyPenalty => Row {
                is_in_model_files: false,
                ..row("frequency_penalty", NumberRange::of(-2.0, 2.0), 0.0)
            },
        }
    }

    /// The parameter's name in requests, in models' files and in engines.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The values that requests may give.
    pub fn range(self) -> NumberRange {
        self.row().range
    }

    /// The value where neither the request nor the model's files give one.
    pub fn default(self) -> f32 {
        self.row().default
    }

    /// Whether a model's `generation_config.json` may give a value.
    pub fn is_in_model_files(self) -> bool {
        self.row().is_in_model_files
    }

    /// The parameter's value.
    pub fn of(self, sampling: &Sampling) -> f32 {
        match self {
            Self::Temperature => sampling.temperature,
            Self::TopP => sampling.top_p,
            Self::MinP => sampling.min_p,
            Self::RepetitionPenalty => sampling.repetition_penalty,
            Self::PresencePenalty => sampling.presence_penalty,
            Self::FrequencyPenalty => sampling.frequency_penalty,
        }
    }

    /// The parameter's place in a message.
    pub fn of_mut(self, sampling: &mut Sampling) -> &mut f32 {
        match self {
            Self::Temperature => &mut sampling.temperature,
            Self::TopP => &mut sampling.top_p,
            Self::MinP => &mut sampling.min_p,
            Self::RepetitionPenalty => &mut sampling.repetition_penalty,
            Self::PresencePenalty => &mut sampling.presence_penalty,
            Self::FrequencyPenalty => &mut sampling.frequency_penalty,
        }
    }
}

impl NumberRange {
    const fn of(low: f32, high: f32) -> Self {
        Self { low, high, excludes_low: false }
    }

    /// Whether a value is within the range; a NaN never is.
    pub fn contains(self, value: f64) -> bool {
        let low = f64::from(self.low);
        let is_above = if self.excludes_low { value > low } else { value >= low };
        is_above && value <= f64::from(self.high)
    }
}

impl fmt::Display for NumberRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, high, excludes_low } = self;
        match excludes_low {
            true => write!(f, "above {low} and at most {high}"),
            false => write!(f, "in {low}..={high}"),
        }
    }
}

impl Numbers {
    /// The value of a number, where there is one.
    pub fn get(&self, number: Number) -> Option<f32> {
        self.0[number as usize]
    }

    /// Sets or clears the value of a number.
    pub fn set(&mut self, number: Number, value: Option<f32>) {
        self.0[number as usize] = value;
    }
}

impl OpenSampling {
    /// These values, and `defaults` where there are none.
    pub fn or(mut self, defaults: &Self) -> Self {
        for number in Number::ALL {
            self.numbers.set(number, self.numbers.get(number).or(defaults.numbers.get(number)));
        }
        self.top_k = self.top_k.or(defaults.top_k);
        self.max_tokens = self.max_tokens.or(defaults.max_tokens);
        self
    }

    /// Writes the values, and the API's defaults where there are none. `max_tokens` has no default
    /// and is left as it is.
    pub fn fill(&self, sampling: &mut Sampling) {
        for number in Number::ALL {
            let value = self.numbers.get(number).unwrap_or(number.default());
            *number.of_mut(sampling) = value;
        }
        sampling.top_k = self.top_k.unwrap_or(0);
        sampling.max_tokens = self.max_tokens.unwrap_or(sampling.max_tokens);
    }
}

impl Sampling {
    /// Greedy, 16 tokens at most, nothing else asked for.
    ///
    /// The message's own default is no such value: it has 0 for parameters whose neutral value is 1,
    /// and only [`Sampling::checked`] reads that as 1.
    pub fn neutral() -> Self {
        Self { top_p: 1.0, repetition_penalty: 1.0, max_tokens: 16, ..Self::default() }
    }

    /// Checks a message that came over the request plane. Every parameter of the result is within
    /// its range: engines and dialects rely on it.
    ///
    /// # Errors
    ///
    /// A message that names the field, its value and its limit.
    pub fn checked(mut self) -> Result<Self, String> {
        for number in Number::ALL {
            self.check_number(number)?;
        }
        at_most("logit_bias", self.logit_bias.len(), TOKEN_LIST_MAX)?;
        at_most("stop_token_ids", self.stop_token_ids.len(), TOKEN_LIST_MAX)?;
        for entry in &self.logit_bias {
            let range = NumberRange::of(-100.0, 100.0);
            if !range.contains(entry.bias.into()) {
                return Err(format!("logit_bias: {} is not {range}", entry.bias));
            }
        }
        for (field, value) in
            [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)]
        {
            if let Some(count) = value.filter(|count| *count > LOGPROBS_MAX) {
                return Err(format!("{field}: {count} is not in 0..={LOGPROBS_MAX}"));
            }
        }
        let (min, max) = (self.min_tokens, self.max_tokens);
        if max == 0 {
            return Err("max_tokens: 0 is below 1".into());
        }
        if min > max {
            return Err(format!("min_tokens: {min} is above max_tokens, {max}"));
        }
        if let Some(guide) = &self.guide {
            guide
                .form
                .as_ref()
                .ok_or("guide: it has no form, or one of a later version")?
                .check()?;
        }
        if let Some(limit) = &self.thought_limit {
            limit.check()?;
        }
        Ok(self)
    }

    /// The form that the answer must have, if any.
    pub fn form(&self) -> Option<&Form> {
        self.guide.as_ref()?.form.as_ref()
    }

    fn check_number(&mut self, number: Number) -> Result<(), String> {
        let range = number.range();
        let value = number.of_mut(self);
        // A sender that leaves the field out sends 0.
        if *value == 0.0 && !range.contains(0.0) {
            *value = number.default();
        }
        match range.contains((*value).into()) {
            true => Ok(()),
            false => Err(format!("{}: {value} is not {range}", number.name())),
        }
    }
}

impl Form {
    /// Any JSON object.
    pub fn any_object() -> Self {
        Self::JsonObject(JsonObject {})
    }

    /// One of these texts.
    pub fn one_of(texts: Vec<String>) -> Self {
        Self::Choices(Choices { texts })
    }

    /// The form's name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "json_schema",
            Self::JsonObject(_) => "json_object",
            Self::Regex(_) => "regex",
            Self::Choices(_) => "choices",
            Self::Grammar(_) => "grammar",
            Self::StructuralTag(_) => "structural_tag",
        }
    }

    fn check(&self) -> Result<(), String> {
        let name = self.name();
        let bounded = |bytes: usize| match bytes {
            1..=GUIDE_MAX_BYTES => Ok(()),
            bytes => Err(format!("guide.{name}: {bytes} bytes, 1 to {GUIDE_MAX_BYTES}")),
        };
        match self {
            Self::JsonObject(_) => Ok(()),
            Self::Choices(Choices { texts }) => {
                at_most("guide.choices", texts.len(), GUIDE_CHOICES_MAX)?;
                if let Some(at) = texts.iter().position(String::is_empty) {
                    return Err(format!("guide.choices: number {at} is empty"));
                }
                bounded(texts.iter().map(String::len).sum())
            }
            Self::JsonSchema(text) | Self::StructuralTag(text) => {
                bounded(text.len())?;
                // Dialects write the text as it is into what engines are sent.
                serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text)
                    .map_err(|error| format!("guide.{name}: no JSON object: {error}"))?;
                Ok(())
            }
            Self::Regex(text) | Self::Grammar(text) => bounded(text.len()),
        }
    }
}

impl ThoughtLimit {
    fn check(&self) -> Result<(), String> {
        if self.closers.is_empty() || self.end_tokens.is_empty() {
            return Err("thought_limit: no marker ends the thoughts".into());
        }
        at_most("thought_limit.openers", self.openers.len(), MARKERS_MAX)?;
        at_most("thought_limit.closers", self.closers.len(), MARKERS_MAX)?;
        at_most("thought_limit.end_tokens", self.end_tokens.len(), MARKER_MAX)?;
        let mut markers = self.openers.iter().chain(&self.closers).map(String::len);
        match markers.find(|bytes| !(1..=MARKER_MAX).contains(bytes)) {
            None => Ok(()),
            Some(bytes) => {
                Err(format!("thought_limit: a marker of {bytes} bytes, 1 to {MARKER_MAX}"))
            }
        }
    }
}

impl From<Form> for Guide {
    fn from(form: Form) -> Self {
        Self { form: Some(form) }
    }
}

fn at_most(field: &str, entries: usize, limit: usize) -> Result<(), String> {
    if entries <= limit {
        return Ok(());
    }
    Err(format!("{field}: {entries} entries, limit {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_form(form: Form) -> Result<Sampling, String> {
        Sampling { guide: Some(form.into()), ..Sampling::neutral() }.checked()
    }

    #[test]
    fn forms_of_answers_are_taken_within_their_limits() {
        let choices =
            |texts: &[&str]| Form::one_of(texts.iter().map(|text| (*text).to_owned()).collect());
        let schema = |text: &str| Form::JsonSchema(text.into());
        for form in [schema("{}"), Form::any_object(), choices(&["a", "b"])] {
            assert_eq!(check_form(form.clone()).unwrap().form(), Some(&form));
        }
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
            assert_eq!(check_form(form).unwrap_err(), expected);
        }
        let nothing = Sampling { guide: Some(Guide { form: None }), ..Sampling::neutral() };
        assert_eq!(
            nothing.checked().unwrap_err(),
            "guide: it has no form, or one of a later version"
        );
    }

    #[test]
    fn bounds_of_thoughts_are_taken_within_their_limits() {
        let sound = ThoughtLimit {
            closers: vec!["</think>".into()],
            end_tokens: vec![7],
            ..ThoughtLimit::default()
        };
        let check = |limit: ThoughtLimit| {
            let sampling = Sampling { thought_limit: Some(limit), ..Sampling::neutral() };
            sampling.checked().map(drop)
        };
        assert_eq!(check(sound.clone()), Ok(()));
        let ill = ThoughtLimit { end_tokens: Vec::new(), ..sound.clone() };
        assert_eq!(check(ill).unwrap_err(), "thought_limit: no marker ends the thoughts");
        let ill = ThoughtLimit { openers: vec!["x".repeat(65)], ..sound.clone() };
        assert_eq!(check(ill).unwrap_err(), "thought_limit: a marker of 65 bytes, 1 to 64");
        let ill = ThoughtLimit { end_tokens: vec![7; 65], ..sound };
        assert_eq!(check(ill).unwrap_err(), "thought_limit.end_tokens: 65 entries, limit 64");
    }

    #[test]
    fn a_checked_value_is_as_it_was_sent() {
        let sent = Sampling { temperature: 0.5, seed: 9, ..Sampling::neutral() };
        assert_eq!(sent.clone().checked(), Ok(sent));
    }

    #[test]
    fn every_number_has_its_own_place_and_a_default_within_its_range() {
        for (at, number) in Number::ALL.into_iter().enumerate() {
            let mut sampling = Sampling::default();
            *number.of_mut(&mut sampling) = 0.5;
            assert_eq!((number as usize, number.of(&sampling)), (at, 0.5));
            let set = Number::ALL.into_iter().filter(|other| other.of(&sampling) == 0.5);
            assert_eq!(set.collect::<Vec<_>>(), [number]);
            assert!(number.range().contains(number.default().into()));
        }
    }

    #[test]
    fn open_values_come_from_the_request_then_the_model_then_the_api() {
        let mut request = OpenSampling { max_tokens: Some(3), ..OpenSampling::default() };
        request.numbers.set(Number::TopP, Some(0.5));
        let mut model = OpenSampling { top_k: Some(7), ..OpenSampling::default() };
        model.numbers.set(Number::TopP, Some(0.25));
        model.numbers.set(Number::MinP, Some(0.125));
        let mut sampling = Sampling::default();
        request.or(&model).fill(&mut sampling);
        let expected = Sampling {
            temperature: 1.0,
            top_p: 0.5,
            min_p: 0.125,
            top_k: 7,
            max_tokens: 3,
            ..Sampling::neutral()
        };
        assert_eq!(sampling, expected);
    }
}
