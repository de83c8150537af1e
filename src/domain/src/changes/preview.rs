//! The preview of a write: its diff, and how it was made.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Diff, Operation, Target};

/// The source of a preview.
// The order of the variants is part of `Change::review_digest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PreviewKind {
    /// A module of the gateway, using its own data.
    #[default]
    Module,
    /// The tool's own dry run.
    DryRun,
    /// The present state that a read returned, compared with the state that the arguments would produce.
    BeforeAfter,
    /// Only the arguments, field by field, because the effect is unknown.
    Arguments,
}

/// The failure of a preview that shows that the call must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CertainFailure {
    /// The proposer may read the state that the failure reveals.
    Readable,
    /// The failure may reveal state that the proposer may not read.
    Restricted,
}

impl CertainFailure {
    pub const fn new(is_readable: bool) -> Self {
        if is_readable { Self::Readable } else { Self::Restricted }
    }
}

/// The source of a preview, and whether it failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PreviewNote {
    #[schema(required)]
    pub kind: PreviewKind,
    /// The reason why a recipe failed. The diff then shows the arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Set if the recipe declares that the call itself must fail for the reason in `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub must_fail: Option<CertainFailure>,
    /// The preview was made from state that the proposer could not read, who sees a fixed text instead.
    // The view of `Change::for_proposer` must not depend on that state.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restricted: bool,
    /// The packages and versions that the recipe was tried with, or `none`; absent without a recipe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tried: Option<String>,
    /// The recipe answers the question by which the server asks to confirm the call. The diff shows the answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub confirms: bool,
    /// The operation that the arguments name, if the tool carries many. Rules refer to it as `tool/operation`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_operation: Option<String>,
    /// Hashes of the reads of a recipe that return the state which the call changes. Previews that share one show the same
    /// state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state_keys: Vec<String>,
    /// The arguments of the step refer to results of earlier steps. Once these are filled in, the step is previewed and reviewed
    /// again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub awaits_results: bool,
}

impl PreviewNote {
    /// Returns the name by which rules refer to the call of the tool: its own, or `tool/operation`.
    pub fn subject<'a>(&self, tool: &'a str) -> Cow<'a, str> {
        let operation = self.tool_operation.as_deref();
        operation.map_or(Cow::Borrowed(tool), |operation| Cow::Owned(qualified_operation(tool, operation)))
    }

    /// Returns `true` if the preview shows the effect of the change, and not only its arguments.
    pub const fn is_live(&self) -> bool {
        self.failed.is_none() && !matches!(self.kind, PreviewKind::Arguments)
    }

    /// Returns `true` if the change may be approved although its rule requires a preview.
    pub const fn permits_approval(&self) -> bool {
        self.is_live() || self.awaits_results
    }
}

/// The effect of a call on the state of its target, by how much the state after it depends on the state before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateEffect {
    /// The call sets the whole state, whatever it was before.
    Whole,
    /// The call sets the fields that the diff shows, and leaves the others as they are.
    Fields,
    /// If the state before the call is another one, only another preview can tell the state after it.
    Dependent,
}

/// The name of the diff field that compares the state before and after a call. If the state is a record, the names of its
/// fields begin with it.
pub const COMPARED_FIELD: &str = "$content";
/// The suffix of [`COMPARED_FIELD`] for a note that there is no state before the call.
pub const MISSING_FIELD_SUFFIX: &str = ".before";

/// A provider's preview of a write.
#[derive(Clone, Debug)]
pub struct Preview {
    pub note: PreviewNote,
    pub operation: Operation,
    pub target: Target,
    /// One sentence for people and agents: `Create Task “Fix login” in CORE`.
    pub summary: String,
    pub diff: Diff,
    /// Hash of the live state that the preview was computed against (`sha256:…`). It is compared again on approval and
    /// before the run.
    pub fingerprint: String,
    /// Tells whether the diff can be computed from another state before the call. It is not stored with the change.
    pub state_effect: StateEffect,
}

/// Returns the name by which rules and acceptances refer to an operation of a tool.
pub fn qualified_operation(tool: &str, operation: &str) -> String {
    format!("{tool}/{operation}")
}
