//! `params._meta`: the metadata of a request (2026-07-28/basic/index, "`_meta`").

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{Implementation, LoggingLevel};
use crate::{
    McpError,
    id::is_string_or_integer,
    json::{self, Member},
    outline::OutlinedParams,
};

/// The names of the members of `_meta` that the gateway reads or writes.
pub mod keys {
    pub const PROGRESS_TOKEN: &str = "progressToken";
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    /// A key of the gateway: a repeated proposal with the same key returns the same change.
    pub const IDEMPOTENCY_KEY: &str = "dev.countersign/idempotencyKey";
}

/// The members of `_meta` that the gateway reads. All of them are optional here. [`crate::headers::check_envelope`] checks the
/// members that a revision requires.
#[derive(Clone, Debug, Default)]
pub struct Meta<'a> {
    /// Raw JSON of a string or an integer, echoed unchanged.
    pub progress_token: Option<&'a str>,
    pub protocol_version: Option<Cow<'a, str>>,
    /// The text of a JSON object.
    pub client_info: Option<&'a str>,
    /// The text of a JSON object.
    pub client_capabilities: Option<&'a str>,
    pub log_level: Option<Cow<'a, str>>,
    pub idempotency_key: Option<Cow<'a, str>>,
}

impl Meta<'_> {
    /// Returns the name and version of the client.
    ///
    /// # Errors
    /// `InvalidParams` if the name or the version is missing.
    pub fn client_info(&self) -> Result<Option<Implementation>, McpError> {
        self.client_info
            .map(serde_json::from_str)
            .transpose()
            .map_err(|_| invalid_member(keys::CLIENT_INFO, "must have a `name` and a `version`, both strings"))
    }

    /// Returns the lowest severity of the log messages that the request wants (2026-07-28/server/utilities/logging).
    ///
    /// # Errors
    /// `InvalidParams` for a level that does not exist.
    pub fn log_level(&self) -> Result<Option<LoggingLevel>, McpError> {
        self.log_level
            .as_deref()
            .map(|text| LoggingLevel::parse(text).ok_or_else(|| invalid_member(keys::LOG_LEVEL, "is not a log level")))
            .transpose()
    }
}

/// Returns `true` if the request names its revision, as only the stateless era does.
#[must_use]
pub fn is_modern(meta: &Meta<'_>) -> bool {
    meta.protocol_version.is_some()
}

/// Reads `params._meta`. An absent `_meta` counts as empty.
///
/// # Errors
/// `InvalidParams` whose `data.member` starts with `_meta`, if it is not an object, or if a member that the gateway
/// reads is duplicated or of the wrong type.
pub fn parse_meta<'a>(params: Option<&'a RawValue>) -> Result<Meta<'a>, McpError> {
    let text = super::object_text(params)?;
    let mut metas = json::members(text).filter(|member| member.key == "_meta").map(|member| member.value);
    let first = metas.next();
    if metas.next().is_some() {
        return Err(McpError::repeated_member("_meta"));
    }
    first.map_or_else(|| Ok(Meta::default()), |meta| read_members(meta, json::members(meta)))
}

/// Like [`parse_meta`], for `params` with an outline.
///
/// # Errors
/// The errors of [`parse_meta`].
pub(crate) fn meta_from_outline<'a>(params: OutlinedParams<'a>) -> Result<Meta<'a>, McpError> {
    // The outline holds the last `_meta`, so duplicates are rejected first.
    params.object.unique_member("_meta")?;
    params.meta.map_or_else(|| Ok(Meta::default()), |meta| read_members(meta.text(), meta.members()))
}

fn read_members<'a>(text: &str, members: impl Iterator<Item = Member<'a>>) -> Result<Meta<'a>, McpError> {
    if !text.starts_with('{') {
        return Err(McpError::invalid_param("_meta", "`params._meta` must be an object"));
    }
    let mut meta = Meta::default();
    for member in members {
        let (key, raw) = (&*member.key, member.value);
        let string = || json::string(raw).ok_or_else(|| invalid_member(key, "must be a string"));
        let is_repeated = match key {
            keys::PROGRESS_TOKEN if !is_string_or_integer(raw) => {
                return Err(invalid_member(key, "must be a string or an integer"));
            }
            keys::CLIENT_INFO | keys::CLIENT_CAPABILITIES if !raw.starts_with('{') => {
                return Err(invalid_member(key, "must be an object"));
            }
            keys::PROGRESS_TOKEN => meta.progress_token.replace(raw).is_some(),
            keys::CLIENT_INFO => meta.client_info.replace(raw).is_some(),
            keys::CLIENT_CAPABILITIES => meta.client_capabilities.replace(raw).is_some(),
            keys::PROTOCOL_VERSION => meta.protocol_version.replace(string()?).is_some(),
            keys::LOG_LEVEL => meta.log_level.replace(string()?).is_some(),
            keys::IDEMPOTENCY_KEY => meta.idempotency_key.replace(string()?).is_some(),
            _ => false,
        };
        if is_repeated {
            return Err(invalid_member(key, "is given more than once"));
        }
    }
    Ok(meta)
}

fn invalid_member(key: &str, what: &str) -> McpError {
    McpError::invalid_param(&format!("_meta.{key}"), format!("`params._meta.{key}` {what}"))
}
