//! The status of a tool's definition.

use serde::Serialize;
use strum::IntoStaticStr;
use utoipa::ToSchema;

/// The status of a tool's definition, which determines whether its annotations are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DefinitionStatus {
    /// The tool is built into the gateway.
    Module,
    /// A reviewer accepted exactly this definition.
    Accepted,
    /// The definition is the one that was first seen, and nobody accepted or refused it.
    #[serde(rename = "seen")]
    FirstSeen,
    /// The tool was added later and is not accepted.
    New,
    /// The definition differs from the accepted or first seen one, or comes from another server.
    Changed,
}

impl DefinitionStatus {
    /// Returns `true` if the definition's annotations count. `server_is_trusted` tells whether the operator
    /// trusts the server.
    pub const fn trusts_annotations(self, server_is_trusted: bool) -> bool {
        match self {
            Self::Module | Self::Accepted => true,
            Self::FirstSeen => server_is_trusted,
            Self::New | Self::Changed => false,
        }
    }

    /// Returns the reason why the definition must be accepted, if any.
    pub const fn mark(self) -> Option<AcceptanceMark> {
        match self {
            Self::New => Some(AcceptanceMark::ToolNew),
            Self::Changed => Some(AcceptanceMark::ToolChanged),
            Self::Module | Self::Accepted | Self::FirstSeen => None,
        }
    }
}

/// The reason why a tool is reviewed regardless of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, IntoStaticStr, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum AcceptanceMark {
    ToolNew,
    ToolChanged,
    OperationUnknown,
}

impl AcceptanceMark {
    /// Returns `true` if no call of the tool runs without review until its definition is accepted.
    pub const fn concerns_definition(self) -> bool {
        matches!(self, Self::ToolNew | Self::ToolChanged)
    }

    pub fn code(self) -> &'static str {
        self.into()
    }

    pub const fn reason(self) -> &'static str {
        match self {
            Self::ToolNew => "the tool is new and nobody has accepted it yet",
            Self::ToolChanged => {
                "the tool's definition or the server behind its name has changed, and nobody has accepted the change yet"
            }
            Self::OperationUnknown => "the tool's recipe does not know the operation that the call names",
        }
    }
}
