//! Taking a client's JSON apart, with the path of whatever is wrong in it.

use crate::field_notes::FieldNotes;
use crate::json::Json;
use crate::openai::ApiError;
use std::borrow::Cow;
use std::fmt;

/// The place of a value in a body; written as `messages[0].content`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JsonPath<'p> {
    /// A field of the body, with the notes on all fields of the request.
    Field(&'p FieldNotes, &'p str),
    /// A member of an object.
    Member(&'p JsonPath<'p>, &'p str),
    /// An item of a list.
    Item(&'p JsonPath<'p>, usize),
}

impl<'p> JsonPath<'p> {
    /// Notes on the fields of the request.
    pub(crate) fn notes(&self) -> &'p FieldNotes {
        match self {
            Self::Field(notes, _) => notes,
            Self::Member(of, _) | Self::Item(of, _) => of.notes(),
        }
    }

    /// 400: the value at this place is `fault`.
    pub(crate) fn invalid(&self, fault: impl fmt::Display) -> ApiError {
        ApiError::invalid(&self.to_string(), format!("{self} {fault}"))
    }

    /// 400: the value at this place would have to be `wanted`, and is something else.
    pub(crate) fn mistyped(&self, wanted: &str, found: &Json<'_>) -> ApiError {
        let message = format!("{self} must be {wanted}, not {}", kind(found));
        ApiError::bad_request(message).with_code("invalid_type").with_param(self.to_string())
    }

    /// 400: a feature of the API that is not here.
    pub(crate) fn unsupported(&self, fault: impl fmt::Display) -> ApiError {
        ApiError::unsupported(&self.to_string(), format!("{self} {fault}"))
    }
}

impl fmt::Display for JsonPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(_, name) => f.write_str(name),
            Self::Member(of, name) => write!(f, "{of}.{name}"),
            Self::Item(of, at) => write!(f, "{of}[{at}]"),
        }
    }
}

/// A value's kind, in a client's words.
fn kind(value: &Json<'_>) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Int(_) | Json::Uint(_) | Json::LongInteger(_) | Json::Float(_) => "a number",
        Json::Str(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

/// Most names of an object that are kept as what a slip may have meant.
const ASKED_MAX: usize = 12;

/// Longest name of a member that an error repeats, in characters.
pub(crate) const NAME_MAX_CHARS: usize = 64;

/// The members of an object that nobody has taken yet.
pub(crate) struct Members<'a, 'p> {
    path: JsonPath<'p>,
    members: Vec<(Cow<'a, str>, Json<'a>)>,
    /// Names that were asked for so far, as many as `asked_count`.
    asked: [&'static str; ASKED_MAX],
    asked_count: usize,
}

impl<'a, 'p> Members<'a, 'p> {
    /// The members of the object at `path`.
    ///
    /// # Errors
    ///
    /// 400 for anything but an object.
    pub(crate) fn of(value: Json<'a>, path: JsonPath<'p>) -> Result<Self, ApiError> {
        match value {
            Json::Object(members) => {
                Ok(Self { path, members, asked: [""; ASKED_MAX], asked_count: 0 })
            }
            other => Err(path.mistyped("an object", &other)),
        }
    }

    /// The object's own place.
    pub(crate) fn path(&self) -> &JsonPath<'p> {
        &self.path
    }

    /// Takes a member; `null` counts as absent, and of equal names the last counts.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<Json<'a>> {
        if self.asked_count < ASKED_MAX {
            self.asked[self.asked_count] = name;
            self.asked_count += 1;
        }
        let mut found = None;
        self.members.retain_mut(|(key, value)| {
            let is_it = key == name;
            if is_it {
                found = Some(std::mem::replace(value, Json::Null));
            }
            !is_it
        });
        found.filter(|value| *value != Json::Null)
    }

    /// Takes a string.
    ///
    /// # Errors
    ///
    /// 400 for any other kind of value.
    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<Cow<'a, str>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Str(text)) => Ok(Some(text)),
            Some(other) => Err(JsonPath::Member(&self.path, name).mistyped("a string", &other)),
        }
    }

    /// Takes a string without which there is nothing to do.
    ///
    /// # Errors
    ///
    /// 400 where it is absent or not a string.
    pub(crate) fn required_text(&mut self, name: &'static str) -> Result<Cow<'a, str>, ApiError> {
        let path = self.path;
        self.text(name)?
            .ok_or_else(|| ApiError::missing(&JsonPath::Member(&path, name).to_string()))
    }

    /// Takes a value without which there is nothing to do.
    ///
    /// # Errors
    ///
    /// 400 where it is absent.
    pub(crate) fn required(&mut self, name: &'static str) -> Result<Json<'a>, ApiError> {
        let path = self.path;
        self.take(name).ok_or_else(|| ApiError::missing(&JsonPath::Member(&path, name).to_string()))
    }

    /// Takes a boolean.
    ///
    /// # Errors
    ///
    /// 400 for any other kind of value.
    pub(crate) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(JsonPath::Member(&self.path, name).mistyped("a boolean", &other)),
        }
    }

    /// Takes a member that changes nothing, and has the client told so if it is there.
    pub(crate) fn ignore(&mut self, name: &'static str) {
        if self.take(name).is_some() {
            self.path.notes().ignore(JsonPath::Member(&self.path, name));
        }
    }

    /// Takes the callers of a tool, and refuses one that the model itself may not call: nothing here runs
    /// code that could.
    ///
    /// # Errors
    ///
    /// 400 for a list without `"direct"`, and for anything else.
    pub(crate) fn check_callers(&mut self) -> Result<(), ApiError> {
        let path = self.path;
        let is_direct = |caller: &Json<'_>| caller.as_str() == Some("direct");
        match self.take("allowed_callers") {
            None => Ok(()),
            Some(Json::Array(callers)) if callers.iter().any(is_direct) => Ok(()),
            Some(_) => {
                let path = JsonPath::Member(&path, "allowed_callers");
                Err(path.unsupported("must have \"direct\": only the model calls tools here"))
            }
        }
    }

    /// Has the client told of the members that nobody has taken.
    pub(crate) fn ignore_rest(self) {
        for (name, _) in self.members.iter().filter(|(_, value)| *value != Json::Null) {
            let name: String = name.chars().take(NAME_MAX_CHARS).collect();
            self.path.notes().ignore(JsonPath::Member(&self.path, &name));
        }
    }

    /// Refuses what nobody has taken.
    ///
    /// # Errors
    ///
    /// 400 for a member that the API does not have, unless unknown fields are ignored.
    pub(crate) fn refuse_untaken(self) -> Result<(), ApiError> {
        let known = || self.asked[..self.asked_count].iter().copied();
        let mut rest = self.members.iter().filter(|(_, value)| *value != Json::Null);
        rest.try_for_each(|(name, _)| {
            let name: String = name.chars().take(NAME_MAX_CHARS).collect();
            self.path.notes().unknown(&JsonPath::Member(&self.path, &name), known())
        })
    }
}

/// An object of these members, for what a template or an engine reads.
pub(crate) fn object<'a, const N: usize>(members: [(&'static str, Json<'a>); N]) -> Json<'a> {
    Json::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
}
