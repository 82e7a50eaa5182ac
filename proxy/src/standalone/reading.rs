//! Reading answers for markup: which families, and what becomes of calls.

use super::segment::{CallBegin, Segments};
use rand::Rng;
use rand::distr::Alphanumeric;
use serde_json::{Value, json};
use stator_api::custom_tools::InputReader;
use stator_api::delta::FinishReason;
use stator_api::openai::ApiError;
use stator_api::{Api, GenerateOptions, ToolChoice, ToolUse};
use stator_markup::families::CallIds;
use stator_markup::tools::KnownTools;
use stator_markup::{
    EventSink, ForcedCalls, OutputEvent, OutputParser, OutputPlace, ReasoningFamily, ToolFamily,
    forced_calls, formed_answer,
};
use stator_model::{Model, StopMatcher};
use stator_protos::worker::guide::Form;

/// Letters and digits of an id in OpenAI's form.
const ID_LETTERS: usize = 24;
/// The field that says the form of an answer's text.
const TEXT_FORM: &str = "response_format";
/// Letters of an id of Mistral's models.
const ID_LETTERS_NINE: usize = 9;

/// How all choices of a request are read.
#[derive(Clone, Debug)]
pub(crate) struct AnswerReading {
    /// The family of calls, where the request has tools.
    pub(super) calls: Option<&'static ToolFamily>,
    reasoning: Option<&'static ReasoningFamily>,
    tools: KnownTools,
    /// Whether the prompt has opened thoughts.
    inside: bool,
    /// The message that the prompt has begun, for models that answer in messages.
    begun: Option<Box<str>>,
    include_reasoning: bool,
    rule: CallRule,
}

/// Treatment of the calls in an answer.
#[derive(Clone, Copy, Debug, Default)]
struct CallRule {
    /// Calls are left out: the client wants none.
    dropped: bool,
    /// The answer ends with its first call.
    single: bool,
    /// The client of a chat named the function: that it was called is no news. Other APIs tell of
    /// every call.
    named: bool,
}

impl AnswerReading {
    /// The reading of answers to a prompt; none where answers are text. Calls that the request
    /// forces become the form of the answer, in `options`.
    ///
    /// # Errors
    ///
    /// 422 for a request that gives the answer another form.
    pub(super) fn new(
        api: Api,
        model: &Model,
        tools: Option<ToolUse<'_>>,
        options: &mut GenerateOptions,
        prompt: &[u32],
    ) -> Result<Option<Self>, ApiError> {
        let markup = model.markup();
        if tools.is_none() && !markup.is_needed() {
            return Ok(None);
        }
        let reasoning = markup.reasoning();
        let inside = reasoning.is_some() && model.begins_inside_thoughts(prompt);
        let mut calls = markup.tools().filter(|family| tools.is_some() || family.holds_reasoning());
        let room = model.thought_room(prompt);
        let forced = tools.as_ref().and_then(|tools| {
            let forced = forced_calls(markup.tools(), tools, room)?;
            Some((tools, forced))
        });
        match (forced, options.sampling.form().and_then(own_format)) {
            // Strict functions are held in the place of a form, as all are.
            (Some((tools, forced)), own) if own.is_none() || tools.is_forced() => {
                calls = ToolFamily::find(forced.family);
                force(tools, forced, options)?;
            }
            (_, Some(own)) => {
                let formed = formed_answer(markup.tools(), tools.as_ref(), room, own);
                if let Some(tag) = formed {
                    options.sampling.guide = Some(Form::StructuralTag(tag).into());
                }
            }
            (_, None) => {}
        }
        let rule = match &tools {
            // Harmony's calls are markup where nobody asked for them, too.
            None => CallRule { dropped: true, ..CallRule::default() },
            Some(tools) => CallRule {
                dropped: tools.choice == ToolChoice::None,
                single: !tools.parallel,
                named: api == Api::ChatCompletions && matches!(tools.choice, ToolChoice::Named(_)),
            },
        };
        let functions = tools.map(|tools| tools.into_owned().functions).unwrap_or_default();
        Ok(Some(Self {
            calls,
            reasoning,
            tools: KnownTools::new(functions),
            inside,
            begun: model.begun_message(prompt).map(Into::into),
            include_reasoning: options.include_reasoning,
            rule,
        }))
    }

    /// Whether markers of calls are looked for.
    pub(super) fn reads_calls(&self) -> bool {
        self.calls.is_some()
    }

    /// A reader for one choice.
    pub(super) fn reader(&self) -> MarkupReader {
        let parser = OutputParser::new(self.reasoning, self.calls, self.tools.clone(), self.inside);
        MarkupReader {
            parser: parser.going_on(self.begun.as_deref()),
            piece: String::new(),
            include_reasoning: self.include_reasoning,
            rule: self.rule,
            ids: self.calls.map_or(CallIds::OpenAi, |family| family.ids),
            calls: 0,
            tools: self.tools.clone(),
            input: None,
            enough: false,
            stopped: false,
            told_text: false,
        }
    }
}

/// Gives the answer the form of its calls.
fn force(
    tools: &ToolUse<'_>,
    forced: ForcedCalls,
    options: &mut GenerateOptions,
) -> Result<(), ApiError> {
    let field = if tools.is_forced() { "tool_choice" } else { "tools" };
    match options.guide_field {
        // Strict functions are held by nothing beside a form that leaves no room for them.
        Some(_) if !tools.is_forced() => Ok(()),
        Some(other) if other != TEXT_FORM => {
            let message = format!("{other} and {field} each give the answer a form: one may");
            Err(ApiError::impossible(field, message))
        }
        // The form of text says nothing of an answer that is calls.
        _ => {
            options.guide_field = Some(field);
            options.sampling.guide = Some(Form::StructuralTag(forced.structural_tag).into());
            Ok(())
        }
    }
}

/// A form as a format of structural tags; none where no such format says the same.
fn own_format(form: &Form) -> Option<Value> {
    let schema = |schema: Value| json!({"type": "json_schema", "json_schema": schema});
    Some(match form {
        Form::JsonSchema(text) => schema(serde_json::from_str(text).ok()?),
        Form::JsonObject(_) => schema(json!({"type": "object"})),
        Form::Regex(pattern) => json!({"type": "regex", "pattern": pattern}),
        Form::Choices(choices) => {
            let choice = |text| json!({"type": "const_string", "value": text});
            let choices: Vec<_> = choices.texts.iter().map(choice).collect();
            json!({"type": "or", "elements": choices})
        }
        Form::StructuralTag(text) => {
            serde_json::from_str::<Value>(text).ok()?.get("format")?.clone()
        }
        Form::Grammar(text) => json!({"type": "grammar", "grammar": text}),
    })
}

/// Reads the text of one choice.
#[derive(Debug)]
pub(super) struct MarkupReader {
    parser: OutputParser,
    /// Text of the token that is being read; its memory is kept.
    pub(super) piece: String,
    include_reasoning: bool,
    rule: CallRule,
    ids: CallIds,
    /// Calls that have begun.
    calls: u32,
    tools: KnownTools,
    /// Reads the input of the call that began last, if a custom tool is called.
    input: Option<InputReader>,
    /// Whether the only call that the client wants is complete.
    enough: bool,
    /// Whether a stop string is complete.
    stopped: bool,
    /// Whether the last piece had text of the answer.
    told_text: bool,
}

impl MarkupReader {
    /// The place where the text has arrived.
    pub(super) fn place(&self) -> OutputPlace {
        self.parser.place()
    }

    /// Whether the last piece had text of the answer.
    pub(super) fn told_text(&self) -> bool {
        self.told_text
    }

    /// Reads [`Self::piece`]. The reason to end the choice, if there is one in it.
    pub(super) fn read(
        &mut self,
        stop: &mut Option<StopMatcher>,
        segments: &mut Segments,
    ) -> Option<FinishReason> {
        self.told(stop, segments, |parser, piece, sink| parser.push(piece, sink))
    }

    /// Reads [`Self::piece`], behind which nothing comes.
    pub(super) fn finish(
        &mut self,
        stop: &mut Option<StopMatcher>,
        segments: &mut Segments,
    ) -> Option<FinishReason> {
        self.told(stop, segments, |parser, piece, sink| {
            parser.push(piece, sink);
            parser.finish(sink);
        })
    }

    /// A worker's reason as the client reads it.
    pub(super) fn reason(&self, reason: FinishReason) -> FinishReason {
        match reason {
            FinishReason::Stop if self.calls > 0 && !self.rule.named => FinishReason::ToolCalls,
            other => other,
        }
    }

    fn told(
        &mut self,
        stop: &mut Option<StopMatcher>,
        segments: &mut Segments,
        read: impl FnOnce(&mut OutputParser, &str, &mut dyn EventSink),
    ) -> Option<FinishReason> {
        self.told_text = false;
        let Self {
            parser,
            piece,
            include_reasoning,
            rule,
            ids,
            calls,
            tools,
            input,
            enough,
            stopped,
            told_text,
        } = self;
        let mut sink = |event: OutputEvent<'_>| match event {
            _ if *enough || *stopped => {}
            OutputEvent::Reasoning(piece) if *include_reasoning => segments.push_reasoning(piece),
            OutputEvent::Text(piece) => {
                *told_text = true;
                match stop {
                    // Stop strings are looked for in text alone: a new line in a call is no end.
                    Some(stop) => *stopped = stop.push(piece, segments.text()),
                    None => segments.text().push_str(piece),
                }
            }
            OutputEvent::CallStart { name, id } if !rule.dropped => {
                if let Some(stop) = stop {
                    stop.finish(segments.text());
                }
                let custom = tools.is_custom(name);
                *input = custom.then(InputReader::default);
                let (id, name) = (call_id(*ids, id, name, *calls), name.to_owned());
                segments.push_call(CallBegin { index: *calls, id, name, custom });
                *calls += 1;
            }
            OutputEvent::Arguments(piece) if !rule.dropped => {
                let index = calls.saturating_sub(1);
                match input {
                    None => segments.push_arguments(index, piece, false),
                    Some(input) => segments.push_input(index, |text| input.push(piece, text)),
                }
            }
            OutputEvent::CallEnd => {
                if let Some(mut input) = input.take() {
                    segments.push_input(calls.saturating_sub(1), |text| input.finish(text));
                }
                *enough = rule.single && !rule.dropped;
            }
            _ => {}
        };
        read(parser, piece, &mut sink);
        piece.clear();
        if self.stopped {
            return Some(FinishReason::Stop);
        }
        self.enough.then(|| self.reason(FinishReason::Stop))
    }
}

/// The id of a call: the model's own where its templates show it.
fn call_id(form: CallIds, own: Option<&str>, name: &str, index: u32) -> String {
    let random = |letters: usize| {
        let letters = rand::rng().sample_iter(Alphanumeric).take(letters);
        letters.map(char::from).collect::<String>()
    };
    match (form, own) {
        (CallIds::Kimi, Some(own)) => own.to_owned(),
        (CallIds::Kimi, None) => format!("functions.{name}:{index}"),
        (CallIds::Nine, Some(own)) if own.len() == ID_LETTERS_NINE => own.to_owned(),
        (CallIds::Nine, _) => random(ID_LETTERS_NINE),
        (CallIds::OpenAi, _) => format!("call_{}", random(ID_LETTERS)),
    }
}
