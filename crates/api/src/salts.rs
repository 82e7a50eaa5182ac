//! Cache salts of bodies that engines read themselves.

use crate::openai::ApiError;
use crate::openai::body::EXTENSION_SALT;
use crate::openai::options::check_cache_salt;
use stator_body::{Field, unquote};
use std::borrow::Cow;

/// The body's own salt, of the JSON of its `field`; `null` is none.
///
/// # Errors
///
/// 400 for a salt that is no string, empty or too long.
pub fn own(field: Field, raw: &[u8]) -> Result<Option<Cow<'_, str>>, ApiError> {
    checked(field.name(), text(field.name(), raw)?)
}

/// The salt of Dynamo's `nvext`, of its JSON; `null` and an empty one are none.
///
/// # Errors
///
/// 400 for a salt that is no string, or too long.
pub fn extension(raw: &[u8]) -> Result<Option<Cow<'_, str>>, ApiError> {
    checked(EXTENSION_SALT, text(EXTENSION_SALT, raw)?.filter(|salt| !salt.is_empty()))
}

fn text<'a>(param: &str, raw: &'a [u8]) -> Result<Option<Cow<'a, str>>, ApiError> {
    match unquote(raw) {
        _ if raw == b"null" => Ok(None),
        None => Err(ApiError::invalid(param, format!("{param} must be a string"))),
        text => Ok(text),
    }
}

fn checked<'a>(param: &str, salt: Option<Cow<'a, str>>) -> Result<Option<Cow<'a, str>>, ApiError> {
    salt.iter().try_for_each(|salt| check_cache_salt(param, salt))?;
    Ok(salt)
}
