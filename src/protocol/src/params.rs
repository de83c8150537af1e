//! The members of `params`, and of its `_meta` (2026-07-28/basic/index, "`_meta`"), that the gateway must understand, borrowed
//! and typed.
//!
//! Unknown members are skipped here and forwarded unchanged. A member of the wrong type gives an `InvalidParams` error
//! whose message and `data.member` name it; its value is not echoed.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Map, Value, value::RawValue};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::{
    McpError, RequestId,
    json::{self, Member},
    outline::{OutlinedObject, OutlinedParams},
    request::is_string_or_integer,
};

/// Parses `params` as a `T`. Absent `params` count as an empty object.
///
/// # Errors
/// `InvalidParams` naming the member that is missing, duplicated or of the wrong type.
pub fn parse<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Result<T, McpError> {
    let text = object_text(params)?;
    serde_json::from_str(text).map_err(|_| describe_error::<T>(text))
}

/// Returns the text of `params`, which must be an object.
fn object_text(params: Option<&RawValue>) -> Result<&str, McpError> {
    let text = params.map_or("{}", RawValue::get);
    if text.starts_with('{') { Ok(text) } else { Err(McpError::invalid_param("params", "`params` must be an object")) }
}

/// Returns the error of `params` that could not be parsed. Parses them again while tracking the path, so that only failures pay
/// for it.
fn describe_error<'a, T: Deserialize<'a>>(text: &'a str) -> McpError {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut deserializer) else {
        return McpError::invalid_param("params", "`params` are invalid");
    };
    let mut reason = error.inner().to_string();
    // The position is relative to `params`, which the client cannot see.
    if let Some(position) = reason.rfind(" at line ") {
        reason.truncate(position);
    }
    let (field, problem) = parse_serde_message(&reason);
    let path = error.path().to_string();
    let member = match (path.as_str(), field) {
        ("." | "?", None) => return McpError::invalid_param("params", format!("`params` {problem}")),
        ("." | "?", Some(field)) => field.to_owned(),
        (path, None) => path.chars().take(128).collect(),
        // A duplicate member is already part of the path.
        (path, Some(field)) if path.rsplit('.').next() == Some(field) => path.to_owned(),
        (path, Some(field)) => format!("{path}.{field}"),
    };
    McpError::invalid_param(&member, format!("`params.{member}` {problem}"))
}

/// Splits a message of serde into the member that it names and the problem. Only fixed parts of the message are passed
/// on, because the rest quotes the client's input at any length.
fn parse_serde_message(reason: &str) -> (Option<&str>, String) {
    for (prefix, problem) in [("missing field `", "is missing"), ("duplicate field `", "is given more than once")] {
        if let Some(rest) = reason.strip_prefix(prefix) {
            return (rest.strip_suffix('`'), problem.to_owned());
        }
    }
    let expected = reason.strip_prefix("expected ").or_else(|| reason.rsplit_once(", expected ").map(|(_, tail)| tail));
    (None, expected.map_or_else(|| "is invalid".to_owned(), |expected| format!("must be {expected}")))
}

/// The parameters of `initialize` (2025-11-25/basic/lifecycle, "Initialization").
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams<'a> {
    #[serde(borrow)]
    pub protocol_version: Cow<'a, str>,
    /// A JSON object.
    #[serde(borrow, deserialize_with = "deserialize_object")]
    pub capabilities: &'a RawValue,
    #[serde(deserialize_with = "deserialize_from_object")]
    pub client_info: Implementation,
}

/// The parameters of `tools/call` (2026-07-28/server/tools, "Calling Tools").
#[derive(Debug, Deserialize)]
pub struct CallToolParams<'a> {
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// A JSON object.
    #[serde(borrow, default, deserialize_with = "deserialize_present_object")]
    pub arguments: Option<&'a RawValue>,
}

impl<'a> CallToolParams<'a> {
    /// Like [`parse`], for `params` with an outline.
    pub(crate) fn from_outline(params: Option<&'a RawValue>, object: OutlinedObject<'a>) -> Result<Self, McpError> {
        // The gateway and the upstream must read the same `task`.
        object.unique_member("task")?;
        let unique = |key| object.unique_member(key).ok().flatten();
        // A fast path for well-formed calls. For others the full parser reports the error.
        if let Some(name) = unique("name").and_then(json::string)
            && let Some(arguments) = unique("arguments").filter(|arguments| arguments.starts_with('{'))
            && let Some(arguments) = json::trusted_raw_value(arguments)
        {
            return Ok(Self { name, arguments: Some(arguments) });
        }
        parse(params)
    }
}

/// The parameters of the methods that list something, such as `tools/list` (2026-07-28/server/utilities/pagination).
#[derive(Debug, Deserialize)]
pub struct ListParams<'a> {
    #[serde(borrow, default)]
    pub cursor: Option<Cow<'a, str>>,
}

/// The parameters of `resources/read` (2026-07-28/server/resources), `resources/subscribe` and `resources/unsubscribe`
/// (2025-11-25/server/resources, "Subscriptions").
#[derive(Debug, Deserialize)]
pub struct ResourceUriParams<'a> {
    #[serde(borrow)]
    pub uri: Cow<'a, str>,
}

/// The parameters of `prompts/get` (2026-07-28/server/prompts).
#[derive(Debug, Deserialize)]
pub struct GetPromptParams<'a> {
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// All values are strings.
    #[serde(default, deserialize_with = "deserialize_strings")]
    pub arguments: Map<String, Value>,
}

/// The parameters of `completion/complete` (2026-07-28/server/utilities/completion).
#[derive(Debug, Deserialize)]
pub struct CompleteParams<'a> {
    #[serde(borrow, rename = "ref", deserialize_with = "deserialize_from_object")]
    pub reference: Reference<'a>,
    #[serde(borrow, deserialize_with = "deserialize_from_object")]
    pub argument: CompleteArgument<'a>,
    #[serde(default, deserialize_with = "deserialize_from_object")]
    pub context: CompleteContext,
}

/// The prompt or resource whose argument is completed.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type")]
pub enum Reference<'a> {
    #[serde(rename = "ref/prompt")]
    Prompt {
        #[serde(borrow)]
        name: Cow<'a, str>,
    },
    /// A URI or URI template.
    #[serde(rename = "ref/resource")]
    Resource {
        #[serde(borrow)]
        uri: Cow<'a, str>,
    },
}

/// The argument to complete, with the text typed so far.
#[derive(Debug, Deserialize)]
pub struct CompleteArgument<'a> {
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub value: Cow<'a, str>,
}

/// Arguments that already have a value (2025-06-18 and later).
#[derive(Debug, Default, Deserialize)]
pub struct CompleteContext {
    /// All values are strings.
    #[serde(default, deserialize_with = "deserialize_strings")]
    pub arguments: Map<String, Value>,
}

/// The parameters of `logging/setLevel` (2025-11-25/server/utilities/logging).
#[derive(Debug, Deserialize)]
pub struct SetLevelParams {
    pub level: LoggingLevel,
}

/// The parameters of `subscriptions/listen` (2026-07-28/basic/patterns/subscriptions).
#[derive(Debug, Deserialize)]
pub struct ListenParams<'a> {
    #[serde(borrow, deserialize_with = "deserialize_from_object")]
    pub notifications: ListenFilter<'a>,
}

/// The notifications that a subscription requests. An absent member means `false`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenFilter<'a> {
    pub tools_list_changed: bool,
    pub prompts_list_changed: bool,
    pub resources_list_changed: bool,
    #[serde(borrow)]
    pub resource_subscriptions: Vec<Cow<'a, str>>,
    /// Ids of tasks, which belong to the tasks extension.
    #[serde(borrow)]
    pub task_ids: Vec<Cow<'a, str>>,
}

/// The parameters of `notifications/cancelled` (2025-11-25/basic/utilities/cancellation,
/// 2026-07-28/basic/patterns/cancellation).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelledParams {
    /// Optional in the schema of 2025-11-25 because of tasks; a notification without it cancels nothing here.
    #[serde(deserialize_with = "deserialize_request_id")]
    pub request_id: RequestId,
}

/// Reads a JSON object as raw text.
fn deserialize_object<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<&'a RawValue, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    if raw.get().starts_with('{') { Ok(raw) } else { Err(Error::custom("expected an object")) }
}

/// Reads an optional member that is present. Its value must be a JSON object, because the schema does not allow null.
fn deserialize_present_object<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    deserialize_object(deserializer).map(Some)
}

/// Reads a value from a JSON object. Without this, derived types also accept an array of their members' values.
fn deserialize_from_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct ObjectVisitor<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_map(ObjectVisitor(PhantomData))
}

/// Reads a map whose values are all strings.
fn deserialize_strings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    let map = Map::deserialize(deserializer)?;
    if map.values().all(Value::is_string) { Ok(map) } else { Err(Error::custom("expected a map of strings")) }
}

/// Reads a string or an integer as raw text.
fn deserialize_request_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RequestId, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    RequestId::from_json(raw.get()).ok_or_else(|| Error::custom("expected a string or an integer"))
}

/// The name and version that a client or server reports (`Implementation` in all schemas). It must not be trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Implementation {
    pub name: String,
    pub version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// Syslog severities, least severe first (2026-07-28/server/utilities/logging, "Log Levels").
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum LoggingLevel {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl LoggingLevel {
    /// All levels, least severe first.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Parses the name of a level, which is lower case.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

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
    /// A key of the gateway: why the agent wants the call. Reviewers see it as the agent's own words.
    pub const REASON: &str = "dev.countersign/reason";
    /// A key of the gateway: the call is a step of a plan.
    pub const PLAN: &str = "dev.countersign/plan";
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
    pub reason: Option<Cow<'a, str>>,
    /// The text of a JSON object.
    pub plan: Option<&'a str>,
}

impl Meta<'_> {
    /// Returns `true` if the request names its revision, as only the stateless era does.
    pub fn names_revision(&self) -> bool {
        self.protocol_version.is_some()
    }

    /// Returns `true` if the request has a member that only requests of the stateless era have.
    pub fn is_stateless(&self) -> bool {
        self.names_revision() || self.client_info.is_some() || self.client_capabilities.is_some()
    }

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

/// Reads `params._meta`. An absent `_meta` counts as empty.
///
/// # Errors
/// `InvalidParams` whose `data.member` starts with `_meta`, if it is not an object, or if a member that the gateway
/// reads is duplicated or of the wrong type.
pub fn parse_meta<'a>(params: Option<&'a RawValue>) -> Result<Meta<'a>, McpError> {
    let text = object_text(params)?;
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
            keys::CLIENT_INFO | keys::CLIENT_CAPABILITIES | keys::PLAN if !raw.starts_with('{') => {
                return Err(invalid_member(key, "must be an object"));
            }
            keys::PROGRESS_TOKEN => meta.progress_token.replace(raw).is_some(),
            keys::CLIENT_INFO => meta.client_info.replace(raw).is_some(),
            keys::CLIENT_CAPABILITIES => meta.client_capabilities.replace(raw).is_some(),
            keys::PROTOCOL_VERSION => meta.protocol_version.replace(string()?).is_some(),
            keys::LOG_LEVEL => meta.log_level.replace(string()?).is_some(),
            keys::IDEMPOTENCY_KEY => meta.idempotency_key.replace(string()?).is_some(),
            keys::REASON => meta.reason.replace(string()?).is_some(),
            keys::PLAN => meta.plan.replace(raw).is_some(),
            _ => false,
        };
        if is_repeated {
            return Err(invalid_member(key, "is given more than once"));
        }
    }
    Ok(meta)
}

/// Returns the error about a member of `_meta`.
pub(crate) fn invalid_member(key: &str, problem: &str) -> McpError {
    McpError::invalid_param(&format!("_meta.{key}"), format!("`params._meta.{key}` {problem}"))
}

#[cfg(test)]
mod tests;
