//! Prefix spaces: whose prompts share cached prefixes with whose.
//!
//! A request's space is derived here and nowhere else, from the API key that authorised it, the
//! header `x-tenant-id`, `cache_salt` and `nvext.cache_salt`. Engines get the space as the cache
//! salt, block hashes are seeded with it, and session ids are read within it. Each part narrows a
//! space and none widens it, so that a client that makes up a tenant stays in its own key's space.
//!
//! Replicas that have the same keys (or the same secret) derive the same spaces without a word to
//! each other. Edges that ask for no keys, a sidecar and an endpoint picker, derive the spaces of
//! tenants as a proxy without keys and secret does: see [`tenant_salt`].

use crate::openai::ApiError;
use crate::openai::options::check_cache_salt;
use crate::responses::ThoughtSeal;
use http::HeaderMap;
use ring::{hmac, pbkdf2};
use stator_body::{Api, Field};
use stator_protos::hash::name_hash;
use stator_protos::header::TENANT_ID;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::LazyLock;

/// Rounds of PBKDF2 between what an operator configured and the key of all spaces. Engines and
/// subscribers of KV events see spaces; whoever guesses at API keys from one pays this for each
/// guess. It is paid once for each change of the keys.
const STRETCH_ROUNDS: NonZeroU32 = NonZeroU32::new(100_000).expect("it is not zero");
/// Domain of the derivation. Another value would move all cached prefixes out of reach.
const DOMAIN: &[u8] = b"stator prefix spaces 1";
/// Bytes of a digest that make a cache salt: two spaces have the same one by chance only after
/// 2^64 spaces.
const SALT_BYTES: usize = 16;

/// A digest that nobody without the key of the derivation can compute.
type Digest = [u8; 32];

/// The key under which this fleet's spaces are derived.
pub struct Derivation(hmac::Key);

impl Derivation {
    /// A key from the operator's `secret`, or else from the set of API keys, in whatever order. A
    /// fleet without either has a well-known key: its spaces keep requests apart that do not try
    /// to meet.
    pub fn new(secret: Option<&str>, api_keys: &BTreeSet<String>) -> Self {
        if secret.is_none() && api_keys.is_empty() {
            return Self(hmac::Key::new(hmac::HMAC_SHA256, DOMAIN));
        }
        let mut material = Vec::new();
        match secret {
            Some(secret) => push(&mut material, Some(secret)),
            None => api_keys.iter().for_each(|key| push(&mut material, Some(key))),
        }
        let mut key = Digest::default();
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, STRETCH_ROUNDS, DOMAIN, &material, &mut key);
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    /// The account of an API key.
    pub fn of_key(&self, api_key: &str) -> Account {
        Account { root: self.digest(b"key", api_key.as_bytes()), is_apart: true }
    }

    /// The account of everyone, where no keys are asked for or all of them share.
    pub fn of_all(&self) -> Account {
        Account { root: self.digest(b"all", b""), is_apart: false }
    }

    fn digest(&self, label: &[u8; 3], text: &[u8]) -> Digest {
        tag(&self.0, &[label.as_slice(), text].concat())
    }
}

/// The owner of a request, as its API key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    root: Digest,
    /// Whether this account has a space of its own even where a request names no other part.
    is_apart: bool,
}

/// The parts of a space that a request names itself.
#[derive(Clone, Copy, Debug, Default)]
struct Parts<'a> {
    /// The header `x-tenant-id`.
    tenant: Option<&'a str>,
    /// The field `cache_salt`.
    cache_salt: Option<&'a str>,
    /// The field `nvext.cache_salt`.
    extension_salt: Option<&'a str>,
}

impl Account {
    /// The space of a request with this head, whose body has these salts.
    ///
    /// # Errors
    ///
    /// 400 for a tenant that cannot be meant.
    pub fn space_of(
        &self,
        headers: &HeaderMap,
        cache_salt: Option<&str>,
        extension_salt: Option<&str>,
    ) -> Result<PrefixSpace, ApiError> {
        let tenant = tenant(headers)?;
        Ok(self.space(Parts { tenant, cache_salt, extension_salt }))
    }

    /// The key by which the thoughts of the account's answers are sealed for its clients.
    ///
    /// # Errors
    ///
    /// 400 for a tenant that cannot be meant.
    pub fn thought_seal(&self, headers: &HeaderMap) -> Result<ThoughtSeal, ApiError> {
        let mut material = Vec::new();
        // A list of two parts is no space's, which has three.
        for part in [Some("sealed thoughts"), tenant(headers)?] {
            push(&mut material, part);
        }
        Ok(ThoughtSeal::new(&tag(&hmac::Key::new(hmac::HMAC_SHA256, &self.root), &material)))
    }

    fn space(&self, parts: Parts<'_>) -> PrefixSpace {
        let parts = [parts.tenant, parts.cache_salt, parts.extension_salt];
        if !self.is_apart && parts.iter().all(Option::is_none) {
            return PrefixSpace(None);
        }
        let mut material = Vec::new();
        parts.into_iter().for_each(|part| push(&mut material, part));
        PrefixSpace(Some(tag(&hmac::Key::new(hmac::HMAC_SHA256, &self.root), &material)))
    }
}

/// The space of one request. The common space is without a salt, so that its block hashes are
/// those of NVIDIA Dynamo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrefixSpace(Option<Digest>);

impl PrefixSpace {
    /// The space as bytes, to be kept; none for the common space.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.0.as_ref().map(|digest| &digest[..])
    }

    /// The space of such bytes; none if they are none.
    pub fn read(bytes: Option<&[u8]>) -> Option<Self> {
        match bytes {
            None => Some(Self(None)),
            Some(bytes) => Some(Self(Some(bytes.try_into().ok()?))),
        }
    }

    /// The cache salt that stands for the space: 32 hexadecimal digits, or none.
    pub fn salt(&self) -> Option<String> {
        let digest = self.0?;
        Some(digest[..SALT_BYTES].iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// A number for a session that a request of this space names. Sessions of two spaces are two
    /// sessions, whatever they are called.
    pub fn session(&self, text: &str) -> u64 {
        let Some(digest) = self.0 else { return name_hash(text) };
        let tag = tag(&hmac::Key::new(hmac::HMAC_SHA256, &digest), text.as_bytes());
        tag.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

/// The account of everyone at an edge that asks for no keys.
static EVERYONE: LazyLock<Account> =
    LazyLock::new(|| Derivation::new(None, &BTreeSet::new()).of_all());

/// The cache salt of a tenant's request at an edge that asks for no keys, whose body has these
/// salts: the one of a proxy without keys and secret. A body that has the tenant's own salt, from
/// such an edge before this one, keeps it.
pub fn tenant_salt(tenant: &str, cache_salt: Option<&str>, extension_salt: Option<&str>) -> String {
    let salt = |cache_salt, extension_salt| {
        let parts = Parts { tenant: Some(tenant), cache_salt, extension_salt };
        EVERYONE.space(parts).salt().expect("a tenant has a space of its own")
    };
    let own = salt(None, None);
    match (cache_salt, extension_salt) {
        (None, None) => own,
        (Some(known), None) if known == own => own,
        _ => salt(cache_salt, extension_salt),
    }
}

/// The field of a body by which engines keep prefixes apart, of an API with prompts.
pub fn salt_field(api: Api) -> Option<Field> {
    match api {
        Api::ChatCompletions
        | Api::Completions
        | Api::Responses
        | Api::Messages
        | Api::Embeddings
        | Api::Pooling
        | Api::Classify
        | Api::Rerank
        | Api::Score
        | Api::VllmGenerate => Some(Field::CacheSalt),
        // SGLang's own API names the field differently.
        Api::SglangGenerate => Some(Field::ExtraKey),
        _ => None,
    }
}

/// The tenant that a request's headers name, if any.
///
/// # Errors
///
/// As [`tenant_of`].
pub fn tenant(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    tenant_of(headers.get_all(TENANT_ID).iter().map(|value| value.as_bytes()))
}

/// The tenant that the values of the header `x-tenant-id` name, if any.
///
/// # Errors
///
/// 400 for a header that is there twice, is no text, or is longer than a cache salt may be: a
/// gateway that adds the header behind a client's own must not have its word ignored.
pub fn tenant_of<'v>(
    values: impl IntoIterator<Item = &'v [u8]>,
) -> Result<Option<&'v str>, ApiError> {
    let mut values = values.into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        let message = format!("{TENANT_ID} is there more than once");
        return Err(ApiError::invalid(TENANT_ID, message));
    }
    let plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t');
    let text = str::from_utf8(value).ok().filter(|text| text.as_bytes().iter().all(plain));
    let Some(text) = text.map(str::trim) else {
        return Err(ApiError::invalid(TENANT_ID, format!("{TENANT_ID} is no ASCII text")));
    };
    if text.is_empty() {
        return Ok(None);
    }
    check_cache_salt(TENANT_ID, text)?;
    Ok(Some(text))
}

/// Appends a part with its length, so that two lists of parts never look alike.
fn push(material: &mut Vec<u8>, part: Option<&str>) {
    match part {
        None => material.push(0),
        Some(text) => {
            material.push(1);
            material.extend_from_slice(&(text.len() as u64).to_le_bytes());
            material.extend_from_slice(text.as_bytes());
        }
    }
}

fn tag(key: &hmac::Key, message: &[u8]) -> Digest {
    let tag = hmac::sign(key, message);
    tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::option;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn keys(keys: &[&str]) -> BTreeSet<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    fn salt(account: Account, parts: Parts<'_>) -> Option<String> {
        account.space(parts).salt()
    }

    #[test]
    fn without_keys_and_parts_the_space_is_the_common_one() {
        let everyone = Derivation::new(None, &keys(&[])).of_all();
        let space = everyone.space(Parts::default());
        assert_eq!((space, space.salt()), (PrefixSpace::default(), None));
        assert_eq!(space.session("s"), name_hash("s"));
    }

    #[test]
    fn every_part_keeps_apart_and_none_stands_for_another() {
        let derivation = Derivation::new(None, &keys(&["alpha", "beta"]));
        let accounts = [derivation.of_all(), derivation.of_key("alpha"), derivation.of_key("beta")];
        let some = Some("t");
        let parts = [
            Parts::default(),
            Parts { tenant: some, ..Parts::default() },
            Parts { cache_salt: some, ..Parts::default() },
            Parts { extension_salt: some, ..Parts::default() },
            Parts { tenant: some, cache_salt: some, ..Parts::default() },
            Parts { tenant: Some("tt"), ..Parts::default() },
        ];
        let spaces = accounts.iter().flat_map(|account| parts.map(|parts| account.space(parts)));
        let spaces: Vec<_> = spaces.collect();
        let salts: HashSet<_> = spaces.iter().map(PrefixSpace::salt).collect();
        let sessions: HashSet<_> = spaces.iter().map(|space| space.session("s")).collect();
        assert_eq!((salts.len(), sessions.len()), (spaces.len(), spaces.len()));
        assert!(salts.iter().flatten().all(|salt| salt.len() == 2 * SALT_BYTES));
    }

    #[test]
    fn replicas_derive_the_same_from_the_same_keys_in_any_order() {
        let derive = |list: &[&str]| Derivation::new(None, &keys(list)).of_key("alpha");
        assert_eq!(derive(&["alpha", "beta"]), derive(&["beta", "alpha", "beta"]));
        assert_ne!(derive(&["alpha", "beta"]), derive(&["alpha", "gamma"]));
    }

    #[test]
    fn a_secret_keeps_spaces_while_keys_come_and_go() {
        let derive = |secret, list: &[&str]| Derivation::new(secret, &keys(list)).of_key("alpha");
        let one = derive(Some("the fleet's secret"), &["alpha"]);
        assert_eq!(one, derive(Some("the fleet's secret"), &["alpha", "beta"]));
        assert_ne!(one, derive(Some("another secret"), &["alpha"]));
        assert_ne!(one, derive(None, &["alpha"]));
    }

    #[test]
    fn a_well_known_derivation_never_changes() {
        let everyone = Derivation::new(None, &keys(&[])).of_all();
        let tenant = Parts { tenant: Some("blue"), ..Parts::default() };
        let derived = salt(everyone, tenant).expect("a tenant has a space");
        // Computed apart: HMAC-SHA-256 of "all" under the domain, and of the parts under that.
        assert_eq!(derived, "5d6e2809f8d9cf6fe3a0f9af5b53765e");
        assert_eq!(tenant_salt("blue", None, None), derived);
    }

    #[test]
    fn two_edges_in_a_row_keep_a_tenants_salt() {
        let blue = tenant_salt("blue", None, None);
        assert_eq!(tenant_salt("blue", Some(&blue), None), blue);
        let narrower = [(Some("s"), None), (None, Some("s")), (Some("s"), Some("s"))];
        let salts = narrower.map(|(own, extension)| tenant_salt("blue", own, extension));
        let stolen = tenant_salt("red", Some(&blue), None);
        let all: HashSet<_> = salts.iter().chain([&blue, &stolen]).collect();
        assert_eq!(all.len(), 5, "another tenant's salt narrows the own space only");
    }

    proptest! {
        /// Two requests of an account share a space exactly where all their parts are the same.
        #[test]
        fn spaces_are_as_different_as_parts(
            one in prop::array::uniform3(option::of("[ab]{1,3}")),
            other in prop::array::uniform3(option::of("[ab]{1,3}")),
        ) {
            let account = Derivation::new(None, &keys(&[])).of_key("alpha");
            let space = |parts: &[Option<String>; 3]| {
                let [tenant, cache_salt, extension_salt] = parts.each_ref().map(Option::as_deref);
                account.space(Parts { tenant, cache_salt, extension_salt })
            };
            prop_assert_eq!(space(&one) == space(&other), one == other);
        }
    }
}
