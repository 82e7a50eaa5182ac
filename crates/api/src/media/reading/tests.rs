use super::*;
use crate::conversation::Conversation;
use crate::media::MEDIA_MAX;
use crate::responses::request::ResponsePlace;
use crate::responses::{check, parse};
use crate::{Api, FieldNotes, Input, read};

/// Reads the conversation of a body, and passes it on.
fn conversation<T>(
    api: Api,
    body: &str,
    look: impl FnOnce(Result<&Conversation<'_>, ApiError>) -> T,
) -> T {
    let notes = FieldNotes::default();
    let request = match api {
        Api::Responses => parse(body.as_bytes(), &notes).and_then(|body| {
            let place = ResponsePlace { id: "", keeps: true, seal: None };
            Ok(check(body, &[], place, &notes)?.request)
        }),
        api => read(api, body.as_bytes(), &notes),
    };
    match request {
        Ok(request) => match &request.input {
            Input::Conversation(conversation) => look(Ok(conversation)),
            other => panic!("{other:?}"),
        },
        Err(error) => look(Err(error)),
    }
}

/// The body of a chat, of a request for a response or of one for a message, with a part before which
/// stands a text.
fn body(api: Api, part: &str) -> String {
    match api {
        Api::Responses => format!(
            r#"{{"model":"m","input":[{{"role":"user","content":"a"}},{{"role":"user",
            "content":[{{"type":"input_text","text":"b"}},{part}]}}]}}"#
        ),
        _ => format!(
            r#"{{"model":"m","max_tokens":9,"messages":[{{"role":"system","content":"a"}},{{"role":"user",
            "content":[{{"type":"text","text":"b"}},{part}]}}]}}"#
        ),
    }
}

#[track_caller]
fn check_part(api: Api, part: &str, kind: MediaKind, source: MediaSource<'_>) {
    conversation(api, &body(api, part), |conversation| {
        let conversation = conversation.unwrap_or_else(|error| panic!("{part}: {error}"));
        let media: Vec<_> = conversation.media().collect();
        let list = if api == Api::Responses { "input" } else { "messages" };
        let [medium] = media[..] else { panic!("{media:?}") };
        assert_eq!((medium.kind, &medium.source), (kind, &source), "{part}");
        assert_eq!(medium.path, format!("{list}[1].content[1]"));
        assert!(part.contains(&format!(r#""type":"{}""#, medium.part_type)), "{medium:?}");
        let last = conversation.messages.last().expect("a message");
        assert_eq!(last.content.texts().collect::<Vec<_>>(), ["b"], "it stays in its place");
    });
}

#[test]
fn media_are_read_in_the_words_of_each_api() {
    use MediaKind::{Audio, File, Image, Video};
    use MediaSource::{Data, FileId, Url};
    let chat = Api::ChatCompletions;
    let image = r#"{"type":"image_url","image_url":{"url":"http://a/1.png","detail":"low"}}"#;
    check_part(chat, image, Image, Url("http://a/1.png".into()));
    let audio = r#"{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}"#;
    check_part(chat, audio, Audio, Data("AAAA".into()));
    check_part(chat, r#"{"type":"audio_url","audio_url":{"url":"x"}}"#, Audio, Url("x".into()));
    check_part(chat, r#"{"type":"video_url","video_url":{"url":"x"}}"#, Video, Url("x".into()));
    check_part(chat, r#"{"type":"file","file":{"file_id":"f"}}"#, File, FileId("f".into()));
    let file = r#"{"type":"file","file":{"filename":"n","file_data":"AA"}}"#;
    check_part(chat, file, File, Data("AA".into()));

    let image = r#"{"type":"input_image","image_url":"data:,x","detail":"auto"}"#;
    check_part(Api::Responses, image, Image, Url("data:,x".into()));
    let image = r#"{"type":"input_image","image_url":null,"file_id":"f"}"#;
    check_part(Api::Responses, image, Image, FileId("f".into()));
    let file = r#"{"type":"input_file","file_url":"x","filename":"n"}"#;
    check_part(Api::Responses, file, File, Url("x".into()));
    check_part(Api::Responses, audio, Audio, Data("AAAA".into()));

    let block = |kind: &str, source: &str| format!(r#"{{"type":"{kind}","source":{source}}}"#);
    let data = r#"{"type":"base64","media_type":"image/png","data":"AA"}"#;
    check_part(Api::Messages, &block("image", data), Image, Data("AA".into()));
    let url = r#"{"type":"url","url":"x"}"#;
    check_part(Api::Messages, &block("document", url), File, Url("x".into()));
    let id = r#"{"type":"file","file_id":"f"}"#;
    check_part(Api::Messages, &block("image", id), Image, FileId("f".into()));
}

#[test]
fn results_of_tools_may_hold_media() {
    let messages = r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"},
        {"role":"assistant","content":[{"type":"tool_use","id":"i","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":[
            {"type":"image","source":{"type":"url","url":"x"}}]}]}]}"#;
    let response = r#"{"model":"m","input":[
        {"type":"function_call","call_id":"i","name":"f","arguments":"{}"},
        {"type":"function_call_output","call_id":"i","output":[
            {"type":"input_image","image_url":"x"}]}]}"#;
    for (api, body, path) in [
        (Api::Messages, messages, "messages[2].content[0].content[0]"),
        (Api::Responses, response, "input[1].output[0]"),
    ] {
        conversation(api, body, |conversation| {
            let conversation = conversation.expect("it is read");
            let paths: Vec<_> = conversation.media().map(|medium| &*medium.path).collect();
            assert_eq!(paths, [path]);
        });
    }
}

#[test]
fn a_medium_without_content_is_named() {
    let (chat, messages) = (Api::ChatCompletions, Api::Messages);
    for (api, part, param) in [
        (chat, r#"{"type":"image_url"}"#, "messages[1].content[1]"),
        (chat, r#"{"type":"image_url","image_url":{"uri":"x"}}"#, "messages[1].content[1]"),
        (chat, r#"{"type":"file","file":"x"}"#, "messages[1].content[1]"),
        (chat, r#"{"type":"hologram","hologram":{}}"#, "messages[1].content[1]"),
        (Api::Responses, r#"{"type":"input_image"}"#, "input[1].content[1].image_url"),
        (Api::Responses, r#"{"type":"input_film"}"#, "input[1].content[1]"),
        (messages, r#"{"type":"image"}"#, "messages[1].content[1].source"),
        (
            messages,
            r#"{"type":"image","source":{"type":"x"}}"#,
            "messages[1].content[1].source.type",
        ),
        (
            messages,
            r#"{"type":"image","source":{"type":"url"}}"#,
            "messages[1].content[1].source.url",
        ),
    ] {
        conversation(api, &body(api, part), |conversation| {
            let error = conversation.expect_err(part);
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref()),
                (400, Some(param)),
                "{error}"
            );
        });
    }
}

#[test]
fn a_conversation_has_so_many_media() {
    let part = r#"{"type":"image_url","image_url":{"url":"x"}}"#;
    let parts = |count| vec![part; count].join(",");
    let chat = Api::ChatCompletions;
    conversation(chat, &body(chat, &parts(MEDIA_MAX)), |conversation| {
        assert_eq!(conversation.expect("they are few").media().count(), MEDIA_MAX);
    });
    conversation(chat, &body(chat, &parts(MEDIA_MAX + 1)), |conversation| {
        let error = conversation.expect_err("they are too many");
        assert_eq!(error.param.as_deref(), Some("messages[1].content[129]"));
        assert!(error.message.contains("the limit is 128"), "{error}");
    });
}

#[test]
fn tokens_do_not_stand_for_media() {
    let body = r#"{"model":"m","nvext":{"token_data":[1,2]},"messages":[{"role":"user","content":[
        {"type":"image_url","image_url":{"url":"x"}}]}]}"#;
    conversation(Api::ChatCompletions, body, |conversation| {
        assert_eq!(conversation.expect("it is read").media().count(), 1);
    });
}
