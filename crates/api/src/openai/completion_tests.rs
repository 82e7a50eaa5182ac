use super::*;
use crate::request::GenerateOptions;
use http::StatusCode;

fn parse(members: &str) -> Result<(Vec<Prompt<'static>>, GenerateOptions), ApiError> {
    let body = format!("{{\"model\":\"m\",{members}}}");
    let request = read(body.as_bytes())?;
    let Input::Prompts { prompts, .. } = request.input else { panic!("no prompts") };
    let owned = |prompt: &Prompt<'_>| match prompt {
        Prompt::Text(text) => Prompt::Text(text.clone().into_owned().into()),
        Prompt::Tokens(ids) => Prompt::Tokens(ids.clone()),
    };
    Ok((prompts.iter().map(owned).collect(), request.options))
}

#[track_caller]
fn check_prompts(prompt: &str, expected: &[Prompt<'_>]) {
    assert_eq!(parse(&format!("\"prompt\":{prompt}")).unwrap().0, expected);
}

#[track_caller]
fn check_refused(members: &str, status: u16, param: &str, message: &str) {
    let error = parse(members).expect_err(members);
    assert_eq!(
        (error.status.as_u16(), error.param.as_deref()),
        (status, Some(param)),
        "{members}: {error}"
    );
    assert!(error.message.contains(message), "{members}: {error}");
}

#[test]
fn a_prompt_has_four_shapes() {
    check_prompts(r#""a\n""#, &[Prompt::Text("a\n".into())]);
    check_prompts(r#"["a",""]"#, &[Prompt::Text("a".into()), Prompt::Text("".into())]);
    check_prompts("[1,2]", &[Prompt::Tokens(vec![1, 2])]);
    check_prompts("[[1],[2,3]]", &[Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]);
}

#[test]
fn wrong_prompts_name_the_place() {
    check_refused(r#""prompt":[]"#, 400, "prompt", "empty list");
    check_refused(r#""prompt":[[1],[]]"#, 400, "prompt", "prompt[1] has no tokens");
    check_refused(r#""prompt":["a",1]"#, 400, "prompt[1]", "must be a string");
    check_refused(r#""prompt":[1,-1]"#, 400, "prompt[1]", "-1");
    check_refused(r#""prompt":[4294967296]"#, 400, "prompt[0]", "4294967296");
    check_refused(r#""prompt":{}"#, 400, "prompt", "list of token ids");
    check_refused(r#""stream":true"#, 400, "prompt", "missing");
    check_refused(r#""prompt":"a","messages":[]"#, 400, "messages", "chat");
    check_refused(r#""prompt":"a","suffix":"b""#, 400, "suffix", "not supported");
}

#[test]
fn choices_of_all_prompts_are_limited() {
    parse(r#""prompt":["a","b"],"n":64"#).unwrap();
    check_refused(r#""prompt":["a","b"],"n":65"#, 422, "n", "130 choices, the limit is 128");
}

#[test]
fn logprobs_is_a_number_up_to_five() {
    let logprobs = |value: &str| {
        parse(&format!(r#""prompt":"a","logprobs":{value}"#)).map(|(_, o)| o.sampling.logprobs)
    };
    assert_eq!(logprobs("null"), Ok(None));
    assert_eq!(logprobs("0"), Ok(Some(0)));
    assert_eq!(logprobs("5"), Ok(Some(5)));
    assert_eq!(logprobs("6").unwrap_err().status, StatusCode::BAD_REQUEST);
    assert_eq!(logprobs("true").unwrap_err().status, StatusCode::BAD_REQUEST);
    check_refused(r#""prompt":"a","top_logprobs":2"#, 400, "top_logprobs", "logprobs");
}

#[test]
fn answers_are_sixteen_tokens_unless_asked() {
    assert_eq!(parse(r#""prompt":"a""#).unwrap().1.open.max_tokens, Some(16));
    assert_eq!(parse(r#""prompt":"a","min_tokens":20"#).unwrap().1.open.max_tokens, Some(20));
    assert_eq!(parse(r#""prompt":"a","max_tokens":3"#).unwrap().1.open.max_tokens, Some(3));
}

#[test]
fn tokens_beside_a_prompt_stand_for_one_prompt() {
    let tokens = |members: &str| parse(&format!(r#"{members},"nvext":{{"token_data":[5,6]}}"#));
    for one in [r#""prompt":"a""#, r#""prompt":["a"]"#, r#""prompt":[1]"#, r#""prompt":[[1]]"#] {
        assert_eq!(tokens(one).unwrap().0, [Prompt::Tokens(vec![5, 6])], "{one}");
    }
    let error = tokens(r#""prompt":["a","b"]"#).expect_err("two prompts");
    assert_eq!((error.status.as_u16(), error.param.as_deref()), (422, Some("nvext.token_data")));
    assert!(error.message.contains("a list of 2"), "{error}");
    check_refused(
        r#""prompt":"a","nvext":{"token_data":{}}"#,
        400,
        "nvext.token_data",
        "must be a list",
    );
}
