//! Probes of a template: small conversations, rendered once when a model is loaded, that tell what the
//! template takes.
//!
//! A template that renders a conversation whole is given conversations as they come. Only one that
//! loses words, prints `None` for them, or refuses, is given another form that keeps them.

use crate::context::{self, ArgumentForm, NoContent, TemplateDialect};
use crate::history::{self, CallIds, HistoryNeeds, InstructionRules};
use crate::jinja::{CompiledTemplate, budget};
use minijinja::Environment;
use minijinja::value::Value;
use stator_api::conversation::{Content, Message, Role};
use stator_api::json::Json;

/// Names of the variable that switches thoughts on and off. Source: the templates of Qwen, GLM and
/// Gemma; of DeepSeek, Kimi and Granite.
pub(super) const THINKING: [&str; 2] = ["enable_thinking", "thinking"];

/// Words of probes. No template has them, and none is a part of another.
const ASK: &str = "zqask-7f3a";
const ANSWER: &str = "zqanswer-5c1e";
const NEXT: &str = "zqnext-9b2d";
const FIRST: &str = "zqfirst-3e8f";
const SECOND: &str = "zqsecond-6d4a";
const LATER: &str = "zqlater-8a7c";
const FUNCTION: &str = "zqfunction";
const KEY: &str = "zqkey";
const VALUE: &str = "zqvalue";
/// Arguments as a model writes them, and the beginning of Python's print of their object.
const ARGUMENTS: &str = r#"{"zqkey": "zqvalue"}"#;
const PRINTED_OBJECT: &str = "{'zqkey'";
/// An id in OpenAI's form, and the shortest one.
const ID: &str = "call_zqid4f9e1b7c2d8a6053";
const SHORT_ID: &str = "7";

/// A template that is probed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe<'t> {
    pub(super) environment: &'t Environment<'static>,
    pub(super) template: &'t CompiledTemplate,
    pub(super) special_tokens: &'t [(String, Value)],
    /// Whether it serves only requests with tools.
    pub(super) tools: bool,
}

/// Variables of a probe beside its messages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProbeSetting {
    /// Switches thoughts on.
    pub(super) thinking: bool,
    /// Names a tool.
    pub(super) tools: bool,
}

impl Probe<'_> {
    /// Dialect of the template. `developer` tells whether its source has that word. All probes share
    /// the memory of one rendering, so that a template that takes much of it loads in little time.
    pub(super) fn dialect(self, developer: bool) -> TemplateDialect {
        budget::for_input(0, || self.find_dialect(developer))
    }

    fn find_dialect(self, developer: bool) -> TemplateDialect {
        let mut dialect = TemplateDialect::default();
        dialect.parts = self.renders_parts(dialect);
        // A template that shows nothing of a question shows nothing of a probe.
        if !self.keeps(&[user(ASK)], dialect, &[ASK]) {
            return TemplateDialect { developer, ..dialect };
        }
        let known = TemplateDialect { developer, ..dialect };
        dialect.developer =
            developer && self.keeps(&[text(Role::Developer, FIRST), user(ASK)], known, &[FIRST]);
        dialect.history.instructions = self.instructions(dialect);
        let unheard = [user(ASK), assistant(Content::Null, None), user(NEXT)];
        dialect.no_content.alone = self.takes_none(&unheard, dialect, ProbeSetting::default());
        self.find_call_forms(dialect)
    }

    /// Whether the template takes a list of text parts: it renders one, and the text is in the
    /// result, and not as the printed list.
    fn renders_parts(self, dialect: TemplateDialect) -> bool {
        let content = Content::Parts(vec![ASK.into()]);
        let message = Message { role: Role::User, content, extra: Vec::new() };
        let dialect = TemplateDialect { parts: true, ..dialect };
        let rendered = self.render(&[message], dialect, ProbeSetting::default());
        rendered.is_some_and(|text| {
            text.contains(ASK) && !text.contains("'text'") && !text.contains("\"text\"")
        })
    }

    /// The places in which the template renders instructions.
    fn instructions(self, dialect: TemplateDialect) -> InstructionRules {
        let (ask, answer, next) = (user(ASK), text(Role::Assistant, ANSWER), user(NEXT));
        let turns = [ask.clone(), answer.clone(), next.clone()];
        // A template that leaves earlier turns out tells nothing of the places between them.
        if !self.keeps(&turns, dialect, &[ASK, ANSWER, NEXT]) {
            return InstructionRules::default();
        }
        let roles = [Role::System, Role::Developer];
        let roles = &roles[..if dialect.developer { 2 } else { 1 }];
        let all = |check: &dyn Fn(Role) -> bool| roles.iter().all(|role| check(*role));
        let first = all(&|role| {
            let messages = [text(role, FIRST), ask.clone()];
            self.keeps(&messages, dialect, &[FIRST]) && self.keeps(&messages, dialect, &[ASK])
        });
        let several = all(&|role| {
            let messages = [text(Role::System, FIRST), text(role, SECOND), ask.clone()];
            self.keeps(&messages, dialect, &[FIRST, SECOND])
                && self.keeps(&messages, dialect, &[ASK])
        });
        let between = |message: Message<'static>| {
            let head = first.then(|| text(Role::System, FIRST));
            let turns = [ask.clone(), answer.clone(), message, next.clone()];
            let messages: Vec<_> = head.into_iter().chain(turns).collect();
            self.keeps(&messages, dialect, &[ANSWER, LATER, NEXT])
        };
        InstructionRules {
            first,
            several,
            later: all(&|role| between(text(role, LATER))),
            adjacent_users: between(user(LATER)),
        }
    }

    /// The dialect with the forms in which the template renders calls and their results whole; as it
    /// is for a template that renders none.
    fn find_call_forms(self, mut dialect: TemplateDialect) -> TemplateDialect {
        let empty = |id| assistant(Content::Text("".into()), Some(call(id)));
        let messages = [user(ASK), empty(ID), result(ID, None)];
        let short = [user(ASK), empty(SHORT_ID), result(SHORT_ID, None)];
        let mut forms = [true, false].into_iter().flat_map(|tools| {
            [CallIds::Any, CallIds::Nine].into_iter().flat_map(move |ids| {
                let arguments = [ArgumentForm::Object, ArgumentForm::Text].into_iter();
                arguments.map(move |arguments| (tools, ids, arguments))
            })
        });
        let found = forms.find_map(|(tools, ids, arguments)| {
            let history = HistoryNeeds { ids, ..dialect.history };
            let dialect = TemplateDialect { arguments, history, ..dialect };
            let setting = ProbeSetting { tools, ..ProbeSetting::default() };
            let text = self.render(&messages, dialect, setting)?;
            self.render(&short, dialect, setting)?;
            let is_whole = match arguments {
                ArgumentForm::Text => text.contains(ARGUMENTS),
                _ => {
                    let is_printed = text.contains(PRINTED_OBJECT);
                    text.contains(KEY) && text.contains(VALUE) && !is_printed
                }
            };
            is_whole.then_some((dialect, setting, text))
        });
        let silent = [user(ASK), assistant(Content::Null, Some(call(ID))), result(ID, None)];
        let Some((found, setting, text)) = found else {
            let setting = ProbeSetting::default();
            dialect.no_content.beside_calls = self.takes_none(&silent, dialect, setting);
            return dialect;
        };
        dialect = found;
        // The id alone tells the model which function was called.
        if dialect.history.ids == CallIds::Any && text.contains(ID) && !text.contains(FUNCTION) {
            dialect.history.ids = CallIds::Counted;
        }
        let named = [user(ASK), empty(ID), result(ID, Some(FUNCTION))];
        let named = self.render(&named, dialect, setting);
        let nameless = self.render(&messages, dialect, setting);
        dialect.history.result_names = named.is_some() && named != nameless;
        dialect.no_content.beside_calls = self.takes_none(&silent, dialect, setting);
        dialect
    }

    /// Whether the template takes no content as no text: otherwise it fails where it would render an
    /// empty text, or prints a word.
    fn takes_none(
        self,
        messages: &[Message<'_>],
        dialect: TemplateDialect,
        setting: ProbeSetting,
    ) -> bool {
        let rendered = |takes_none| {
            let no_content = NoContent { beside_calls: takes_none, alone: takes_none };
            self.render(messages, TemplateDialect { no_content, ..dialect }, setting)
        };
        match (rendered(true), rendered(false)) {
            (Some(none), Some(empty)) => words_for_none(&none) <= words_for_none(&empty),
            (None, Some(_)) => false,
            // Neither tells anything; what is known of messages without calls may hold.
            (_, None) => dialect.no_content.alone,
        }
    }

    /// Whether the template renders these messages with these words in this order.
    fn keeps(self, messages: &[Message<'_>], dialect: TemplateDialect, words: &[&str]) -> bool {
        let Some(text) = self.render(messages, dialect, ProbeSetting::default()) else {
            return false;
        };
        let mut rest = &*text;
        words.iter().all(|word| match rest.split_once(word) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    }

    /// Text of these messages by the template, if it renders them.
    pub(super) fn render(
        self,
        messages: &[Message<'_>],
        dialect: TemplateDialect,
        setting: ProbeSetting,
    ) -> Option<String> {
        let messages =
            context::messages(&history::settle(messages, dialect.history), dialect, None);
        let has_tools = setting.tools || self.tools;
        let tools = has_tools.then(|| Value::from(vec![context::json(&tool())]));
        let fixed = [
            ("messages", messages),
            ("tools", tools.unwrap_or(Value::from(()))),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(true)),
            ("strftime_now", Value::from_function(|_: &str| String::new())),
        ];
        let special = self.special_tokens.iter().map(|(name, token)| (&**name, token.clone()));
        let switches =
            THINKING.iter().filter(|_| setting.thinking).map(|name| (*name, true.into()));
        let values = Value::from_pairs(special.chain(fixed).chain(switches));
        self.template.render(self.environment, values).ok()
    }
}

/// Number of words for nothing in a text.
fn words_for_none(text: &str) -> usize {
    let text = text.to_lowercase();
    text.matches("none").count() + text.matches("null").count()
}

fn text(role: Role, text: &'static str) -> Message<'static> {
    Message { role, content: Content::Text(text.into()), extra: Vec::new() }
}

fn user(words: &'static str) -> Message<'static> {
    text(Role::User, words)
}

fn assistant(content: Content<'static>, call: Option<Json<'static>>) -> Message<'static> {
    let calls = call.map(|call| ("tool_calls".into(), Json::Array(vec![call])));
    Message { role: Role::Assistant, content, extra: calls.into_iter().collect() }
}

fn call(id: &'static str) -> Json<'static> {
    let function = object([("name", words(FUNCTION)), ("arguments", words(ARGUMENTS))]);
    object([("id", words(id)), ("type", words("function")), ("function", function)])
}

/// The result of the call.
fn result(id: &'static str, name: Option<&'static str>) -> Message<'static> {
    let mut message = text(Role::Tool, ANSWER);
    message.extra.push(("tool_call_id".into(), words(id)));
    message.extra.extend(name.map(|name| ("name".into(), words(name))));
    message
}

/// A tool of another name, so that the name of the call is in the call alone.
fn tool() -> Json<'static> {
    let schema = object([("type", words("object")), ("properties", object([]))]);
    let function =
        object([("name", words("zqtool")), ("description", words("")), ("parameters", schema)]);
    object([("type", words("function")), ("function", function)])
}

fn words(text: &'static str) -> Json<'static> {
    Json::Str(text.into())
}

fn object<const N: usize>(members: [(&'static str, Json<'static>); N]) -> Json<'static> {
    Json::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

#[cfg(test)]
#[path = "probes_tests.rs"]
mod tests;
