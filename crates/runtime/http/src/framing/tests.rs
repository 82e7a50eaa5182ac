use super::*;
use crate::replay;
use proptest::collection::vec;
use proptest::prelude::*;

const OK: &str = "HTTP/1.1 200 OK\r\n";

fn is_malformed(error: HttpError) -> bool {
    matches!(error, HttpError::Malformed(_))
}

fn check(text: &str) -> Result<Option<(AnswerHead, usize)>, bool> {
    head(text.as_bytes()).map_err(is_malformed)
}

fn framing(headers: &str) -> (Framing, bool) {
    let (head, length) = check(&format!("{OK}{headers}\r\nrest")).unwrap().unwrap();
    assert_eq!(length, OK.len() + headers.len() + 2);
    (head.framing, head.keeps)
}

/// The body in these pieces, how much follows it, and whether it is over.
fn read(framing: &Framing, pieces: &[&[u8]]) -> Result<(Vec<u8>, usize, bool), bool> {
    let (mut framing, mut body, mut left) = (framing.clone(), Vec::new(), 0);
    for piece in pieces {
        let used = framing.take(piece, |part| body.extend_from_slice(part));
        left += piece.len() - used.map_err(is_malformed)?;
    }
    Ok((body, left, framing.is_over()))
}

fn chunks(text: &str) -> Result<(Vec<u8>, usize, bool), bool> {
    read(&Framing::Chunks(ChunkPosition::Size(None)), &[text.as_bytes()])
}

#[test]
fn a_head_says_how_its_body_ends_and_whether_another_may_follow() {
    let chunks = || Framing::Chunks(ChunkPosition::Size(None));
    assert_eq!(framing("Content-Length: 12\r\n"), (Framing::Length(12), true));
    assert_eq!(framing("content-length: 3\r\ncontent-length: 3\r\n"), (Framing::Length(3), true));
    assert_eq!(framing("Transfer-Encoding: gzip, Chunked\r\n"), (chunks(), true));
    assert_eq!(framing("content-length: 1\r\ntransfer-encoding: chunked\r\n"), (chunks(), true));
    assert_eq!(framing("transfer-encoding: gzip\r\n"), (Framing::UntilClosed, false));
    assert_eq!(framing(""), (Framing::UntilClosed, false));
    let closes = "content-length: 1\r\nconnection: x, Close\r\n";
    assert_eq!(framing(closes), (Framing::Length(1), false));
    let old = check("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n").unwrap().unwrap();
    assert!(!old.0.keeps);
    let none = check("HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap();
    assert_eq!((none.0.framing, none.0.keeps), (Framing::Length(0), true));
}

#[test]
fn a_redirection_says_where_to_and_a_stream_that_it_is_one() {
    let (moved, _) = check("HTTP/1.1 302 Found\r\nLocation:  /there \r\n\r\n").unwrap().unwrap();
    assert_eq!((moved.location.as_deref(), moved.is_event_stream), (Some("/there"), false));
    let stream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n";
    assert!(check(stream).unwrap().unwrap().0.is_event_stream);
}

#[test]
fn a_head_is_whole_or_refused() {
    assert_eq!(check("HTTP/1.1 200 OK\r\ncontent-le"), Ok(None));
    assert_eq!(check(""), Ok(None));
    for text in [
        "nonsense\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1, 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
    ] {
        assert_eq!(check(text), Err(true), "{text}");
    }
    let many = format!("{OK}{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
    assert_eq!(check(&many), Err(true));
}

#[test]
fn chunks_are_put_together_and_what_is_around_them_is_left_out() {
    let body = |text: &str| (text.as_bytes().to_vec(), 0, true);
    assert_eq!(
        chunks("3\r\nabc\r\n0A; x=\"y\"\r\n0123456789\r\n0\r\n\r\n"),
        Ok(body("abc0123456789"))
    );
    assert_eq!(chunks("0\r\nexpires: never\r\nx: y\r\n\r\n"), Ok(body("")));
    assert_eq!(chunks("1\r\na\r\n0\r\n\r\nHTTP"), Ok((b"a".to_vec(), 4, true)));
    assert_eq!(chunks("5\r\nabc"), Ok((b"abc".to_vec(), 0, false)));
    let extended = |bytes: usize| chunks(&format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(bytes)));
    assert_eq!(extended(MAX_IGNORED_BYTES as usize), Ok(body("a")));
    assert_eq!(extended(MAX_IGNORED_BYTES as usize + 1), Err(true));
    for text in [
        "x\r\n",
        "\r\n",
        "-1\r\n",
        "1\na",
        "1\r\nab\r\n",
        "1\r\na\n",
        "1;x\n",
        "10000000001\r\n",
        "ffffffffffffffffffff\r\n",
    ] {
        assert_eq!(chunks(text), Err(true), "{text}");
    }
    let trailers = format!("0\r\n{}", "a: b\r\n".repeat(MAX_IGNORED_BYTES as usize));
    assert_eq!(chunks(&trailers), Err(true));
}

#[test]
fn a_body_is_as_long_as_it_says() {
    let whole = (b"abc".to_vec(), 2, true);
    assert_eq!(read(&Framing::Length(3), &[b"ab", b"cde"]), Ok(whole));
    assert_eq!(read(&Framing::UntilClosed, &[b"ab", b"c"]), Ok((b"abc".to_vec(), 0, false)));
}

proptest! {
    /// However chunks are cut, and into whatever pieces, the body is what was put into them.
    #[test]
    fn any_pieces_give_the_body(
        parts in vec(vec(any::<u8>(), 1..40), 0..6),
        piece in 1_usize..50,
    ) {
        let mut bytes = Vec::new();
        for part in &parts {
            bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            bytes.extend_from_slice(part);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
        let got = read(&Framing::Chunks(ChunkPosition::Size(None)), &pieces);
        prop_assert_eq!(got, Ok((parts.concat(), 0, true)));
    }

    /// Wherever an answer is cut, it is the same one, whole or not.
    #[test]
    fn any_pieces_give_the_answer(
        chunked: bool,
        body in "[a-z0-9\r\n;]{0,40}",
        end in "[0\r\n]{0,6}",
        piece in 1_usize..50,
    ) {
        let hint = "HTTP/1.1 103 Early Hints\r\n\r\n";
        let framing =
            if chunked { "transfer-encoding: chunked" } else { "content-length: 8" };
        let size = body.len();
        let answer = format!("{hint}{OK}{framing}\r\n\r\n{size:x}\r\n{body}\r\n{end}");
        let whole = replay([answer.as_bytes()], 100).ok();
        prop_assert_eq!(whole, replay(answer.as_bytes().chunks(piece), 100).ok());
    }

    #[test]
    fn no_bytes_make_it_panic(pieces in vec(vec(any::<u8>(), 0..40), 0..8), chunked: bool) {
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let whole = pieces.concat();
        let _ = head(&[OK.as_bytes(), &whole].concat());
        let framing =
            if chunked { Framing::Chunks(ChunkPosition::Size(None)) } else { Framing::Length(20) };
        if let Ok((body, left, _)) = read(&framing, &pieces) {
            prop_assert!(body.len() + left <= whole.len());
        }
    }
}
