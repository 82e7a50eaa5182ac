//! Media in the words of each API: parts of chats, parts of responses' items, blocks of messages.

use super::{MediaKind, MediaPart, MediaSource};
use crate::json::Json;
use crate::openai::ApiError;
use crate::tree::{JsonPath, Members};

/// Members of a chat's parts that hold media. A part's type is the name of its member.
pub(crate) const CHAT_TYPES: [(&str, MediaKind); 5] = [
    ("image_url", MediaKind::Image),
    ("input_audio", MediaKind::Audio),
    ("audio_url", MediaKind::Audio),
    ("video_url", MediaKind::Video),
    ("file", MediaKind::File),
];

/// The medium of a chat's part of this type, whose member is `holder`; its path is still empty. None
/// for a type that holds no medium.
///
/// # Errors
///
/// The fault of a part without content.
pub(crate) fn of_chat<'a>(
    part_type: &str,
    holder: Option<Json<'a>>,
) -> Option<Result<MediaPart<'a>, String>> {
    let (part_type, kind) = CHAT_TYPES.into_iter().find(|(name, _)| *name == part_type)?;
    let members = match holder {
        Some(Json::Object(members)) => members,
        _ => return Some(Err(format!("{part_type} must be an object"))),
    };
    let text = |names: &[&str]| {
        members.iter().rev().find_map(|(name, value)| match value {
            Json::Str(text) if names.contains(&&**name) => Some(text.clone()),
            _ => None,
        })
    };
    let url = text(&["url"]).map(MediaSource::Url);
    let data = || text(&["data", "file_data"]).map(MediaSource::Data);
    let source = url.or_else(data).or_else(|| text(&["file_id"]).map(MediaSource::FileId));
    let medium = |source| MediaPart { kind, source, part_type, path: String::new() };
    Some(source.map(medium).ok_or_else(|| format!("{part_type} has no content")))
}

/// The medium of a part of the Responses API; none for a part of another type.
///
/// # Errors
///
/// 400 for a part without content.
pub(crate) fn of_item<'a>(
    part_type: &str,
    part: &mut Members<'a, '_>,
) -> Result<Option<MediaPart<'a>>, ApiError> {
    let path = *part.path();
    let (part_type, kind, source) = match part_type {
        "input_image" => {
            part.text("detail")?;
            let url = part.text("image_url")?.map(MediaSource::Url);
            let file = part.text("file_id")?.map(MediaSource::FileId);
            ("input_image", MediaKind::Image, required(url.or(file), &path, "image_url")?)
        }
        "input_file" => {
            part.text("detail")?;
            part.text("filename")?;
            let data = part.text("file_data")?.map(MediaSource::Data);
            let url = part.text("file_url")?.map(MediaSource::Url);
            let file = part.text("file_id")?.map(MediaSource::FileId);
            ("input_file", MediaKind::File, required(data.or(url).or(file), &path, "file_data")?)
        }
        "input_audio" => {
            let holder = part.required("input_audio")?;
            let mut audio = Members::of(holder, JsonPath::Member(&path, "input_audio"))?;
            audio.text("format")?;
            let data = MediaSource::Data(audio.required_text("data")?);
            audio.refuse_untaken()?;
            ("input_audio", MediaKind::Audio, data)
        }
        _ => return Ok(None),
    };
    Ok(Some(MediaPart { kind, source, part_type, path: path.to_string() }))
}

/// The medium of a block of the Messages API; none for a block of another type.
///
/// # Errors
///
/// 400 for a block without content.
pub(crate) fn of_block<'a>(
    block_type: &str,
    block: &mut Members<'a, '_>,
) -> Result<Option<MediaPart<'a>>, ApiError> {
    let (part_type, kind) = match block_type {
        "image" => ("image", MediaKind::Image),
        "document" => ("document", MediaKind::File),
        _ => return Ok(None),
    };
    for aside in ["title", "context", "citations"] {
        if kind == MediaKind::File {
            block.take(aside);
        }
    }
    let path = *block.path();
    let source_path = JsonPath::Member(&path, "source");
    let mut source = Members::of(block.required("source")?, source_path)?;
    let found = match &*source.required_text("type")? {
        "base64" | "text" => {
            source.text("media_type")?;
            MediaSource::Data(source.required_text("data")?)
        }
        "url" => MediaSource::Url(source.required_text("url")?),
        "file" => MediaSource::FileId(source.required_text("file_id")?),
        other => {
            let fault =
                format!("is {other:.40?}, it must be \"base64\", \"text\", \"url\" or \"file\"");
            return Err(JsonPath::Member(&source_path, "type").unsupported(fault));
        }
    };
    source.refuse_untaken()?;
    Ok(Some(MediaPart { kind, source: found, part_type, path: path.to_string() }))
}

fn required<'a>(
    source: Option<MediaSource<'a>>,
    path: &JsonPath<'_>,
    name: &str,
) -> Result<MediaSource<'a>, ApiError> {
    source.ok_or_else(|| ApiError::missing(&JsonPath::Member(path, name).to_string()))
}

#[cfg(test)]
mod tests;
