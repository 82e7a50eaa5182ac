use super::calls::{answered_id, calls, function_name};
use super::conversations::{conversations, words};
use super::*;
use proptest::prelude::*;
use stator_api::conversation::{Content, Role};
use stator_api::json::Json;

/// A message of each word: `s` for the system, `d` for the developer, `u`, `a` and `t`. The word
/// `u:hi` is of the user, with the text `hi`.
fn read(conversation: &'static str) -> Vec<Message<'static>> {
    let message = |word: &'static str| {
        let (role, text) = word.split_once(':').expect("a role and a text");
        let role = match role {
            "s" => Role::System,
            "d" => Role::Developer,
            "u" => Role::User,
            "t" => Role::Tool,
            _ => Role::Assistant,
        };
        Message { role, content: Content::Text(text.into()), extra: Vec::new() }
    };
    conversation.split(' ').map(message).collect()
}

fn written(messages: &[Message<'_>]) -> String {
    let message = |message: &Message<'_>| {
        let Content::Text(text) = &message.content else { return "-".to_owned() };
        format!("{}:{}", &message.role.as_str()[..1], text.replace("\n\n", "+"))
    };
    messages.iter().map(message).collect::<Vec<_>>().join(" ")
}

fn rules(first: bool, several: bool, later: bool, adjacent_users: bool) -> InstructionRules {
    InstructionRules { first, several, later, adjacent_users }
}

#[track_caller]
fn check(rules: InstructionRules, conversation: &'static str, expected: &str) {
    let needs = HistoryNeeds { instructions: rules, ..HistoryNeeds::default() };
    assert_eq!(written(&settle(&read(conversation), needs)), expected);
}

#[test]
fn instructions_in_front_become_one_where_a_template_takes_one() {
    check(rules(true, false, true, true), "s:a d:b u:c s:d u:e", "s:a+b u:c s:d u:e");
    check(rules(true, false, true, true), "s:a u:c", "s:a u:c");
    check(rules(true, true, true, true), "s:a d:b u:c", "s:a d:b u:c");
}

#[test]
fn later_instructions_become_messages_of_the_user() {
    let takes_users = rules(true, true, false, true);
    check(takes_users, "s:a u:b a:c s:d u:e", "s:a u:b a:c u:d u:e");
    check(takes_users, "u:b a:c t:d s:e a:f", "u:b a:c t:d u:e a:f");
}

#[test]
fn later_instructions_join_a_message_where_turns_alternate() {
    let alternates = rules(true, false, false, false);
    check(alternates, "s:a s:b u:c a:d s:e d:f u:g", "s:a+b u:c a:d u:e+f+g");
    check(alternates, "u:a s:b a:c", "u:a+b a:c");
    check(alternates, "u:a a:b t:c s:d s:e a:f", "u:a a:b t:c+d+e a:f");
    check(alternates, "u:a a:b s:c s:d", "u:a a:b u:c+d");
    check(alternates, "u:a a:b s:c a:d", "u:a a:b u:c a:d");
}

#[test]
fn a_template_without_instructions_has_them_before_the_question() {
    check(rules(false, false, false, false), "s:a d:b u:c a:d", "u:a+b+c a:d");
    check(rules(false, false, false, true), "s:a u:c a:d", "u:a u:c a:d");
}

/// A message with calls of these ids and names.
fn caller(calls: &[(&'static str, &'static str)]) -> Message<'static> {
    let text = |text: &'static str| Json::Str(text.into());
    let call = |(id, name): &(&'static str, &'static str)| {
        let function = Json::Object(vec![("name".into(), text(name))]);
        Json::Object(vec![("id".into(), text(id)), ("function".into(), function)])
    };
    let calls = Json::Array(calls.iter().map(call).collect());
    let extra = vec![("tool_calls".into(), calls)];
    Message { role: Role::Assistant, content: Content::Null, extra }
}

fn result(id: &'static str) -> Message<'static> {
    let extra = vec![("tool_call_id".into(), Json::Str(id.into()))];
    Message { role: Role::Tool, content: Content::Text(id.into()), extra }
}

/// The ids of all calls and results, and the names of results.
fn ids(messages: &[Message<'_>]) -> Vec<String> {
    let mut ids = Vec::new();
    for message in messages {
        let call_id = |call: &Json<'_>| call.get("id")?.as_str().map(str::to_owned);
        ids.extend(calls(message).iter().filter_map(call_id));
        ids.extend(answered_id(message).map(str::to_owned));
        let name = message.extra.iter().find(|(name, _)| name == "name");
        ids.extend(name.and_then(|(_, name)| Some(format!("({})", name.as_str()?))));
    }
    ids
}

#[test]
fn results_come_in_the_order_of_their_calls() {
    let messages = [caller(&[("x", "f"), ("y", "g")]), result("?"), result("y"), result("x")];
    assert_eq!(ids(&settle(&messages, HistoryNeeds::default())), ["x", "y", "x", "y", "?"]);
    let ordered = [caller(&[("x", "f"), ("y", "g")]), result("x"), result("y")];
    let settled = settle(&ordered, HistoryNeeds::default());
    assert!(matches!(settled, Cow::Borrowed(_)), "nothing is copied");
}

#[test]
fn results_have_the_names_of_their_calls() {
    let needs = HistoryNeeds { result_names: true, ..HistoryNeeds::default() };
    let messages = [caller(&[("x", "f")]), result("x"), caller(&[("x", "g")]), result("x")];
    assert_eq!(ids(&settle(&messages, needs)), ["x", "x", "(f)", "x", "x", "(g)"]);
    let mut named = result("x");
    named.extra.push(("name".into(), Json::Str("h".into())));
    assert_eq!(ids(&settle(&[caller(&[("x", "f")]), named], needs)), ["x", "x", "(h)"]);
    assert_eq!(ids(&settle(&[result("z")], needs)), ["z"]);
}

#[test]
fn ids_of_nine_characters_stay_and_all_others_get_nine() {
    let needs = HistoryNeeds { ids: CallIds::Nine, ..HistoryNeeds::default() };
    let messages = [
        caller(&[("abcdefgh1", "f"), ("call_1", "g")]),
        result("abcdefgh1"),
        result("call_1"),
        result("call_2"),
    ];
    let found = ids(&settle(&messages, needs));
    assert_eq!((&*found[0], &*found[2]), ("abcdefgh1", "abcdefgh1"));
    assert_eq!(found[1], found[3]);
    assert_ne!(found[3], found[4]);
    for id in &found {
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    }
}

#[test]
fn counted_ids_name_the_function_and_count_all_calls() {
    let needs = HistoryNeeds { ids: CallIds::Counted, ..HistoryNeeds::default() };
    let messages = [
        caller(&[("call_a", "f"), ("functions.g:4", "g")]),
        result("call_a"),
        result("functions.g:4"),
        caller(&[("call_a", "g"), ("functions.f:9", "g")]),
        result("call_a"),
        result("functions.f:9"),
        result("call_b"),
    ];
    assert_eq!(
        ids(&settle(&messages, needs)),
        [
            "functions.f:0",
            "functions.g:4",
            "functions.f:0",
            "functions.g:4",
            "functions.g:5",
            // It names another function.
            "functions.g:6",
            "functions.g:5",
            "functions.g:6",
            "call_b",
        ]
    );
}

/// Each result stands behind the call that it answers, and each id of a message is its own.
fn check_ids(messages: &[Message<'_>], settled: &[Message<'_>]) {
    let answered = |messages: &[Message<'_>]| {
        let (mut pairs, mut called) = (Vec::new(), Vec::new());
        for message in messages {
            for call in calls(message) {
                let id = call.get("id").and_then(Json::as_str).expect("an id");
                called.push((id.to_owned(), function_name(call).cloned()));
            }
            if let Some(id) = answered_id(message) {
                let call = called.iter().rev().find(|(known, _)| known == id);
                let Content::Text(text) = &message.content else { panic!("a text") };
                let word = text.split('\n').next().map(str::to_owned);
                pairs.push((word, call.and_then(|(_, name)| name.clone().map(Cow::into_owned))));
            }
        }
        pairs.sort();
        pairs
    };
    assert_eq!(answered(settled), answered(messages));
}

proptest! {
    /// In every combination of needs all words stay, results keep their calls, and a conversation up
    /// to an assistant's message is the beginning of the whole.
    #[test]
    fn no_words_are_lost_and_earlier_messages_stay(
        messages in conversations(),
        rules in any::<(bool, bool, bool, bool)>(),
        ids in prop::sample::select(vec![CallIds::Any, CallIds::Nine, CallIds::Counted]),
        result_names: bool,
    ) {
        let (first, several, later, adjacent_users) = rules;
        let instructions = InstructionRules { first, several, later, adjacent_users };
        let needs = HistoryNeeds { instructions, ids, result_names };
        let settled = settle(&messages, needs);
        let is_instruction = |it: &Message<'_>| matches!(it.role, Role::System | Role::Developer);
        let (mut found, mut expected) = (words(&settled).join(" "), words(&messages));
        for word in &expected {
            prop_assert!(found.contains(word), "{word} is lost: {settled:?}");
        }
        // Texts keep their order, but for results.
        let is_text = |word: &String| word.starts_with('w');
        if !messages.iter().any(|it| it.role == Role::Tool) {
            expected.retain(is_text);
            found = found.replace("\n\n", " ");
            let found: Vec<_> = found.split(' ').map(str::to_owned).filter(is_text).collect();
            prop_assert_eq!(found, expected);
        }
        check_ids(&messages, &settled);
        let head = settled.iter().take_while(|it| is_instruction(it)).count();
        prop_assert!(first || head == 0);
        prop_assert!(several || head <= 1);
        prop_assert!(later || !settled[head..].iter().any(is_instruction));
        if !adjacent_users && !later {
            let users = |pair: &[Message<'_>]| pair.iter().all(|it| it.role == Role::User);
            prop_assert!(!settled.windows(2).any(users), "{settled:?}");
        }
        for (at, _) in messages.iter().enumerate().filter(|(_, it)| it.role == Role::Assistant) {
            let begun = settle(&messages[..at], needs);
            prop_assert!(settled.starts_with(&begun), "{at} of {messages:?}");
        }
    }
}
