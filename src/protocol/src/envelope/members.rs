//! The members of an envelope.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::{
    json::{self, trusted_raw_value},
    outline::Outline,
};

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
    pub(super) repeated: Option<Cow<'a, str>>,
    /// The outline of `params`, if it was already built.
    pub(super) outline: Option<Outline>,
    /// The nesting depth was already checked.
    pub(super) depth_checked: bool,
}

impl<'a> Members<'a> {
    /// Reads an object that is known to be JSON.
    pub(super) fn read(object: &'a str) -> Self {
        let mut members = Self::default();
        for member in json::members(object) {
            let Some(slot) = members.slot(&member.key) else { continue };
            let is_repeated = std::mem::replace(slot, trusted_raw_value(member.value)).is_some();
            if is_repeated && members.repeated.as_deref() != Some("id") {
                members.repeated = Some(member.key);
            }
        }
        members
    }

    /// Returns the place of a member's value, or `None` for members that JSON-RPC does not define.
    pub(super) fn slot(&mut self, key: &str) -> Option<&mut Option<&'a RawValue>> {
        Some(match key {
            "jsonrpc" => &mut self.jsonrpc,
            "id" => &mut self.id,
            "method" => &mut self.method,
            "params" => &mut self.params,
            "result" => &mut self.result,
            "error" => &mut self.error,
            _ => return None,
        })
    }
}
