//! Positions of the values that the picker reads from a request.

use crate::cursor::Cursor;
use crate::span::{Member, Span};
use crate::strings::unquote;

/// Declares the fields once: the variant, its name in a body and the way back.
macro_rules! fields {
    ($($variant:ident = $name:literal,)+) => {
        /// A top-level member of a request that the picker or a sidecar reads or writes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Field {
            $(
                #[doc = concat!("`", $name, "`")]
                $variant,
            )+
        }

        impl Field {
            /// Every field, in the order of the declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The member's name in a body.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The field of this name, which is unescaped and has no quotes.
            pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
                $(
                    if name == $name.as_bytes() {
                        return Some(Self::$variant);
                    }
                )+
                None
            }
        }
    };
}

fields! {
    BootstrapHost = "bootstrap_host",
    BootstrapPort = "bootstrap_port",
    BootstrapRoom = "bootstrap_room",
    CacheSalt = "cache_salt",
    Data1 = "data_1",
    Data2 = "data_2",
    Documents = "documents",
    EcTransferParams = "ec_transfer_params",
    ExtraKey = "extra_key",
    Input = "input",
    InputIds = "input_ids",
    Instructions = "instructions",
    Items = "items",
    KvTransferParams = "kv_transfer_params",
    MaxCompletionTokens = "max_completion_tokens",
    MaxOutputTokens = "max_output_tokens",
    MaxTokens = "max_tokens",
    Messages = "messages",
    Metadata = "metadata",
    MinTokens = "min_tokens",
    Model = "model",
    N = "n",
    Nvext = "nvext",
    PreviousResponseId = "previous_response_id",
    Priority = "priority",
    Prompt = "prompt",
    PromptCacheKey = "prompt_cache_key",
    Queries = "queries",
    Query = "query",
    SamplingParams = "sampling_params",
    SessionId = "session_id",
    Stream = "stream",
    StreamOptions = "stream_options",
    System = "system",
    Text = "text",
    Text1 = "text_1",
    Text2 = "text_2",
    TokenIds = "token_ids",
    Tools = "tools",
    User = "user",
}

/// Top-level members of a body that are kept. The public APIs together have fewer than 200.
const MEMBERS_MAX: usize = 1024;

/// The fields that a body has. Where a name stands more than once its last value counts, as in
/// the maps of serde_json, Go and Python.
#[derive(Clone, Debug)]
pub struct Fields {
    object: Span,
    /// A body has few of all the fields there are.
    members: Vec<(Field, Member)>,
    /// Every top-level member in order, up to [`MEMBERS_MAX`].
    all: Vec<Member>,
    overflown: bool,
    repeated: bool,
    media: bool,
}

impl Fields {
    pub(crate) fn new() -> Self {
        Self {
            object: Span::default(),
            members: Vec::with_capacity(8),
            all: Vec::with_capacity(16),
            overflown: false,
            repeated: false,
            media: false,
        }
    }

    /// Notes a member, and which of the fields it is.
    pub(crate) fn note(&mut self, body: &[u8], member: Member) {
        match self.all.len() < MEMBERS_MAX {
            true => self.all.push(member),
            false => self.overflown = true,
        }
        let Some(field) = field_of(body, &member) else { return };
        match self.members.iter_mut().find(|(known, _)| *known == field) {
            None => self.members.push((field, member)),
            Some((_, known)) => (*known, self.repeated) = (member, true),
        }
    }

    pub(crate) fn close(&mut self, object: Span, media: bool) {
        (self.object, self.media) = (object, media);
    }

    /// Whether some object of the body has a key that images, sounds and videos have.
    pub(crate) fn may_have_media(&self) -> bool {
        self.media
    }

    /// The body's object, braces included.
    pub fn object(&self) -> Span {
        self.object
    }

    /// Position of the value of `field`.
    pub fn get(&self, field: Field) -> Option<Span> {
        self.member(field).map(|member| member.value)
    }

    /// The member of `field`, key included.
    pub fn member(&self, field: Field) -> Option<Member> {
        self.members.iter().find(|(known, _)| *known == field).map(|(_, member)| *member)
    }

    /// Every member named like `field`, in order.
    pub(crate) fn every(&self, body: &[u8], field: Field) -> Vec<Member> {
        if !self.repeated {
            return self.member(field).into_iter().collect();
        }
        // Repeated names are rare enough to look at the body again.
        let mut found = Vec::new();
        let _ = Cursor::at(body, self.object.start).object(1, |member| {
            if field_of(body, &member) == Some(field) {
                found.push(member);
            }
        });
        found
    }

    /// Every top-level member in order, or how many are kept where the body has more.
    pub(crate) fn all(&self) -> Result<&[Member], usize> {
        if self.overflown { Err(MEMBERS_MAX) } else { Ok(&self.all) }
    }

    /// The raw value of `field`, a string with its quotes.
    pub fn raw<'a>(&self, body: &'a [u8], field: Field) -> Option<&'a [u8]> {
        self.get(field).map(|span| span.of(body))
    }

    /// The value of `field` where it is `true` or `false`.
    pub fn flag(&self, body: &[u8], field: Field) -> Option<bool> {
        match self.raw(body, field)? {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }

    /// The value of `field` where it is a whole number below 2^32.
    pub fn number(&self, body: &[u8], field: Field) -> Option<u32> {
        whole_number(self.raw(body, field)?)
    }
}

/// A whole number below 2^32 as JSON writes it.
pub(crate) fn whole_number(raw: &[u8]) -> Option<u32> {
    raw.iter().all(u8::is_ascii_digit).then(|| str::from_utf8(raw).ok()?.parse().ok())?
}

fn field_of(body: &[u8], member: &Member) -> Option<Field> {
    let key = Span { start: member.key_start, end: member.key_end }.of(body);
    if key.contains(&b'\\') {
        return Field::from_name(unquote(key)?.as_bytes());
    }
    Field::from_name(key.get(1..key.len().saturating_sub(1))?)
}
