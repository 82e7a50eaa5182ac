//! Request and response bodies as edges see them that pass them on: scanned once, spliced where one
//! value changes, and otherwise the bytes that came.
//!
//! Pure: bytes in, values out. This crate never opens a socket, never builds a tree and never
//! serialises a body again. Every entry point takes arbitrary bytes and returns an error or a
//! value; none panics. Start reading at [`Parser`], which turns a request body into a
//! [`ParsedBody`] by way of [`scan`]; [`Editor`] changes a body, [`Object`] any object, [`UsageTail`] and
//! [`ModelNameRewriter`] watch a response go by. [`FieldRules`] and [`AnswerCleaner`]
//! keep what concerns engines alone between proxies and engines.

mod allow;
mod api;
mod body;
mod clean;
mod cursor;
mod edit;
mod editor;
mod fields;
mod form;
mod form_error;
mod grpc;
mod image;
mod media;
mod messages;
mod object;
mod parse;
mod rename;
mod scan;
mod scan_error;
mod screen;
mod screening;
mod span;
mod strings;
mod text;
mod tokens;
mod usage;
mod utf8;

pub use allow::{EXTENSIONS, FieldRules, ScreenError, SteeringField};
pub use api::{Api, ApiFamily, ApiMatch};
pub use body::{Body, BodyTooLong};
pub use clean::AnswerCleaner;
pub use edit::{Edits, Pieces};
pub use editor::Editor;
pub use fields::{Field, Fields};
pub use form::{FormScreen, form_field, is_form};
pub use form_error::FormError;
pub use grpc::{FrameError, GrpcUsage};
pub use media::{IMAGE, MediaItem, VIDEO};
pub use object::{Object, ObjectEdit};
pub use parse::{
    Input, ParseError, ParseOutcome, ParsedBody, Parser, ParserSet, UnknownParser, extension_salt,
    parser, session_name,
};
pub use rename::ModelNameRewriter;
pub use scan::scan;
pub use scan_error::{ScanError, ScanErrorKind};
pub use screen::{BodyDescription, ScreenOutcome};
pub use screening::{RemovedField, RemovedKind, Screening};
pub use span::{Member, Span};
pub use strings::{unquote, write_string};
pub use text::{PromptBytes, prompt_bytes};
pub use tokens::{read_token_ids, write_token_ids};
pub use usage::{Usage, UsageTail};
