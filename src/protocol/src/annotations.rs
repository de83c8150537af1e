//! The behavior hints of a tool.

use serde::Serialize;

/// The behavior hints of a tool (2025-03-26/server/tools, `ToolAnnotations`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolAnnotations {
    pub read_only_hint: bool,
    pub destructive_hint: bool,
    pub idempotent_hint: bool,
    pub open_world_hint: bool,
}
