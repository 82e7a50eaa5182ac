//! Chat templates, rendered as `transformers` renders them.
//!
//! Source: `render_jinja_template` in `transformers`' `utils/chat_template_utils.py`: Jinja with
//! `trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, its own
//! `tojson`, and the `generation` tag. One difference remains: `%` does not format text (the `format`
//! filter does). A rendering has bounds that Python has not: steps, and memory
//! ([`BUDGET_BYTES`]).

pub use super::jinja::budget::{BUDGET_BYTES, BUDGET_PER_INPUT_BYTE};

mod probes;

use super::context::{self, ArgumentForm, TemplateDialect};
use super::error::PromptError;
use super::history;
use super::jinja::{CompiledTemplate, TemplateException, budget, environment};
use super::strftime::strftime;
use minijinja::value::Value;
use minijinja::{Environment, Error};
use probes::{Probe, ProbeSetting, THINKING};
use stator_api::conversation::{Content, Conversation, Message, Role};
use std::borrow::Cow;
use std::time::SystemTime;

/// Marks the end of a message that the answer continues. The space tells whether the template
/// trims its messages. It holds private-use characters, which no template looks for.
const OPEN_TAG: &str = "\u{f8ff}open\u{f8ff} ";

/// The chat templates of one model, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    default: ProbedTemplate,
    /// The template for requests with tools, where there is a second one.
    tool_use: Option<ProbedTemplate>,
    /// The variables that switch thoughts on and off.
    thinking: Vec<&'static str>,
    /// Only then is a clock needed.
    clock: bool,
    /// `bos_token` and its like.
    special_tokens: Vec<(String, Value)>,
}

/// A template, and what it can render.
#[derive(Debug)]
struct ProbedTemplate {
    compiled: CompiledTemplate,
    dialect: TemplateDialect,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// Compiles a model's templates, pairs of name and source; the one named `default`, or else
    /// the only one, serves, and `tool_use` serves requests with tools. `special_tokens` are
    /// variables of the template.
    ///
    /// # Errors
    ///
    /// The fault and its line, for a template that does not compile.
    pub fn new(
        templates: Vec<(String, String)>,
        special_tokens: Vec<(String, String)>,
    ) -> Result<Self, String> {
        let only = templates.len() == 1;
        let (mut clock, mut developer, mut thinking) = (false, false, Vec::new());
        let (mut tool_use, mut default) = (None, None);
        for (name, source) in templates {
            let name = if only { DEFAULT.to_owned() } else { name };
            clock |= source.contains("strftime_now");
            developer |= source.contains("developer");
            thinking.extend(THINKING.into_iter().find(|name| source.contains(name)));
            let source = replace_generation_tags(&source).into_owned();
            let describe = |error: Error| format!("chat template {name:?}: {}", describe(&error));
            let compiled = CompiledTemplate::compile(source).map_err(describe)?;
            match &*name {
                DEFAULT => default = Some(compiled),
                TOOL_USE => tool_use = Some(compiled),
                _ => {}
            }
        }
        let default =
            default.ok_or("there are several chat templates and none is named \"default\"")?;
        let special_tokens: Vec<_> =
            special_tokens.into_iter().map(|(name, text)| (name, Value::from(text))).collect();
        let environment = environment();
        let probed = |compiled: CompiledTemplate, tools| {
            let probe = Probe {
                environment: &environment,
                template: &compiled,
                special_tokens: &special_tokens,
                tools,
            };
            let dialect = probe.dialect(developer);
            ProbedTemplate { compiled, dialect }
        };
        let default = probed(default, false);
        let tool_use = tool_use.map(|compiled| probed(compiled, true));
        Ok(Self { environment, default, tool_use, thinking, clock, special_tokens })
    }

    /// Renders a conversation to the prompt's text. `now` is what `strftime_now` tells, in UTC.
    ///
    /// # Errors
    ///
    /// [`PromptError`] where the template refuses the conversation or cannot render it.
    pub fn render(
        &self,
        conversation: &Conversation<'_>,
        now: SystemTime,
    ) -> Result<String, PromptError> {
        let tool_use = self.tool_use.as_ref().filter(|_| conversation.tools.is_some());
        let template = tool_use.unwrap_or(&self.default);
        let messages = history::settle(&conversation.messages, template.dialect.history);
        let open = conversation.continue_final_message.then_some(OPEN_TAG);
        let last = last_text(&messages);
        if open.is_some() && last.is_none() {
            return Err(PromptError::NothingToContinue);
        }
        let rendered = |dialect| {
            budget::for_input(context::size_bytes(conversation), || {
                let messages = context::messages(&messages, dialect, open);
                self.render_values(&template.compiled, conversation, messages, now)
            })
        };
        let text = match rendered(template.dialect) {
            // The model wrote them, or its bound cut them: the conversation goes on all the same.
            Err(_) if context::has_broken_arguments(&messages) => rendered(TemplateDialect {
                arguments: ArgumentForm::ObjectAlways,
                ..template.dialect
            }),
            rendered => rendered,
        };
        let text = text.map_err(|error| refusal(&error))?;
        match open.zip(last) {
            Some((tag, last)) => reopen(text, tag, last),
            None => Ok(text),
        }
    }

    fn render_values(
        &self,
        template: &CompiledTemplate,
        conversation: &Conversation<'_>,
        messages: Value,
        now: SystemTime,
    ) -> Result<String, Error> {
        let tools = conversation
            .tools
            .as_ref()
            .map(|tools| tools.iter().map(context::json).collect::<Vec<_>>());
        let mut values: Vec<(Cow<'_, str>, Value)> = Vec::with_capacity(16);
        values.extend(
            self.special_tokens.iter().map(|(name, token)| (Cow::Borrowed(&**name), token.clone())),
        );
        values.extend(
            conversation
                .template_kwargs
                .iter()
                .map(|(name, value)| (name.clone(), context::json(value))),
        );
        if let Some(thinking) = conversation.thinking {
            // What the client says of a variable by its name counts more.
            let said = |name: &str| conversation.template_kwargs.iter().any(|(key, _)| key == name);
            let names = self.thinking.iter().filter(|name| !said(name));
            values.extend(names.map(|name| ((*name).into(), Value::from(thinking))));
        }
        values.push(("messages".into(), messages));
        values.push(("tools".into(), tools.map_or(Value::from(()), Value::from)));
        values.push((
            "documents".into(),
            conversation.documents.as_ref().map_or(Value::from(()), context::json),
        ));
        values.push((
            "add_generation_prompt".into(),
            Value::from(conversation.add_generation_prompt),
        ));
        if self.clock {
            let clock = move |format: &str| {
                // The longest name of a month or a day stands for two characters.
                budget::spend(format.len().saturating_mul(5))?;
                Ok::<_, Error>(strftime(format, now))
            };
            values.push(("strftime_now".into(), Value::from_function(clock)));
        }
        template.render(&self.environment, Value::from_pairs(values))
    }

    /// A prompt whose answer is to begin with thoughts, if the template renders it.
    pub(crate) fn prompt_for_thoughts(&self) -> Option<String> {
        let content = Content::Text("Hello".into());
        let message = Message { role: Role::User, content, extra: Vec::new() };
        let probe = Probe {
            environment: &self.environment,
            template: &self.default.compiled,
            special_tokens: &self.special_tokens,
            tools: false,
        };
        let setting = ProbeSetting { thinking: true, ..ProbeSetting::default() };
        budget::for_input(0, || probe.render(&[message], self.default.dialect, setting))
    }
}

/// `transformers`' tag for the assistant's tokens changes nothing in a prompt. It becomes a scope,
/// which is what it is otherwise; its whitespace control stays.
fn replace_generation_tags(source: &str) -> Cow<'_, str> {
    const TAGS: [(&str, &str); 2] =
        [("generation", "with generation_scope = true"), ("endgeneration", "endwith")];
    let mut out = String::new();
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        let Some(end) = tag.find("%}") else { break };
        let inner = tag[..end].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        out.push_str(before);
        match TAGS.iter().find(|(name, _)| *name == inner) {
            Some((name, replacement)) => out.push_str(&tag[..end].replacen(name, replacement, 1)),
            None => out.push_str(&tag[..end]),
        }
        rest = &tag[end..];
    }
    match out.is_empty() {
        true => Cow::Borrowed(source),
        false => Cow::Owned(out + rest),
    }
}

fn last_text<'a>(messages: &'a [Message<'_>]) -> Option<&'a str> {
    messages.last()?.content.texts().next_back()
}

/// Cuts the prompt where the last message's text ends.
fn reopen(mut text: String, tag: &str, last: &str) -> Result<String, PromptError> {
    let Some(at) = text.rfind(tag.trim_end()).filter(|_| text.contains(last.trim())) else {
        return Err(PromptError::LastMessageLeftOut);
    };
    let trimmed = !text[at..].starts_with(tag);
    text.truncate(at);
    if trimmed {
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}

/// Longest text of a template in an error message, in bytes.
const MESSAGE_MAX_BYTES: usize = 1024;

/// The error for a conversation that did not render.
fn refusal(error: &Error) -> PromptError {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(TemplateException(message)) = cause.downcast_ref() {
            let message = format!("the chat template refuses the messages: {}", shortened(message));
            return PromptError::Template(message);
        }
        source = cause.source();
    }
    PromptError::Template(format!(
        "the chat template cannot render the messages: {}",
        describe(error)
    ))
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MESSAGE_MAX_BYTES)]
}

fn describe(error: &Error) -> String {
    let line = error.line().map(|line| format!(" in line {line}")).unwrap_or_default();
    match error.detail() {
        Some(detail) => format!("{}: {}{line}", error.kind(), shortened(detail)),
        None => format!("{}{line}", error.kind()),
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
