//! Images, sounds, videos and files of a conversation.
//!
//! Each is read and kept in its place. A model that reads text alone refuses them where the
//! conversation becomes tokens, with the part's type and path.

mod reading;

pub(crate) use reading::{CHAT_TYPES, of_block, of_chat, of_item};

use std::borrow::Cow;

/// Most media of one conversation.
pub const MEDIA_MAX: usize = 128;

/// An image, a sound, a video or a file in the place of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaPart<'a> {
    /// The kind of content.
    pub kind: MediaKind,
    /// The content, or its place.
    pub source: MediaSource<'a>,
    /// The type of the part, in the words of its API.
    pub part_type: &'static str,
    /// The part's place in the body, as in `messages[0].content[1]`.
    pub path: String,
}

/// Kind of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaKind {
    /// A picture.
    Image,
    /// A sound.
    Audio,
    /// A video.
    Video,
    /// A document.
    File,
}

/// The content of a medium, or its place; texts borrow from the body where they can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaSource<'a> {
    /// An address, which may be a `data:` one.
    Url(Cow<'a, str>),
    /// The content itself, in base64 or as text.
    Data(Cow<'a, str>),
    /// The id of a file that was sent before.
    FileId(Cow<'a, str>),
}
