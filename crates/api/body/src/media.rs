//! Images, audio and video of a prompt.

use crate::fields::Field;
use crate::image;
use crate::parse::ParsedBody;
use serde::Deserialize;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The modality of images.
pub const IMAGE: &str = "image";

/// The modality of videos.
pub const VIDEO: &str = "video";

/// Most media of one request that are looked at.
const MEDIA_MAX: usize = 1024;

/// An image, a sound or a video: equal content or equal addresses have equal hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaItem {
    /// Hash of its address or of its data, the same within one process.
    pub hash: u64,
    /// Kind of content: `image`, `audio` or `video`.
    pub modality: &'static str,
    /// Bytes of its address or of its data.
    pub size: usize,
    /// Width times height of an image whose data stand in the body and tell.
    pub pixels: Option<u64>,
}

impl MediaItem {
    fn new(modality: &'static str, content: String) -> Self {
        let pixels = if modality == IMAGE { image::pixels(&content) } else { None };
        Self { hash: hash(&content), modality, size: content.len(), pixels }
    }
}

/// A message whose content is a list of parts; what else it has does not matter.
#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Parts(Vec<Part>),
    #[allow(dead_code, reason = "texts and whatever else a message may have are passed over")]
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    image_url: Option<Address>,
    #[serde(default)]
    video_url: Option<Address>,
    #[serde(default)]
    audio_url: Option<Address>,
    #[serde(default)]
    input_audio: Option<Data>,
    #[serde(default)]
    source: Option<Data>,
}

/// An address as chats write it, in an object, or as responses do, as a string.
#[derive(Deserialize)]
#[serde(untagged)]
enum Address {
    Object {
        url: String,
    },
    Text(String),
    #[allow(dead_code, reason = "a file's number, and whatever else may stand here, is no address")]
    Other(serde::de::IgnoredAny),
}

/// Data that stand in the body, or where Anthropic's API has them.
#[derive(Deserialize)]
struct Data {
    #[serde(default)]
    data: Option<String>,
    #[serde(default)]
    url: Option<String>,
}

impl Part {
    /// The part's modality, and its address or data.
    fn content(self) -> Option<(&'static str, String)> {
        let address = |address: Address| match address {
            Address::Object { url } => Some(url),
            Address::Text(url) => Some(url),
            Address::Other(_) => None,
        };
        let data = |data: Data| data.data.or(data.url);
        let contents = [
            (IMAGE, self.image_url.and_then(address)),
            (VIDEO, self.video_url.and_then(address)),
            ("audio", self.audio_url.and_then(address)),
            ("audio", self.input_audio.and_then(data)),
            (IMAGE, self.source.and_then(data)),
        ];
        contents.into_iter().find_map(|(modality, content)| Some((modality, content?)))
    }
}

impl ParsedBody {
    /// The images, sounds and videos of the prompt, in their order; at most 1024.
    ///
    /// Known are those of OpenAI's chats and responses and of Anthropic's messages. A body
    /// without any is not looked at again.
    pub fn media(&self, body: &[u8]) -> Vec<MediaItem> {
        let Some((text, fields)) = self.json(body) else { return Vec::new() };
        let input = fields.raw(text, Field::Messages).or_else(|| fields.raw(text, Field::Input));
        let Some(input) = input.filter(|_| fields.may_have_media()) else { return Vec::new() };
        let messages: Vec<Message> = serde_json::from_slice(input).unwrap_or_default();
        let parts = messages.into_iter().filter_map(|message| match message.content? {
            Content::Parts(parts) => Some(parts),
            Content::Other(_) => None,
        });
        let contents = parts.flatten().filter_map(Part::content);
        contents
            .take(MEDIA_MAX)
            .map(|(modality, content)| MediaItem::new(modality, content))
            .collect()
    }
}

fn hash(content: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use crate::{ParseOutcome, ParserSet};

    #[track_caller]
    fn check(path: &str, body: &str, modalities: &[&str], different: usize) {
        let parsed = ParserSet::default().parse(path, body.as_bytes());
        let Ok(ParseOutcome::Request(parsed)) = parsed else {
            panic!("it is a request: {parsed:?}")
        };
        let found = parsed.media(body.as_bytes());
        let hashes: std::collections::HashSet<_> = found.iter().map(|item| item.hash).collect();
        let known: Vec<_> = found.iter().map(|item| item.modality).collect();
        assert_eq!((&known[..], hashes.len()), (modalities, different));
    }

    #[test]
    fn the_media_of_a_chat_are_found_and_told_apart() {
        let body = r#"{"model":"m","messages":[
            {"role":"system","content":"image_url is a word"},
            {"role":"user","content":[{"type":"text","text":"look"},
              {"type":"image_url","image_url":{"url":"http://a/1.png"}},
              {"type":"image_url","image_url":{"url":"http://a/2.png","detail":"low"}},
              {"type":"image_url","image_url":{"url":"http://a/1.png"}},
              {"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}},
              {"type":"audio_url","audio_url":{"url":"http://a/4.wav"}},
              {"type":"video_url","video_url":{"url":"http://a/3.mp4"}}]}]}"#;
        check(
            "/v1/chat/completions",
            body,
            &["image", "image", "image", "audio", "audio", "video"],
            5,
        );
    }

    #[test]
    fn the_media_of_other_apis_are_found() {
        let anthropic = r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[
            {"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGk="}},
            {"type":"image","source":{"type":"url","url":"http://a/1.png"}}]}]}"#;
        check("/v1/messages", anthropic, &["image", "image"], 2);
        let responses = r#"{"model":"m","input":[{"role":"user","content":[
            {"type":"input_text","text":"x"},
            {"type":"input_image","image_url":"http://a/1.png"}]}]}"#;
        check("/v1/responses", responses, &["image"], 1);
    }

    #[test]
    fn texts_have_no_media() {
        check(
            "/v1/chat/completions",
            r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#,
            &[],
            0,
        );
        check("/v1/completions", r#"{"model":"m","prompt":"\"image\" of a house"}"#, &[], 0);
        let odd = r#"{"model":"m","messages":[{"role":"user","content":{"image_url":7}},7]}"#;
        check("/v1/chat/completions", odd, &[], 0);
    }
}
