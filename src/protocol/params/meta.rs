//! `params._meta`: what a request says of itself (2026-07-28/basic/index, "`_meta`").

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{Implementation, LoggingLevel, invalid};
use crate::protocol::{McpError, RequestId, envelope::text_of, id::is_string_or_integer};

/// The names of the members of `_meta` that the gateway reads or writes.
pub mod keys {
    pub const PROGRESS_TOKEN: &str = "progressToken";
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    pub const TRACEPARENT: &str = "traceparent";
    /// Ours: a repeat of a proposal with the same key is the same change.
    pub const IDEMPOTENCY_KEY: &str = "dev.countersign/idempotencyKey";
}

/// What the gateway reads of `_meta`. All members are optional here; what a revision requires is checked
/// by [`crate::protocol::headers::check_envelope`].
#[derive(Clone, Debug, Default)]
pub struct Meta<'a> {
    /// Raw JSON of a string or an integer, to be echoed as it is.
    pub progress_token: Option<&'a RawValue>,
    pub protocol_version: Option<Cow<'a, str>>,
    /// A JSON object.
    pub client_info: Option<&'a RawValue>,
    /// A JSON object.
    pub client_capabilities: Option<&'a RawValue>,
    pub log_level: Option<Cow<'a, str>>,
    pub idempotency_key: Option<Cow<'a, str>>,
    /// W3C trace context, not checked here.
    pub traceparent: Option<Cow<'a, str>>,
}

impl Meta<'_> {
    /// The progress token as a key that compares and outlives the message.
    #[must_use]
    pub fn progress_token(&self) -> Option<RequestId> {
        self.progress_token.map(|raw| RequestId::from_raw(raw.get()))
    }

    /// The client's own name for itself.
    ///
    /// # Errors
    /// `InvalidParams` where it lacks a name or a version.
    pub fn client_info(&self) -> Result<Option<Implementation>, McpError> {
        self.client_info
            .map(|raw| serde_json::from_str(raw.get()))
            .transpose()
            .map_err(|_| wrong(keys::CLIENT_INFO, "must have a `name` and a `version`, both strings"))
    }

    /// The least severe log messages that the request wants (2026-07-28/server/utilities/logging).
    ///
    /// # Errors
    /// `InvalidParams` for a level that does not exist.
    pub fn log_level(&self) -> Result<Option<LoggingLevel>, McpError> {
        self.log_level
            .as_deref()
            .map(|text| LoggingLevel::parse(text).ok_or_else(|| wrong(keys::LOG_LEVEL, "is not a log level")))
            .transpose()
    }
}

/// Whether the request says which revision it speaks, as only the stateless era does.
#[must_use]
pub fn is_modern(meta: &Meta<'_>) -> bool {
    meta.protocol_version.is_some()
}

/// Reads `params._meta`; absent, it is empty.
///
/// # Errors
/// `InvalidParams` whose `data.member` starts with `_meta` if it is not an object, or a member that the
/// gateway reads is of the wrong type or there twice.
pub fn meta<'a>(params: Option<&'a RawValue>) -> Result<Meta<'a>, McpError> {
    let Some(params) = params else { return Ok(Meta::default()) };
    let Some(raw) = member(params, "_meta")? else { return Ok(Meta::default()) };
    if !raw.get().starts_with('{') {
        return Err(invalid("_meta", "`params._meta` must be an object"));
    }
    let members: MetaMembers<'a> =
        serde_json::from_str(raw.get()).map_err(|_| invalid("_meta", "`params._meta` is invalid"))?;
    if let Some(key) = members.repeated {
        return Err(wrong(key, "is there more than once"));
    }
    let object = |slot: Slot| match members.values[slot as usize] {
        Some(raw) if !raw.get().starts_with('{') => Err(wrong(KEYS[slot as usize], "must be an object")),
        other => Ok(other),
    };
    let text = |slot: Slot| match members.values[slot as usize] {
        Some(raw) => text_of(raw).map(Some).ok_or_else(|| wrong(KEYS[slot as usize], "must be a string")),
        None => Ok(None),
    };
    let progress_token = match members.values[Slot::ProgressToken as usize] {
        Some(raw) if !is_string_or_integer(raw.get()) => {
            return Err(wrong(keys::PROGRESS_TOKEN, "must be a string or an integer"));
        }
        other => other,
    };
    Ok(Meta {
        progress_token,
        protocol_version: text(Slot::ProtocolVersion)?,
        client_info: object(Slot::ClientInfo)?,
        client_capabilities: object(Slot::ClientCapabilities)?,
        log_level: text(Slot::LogLevel)?,
        idempotency_key: text(Slot::IdempotencyKey)?,
        traceparent: text(Slot::Traceparent)?,
    })
}

fn wrong(key: &str, what: &str) -> McpError {
    invalid(&format!("_meta.{key}"), format!("`params._meta.{key}` {what}"))
}

/// Indices into [`KEYS`].
#[derive(Clone, Copy)]
enum Slot {
    ProgressToken,
    ProtocolVersion,
    ClientInfo,
    ClientCapabilities,
    LogLevel,
    IdempotencyKey,
    Traceparent,
}

const KEYS: [&str; 7] = [
    keys::PROGRESS_TOKEN,
    keys::PROTOCOL_VERSION,
    keys::CLIENT_INFO,
    keys::CLIENT_CAPABILITIES,
    keys::LOG_LEVEL,
    keys::IDEMPOTENCY_KEY,
    keys::TRACEPARENT,
];

#[derive(Default)]
struct MetaMembers<'a> {
    values: [Option<&'a RawValue>; KEYS.len()],
    repeated: Option<&'static str>,
}

struct KeyIndex(Option<usize>);

impl<'de> Deserialize<'de> for KeyIndex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = KeyIndex;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member name")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<KeyIndex, E> {
                Ok(KeyIndex(KEYS.iter().position(|key| *key == name)))
            }
        }
        deserializer.deserialize_identifier(KeyVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for MetaMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = MetaMembers<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MetaMembers<'de>, A::Error> {
                let mut members = MetaMembers::default();
                while let Some(KeyIndex(index)) = map.next_key()? {
                    let Some(index) = index else {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    };
                    if members.values[index].replace(map.next_value()?).is_some() {
                        members.repeated = Some(KEYS[index]);
                    }
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

/// The value of one member of a JSON object, left as it is.
///
/// # Errors
/// `InvalidParams` if the text is no object or has the member more than once.
pub fn member<'a>(object: &'a RawValue, name: &str) -> Result<Option<&'a RawValue>, McpError> {
    struct Find<'n>(&'n str);
    /// The value and whether there was more than one.
    type Found<'a> = (Option<&'a RawValue>, bool);

    impl<'de> DeserializeSeed<'de> for Find<'_> {
        type Value = Found<'de>;
        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_map(self)
        }
    }
    impl<'de> Visitor<'de> for Find<'_> {
        type Value = Found<'de>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let (mut found, mut repeated) = (None, false);
            while let Some(matches) = map.next_key_seed(Is(self.0))? {
                if matches {
                    repeated |= found.replace(map.next_value::<&'de RawValue>()?).is_some();
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok((found, repeated))
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(object.get());
    match Find(name).deserialize(&mut deserializer) {
        Ok((found, false)) => Ok(found),
        Ok((_, true)) => Err(invalid(name, format!("`{name}` is there more than once"))),
        Err(_) => Err(invalid("params", "`params` must be an object")),
    }
}

/// Tells whether a key is the one that is looked for.
struct Is<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member name")
    }
    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}
