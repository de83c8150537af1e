//! Splits a JSON object into the members of an envelope, and an array into the messages of a batch.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::outline::Outline;

/// The raw members of an envelope. Other members are skipped, because JSON-RPC allows them.
#[derive(Default)]
pub(super) struct Members<'a> {
    pub(super) jsonrpc: Option<&'a RawValue>,
    pub(super) id: Option<&'a RawValue>,
    pub(super) method: Option<&'a RawValue>,
    pub(super) params: Option<&'a RawValue>,
    pub(super) result: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
    /// The name of a duplicate member: two readers could act on two different messages. `id` takes precedence over
    /// others.
    pub(super) repeated: Option<&'static str>,
    /// The outline of `params`, if it was already built.
    pub(super) outline: Option<Outline>,
    /// The nesting depth was already checked.
    pub(super) depth_checked: bool,
}

enum MemberName {
    Jsonrpc,
    Id,
    Method,
    Params,
    Result,
    Error,
    Other,
}

impl<'de> Deserialize<'de> for MemberName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl Visitor<'_> for NameVisitor {
            type Value = MemberName;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member name")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<MemberName, E> {
                Ok(match name {
                    "jsonrpc" => MemberName::Jsonrpc,
                    "id" => MemberName::Id,
                    "method" => MemberName::Method,
                    "params" => MemberName::Params,
                    "result" => MemberName::Result,
                    "error" => MemberName::Error,
                    _ => MemberName::Other,
                })
            }
        }
        deserializer.deserialize_identifier(NameVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Members::default();
                while let Some(name) = map.next_key::<MemberName>()? {
                    let (slot, name) = match name {
                        MemberName::Jsonrpc => (&mut members.jsonrpc, "jsonrpc"),
                        MemberName::Id => (&mut members.id, "id"),
                        MemberName::Method => (&mut members.method, "method"),
                        MemberName::Params => (&mut members.params, "params"),
                        MemberName::Result => (&mut members.result, "result"),
                        MemberName::Error => (&mut members.error, "error"),
                        MemberName::Other => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    if slot.replace(map.next_value::<&'de RawValue>()?).is_some() && members.repeated != Some("id") {
                        members.repeated = Some(name);
                    }
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

/// Returns the elements of a JSON array, or `None` if there are more than `max`.
pub(super) fn batch(text: &str, max: usize) -> serde_json::Result<Option<Vec<&RawValue>>> {
    struct BatchVisitor(usize);
    impl<'de> Visitor<'de> for BatchVisitor {
        type Value = Option<Vec<&'de RawValue>>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while members.len() < self.0 {
                match seq.next_element::<&'de RawValue>()? {
                    Some(member) => members.push(member),
                    None => return Ok(Some(members)),
                }
            }
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(Some(members));
            }
            // The rest is still read, because invalid JSON is a different error than too many messages.
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok(None)
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let members = deserializer.deserialize_seq(BatchVisitor(max))?;
    deserializer.end()?;
    Ok(members)
}
