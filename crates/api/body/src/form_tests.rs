use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const KIND: &str = "multipart/form-data; boundary=b";

fn part(name: &str, data: &str) -> String {
    format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{data}\r\n")
}

/// The form as it goes on where it comes in chunks of this size, and the fields that it loses.
fn screened(form: &[u8], size: usize) -> Result<(String, u64, u64), FormError> {
    let mut screen = FormScreen::new(&FieldRules::default(), KIND)?;
    let mut out = Vec::new();
    for chunk in form.chunks(size) {
        screen.push(Bytes::copy_from_slice(chunk), &mut out)?;
        assert!(screen.held.len() < HEAD_MAX_BYTES, "{} bytes are held back", screen.held.len());
    }
    let screening = screen.finish()?;
    let left = String::from_utf8_lossy(&out.concat()).into_owned();
    Ok((left, screening.steering(), screening.unknown()))
}

#[track_caller]
fn check(form: &str, left: &str) {
    for size in [1, 2, 3, 7, 1 << 20] {
        let found = screened(form.as_bytes(), size).map(|(left, ..)| left);
        assert_eq!(found.as_deref(), Ok(left), "chunks of {size} bytes");
    }
}

#[track_caller]
fn refuses(form: &str, error: FormError) {
    for size in [1, 3, 1 << 20] {
        assert_eq!(screened(form.as_bytes(), size), Err(error), "chunks of {size} bytes");
    }
}

#[test]
fn fields_that_may_not_reach_an_engine_are_removed_wherever_they_stand() {
    let file = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
                content-type: audio/wav\r\n\r\nRIFF--b\r\n-\r\r\n--\r\n";
    let kept = [part("model", "whisper"), part("timestamp_granularities[]", "word"), file.into()];
    let gone = ["kv_transfer_params", "rid", "bootstrap_room[x]", "vllm_xargs", "made_up", "r id"];
    let whole = kept.concat() + "--b--\r\n";
    check(&whole, &whole);
    for at in 0..=kept.len() {
        for name in gone {
            let mut parts = kept.to_vec();
            parts.insert(at, part(name, "{\"remote_host\":1}"));
            check(&(parts.concat() + "--b--\r\n"), &whole);
        }
    }
    let all: String = gone.iter().map(|name| part(name, "")).collect();
    check(&(all.clone() + "--b--"), "--b--\r\n");
    let (_, steering, unknown) = screened((all + "--b--").as_bytes(), 9).expect("it is sound");
    assert_eq!((steering, unknown), (3, 3));
}

#[test]
fn what_follows_the_form_is_dropped() {
    let form = part("model", "m") + "--b--\r\n";
    check(&(form.clone() + &part("rid", "1") + "--b--"), &form);
}

#[test]
fn forms_that_readers_may_take_for_different_ones_are_refused() {
    let head = |head: &str| format!("--b\r\n{head}\r\n\r\nx\r\n--b--\r\n");
    for form in ["\r\n--b--", "{\"rid\":1}", " --b", "-b"] {
        refuses(form, FormError::Begin);
    }
    let model = part("model", "m");
    for odd in ["\n--b\r\n", "\r--b--", "\r\n--b \r\n", "\r\n--bb\r\n", "\r\n--b\n"] {
        refuses(&(model.trim_end().to_owned() + odd + &model), FormError::OddBoundary);
    }
    refuses(&part("model", "").replace("\r\n\r\n\r\n", "\r\n\r\n--b--"), FormError::OddBoundary);
    for form in [
        head("content-disposition: form-data"),
        head("content-disposition: form-data; name=\"\""),
        head("content-disposition: attachment; name=\"model\""),
        head("content-disposition: form-data; name=\"model\"; name=\"rid\""),
        head("content-disposition: form-data; name=\"model\"; name*=utf-8''rid"),
        head("content-disposition: form-data; name=\"model\"; NAME*0=\"rid\""),
        head("content-disposition: form-data; filename=\"\\\"; name=\"rid\""),
        head("content-disposition: form-data; name=\"model\" x; a=b"),
        head(
            "content-disposition: form-data; name=\"model\"\r\nContent-Disposition: form-data; name=\"rid\"",
        ),
        head("content-disposition: form-data;\r\n name=\"model\""),
        head("content-disposition: form-data; name=\"model\"\nx: y"),
        head("content-type: text/plain"),
    ] {
        let refused = screened(form.as_bytes(), 5);
        assert!(matches!(refused, Err(FormError::Head(_))), "{form:?}: {refused:?}");
    }
    refuses(&head(&"x".repeat(HEAD_MAX_BYTES)), FormError::HeadTooLong);
    refuses(&part("model", "m"), FormError::NoEnd);
    refuses("", FormError::NoEnd);
}

#[test]
fn a_boundary_is_named_once() {
    let new = |kind: &str| FormScreen::new(&FieldRules::default(), kind).map(|_| ());
    for kind in ["; boundary=b", "; charset=utf-8; Boundary=\"a b'\"", ";boundary=----b ;"] {
        let sound = kind != "; charset=utf-8; Boundary=\"a b'\"";
        assert_eq!(new(&format!("multipart/form-data{kind}")).is_ok(), sound, "{kind}");
    }
    let long = format!("; boundary={}", "b".repeat(BOUNDARY_MAX_BYTES + 1));
    for kind in ["", ";", "; boundary=", "; boundary=b; boundary=c", "; boundary*=b", &long] {
        assert_eq!(new(&format!("multipart/form-data{kind}")), Err(FormError::Boundary), "{kind}");
    }
    assert_eq!(new("multipart/mixed; boundary=b"), Err(FormError::Boundary));
}

proptest! {
    /// Cuts of a form change nothing: the parts that may pass are left, and no others.
    #[test]
    fn agrees_with_a_list(
        parts in vec(("model|rid|file|prompt|made_up", "([a-z]|\r\n|--|\r|-xyz|x--xyz123|\n){0,12}"), 0..6),
        size in 1_usize..40,
    ) {
        // With this boundary no data has it.
        let kind = "multipart/form-data; boundary=xyz123";
        let render = |keep: &dyn Fn(&str) -> bool| {
            let kept = parts.iter().filter(|(name, _)| keep(name));
            let parts: String = kept.map(|(name, data)| part(name, data).replacen("--b", "--xyz123", 1)).collect();
            parts + "--xyz123--\r\n"
        };
        let mut screen = FormScreen::new(&FieldRules::default(), kind).expect("it is sound");
        let mut out = Vec::new();
        for chunk in render(&|_| true).as_bytes().chunks(size) {
            screen.push(Bytes::copy_from_slice(chunk), &mut out).expect("it is sound");
        }
        screen.finish().expect("it is whole");
        let left = String::from_utf8_lossy(&out.concat()).into_owned();
        prop_assert_eq!(left, render(&|name| !["rid", "made_up"].contains(&name)));
    }

    /// Any bytes give the same result in any cuts, and a screened form has nothing more to lose.
    #[test]
    fn takes_any_bytes(
        pieces in vec(prop_oneof![
            "--b\r\n|\r\n--b|--|\r\n\r\n|\r|\n|x",
            Just("content-disposition: form-data; name=\"rid\"\r\n\r\n".to_owned()),
            Just("content-disposition: form-data; name=\"n\"\r\n\r\n".to_owned()),
        ], 0..12),
        size in 1_usize..9,
    ) {
        let form = "--b\r\n".to_owned() + &pieces.concat();
        let whole = screened(form.as_bytes(), 1 << 20);
        let cut = screened(form.as_bytes(), size);
        prop_assert_eq!(&cut.clone().ok(), &whole.clone().ok());
        if let Ok((left, ..)) = whole {
            prop_assert_eq!(screened(left.as_bytes(), size), Ok((left, 0, 0)));
        }
    }
}

#[test]
fn a_field_is_found_where_it_stands_once() {
    let kind = "multipart/form-data; boundary=b";
    let part = |name: &str, value: &str| {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let form = [part("file", "--b or\n--b"), part("model", "m\u{e4}"), part("language", "")];
    let whole = format!("{}--b--\r\n", form.concat());
    let found = |form: &str, name| {
        form_field(form.as_bytes(), kind, name).map(|at| form[at.start..at.end].to_owned())
    };
    assert_eq!(found(&whole, "model").as_deref(), Some("m\u{e4}"));
    assert_eq!(found(&whole, "file").as_deref(), Some("--b or\n--b"));
    assert_eq!(found(&whole, "language").as_deref(), Some(""));
    assert_eq!(found(&whole, "prompt"), None);
    let twice = format!("{}{}--b--\r\n", part("model", "a"), part("model", "b"));
    assert_eq!(found(&twice, "model"), None);
    assert_eq!(found("--b\r\nContent-Disp", "model"), None);
}
