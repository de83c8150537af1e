//! The behavior hints of a tool.

use serde::Serialize;
use utoipa::ToSchema;

/// The behavior hints of a tool (2025-03-26/server/tools, `ToolAnnotations`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Annotations)]
pub struct ToolAnnotations {
    pub read_only_hint: bool,
    pub destructive_hint: bool,
    pub idempotent_hint: bool,
    pub open_world_hint: bool,
}

impl ToolAnnotations {
    /// The annotations of a module's tool that only reads.
    pub const READ_ONLY: Self =
        Self { read_only_hint: true, destructive_hint: false, idempotent_hint: true, open_world_hint: false };
    /// The annotations of a module's tool that adds something. Repeating the call adds it again.
    pub const ADDING: Self = Self { read_only_hint: false, idempotent_hint: false, ..Self::READ_ONLY };
    /// The annotations of a module's tool that replaces or deletes something. Repeating the call changes nothing more.
    pub const REPLACING: Self = Self { read_only_hint: false, destructive_hint: true, ..Self::READ_ONLY };
}
